//! Rows of the simulated world that were hot: the file that lists them, which outlives processes, and the lists that workers load.
//!
//! The file is written as `rowmilld`'s thread does (`rowmill_cache::warm`): what is there now and then, unless what a start found is still being
//! loaded; beside the one before, whose name it gets when it is whole. Here that takes some steps of workers, in which the disk can be full or the
//! process be killed, and the machine with it: then the name may lead to a part of it, or to zeros. What a table held when it became resident
//! is loaded when it is cached again.
//!
//! When all workers have let go of a list, its rows are there, but for those that there was no room for or that could not be read.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use fastrand::Rng;
use rowmill_cache::figures::{Count, TableFigures};
use rowmill_cache::store::{Store, WAYS};
use rowmill_cache::warm::{Warm, WarmTable};
use rowmill_cache::{WarmRows, Worker};
use rowmill_table::Resident;

use super::ledger::Violation;
use super::planted::Mistake;

/// What became of lists and of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WarmTally {
    /// Times that the file was written.
    pub written: u64,
    /// Times that the disk was full.
    pub unwritten: u64,
    /// Writes that a kill ended in the middle.
    pub partial: u64,
    /// Starts that found a part of a file, or zeros.
    pub damaged: u64,
    /// Starts that found rows to load.
    pub found: u64,
    /// Lists of tables that became cached again while others were loaded.
    pub beside: u64,
    /// Tables of lists that were loaded of which each row was looked for.
    pub checked: u64,
    /// Rows that were there when their list was loaded.
    pub rows: u64,
}

impl WarmTally {
    /// Both together.
    #[must_use]
    pub fn and(self, other: WarmTally) -> WarmTally {
        WarmTally {
            written: self.written + other.written,
            unwritten: self.unwritten + other.unwritten,
            partial: self.partial + other.partial,
            damaged: self.damaged + other.damaged,
            found: self.found + other.found,
            beside: self.beside + other.beside,
            checked: self.checked + other.checked,
            rows: self.rows + other.rows,
        }
    }
}

/// Steps of workers that a write takes at least, if it gets to its end.
const STEPS: usize = 100;

/// A file that is being written beside the one before.
struct Write {
    warm: Warm,
    bytes: Vec<u8>,
    /// How much of it is on the disk, how much comes in a step, and where the disk is full, if so.
    done: usize,
    more: usize,
    full: Option<usize>,
}

/// The file, and who writes it.
pub(super) struct File {
    /// After how many of 10,000 steps of workers it is written, if it is not being written; none where none is kept.
    often: u32,
    /// What its name leads to, and what that lists, if it is whole.
    bytes: Option<Vec<u8>>,
    lists: Option<Warm>,
    under_way: Option<Write>,
    rng: Rng,
    /// What became of it.
    pub(super) tally: WarmTally,
}

impl File {
    /// There is none at first. `is_kept`: whether there ever is.
    pub(super) fn new(is_kept: bool, mut rng: Rng) -> File {
        File {
            often: if is_kept { rng.u32(20..=500) } else { 0 },
            bytes: None,
            lists: None,
            under_way: None,
            rng,
            tally: WarmTally::default(),
        }
    }

    fn is_kept(&self) -> bool {
        self.often > 0
    }

    /// The process is killed.
    pub(super) fn killed(&mut self) {
        let Some(write) = self.under_way.take() else {
            return;
        };
        self.tally.partial += 1;
        // Where the machine goes, too, its file system may have given the name first.
        if self.rng.u8(0..3) == 0 {
            let zeros = vec![0; write.bytes.len()];
            let part = write.bytes[..self.rng.usize(0..write.bytes.len())].to_vec();
            self.bytes = Some(if self.rng.bool() { zeros } else { part });
            self.lists = None;
        }
    }

    /// What a start finds of these tables: rows that they have, by their numbers.
    ///
    /// # Panics
    /// If it is not what was written.
    fn find(&mut self, tables: &Resident) -> Vec<WarmRows> {
        let read = self.bytes.as_deref().map(Warm::decode);
        let warm = match read {
            None => return Vec::new(),
            Some(Ok(warm)) => warm,
            Some(Err(_)) => {
                assert_eq!(self.lists, None, "a whole list is found");
                self.tally.damaged += 1;
                return Vec::new();
            }
        };
        assert_eq!(
            Some(&warm),
            self.lists.as_ref(),
            "what was written is found"
        );
        if warm.generation != name(tables) {
            return Vec::new();
        }
        let of_table = |WarmTable { name, mut rows }: WarmTable| {
            let table = tables.tables().iter().position(|t| t.name() == name)?;
            let count = tables.tables()[table].row_count();
            rows.retain(|&row| row < count);
            Some(WarmRows { table, rows })
        };
        warm.tables.into_iter().filter_map(of_table).collect()
    }

    /// Goes on writing, or begins to, now and then: what there is of cached tables, and what was hot in the others.
    pub(super) fn go_on(&mut self, hot: &mut Hot, tables: &Resident, stores: &Stores<'_>) {
        let Some(mut write) = self.under_way.take() else {
            if self.is_kept() && !hot.is_starting() && self.rng.u32(0..10_000) < self.often {
                self.begin(hot, tables, stores);
            }
            return;
        };
        write.done += write.more;
        if write.full.is_some_and(|full| write.done >= full) {
            self.tally.unwritten += 1;
        } else if write.done < write.bytes.len() {
            self.under_way = Some(write);
        } else {
            (self.bytes, self.lists) = (Some(write.bytes), Some(write.warm));
            self.tally.written += 1;
        }
    }

    fn begin(&mut self, hot: &mut Hot, tables: &Resident, stores: &Stores<'_>) {
        let of_table = |&(table, store): &(usize, Option<&Arc<Store>>)| {
            let before = hot.not_loaded(table, store.is_some());
            let rows = match (before, store) {
                (Some(before), _) => before[0].rows.clone(),
                (None, Some(store)) => store.hot(store.shape().slots() as usize),
                (None, None) => return None,
            };
            let name = tables.tables()[table].name().into();
            Some(WarmTable { name, rows })
        };
        let warm = Warm {
            generation: name(tables),
            tables: stores.iter().filter_map(of_table).collect(),
        };
        if warm.tables.iter().all(|table| table.rows.is_empty()) && self.bytes.is_some() {
            return;
        }
        let bytes = warm.encode();
        let rng = &mut self.rng;
        self.under_way = Some(Write {
            done: 0,
            more: rng.usize(1..=bytes.len().div_ceil(STEPS)),
            full: (rng.u8(0..6) == 0).then(|| rng.usize(0..bytes.len())),
            warm,
            bytes,
        });
    }
}

/// Of each table that may be cached, its number and what is kept of it in the newest generation, if it is cached there.
pub(super) type Stores<'s> = [(usize, Option<&'s Arc<Store>>)];

fn name(tables: &Resident) -> String {
    format!("simulated, generation {}", tables.generation())
}

/// Rows that were hot in a table, until they are loaded again.
struct Before {
    rows: Arc<[WarmRows]>,
    /// The same among those of others that a start gave.
    at_start: Weak<[WarmRows]>,
}

/// A list that workers were given of a table.
struct Given {
    list: Weak<[WarmRows]>,
    /// The number that workers know it by, its rows, and what is kept of it.
    home: usize,
    rows: Vec<u32>,
    store: Arc<Store>,
    /// Changes of stores' sizes that had begun by then, and what was counted.
    resized: u64,
    counts: [u64; COUNTED.len()],
}

/// What is counted of rows that did not come into a slot that was taken for them; of rows for which none was; and of those that were asked for
/// or came.
const COUNTED: [Count; 10] = [
    Count::Late,
    Count::Corrupt,
    Count::Gone,
    Count::Failed,
    Count::Unneeded,
    Count::Crowded,
    Count::Stalled,
    Count::Starved,
    Count::Refused,
    Count::Unkept,
];
/// How many of these are of the first kind.
const LOST: usize = 8;

/// A list that nobody has.
fn of_nobody() -> Weak<[WarmRows]> {
    let list: Arc<[WarmRows]> = Arc::new([]);
    Arc::downgrade(&list)
}

/// What was hot in tables, and what workers load of it.
pub struct Hot {
    is_kept: bool,
    before: BTreeMap<usize, Before>,
    at_start: Weak<[WarmRows]>,
    given: Vec<Given>,
    /// By the number that workers know a table by, one a worker.
    figures: Vec<Vec<Arc<TableFigures>>>,
    mistake: Option<Mistake>,
    /// What became of lists.
    pub(super) tally: WarmTally,
}

impl Hot {
    /// Gives workers what a start finds of its tables.
    pub(super) fn start<'w>(
        file: &mut File,
        tables: &Resident,
        workers: impl Iterator<Item = &'w mut Worker>,
        mistake: Option<Mistake>,
    ) -> Hot {
        let mut workers: Vec<&mut Worker> = workers.collect();
        let figures = (0..workers[0].tables()).map(|home| {
            let of_table = workers.iter().filter_map(|worker| worker.figures(home));
            of_table.collect()
        });
        let mut hot = Hot {
            is_kept: file.is_kept(),
            before: BTreeMap::new(),
            at_start: of_nobody(),
            given: Vec::new(),
            figures: figures.collect(),
            mistake,
            tally: WarmTally::default(),
        };
        let found = file.find(tables);
        let cached = found.iter().filter(|list| workers[0].is_cached(list.table));
        let cached: Arc<[WarmRows]> = cached.cloned().collect();
        for worker in &mut workers {
            worker.warm(&cached);
        }
        hot.at_start = Arc::downgrade(&cached);
        for list in &*cached {
            let store = workers[0].store(list.table).expect("a cached table");
            hot.give(&cached, list, store, 0);
        }
        hot.tally.found += u64::from(!hot.given.is_empty());
        for list in found {
            hot.remember(list, Arc::downgrade(&cached));
        }
        hot
    }

    /// Whether workers have a list: who remembers it has it, too.
    fn is_loading(&self, list: &Weak<[WarmRows]>) -> bool {
        let remembered = self.before.values().map(|before| Arc::as_ptr(&before.rows));
        let remembered = remembered.filter(|rows| core::ptr::addr_eq(*rows, list.as_ptr()));
        list.strong_count() > remembered.count()
    }

    /// Whether rows that the start found are still being loaded.
    fn is_starting(&self) -> bool {
        self.at_start.strong_count() > 0
    }

    fn remember(&mut self, list: WarmRows, at_start: Weak<[WarmRows]>) {
        let table = list.table % (self.figures.len() / 2).max(1);
        self.before.remove(&table);
        if !list.rows.is_empty() {
            let rows = [list].into();
            self.before.insert(table, Before { rows, at_start });
        }
    }

    /// What was hot in a table and is not loaded again yet.
    fn not_loaded(&mut self, table: usize, is_cached: bool) -> Option<Arc<[WarmRows]>> {
        let before = self.before.get(&table)?;
        let is_loading = Arc::strong_count(&before.rows) > 1 || before.at_start.strong_count() > 0;
        if is_cached && !is_loading {
            self.before.remove(&table);
            return None;
        }
        Some(Arc::clone(&before.rows))
    }

    /// A table is about to be resident, whose workers know it by a number.
    pub(super) fn leaves(&mut self, table: usize, home: usize, store: &Store) {
        if self.is_kept && self.not_loaded(table, true).is_none() {
            let rows = store.hot(store.shape().slots() as usize);
            self.remember(WarmRows { table: home, rows }, of_nobody());
        }
    }

    /// It is cached again: what workers are to load of it.
    pub(super) fn comes(
        &mut self,
        table: usize,
        store: &Arc<Store>,
        resized: u64,
    ) -> Option<Arc<[WarmRows]>> {
        let list = Arc::clone(&self.before.get(&table)?.rows);
        let is_beside = (self.given.iter()).any(|given| self.is_loading(&given.list));
        self.tally.beside += u64::from(is_beside);
        self.give(&list, &list[0], store, resized);
        (self.mistake != Some(Mistake::DropsLists)).then_some(list)
    }

    fn give(&mut self, all: &Arc<[WarmRows]>, list: &WarmRows, store: &Arc<Store>, resized: u64) {
        self.given.push(Given {
            list: Arc::downgrade(all),
            home: list.table,
            rows: list.rows.clone(),
            store: Arc::clone(store),
            resized,
            counts: self.counts(list.table),
        });
    }

    /// Another generation is the newest, whose rows may have other numbers.
    pub(super) fn forget(&mut self) {
        self.before.clear();
    }

    /// How often something was counted, of all tables.
    pub(super) fn count(&self, what: Count) -> u64 {
        let figures = self.figures.iter().flatten();
        figures.map(|figures| figures.get(what)).sum()
    }

    /// Whether rows of a table were given up before they were asked for.
    pub(super) fn has_given_up(&self, table: usize) -> bool {
        let sides = self.figures.iter().skip(table);
        let figures = sides.step_by((self.figures.len() / 2).max(1)).flatten();
        figures
            .map(|figures| figures.get(Count::Stalled) + figures.get(Count::Starved))
            .any(|given_up| given_up > 0)
    }

    fn counts(&self, home: usize) -> [u64; COUNTED.len()] {
        let figures = &self.figures[home];
        COUNTED.map(|what| figures.iter().map(|figures| figures.get(what)).sum())
    }

    /// Looks at the lists that workers have let go of, when no row is on its way. `stores` are those of tables by the numbers that workers know them by.
    ///
    /// # Errors
    /// If rows of one are not there that could be.
    pub(super) fn check<'s>(
        &mut self,
        stores: impl Fn(usize) -> Option<&'s Arc<Store>>,
        resized: u64,
    ) -> Result<(), Violation> {
        let given = core::mem::take(&mut self.given);
        let (left, loaded) = (given.into_iter()).partition(|given| self.is_loading(&given.list));
        self.given = left;
        let loaded: Vec<Given> = loaded;
        for given in loaded {
            let is_there = stores(given.home).is_some_and(|now| Arc::ptr_eq(now, &given.store));
            let is_still = given.store.settle().expect("memory can be given back");
            if !is_there || !is_still || given.resized != resized {
                continue;
            }
            self.check_one(&given)?;
        }
        Ok(())
    }

    fn check_one(&mut self, given: &Given) -> Result<(), Violation> {
        let Given {
            home, rows, store, ..
        } = given;
        let (there, lacking) = store.lacking(rows);
        self.tally.rows += there as u64;
        let since = self.counts(*home);
        let since: Vec<u64> = since.iter().zip(given.counts).map(|(n, m)| n - m).collect();
        if since[..LOST].iter().any(|&lost| lost > 0) {
            // Slots may have become empty after rows had found no room.
            return Ok(());
        }
        // At most so many rows are in each set.
        let mut most = BTreeMap::new();
        let spread = store.spread().over(store.shape().shard_sets());
        let sets = |row| [spread.primary(row), spread.secondary(row)];
        let held = store.hot(store.shape().slots() as usize);
        for set in held.iter().flat_map(|&row| sets(row)) {
            *most.entry(set).or_insert(0) += 1;
        }
        let has_room = |row: &&u32| {
            let room = |set| most.get(&set).copied().unwrap_or(0) < WAYS;
            sets(**row).into_iter().any(room)
        };
        let left_out = lacking.iter().filter(has_room).count() as u64;
        let unkept: u64 = since[LOST..].iter().sum();
        self.tally.checked += 1;
        if left_out <= unkept {
            return Ok(());
        }
        Err(Violation(format!(
            "{left_out} of {} rows that were hot in table {home} are not there, though there is room, and only {unkept} were not kept",
            rows.len()
        )))
    }
}
