//! Logging to standard error that holds up nobody and fails nobody.
//!
//! Whoever reads standard error may stop reading, close it, or have its disk full. So lines go through
//! a bounded queue, without locks, to a thread that alone writes them and may stand still for ever. A
//! line that finds the queue full, or can't be written, is dropped and counted; how many is shown in
//! `/status` and `/metrics`, and logged as soon as lines get through again.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::thread::Thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use crossbeam_queue::ArrayQueue;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tracing_subscriber::EnvFilter;

use crate::config::{Config, filter_fault};

/// Lines that may wait to be written: those of a start and some seconds of the most that clients can
/// cause.
const LINES: usize = 1024;
/// The longest line; the rest of a longer one is cut off.
const LINE_BYTES: usize = 8 << 10;
/// How long [`flush`] waits for a reader that does not read.
pub const PATIENCE: Duration = Duration::from_millis(300);

struct Log {
    queue: ArrayQueue<Box<[u8]>>,
    /// Lines that were put into the queue, and those of them that were written or given up.
    queued: AtomicU64,
    done: AtomicU64,
    dropped: AtomicU64,
    writer: OnceLock<Thread>,
}

static LOG: OnceLock<Log> = OnceLock::new();

/// Lines that nobody got to see.
pub fn dropped() -> u64 {
    LOG.get().map_or(0, |log| log.dropped.load(SeqCst))
}

/// Logs to standard error, as the configuration says unless `ROWMILL_LOG` is set.
///
/// # Errors
/// Where the filter can't be read, the thread can't be started, or logging is set up already.
pub fn start(config: &Config) -> anyhow::Result<()> {
    let filter = filter(config)?;
    start_thread().context("cannot start the log's thread")?;
    // Where an event can't be formatted or written, the subscriber would say so on standard error
    // itself, and panic if that fails.
    let logs = tracing_subscriber::fmt().log_internal_errors(false);
    let logs = logs.with_env_filter(filter).with_writer(|| Line);
    let started = logs.with_ansi(io::stderr().is_terminal()).try_init();
    started.map_err(|error| anyhow::anyhow!("logging: {error}"))
}

/// The filter of the environment, else of the configuration.
///
/// # Errors
/// Where it is none.
pub fn filter(config: &Config) -> anyhow::Result<EnvFilter> {
    let text = std::env::var("ROWMILL_LOG").unwrap_or_else(|_| config.log.filter.clone());
    if let Some(fault) = filter_fault(&text) {
        anyhow::bail!("log filter: {fault}");
    }
    EnvFilter::try_new(&text).with_context(|| format!("`{text}` is no log filter"))
}

fn start_thread() -> io::Result<()> {
    let log = LOG.get_or_init(|| Log {
        queue: ArrayQueue::new(LINES),
        queued: AtomicU64::new(0),
        done: AtomicU64::new(0),
        dropped: AtomicU64::new(0),
        writer: OnceLock::new(),
    });
    if log.writer.get().is_none() {
        let thread = std::thread::Builder::new().name("rowmilld-log".into());
        let thread = thread.spawn(|| log.run())?.thread().clone();
        log.writer.get_or_init(|| thread);
    }
    Ok(())
}

/// Writes a line of its own, such as the error that the program ends with: through the queue where
/// there is one, since standard error may be full.
pub fn say(line: fmt::Arguments<'_>) {
    match LOG.get() {
        Some(log) => log.put(format!("{line}\n").as_bytes()),
        None => {
            let _unheard = writeln!(io::stderr(), "{line}");
        }
    }
}

/// A warning in the log, or on standard error before there is one.
pub(crate) fn warn(line: &str) {
    match LOG.get() {
        Some(_) => tracing::warn!("{line}"),
        None => say(format_args!("rowmilld: {line}")),
    }
}

/// Waits until all lines so far are written, at most [`PATIENCE`].
pub fn flush() {
    let Some(log) = LOG.get() else {
        return;
    };
    let (wanted, began) = (log.queued.load(SeqCst), Instant::now());
    while log.done.load(SeqCst) < wanted && began.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Where the subscriber writes an event, in one piece.
struct Line;

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Some(log) = LOG.get() {
            log.put(line);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Never waits, and never fails.
    fn put(&self, line: &[u8]) {
        let line = match line.get(..LINE_BYTES) {
            Some(head) => [head, b"...\n"].concat(),
            None => line.to_vec(),
        };
        self.queued.fetch_add(1, SeqCst);
        if self.queue.push(line.into()).is_err() {
            self.dropped.fetch_add(1, SeqCst);
            self.done.fetch_add(1, SeqCst);
        }
        if let Some(writer) = self.writer.get() {
            writer.unpark();
        }
    }

    /// The thread's life, which lasts as long as the process's.
    fn run(&self) {
        let mut told = 0;
        loop {
            let Some(line) = self.queue.pop() else {
                std::thread::park();
                continue;
            };
            if write_all(&line).is_err() {
                self.dropped.fetch_add(1, SeqCst);
            } else {
                let dropped = self.dropped.load(SeqCst);
                if dropped != told {
                    let lost = dropped - told;
                    let text =
                        format!(" WARN rowmilld: {lost} lines were left out of the log here\n");
                    // Where this fails too, the next line that gets through says it.
                    if write_all(text.as_bytes()).is_ok() {
                        told = dropped;
                    }
                }
            }
            self.done.fetch_add(1, SeqCst);
        }
    }
}

fn write_all(mut bytes: &[u8]) -> Result<(), Errno> {
    let stderr = io::stderr();
    while !bytes.is_empty() {
        match rustix::io::write(&stderr, bytes) {
            Ok(0) => return Err(Errno::IO),
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], None)?;
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_drops_and_counts() {
        let log = Log {
            queue: ArrayQueue::new(2),
            queued: AtomicU64::new(0),
            done: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            writer: OnceLock::new(),
        };
        for _ in 0..5 {
            log.put(b"line\n");
        }
        log.put(&[b'x'; 2 * LINE_BYTES]);
        assert_eq!(log.dropped.load(SeqCst), 4);
        assert_eq!(log.queue.pop().as_deref(), Some(&b"line\n"[..]));
        log.put(&[b'x'; 2 * LINE_BYTES]);
        let (_, long) = (log.queue.pop(), log.queue.pop().unwrap());
        assert_eq!(
            (long.len(), &long[LINE_BYTES..]),
            (LINE_BYTES + 4, &b"...\n"[..])
        );
    }
}
