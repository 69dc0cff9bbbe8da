//! TorchRec's `EmbeddingBagCollection` beside `rowmill.torch`'s, which asks a service of the same tables over shared memory; and
//! a plain loop of PyTorch's `embedding_bag` beside both.
//!
//! Both collections run in Python processes of their own (`bench/torchrec_peer.py`), in turns. TorchRec's makes the tables and
//! exports the generation that the service loads. A batch comes as a KeyedJaggedTensor of int64 ids and int32 lengths, and goes
//! to the collection as a model calls it: one at a time in each of its threads.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rowmill_table::Shape;
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::driver::median;
use crate::ids::{Spread, ids};
use crate::python::{Python, package};
use crate::report::{Measurement, Reporter};
use crate::service::Service;

/// The program of both sides.
const PROGRAM: &str = include_str!("../torchrec_peer.py");
/// Bytes of all tables at most; at least 2 GB of rows are left, far beyond any cache.
const MODEL_BYTES: u64 = 2 << 30;
/// Samples of a batch, and how many there are: 24 of 28 MB of rows each, so that no cache holds those of uniform ids.
const SAMPLES: u32 = 256;
const QUERIES: usize = 24;

/// How many cores serve, how the client waits, from how many threads of it the collection is called, and how many threads
/// TorchRec has.
struct Setting {
    workers: usize,
    wait: &'static str,
    callers: usize,
    threads: usize,
    /// What the case says of the rate that is compared.
    metric: &'static str,
}

/// With as many threads as the service's workers and the client use cores: two workers on both cores with a client that sleeps,
/// or one worker with a client that polls on the other core. And one worker, the serving core, against one thread: with a client
/// that has one batch in flight, which leaves the core without work while the next one is made ready, and with one that has two.
/// The latter's callers share a core and so sleep: where they poll, one keeps the other from it.
const SETTINGS: [Setting; 4] = [
    Setting {
        workers: 2,
        wait: "sleep",
        callers: 1,
        threads: 2,
        metric: "rate",
    },
    Setting {
        workers: 1,
        wait: "poll",
        callers: 1,
        threads: 2,
        metric: "rate",
    },
    Setting {
        workers: 1,
        wait: "poll",
        callers: 1,
        threads: 1,
        metric: "rate_per_serving_core",
    },
    Setting {
        workers: 1,
        wait: "sleep",
        callers: 2,
        threads: 1,
        metric: "rate_per_serving_core",
    },
];

/// Runs the cases that are wanted.
///
/// # Errors
/// Where there is no PyTorch or no package for it, or where the sides disagree.
pub(crate) fn run(full: bool, reporter: &mut Reporter) -> Result<()> {
    let spreads = [Spread::Uniform, Spread::Zipf];
    let mut cases = spreads.iter().flat_map(|&spread| {
        SETTINGS
            .iter()
            .flat_map(move |setting| case(spread, setting))
    });
    if !cases.any(|case| reporter.wants(&case)) {
        return Ok(());
    }
    let folder = tempfile::tempdir().context("a folder for the tables")?;
    let shape = Shape::dlrm_v2();
    let (_, specs) = shape.fitting(MODEL_BYTES).context("tables of 2 GiB")?;
    let tables = Tables {
        rows: specs.iter().map(|spec| spec.rows as u32).collect(),
        hots: shape.multi_hot(),
    };
    let (mut theirs, mut ours) = (start()?, start()?);
    let generation = folder.path().join("generation");
    eprintln!("peers: TorchRec makes and exports tables of 2 GB");
    let command = format!("make {} {}", generation.display(), words(&tables.rows));
    let made = theirs.ask(&command).context(
        "TorchRec's side did not come up; `make peers` installs TorchRec and builds the package rowmill for it",
    )?;
    let peer = made.strip_prefix("made ").unwrap_or(&made).to_owned();
    for spread in spreads {
        let file = folder.path().join("ids");
        tables.write_queries(spread, &file)?;
        let queries = format!(
            "queries {} {SAMPLES} {}",
            file.display(),
            words(&tables.hots)
        );
        theirs.ask(&queries)?;
        ours.ask(&queries)?;
        for setting in &SETTINGS {
            let [case, loop_case] = case(spread, setting);
            if !reporter.wants(&case) && !reporter.wants(&loop_case) {
                continue;
            }
            eprintln!("peers: {case}");
            let workers = format!("[workers]\ncpus = {}\n", setting.workers);
            let service = Service::start(&generation, &workers)?;
            tables.connect(&mut ours, setting, service.endpoint())?;
            theirs.ask(&format!("threads {}", setting.threads))?;
            compare(&mut ours, &mut theirs, folder.path())?;
            let rounds = if full { 15 } else { 9 };
            let rates = in_turns(&mut ours, &mut theirs, setting.callers, rounds)?;
            service.stop()?;
            let threads = setting.threads;
            for (case, against, number) in [
                (case, format!("{peer} on {threads} threads"), 1),
                (loop_case, format!("embedding_bag on {threads} threads"), 2),
            ] {
                let of = |number: usize| median(rates.iter().map(|round| round[number]).collect());
                let ratio = median(rates.iter().map(|round| round[0] / round[number]).collect());
                let rate = Measurement::plain("peers", &case, setting.metric, of(0), "samples/s");
                reporter.add(rate.beside(against, of(number), ratio));
            }
        }
    }
    Ok(())
}

/// A process of one side, with the package that `deploy/stage-python.sh` has put beside the programs.
fn start() -> Result<Python> {
    Python::start(PROGRAM, &[&package()?.to_string_lossy()])
}

/// The cases of a setting: against TorchRec, and against a loop.
fn case(spread: Spread, setting: &Setting) -> [String; 2] {
    let Setting {
        workers,
        wait,
        callers,
        threads,
        ..
    } = setting;
    let dist = spread.name();
    ["torchrec", "loop"].map(|peer| {
        format!(
            "port=shm/shape=dlrm-v2/samples={SAMPLES}/dist={dist}/client=torch/workers={workers}/wait={wait}/callers={callers}/peer={peer}/threads={threads}"
        )
    })
}

/// Samples a second of ours, TorchRec's and the loop, in rounds; every other round goes in the opposite order.
fn in_turns(
    ours: &mut Python,
    theirs: &mut Python,
    callers: usize,
    rounds: usize,
) -> Result<Vec<[f64; 3]>> {
    let samples = f64::from(SAMPLES) * QUERIES as f64;
    let our_round = format!("round {callers}");
    let mut round = |number: usize| -> Result<[f64; 3]> {
        let mut rates = [0.0; 3];
        for place in 0..3 {
            let side = if number.is_multiple_of(2) {
                place
            } else {
                2 - place
            };
            rates[side] = samples
                / match side {
                    0 => ours.seconds(&our_round)?,
                    1 => theirs.seconds("round 1")?,
                    _ => theirs.seconds("loop")?,
                };
        }
        Ok(rates)
    };
    for number in 0..3 {
        round(number)?; // Warms up.
    }
    (0..rounds).map(round).collect()
}

/// Both sides give the same vectors, but for roundings: sums are taken in another order.
fn compare(ours: &mut Python, theirs: &mut Python, folder: &Path) -> Result<()> {
    let file = folder.join("first");
    let command = format!("first {}", file.display());
    let (our, their) = (
        ours.floats(&command, &file)?,
        theirs.floats(&command, &file)?,
    );
    ensure!(our.len() == their.len(), "vectors of different lengths");
    for (at, (our, their)) in our.iter().zip(&their).enumerate() {
        // Rows lie within -0.1 and 0.1; bags have up to 100 of them.
        ensure!(
            (our - their).abs() <= 1e-5,
            "TorchRec has {their} at {at} of the first query, and rowmill {our}"
        );
    }
    Ok(())
}

struct Tables {
    rows: Vec<u32>,
    hots: Vec<u32>,
}

impl Tables {
    /// Draws all queries, each with the ids of one table after another.
    fn write_queries(&self, spread: Spread, file: &Path) -> Result<()> {
        let drawn = self.rows.iter().zip(&self.hots).zip(0..);
        let drawn: Vec<Vec<u32>> = drawn
            .map(|((&rows, &hot), seed)| {
                ids(spread, rows, QUERIES * (SAMPLES * hot) as usize, seed)
            })
            .collect();
        let mut bytes = Vec::new();
        for query in 0..QUERIES {
            for (ids, &hot) in drawn.iter().zip(&self.hots) {
                let count = (SAMPLES * hot) as usize;
                let own = &ids[query * count..][..count];
                bytes.extend(own.iter().flat_map(|id| id.to_le_bytes()));
            }
        }
        fs::write(file, bytes).context("writing the ids")
    }

    /// Connects our side. Where there is one worker, it takes the last CPU, and the client has the first for itself.
    fn connect(&self, ours: &mut Python, setting: &Setting, endpoint: &str) -> Result<()> {
        let allowed = sched_getaffinity(None).context("the CPUs this process may use")?;
        let mut cpus: Vec<usize> = (0..CpuSet::MAX_CPU)
            .filter(|&cpu| allowed.is_set(cpu))
            .collect();
        if setting.workers == 1 {
            cpus.truncate(1);
        }
        ours.ask(&format!("cpus {}", words(&cpus)))?;
        ours.ask("threads 1")?;
        let Setting { wait, .. } = setting;
        ours.ask(&format!("connect {endpoint} {wait} {}", words(&self.rows)))?;
        Ok(())
    }
}

fn words(numbers: &[impl ToString]) -> String {
    let words: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    words.join(" ")
}
