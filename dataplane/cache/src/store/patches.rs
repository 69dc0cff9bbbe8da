//! Rows of a cached table that deltas changed, in slots of their own behind those of the sets.
//!
//! Whoever looks a row up looks here behind the tags, and what is found here is the row, whatever the store holds of it or its tier would give. So
//! nothing that is on its way, staged or in a set has to be looked for when a row changes, and none that is older comes back. Rows stay here as long
//! as the store does.
//!
//! One thread patches at a time. It writes the new row to a slot that nobody reads, and then [sets](StandIns::set) that as the row's: a row is seen
//! as it was or as it is, and whoever has been told of the one by somebody finds it, too. The slot that the row had before is free when all turns
//! have ended that may have found it.
//!
//! What says which rows these are doubles when it is full: the next *level* is filled with all of them, and is the one that is looked at from then
//! on. Readers may still look at the one before, so all of them stay, which together are as large as the last.

use std::collections::TryReserveError;
use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

use super::sync::{AtomicU64, Ordering, StandIns};

/// Rows of the first level.
pub(super) const LEAST: u32 = 1024;
/// Each has twice as many rows as the one before: from those on all that a table may have.
const LEVELS: usize = 22;
/// Rows that are written before slots that they had are waited for: so many more slots than rows are needed.
pub(super) const CHUNK: usize = 4096;

/// Why rows can't become others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lacking {
    /// There would be more than there may be.
    Places,
    /// There is no memory for what says which rows these are.
    Index(TryReserveError),
}

/// See the module's text.
pub(super) struct Patches {
    /// The first slot, and how many rows there may be.
    first: u32,
    most: u32,
    /// Rows of the first level.
    least: u32,
    levels: [OnceLock<StandIns>; LEVELS],
    /// One more than the level that is looked at; 0 as long as no row is here.
    level: AtomicU64,
    /// How many rows are here, for who only looks.
    rows: AtomicU64,
    slots: Mutex<Slots>,
}

/// Slots by what they are for.
struct Slots {
    /// Those of rows, and free ones, are the first so many.
    used: u32,
    free: Vec<u32>,
    rows: u32,
}

impl fmt::Debug for Patches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Patches")
            .field("first", &self.first)
            .field("most", &self.most)
            .finish_non_exhaustive()
    }
}

impl Patches {
    /// None are there; at most `most` can be, in slots from `first` on, of which there are [`CHUNK`] more. The first level has `least`.
    pub(super) fn new(first: u32, most: u32, least: u32) -> Patches {
        Patches {
            first,
            most,
            least,
            levels: [const { OnceLock::new() }; LEVELS],
            level: AtomicU64::new(0),
            rows: AtomicU64::new(0),
            slots: Mutex::new(Slots {
                used: 0,
                free: Vec::new(),
                rows: 0,
            }),
        }
    }

    /// A reader's, in a turn: puts the slots of rows that are here into their places, and tells how many of these were `missed` before.
    #[inline]
    pub(super) fn put(&self, rows: &[u32], places: &mut [u32], missed: u32) -> usize {
        let Some(level) = self.level() else {
            return 0;
        };
        let mut found = 0;
        level.each(rows, |at, slot| {
            found += usize::from(places[at] == missed);
            places[at] = slot;
        });
        found
    }

    /// The level that is looked at; none as long as no row is here.
    #[inline]
    fn level(&self) -> Option<&StandIns> {
        let number = self.level.load(Ordering::Acquire);
        let level = self.levels.get((number as usize).wrapping_sub(1))?;
        level.get()
    }

    /// Rows that are here. Waits for nobody.
    pub(super) fn rows(&self) -> u32 {
        self.rows.load(Ordering::Relaxed) as u32
    }

    /// How many more rows can be here.
    pub(super) fn room(&self) -> u32 {
        self.most - self.rows()
    }

    /// How many of these rows are not here.
    pub(super) fn lacking(&self, rows: &[u32]) -> usize {
        let is_lacking = |row: &&u32| self.level().and_then(|level| level.of(**row)).is_none();
        rows.iter().filter(is_lacking).count()
    }

    /// Rows become others, each of which is named once: `write` writes those of a chunk, by their positions, to slots, of which it is told first how
    /// many are used from then on. `pass` returns when all turns have ended that had begun when it was called.
    ///
    /// # Errors
    /// [`Lacking`], and whatever `make` ends with; rows of the chunks before have become others then.
    pub(super) fn change<E: From<Lacking>>(
        &self,
        rows: &[u32],
        make: &mut dyn FnMut(u32) -> Result<(), E>,
        write: &mut dyn FnMut(usize, u32),
        pass: &mut dyn FnMut(),
    ) -> Result<(), E> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left = Vec::new();
        for (chunk, rows) in rows.chunks(CHUNK).enumerate() {
            let all = u64::from(slots.rows) + self.lacking(rows) as u64;
            if all > self.most.into() {
                return Err(Lacking::Places.into());
            }
            let more = rows.len().saturating_sub(slots.free.len());
            make(slots.used + more as u32)?;
            let level = self.level_for(all as u32)?;
            for (position, &row) in rows.iter().enumerate() {
                let slot = slots.take(self.first);
                write(chunk * CHUNK + position, slot);
                match level.set(row, slot) {
                    Some(former) => left.push(former),
                    None => slots.rows += 1,
                }
            }
            self.rows.store(slots.rows.into(), Ordering::Relaxed);
            if !left.is_empty() {
                pass();
                slots.free.append(&mut left);
            }
        }
        Ok(())
    }

    /// The level that is looked at from now on, in which so many rows have room.
    fn level_for(&self, rows: u32) -> Result<&StandIns, Lacking> {
        let number = self.number_for(rows);
        let now = self.level.load(Ordering::Relaxed) as usize;
        if now > number {
            return Ok(self.levels[now - 1].get().expect("it is looked at"));
        }
        let made = StandIns::try_new(self.least << number).map_err(Lacking::Index)?;
        let next = self.levels[number].get_or_init(|| made);
        if let Some(last) = self.level() {
            for (row, slot) in last.all() {
                next.set(row, slot);
            }
        }
        // Whoever looks there finds all that was in the one before.
        self.level.store(number as u64 + 1, Ordering::Release);
        Ok(next)
    }

    /// The first level in which so many rows have room.
    fn number_for(&self, rows: u32) -> usize {
        rows.div_ceil(self.least).next_power_of_two().ilog2() as usize
    }

    /// Bytes of all levels.
    pub(super) fn bytes(&self) -> usize {
        let levels = self.levels.iter().enumerate();
        let there = levels.filter(|(_, level)| level.get().is_some());
        let bytes = there.map(|(number, _)| StandIns::bytes(self.least << number));
        bytes.sum()
    }

    /// Bytes of slots, each of so many, and of a level, that are to be had if so many more rows come.
    pub(super) fn bytes_for(&self, more: u32, stride: usize) -> usize {
        let (used, rows) = {
            let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            (slots.used, slots.rows)
        };
        let all = rows.saturating_add(more);
        let slots = u64::from(all) + CHUNK as u64;
        let slots = slots.saturating_sub(used.into()) as usize * stride;
        let (number, now) = (self.number_for(all), self.level.load(Ordering::Relaxed));
        match (now as usize) > number {
            true => slots,
            false => slots + StandIns::bytes(self.least << number),
        }
    }
}

impl Slots {
    /// A slot that nobody reads.
    fn take(&mut self, first: u32) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.used += 1;
            first + self.used - 1
        })
    }
}
