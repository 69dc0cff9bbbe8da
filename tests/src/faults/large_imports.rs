//! Imports of much: killed under way, and of more than the memory that they may hold.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use super::Verdict;
use super::imports::{left_over, undamaged};
use super::site::{Running, Site, until};

/// How long a large import may take.
const PATIENCE: Duration = Duration::from_secs(45);

/// Rows and dimensions of a large source: 256 MiB of zeros that take no disk.
const LARGE_ROWS: u64 = 1 << 20;
const LARGE_DIM: u64 = 64;

/// Writes a folder as HugeCTR does, `rows` with keys of their own and vectors of zeros.
fn large(site: &Site, rows: u64) -> Result<PathBuf> {
    let folder = site.path("large");
    fs::create_dir(&folder).context("a folder")?;
    let keys: Vec<u8> = (0..rows)
        .flat_map(|row| row.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .collect();
    fs::write(folder.join("key"), keys).context("keys")?;
    File::create(folder.join("emb_vector"))
        .and_then(|file| file.set_len(rows * LARGE_DIM * 4))
        .context("vectors")?;
    Ok(folder)
}

fn start(site: &Site, arguments: &[&str]) -> Result<Running> {
    let mut command = site.programs.leashed("rowmill");
    command.args(arguments).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Ok(Running(command.spawn().context("starting rowmill")?))
}

/// Imports that are killed at several times, and the next one.
pub(super) fn killed(site: &Site) -> Result<Verdict> {
    let table = format!("t={}:{LARGE_DIM}", large(site, LARGE_ROWS)?.display());
    let target = site.path("imported");
    let path = target.to_str().context("a path in UTF-8")?;
    let arguments = ["table", "import", path, "--hugectr", &table];
    let mut killed = 0;
    let mut earlier = Vec::new();
    for delay_ms in [0, 5, 20, 50, 100, 200] {
        let mut import = start(site, &arguments)?;
        // Its draft is the one that no earlier one left.
        let draft = || -> Option<PathBuf> {
            let left = left_over(site, "imported").ok()?;
            let new = |name: &OsString| *name != *"imported" && !earlier.contains(name);
            left.into_iter()
                .find(new)
                .map(|name| site.path("").join(name))
        };
        until(PATIENCE, || draft().is_some() || target.exists())?;
        std::thread::sleep(Duration::from_millis(delay_ms));
        import.signal(Signal::KILL)?;
        let status = import.end(PATIENCE).context("a killed import")?;
        if target.exists() {
            // It was done before: then it is whole.
            undamaged(site, &target)?;
            fs::remove_dir_all(&target).context("the import")?;
            continue;
        }
        ensure!(!status.success(), "it ended well and left nothing");
        killed += 1;
        let draft = draft().context("a killed import leaves its draft")?;
        earlier = left_over(site, "imported")?;
        ensure!(
            earlier.len() == 1,
            "what earlier ones left is still there: {earlier:?}"
        );
        for folder in [&draft, &target] {
            let folder = folder.to_str().context("a path in UTF-8")?;
            for command in ["inspect", "verify"] {
                let (status, said) = site.command("rowmill", &["table", command, folder])?;
                let refused = status.code() == Some(1) && said.contains("has no manifest.json");
                ensure!(
                    refused,
                    "rowmill table {command} {folder}: {status}: {said}"
                );
            }
        }
    }
    ensure!(killed > 0, "all were faster than the signal");
    let (status, said) = site.command("rowmill", &arguments)?;
    ensure!(status.success(), "the next import: {status}: {said}");
    let left = left_over(site, "imported")?;
    ensure!(left == ["imported"], "{left:?} are left");
    undamaged(site, &target)?;
    Ok(Verdict::Pass(format!(
        "{killed} killed; none opens, all cleared by the next"
    )))
}

/// Most memory that an import may hold: 16 blocks of 4 MiB, as many pieces, and what an index is built in.
const MEMORY_MIB: u64 = 192;

/// An import of much more than it may hold.
pub(super) fn memory(site: &Site) -> Result<Verdict> {
    let rows = 4 * LARGE_ROWS;
    let table = format!("t={}:{LARGE_DIM}:int4", large(site, rows)?.display());
    let target = site.path("imported");
    let path = target.to_str().context("a path in UTF-8")?;
    let mut import = start(site, &["table", "import", path, "--hugectr", &table])?;
    let status = PathBuf::from(format!("/proc/{}/status", import.0.id()));
    let (began, mut most_kib) = (Instant::now(), 0);
    let ended = loop {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        most_kib = most_kib.max(kib.unwrap_or(0u64));
        if let Some(ended) = import.end(Duration::from_millis(2)) {
            break ended;
        }
        if began.elapsed() > PATIENCE {
            bail!("the import does not end");
        }
    };
    ensure!(ended.success(), "the import ended with {ended}");
    ensure!(
        most_kib > 0 && most_kib / 1024 <= MEMORY_MIB,
        "it held {} MiB",
        most_kib / 1024
    );
    undamaged(site, &target)?;
    let source_mib = (rows * (LARGE_DIM * 4 + 8)) >> 20;
    Ok(Verdict::Pass(format!(
        "held {} MiB of {source_mib} MiB",
        most_kib / 1024
    )))
}
