//! Signals that end long work: it stops, what it wrote is removed, and the command says so.

use std::fmt;
use std::fs;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result};
use rowmill_table::TableError;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag::{register, register_usize};

/// The signals that ask a command to end.
const ENDING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Watches the signals that ask to end. Further ones change nothing, since `timeout` and closed terminals send
/// two; SIGQUIT ends the process at once.
pub(crate) struct Interrupts {
    stop: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Interrupts {
    /// Begins to watch. Signals that were ignored when the process was started stay so, as under `nohup`.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn watch() -> Result<Interrupts> {
        let (stop, signal) = (Arc::default(), Arc::default());
        let ignored = ignored();
        for number in ENDING {
            if ignored & (1 << (number - 1)) != 0 {
                continue;
            }
            register_usize(number, Arc::clone(&signal), number as usize)
                .and_then(|_| register(number, Arc::clone(&stop)))
                .context("cannot watch signals")?;
        }
        Ok(Interrupts { stop, signal })
    }

    /// Set once the work is to stop.
    pub(crate) fn stop(&self) -> &AtomicBool {
        &self.stop
    }

    /// The error of work that was stopped or failed.
    pub(crate) fn explain(&self, error: TableError) -> anyhow::Error {
        match error {
            TableError::Interrupted => Interrupted(self.signal.load(Ordering::Relaxed)).into(),
            error => error.into(),
        }
    }
}

/// Where a file may not grow, SIGXFSZ would end the process. With a handler, the write fails with an error that says so.
///
/// # Errors
/// The kernel's.
pub(crate) fn outlive_long_files() -> Result<()> {
    let registered = register(SIGXFSZ, Arc::default());
    registered.map(drop).context("cannot watch signals")
}

/// That a signal ended the work.
#[derive(Debug)]
pub(crate) struct Interrupted(usize);

impl Interrupted {
    /// What shells give for a process that a signal ended.
    pub(crate) fn exit_code(&self) -> ExitCode {
        // Signals have numbers up to 64.
        ExitCode::from(128 + self.0 as u8)
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 as i32 {
            SIGINT => "SIGINT",
            SIGHUP => "SIGHUP",
            _ => "SIGTERM",
        };
        write!(
            f,
            "interrupted by {name}; what was written is removed again"
        )
    }
}

impl std::error::Error for Interrupted {}

/// The signals that were ignored when the process was started, the lowest bit for number 1.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
