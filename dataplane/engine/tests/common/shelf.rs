//! An engine with cached tables, and what stands in for their tier.

use std::sync::Arc;

use rowmill_arena::HugePages;
use rowmill_cache::store::{Shape, Tags};
use rowmill_cache::tier::{EachRow, FetchesFull, Tier, TierError, Wanted};
use rowmill_cache::{OnFailure, Options, Parts, Shares, TableOptions, fetch};
use rowmill_engine::{Conn, Engine, Limits};
use rowmill_pooling::{Isa, Kernels};
use rowmill_table::Resident;

use super::{Model, attach};

pub(crate) const FETCH: fetch::Limits = fetch::Limits {
    staged: 64,
    longest: 64,
    prefetched: 4,
    asked: 4,
    bags: 16,
    row_bytes: 512,
    budget_ns: u64::MAX,
};

/// Rows of each table that are in memory: tables have up to a hundred times as many.
pub(crate) const SLOTS: u32 = 32;

/// Stands in for a tier: has the rows of resident tables, and gives them out late and in another order.
#[derive(Debug)]
struct Shelf {
    tables: Arc<Resident>,
    wanted: Vec<Wanted>,
    /// Most that are fetched at a time, but for those that hang.
    most: usize,
    state: u64,
    /// What becomes of a row.
    fate: fn(Wanted) -> Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Comes,
    Fails(TierError),
    /// Late, and it keeps others waiting until then.
    Never,
    /// Late, and others have room beside it.
    Hangs,
}

impl Shelf {
    fn next(&mut self) -> usize {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005) + 1;
        (self.state >> 33) as usize
    }
}

impl Tier for Shelf {
    fn fetch(&mut self, _: u64, wanted: Wanted) -> Result<(), FetchesFull> {
        let is_held = |wanted: &&Wanted| (self.fate)(**wanted) == Fate::Hangs;
        if self.wanted.iter().filter(|wanted| !is_held(wanted)).count() == self.most {
            return Err(FetchesFull::ForAll);
        }
        self.wanted.push(wanted);
        Ok(())
    }

    fn poll(&mut self, now_ns: u64, each: EachRow<'_>) {
        let late = self
            .wanted
            .extract_if(.., |wanted| wanted.deadline_ns <= now_ns);
        late.for_each(|wanted| each(wanted.token, Err(TierError::Late)));
        for _ in 0..self.next() % 4 {
            if self.wanted.is_empty() {
                return;
            }
            let at = self.next() % self.wanted.len();
            let wanted = self.wanted[at];
            let table = &self.tables.tables()[wanted.table as usize];
            let from = wanted.row as usize * table.stride();
            let outcome = match (self.fate)(wanted) {
                Fate::Comes => Ok(&table.bytes()[from..from + table.stride()]),
                Fate::Fails(error) => Err(error),
                Fate::Never | Fate::Hangs => continue,
            };
            self.wanted.swap_remove(at);
            each(wanted.token, outcome);
        }
    }

    fn unanswered(&self) -> usize {
        self.wanted.len()
    }
}

/// An engine with every `step`-th table cached, whose bags fail where a row does.
pub(crate) fn engine_with(
    model: &Model,
    limits: Limits,
    fetch: fetch::Limits,
    step: usize,
    fate: fn(Wanted) -> Fate,
) -> Engine {
    engine_that(model, limits, fetch, step, fate, OnFailure::Error)
}

/// The same with an answer to rows that fail.
pub(crate) fn engine_that(
    model: &Model,
    limits: Limits,
    fetch: fetch::Limits,
    step: usize,
    fate: fn(Wanted) -> Fate,
    on_failure: OnFailure,
) -> Engine {
    let mut engines = engines_with(model, limits, fetch, step, fate, on_failure, 1);
    engines.remove(0)
}

/// The engines of so many workers, with every `step`-th table cached.
pub(crate) fn engines_with(
    model: &Model,
    limits: Limits,
    fetch: fetch::Limits,
    step: usize,
    fate: fn(Wanted) -> Fate,
    on_failure: OnFailure,
    workers: usize,
) -> Vec<Engine> {
    let room = (workers, SLOTS);
    engines_and_shares(model, limits, fetch, step, fate, on_failure, room).0
}

/// The same, and what makes their tables anew. How many workers there are, and how many slots each of them has for rows of each cached table.
pub(crate) fn engines_and_shares(
    model: &Model,
    limits: Limits,
    fetch: fetch::Limits,
    step: usize,
    fate: fn(Wanted) -> Fate,
    on_failure: OnFailure,
    (workers, slots): (usize, u32),
) -> (Vec<Engine>, Shares) {
    let shards = workers as u32;
    let cached = |table: usize| {
        let stride = model.tables.tables()[table].stride();
        let shape = Shape::new(slots * shards, shards, stride, stride).expect("a good shape");
        let in_tier = table as u32;
        let is_cached = table.is_multiple_of(step);
        is_cached.then_some(TableOptions {
            begins_cached: true,
            shape,
            most_sets: shape.shard_sets(),
            most_patched: 0,
            in_tier,
            on_failure,
        })
    };
    let tables = 0..model.tables.tables().len();
    let cached: Vec<Option<TableOptions>> = tables.map(cached).collect();
    let options = Options {
        limits: fetch,
        limbo: 8,
        tags: Tags::detect(),
        huge_pages: HugePages::Off,
        seed: 3,
    };
    let parts = |_| Parts {
        tier: Box::new(Shelf {
            tables: Arc::clone(&model.tables),
            wanted: Vec::with_capacity(5),
            most: 5,
            state: 1,
            fate,
        }),
        wake: Box::new(|| ()),
    };
    let parts = (0..workers).map(parts).collect();
    let made = rowmill_cache::workers_with_shares(&options, &cached, parts);
    let (made, shares) = made.expect("memory");
    let engine = |(turns, cache)| {
        let kernels = Kernels::new(Isa::detect().isa);
        let mut engine = Engine::with_cache(limits, kernels, turns, cache);
        attach(&mut engine, model, Conn(0));
        engine
    };
    (made.into_iter().map(engine).collect(), shares)
}
