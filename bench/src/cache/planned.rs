//! How the control plane's planner divides an arena: a dataplane without rows tells it of the first half of the tables' lookups, follows what
//! it says, and has the shares that it was told last.

use anyhow::{Context, Result, ensure};
use rowmill_admission::{Event, Limits, Planner, Sampling, TURN_NS, place};
use rowmill_link::{
    Applied, Placement, Policy, Report, Sample, Samples, TableReport, TableSamples,
};

use super::adaptive::Adaptive;
use super::reference::Cache;
use super::shares::{ROWS_LEAST, Table};

/// Seconds in which the first half is looked up: a minute of a dataplane with little to do.
const SECONDS: usize = 60;
/// Bodies of samples in a second, as a dataplane sends them.
const BODIES: usize = 20;
/// Bits of a place that a dataplane leaves out: it has as many as the numbers of rows, of which there are 2^20 at most.
const NO_BITS: u32 = 0xfff;
const INSTANCE: u128 = 1;
const NAME: &str = "a";

/// A table's cache.
struct Share<'t> {
    table: &'t Table,
    rows: u64,
    cache: Adaptive,
    threshold: u32,
    lookups: usize,
    hits: usize,
}

impl Share<'_> {
    /// Its next lookups, up to so many in all: what is sampled of them.
    fn look_up(&mut self, until: usize) -> TableSamples {
        let next = &self.table.lookups[self.lookups..until];
        let sampling = Sampling::below(self.threshold);
        let mut samples = Vec::new();
        for &row in next {
            self.hits += usize::from(self.cache.access(row));
            let place = place(INSTANCE as u64, row) & !NO_BITS;
            if sampling.takes(place) {
                samples.push(Sample { row, place });
            }
        }
        self.lookups = until;
        TableSamples {
            table: self.table.name.clone(),
            lookups: next.len() as u64,
            dropped: 0,
            threshold: self.threshold,
            samples,
        }
    }

    /// Another size; the cache is as if it had always had it.
    fn resize(&mut self, rows: u64) -> Result<()> {
        if rows == self.rows {
            return Ok(());
        }
        self.cache = Adaptive::of_single(rows as usize)?;
        let seen = self.table.lookups[..self.lookups].iter();
        seen.for_each(|&row| _ = self.cache.access(row));
        self.rows = rows;
        Ok(())
    }

    fn report(&self) -> TableReport {
        let missed = (self.lookups - self.hits) as u64;
        TableReport {
            table: self.table.name.clone(),
            rows: self.table.rows,
            slot_bytes: self.table.row_bytes,
            placement: Placement::Cached,
            cache_bytes: self.rows * self.table.row_bytes,
            cache_rows: self.rows,
            held_rows: self.rows.min(missed),
            resizing: false,
            lookups: self.lookups as u64,
            hits: self.hits as u64,
            fetched: missed,
            fetch_ns: 0,
            pinned: 0,
            pinned_held: 0,
        }
    }
}

/// Rows of each table once the planner has heard of the first half of its lookups, from these on.
///
/// # Errors
/// Where the planner refuses something, or a cache can't be made.
pub(super) fn planned(arena: u64, tables: &[Table], from: &[u64]) -> Result<Vec<u64>> {
    let mut planner = Planner::new("bench".into(), 1, Limits::default());
    let share = |(table, &rows)| {
        Ok(Share {
            table,
            rows,
            cache: Adaptive::of_single(rows as usize)?,
            threshold: 0,
            lookups: 0,
            hits: 0,
        })
    };
    let shares: Result<Vec<Share>> = tables.iter().zip(from).map(share).collect();
    let (mut shares, mut applied) = (shares?, None);
    let tell = |planner: &mut Planner, second: usize, event| {
        let told = planner.handle(second as u64 * TURN_NS, event);
        told.context("what the planner is told")
    };
    for second in 0..SECONDS {
        let report = report(arena, &shares, applied.clone());
        let dataplane = NAME.into();
        tell(&mut planner, second, Event::Report { dataplane, report })?;
        for body in 0..BODIES {
            let number = second * BODIES + body + 1;
            let until = |share: &Share| share.table.lookups.len() / 2 * number / (SECONDS * BODIES);
            let parts = shares.iter_mut().map(|share| {
                let until = until(share);
                share.look_up(until)
            });
            let samples = Samples {
                instance: INSTANCE,
                number: number as u64,
                tables: parts.collect(),
            };
            let dataplane = NAME.into();
            tell(&mut planner, second, Event::Samples { dataplane, samples })?;
        }
        tell(&mut planner, second, Event::Turn)?;
        if let Some(policy) = planner.policy(NAME) {
            applied = Some(follow(policy, &mut shares)?);
        }
        eprint!("\rcache: {arena} bytes, second {} of {SECONDS}", second + 1);
    }
    eprintln!();
    let used: u64 = (shares.iter())
        .map(|share| share.rows * share.table.row_bytes)
        .sum();
    ensure!(used <= arena, "{used} bytes were given of {arena}");
    Ok(shares.iter().map(|share| share.rows).collect())
}

fn report(arena: u64, shares: &[Share], applied: Option<Applied>) -> Report {
    Report {
        instance: format!("{INSTANCE:032x}"),
        version: "0".into(),
        model: "m".into(),
        generation: "1".into(),
        generations: vec![1],
        arena_bytes: arena,
        workers: 1,
        policy: applied,
        tables: shares.iter().map(Share::report).collect(),
        ..Report::default()
    }
}

fn follow(policy: &Policy, shares: &mut [Share]) -> Result<Applied> {
    for told in &policy.tables {
        let mut of = shares.iter_mut();
        let share = of.find(|share| share.table.name == told.table);
        let share = share.context("a table that there is")?;
        share.threshold = told.threshold;
        if let Some(bytes) = told.cache_bytes {
            share.resize((bytes / share.table.row_bytes).max(ROWS_LEAST))?;
        }
    }
    Ok(Applied {
        control: policy.control.clone(),
        order: policy.order,
        refused: Vec::new(),
    })
}
