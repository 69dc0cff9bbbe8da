//! What machine a measurement was made on, and of what commit.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

/// One line each: CPU, memory, kernel, huge pages, commit, date.
pub(crate) fn describe() -> Vec<(&'static str, String)> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpuinfo
            .lines()
            .find(|l| l.starts_with(name))
            .unwrap_or_default();
        line.split_once(':')
            .map(|(_, v)| v.trim().to_owned())
            .unwrap_or_else(|| "unknown".into())
    };
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = |name: &str| -> u64 {
        let line = meminfo
            .lines()
            .find(|l| l.starts_with(name))
            .unwrap_or_default();
        line.split_whitespace()
            .nth(1)
            .and_then(|v| v.parse().ok())
            .unwrap_or(0)
    };
    let vector = ["avx512f", "avx2", "asimd"]
        .into_iter()
        .find(|f| cpuinfo.contains(f))
        .unwrap_or("no vector unit");
    let thp = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    vec![
        (
            "cpu",
            format!("{cpus} x {} ({vector})", field("model name")),
        ),
        (
            "memory",
            format!("{:.1} GiB", kib("MemTotal:") as f64 / 1048576.0),
        ),
        (
            "huge pages",
            format!(
                "{} reserved; transparent: {}",
                kib("HugePages_Total:"),
                thp.trim()
            ),
        ),
        ("kernel", kernel.trim().to_owned()),
        (
            "commit",
            output("git", &["describe", "--always", "--dirty", "--abbrev=12"]),
        ),
        ("date", output("date", &["-u", "+%Y-%m-%d"])),
    ]
}

/// For how long a hypervisor has taken the CPUs of this machine away since it was started, in hundredths of a second (`proc_stat(5)`:
/// steal); 0 on a machine that is no virtual one.
pub(crate) fn stolen() -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let all = stat.lines().next().unwrap_or_default();
    let steal = all.split_whitespace().nth(8);
    steal.and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}

/// For how long threads could have run and did not, since others had their CPUs.
pub(crate) struct Waits(Vec<File>);

impl Waits {
    /// Of this thread, and of the threads of this process (`pid`) whose name is so.
    pub(crate) fn of(pid: u32, name: &str) -> Result<Waits> {
        let mut files = vec![File::open("/proc/thread-self/schedstat")?];
        for task in fs::read_dir(format!("/proc/{pid}/task"))? {
            let task = task?.path();
            if fs::read_to_string(task.join("comm"))?.trim_end() == name {
                files.push(File::open(task.join("schedstat"))?);
            }
        }
        anyhow::ensure!(files.len() > 1, "process {pid} has no thread {name}");
        Ok(Waits(files))
    }

    /// Of all of them together (the second number of `/proc/PID/schedstat`: kernel documentation, `scheduler/sched-stats`).
    pub(crate) fn so_far(&self) -> Result<Duration> {
        let mut all = 0;
        for file in &self.0 {
            let mut text = [0; 64];
            let length = file.read_at(&mut text, 0).context("reading schedstat")?;
            let text = std::str::from_utf8(&text[..length]).context("schedstat is text")?;
            let waited = text.split(' ').nth(1).and_then(|ns| ns.parse::<u64>().ok());
            all += waited.context("schedstat has a second number")?;
        }
        Ok(Duration::from_nanos(all))
    }
}

fn output(program: &str, arguments: &[&str]) -> String {
    let out = Command::new(program).args(arguments).output();
    match out {
        Ok(out) if out.status.success() => String::from_utf8_lossy(&out.stdout).trim().to_owned(),
        _ => "unknown".into(),
    }
}
