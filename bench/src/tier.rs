//! The file tier beside fio: random rows of a file that the page cache may not hold, at the same size and depth.
//!
//! While nothing has come fio sleeps, and so does the tier's driver where `wait=sleep`; with `wait=spin` it polls all the
//! time, as a worker that is busy does. Which of them gets more depends on whether the disk's work is done by the same cores, as
//! in virtual machines.

use std::hint::black_box;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rowmill_arena::{ArenaError, HugePages, PageCache};
use rowmill_cache::tier::{
    FileTable, FileTier, FileTierOptions, MIN_READ_BYTES, Tier, TierError, Wanted,
};
use rowmill_table::Generation;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::control_group::Limited;
use crate::driver::{histogram, median, quantile_us, record};
use crate::model::Model;
use crate::report::{Measurement, Reporter};

/// Bytes of a table's file, and what the page cache may take of them.
const FILE_BYTES: u64 = 2 << 30;
const MEMORY_BYTES: u64 = FILE_BYTES / 2;
/// Rounds, of both sides in turn, and the time of a side in each.
const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(500);
/// The longest sleep: a read that the kernel puts off is asked for again by the next poll.
const NAP: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};
/// Reads in flight.
const DEPTHS: [u32; 3] = [1, 8, 32];
/// Dimensions of the rows, of f32: rows of 256 bytes, for each of which a page is read, and of 8192, which are two.
const HEADLINE_DIMS: [usize; 1] = [64];
const ALL_DIMS: [usize; 2] = [64, 2048];
const PAGE_BYTES: usize = rowmill_table::PAGE_BYTES;

/// What the driver does while nothing has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    Sleep,
    Spin,
}

/// Reads a second, and the 99th percentile of their times.
#[derive(Clone, Copy)]
struct Found {
    rate: f64,
    p99_us: f64,
}

/// Runs the cases.
///
/// # Errors
/// Where the table can't be made or read, or fio fails.
pub(crate) fn run(full: bool, reporter: &mut Reporter) -> Result<()> {
    let dims = if full { &ALL_DIMS[..] } else { &HEADLINE_DIMS };
    for &dim in dims {
        let pairs = [Wait::Sleep, Wait::Spin]
            .into_iter()
            .flat_map(|wait| DEPTHS.map(|depth| (depth, wait)));
        let cases = pairs.map(|(depth, wait)| Case::new(dim, depth, wait));
        let wanted: Vec<Case> = cases.filter(|case| reporter.wants(&case.name)).collect();
        if !wanted.is_empty() {
            measure(dim, &wanted, reporter)?;
        }
    }
    Ok(())
}

/// What is measured at a time.
struct Case {
    name: String,
    depth: u32,
    wait: Wait,
}

impl Case {
    fn new(dim: usize, depth: u32, wait: Wait) -> Case {
        let how = match wait {
            Wait::Sleep => "sleep",
            Wait::Spin => "spin",
        };
        Case {
            name: format!("tier=file/format=f32/dim={dim}/dist=uniform/depth={depth}/wait={how}"),
            depth,
            wait,
        }
    }
}

/// Measures rows of so many dimensions.
fn measure(dim: usize, cases: &[Case], reporter: &mut Reporter) -> Result<()> {
    let row_bytes = dim * size_of::<f32>();
    let model = Model::of_rows(FILE_BYTES / row_bytes as u64, dim)?;
    let generation = Generation::open(&model.directory)?;
    let name = generation.tables()[0].name.clone();
    let table = FileTable::open(&generation, &name, PageCache::Refuse)?;
    let unpolled = table.file().why_unpolled();
    let polling = unpolled.map_or("polled".into(), |why| format!("not polled: {why}"));
    // With room for the whole file in the page cache fio would be told of something else.
    let _limited = match Limited::enter(MEMORY_BYTES) {
        Ok(limited) => limited,
        Err(error) => {
            eprintln!("cache: rows of a file are not measured: {error:#}");
            return Ok(());
        }
    };
    let memory = format!("at most {} MiB of memory", MEMORY_BYTES >> 20);
    eprintln!(
        "cache: {} MiB of rows in a file, {memory}, {polling}",
        FILE_BYTES >> 20
    );
    let path = generation.path(table.info());
    // fio's reads are as large as what a row lies in, and start at any page.
    let block_bytes = row_bytes.next_multiple_of(PAGE_BYTES);
    for case in cases {
        let mut tier = match tier_of(&table, case.depth) {
            Err(error @ ArenaError::NoIoUring { .. }) => {
                eprintln!("cache: {error}");
                return Ok(());
            }
            tier => tier?,
        };
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            ours.push(fetch_rows(&mut tier, &table, case, round as u64)?);
            if let Some(found) = fio(&path, block_bytes, case.depth)? {
                theirs.push(found);
            }
        }
        report(&case.name, &ours, &theirs, reporter);
    }
    Ok(())
}

fn report(case: &str, ours: &[Found], theirs: &[Found], reporter: &mut Reporter) {
    let rates = |all: &[Found]| all.iter().map(|found| found.rate).collect::<Vec<_>>();
    let p99s = |all: &[Found]| all.iter().map(|found| found.p99_us).collect::<Vec<_>>();
    let rate = Measurement::plain("cache", case, "rate", median(rates(ours)), "reads/s");
    let p99 = Measurement::plain("cache", case, "latency_p99", median(p99s(ours)), "us");
    if theirs.is_empty() {
        eprintln!("cache: fio is not installed (apt-get install fio): nothing to compare with");
        reporter.add(rate);
        reporter.add(p99);
        return;
    }
    let pairs = || ours.iter().zip(theirs);
    let faster = median(pairs().map(|(our, their)| our.rate / their.rate).collect());
    let sooner = median(
        pairs()
            .map(|(our, their)| their.p99_us / our.p99_us)
            .collect(),
    );
    reporter.add(rate.beside("fio", median(rates(theirs)), faster));
    reporter.add(p99.beside("fio", median(p99s(theirs)), sooner));
}

fn tier_of(table: &FileTable, depth: u32) -> Result<FileTier, ArenaError> {
    let mut tier = FileTier::new(FileTierOptions {
        reads: depth,
        read_bytes: MIN_READ_BYTES,
        fetches: depth,
        tables: 1,
        budget_ns: u64::MAX,
        polled: table.file().why_unpolled().is_none(),
        huge_pages: HugePages::Prefer,
    })?;
    tier.add(table.for_another()?)?;
    Ok(tier)
}

/// Fetches random rows for a round.
fn fetch_rows(tier: &mut FileTier, table: &FileTable, case: &Case, seed: u64) -> Result<Found> {
    let rows = table.info().rows as u32;
    let mut draws = SmallRng::seed_from_u64(seed);
    let mut begun_ns = vec![0u64; case.depth as usize];
    let mut free: Vec<u64> = (0..case.depth.into()).collect();
    let mut times = histogram();
    let mut failed: Option<TierError> = None;
    let mut done = 0u64;
    let began = Instant::now();
    let mut now_ns = 0;
    while now_ns < ROUND.as_nanos() as u64 || tier.unanswered() > 0 {
        while now_ns < ROUND.as_nanos() as u64
            && let Some(token) = free.pop()
        {
            begun_ns[token as usize] = now_ns;
            let wanted = Wanted {
                table: 0,
                row: draws.random_range(0..rows),
                token,
                deadline_ns: u64::MAX,
            };
            tier.fetch(now_ns, wanted).context("a slot for each row")?;
        }
        let before = done;
        tier.poll(now_ns, &mut |token, row| {
            match row {
                Ok(row) => _ = black_box(row),
                Err(error) => failed = Some(error),
            }
            let time_ns = began.elapsed().as_nanos() as u64 - begun_ns[token as usize];
            record(&mut times, Duration::from_nanos(time_ns));
            done += 1;
            free.push(token);
        });
        if done == before && case.wait == Wait::Sleep {
            let mut fds = [PollFd::new(tier.device(), PollFlags::IN)];
            poll(&mut fds, Some(&NAP)).context("waiting for rows")?;
        }
        now_ns = began.elapsed().as_nanos() as u64;
    }
    if let Some(error) = failed {
        return Err(error).context(table.file().path().display().to_string());
    }
    Ok(Found {
        rate: done as f64 / (now_ns as f64 / 1e9),
        p99_us: quantile_us(&times, 0.99),
    })
}

/// The same by fio's engine for io_uring; `None` where there is no fio.
fn fio(path: &Path, block_bytes: usize, depth: u32) -> Result<Option<Found>> {
    let mut command = Command::new("fio");
    command
        .args([
            "--name=rows",
            "--rw=randread",
            "--ioengine=io_uring",
            "--direct=1",
            "--readonly",
        ])
        .args([
            "--norandommap",
            "--randrepeat=0",
            "--fixedbufs",
            "--registerfiles",
        ])
        .args([
            "--time_based",
            "--output-format=json",
            "--lat_percentiles=1",
        ])
        .arg(format!("--filename={}", path.display()))
        .arg(format!("--bs={block_bytes}"))
        .arg(format!("--blockalign={PAGE_BYTES}"))
        .arg(format!("--iodepth={depth}"))
        .arg(format!("--runtime={}ms", ROUND.as_millis()));
    let output = match command.stderr(Stdio::inherit()).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        output => output.context("running fio")?,
    };
    ensure!(output.status.success(), "fio ended with {}", output.status);
    let found: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("what fio printed")?;
    let read = &found["jobs"][0]["read"];
    let number = |value: &serde_json::Value| value.as_f64().context("a figure of fio");
    Ok(Some(Found {
        rate: number(&read["iops"])?,
        p99_us: number(&read["lat_ns"]["percentile"]["99.000000"])? / 1000.0,
    }))
}
