//! Running faults, each in a process of its own, within its time.

use std::fs;
use std::io::{Read, Seek};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::process::getpid;
use serde_json::json;

use super::programs::{Programs, leash};
use super::site::{Running, Site, rdma_address, slowness};
use super::{Fault, Over, Verdict, every};

/// The first argument of this program where it is to try one fault: see [`one`].
pub const ONE: &str = "--one";

/// The kernel's folder for its pool of 2 MiB pages.
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// What became of a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was survived; what was seen.
    Pass(String),
    /// It was not; why.
    Fail(String),
    /// It could not be tried here; why.
    Skipped(String),
}

/// A fault, and what became of it.
#[derive(Clone, Debug)]
pub struct Report {
    /// The fault's name.
    pub name: &'static str,
    /// The status or error that had to come.
    pub expected: &'static str,
    /// What it was measured by.
    pub bound: &'static str,
    /// What became of it.
    pub outcome: Outcome,
    /// How long it took.
    pub took: Duration,
}

/// Runs the faults whose names `wanted` accepts, one after another; `each` is told of every one.
///
/// # Errors
/// Where the programs under test are missing.
pub fn run(wanted: impl Fn(&str) -> bool, mut each: impl FnMut(&Report)) -> Result<Vec<Report>> {
    let programs = Programs::find()?;
    let mut reports = Vec::new();
    // Over RDMA what is only of shared memory is left out.
    let here = |fault: &&Fault| rdma_address().is_none() || fault.over != Over::Shm;
    for fault in every().filter(here).filter(|fault| wanted(fault.name)) {
        let began = Instant::now();
        let outcome = match fault.misplaced() {
            Some(why) => Outcome::Skipped(why.to_owned()),
            None => in_a_process(&programs, fault)
                .unwrap_or_else(|error| Outcome::Fail(format!("{error:#}"))),
        };
        let report = Report {
            name: fault.name,
            expected: fault.expected,
            bound: fault.bound,
            outcome,
            took: began.elapsed(),
        };
        each(&report);
        reports.push(report);
    }
    Ok(reports)
}

fn in_a_process(programs: &Programs, fault: &Fault) -> Result<Outcome> {
    // Held here and not in the fault's process, so that the pool is restored whatever becomes of that.
    let _pages = match fault.huge_pages {
        0 => None,
        count => match Pages::add(count) {
            Some(pages) => Some(pages),
            None => {
                let why = format!("needs {count} free pages in {POOL}, and the right to add them");
                return Ok(Outcome::Skipped(why));
            }
        },
    };
    let folder = tempfile::Builder::new().prefix("rowmill-fault-").tempdir();
    let folder = folder.context("a folder")?;
    let mut said = tempfile::tempfile().context("a file")?;
    let mut command = std::process::Command::new(programs.path("faults"));
    let owner = getpid().as_raw_nonzero().to_string();
    command.args([ONE, &owner, fault.name]).arg(folder.path());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(said.try_clone()?);
    let mut child = Running(command.spawn().context("starting a fault")?);
    let limit = fault.limit * slowness();
    let status = child.end(limit);
    said.rewind()?;
    let mut bytes = Vec::new();
    said.read_to_end(&mut bytes)?;
    let said = String::from_utf8_lossy(&bytes);
    let Some(status) = status else {
        // Killed here; the kernel then kills what it started.
        drop(child);
        return Ok(Outcome::Fail(format!(
            "it hangs: not done after {limit:?} {said}"
        )));
    };
    let mut line = String::new();
    let stdout = child.0.stdout.take().context("its output")?;
    stdout
        .take(1 << 16)
        .read_to_string(&mut line)
        .context("its output")?;
    let outcome: Option<serde_json::Value> = serde_json::from_str(line.trim()).ok();
    let text = |key: &str| Some(outcome.as_ref()?[key].as_str()?.to_owned());
    Ok(match (text("pass"), text("skipped"), text("fail")) {
        (Some(note), ..) if status.success() => Outcome::Pass(note),
        (_, Some(why), _) if status.success() => Outcome::Skipped(why),
        (.., Some(why)) => Outcome::Fail(format!("{why}{said}")),
        _ => Outcome::Fail(format!("its process ended with {status}: {line}{said}")),
    })
}

/// Tries one fault in this process and prints the outcome as JSON: what [`ONE`] asks for. The arguments
/// are the process that wants to know, the fault's name, and an empty folder.
///
/// # Errors
/// Where there is no such fault.
pub fn one(mut arguments: impl Iterator<Item = std::ffi::OsString>) -> Result<()> {
    let mut word = || {
        arguments
            .next()
            .and_then(|a| a.into_string().ok())
            .context("an argument")
    };
    leash(word()?.parse().context("a process")?)?;
    let name = word()?;
    let fault = every()
        .find(|fault| fault.name == name)
        .context("no such fault")?;
    let folder = word()?.into();
    let outcome = Site::new(folder).and_then(|site| (fault.happen)(&site));
    let line = match outcome {
        Ok(Verdict::Pass(note)) => json!({ "pass": note }),
        Ok(Verdict::Skipped(why)) => json!({ "skipped": why }),
        Err(error) => json!({ "fail": format!("{error:#}") }),
    };
    println!("{line}");
    Ok(())
}

/// The pool with some pages more. Everyone who changes it locks the same file: the arena's tests, too.
struct Pages {
    before: u64,
    _turn: fs::File,
}

impl Pages {
    fn add(count: u64) -> Option<Pages> {
        let path = format!("{POOL}/nr_hugepages");
        let turn = fs::File::open(&path).ok()?;
        flock(&turn, FlockOperation::LockExclusive).ok()?;
        let number = |file: &str| -> Option<u64> {
            fs::read_to_string(format!("{POOL}/{file}"))
                .ok()?
                .trim()
                .parse()
                .ok()
        };
        let pages = Pages {
            before: number("nr_hugepages")?,
            _turn: turn,
        };
        let wanted = pages.before + count;
        fs::write(&path, wanted.to_string()).ok()?;
        let enough = number("nr_hugepages")? == wanted && number("free_hugepages")? >= count;
        // Where the pool may grow by itself there is always a page for a hole.
        (enough && number("nr_overcommit_hugepages")? == 0).then_some(pages)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let _restored = fs::write(format!("{POOL}/nr_hugepages"), self.before.to_string());
    }
}
