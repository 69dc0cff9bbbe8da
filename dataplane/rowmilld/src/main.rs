//! `rowmilld --config FILE.toml [--check]`
#![forbid(unsafe_code)]

use std::io::{ErrorKind, Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Parser;
use rowmill_rowmilld::config::Config;
use rowmill_rowmilld::log;
use rowmill_rowmilld::plan::{Choice, Plan};
use rowmill_rowmilld::serve;
use rowmill_rowmilld::warm;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

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
    /// End, as on SIGTERM, when the thread of process PID that started this one ends.
    #[arg(long, value_name = "PID", hide = true)]
    leash: Option<i32>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = if args.check { check(&args) } else { run(&args) };
    let code = match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::say(format_args!("rowmilld: {error:#}"));
            ExitCode::FAILURE
        }
    };
    log::flush();
    code
}

fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(owner) = args.leash {
        leash(owner)?;
    }
    let config = Config::load(&args.config)?;
    log::start(&config)?;
    serve::serve(&config)
}

/// For programs that start a service for themselves: it is not to outlive them, however they end.
fn leash(owner: i32) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM)).context("prctl(PR_SET_PDEATHSIG)")?;
    // It may have ended before that.
    let parent = getppid().map(|pid| pid.as_raw_nonzero().get());
    ensure!(parent == Some(owner), "process {owner} is gone");
    Ok(())
}

fn check(args: &Args) -> anyhow::Result<()> {
    let config = Config::load(&args.config)?;
    let plan = Plan::make(&config)?;
    let warm = warm::check(&config, &plan)?;
    print_choices(plan.choices.iter().chain(&warm))?;
    print_choices(&plan.cache.check(&plan.generation)?)?;
    serve::probe(&config, &plan)?;
    print(&format!(
        "{} can be served on this machine, if its rows are undamaged (`rowmill table verify` reads them)\n",
        args.config.display()
    ))
}

fn print_choices<'a>(choices: impl IntoIterator<Item = &'a Choice>) -> anyhow::Result<()> {
    let text = |choice: &Choice| {
        let mark = if choice.warning { " (warning)" } else { "" };
        format!(
            "{}: {}{mark}\n    {}\n",
            choice.what, choice.chosen, choice.why
        )
    };
    print(&choices.into_iter().map(text).collect::<String>())
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
