//! `rowmill-bench`: measures the parts and the whole, and runs the demo.
#![forbid(unsafe_code)]

mod batches;
mod beside_misses;
mod cache;
mod cache_hits;
mod changes;
mod control;
mod control_group;
mod demo;
mod driver;
mod gather;
mod gpu;
mod host;
mod ids;
mod loadgen;
mod machine;
mod memory_disk;
mod mixed;
mod model;
mod null;
mod open_loop;
mod peers;
mod pooling;
mod python;
mod python_client;
mod rdma;
mod report;
mod rounds;
mod sampling;
mod serve;
mod service;
mod sharing;
mod tables;
mod targets;
mod tier;
mod torchrec;
mod warm_start;
mod workload;

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
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
    /// rdma: be the half that serves, at this address of an RDMA device
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["peer", "syscalls"])]
    serve: Option<IpAddr>,
    /// rdma: measure, with the half that serves at this address
    #[arg(long, value_name = "ADDRESS", conflicts_with = "syscalls")]
    peer: Option<IpAddr>,
    /// rdma: count the system calls of a worker that serves at this address of this host
    #[arg(long, value_name = "ADDRESS")]
    syscalls: Option<IpAddr>,
    /// rdma: rounds of each case; 9, with --full 15
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// rdma: send only one in N of a round's requests
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    share: u16,
    /// cache, demo: replay this file of row ids (one a line, below 2147483647) instead of generated ones, which `--case trace=zipf` and the
    /// like choose from
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// cache: rows that the cache holds, those on their way among them, instead of several sizes; 112 at least
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(112..))]
    rows: Option<u32>,
    /// cache: one policy instead of all
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// count: the part of all rows that is sampled
    #[arg(long, default_value_t = 0.0, hide = true)]
    rate: f64,
    /// count: publish policies, too
    #[arg(long, hide = true)]
    publish: bool,
    /// demo: seconds of queries; 10
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// demo: bytes of rows, such as 1073741824 or 64MiB, instead of a share of this machine's memory
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
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
    /// A hashed table against a dense one, imports against a copy
    Tables,
    /// PyTorch's embedding_bag and TorchRec's EmbeddingBagCollection on the same rows and ids
    Peers,
    /// MLPerf's LoadGen: the service and PyTorch in the scenarios Server and Offline of DLRM-v2
    Loadgen,
    /// Results in a GPU's memory: `make test-gpu`, where there is a GPU
    Gpu,
    /// The service over RDMA against ib_write_bw, a bare ping-pong, and rows fetched by READ (`make bench-rxe`)
    Rdma,
    /// Hit rates of the cache's policy beside known ones, on traces and at sizes; rows from files beside fio; requests that miss nothing beside others that do
    Cache,
    /// Requests while a generation is loaded and switched to, and while rows become others by a delta
    Changes,
    /// The control plane with as many dataplanes and tables as it is to have on one core
    Control,
    /// The machine itself: gaps in the time a thread gets, latency of memory
    Host,
    /// Every bound in bench/targets.toml: PASS, SHORT or NOT MEASURED
    Targets,
    /// Looks rows up, for a case of `cache` that has it counted
    #[value(hide = true)]
    Count,
    /// A demo model, a service and queries whose every answer is checked
    Demo,
}

/// A number of bytes, with or without a unit: `64MiB` and `64M` are the same.
fn bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return Err("write a number of bytes, KiB, MiB or GiB, such as 64MiB".into()),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| "write a number of bytes such as 64MiB".to_owned())?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("{text} are more bytes than there are"))
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
    let (is_cache, is_demo) = (
        matches!(cli.suite, Suite::Cache),
        matches!(cli.suite, Suite::Demo),
    );
    ensure!(
        cli.trace.is_none() || is_cache || is_demo,
        "--trace is of cache and demo: this suite replays none; leave it out"
    );
    ensure!(
        is_cache || (cli.rows.is_none() && cli.policy.is_none()),
        "--rows and --policy are of cache: leave them out"
    );
    ensure!(
        is_demo || (cli.seconds.is_none() && cli.bytes.is_none()),
        "--seconds and --bytes are of demo: leave them out"
    );
    let mut reporter = Reporter::new(cli.json, cli.case);
    let default_rounds = if cli.full { 15 } else { 9 };
    let extent = rdma::Extent {
        rounds: cli.rounds.map_or(default_rounds, usize::from),
        share: cli.share.into(),
    };
    match cli.suite {
        Suite::Pooling => pooling::run(cli.full, &mut reporter)?,
        Suite::Null => null::run(cli.full, &mut reporter)?,
        Suite::Serve => serve::run(cli.full, &mut reporter)?,
        Suite::Tables => tables::run(cli.full, &mut reporter)?,
        Suite::Peers => peers::run(cli.full, &mut reporter)?,
        Suite::Loadgen => loadgen::run(cli.full, &mut reporter)?,
        Suite::Gpu => gpu::measure()?
            .into_iter()
            .for_each(|found| reporter.add(found)),
        Suite::Rdma => match (cli.serve, cli.peer, cli.syscalls) {
            (Some(address), None, None) => rdma::serve(address)?,
            (None, Some(address), None) => rdma::measure(address, extent, &mut reporter)?,
            (None, None, Some(address)) => rdma::count_syscalls(address, extent, &mut reporter)?,
            _ => bail!(
                "rdma has two halves: give --serve ADDRESS on one machine and --peer ADDRESS on the other, or run \
                 `make bench-rxe`"
            ),
        },
        Suite::Cache => {
            let choice = cache::Choice {
                trace: cli.trace.as_deref(),
                rows: cli.rows.map(|rows| rows as usize),
                policy: cli.policy.as_deref(),
                full: cli.full,
            };
            cache::run(&choice, &mut reporter)?;
            if cli.trace.is_none() && cli.rows.is_none() && cli.policy.is_none() {
                tier::run(cli.full, &mut reporter)?;
                beside_misses::run(&mut reporter)?;
                warm_start::run(&mut reporter)?;
                sampling::run(&mut reporter)?;
                // Last, since it stays on one CPU.
                cache_hits::run(cli.full, &mut reporter)?;
            }
        }
        Suite::Changes => changes::run(&mut reporter)?,
        Suite::Control => control::run(&mut reporter)?,
        Suite::Count => {
            let beside = sampling::Beside {
                rate: cli.rate,
                publishes: cli.publish,
            };
            return sampling::lookups(beside, cli.rounds.unwrap_or(1)).map(|()| ExitCode::SUCCESS);
        }
        Suite::Host => host::run(&mut reporter)?,
        Suite::Targets => return targets::run(cli.json),
        Suite::Demo => {
            return demo::run(cli.trace.as_deref(), cli.seconds.unwrap_or(10), cli.bytes);
        }
    }
    reporter.finish().map(|()| ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn bytes_have_units() {
        for (text, number) in [
            ("1000", 1000),
            ("64MiB", 64 << 20),
            ("64 mib", 64 << 20),
            ("2G", 2 << 30),
            ("1KiB", 1024),
        ] {
            assert_eq!(bytes(text), Ok(number), "{text}");
        }
        for text in ["", "MiB", "-1", "1.5GiB", "64MB", "99999999999999TiB"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
