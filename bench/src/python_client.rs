//! The Python package beside the Rust client, in turns, with the same queries to the same service.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rowmill_client::{
    JaggedView, Numbers, RequestOptions, Session, Target, Ticket, ViewDivision, Wait,
};

use crate::driver::{Driver, histogram, median, quantile_us, record};
use crate::model::cache_folder;
use crate::python::Python;
use crate::report::{Measurement, Reporter};
use crate::serve::Bench;
use crate::workload::Query;

/// The program of the other side.
const PROGRAM: &str = include_str!("../python_client.py");
/// Samples of a large request, and requests in flight.
const LARGE: u32 = 256;
const DEPTH: usize = 2;
/// Distinct requests of both sizes.
const LARGE_QUERIES: usize = 24;
const SMALL_QUERIES: usize = 4_000;
/// How often all large ones are sent in a round: some tenths of a second.
const REPEATS: usize = 4;
/// Rounds, each of both sides in turn.
const ROUNDS: usize = 9;
/// Most that a call from Python may take more than one from Rust, in microseconds.
const OVERHEAD_US: f64 = 30.0;

/// A query with 64-bit ids and lengths, as Python has them.
struct Wide {
    ids: Vec<i64>,
    lengths: Vec<i64>,
    bags: u32,
}

impl Wide {
    fn of(query: &Query) -> Wide {
        let features = query.features.iter().enumerate();
        Wide {
            ids: query
                .features
                .iter()
                .flat_map(|(_, ids)| ids.iter().map(|&id| id.into()))
                .collect(),
            lengths: features
                .flat_map(|(f, _)| query.lengths(f).iter().map(|&length| length.into()))
                .collect(),
            bags: query.bags,
        }
    }

    fn view(&self) -> JaggedView<'_> {
        let lengths = ViewDivision::Lengths(Numbers::from(&self.lengths[..]));
        JaggedView::tensor(
            self.bags as usize,
            lengths,
            Numbers::from(&self.ids[..]),
            None,
        )
    }
}

/// Measures both cases; does nothing but say so where the package is not installed.
///
/// # Errors
/// Where a side fails, or the two differ in a result.
pub(crate) fn run(bench: &mut Bench, reporter: &mut Reporter) -> Result<()> {
    let case =
        |samples| format!("port=shm/shape=dlrm-v2/samples={samples}/load=closed/client=python");
    let (large, small) = (case(LARGE), case(1));
    if !reporter.wants(&large) && !reporter.wants(&small) {
        return Ok(());
    }
    let interpreter = match std::env::var_os("ROWMILL_PYTHON") {
        Some(given) => given.into(),
        None => cache_folder().join("python/bin/python"),
    };
    if !interpreter.exists() {
        eprintln!(
            "serve: the Python package is not installed, so it is not measured: run `make test-python`"
        );
        return Ok(());
    }
    let mut python = Python::start_with(&interpreter, PROGRAM, &[])?;
    python.ask(&format!("connect {} {LARGE}", bench.service.endpoint()))?;
    let folder = tempfile::tempdir().context("a folder for queries")?;
    if reporter.wants(&large) {
        throughput(bench, &large, &mut python, folder.path(), reporter)?;
    }
    if reporter.wants(&small) {
        overhead(bench, &small, &mut python, folder.path(), reporter)?;
    }
    Ok(())
}

/// Whether it is the Rust client's turn: first in every other round.
fn in_turns(round: usize) -> [bool; 2] {
    let first = round.is_multiple_of(2);
    [first, !first]
}

/// Samples a second, two requests in flight.
fn throughput(
    bench: &mut Bench,
    case: &str,
    python: &mut Python,
    folder: &Path,
    reporter: &mut Reporter,
) -> Result<()> {
    let queries: Vec<Wide> = (0..LARGE_QUERIES)
        .map(|_| Wide::of(&bench.workload.query(LARGE)))
        .collect();
    give(python, folder, &queries)?;
    let mut driver = bench.driver("bench rust", LARGE, DEPTH)?;
    compare(&mut driver, &queries[0], python, folder)?;
    let samples = (LARGE as usize * LARGE_QUERIES * REPEATS) as f64;
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        eprintln!("serve: {case}, round {round} of {ROUNDS} (0 warms up)");
        let mut rust = Duration::ZERO;
        let mut other = 0.0;
        for turn in 0..REPEATS {
            for is_rust in in_turns(turn) {
                if is_rust {
                    rust += pipelined(&mut driver, &queries)?;
                } else {
                    other += number(&python.ask(&format!("pipelined {DEPTH}"))?)?;
                }
            }
        }
        if round > 0 {
            ours.push(samples / rust.as_secs_f64());
            theirs.push(samples / other);
            ratios.push(rust.as_secs_f64() / other);
        }
    }
    let rate = Measurement::plain("serve", case, "rate", median(theirs), "samples/s");
    reporter.add(rate.beside("Rust client", median(ours), median(ratios)));
    Ok(())
}

/// What a call from Python takes more than one from Rust: medians of requests of a sample, one at a time.
fn overhead(
    bench: &mut Bench,
    case: &str,
    python: &mut Python,
    folder: &Path,
    reporter: &mut Reporter,
) -> Result<()> {
    let queries: Vec<Wide> = (0..SMALL_QUERIES)
        .map(|_| Wide::of(&bench.workload.query(1)))
        .collect();
    give(python, folder, &queries)?;
    let mut driver = bench.driver("bench rust", 1, 1)?;
    compare(&mut driver, &queries[0], python, folder)?;
    let (mut ours, mut theirs, mut more) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let (mut times, mut other) = (histogram(), 0.0);
        for is_rust in in_turns(round) {
            if !is_rust {
                other = number(&python.ask("single")?)?;
                continue;
            }
            for query in &queries {
                record(&mut times, round_trip(&mut driver, query)?);
            }
        }
        let rust = quantile_us(&times, 0.5);
        if round > 0 {
            ours.push(rust);
            theirs.push(other);
            more.push(other - rust);
        }
    }
    let plain = Measurement::plain("serve", case, "latency_p50", median(theirs), "us");
    let (ours, more) = (median(ours), median(more));
    reporter.add(plain.beside(
        "Rust client + 30 us",
        ours + OVERHEAD_US,
        (ours + OVERHEAD_US) / (ours + more),
    ));
    reporter.add(Measurement::plain(
        "serve",
        case,
        "overhead_p50",
        more,
        "us",
    ));
    Ok(())
}

/// Has the other side take queries.
fn give(python: &mut Python, folder: &Path, queries: &[Wide]) -> Result<()> {
    let bytes = |numbers: &mut dyn Iterator<Item = i64>| -> Vec<u8> {
        numbers.flat_map(i64::to_le_bytes).collect()
    };
    let all = [
        (
            "ids",
            bytes(&mut queries.iter().flat_map(|q| q.ids.iter().copied())),
        ),
        (
            "lengths",
            bytes(&mut queries.iter().flat_map(|q| q.lengths.iter().copied())),
        ),
        (
            "counts",
            bytes(&mut queries.iter().map(|q| q.ids.len() as i64)),
        ),
    ];
    for (name, bytes) in all {
        fs::write(folder.join(name), bytes).context("writing the queries")?;
    }
    let bags = queries.first().map_or(1, |query| query.bags);
    let said = python.ask(&format!("queries {} {bags}", folder.display()))?;
    ensure!(
        said == format!("ready {}", queries.len()),
        "Python took {said}"
    );
    Ok(())
}

/// Both sides get the same vectors, bit by bit.
fn compare(driver: &mut Driver, query: &Wide, python: &mut Python, folder: &Path) -> Result<()> {
    let file = folder.join("first");
    python.ask(&format!("first {}", file.display()))?;
    let theirs = fs::read(&file).context("what Python wrote")?;
    let (ticket, _) = submit(driver, query)?;
    let answer = driver.session.wait(ticket, Wait::Poll)?;
    answer.outcome?;
    let mut ours = vec![0; theirs.len()];
    read(&driver.session, &answer.target, &mut ours);
    driver.idle.push(answer.target);
    ensure!(ours == theirs, "Python got other vectors than Rust");
    Ok(())
}

fn read(session: &Session<rowmill_client::AnyPort>, target: &Target, bytes: &mut [u8]) {
    session.read(target, 0, bytes);
}

fn submit(driver: &mut Driver, query: &Wide) -> Result<(Ticket, Instant)> {
    let target = driver.idle.pop().context("no target is free")?;
    let began = Instant::now();
    let options = RequestOptions::default();
    let ticket = driver
        .session
        .submit_view(&driver.schema, &query.view(), target, &options)?;
    Ok((ticket, began))
}

fn round_trip(driver: &mut Driver, query: &Wide) -> Result<Duration> {
    let (ticket, began) = submit(driver, query)?;
    let answer = driver.session.wait(ticket, Wait::Poll)?;
    let took = began.elapsed();
    answer.outcome?;
    driver.idle.push(answer.target);
    Ok(took)
}

/// Sends queries, as many at a time as there are targets.
fn pipelined(driver: &mut Driver, queries: &[Wide]) -> Result<Duration> {
    let began = Instant::now();
    let mut left = queries.iter().peekable();
    while left.peek().is_some() || driver.session.pending() > 0 {
        while !driver.idle.is_empty()
            && let Some(query) = left.next()
        {
            submit(driver, query)?;
        }
        while let Some(answer) = driver.session.poll()? {
            answer.outcome?;
            driver.idle.push(answer.target);
        }
        std::hint::spin_loop();
    }
    Ok(began.elapsed())
}

fn number(text: &str) -> Result<f64> {
    text.parse().context("Python's time")
}
