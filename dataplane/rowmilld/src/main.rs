//! `rowmilld --config FILE.toml [--check]`
#![forbid(unsafe_code)]

use std::io::{ErrorKind, Write, stderr, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use rowmill_rowmilld::config::Config;
use rowmill_rowmilld::plan::Plan;
use rowmill_rowmilld::serve;

/// Serves embedding lookups from the tables of one generation.
#[derive(Parser)]
#[command(name = "rowmilld", version)]
struct Args {
    /// The configuration file; deploy/rowmilld.toml shows every option.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Check the configuration, the tables and the machine, print what would be chosen and why, and
    /// serve nothing.
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = if args.check { check(&args) } else { run(&args) };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _unheard = writeln!(stderr(), "rowmilld: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    let config = Config::load(&args.config)?;
    serve::start_logging(&config)?;
    serve::serve(&config)
}

fn check(args: &Args) -> anyhow::Result<()> {
    let config = Config::load(&args.config)?;
    let plan = Plan::make(&config)?;
    let mut text = String::new();
    for choice in &plan.choices {
        let mark = if choice.warning { " (warning)" } else { "" };
        text += &format!(
            "{}: {}{mark}\n    {}\n",
            choice.what, choice.chosen, choice.why
        );
    }
    print(&text)?;
    serve::probe(&config, &plan)?;
    print(&format!(
        "{} can be served on this machine, if its rows are undamaged (`rowmill table verify` reads them)\n",
        args.config.display()
    ))
}

/// Writes to standard output; whoever closed it has read enough.
fn print(text: &str) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}
