//! One worker's way to the rows of cached tables.

mod lookups;
mod poll;

use core::fmt;
use std::sync::Arc;

use poll::{BEGUN, cached};
use rowmill_arena::ReadWindow;

use crate::ahead::Ahead;
use crate::fetch::{self, BagId, Fetches, Kept, Limits, Ready, Room};
use crate::figures::{Count, TableFigures};
use crate::home::Home;
use crate::later::Later;
use crate::owners::{self, Hint, Owners};
use crate::pins::Rules;
use crate::samples::Samples;
use crate::sides::{Tiers, on_one_side};
use crate::store::{Drawn, MISS, Resize, Store, Turn};
use crate::table::{CachedTable, OnFailure, Taken};
use crate::tier::{EachRow, FetchesFull, Tier, TierError, Wanted};
use crate::warming::{WarmRows, Warming};

/// Rows of a piece that are drawn, at most: all of the longest.
const DRAWN: usize = 8192;
/// Rows that are remembered as told to their owners, of one call.
const TOLD: usize = 64;

/// No tier, for a worker without cached tables.
struct Nowhere;

impl Tier for Nowhere {
    fn fetch(&mut self, _: u64, _: Wanted) -> Result<(), FetchesFull> {
        unreachable!("only rows of cached tables are fetched")
    }

    fn poll(&mut self, _: u64, _: EachRow<'_>) {}

    fn unanswered(&self) -> usize {
        0
    }
}

/// What was counted since the start of what workers ask one another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Rows that other workers asked for.
    pub asked: u64,
}

/// What becomes of a row on its way, as [`CachedTable::begin`] has it.
type Keeping = Result<Taken, Count>;

/// What one worker knows of cached tables: the rows that are there, and the fetches that it has begun.
pub struct Worker {
    /// By the table's number; `None` for those that are always resident. The other [side](crate::SIDES)'s follow, if there is one.
    tables: Box<[Option<Home>]>,
    /// How many tables a side has.
    on_a_side: usize,
    fetches: Fetches,
    /// By the number of a fetch: its table, with the slot that was taken for it, or what the row counts as when it comes.
    slots: Box<[Option<(u32, Keeping)>]>,
    ahead: Ahead,
    /// Rows that the tier was asked for and that have no slot yet, with when they are looked up next: the last is the first to get one.
    begun: Vec<(u32, fetch::Read)>,
    tiers: Tiers,
    owners: Owners,
    warming: Warming,
    /// The same of rows that are to stay.
    pinning: Warming,
    /// Whether these two come before hints next.
    listed_first: bool,
    /// What was looked up in this turn and its policies are still to be told of.
    later: Later,
    /// Whether a store may be changing its size.
    is_resizing: bool,
    /// Whether a tier is to go that still has something to answer.
    is_leaving: bool,
    /// What was sampled of the last piece that was looked up, until it is [counted](Worker::count).
    drawn: Drawn,
    samples: Arc<Samples>,
    counters: Counters,
    /// When a row on its way was asked of the tier, by the number of its fetch.
    asked_ns: Box<[u64]>,
    /// Room for a row.
    spare: Box<[u8]>,
    /// The number of the fetch that is looked at next by [`Worker::answer_resident`]; all were looked at where there is none of it.
    looked: usize,
    /// When it last polled.
    polled_ns: u64,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Worker");
        out.field("tables", &self.tables);
        out.field("fetches", &self.fetches);
        out.field("owners", &self.owners);
        out.finish_non_exhaustive()
    }
}

impl Worker {
    /// No table is cached.
    pub fn none() -> Worker {
        let limits = Limits {
            staged: 0,
            longest: 0,
            prefetched: 0,
            asked: 0,
            bags: 0,
            row_bytes: 0,
            budget_ns: 0,
        };
        Worker::alone(Box::default(), limits, Box::new(Nowhere), 0)
    }

    /// The only worker of a dataplane: all shards of its tables are its own. Otherwise as [`workers`](crate::workers()).
    ///
    /// # Panics
    /// If a table has longer rows than the limits say.
    pub fn alone(
        tables: Box<[Option<CachedTable>]>,
        limits: Limits,
        tier: Box<dyn Tier + Send>,
        seed: u64,
    ) -> Worker {
        let listed: Vec<bool> = tables.iter().map(Option::is_some).collect();
        let owners = Owners::all(owners::Room::of(&limits), vec![Box::new(|| ())], &listed);
        let owners = owners.into_iter().next().expect("one worker");
        let on_a_side = tables.len();
        let tables = tables.into_iter().map(|table| table.map(Home::cached));
        Worker::new((tables.collect(), on_a_side), limits, tier, owners, seed)
    }

    /// The tables of a model by their numbers, `None` for those that are resident, on one side or on both, and how many there are on a side. The
    /// others' rows come from `tier`, those of the first side, or from the `owners` of their shards. `seed` is as [`Fetches::new`] has it.
    ///
    /// # Panics
    /// If a table has longer rows than the limits say.
    pub(crate) fn new(
        (tables, on_a_side): (Box<[Option<Home>]>, usize),
        limits: Limits,
        tier: Box<dyn Tier + Send>,
        owners: Owners,
        seed: u64,
    ) -> Worker {
        for table in tables.iter().flatten().filter_map(Home::table) {
            assert!(
                table.row_bytes() <= limits.row_bytes,
                "staging has room for any row"
            );
        }
        let listed = tables[..on_a_side].iter().map(Option::is_some);
        let listed: Vec<bool> = listed.collect();
        let fetches = Fetches::new(limits, owners.most_taken(), &listed, seed);
        let asked_ns = vec![0; fetches.most()].into_boxed_slice();
        let has_tables = tables.iter().flatten().next().is_some();
        let [warming, pinning] = [0; 2].map(|_| Warming::with_room(tables.len()));
        Worker {
            ahead: Ahead::new(!has_tables),
            tables,
            on_a_side,
            slots: (0..fetches.most()).map(|_| None).collect(),
            begun: Vec::with_capacity(BEGUN),
            fetches,
            tiers: Tiers::new(tier, on_a_side),
            owners,
            warming,
            pinning,
            listed_first: false,
            later: Later::new(has_tables),
            is_resizing: false,
            is_leaving: false,
            drawn: Drawn::new(DRAWN),
            samples: Arc::new(Samples::new()),
            counters: Counters::default(),
            asked_ns,
            spare: vec![0; limits.row_bytes].into_boxed_slice(),
            looked: usize::MAX,
            polled_ns: 0,
        }
    }

    /// How many tables are known, of both [sides](crate::SIDES); none where none is cached.
    pub fn tables(&self) -> usize {
        self.tables.len()
    }

    /// The number of a table on a side, by that which it has on the first.
    pub fn on_side(&self, side: usize, table: usize) -> usize {
        side * self.on_a_side + table
    }

    /// The other way round: that of the table on the first side that it has its part of what tables share with.
    pub fn shares_with(&self, table: usize) -> usize {
        on_one_side(table, self.on_a_side)
    }

    /// Has rows of a side's tables come from another tier, or from none: takes it from `tier`, and leaves there what was before, for another
    /// thread to free. What of the side's rows waits for its turn then does not come. Returns false, and the tier stays, as long as rows of
    /// the side are on their way, or were asked of other workers. Between two turns.
    pub fn replace_tier(&mut self, side: usize, tier: &mut Option<Box<dyn Tier + Send>>) -> bool {
        let is_over = !self.tiers.has(side) || self.end_fetches(side);
        let has_replaced = is_over && self.tiers.replace(side, tier);
        self.is_leaving = !has_replaced;
        has_replaced
    }

    /// Nobody wants rows of a side's tables any more: ends the fetches that were not begun, and drops hints. Returns whether none is left.
    fn end_fetches(&mut self, side: usize) -> bool {
        for _ in 0..self.owners.hints() {
            let Some(hint) = self.owners.next_hint() else {
                break;
            };
            // Those of the other side go behind, in their order, unless others have taken their room meanwhile.
            let is_of_side = self.tiers.side(hint.table as usize) == side;
            let is_kept = !is_of_side && self.owners.hint(self.owners.number(), hint);
            if let Some(home) = &self.tables[hint.table as usize]
                && !is_kept
            {
                home.figures().count(Count::HintsDropped, 1);
            }
        }
        let mut left = self.owners.asked_on(side) as usize;
        for number in 0..self.fetches.most() {
            let Some(ticket) = self.fetches.of_number(number) else {
                continue;
            };
            let (table, _) = self.fetches.row(ticket).expect("it is on its way");
            if self.tiers.side(table as usize) != side {
                continue;
            }
            if !self.fetches.is_queued(ticket) {
                left += 1;
                continue;
            }
            self.fetches.arrived(ticket, Err(TierError::Unreached));
            while let Some(ask) = self.fetches.next_told() {
                self.owners.answer_kept(ask, Err(TierError::Unreached));
            }
        }
        self.owners.ring();
        left == 0
    }

    /// Whether a table's rows are to be looked for here.
    pub fn is_cached(&self, table: usize) -> bool {
        let home = self.tables.get(table).and_then(Option::as_ref);
        home.is_some_and(|home| home.table().is_some())
    }

    /// Puts another table in the place of a cached one, or none where its rows are to be found elsewhere from now on, or one
    /// where there was none. Returns what was there, for another thread to free once all workers have given theirs back. What is on its
    /// way is still answered to those who wait for it ([`answer_resident`](Self::answer_resident)), and goes into no slot; what was still to be
    /// [loaded](Self::warm) of it is not loaded any more. Between two turns.
    ///
    /// # Panics
    /// If the table is always resident, or its rows are spread over workers in another way than before.
    pub fn replace(&mut self, table: usize, new: Option<CachedTable>) -> Option<CachedTable> {
        self.touch_hits();
        let home = self.tables[table].as_mut().expect("a listed table");
        if let Some(old) = home.table_mut() {
            for (of, slot) in self.slots.iter_mut().flatten() {
                if *of as usize == table
                    && let Ok(taken) = core::mem::replace(slot, Err(Count::Unkept))
                {
                    old.abandon(taken);
                }
            }
        }
        if new.is_none() {
            self.looked = 0;
        }
        self.warming.forget(table);
        self.pinning.forget(table);
        home.replace(new)
    }

    /// The store of a table that is cached is about to have another size, as [`Store::resize`] says: the rows of shards that this worker
    /// writes move in the polls from now on. Where the table is not cached any more nothing is done. Between two turns.
    pub fn resize(&mut self, table: usize, resize: Resize) {
        self.touch_hits();
        let home = self.tables[table].as_mut().expect("a listed table");
        if let Some(table) = home.table_mut() {
            table.resize(resize);
            self.is_resizing = true;
        }
    }

    /// What becomes of bags of a cached table whose rows could not all be fetched.
    pub fn on_failure(&self, table: usize) -> OnFailure {
        let home = self.tables[table].as_ref();
        home.expect("a listed table").on_failure()
    }

    /// The bounds of bags that wait for rows.
    pub fn limits(&self) -> &Limits {
        self.fetches.limits()
    }

    /// Whether nothing is parked, no row is on its way, to be [loaded](Worker::warm) or to [move](Worker::resize), and no other worker has
    /// asked for any.
    pub fn is_idle(&self) -> bool {
        let fetches = &self.fetches;
        let is_loading = self.is_warming() || !self.pinning.is_done();
        let is_moving = self.is_resizing || self.is_leaving;
        let is_waited_for = is_loading || is_moving || self.owners.has_mail();
        fetches.on_the_way() == 0 && fetches.parked() == 0 && !is_waited_for
    }

    /// Whether a [poll](Worker::poll) has anything to do. To be asked once a turn.
    pub fn has_work(&mut self) -> bool {
        self.owners.look();
        !self.is_idle()
    }

    /// The worker is about to sleep, until it is woken or for as long as it likes. Returns whether it may: not when others have asked it
    /// for rows, which a [poll](Worker::poll) is to take up first.
    #[must_use = "a worker that others wait for does not sleep"]
    pub fn rest(&mut self) -> bool {
        self.owners.lie_down()
    }

    /// Rows on their way, and rows in staging.
    pub fn held(&self) -> (usize, usize) {
        (self.fetches.on_the_way(), self.fetches.staged())
    }

    /// Rows asked of other workers that were not answered yet, also where nobody waits for them any more: each has memory.
    pub fn asked(&self) -> usize {
        self.owners.asked()
    }

    /// What was counted of fetches.
    pub fn fetch_counters(&self) -> &fetch::Counters {
        self.fetches.counters()
    }

    /// What was counted of what workers ask one another, of all tables.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What this worker counts of a table that may be cached, for others to read.
    pub fn figures(&self, table: usize) -> Option<Arc<TableFigures>> {
        let home = self.tables.get(table)?.as_ref()?;
        Some(Arc::clone(home.figures()))
    }

    /// From now on lookups of rows are sampled whose place is below `threshold`, of 2^32, each time that the table is cached; of none
    /// where it is 0, as at first.
    ///
    /// # Panics
    /// If the table is always resident.
    pub fn sample(&mut self, table: usize, threshold: u32) {
        let home = self.tables[table].as_mut().expect("a listed table");
        home.threshold = threshold;
    }

    /// Lookups that were sampled, for another thread to take.
    pub fn samples(&self) -> &Arc<Samples> {
        &self.samples
    }

    /// Counts a bag that found no room to be parked.
    pub fn refuse(&mut self, table: usize) {
        self.fetches.refuse();
        self.cached(table).figures().count(Count::ParksRefused, 1);
    }

    /// What is kept of a cached table, for other threads to look at.
    pub fn store(&self, table: usize) -> Option<&Arc<Store>> {
        let home = self.tables.get(table)?.as_ref()?;
        Some(home.table()?.store())
    }

    /// The slots of a cached table, the bytes from one to the next, and how many there are.
    pub fn slots(&self, table: usize) -> (ReadWindow<'_>, usize, u32) {
        self.cached(table).slots()
    }

    fn cached(&self, table: usize) -> &CachedTable {
        let home = self.tables[table].as_ref().and_then(Home::table);
        home.expect("a cached table")
    }

    /// Places of parked bags' rows: the bytes, from one place to the next, and how many places there are.
    pub fn staging(&self) -> (ReadWindow<'_>, usize, u32) {
        let fetches = &self.fetches;
        let window = ReadWindow::over(fetches.staging());
        (window, fetches.stride(), fetches.limits().staged)
    }

    /// Whether it pays now to tell by [`ahead`](Self::ahead) what will be looked up next: rows are about to be fetched, which may take
    /// the slots of others.
    pub fn asks_ahead(&self) -> bool {
        self.fetches.has_reads() && self.ahead.is_paid()
    }

    /// Before [`poll`](Self::poll): what will be looked up next, in order, as far as that is known. `lookups` gives tables and rows of
    /// each, until enough are known; tables that are not cached are left out.
    pub fn ahead<'r>(&mut self, lookups: impl Iterator<Item = (usize, &'r [u32])>) {
        self.ahead.clear();
        for (table, rows) in lookups {
            if self.is_cached(table) {
                self.ahead.extend(table, rows);
            }
            if self.ahead.is_full() {
                return;
            }
        }
    }

    /// Says that rows of a cached table may be wanted soon. Those that are not there are fetched, by the workers that write their
    /// shards, as far as these have room ([`Limits::prefetched`] for rows on their way and as many that wait for that); others
    /// are dropped. Between two turns.
    pub fn prefetch(&mut self, table: usize, rows: &[u32]) {
        self.hint(table, rows.iter().copied());
    }

    /// The same of rows that are looked for first: of those that are there nobody is told. `places` has one for each.
    pub fn prefetch_lacking(
        &mut self,
        turn: Turn<'_>,
        table: usize,
        rows: &[u32],
        places: &mut [u32],
    ) {
        cached(&mut self.tables, table as u32).look(turn, rows, places);
        let lacking = rows.iter().zip(&*places);
        self.hint(
            table,
            lacking
                .filter(|(_, place)| **place == MISS)
                .map(|(row, _)| *row),
        );
    }

    fn hint(&mut self, table: usize, rows: impl Iterator<Item = u32>) {
        let spread = *cached(&mut self.tables, table as u32).spread();
        let has_room = self.fetches.limits().prefetched > 0;
        let (mut hinted, mut dropped) = (0, 0);
        // The rows that were told last, so that one that is named often takes the room of one.
        let mut told = [None; TOLD];
        for row in rows {
            if told[row as usize % TOLD].replace(row) == Some(row) {
                continue;
            }
            let owner = self.owners.owner(spread.shard(row));
            let table = table as u32;
            let is_taken = has_room && self.owners.hint(owner, Hint { table, row });
            hinted += 1;
            dropped += u64::from(!is_taken);
        }
        let figures = cached(&mut self.tables, table as u32).figures();
        figures.count(Count::Hinted, hinted);
        figures.count(Count::HintsDropped, dropped);
        self.owners.ring();
    }

    /// Keeps rows of a table that another thread has read, as far as they are of shards that this worker writes and neither there nor on
    /// their way, and there are empty slots for them. `uses` says how often each may have been used, and `bytes` has them one behind the other. Where the table is not cached nothing is kept. Between
    /// two turns.
    ///
    /// # Panics
    /// If there are not as many bytes as the rows have, or uses as rows, or the table is always resident.
    pub fn keep(&mut self, table: usize, rows: &[u32], uses: &[u32], bytes: &[u8]) {
        self.touch_hits();
        let home = self.tables[table].as_mut().expect("a listed table");
        let Some(cached) = home.table_mut() else {
            return;
        };
        let row_bytes = cached.row_bytes();
        assert_eq!(bytes.len(), rows.len() * row_bytes, "each row's bytes");
        assert_eq!(uses.len(), rows.len(), "each row's uses");
        let rows = rows.iter().zip(uses);
        for ((&row, &uses), bytes) in rows.zip(bytes.chunks_exact(row_bytes)) {
            let is_own = self.owners.owner(cached.spread().shard(row)) == self.owners.number();
            if !is_own || self.fetches.has(table as u32, row) || !cached.has_room(row) {
                continue;
            }
            if let Ok(taken) = cached.begin(row, Some(uses), |_| None) {
                cached.publish(taken, bytes);
            }
        }
    }

    /// Loads rows that were there before a restart, as far as they are of shards that this worker writes and
    /// there are empty slots for them: in the polls from now on, when nothing is wanted more, [`Limits::prefetched`] at a time. Rows of other tables
    /// that are still to be loaded go on being loaded, beside these; what is left of the same tables is not. Each worker is given
    /// the same list, in which no table is twice, and lets go of it when it has loaded it. Before the worker serves, or between two turns
    /// where another thread has the list until it is loaded, and with it all of its tables' that were given before.
    ///
    /// # Panics
    /// In a poll, if there is no such cached table or row.
    pub fn warm(&mut self, tables: &Arc<[WarmRows]>) {
        self.warming.add(tables);
    }

    /// Which rows of a table come into the cache and which stay there from now on, each time that it is cached. Nothing is freed here as
    /// long as another thread has the set of before, too. Between two turns.
    ///
    /// # Panics
    /// If the table is always resident.
    pub fn rule(&mut self, table: usize, rules: &Rules) {
        let home = self.tables[table].as_mut();
        home.expect("a listed table").rule(rules);
    }

    /// Loads rows that are to [stay](Worker::rule), as [`warm`](Self::warm) does, but that they take the place of others. What was given
    /// before and is not loaded yet is not loaded any more. Where [`Limits::prefetched`] is 0 nothing is loaded: such rows come when they
    /// are looked up. Between two turns.
    ///
    /// # Panics
    /// In a poll, if there is no such cached table or row.
    pub fn load_pinned(&mut self, tables: Arc<[WarmRows]>) {
        if self.fetches.limits().prefetched > 0 {
            self.pinning.begin(&tables);
        }
    }

    /// Whether rows are still to be loaded that were there before.
    pub fn is_warming(&self) -> bool {
        !self.warming.is_done()
    }

    /// Rows of a table that there is room for in staging, and for how many if nobody had any.
    pub fn room(&self, table: usize) -> (u32, u32) {
        self.fetches.room(table)
    }

    /// Rows that a table has in staging.
    pub fn staged_of(&self, table: usize) -> u32 {
        self.fetches.staged_of(table)
    }

    /// Where there is room to park a bag of so many rows of a table.
    pub fn room_for_bag(&self, table: usize, rows: u32, kept: Kept) -> Room {
        self.fetches.room_for_bag(table, rows, kept)
    }

    /// The next parked bag that waits for nothing any more.
    pub fn next_ready(&mut self) -> Option<Ready> {
        self.fetches.next_ready()
    }

    /// A parked bag is pooled or given up. `places` is what [`Parker::park`](crate::Parker::park) has made of its rows.
    pub fn release(&mut self, bag: BagId, places: &[u32]) {
        self.fetches.release(bag, places);
    }
}
