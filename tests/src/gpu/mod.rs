//! What has to hold on a machine with a GPU: orders of streams, their release, and how long results take. Behind `make test-gpu`.
//!
//! It needs the programs `rowmilld` and `rowmill` beside it and CUDA's driver, and nothing else. With the stand-in for the driver
//! (`ROWMILL_CUDA_LIBRARY`) it runs everywhere, and its times say nothing.

mod environment;
mod order;
mod place;
mod release;
mod timing;

use std::process::exit;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rowmill_client::GpuOptions;
use rowmill_client::cuda::{Device, Driver};
use serde_json::{Value, json};

use self::place::Place;

/// Longer than all checks take.
const LIMIT: Duration = Duration::from_secs(300);

/// A check: its name, and what gives a line to say and figures.
type Check = (&'static str, fn(&Place) -> Result<(String, Value)>);

const CHECKS: [Check; 8] = [
    ("environment", environment::describe),
    ("dma-buf-export", environment::export),
    ("after-the-lookup", order::after),
    ("before-the-lookup", order::before),
    ("service-killed", release::killed),
    ("no-answer-in-time", release::late),
    ("free-beside-a-waiting-stream", release::freed),
    ("times", timing::measure),
];

/// What came of all checks.
pub struct Outcome {
    /// How many failed.
    pub failed: usize,
    /// An object a check.
    pub results: Value,
}

/// The GPU, or why there is none.
///
/// # Errors
/// A sentence.
pub fn device() -> Result<Device, String> {
    let options = GpuOptions::default();
    let driver = Driver::open(&options.library).map_err(|error| error.to_string())?;
    driver
        .device(options.ordinal)
        .map_err(|error| error.to_string())
}

/// Runs all checks on a model of at most `bytes`, and prints a line for each.
///
/// # Errors
/// Where the programs are missing, or no service starts.
pub fn run(bytes: u64) -> Result<Outcome> {
    let (ended, watch) = channel::<()>();
    // What hangs in the driver can't be ended but with the process.
    thread::spawn(move || {
        if watch.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
            println!("FAIL: still running after {LIMIT:?}");
            exit(2);
        }
    });
    let place = Place::new(bytes).context("a model and a service")?;
    let mut failed = 0;
    let mut results = Vec::new();
    for (name, check) in CHECKS {
        let result = match check(&place) {
            Ok((line, figures)) => {
                println!("PASS {name}: {line}");
                json!({"check": name, "passed": true, "line": line, "figures": figures})
            }
            Err(error) => {
                failed += 1;
                println!("FAIL {name}: {error:#}");
                json!({"check": name, "passed": false, "line": format!("{error:#}")})
            }
        };
        results.push(result);
    }
    drop(ended);
    Ok(Outcome {
        failed,
        results: results.into(),
    })
}
