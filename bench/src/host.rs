//! Suite `host`: what the machine does to any program, before rowmill comes into it.
//!
//! A worker that loses its CPU for 100 us makes every request it holds 100 us slower, and no code can
//! help it. So tails are to be read beside the gaps that a thread sees that does nothing but read the
//! clock, and rates of lookups beside the latency of memory.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use rowmill_arena::{Arena, HugePages, available_bytes};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::driver::{histogram, median, pin_to_first_cpu, quantile_us, record};
use crate::report::{Measurement, Reporter};

/// How long the clock is watched.
const WATCHED: Duration = Duration::from_secs(5);
/// Two readings of the clock further apart than this are a gap: they take some 30 ns.
const GAP: Duration = Duration::from_micros(5);
/// Memory that is walked through, far more than caches hold and page tables cover.
const CHASE_BYTES: u64 = 1 << 30;
/// Bytes of a cache line.
const LINE_BYTES: usize = 64;
/// Loads in a round of the walk, each of which needs the one before.
const CHASE_LOADS: usize = 500_000;
/// Rounds of the walk.
const CHASE_ROUNDS: usize = 5;

/// Runs the suite.
///
/// # Errors
/// Where there is no memory, or no CPU to run on.
pub(crate) fn run(reporter: &mut Reporter) -> Result<()> {
    let case = "load=spin";
    if reporter.wants(case) {
        eprintln!("host: {case}, {} s on every CPU", WATCHED.as_secs());
        report_gaps(case, &gaps_of_all_cpus()?, reporter);
    }
    let case = "load=chase";
    if reporter.wants(case) {
        eprintln!("host: {case}");
        let nanoseconds = random_latency()?;
        reporter.add(Measurement::plain(
            "host",
            case,
            "latency",
            nanoseconds,
            "ns",
        ));
    }
    Ok(())
}

/// The gaps that a spinning thread on each CPU sees, all at the same time.
fn gaps_of_all_cpus() -> Result<Vec<Histogram<u64>>> {
    let allowed = sched_getaffinity(None).context("the CPUs this process may use")?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .collect();
    let together = Barrier::new(cpus.len());
    thread::scope(|scope| {
        let threads: Vec<_> = cpus
            .iter()
            .map(|&cpu| {
                let together = &together;
                scope.spawn(move || {
                    let mut one = CpuSet::new();
                    one.set(cpu);
                    let pinned = sched_setaffinity(None, &one);
                    together.wait();
                    pinned.context("pinning to a CPU").map(|()| gaps())
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a thread that reads the clock"))
            .collect()
    })
}

/// The gaps that this thread sees.
fn gaps() -> Histogram<u64> {
    let mut gaps = histogram();
    let end = Instant::now() + WATCHED;
    let mut before = Instant::now();
    while before < end {
        let now = Instant::now();
        if now - before > GAP {
            record(&mut gaps, now - before);
        }
        before = now;
    }
    gaps
}

/// Adds what was seen, of all CPUs together.
fn report_gaps(case: &str, of_cpus: &[Histogram<u64>], reporter: &mut Reporter) {
    let mut all = histogram();
    for gaps in of_cpus {
        all.add(gaps).expect("histograms of the same bounds");
    }
    let watched = WATCHED.as_secs_f64() * of_cpus.len() as f64;
    let longer_than = |us: u64| all.count_between(us * 1000, all.high()) as f64 / watched;
    let lost = all.mean() * all.len() as f64 / 1e9 / watched;
    for (metric, value, unit) in [
        ("gaps_over_20us", longer_than(20), "gaps/s/cpu"),
        ("gaps_over_50us", longer_than(50), "gaps/s/cpu"),
        ("gaps_over_500us", longer_than(500), "gaps/s/cpu"),
        ("longest_gap", quantile_us(&all, 1.0), "us"),
        ("time_lost", 100.0 * lost, "%"),
    ] {
        reporter.add(Measurement::plain("host", case, metric, value, unit));
    }
}

/// Nanoseconds from one load of a random cache line to the next, each waiting for the one before.
fn random_latency() -> Result<f64> {
    pin_to_first_cpu()?;
    let (available, _) = available_bytes();
    let bytes = CHASE_BYTES.min(available / 4);
    let lines = (bytes as usize / LINE_BYTES).next_power_of_two() / 2;
    let arena = Arena::allocate(lines * LINE_BYTES, HugePages::Prefer).context("memory to walk")?;
    let memory = arena.freeze().context("freezing the memory")?;
    let mut at = 1usize;
    let rounds = (0..CHASE_ROUNDS)
        .map(|_| {
            let began = Instant::now();
            for _ in 0..CHASE_LOADS {
                // Knuth's MMIX generator, whose high bits are the good ones. The byte is zero, which the
                // processor doesn't know before it has it.
                at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(
                    1_442_695_040_888_963_407
                        + usize::from(black_box(memory[(at >> 20) % lines * LINE_BYTES])),
                );
            }
            black_box(at);
            began.elapsed().as_secs_f64() * 1e9 / CHASE_LOADS as f64
        })
        .collect();
    Ok(median(rounds))
}
