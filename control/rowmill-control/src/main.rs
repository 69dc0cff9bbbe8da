//! `rowmill-control --config FILE.toml [--check]`
#![forbid(unsafe_code)]

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Parser;
use rowmill_control::config::Config;
use rowmill_control::{log, serve};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// Decides what the caches of dataplanes hold.
#[derive(Parser)]
#[command(name = "rowmill-control", version)]
struct Args {
    /// The configuration file; deploy/rowmill-control.toml shows every option.
    #[arg(long, value_name = "FILE", required_unless_present = "openapi")]
    config: Option<PathBuf>,
    /// Check the configuration and serve nothing.
    #[arg(long)]
    check: bool,
    /// Print the description of the interface, as control/openapi.json has it, and serve nothing.
    #[arg(long)]
    openapi: bool,
    /// End, as on SIGTERM, when the thread of process PID that started this one ends.
    #[arg(long, value_name = "PID", hide = true)]
    leash: Option<i32>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let code = match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::say(&format!("rowmill-control: {error:#}"));
            ExitCode::FAILURE
        }
    };
    log::flush();
    code
}

fn run(args: &Args) -> anyhow::Result<()> {
    if args.openapi {
        return print(&rowmill_control::api::description());
    }
    if let Some(owner) = args.leash {
        leash(owner)?;
    }
    let path = args.config.as_ref().context("--config FILE is needed")?;
    let config = Config::load(path)?;
    if args.check {
        config.check_files()?;
        return print(&format!("{} can be served\n", path.display()));
    }
    log::start(&config.log.filter)?;
    serve::serve(&config)
}

/// For programs that start a control plane for themselves: it is not to outlive them, however they end.
fn leash(owner: i32) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM)).context("prctl(PR_SET_PDEATHSIG)")?;
    // It may have ended before that.
    let parent = getppid().map(|pid| pid.as_raw_nonzero().get());
    ensure!(parent == Some(owner), "process {owner} is gone");
    Ok(())
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.context("cannot write to standard output")
}
