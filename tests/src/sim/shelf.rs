//! Cached tables of the simulated world: a store that all workers share, and for each a tier that gives rows out late and in
//! any order.

use std::ops::RangeInclusive;
use std::sync::Arc;

use fastrand::Rng;
use rowmill_arena::HugePages;
use rowmill_cache::store::{self, Shape, Tags, WAYS};
use rowmill_cache::tier::{EachRow, FetchesFull, Tier, Wanted};
use rowmill_cache::{OnFailure, Options, Parts, TableOptions, Worker, fetch};
use rowmill_table::Resident;

/// Which tables are cached, and how little there is of everything.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    /// By the table's number: sets of each worker's shard; none where the table is resident.
    sets: Vec<Option<u32>>,
    limits: fetch::Limits,
    /// Rows that a tier fetches at a time.
    fetches: usize,
    delay_ns: RangeInclusive<u64>,
    limbo: usize,
}

impl Drawn {
    /// For requests of at most so many ids.
    pub(super) fn draw(rng: &mut Rng, tables: usize, max_ids: u32) -> Drawn {
        let none = rng.bool();
        let set = |_| (!none && rng.bool()).then(|| rng.u32(2..=8));
        Drawn {
            sets: (0..tables).map(set).collect(),
            limits: fetch::Limits {
                staged: max_ids + rng.u32(0..=100),
                prefetched: 0,
                asked: rng.u32(1..=40),
                bags: rng.u32(1..=60),
                row_bytes: 4 * 256,
                budget_ns: u64::MAX,
            },
            fetches: rng.usize(1..=40),
            delay_ns: 0..=rng.u64(0..=300_000),
            limbo: rng.usize(1..=20),
        }
    }

    /// What each worker knows of the tables.
    pub(super) fn workers(
        &self,
        rng: &mut Rng,
        tables: &Arc<Resident>,
        workers: usize,
    ) -> Vec<(store::Worker, Worker)> {
        let options = Options {
            limits: self.limits,
            limbo: self.limbo,
            tags: Tags::detect(),
            huge_pages: HugePages::Off,
            seed: rng.u64(..),
        };
        let cached = |(number, sets): (usize, &Option<u32>)| {
            let (shards, row_bytes) = (workers as u32, tables.tables()[number].stride());
            let shape =
                |sets| Shape::new(sets * WAYS as u32 * shards, shards, row_bytes, row_bytes);
            sets.map(|sets| TableOptions {
                shape: shape(sets).expect("at least two sets a shard"),
                in_tier: number as u32,
                on_failure: OnFailure::Error,
            })
        };
        let cached: Vec<Option<TableOptions>> = self.sets.iter().enumerate().map(cached).collect();
        let parts = |_| {
            let shelf = Shelf {
                tables: Arc::clone(tables),
                rng: rng.fork(),
                fetches: self.fetches,
                delay_ns: self.delay_ns.clone(),
                wanted: vec![],
            };
            Parts {
                tier: Box::new(shelf),
                // Workers of the simulation look themselves whether there is something for them.
                wake: Box::new(|| ()),
            }
        };
        let parts = (0..workers).map(parts).collect();
        rowmill_cache::workers(&options, &cached, parts).expect("little memory")
    }
}

/// Stands in for a tier: it has the rows of resident tables.
struct Shelf {
    tables: Arc<Resident>,
    rng: Rng,
    fetches: usize,
    delay_ns: RangeInclusive<u64>,
    /// When each comes.
    wanted: Vec<(u64, Wanted)>,
}

impl Tier for Shelf {
    fn fetch(&mut self, now_ns: u64, wanted: Wanted) -> Result<(), FetchesFull> {
        if self.wanted.len() == self.fetches {
            return Err(FetchesFull);
        }
        let due_ns = now_ns + self.rng.u64(self.delay_ns.clone());
        self.wanted.push((due_ns, wanted));
        Ok(())
    }

    fn poll(&mut self, now_ns: u64, each: EachRow<'_>) {
        self.rng.shuffle(&mut self.wanted);
        for (_, wanted) in self.wanted.extract_if(.., |(due_ns, _)| *due_ns <= now_ns) {
            let table = &self.tables.tables()[wanted.table as usize];
            let from = wanted.row as usize * table.stride();
            each(
                wanted.token,
                Ok(&table.bytes()[from..from + table.stride()]),
            );
        }
    }

    fn unanswered(&self) -> usize {
        self.wanted.len()
    }
}
