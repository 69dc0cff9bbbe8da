//! `rowmill`: the operator's command.
#![forbid(unsafe_code)]

mod cert;
mod control;
mod delta;
mod generation;
mod import;
mod interrupt;
mod lookup;
mod output;
mod place;
mod plane;
mod policy;
mod progress;
mod status;
mod table;
mod token;
mod units;
mod watch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Make, check and look at embedding tables, and talk to the service that serves them.
#[derive(Parser)]
#[command(name = "rowmill", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Generations of tables on disk
    #[command(subcommand)]
    Table(table::TableCommand),
    /// Ask a running dataplane for a few vectors
    Lookup(lookup::Lookup),
    /// What runs, what was chosen and why: of a dataplane, or of the control plane and all that report to it
    Status(status::Status),
    /// Have a table cached, or resident again, while it is served
    Place(place::Place),
    /// Load another generation of the model while one is served, switch to it, and back
    #[command(subcommand)]
    Generation(generation::GenerationCommand),
    /// Rows that become others while they are served
    #[command(subcommand)]
    Delta(delta::DeltaCommand),
    /// Tables that the control plane knows: shares, hits, what the next MiB would gain
    Tables(policy::Tables),
    /// What the control plane wants, and why
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Certificates for development
    #[command(subcommand)]
    Cert(cert::CertCommand),
    /// Tokens that say who somebody is
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// What is done: rates of a dataplane's workers and cached tables, or of all dataplanes of a control plane, every second
    Watch(watch::Watch),
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    match interrupt::outlive_long_files().and_then(|()| run(command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::note(&format!("error: {}", output::explained(&error)));
            let interrupted = error.downcast_ref::<interrupt::Interrupted>();
            interrupted.map_or(ExitCode::FAILURE, |interrupted| interrupted.exit_code())
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Table(command) => command.run(),
        Command::Lookup(command) => command.run(),
        Command::Status(command) => command.run(),
        Command::Place(command) => command.run(),
        Command::Generation(command) => command.run(),
        Command::Delta(command) => command.run(),
        Command::Tables(command) => command.run(),
        Command::Policy(command) => command.run(),
        Command::Cert(command) => command.run(),
        Command::Token(command) => command.run(),
        Command::Watch(command) => command.run(),
    }
}
