//! All workers of a dataplane, made together: they share stores, and each has shards of its own in them.

use core::fmt;
use std::sync::Arc;

use rowmill_arena::{ArenaError, HugePages};

use crate::fetch::Limits;
use crate::figures::TableFigures;
use crate::home::Home;
use crate::owners::{Owners, Room};
use crate::sides::{SIDES, on_one_side};
use crate::store::{self, Epochs, Room as StoreRoom, Shape, Store, Tags, Writer};
use crate::table::{CachedTable, OnFailure};
use crate::tier::Tier;
use crate::worker::Worker;

/// How a table is cached, now or once it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableOptions {
    /// The rows that are kept, in at least as many shards as there are workers: shard `s` is written by worker `s` modulo their number.
    pub shape: Shape,
    /// The sets of a shard that its store may ever be [given](Store::resize): addresses for as many are taken, and no memory. As many as the
    /// shape has where it stays as it is.
    pub most_sets: u32,
    /// Rows that may be [patched](Store::patch) while it is cached, for which addresses are taken, too.
    pub most_patched: u32,
    /// The number by which all tiers know the table.
    pub in_tier: u32,
    /// What becomes of bags whose rows could not all be fetched.
    pub on_failure: OnFailure,
    /// Whether it is cached at once, or only when [`Worker::replace`] is given what [`Shares::table`] makes of it.
    pub begins_cached: bool,
}

/// What all workers have in common.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bounds of each worker.
    pub limits: Limits,
    /// Slots of a shard that are in limbo at once at most: about as many as rows of it are on their way.
    pub limbo: usize,
    /// How tags are compared.
    pub tags: Tags,
    /// The pages of the stores.
    pub huge_pages: HugePages,
    /// For no client to know. The same seed spreads rows in the same way.
    pub seed: u64,
}

/// What a worker has for itself.
pub struct Parts {
    /// What rows are fetched from.
    pub tier: Box<dyn Tier + Send>,
    /// Ends the worker's sleep, the current one or the next. Called by the others' threads when there is something for it, once for each
    /// [`Worker::rest`] at most.
    pub wake: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").finish_non_exhaustive()
    }
}

/// Makes what workers have of tables, while they serve too.
#[derive(Debug)]
pub struct Shares {
    options: Options,
    /// By their numbers on a side.
    tables: Box<[Option<TableOptions>]>,
    epochs: Arc<Epochs>,
    /// Of each worker what it counts of each table that may be cached.
    figures: Box<[Box<[Arc<TableFigures>]>]>,
}

impl Shares {
    /// What tells when no worker uses any more what it found.
    pub fn epochs(&self) -> &Arc<Epochs> {
        &self.epochs
    }

    /// An empty store for a table, and what each worker has of it. Where the table is cached already, this is for
    /// [`Worker::replace`].
    ///
    /// # Errors
    /// As [`rowmill_arena::Arena::allocate`].
    ///
    /// # Panics
    /// If the table is always resident, or has fewer shards than there are workers.
    pub fn table(&self, number: usize) -> Result<Vec<CachedTable>, ArenaError> {
        let options = self.options_of(number);
        self.table_of(number, options.shape.shard_sets())
    }

    /// The same with another number of sets a shard than its options say.
    ///
    /// # Errors
    /// As [`table`](Self::table).
    ///
    /// # Panics
    /// As [`table`](Self::table), and if there are fewer than two sets or more than the table's most.
    pub fn table_of(&self, number: usize, shard_sets: u32) -> Result<Vec<CachedTable>, ArenaError> {
        let TableOptions {
            shape,
            most_sets,
            most_patched,
            in_tier,
            on_failure,
            ..
        } = self.options_of(number);
        let (seed, count) = (self.seed(number), self.figures.len());
        let Options {
            limbo,
            tags,
            huge_pages,
            ..
        } = self.options;
        let (shape, epochs) = (shape.over(shard_sets), &self.epochs);
        let room = StoreRoom {
            sets: most_sets,
            patched: most_patched,
        };
        let made = Store::with_room(shape, room, seed, limbo, epochs, tags, huge_pages);
        let (store, writers) = made?;
        let mut writers_of: Vec<Vec<Writer>> = (0..count).map(|_| Vec::new()).collect();
        for (shard, writer) in writers.into_iter().enumerate() {
            writers_of[shard % count].push(writer);
        }
        let table = |(worker, writers): (usize, Vec<Writer>)| {
            let seed = seed.rotate_left(32).wrapping_add(worker as u64);
            let table = CachedTable::new(in_tier, Arc::clone(&store), writers, seed);
            let figures = Arc::clone(&self.figures[worker][number]);
            table.on_failure(on_failure).counted_in(figures)
        };
        Ok(writers_of.into_iter().enumerate().map(table).collect())
    }

    /// Those of a table are the same on each side.
    fn options_of(&self, number: usize) -> TableOptions {
        let table = on_one_side(number, self.tables.len());
        self.tables[table].expect("a listed table")
    }

    fn seed(&self, number: usize) -> u64 {
        self.options.seed.wrapping_add(number as u64)
    }

    /// What each worker knows at first of a table that may be cached.
    fn homes(&self, number: usize, options: &TableOptions) -> Result<Vec<Home>, ArenaError> {
        let TableOptions { shape, .. } = options;
        let (shards, count) = (shape.shards() as usize, self.figures.len());
        assert!(
            shards >= count,
            "{shards} shards of table {number} are too few for {count} workers"
        );
        assert!(
            shape.row_bytes() <= self.options.limits.row_bytes,
            "staging has room for any row"
        );
        let is_held = number < self.tables.len();
        if is_held && options.begins_cached {
            let tables = self.table(number)?.into_iter();
            return Ok(tables.map(Home::cached).collect());
        }
        let spread = shape.spread(self.seed(number));
        let homes = self.figures.iter().map(|figures| {
            let figures = Arc::clone(&figures[number]);
            Home::resident(options.in_tier, options.on_failure, spread, figures)
        });
        Ok(homes.collect())
    }
}

/// Makes the workers of a dataplane: one for each of `parts`, with what tells the stores' writers that the worker reads a row no
/// more. `tables` are those of a model by their numbers, `None` for those that are resident. Their generation is on the first [side](SIDES); the
/// other has the same tables with the same options, of which none is cached yet.
///
/// # Errors
/// As [`rowmill_arena::Arena::allocate`].
///
/// # Panics
/// If a table has longer rows than the limits say, or fewer shards than there are workers, or they can't ask one another for rows.
pub fn workers(
    options: &Options,
    tables: &[Option<TableOptions>],
    parts: Vec<Parts>,
) -> Result<Vec<(store::Worker, Worker)>, ArenaError> {
    let (workers, _) = workers_with_shares(options, tables, parts)?;
    Ok(workers)
}

/// The same, and what makes tables for them while they serve.
///
/// # Errors
/// As [`workers`].
///
/// # Panics
/// As [`workers`].
pub fn workers_with_shares(
    options: &Options,
    tables: &[Option<TableOptions>],
    parts: Vec<Parts>,
) -> Result<(Vec<(store::Worker, Worker)>, Shares), ArenaError> {
    let count = parts.len();
    let (epochs, turns) = Epochs::new(count);
    let shares = Shares {
        options: *options,
        tables: tables.into(),
        epochs,
        figures: (0..count)
            .map(|_| (0..SIDES * tables.len()).map(|_| Arc::default()).collect())
            .collect(),
    };
    let mut dealt: Vec<Vec<Option<Home>>> = (0..count).map(|_| Vec::new()).collect();
    let sides = (0..SIDES).flat_map(|_| tables);
    for (number, table) in sides.enumerate() {
        let Some(options) = table else {
            dealt.iter_mut().for_each(|own| own.push(None));
            continue;
        };
        for (own, home) in dealt.iter_mut().zip(shares.homes(number, options)?) {
            own.push(Some(home));
        }
    }
    let (tiers, wakes): (Vec<_>, Vec<_>) = parts.into_iter().map(|p| (p.tier, p.wake)).unzip();
    let limits = options.limits;
    let is_alone = count == 1 || tables.iter().all(Option::is_none);
    assert!(
        is_alone || limits.asked > 0,
        "workers have to ask one another for rows"
    );
    let listed: Vec<bool> = tables.iter().map(Option::is_some).collect();
    let owners = Owners::all(Room::of(&limits), wakes, &listed);
    let parts = dealt.into_iter().zip(tiers).zip(owners);
    let (made, on_a_side) = (turns.into_iter().zip(parts).zip(0..), tables.len());
    let made = made.map(|((turns, ((tables, tier), owners)), number)| {
        let seed = options.seed.wrapping_add(number);
        let tables = (tables.into(), on_a_side);
        let worker = Worker::new(tables, limits, tier, owners, seed);
        (turns, worker)
    });
    Ok((made.collect(), shares))
}
