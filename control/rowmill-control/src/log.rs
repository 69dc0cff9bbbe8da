//! Logging to standard error that holds up nobody: lines go through a bounded queue to a thread that alone writes them. A line that finds
//! the queue full is dropped, and how many were is said with the next one that gets through.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

/// Lines that may wait to be written: those of a start, and of some seconds of the most that visitors can cause.
const LINES: usize = 1024;
/// How long the end of the process waits for a reader that does not read.
const PATIENCE: Duration = Duration::from_millis(300);

enum Entry {
    Line(Vec<u8>),
    Flush(SyncSender<()>),
}

static QUEUE: OnceLock<SyncSender<Entry>> = OnceLock::new();
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Logs to standard error, as the filter says unless `ROWMILL_LOG` is set.
///
/// # Errors
/// Where the filter can't be read, the thread can't be started, or logging is set up already.
pub fn start(filter: &str) -> anyhow::Result<()> {
    let text = std::env::var("ROWMILL_LOG").unwrap_or_else(|_| filter.into());
    let filter = EnvFilter::try_new(&text);
    let filter = filter.with_context(|| format!("log.filter: `{text}` is no log filter"))?;
    let (queue, lines) = sync_channel(LINES);
    let write = move || {
        for entry in lines {
            match entry {
                Entry::Line(line) => {
                    let dropped = DROPPED.swap(0, Relaxed);
                    let mut out = io::stderr().lock();
                    if dropped > 0 {
                        let _unheard = writeln!(out, "({dropped} lines were dropped)");
                    }
                    let _unheard = out.write_all(&line);
                }
                // Who asked may have gone meanwhile.
                Entry::Flush(done) => _ = done.try_send(()),
            }
        }
    };
    let thread = std::thread::Builder::new().name("log".into());
    thread
        .spawn(write)
        .context("cannot start the log's thread")?;
    QUEUE.get_or_init(|| queue);
    let logs = tracing_subscriber::fmt().log_internal_errors(false);
    let logs = logs
        .with_env_filter(filter)
        .with_writer(|| Line)
        .with_ansi(false);
    logs.try_init()
        .map_err(|error| anyhow::anyhow!("logging: {error}"))
}

/// Writes a line of its own, such as the error that the program ends with.
pub fn say(line: &str) {
    match QUEUE.get() {
        Some(_) => put(format!("{line}\n").into_bytes()),
        None => eprintln!("{line}"),
    }
}

/// Waits until all lines so far are written, for a moment at most.
pub fn flush() {
    let Some(queue) = QUEUE.get() else {
        return;
    };
    let (done, wait) = sync_channel(1);
    if queue.try_send(Entry::Flush(done)).is_ok() {
        let _late = wait.recv_timeout(PATIENCE);
    }
}

fn put(line: Vec<u8>) {
    let sent = QUEUE.get().map(|queue| queue.try_send(Entry::Line(line)));
    if !matches!(sent, Some(Ok(()))) {
        DROPPED.fetch_add(1, Relaxed);
    }
}

/// Where the subscriber writes an event, in one piece.
struct Line;

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        put(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
