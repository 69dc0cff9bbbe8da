//! Cached tables as the admin pages show them.

mod hot_before;

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use rowmill_arena::Backing;
use rowmill_cache::WarmRows;
use rowmill_cache::figures::{
    BUCKETS, COUNTS, Count, TIER_COUNTS, TableFigures, TierFigures, Times,
};
use rowmill_cache::store::{Shape, Store};
use rowmill_cache::tier::{Failures, FileFailures, FileReads};
use rowmill_engine::{HELD, Side};
use rowmill_table::{ResidentTable, TableInfo};
use serde_json::{Value, json};

use crate::config::Placement;
use crate::metrics::{Metrics, escape};
use crate::share::{self, Share};
use crate::tiers::NAMES;
use hot_before::HotBefore;

/// A listed table.
#[derive(Debug)]
pub struct TableView {
    /// Its number in the generation that was served first.
    pub number: usize,
    /// Its name.
    pub name: String,
    /// What rows of it that deltas change may take while it is cached.
    pub delta_bytes: u64,
    /// Its share of the arena when it is cached, in the newest generation.
    pub share: Mutex<Share>,
    /// What each worker has done about it, in the generations of each side.
    pub figures: [Vec<Arc<TableFigures>>; HELD],
    /// The files that its rows are fetched from: the model's own, and its copy where there is one.
    pub files: Vec<FileView>,
    /// How many tables that generation has.
    tables: usize,
    sides: Mutex<Sides>,
    /// What a policy wants of it.
    pub wishes: Wishes,
    hot_before: HotBefore,
}

/// A listed table in one generation.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// How many rows it has, and their bytes.
    pub rows: u64,
    /// See above.
    pub rows_bytes: u64,
    /// What is kept of it while it is cached.
    pub store: Option<Arc<Store>>,
    /// The table with its rows while it is resident.
    pub resident: Option<Arc<ResidentTable>>,
}

impl Kept {
    /// As its generation has it.
    pub(crate) fn of(
        info: &TableInfo,
        store: Option<Arc<Store>>,
        rows: Option<&ResidentTable>,
    ) -> Kept {
        Kept {
            rows: info.stored_rows(),
            rows_bytes: info.row_region_bytes(),
            store,
            resident: rows.map(|rows| Arc::new(rows.clone())),
        }
    }
}

/// A listed table in the generations that are held.
#[derive(Debug)]
struct Sides {
    newest: Side,
    kept: [Kept; HELD],
    /// Rows that left the cache when the table did, or its generation.
    left: [u64; HELD],
}

/// What a policy wants of a table beside its share.
#[derive(Debug, Default)]
pub struct Wishes {
    /// Lookups of rows with a place below it are sampled.
    pub(crate) threshold: AtomicU32,
    /// Rows that stay, and how many of them were there when it was looked last.
    pub(crate) pinned: AtomicU64,
    /// See above.
    pub(crate) pinned_held: AtomicU64,
}

impl TableView {
    /// One of `tables` of the first generation, of which it is the one of that number, with its name and what rows that deltas change may take.
    pub fn new(
        (number, tables): (usize, usize),
        (name, delta_bytes): (String, u64),
        kept: Kept,
        share: Share,
        figures: [Vec<Arc<TableFigures>>; HELD],
        files: Vec<FileView>,
    ) -> TableView {
        TableView {
            number,
            name,
            delta_bytes,
            share: Mutex::new(share),
            figures,
            files,
            tables,
            sides: Mutex::new(Sides {
                newest: Side::A,
                kept: [kept, Kept::default()],
                left: [0; HELD],
            }),
            wishes: Wishes::default(),
            hot_before: HotBefore::default(),
        }
    }

    fn sides(&self) -> MutexGuard<'_, Sides> {
        self.sides.lock().expect("a panic ends the process")
    }

    /// The number by which workers know it in the generation of a side.
    pub(crate) fn home_on(&self, side: Side) -> usize {
        side.index() * self.tables + self.number
    }

    /// The same of the newest generation, and what it is there.
    pub(crate) fn newest(&self) -> (usize, Kept) {
        let sides = self.sides();
        let newest = sides.newest;
        (self.home_on(newest), sides.kept[newest.index()].clone())
    }

    /// That of the newest generation.
    pub(crate) fn newest_side(&self) -> Side {
        self.sides().newest
    }

    /// The rows that it has in the newest generation.
    pub(crate) fn rows(&self) -> u64 {
        self.newest().1.rows
    }

    /// Where its rows are, in the newest generation.
    pub fn placement(&self) -> Placement {
        match self.store() {
            Some(_) => Placement::Cached,
            None => Placement::Resident,
        }
    }

    /// The generation of a side is held, and this is what it has of the table.
    pub(crate) fn brought(&self, side: Side, kept: Kept) {
        self.sides().kept[side.index()] = kept;
    }

    /// The generation of a side is not held any more. No worker has anything of the table there.
    pub(crate) fn gone(&self, side: Side) {
        self.swap(side, None, None);
        self.sides().kept[side.index()] = Kept::default();
    }

    /// The generation of a side is the newest.
    pub(crate) fn switch(&self, side: Side) {
        // Rows may have other numbers there.
        self.hot_before.forget();
        let store = {
            let mut sides = self.sides();
            sides.newest = side;
            sides.kept[side.index()].store.clone()
        };
        if let Some(store) = store {
            self.has(store.shape());
        }
    }

    /// These rows were hot when it was cached last, those first that are wanted most. `at_start`: what workers load them from, if they do.
    /// Returns what is remembered.
    pub(crate) fn remember(
        &self,
        rows: Vec<u32>,
        at_start: Option<Weak<[WarmRows]>>,
    ) -> Option<Arc<[WarmRows]>> {
        let (table, _) = self.newest();
        self.hot_before.remember(WarmRows { table, rows }, at_start)
    }

    /// What was [remembered](Self::remember), for workers to load. As long as somebody has it, it is.
    pub(crate) fn to_load(&self) -> Option<Arc<[WarmRows]>> {
        self.hot_before.to_load()
    }

    /// What was [remembered](Self::remember), while it is resident or that is not loaded again yet. What is loaded is forgotten.
    pub(crate) fn not_loaded(&self) -> Option<Arc<[WarmRows]>> {
        self.hot_before.not_loaded(|| self.store().is_some())
    }

    /// Whether it is cached and rows are still being loaded that were hot before.
    pub(crate) fn is_loading(&self) -> bool {
        self.hot_before.is_loading(|| self.store().is_some())
    }

    /// Its share, as it is now.
    pub fn share(&self) -> Share {
        *self.share.lock().expect("a panic ends the process")
    }

    /// It is about to have another share.
    pub(crate) fn wants(&self, shape: Shape) {
        self.share.lock().expect("a panic ends the process").wanted = Some(shape);
    }

    /// It is not on the way to another share any more: it has this one.
    pub(crate) fn has(&self, shape: Shape) {
        let mut share = self.share.lock().expect("a panic ends the process");
        (share.shape, share.wanted) = (shape, None);
    }

    /// What is kept of it, if it is cached in the newest generation.
    pub fn store(&self) -> Option<Arc<Store>> {
        self.newest().1.store
    }

    /// It is cached in this store from now on, or resident with these rows, in the newest generation. Of where it was before no worker has anything
    /// any more.
    pub(crate) fn moved(&self, store: Option<Arc<Store>>, resident: Option<Arc<ResidentTable>>) {
        let newest = self.sides().newest;
        self.swap(newest, store, resident);
    }

    fn swap(&self, side: Side, store: Option<Arc<Store>>, resident: Option<Arc<ResidentTable>>) {
        let held = self.held_on(side);
        let mut sides = self.sides();
        if store.is_none() {
            sides.left[side.index()] += held;
        }
        let kept = &mut sides.kept[side.index()];
        (kept.store, kept.resident) = (store, resident);
    }

    /// What is kept of it in the generation of a side.
    pub(crate) fn kept_on(&self, side: Side) -> Kept {
        self.sides().kept[side.index()].clone()
    }

    /// Rows that deltas changed take more than a delta may bring them to: they were changed while it was resident, or with other settings. How many
    /// bytes, if so.
    pub(crate) fn bytes_over(&self, store: &Store) -> Option<u64> {
        let bytes = u64::from(store.patched()) * store.most().stride() as u64;
        (bytes > self.delta_bytes).then_some(bytes)
    }

    /// Rows of it that deltas changed and that are in memory for that, in all generations in which it is cached.
    fn patched(&self) -> u64 {
        let sides = self.sides();
        let stores = sides.kept.iter().filter_map(|kept| kept.store.as_ref());
        stores.map(|store| u64::from(store.patched())).sum()
    }

    /// How often something happened, on all workers and in all generations.
    pub fn get(&self, what: Count) -> u64 {
        Side::ALL.map(|side| self.get_on(side, what)).iter().sum()
    }

    /// The same in those of a side.
    pub(crate) fn get_on(&self, side: Side, what: Count) -> u64 {
        let figures = self.figures[side.index()].iter();
        figures.map(|figures| figures.get(what)).sum()
    }

    /// How long fetches took, in buckets, and in all, in nanoseconds.
    pub(crate) fn fetch_times(&self) -> ([u64; BUCKETS + 1], u64) {
        let figures = self.figures.iter().flatten();
        sum_of(figures.map(|figures| &figures.fetch_times))
    }

    /// Rows of the newest generation that are in the cache: a moment's difference of what came and what left.
    pub(crate) fn held(&self) -> u64 {
        let newest = self.sides().newest;
        self.held_on(newest)
    }

    fn held_on(&self, side: Side) -> u64 {
        let left = self.sides().left[side.index()];
        self.get_on(side, Count::Admitted)
            .saturating_sub(self.get_on(side, Count::Evicted))
            .saturating_sub(left)
    }

    /// Bytes of memory that its slots take in all generations.
    fn memory_bytes(&self) -> usize {
        let sides = self.sides();
        let stores = sides.kept.iter().filter_map(|kept| kept.store.as_ref());
        stores.map(|store| store.present()).sum()
    }

    fn misses(&self) -> u64 {
        let lookups = self.get(Count::Lookups);
        lookups.saturating_sub(self.get(Count::Hits))
    }

    fn status(&self) -> Value {
        let (times, sum_ns) = self.fetch_times();
        let share = self.share();
        let wanted = share.wanted.unwrap_or(share.shape);
        let mut table = json!({
            "table": self.name,
            "placement": self.placement().to_string(),
            "share_bytes": share.shape.bytes(),
            "share_rows": share.shape.slots(),
            "wanted_bytes": wanted.bytes(),
            "wanted_rows": wanted.slots(),
            "most_bytes": share.most.bytes(),
            "memory_bytes": self.memory_bytes(),
            "held_rows": self.held(),
            "patched_rows": self.patched(),
            "pinned": self.wishes.pinned.load(Relaxed),
            "pinned_held": self.wishes.pinned_held.load(Relaxed),
            "misses": self.misses(),
            "fetch_p50_us": quantile_us(&times, 0.5),
            "fetch_p99_us": quantile_us(&times, 0.99),
            "fetch_sum_us": sum_ns / 1000,
            "fetch_us": times,
        });
        if let Some(store) = self.store() {
            table["tag_bytes"] = store.most().width().bytes().into();
            table["tags_exact"] = store.is_exact().into();
        }
        for (what, name, _) in COUNTS {
            table[name] = self.get(what).into();
        }
        table
    }
}

/// A file that rows of a table are fetched from.
#[derive(Debug)]
pub struct FileView {
    /// The tier that has it.
    pub tier: &'static str,
    /// What each worker has asked of it, and of the others of the same table, of other generations.
    pub reads: Vec<Arc<FileReads>>,
    /// What they failed to give, of each side's generations.
    pub failures: Vec<Arc<FileFailures>>,
    /// Whether rows of it wait in vain for reads that other tables' rows hold.
    pub is_starved: AtomicBool,
    /// Whether it has lately not given some row that it was asked for, of the newest generation, while it may give others.
    pub is_failing: AtomicBool,
}

/// What is counted of a file, with its name in metrics.
const FILE_COUNTS: [(&str, &str); 6] = [
    ("fetched", "Rows asked for of the tier."),
    ("arrived", "Of these, rows that came."),
    (
        "late",
        "Rows that did not come in the time that the tier had for them.",
    ),
    ("corrupt", "Rows whose pages don't match their checksums."),
    (
        "gone",
        "Rows behind the end of their file: it was truncated.",
    ),
    (
        "failed",
        "Rows that the kernel could not read, or whose exporter could not be read from.",
    ),
];

impl FileView {
    fn fetched(&self) -> u64 {
        self.reads.iter().map(|reads| reads.fetched()).sum()
    }

    /// Workers that ask the next tier at once.
    fn bypassing(&self) -> u64 {
        let reads = self.reads.iter();
        reads.filter(|reads| reads.is_bypassed()).count() as u64
    }

    /// How it is, in a word.
    fn state(&self) -> &'static str {
        let gives_none = self.failures.iter().any(|side| side.is_failing());
        let is_failing = gives_none || self.is_failing.load(Relaxed);
        match (self.bypassing(), is_failing) {
            (0, false) if self.is_starved.load(Relaxed) => "starved",
            (0, false) => "read",
            (0, true) => "failing",
            _ => "bypassed",
        }
    }

    fn times(&self) -> ([u64; BUCKETS + 1], u64) {
        sum_of(self.reads.iter().map(|reads| &reads.times))
    }

    /// In the order of [`FILE_COUNTS`].
    fn counts(&self) -> [u64; FILE_COUNTS.len()] {
        let arrived = self.times().0.iter().sum();
        let mut counts = [self.fetched(), arrived, 0, 0, 0, 0];
        for side in &self.failures {
            let Failures {
                late,
                corrupt,
                gone,
                failed,
            } = side.read();
            let more = [late, corrupt, gone, failed];
            counts[2..].iter_mut().zip(more).for_each(|(c, m)| *c += m);
        }
        counts
    }

    fn status(&self, table: &str) -> Value {
        let (times, sum_ns) = self.times();
        let mut file = json!({
            "table": table,
            "tier": self.tier,
            "state": self.state(),
            "fetch_p50_us": quantile_us(&times, 0.5),
            "fetch_p99_us": quantile_us(&times, 0.99),
            "fetch_sum_us": sum_ns / 1000,
            "fetch_us": times,
        });
        for ((name, _), count) in FILE_COUNTS.iter().zip(self.counts()) {
            file[*name] = count.into();
        }
        file
    }
}

/// Histograms of several workers as one, and the sum of all times.
fn sum_of<'a>(times: impl Iterator<Item = &'a Times>) -> ([u64; BUCKETS + 1], u64) {
    times.fold(([0; BUCKETS + 1], 0), |(all, sum), times| {
        let (counts, ns) = times.read();
        (core::array::from_fn(|i| all[i] + counts[i]), sum + ns)
    })
}

/// The bucket's end below which so many of the times are; nothing where there are none.
fn quantile_us(counts: &[u64; BUCKETS + 1], quantile: f64) -> Option<u64> {
    let total: u64 = counts.iter().sum();
    let wanted = ((total as f64 * quantile).ceil() as u64).max(1);
    let mut seen = 0;
    let bucket = counts.iter().position(|count| {
        seen += count;
        seen >= wanted
    })?;
    Some(1 << bucket)
}

/// A tier.
#[derive(Debug)]
pub struct TierView {
    /// How it is called.
    pub name: &'static str,
    /// What each worker has done with it, for the generations of each side.
    pub figures: Vec<Arc<TierFigures>>,
}

impl TierView {
    fn counts(&self) -> [u64; TIER_COUNTS.len()] {
        TierFigures::sum(self.figures.iter().map(|worker| &**worker))
    }
}

/// All listed tables.
#[derive(Debug)]
pub struct CacheView {
    /// Bytes that cached tables may have together.
    pub arena_bytes: u64,
    /// In the order of the configuration.
    pub tables: Vec<TableView>,
    /// What their rows are fetched from, in the order in which it is asked.
    pub tiers: Vec<TierView>,
}

impl CacheView {
    /// Where a table's rows are, if it is listed.
    pub fn placement(&self, name: &str) -> Option<Placement> {
        let table = self.tables.iter().find(|table| table.name == name);
        table.map(TableView::placement)
    }

    /// The generation of a side is the newest.
    pub(crate) fn switch(&self, side: Side) {
        self.tables.iter().for_each(|table| table.switch(side));
    }

    /// Bytes of all shares of cached tables.
    pub(crate) fn shares_bytes(&self) -> u64 {
        let cached = |table: &&TableView| table.placement() == Placement::Cached;
        let shares = self.tables.iter().filter(cached);
        shares.map(|table| table.share().shape.bytes() as u64).sum()
    }

    /// Whether a table may have this share beside those that others have.
    ///
    /// # Errors
    /// A sentence that says why not.
    pub(crate) fn has_room(&self, table: &TableView, shape: Shape) -> Result<(), String> {
        let own = match table.placement() {
            Placement::Cached => table.share().shape.bytes() as u64,
            Placement::Resident => 0,
        };
        let others = self.shares_bytes() - own;
        share::fits(shape.bytes() as u64, others, self.arena_bytes)
    }

    /// The bytes of the largest share of a cached table, and what its memory is made of.
    pub(crate) fn largest_share(&self) -> Option<(u64, Backing)> {
        let share = |table: &TableView| {
            let bytes = table.share().shape.bytes() as u64;
            Some((bytes, *table.store()?.backing()))
        };
        let shares = self.tables.iter().filter_map(share);
        shares.max_by_key(|(bytes, _)| *bytes)
    }

    /// The same of the largest table that is resident.
    pub(crate) fn largest_resident(&self) -> Option<(u64, Backing)> {
        let table = |table: &TableView| {
            let (_, kept) = table.newest();
            Some((kept.rows_bytes, *kept.resident?.backing()))
        };
        let tables = self.tables.iter().filter_map(table);
        tables.max_by_key(|(bytes, _)| *bytes)
    }

    /// Bytes of the rows of tables that have memory of their own.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let resident = |table: &&TableView| table.placement() == Placement::Resident;
        let tables = self.tables.iter().filter(resident);
        tables.map(|table| table.newest().1.rows_bytes).sum()
    }

    pub(crate) fn status(&self) -> Vec<Value> {
        self.tables.iter().map(TableView::status).collect()
    }

    /// The files that rows of the tables are fetched from.
    pub(crate) fn files_status(&self) -> Vec<Value> {
        let of_table = |table: &TableView| -> Vec<Value> {
            let files = table.files.iter();
            files.map(|file| file.status(&table.name)).collect()
        };
        self.tables.iter().flat_map(of_table).collect()
    }

    /// Rows that were asked for of copies.
    pub(crate) fn asked_of_copies(&self) -> u64 {
        let files = self.tables.iter().flat_map(|table| &table.files);
        let copies = files.filter(|file| file.tier == NAMES[1]);
        copies.map(FileView::fetched).sum()
    }

    /// What is behind the tables, where there are some.
    pub(crate) fn tiers_status(&self) -> Vec<Value> {
        let tier = |tier: &TierView| {
            let mut status = json!({ "tier": tier.name });
            for (what, count) in TIER_COUNTS.iter().zip(tier.counts()) {
                status[what.name] = count.into();
            }
            status
        };
        self.tiers.iter().map(tier).collect()
    }

    pub(crate) fn metrics(&self, out: &mut Metrics) {
        let label = |table: &TableView| format!("table=\"{}\"", escape(&table.name));
        let all = self.tables.iter();
        let files = all.flat_map(|table| table.files.iter().map(move |file| (table, file)));
        let behind =
            |table: &TableView, file: &FileView| format!("{},tier=\"{}\"", label(table), file.tier);
        let mut gauge = |name: &str, help: &str, value: &dyn Fn(&TableView) -> u64| {
            out.family(name, "gauge", help);
            for table in &self.tables {
                out.sample(name, &label(table), value(table));
            }
        };
        let is_cached = |table: &TableView| u64::from(table.placement() == Placement::Cached);
        let help = "Bytes of the arena for rows of the table.";
        gauge("rowmill_cache_share_bytes", help, &|table| {
            is_cached(table) * table.share().shape.bytes() as u64
        });
        let help = "Bytes that the table's share is on the way to have, or has.";
        gauge("rowmill_cache_wanted_bytes", help, &|table| {
            let share = table.share();
            is_cached(table) * share.wanted.unwrap_or(share.shape).bytes() as u64
        });
        let help = "Bytes of memory that the table's share takes, which is rounded up to pages.";
        gauge("rowmill_cache_memory_bytes", help, &|table| {
            table.memory_bytes() as u64
        });
        let help = "Rows that the table's share has room for.";
        gauge("rowmill_cache_share_rows", help, &|table| {
            is_cached(table) * u64::from(table.share().shape.slots())
        });
        let help = "Rows of the table in the cache.";
        gauge("rowmill_cache_held_rows", help, &TableView::held);
        let help = "Rows that deltas changed and that are in memory for that, in all generations.";
        gauge("rowmill_cache_patched_rows", help, &TableView::patched);
        let help = "Rows that a policy wants to stay in the cache.";
        gauge("rowmill_cache_pinned_rows", help, &|table| {
            table.wishes.pinned.load(Relaxed)
        });
        let help = "Rows that a policy wants to stay and that were there when it was looked last.";
        gauge("rowmill_cache_pinned_held_rows", help, &|table| {
            table.wishes.pinned_held.load(Relaxed)
        });
        let name = "rowmill_cache_misses_total";
        out.family(
            name,
            "counter",
            "Rows looked up that were not in the cache.",
        );
        for table in &self.tables {
            out.sample(name, &label(table), table.misses());
        }
        for (what, name, help) in COUNTS {
            let name = format!("rowmill_cache_{name}_total");
            out.family(&name, "counter", help);
            for table in &self.tables {
                out.sample(&name, &label(table), table.get(what));
            }
        }
        for (at, (name, help)) in FILE_COUNTS.into_iter().enumerate() {
            let name = format!("rowmill_tier_{name}_total");
            out.family(&name, "counter", help);
            for (table, file) in files.clone() {
                out.sample(&name, &behind(table, file), file.counts()[at]);
            }
        }
        let name = "rowmill_tier_bypassed_workers";
        let help =
            "Workers that ask the next tier at once, since rows of this one did not come in time.";
        out.family(name, "gauge", help);
        for (table, file) in files.clone() {
            out.sample(name, &behind(table, file), file.bypassing());
        }
        for (at, what) in TIER_COUNTS.iter().enumerate() {
            let name = format!("rowmill_tier_{}_total", what.name);
            out.family(&name, "counter", what.help);
            for tier in &self.tiers {
                let labels = format!("tier=\"{}\"", tier.name);
                out.sample(&name, &labels, tier.counts()[at]);
            }
        }
        let name = "rowmill_fetch_seconds";
        let help = "Time from when a row is asked of a tier until it comes from there.";
        out.family(name, "histogram", help);
        for (table, file) in files {
            out.histogram(name, &behind(table, file), file.times());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_ends_of_buckets() {
        let mut counts = [0; BUCKETS + 1];
        assert_eq!(quantile_us(&counts, 0.5), None);
        counts[3] = 98;
        counts[7] = 2;
        assert_eq!(quantile_us(&counts, 0.5), Some(8));
        assert_eq!(quantile_us(&counts, 0.98), Some(8));
        assert_eq!(quantile_us(&counts, 0.99), Some(128));
    }
}
