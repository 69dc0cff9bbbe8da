//! What the control plane takes: dataplanes and tables as many as it is to have on one core, all of them telling as much as they are asked for.
//!
//! Bodies are made beforehand; what is measured is reading them, learning from them and deciding, in the CPU time of the thread that does it, as
//! `rowmill-control`'s planning thread would. HTTP is not in it.

use anyhow::{Context, Result};
use rowmill_admission::{Event, Limits, Planner, TURN_NS, place};
use rowmill_link::{
    Applied, Placement, Policy, Report, Sample, Samples, TableReport, TableSamples,
};
use rustix::time::{ClockId, clock_gettime};

use crate::report::{Measurement, Reporter};

const DATAPLANES: u32 = 100;
const TABLES_EACH: u32 = 10;
/// Seconds that pass before it is measured, in which rates of samples are found, and those that are measured.
const BEFORE: u64 = 4;
const MEASURED: u64 = 8;
/// Bodies of a dataplane in a second.
const BODIES: u64 = 10;
/// Lookups of each table in a second, its rows, those that are looked up, and bytes of a row.
const LOOKUPS: u64 = 200_000;
const ROWS: u64 = 10_000_000;
const SLOT_BYTES: u64 = 520;
const ARENA_BYTES: u64 = 4 << 30;

/// A dataplane that only talks.
struct Talker {
    name: String,
    model: String,
    instance: u128,
    policy: Option<Policy>,
    shares: Vec<u64>,
    random: fastrand::Rng,
    number: u64,
    lookups: u64,
}

/// Runs the case.
///
/// # Errors
/// Where the process's memory can't be read, or something is refused.
pub(crate) fn run(reporter: &mut Reporter) -> Result<()> {
    let case = format!(
        "dataplanes={DATAPLANES}/tables={}",
        DATAPLANES * TABLES_EACH
    );
    if !reporter.wants(&case) {
        return Ok(());
    }
    let before = resident_bytes()?;
    let mut planner = Planner::new("bench".into(), 1, Limits::default());
    let mut talkers: Vec<Talker> = (0..DATAPLANES).map(Talker::new).collect();
    let (mut cpu_s, mut samples, mut turns) = (0.0, 0, Vec::new());
    for second in 0..BEFORE + MEASURED {
        let mut bodies: Vec<(usize, Vec<u8>)> = Vec::new();
        for _ in 0..BODIES {
            let some = talkers.iter_mut().enumerate();
            bodies.extend(some.map(|(at, talker)| (at, talker.body(second > 0))));
        }
        let reports: Vec<Report> = talkers.iter().map(Talker::report).collect();
        let sent: usize = bodies.iter().map(|(_, body)| body.len() / 8).sum();
        let began = cpu();
        let now_ns = second * TURN_NS;
        for (at, body) in bodies {
            let samples = Samples::decode(&body)?;
            let dataplane = talkers[at].name.clone();
            // Before the first report nobody is listened to.
            if second > 0 {
                planner.handle(now_ns, Event::Samples { dataplane, samples })?;
            }
        }
        for (talker, report) in talkers.iter().zip(reports) {
            let dataplane = talker.name.clone();
            planner.handle(now_ns, Event::Report { dataplane, report })?;
        }
        let turned = cpu();
        planner.handle(now_ns, Event::Turn)?;
        if second >= BEFORE {
            cpu_s += cpu() - began;
            turns.push(1e3 * (cpu() - turned));
            samples += sent;
        }
        for talker in &mut talkers {
            talker.follow(planner.policy(&talker.name).map(|policy| &**policy));
        }
    }
    let tables = planner
        .tables(0)
        .iter()
        .filter(|table| !table.curve.is_empty())
        .count();
    eprintln!("control: hits by size are known of {tables} tables");
    let of_core = cpu_s / MEASURED as f64;
    let figure = |metric, value, unit| Measurement::plain("control", &case, metric, value, unit);
    let found = [
        figure("cpu", of_core, "CPU s/s").beside("one core", 1.0, 1.0 / of_core),
        figure("samples", samples as f64 / cpu_s, "samples/CPU s"),
        figure("offered", samples as f64 / MEASURED as f64, "samples/s"),
        figure("turn", turns.iter().copied().fold(0.0, f64::max), "CPU ms"),
        figure(
            "memory",
            resident_bytes()?.saturating_sub(before) as f64,
            "bytes",
        ),
    ];
    found.into_iter().for_each(|found| reporter.add(found));
    Ok(())
}

/// CPU time of this thread in seconds.
fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn resident_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").context("/proc/self/statm")?;
    let pages = text
        .split(' ')
        .nth(1)
        .context("a second number in /proc/self/statm")?;
    Ok(pages.parse::<u64>()? * rustix::param::page_size() as u64)
}

impl Talker {
    fn new(at: u32) -> Talker {
        Talker {
            name: format!("dataplane-{at}"),
            model: format!("model-{at}"),
            instance: u128::from(at) + 1,
            policy: None,
            shares: vec![ARENA_BYTES / u64::from(TABLES_EACH); TABLES_EACH as usize],
            random: fastrand::Rng::with_seed(u64::from(at)),
            number: 0,
            lookups: 0,
        }
    }

    /// Lookups of a tenth of a second, those that the policy wants sampled: rows by Zipf's law, with exponents that differ from table to table.
    fn body(&mut self, counts: bool) -> Vec<u8> {
        let lookups = LOOKUPS / BODIES;
        self.lookups += if counts { lookups } else { 0 };
        self.number += 1;
        let tables = (0..TABLES_EACH as usize).map(|table| {
            let of = self.policy.as_ref().map(|policy| &policy.tables[table]);
            let threshold = of.map_or(0, |of| of.threshold);
            let count = (lookups * u64::from(threshold)) >> 32;
            // Which rows a threshold takes is the dataplane's affair: as many of those that are looked up as there are.
            let rows = (ROWS * u64::from(threshold)) >> 32;
            let bend = 1.0 + table as f64 / 2.0;
            let sample = |_| {
                let row = (rows as f64 * self.random.f64().powf(bend)) as u32;
                let place = place(table as u64, row);
                Sample {
                    row,
                    place: ((u64::from(place) * u64::from(threshold)) >> 32) as u32,
                }
            };
            TableSamples {
                table: format!("table-{table}"),
                lookups,
                dropped: 0,
                threshold,
                samples: (0..count).map(sample).collect(),
            }
        });
        let tables = tables.collect();
        Samples {
            instance: self.instance,
            number: self.number,
            tables,
        }
        .encode()
    }

    fn report(&self) -> Report {
        let applied = |policy: &Policy| Applied {
            control: policy.control.clone(),
            order: policy.order,
            refused: Vec::new(),
        };
        let table = |(at, &cache_bytes): (usize, &u64)| TableReport {
            table: format!("table-{at}"),
            rows: ROWS,
            slot_bytes: SLOT_BYTES,
            placement: Placement::Cached,
            cache_bytes,
            cache_rows: cache_bytes / SLOT_BYTES,
            held_rows: cache_bytes / SLOT_BYTES,
            resizing: false,
            lookups: self.lookups,
            hits: self.lookups / 2,
            fetched: self.lookups / 2,
            fetch_ns: 0,
            pinned: 0,
            pinned_held: 0,
        };
        Report {
            instance: format!("{:032x}", self.instance),
            version: "bench".into(),
            model: self.model.clone(),
            generation: "1".into(),
            generations: Vec::new(),
            arena_bytes: ARENA_BYTES,
            workers: 8,
            policy: self.policy.as_ref().map(applied),
            tables: self.shares.iter().enumerate().map(table).collect(),
            ..Report::default()
        }
    }

    fn follow(&mut self, policy: Option<&Policy>) {
        self.policy = policy.cloned();
        let tables = policy.into_iter().flat_map(|policy| &policy.tables);
        for (share, table) in self.shares.iter_mut().zip(tables) {
            *share = table.cache_bytes.unwrap_or(*share);
        }
    }
}
