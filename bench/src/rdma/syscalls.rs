//! What a worker calls the kernel for, counted by strace on its thread alone: on soft-RoCE once for each doorbell, on
//! hardware, whose doorbells are stores, never.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rowmill_client::Pooling;
use rustix::process::{Pid, Signal, kill_process};

use super::measuring::Extent;
use crate::driver::Driver;
use crate::model::Model;
use crate::report::{Measurement, Reporter};
use crate::service::Service;
use crate::workload::{Query, Workload};

/// A small model: what is counted does not depend on it.
const MODEL_BYTES: u64 = 64 << 20;
/// One-sample requests; of the large ones, whose ids are fetched by READ, there is one for each eight.
const REQUESTS: usize = 400;
/// Samples of a large request.
const LARGE: u32 = 64;
/// How long strace may take to attach, and the worker to publish its last pass.
const PATIENCE: Duration = Duration::from_secs(60);
/// The worker spins: to yield and to sleep are calls too, of a worker that has nothing to do.
const SPINNING: &str =
    "[workers]\ncpus = 1\npin = false\n[idle]\nspin_us = 1000000000\nsleep = false\n";

/// Counts, reports, and compares with the doorbells that the port has counted.
///
/// # Errors
/// Where the counts differ, or strace is not to be had.
pub(crate) fn run(address: IpAddr, extent: Extent, reporter: &mut Reporter) -> Result<()> {
    let case = "port=rdma/shape=dlrm-v2/samples=1/count=syscalls";
    let (model, _) = Model::dlrm_v2(MODEL_BYTES)?;
    let service = Service::start_at(&super::endpoint(address), &model.directory, SPINNING)?;
    let mut workload = Workload::dlrm_v2(&model.rows(), 1);
    let (schema, _) = model.schema(LARGE);
    ensure!(
        schema.features.iter().all(|f| f.pooling == Pooling::Sum),
        "the model's features are pooled"
    );
    let mut driver = Driver::new(service.connect("bench syscalls")?, schema, LARGE, 1)?;
    let small = workload.query(1);
    let large = workload.query(LARGE);
    // Whatever happens once has happened.
    send(&mut driver, &small, &large, 32)?;

    let before = settled(&service)?;
    let strace = Strace::attach(&service)?;
    let requests = (REQUESTS / extent.share).max(8);
    send(&mut driver, &small, &large, requests)?;
    let after = settled(&service)?;
    let (clock, calls): (Vec<_>, Vec<_>) = strace
        .detach()?
        .into_iter()
        .partition(|(name, _)| name == CLOCK && !clock_is_mapped());
    let doorbells = after.doorbells - before.doorbells;
    let served = after.requests - before.requests;
    ensure!(
        served == (requests + requests / 8) as u64,
        "the worker has had {served} requests"
    );
    drop(driver);
    service.stop()?;

    let total: u64 = calls.iter().map(|(_, count)| count).sum();
    // On hardware there are none; one beside none is equal.
    let is_soft = !PathBuf::from("/sys/class/infiniband")
        .join(super::link::Device::open(address)?.context.name())
        .join("device")
        .exists();
    let allowed = if is_soft { doorbells } else { 0 };
    let plain =
        |metric, value: u64, unit| Measurement::plain("rdma", case, metric, value as f64, unit);
    reporter.add(plain("requests", served, "requests"));
    if let Some((_, reads)) = clock.first() {
        eprintln!("rdma: {CLOCK} is a system call on this machine alone, and not counted: {reads}");
    }
    let ratio = (allowed as f64 + 1.0) / (total as f64 + 1.0);
    reporter.add(plain("syscalls", total, "calls").beside("doorbells", allowed as f64, ratio));
    let only_doorbells = calls
        .iter()
        .all(|(name, _)| name == "write" || name == "ioctl");
    if total != allowed || !only_doorbells {
        bail!(
            "the worker has made {total} system calls for {served} requests, but rung {doorbells} doorbells, of which \
             {allowed} need one: {calls:?}"
        );
    }
    Ok(())
}

/// Reads the clock: no system call where programs can read it by themselves.
const CLOCK: &str = "clock_gettime";

/// Whether programs can read this machine's clock without a call: emulated machines often have none of these.
fn clock_is_mapped() -> bool {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let source = fs::read_to_string(path).unwrap_or_default();
    let mapped = [
        "tsc",
        "kvm-clock",
        "hyperv_clocksource_tsc_page",
        "arch_sys_counter",
    ];
    mapped.contains(&source.trim())
}

/// One request after another.
fn send(driver: &mut Driver, small: &Query, large: &Query, count: usize) -> Result<()> {
    for at in 0..count {
        driver.round_trip(small)?;
        if at % 8 == 7 {
            driver.round_trip(large)?;
        }
    }
    Ok(())
}

/// The worker's counters.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Counts {
    doorbells: u64,
    requests: u64,
}

/// The counters of a worker that has nothing more to do.
fn settled(service: &Service) -> Result<Counts> {
    let began = Instant::now();
    let mut last = counts(service)?;
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let now = counts(service)?;
        if now == last {
            return Ok(now);
        }
        ensure!(
            began.elapsed() < PATIENCE,
            "the worker does not come to rest"
        );
        last = now;
    }
}

fn counts(service: &Service) -> Result<Counts> {
    let status = service.status()?;
    let count = |name: &str| {
        let count = status["workers"][0][name].as_u64();
        count.with_context(|| format!("{name} of the worker"))
    };
    Ok(Counts {
        doorbells: count("doorbells")?,
        requests: count("requests")?,
    })
}

/// strace, counting what one thread calls.
struct Strace {
    child: Child,
    summary: tempfile::NamedTempFile,
}

impl Strace {
    /// Attaches to the first worker of a service.
    fn attach(service: &Service) -> Result<Strace> {
        let thread = worker(service.pid())?;
        let status = format!("/proc/{}/task/{thread}/status", service.pid());
        let seen = || fs::read_to_string(&status).context("the worker's status");
        let before = stops(&seen()?);
        let summary = tempfile::NamedTempFile::new().context("a file for strace")?;
        let child = Command::new("strace")
            .args(["-c", "-U", "calls,name", "-p", &thread.to_string(), "-o"])
            .arg(summary.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("running strace (the package strace)")?;
        let mut strace = Strace { child, summary };
        let began = Instant::now();
        loop {
            // Calls count from when strace has stopped the worker and let it go on, which is after it has become its tracer.
            let text = seen()?;
            let traced = field(&text, "TracerPid").is_some_and(|pid| pid != "0");
            let runs = field(&text, "State").is_some_and(|state| state.starts_with('R'));
            if traced && runs && stops(&text) > before {
                return Ok(strace);
            }
            if let Some(status) = strace.child.try_wait()? {
                bail!("strace ended with {status}: may this user trace its processes?");
            }
            ensure!(began.elapsed() < PATIENCE, "strace does not attach");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends it; what was called, and how often.
    fn detach(mut self) -> Result<Vec<(String, u64)>> {
        let pid = Pid::from_raw(self.child.id() as i32).context("strace's number")?;
        kill_process(pid, Signal::INT).context("ending strace")?;
        self.child.wait().context("waiting for strace")?;
        summed(&fs::read_to_string(self.summary.path()).context("strace's summary")?)
    }
}

/// A line of a thread's `/proc/PID/task/TID/status`.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim())
}

/// How often the thread has given up its CPU by itself; a worker that spins does so only when it is stopped.
fn stops(status: &str) -> u64 {
    let count = field(status, "voluntary_ctxt_switches").and_then(|count| count.parse().ok());
    count.unwrap_or(0)
}

impl Drop for Strace {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lines `CALLS NAME` between two rules.
fn summed(summary: &str) -> Result<Vec<(String, u64)>> {
    let mut calls = Vec::new();
    for line in summary
        .lines()
        .skip_while(|line| !line.starts_with('-'))
        .skip(1)
    {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some(rule), _) if rule.starts_with('-') => return Ok(calls),
            (Some(count), Some(name)) => {
                let count = count.parse();
                calls.push((name.into(), count.with_context(|| format!("{line:?}"))?));
            }
            _ => bail!("strace says {line:?}"),
        }
    }
    // A thread that called nothing has no table.
    ensure!(calls.is_empty(), "strace's table has no end");
    Ok(calls)
}

/// The number of a service's first worker thread.
fn worker(pid: u32) -> Result<u32> {
    for thread in fs::read_dir(format!("/proc/{pid}/task")).context("the service's threads")? {
        let thread = thread?;
        let name = fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        if name.trim() == WORKER {
            let number = thread.file_name();
            return number
                .to_string_lossy()
                .parse()
                .context("a thread's number");
        }
    }
    bail!("the service has no thread named {WORKER}");
}

/// What the first worker's thread is named.
const WORKER: &str = "rowmilld-0";

#[cfg(test)]
mod tests {
    use super::summed;

    #[test]
    fn summaries_are_read() {
        let text = "    calls syscall\n--------- ----------------\n      900 write\n        2 ioctl\n--------- ----------------\n      902 total\n";
        let calls = summed(text).expect("a summary");
        assert_eq!(calls, [("write".to_owned(), 900), ("ioctl".to_owned(), 2)]);
        assert_eq!(summed("").expect("nothing was called"), []);
        assert!(summed("calls syscall\n----- ----\n 5 write\n").is_err());
    }
}
