//! `rowmilld --config FILE.toml [--check]`
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

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
            eprintln!("rowmilld: {error:#}");
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
    for choice in Plan::make(&config)?.choices {
        let mark = if choice.warning { " (warning)" } else { "" };
        println!(
            "{}: {}{mark}\n    {}",
            choice.what, choice.chosen, choice.why
        );
    }
    println!("{} can be served on this machine", args.config.display());
    Ok(())
}
