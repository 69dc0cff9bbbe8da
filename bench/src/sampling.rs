//! What it costs a worker that its lookups are sampled: by instructions, which valgrind counts the same each time.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use regex::Regex;
use rowmill_pooling::RowFormat;

use crate::cache_hits::Hits;
use crate::report::{Measurement, Reporter};

/// Parts of all rows that are sampled. A dataplane is asked for some 3,000 lookups a second, of 10 million or more when it is busy.
const RATES: [f64; 3] = [0.0, 0.001, 0.01];
/// Rows of the store, and how often as many are looked up: twice, to know what the beginning costs.
const ROWS: u32 = 1 << 16;
const ROUNDS: [u16; 2] = [4, 8];
/// The cheapest rows that there are, of which all else is the largest part.
const DIM: usize = 64;

/// Runs the cases, where there is valgrind.
///
/// # Errors
/// Where valgrind does not count.
pub(crate) fn run(reporter: &mut Reporter) -> Result<()> {
    let name = |rate: f64| format!("sampling={rate}/format=int8/dim={DIM}/dist=uniform/mode=sum");
    if !RATES[1..].iter().any(|&rate| reporter.wants(&name(rate))) {
        return Ok(());
    }
    if Command::new("valgrind")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_err()
    {
        eprintln!("cache: sampling is not measured: there is no valgrind");
        return Ok(());
    }
    eprintln!("cache: {}, counted by valgrind", name(RATES[1]));
    let [off, sampled @ ..] = RATES.map(counted);
    let off = off?;
    for (rate, count) in RATES[1..].iter().zip(sampled) {
        let count = count?;
        let found = Measurement::plain("cache", &name(*rate), "instructions", count, "a lookup");
        reporter.add(found.beside("off", off, off / count));
    }
    Ok(())
}

/// Instructions that a lookup takes.
fn counted(rate: f64) -> Result<f64> {
    let [few, many] = ROUNDS.map(|rounds| instructions(rate, rounds));
    Ok((many? - few?) / (f64::from(ROUNDS[1] - ROUNDS[0]) * f64::from(ROWS)))
}

/// All of a process that looks rows up so often.
fn instructions(rate: f64, rounds: u16) -> Result<f64> {
    let program = std::env::current_exe().context("this program's file")?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args([
            "count",
            "--rate",
            &rate.to_string(),
            "--rounds",
            &rounds.to_string(),
        ])
        .output()
        .context("valgrind")?;
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("valgrind failed: {}", text.trim());
    }
    let collected = Regex::new(r"Collected : (\d+)").expect("an expression");
    let found = collected
        .captures(&text)
        .context("valgrind has counted nothing")?;
    Ok(found[1].parse()?)
}

/// What is counted: looks rows up and pools them, so many rounds.
///
/// # Errors
/// Where there is no memory for rows.
pub(crate) fn lookups(rate: f64, rounds: u16) -> Result<()> {
    ensure!(
        (0.0..1.0).contains(&rate),
        "--rate {rate} is no part of all rows"
    );
    let mut hits = Hits::new(ROWS, RowFormat::Int8, DIM, ROWS as usize)?;
    hits.sample((rate * 2_f64.powi(32)) as u32);
    (0..rounds).for_each(|_| hits.all());
    Ok(())
}
