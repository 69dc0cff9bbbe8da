//! Suite `loadgen`: MLPerf's LoadGen drives the service, and PyTorch in its own process, over the same tables' shape.
//!
//! `Server` sends queries at random times of a given rate; the figure is the highest rate at which 99 of 100 are answered within
//! 60 ms, as MLPerf's rules for DLRM-v2 have it. `Offline` sends all at once. Both sides have all CPUs: the service as many workers
//! and a client that sleeps while it waits, PyTorch as many threads.
//!
//! A query is answered when its bags are pooled, or, in the cases `model=whole` (`--full`, or where `--case` names them), when a
//! model's dense part has gone over them in PyTorch, on either side in the process that LoadGen is in.

use std::thread::available_parallelism;

use anyhow::{Context, Result};
use rowmill_table::Shape;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::model::Model;
use crate::python::{Python, package};
use crate::report::{Measurement, Reporter};
use crate::service::Service;

/// The program that holds LoadGen.
const PROGRAM: &str = include_str!("../loadgen.py");
/// What the case is called in which queries go through a whole model.
const WHOLE: &str = "/model=whole";
/// Rows of all tables: far beyond any cache, and small enough that service and PyTorch fit beside each other.
const MODEL_BYTES: u64 = (4 << 30) + (256 << 20);
/// Threads that wait for answers: more than workers, so that these always have a next query.
const CLIENT_THREADS: usize = 6;
/// Queries of a run of `Server` at least. LoadGen wants 459 for a 99th percentile even if all are in time: 0.99^459 is 1 %, the chance to be
/// wrong that it allows. A few are late.
const QUERIES: f64 = 1000.0;
/// Runs at most for the figure, each at a rate 3 % lower than the one before it, which was too high.
const LAST_RUNS: u32 = 8;
/// Steps of the search for the highest rate: to 1/32 of the rate of `Offline`.
const STEPS: u32 = 5;
/// A rate to begin with, of which `Offline` makes its number of queries: above what this service reaches on any CPU, and what a
/// whole model does.
const FIRST_RATE: f64 = 2000.0;
const FIRST_RATE_WHOLE: f64 = 200.0;

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
    let whole = full || reporter.names("model=whole");
    let parts = if whole { &["", WHOLE][..] } else { &[""] };
    let cpus = available_parallelism().context("the number of CPUs")?.get();
    let (model, factor) = Model::dlrm_v2(MODEL_BYTES)?;
    eprintln!(
        "loadgen: DLRM-v2 with rows scaled by {factor:.4}, {:.2} GiB; {cpus} CPUs for either side",
        model.bytes() as f64 / (1u64 << 30) as f64
    );
    let sides = |scenario, whole| -> Result<(Outcome, Outcome)> {
        // Neither is there while the other is measured: both want all CPUs and much memory.
        let service = Service::start(&model.directory, &format!("[workers]\ncpus = {cpus}\n"))?;
        let ours = Task {
            scenario,
            side: Side::Rowmill(service.endpoint()),
            whole,
        };
        let ours = ours.measure(&model, &times)?;
        service.stop()?;
        let theirs = Task {
            scenario,
            side: Side::Torch(cpus),
            whole,
        };
        Ok((ours, theirs.measure(&model, &times)?))
    };
    for (scenario, part) in parts
        .iter()
        .flat_map(|part| ["offline", "server"].map(|scenario| (scenario, part)))
    {
        let case = format!("port=shm/shape=dlrm-v2/scenario={scenario}/pairs=100-700{part}");
        if !reporter.wants(&case) {
            continue;
        }
        let (ours, theirs) = sides(scenario, *part == WHOLE)?;
        report(scenario, &case, &ours, &theirs, reporter);
    }
    Ok(())
}

fn report(scenario: &str, case: &str, ours: &Outcome, theirs: &Outcome, reporter: &mut Reporter) {
    let plain = |metric, value, unit| Measurement::plain("loadgen", case, metric, value, unit);
    // All queries at once have no limit to hold.
    let holds = |side: &Outcome| scenario == "offline" || side.run.valid;
    let what = match holds(theirs) {
        true => theirs.what.clone(),
        // Its rate is one that was not held.
        false => format!("{}, less than", theirs.what),
    };
    let our_rate = if holds(ours) { ours.run.rate } else { 0.0 };
    let ratio = our_rate / theirs.run.rate;
    let rate = plain("rate", our_rate, "queries/s");
    reporter.add(rate.beside(what.clone(), theirs.run.rate, ratio));
    let pairs = plain("pairs", our_rate * ours.pairs, "samples/s");
    reporter.add(pairs.beside(what, theirs.run.rate * theirs.pairs, ratio));
    if scenario == "server" {
        for (metric, our, their) in [
            ("latency_p50", ours.run.p50_ms, theirs.run.p50_ms),
            ("latency_p99", ours.run.p99_ms, theirs.run.p99_ms),
        ] {
            let latency = plain(metric, our, "ms");
            reporter.add(latency.beside(theirs.what.clone(), their, their / our));
        }
        let within = plain("within_limit", f64::from(u8::from(ours.run.valid)), "runs");
        reporter.add(within);
    }
}

/// The figure of a side.
struct Outcome {
    what: String,
    pairs: f64,
    run: Run,
}

/// What a side has to do.
struct Task<'a> {
    scenario: &'a str,
    side: Side<'a>,
    whole: bool,
}

impl Task<'_> {
    fn measure(&self, model: &Model, times: &Times) -> Result<Outcome> {
        // Offline at first: a server of a higher rate than that can't keep up.
        let mut offline = Loadgen::start("Offline", self, model)?;
        let first = match self.whole {
            true => FIRST_RATE_WHOLE,
            false => FIRST_RATE,
        };
        let guess = offline.run(first, 1)?.rate;
        let best = offline.run(1.2 * guess, times.search)?;
        if self.scenario == "offline" {
            let run = offline.run(1.1 * best.rate, times.last)?;
            return Ok(offline.outcome(run));
        }
        drop(offline);
        let mut server = Loadgen::start("Server", self, model)?;
        let run = server.highest_rate(best.rate, times)?;
        Ok(server.outcome(run))
    }
}

/// LoadGen in a process of its own: it reads its configuration once in a process.
struct Loadgen {
    python: Python,
    server: bool,
    what: String,
    pairs: f64,
    logs: tempfile::TempDir,
}

impl Loadgen {
    fn start(scenario: &str, task: &Task<'_>, model: &Model) -> Result<Loadgen> {
        let mut python = Python::start(PROGRAM, &[scenario, &package()?.to_string_lossy()])?;
        let (rows, hot) = (model.rows(), Shape::dlrm_v2().multi_hot());
        let tables = format!("tables {} 128 {}", joined(&rows), joined(&hot));
        let queries: Queries = parsed(&python.ask(&tables)?)?;
        let client = match task.side {
            Side::Rowmill(endpoint) => format!("client {endpoint} {CLIENT_THREADS}"),
            Side::Torch(threads) => format!("client torch {threads}"),
        };
        let whole = if task.whole { " whole" } else { "" };
        let What { what } = parsed(&python.ask(&format!("{client}{whole}"))?)?;
        Ok(Loadgen {
            python,
            server: scenario == "Server",
            what,
            pairs: queries.pairs,
            logs: tempfile::tempdir().context("a folder for LoadGen's logs")?,
        })
    }

    fn run(&mut self, rate: f64, seconds: u32) -> Result<Run> {
        let least = if self.server { QUERIES } else { 0.0 };
        let seconds = f64::from(seconds).max((least / rate).ceil());
        let command = format!("run {rate} {seconds} {}", self.logs.path().display());
        let run: Run = parsed(&self.python.ask(&command)?)?;
        eprintln!(
            "loadgen: {} for {seconds} s: asked for {rate:.0} queries/s, {run:?}",
            self.what
        );
        Ok(run)
    }

    /// Halves the range between a rate that holds and one that does not, below `most`. Where none holds, the lowest that was tried,
    /// which is not valid.
    fn highest_rate(&mut self, most: f64, times: &Times) -> Result<Run> {
        let (mut low, mut high) = (0.0, most);
        let mut failed = None;
        for _ in 0..STEPS {
            let rate = (low + high) / 2.0;
            let run = self.run(rate, times.search)?;
            match run.valid {
                true => low = rate,
                false => {
                    high = rate;
                    failed = Some(run);
                }
            }
        }
        // The last run counts, so one that is long; a rate that held by chance is lowered.
        for _ in 0..LAST_RUNS {
            if low == 0.0 {
                break;
            }
            let run = self.run(low, times.last)?;
            if run.valid {
                return Ok(run);
            }
            failed = Some(run);
            low *= 0.97;
        }
        Ok(failed.expect("one of the runs held, or did not"))
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
