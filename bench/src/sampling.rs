//! What it costs a worker that a control plane looks on and decides: that its lookups are sampled, and that policies are published. By instructions, which valgrind
//! counts the same each time.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use regex::Regex;
use rowmill_pooling::RowFormat;

use crate::cache_hits::Hits;
use crate::report::{Measurement, Reporter};

/// Parts of all rows that are sampled. A dataplane is asked for some 3,000 lookups a second, of 10 million or more when it is busy.
const RATES: [f64; 2] = [0.001, 0.01];
/// Rows of the store, and how often as many are looked up: twice, to know what the beginning costs.
const ROWS: u32 = 1 << 16;
const ROUNDS: [u16; 2] = [16, 32];
/// Rounds from one policy to the next: a million lookups, which a worker does in a tenth of a second where it does ten million in one. One that is
/// busy does several times as many.
const A_POLICY: u16 = 16;
/// Tables that a policy names, as many as DLRM-v2 has, and rows of each that are to stay, others each time.
const TABLES: u32 = 26;
const PINNED: u32 = 1000;
/// The cheapest rows that there are, of which all else is the largest part.
const DIM: usize = 64;

/// What is done beside lookups.
#[derive(Clone, Copy, Default)]
pub(crate) struct Beside {
    /// The part of all rows that is sampled.
    pub(crate) rate: f64,
    /// Whether policies are published.
    pub(crate) publishes: bool,
}

/// Runs the cases, where there is valgrind.
///
/// # Errors
/// Where valgrind does not count.
pub(crate) fn run(reporter: &mut Reporter) -> Result<()> {
    let sampling = RATES.map(|rate| {
        let beside = Beside {
            rate,
            publishes: false,
        };
        (format!("sampling={rate}"), beside)
    });
    let publishing = Beside {
        rate: 0.0,
        publishes: true,
    };
    let publishing = (
        format!("publishing=10/tables={TABLES}/pinned={PINNED}"),
        publishing,
    );
    let cases = sampling.into_iter().chain([publishing]);
    let named = cases.map(|(what, beside)| {
        let name = format!("{what}/format=int8/dim={DIM}/dist=uniform/mode=sum");
        (name, beside)
    });
    let wanted: Vec<(String, Beside)> = named.filter(|(name, _)| reporter.wants(name)).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    if Command::new("valgrind")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_err()
    {
        eprintln!("cache: sampling and publishing are not measured: there is no valgrind");
        return Ok(());
    }
    let off = counted(Beside::default())?;
    for (name, beside) in wanted {
        eprintln!("cache: {name}, counted by valgrind");
        let count = counted(beside)?;
        let found = Measurement::plain("cache", &name, "instructions", count, "a lookup");
        reporter.add(found.beside("off", off, off / count));
    }
    Ok(())
}

/// Instructions that a lookup takes.
fn counted(beside: Beside) -> Result<f64> {
    let [few, many] = ROUNDS.map(|rounds| instructions(beside, rounds));
    Ok((many? - few?) / (f64::from(ROUNDS[1] - ROUNDS[0]) * f64::from(ROWS)))
}

/// All of a process that looks rows up so often.
fn instructions(beside: Beside, rounds: u16) -> Result<f64> {
    let program = std::env::current_exe().context("this program's file")?;
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(program).arg("count");
    command.args(["--rate", &beside.rate.to_string()]);
    command.args(["--rounds", &rounds.to_string()]);
    if beside.publishes {
        command.arg("--publish");
    }
    let output = command.output().context("valgrind")?;
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
pub(crate) fn lookups(beside: Beside, rounds: u16) -> Result<()> {
    let rate = beside.rate;
    ensure!(
        (0.0..1.0).contains(&rate),
        "--rate {rate} is no part of all rows"
    );
    let mut hits = Hits::new(ROWS, RowFormat::Int8, DIM, ROWS as usize)?;
    hits.sample((rate * 2_f64.powi(32)) as u32);
    for round in 0..rounds {
        if beside.publishes && round % A_POLICY == 0 {
            hits.publish(u32::from(round / A_POLICY), TABLES, PINNED);
        }
        hits.all();
    }
    Ok(())
}
