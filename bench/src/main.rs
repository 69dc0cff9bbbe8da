//! `rowmill-bench`: measures the parts and the whole, and runs the demo.
#![forbid(unsafe_code)]

mod demo;
mod driver;
mod gather;
mod host;
mod machine;
mod model;
mod null;
mod open_loop;
mod pooling;
mod report;
mod serve;
mod service;
mod targets;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use regex::Regex;

use crate::report::Reporter;

/// Measure rowmill, or show it at work.
#[derive(Parser)]
#[command(name = "rowmill-bench", version)]
struct Cli {
    /// What to run
    suite: Suite,
    /// Print a JSON object a line on standard output, and nothing else there
    #[arg(long)]
    json: bool,
    /// Run every case, not only the headline ones
    #[arg(long)]
    full: bool,
    /// Run only the cases that this regular expression finds
    #[arg(long, value_name = "REGEX")]
    case: Option<Regex>,
    /// demo: replay this file of row ids (one a line) instead of synthetic queries
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// demo: seconds of queries
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// demo: bytes of rows, instead of a share of this machine's memory
    #[arg(long, value_name = "BYTES")]
    bytes: Option<u64>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Suite {
    /// The kernels against the gather limit
    Pooling,
    /// A null request there and back
    Null,
    /// The whole service against the kernels alone, and under overload
    Serve,
    /// The machine itself: gaps in the time a thread gets, latency of memory
    Host,
    /// Every bound in bench/targets.toml: PASS, SHORT or NOT MEASURED
    Targets,
    /// A demo model, a service and queries whose every answer is checked
    Demo,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    let mut reporter = Reporter::new(cli.json, cli.case);
    match cli.suite {
        Suite::Pooling => pooling::run(cli.full, &mut reporter)?,
        Suite::Null => null::run(cli.full, &mut reporter)?,
        Suite::Serve => serve::run(cli.full, &mut reporter)?,
        Suite::Host => host::run(&mut reporter)?,
        Suite::Targets => return targets::run(cli.json),
        Suite::Demo => return demo::run(cli.trace.as_deref(), cli.seconds, cli.bytes),
    }
    reporter.finish();
    Ok(ExitCode::SUCCESS)
}
