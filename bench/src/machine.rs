//! What machine a measurement was made on, and of what commit.

use std::fs;
use std::process::Command;

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

fn output(program: &str, arguments: &[&str]) -> String {
    let out = Command::new(program).args(arguments).output();
    match out {
        Ok(out) if out.status.success() => String::from_utf8_lossy(&out.stdout).trim().to_owned(),
        _ => "unknown".into(),
    }
}
