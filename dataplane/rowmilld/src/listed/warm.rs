//! The cache of a generation that comes is warmed with the rows that were hot in it when it was served before, as far as that is known, and with
//! those that are hot in the newest.
//!
//! The thread that brings it reads them from the file and gives workers a few at a time, which put them into empty slots between two of their
//! turns: reading them would cost a worker ten times as much, and requests that are in progress wait for what it does.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use anyhow::Context;
use rowmill_cache::WarmRows;
use rowmill_cache::warm::WarmTable;
use rowmill_engine::Side;
use rowmill_table::{PAGE_BYTES, PageChecksums, ResidentTable, TableInfo};
use rustix::fs::{Advice, fadvise};

use super::bring::is_dense;
use super::{Listed, Model};
use crate::cache_view::TableView;
use crate::turnover::Rows;

/// Hot rows of so many at a time are read in the order in which they lie in their file.
const IN_ORDER: usize = 16_384;
/// Rows that a worker keeps between two turns: each takes about half a microsecond.
const ROWS: usize = 16;
/// Rows of all tables together: about as many as are given in that time, with some 100 MB for their numbers.
pub(crate) const MOST_ROWS: u64 = 1 << 22;
/// What is not loaded by then comes when it is asked for.
const MOST: Duration = Duration::from_secs(60);

/// The file of a table.
struct Source {
    info: TableInfo,
    checksums: PageChecksums,
    file: File,
    /// The pages that were read last, and their bytes: none where one is damaged.
    pages: std::ops::Range<u64>,
    bytes: Vec<u8>,
}

impl Source {
    fn open(model: &Model, view: &TableView) -> anyhow::Result<Source> {
        let path = model.path(view);
        let context = || format!("cannot read {}", path.display());
        let file = File::open(&path).with_context(context)?;
        let checksums = model.generation.page_checksums(&view.name);
        Ok(Source {
            info: model.generation.tables()[model.number(view)].clone(),
            checksums: checksums.with_context(context)?,
            file,
            pages: 0..0,
            bytes: Vec::new(),
        })
    }

    /// Puts a row behind others. Returns whether it could: not where its page is damaged.
    fn read(&mut self, row: u32, out: &mut Vec<u8>) -> anyhow::Result<bool> {
        let place = self.info.row_place(row);
        if self.pages != place.pages() {
            self.pages = place.pages();
            let from = self.pages.start * PAGE_BYTES as u64;
            let count = (self.pages.end - self.pages.start) as usize;
            self.bytes.resize(count * PAGE_BYTES, 0);
            self.file.read_exact_at(&mut self.bytes, from)?;
            let (pages, _) = self.bytes.as_chunks::<PAGE_BYTES>();
            let mut numbered = self.pages.clone().zip(pages);
            if !numbered.all(|(number, page)| self.checksums.is_whole(number, page)) {
                self.bytes.clear();
            }
        }
        let from = (place.offset - self.pages.start * PAGE_BYTES as u64) as usize;
        let bytes = self.bytes.get(from..from + place.bytes);
        out.extend_from_slice(bytes.unwrap_or_default());
        Ok(bytes.is_some())
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        // Others read past the page cache.
        let _given_back = fadvise(&self.file, 0, None, Advice::DontNeed);
    }
}

impl Listed {
    /// Gives workers the rows of a side's generation that were hot `before`, and that are in the newest, by `tell`, for a while. Returns how many
    /// there were, and are.
    pub(crate) fn warm(
        &self,
        side: Side,
        before: &[WarmTable],
        tell: &dyn Fn(Rows),
        running: &dyn Fn(String),
    ) -> (usize, usize) {
        let (newest, began) = (self.newest(), Instant::now());
        let Some(other) = self.models()[side.index()].clone() else {
            return (0, 0);
        };
        let stores = self.views().iter().map(|view| (view, view.store()));
        let stores: Vec<_> = stores
            .filter_map(|(view, store)| Some((view, store?)))
            .collect();
        let all: u64 = stores
            .iter()
            .map(|(_, store)| u64::from(store.shape().slots()))
            .sum();
        let (mut hot, mut given) = (0, 0);
        for (view, store) in stores {
            let slots = u64::from(store.shape().slots());
            let most = slots.min(slots * MOST_ROWS / all.max(1));
            let table = |model: &Model| model.tables.tables()[model.number(view)].clone();
            let (newest, after) = (table(&newest), table(&other));
            let hot_now = renumbered(&store.hot(most as usize), &newest, &after);
            let before = before.iter().find(|table| table.name == view.name);
            let before = before.map_or(&[][..], |table| &table.rows);
            let mut rows = both(before, hot_now, &after);
            rows.truncate(most as usize);
            hot += rows.len();
            let gives = |rows: Rows| {
                running(format!("loading rows that are hot, {given} so far"));
                given += rows.rows.len();
                tell(rows);
                began.elapsed() < MOST
            };
            if let Err(error) = self.give((view, side), &other, rows, gives) {
                tracing::warn!(
                    "rows of table {} come when they are asked for: {error:#}",
                    view.name
                );
            }
        }
        (hot, given)
    }

    /// Reads rows of a table, and gives them on as long as that is wanted.
    fn give(
        &self,
        (view, side): (&TableView, Side),
        model: &Model,
        rows: Vec<u32>,
        mut gives: impl FnMut(Rows) -> bool,
    ) -> anyhow::Result<()> {
        let mut source = Source::open(model, view)?;
        let uses = WarmRows::uses(&rows);
        let mut rows: Vec<(u32, u32)> = rows.into_iter().zip(uses).collect();
        rows.chunks_mut(IN_ORDER).for_each(<[_]>::sort_unstable);
        for some in rows.chunks(ROWS * self.means.mailboxes.len()) {
            let mut read = Rows {
                table: view.home_on(side),
                rows: Vec::with_capacity(some.len()),
                uses: Vec::with_capacity(some.len()),
                bytes: Vec::new(),
            };
            for &(row, uses) in some {
                if source.read(row, &mut read.bytes)? {
                    read.rows.push(row);
                    read.uses.push(uses);
                }
            }
            if !gives(read) {
                break;
            }
        }
        Ok(())
    }
}

/// Rows that were hot in a table before, and behind them others that are now.
fn both(before: &[u32], mut now: Vec<u32>, table: &ResidentTable) -> Vec<u32> {
    let is_there = |row: &&u32| **row < table.lookup_count();
    let mut rows: Vec<u32> = before.iter().filter(is_there).copied().collect();
    if rows.is_empty() {
        return now;
    }
    let mut known = rows.clone();
    known.sort_unstable();
    now.retain(|row| known.binary_search(row).is_err());
    rows.append(&mut now);
    rows
}

/// The numbers that rows of one generation's table have in another one's: those of the same ids.
fn renumbered(rows: &[u32], before: &ResidentTable, after: &ResidentTable) -> Vec<u32> {
    if is_dense(before.kind()) {
        let is_there = |row: &&u32| **row < after.row_count();
        return rows.iter().filter(is_there).copied().collect();
    }
    let mut ranks: Vec<(u32, u32)> = rows.iter().copied().zip(0..).collect();
    ranks.sort_unstable();
    let rank = |row: u32| {
        let at = ranks.binary_search_by_key(&row, |(row, _)| *row).ok()?;
        Some(ranks[at].1)
    };
    let mut keys: Vec<(u32, u64)> = before
        .entries()
        .filter_map(|(key, row)| Some((rank(row)?, key)))
        .collect();
    keys.sort_unstable();
    let mut renumbered = Vec::with_capacity(keys.len());
    // Keys that are not there lead to one row behind all others, or to none.
    for (_, key) in keys {
        let mut row = [0];
        let is_there = after.resolve(&[key], &mut row).is_ok() && row[0] < after.lookup_count();
        renumbered.extend(is_there.then_some(row[0]));
    }
    renumbered
}
