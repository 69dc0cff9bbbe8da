//! Another dataplane's memory in the simulated world, from which workers read rows of cached tables, before those that these have of
//! their own or after: connections to it that come and go with READs under way, READs that take their time, and some that never
//! complete.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use rowmill_cache::tier::{EachArrived, RemoteReads, RemoteTier, RemoteTierOptions};
use rowmill_table::Resident;

/// What workers read of it, all together.
#[derive(Debug, Default)]
pub(super) struct Figures {
    /// Rows that came.
    pub(super) rows: AtomicU64,
    /// READs that were under way as their connection ended.
    pub(super) broken_off: AtomicU64,
}

/// Which tables there are, and how well they can be reached.
#[derive(Clone, Debug)]
pub(super) struct Exporter {
    /// By the tables' numbers.
    tables: Vec<usize>,
    /// Whether it is asked before the workers' own tiers.
    pub(super) is_first: bool,
    /// READs that a connection has under way at most.
    reads: usize,
    tier: RemoteTierOptions,
    delay_ns: RangeInclusive<u64>,
    /// Of 10,000 READs, how many never complete while their connection stands.
    lost: u32,
    up_ns: RangeInclusive<u64>,
    down_ns: RangeInclusive<u64>,
    figures: Arc<Figures>,
    /// READs are handed out before their bytes have come.
    is_hasty: bool,
}

impl Exporter {
    /// One that has some of these tables, if any.
    pub(super) fn draw(
        rng: &mut Rng,
        tables: impl Iterator<Item = usize>,
        is_hasty: bool,
    ) -> Option<Exporter> {
        let is_there = rng.bool() || is_hasty;
        let tables: Vec<usize> = tables.filter(|_| rng.u8(0..4) > 0 || is_hasty).collect();
        let drawn = Exporter {
            tables,
            is_first: rng.u8(0..3) > 0 || is_hasty,
            reads: rng.usize(1..=20),
            tier: RemoteTierOptions {
                fetches: rng.u32(1..=40),
                budget_ns: rng.u64(50_000..=1_000_000),
            },
            delay_ns: 0..=rng.u64(0..=300_000),
            lost: rng.u32(0..=100),
            up_ns: 0..=rng.u64(50_000..=3_000_000),
            down_ns: 0..=rng.u64(0..=1_000_000),
            figures: Arc::default(),
            is_hasty,
        };
        (is_there && !drawn.tables.is_empty()).then_some(drawn)
    }

    /// What workers read of it.
    pub(super) fn figures(&self) -> &Arc<Figures> {
        &self.figures
    }

    /// A worker's tier, and its number of each of so many tables. `rows` are the exporter's.
    pub(super) fn tier(
        &self,
        rows: &Arc<Resident>,
        tables: usize,
        rng: Rng,
    ) -> (RemoteTier<impl RemoteReads + use<>>, Vec<Option<u32>>) {
        let strides = self
            .tables
            .iter()
            .map(|&table| rows.tables()[table].stride());
        let strides: Vec<usize> = strides.collect();
        let longest = strides.iter().copied().max().unwrap_or(0);
        let free = Slot {
            bytes: vec![0; longest],
            read: None,
        };
        let reads = Reads {
            rows: Arc::clone(rows),
            exporter: self.clone(),
            rng,
            slots: vec![free; self.reads],
            is_up: false,
            changes_ns: 0,
            now_ns: 0,
        };
        let own = |table| self.tables.iter().position(|&t| t == table);
        let numbers = (0..tables).map(|table| own(table).map(|at| at as u32));
        (
            RemoteTier::new(reads, &strides, self.tier),
            numbers.collect(),
        )
    }
}

/// A READ under way.
#[derive(Clone, Copy)]
struct Read {
    token: u64,
    table: u32,
    row: u32,
    lands_ns: u64,
}

/// Where a READ's bytes come to, which is its own until it completes or its connection ends.
#[derive(Clone)]
struct Slot {
    bytes: Vec<u8>,
    read: Option<Read>,
}

/// Stands in for a worker's connection to an exporter.
struct Reads {
    rows: Arc<Resident>,
    exporter: Exporter,
    rng: Rng,
    slots: Vec<Slot>,
    is_up: bool,
    /// When it ends, or comes back.
    changes_ns: u64,
    /// As it was asked for room last.
    now_ns: u64,
}

impl RemoteReads for Reads {
    fn room(&mut self, now_ns: u64) -> Option<usize> {
        self.now_ns = now_ns;
        if self.changes_ns <= now_ns {
            let broken_off = self.slots.iter_mut().filter_map(|slot| slot.read.take());
            let broken_off = broken_off.count() as u64;
            let figures = &self.exporter.figures;
            figures.broken_off.fetch_add(broken_off, Ordering::Relaxed);
            self.is_up = !self.is_up;
            let lasts_ns = match self.is_up {
                true => &self.exporter.up_ns,
                false => &self.exporter.down_ns,
            };
            self.changes_ns = now_ns + self.rng.u64(lasts_ns.clone());
        }
        let room = self.slots.iter().filter(|slot| slot.read.is_none()).count();
        self.is_up.then_some(room)
    }

    fn has(&self, table: u32) -> bool {
        (table as usize) < self.exporter.tables.len()
    }

    fn read(&mut self, table: u32, row: u32, token: u64) {
        let is_lost = self.rng.u32(0..10_000) < self.exporter.lost;
        let lands_ns = match is_lost {
            true => u64::MAX,
            false => self.now_ns + self.rng.u64(self.exporter.delay_ns.clone()),
        };
        let slot = self.slots.iter_mut().find(|slot| slot.read.is_none());
        slot.expect("room was asked for").read = Some(Read {
            token,
            table,
            row,
            lands_ns,
        });
    }

    fn poll(&mut self, each: EachArrived<'_>) {
        self.rng.shuffle(&mut self.slots);
        for slot in &mut self.slots {
            let is_over = |read: &mut Read| read.lands_ns <= self.now_ns || self.exporter.is_hasty;
            let Some(read) = slot.read.take_if(is_over) else {
                continue;
            };
            if read.lands_ns <= self.now_ns {
                let table = &self.rows.tables()[self.exporter.tables[read.table as usize]];
                let from = read.row as usize * table.stride();
                slot.bytes[..table.stride()]
                    .copy_from_slice(&table.bytes()[from..from + table.stride()]);
            }
            self.exporter.figures.rows.fetch_add(1, Ordering::Relaxed);
            each(read.token, &slot.bytes);
        }
    }
}
