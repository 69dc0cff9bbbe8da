//! Suite `loadgen`: MLPerf's LoadGen drives the service, and PyTorch in its own process, over the same tables' shape.
//!
//! `Server` sends queries at random times of a given rate; the figure is the highest rate at which 99 of 100 are answered within
//! 60 ms, as MLPerf's rules for DLRM-v2 have it. `Offline` sends all at once. Both sides have all CPUs: the service as many workers
//! and a client that sleeps while it waits, PyTorch as many threads.

use std::thread::available_parallelism;

use anyhow::{Context, Result, ensure};
use rowmill_table::Shape;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::model::Model;
use crate::python::{Python, package};
use crate::report::{Measurement, Reporter};
use crate::service::Service;

/// The program that holds LoadGen.
const PROGRAM: &str = include_str!("../loadgen.py");
/// Rows of all tables: far beyond any cache, and small enough that service and PyTorch fit beside each other.
const MODEL_BYTES: u64 = (4 << 30) + (256 << 20);
/// Threads that wait for answers: more than workers, so that these always have a next query.
const CLIENT_THREADS: usize = 6;
/// Queries of a run at least. LoadGen wants 459 for a 99th percentile even if all are in time: 0.99^459 is 1 %, the chance to be
/// wrong that it allows. A few are late.
const QUERIES: f64 = 1000.0;
/// Steps of the search for the highest rate: to 1/32 of the rate of `Offline`.
const STEPS: u32 = 5;
/// A rate to begin with, of which `Offline` makes its number of queries: above what this service reaches on any CPU.
const FIRST_RATE: f64 = 2000.0;

/// What a run at a rate has shown.
#[derive(Debug, Deserialize)]
struct Run {
    valid: bool,
    /// Queries a second.
    rate: f64,
    #[serde(default)]
    p50_ms: f64,
    #[serde(default)]
    p99_ms: f64,
}

#[derive(Deserialize)]
struct Queries {
    /// User-item pairs of a query, on average.
    pairs: f64,
}

#[derive(Deserialize)]
struct What {
    what: String,
}

/// Who answers.
#[derive(Clone, Copy)]
enum Side<'a> {
    Rowmill(&'a str),
    Torch(usize),
}

/// How long runs last, in seconds.
struct Times {
    search: u32,
    last: u32,
}

/// Runs the suite.
///
/// # Errors
/// Where there is no LoadGen (the message says how to get it), or a query fails.
pub(crate) fn run(full: bool, reporter: &mut Reporter) -> Result<()> {
    let times = match full {
        true => Times {
            search: 20,
            last: 60,
        },
        false => Times { search: 5, last: 5 },
    };
    let cpus = available_parallelism().context("the number of CPUs")?.get();
    let (model, factor) = Model::dlrm_v2(MODEL_BYTES)?;
    eprintln!(
        "loadgen: DLRM-v2 with rows scaled by {factor:.4}, {:.2} GiB; {cpus} CPUs for either side",
        model.bytes() as f64 / (1u64 << 30) as f64
    );
    let sides = |scenario| -> Result<(Outcome, Outcome)> {
        // Neither is there while the other is measured: both want all CPUs and much memory.
        let service = Service::start(&model.directory, &format!("[workers]\ncpus = {cpus}\n"))?;
        let ours = measure(scenario, Side::Rowmill(service.endpoint()), &model, &times)?;
        service.stop()?;
        let theirs = measure(scenario, Side::Torch(cpus), &model, &times)?;
        Ok((ours, theirs))
    };
    for scenario in ["offline", "server"] {
        let case = format!("port=shm/shape=dlrm-v2/scenario={scenario}/pairs=100-700");
        if !reporter.wants(&case) {
            continue;
        }
        let (ours, theirs) = sides(scenario)?;
        let plain = |metric, value, unit| Measurement::plain("loadgen", &case, metric, value, unit);
        let rate = plain("rate", ours.run.rate, "queries/s");
        let ratio = ours.run.rate / theirs.run.rate;
        reporter.add(rate.beside(theirs.what.clone(), theirs.run.rate, ratio));
        let pairs = plain("pairs", ours.run.rate * ours.pairs, "samples/s");
        reporter.add(pairs.beside(theirs.what.clone(), theirs.run.rate * theirs.pairs, ratio));
        if scenario == "server" {
            for (metric, our, their) in [
                ("latency_p50", ours.run.p50_ms, theirs.run.p50_ms),
                ("latency_p99", ours.run.p99_ms, theirs.run.p99_ms),
            ] {
                let latency = plain(metric, our, "ms");
                reporter.add(latency.beside(theirs.what.clone(), their, their / our));
            }
        }
    }
    Ok(())
}

/// The figure of a side.
struct Outcome {
    what: String,
    pairs: f64,
    run: Run,
}

fn measure(scenario: &str, side: Side<'_>, model: &Model, times: &Times) -> Result<Outcome> {
    // Offline at first: a server of a higher rate than that can't keep up.
    let mut offline = Loadgen::start("Offline", side, model)?;
    let guess = offline.run(FIRST_RATE, 1)?.rate;
    let best = offline.run(1.2 * guess, times.search)?;
    if scenario == "offline" {
        let run = offline.run(1.1 * best.rate, times.last)?;
        return Ok(offline.outcome(run));
    }
    drop(offline);
    let mut server = Loadgen::start("Server", side, model)?;
    let run = server.highest_rate(best.rate, times)?;
    Ok(server.outcome(run))
}

/// LoadGen in a process of its own: it reads its configuration once in a process.
struct Loadgen {
    python: Python,
    what: String,
    pairs: f64,
    logs: tempfile::TempDir,
}

impl Loadgen {
    fn start(scenario: &str, side: Side<'_>, model: &Model) -> Result<Loadgen> {
        let mut python = Python::start(PROGRAM, &[scenario, &package()?.to_string_lossy()])?;
        let (rows, hot) = (model.rows(), Shape::dlrm_v2().multi_hot());
        let tables = format!("tables {} 128 {}", joined(&rows), joined(&hot));
        let queries: Queries = parsed(&python.ask(&tables)?)?;
        let client = match side {
            Side::Rowmill(endpoint) => format!("client {endpoint} {CLIENT_THREADS}"),
            Side::Torch(threads) => format!("client torch {threads}"),
        };
        let What { what } = parsed(&python.ask(&client)?)?;
        Ok(Loadgen {
            python,
            what,
            pairs: queries.pairs,
            logs: tempfile::tempdir().context("a folder for LoadGen's logs")?,
        })
    }

    fn run(&mut self, rate: f64, seconds: u32) -> Result<Run> {
        let seconds = f64::from(seconds).max((QUERIES / rate).ceil());
        let command = format!("run {rate} {seconds} {}", self.logs.path().display());
        let run: Run = parsed(&self.python.ask(&command)?)?;
        eprintln!(
            "loadgen: {} for {seconds} s: asked for {rate:.0} queries/s, {run:?}",
            self.what
        );
        Ok(run)
    }

    /// Halves the range between a rate that holds and one that does not, below `most`.
    fn highest_rate(&mut self, most: f64, times: &Times) -> Result<Run> {
        let (mut low, mut high) = (0.0, most);
        for _ in 0..STEPS {
            let rate = (low + high) / 2.0;
            match self.run(rate, times.search)?.valid {
                true => low = rate,
                false => high = rate,
            }
        }
        ensure!(low > 0.0, "no rate held 60 ms; LoadGen's runs stand above");
        // The last run counts, so one that is long; a rate that held by chance is lowered.
        for _ in 0..8 {
            let run = self.run(low, times.last)?;
            if run.valid {
                return Ok(run);
            }
            low *= 0.97;
        }
        anyhow::bail!("no rate held 60 ms twice; LoadGen's runs stand above");
    }

    fn outcome(self, run: Run) -> Outcome {
        Outcome {
            what: self.what,
            pairs: self.pairs,
            run,
        }
    }
}

fn joined<T: ToString>(numbers: &[T]) -> String {
    let texts: Vec<String> = numbers.iter().map(T::to_string).collect();
    texts.join(",")
}

fn parsed<T: DeserializeOwned>(line: &str) -> Result<T> {
    serde_json::from_str(line).with_context(|| format!("LoadGen's side said {line}"))
}
