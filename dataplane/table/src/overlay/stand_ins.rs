//! Which rows stand in for others right now.
//!
//! One thread fills this, shows it, and hides it; readers ask at any time. It is filled again only when every reader has passed a point
//! at which it had nothing in hand, since it was hidden: so nobody looks at what is being filled, and the stores to it need no order but
//! that of [`show`](StandIns::show), which releases, and [`are_shown`](StandIns::are_shown), which acquires.
//!
//! Or they stay, and the thread [sets](StandIns::set) one after another while readers ask. A reader that finds a row's stand-in acquires what was
//! written before it was set; and so does whoever is told of it: it finds the row's bit in the filter, too, which was set before.

use std::collections::TryReserveError;

use super::sync::{AtomicU32, AtomicU64, Ordering};

/// No row.
const NONE: u64 = u64::MAX;
/// Bits of the filter for each row that may have a stand-in, of which it sets two: of the others one row in some 50 is looked for in vain where all have
/// one (four rows a word on average: 4 (16 + 4) / 64^2).
const FILTER_BITS: usize = 16;

/// Rows that are looked for in the filter together.
const TOGETHER: usize = 64;

/// Which rows have others in their place, and which these are.
#[derive(Debug)]
pub struct StandIns {
    /// How many rows have one now; 0 where nothing is shown.
    shown: AtomicU32,
    /// Two bits for each hash: none of the rows has it unless both are set.
    filter: Box<[AtomicU64]>,
    /// A row in the upper half and its stand-in in the lower, or [`NONE`]: at the place of the row's hash or in the next ones. At most half
    /// of them are taken.
    entries: Box<[AtomicU64]>,
}

impl StandIns {
    /// None are shown; `most` rows can have one at a time.
    pub fn new(most: u32) -> StandIns {
        StandIns::try_new(most).expect("a little memory")
    }

    /// The same where that takes much memory.
    ///
    /// # Errors
    /// If there is none.
    pub fn try_new(most: u32) -> Result<StandIns, TryReserveError> {
        let (filter, entries) = StandIns::words(most);
        Ok(StandIns {
            shown: AtomicU32::new(0),
            filter: words(filter, 0)?,
            entries: words(entries, NONE)?,
        })
    }

    /// Words of the filter, and entries.
    fn words(most: u32) -> (usize, usize) {
        let bits = (most as usize * FILTER_BITS).next_power_of_two().max(64);
        (bits / 64, (2 * most as usize).next_power_of_two())
    }

    /// The bytes that it takes.
    pub fn bytes(most: u32) -> usize {
        let (filter, entries) = StandIns::words(most);
        size_of::<u64>() * (filter + entries)
    }

    /// A reader's: whether rows have others in their place. What was written before they were shown, or hidden, is seen from here on.
    #[inline]
    pub fn are_shown(&self) -> bool {
        self.shown.load(Ordering::Acquire) != 0
    }

    /// A reader's, that has just found them shown: puts stand-ins in the place of the rows that have one.
    pub fn put(&self, rows: &mut [u32]) {
        for row in rows {
            *row = self.of(*row).unwrap_or(*row);
        }
    }

    /// A reader's, that has just found them shown: gives `found` the position and the stand-in of each of the rows that has one.
    ///
    /// The filter is asked for many rows before any is looked for, so that no branch waits for it.
    #[inline]
    pub fn each(&self, rows: &[u32], mut found: impl FnMut(usize, u32)) {
        for (rows, from) in rows.chunks(TOGETHER).zip((0..).step_by(TOGETHER)) {
            let mut perhaps = 0_u64;
            for (at, &row) in rows.iter().enumerate() {
                let (word, bits) = self.filter_bits(hash(row));
                let is_set = self.filter[word].load(Ordering::Relaxed) & bits == bits;
                perhaps |= u64::from(is_set) << at;
            }
            while perhaps != 0 {
                let at = perhaps.trailing_zeros() as usize;
                perhaps &= perhaps - 1;
                if let Some(stand_in) = self.find(rows[at], hash(rows[at])) {
                    found(from + at, stand_in);
                }
            }
        }
    }

    /// A row's stand-in. A reader's, that has just found them shown; the filling thread's at any time.
    #[inline]
    pub fn of(&self, row: u32) -> Option<u32> {
        let hash = hash(row);
        let (word, bits) = self.filter_bits(hash);
        if self.filter[word].load(Ordering::Relaxed) & bits != bits {
            return None;
        }
        self.find(row, hash)
    }

    /// The filling thread's, also while readers ask: a row has this stand-in from now on, whose bytes were written before. Returns the one that it had.
    ///
    /// # Panics
    /// If there would be more rows than there is room for.
    pub fn set(&self, row: u32, place: u32) -> Option<u32> {
        let entry = u64::from(row) << 32 | u64::from(place);
        let hash = hash(row);
        let mut at = self.place(hash);
        for _ in 0..=self.entries.len() / 2 {
            let former = self.entries[at].load(Ordering::Relaxed);
            if former != NONE && (former >> 32) as u32 != row {
                at = self.next(at);
                continue;
            }
            let (word, bits) = self.filter_bits(hash);
            let before = self.filter[word].load(Ordering::Relaxed);
            self.filter[word].store(before | bits, Ordering::Relaxed);
            // Whoever finds it sees the row that stands in, and has others see the filter.
            self.entries[at].store(entry, Ordering::Release);
            return (former != NONE).then_some(former as u32);
        }
        panic!("no more rows than there is room for");
    }

    /// The filling thread's: all rows that have a stand-in, each with it.
    pub fn all(&self) -> impl Iterator<Item = (u32, u32)> {
        let entries = (self.entries.iter()).map(|entry| entry.load(Ordering::Relaxed));
        let taken = entries.filter(|&entry| entry != NONE);
        taken.map(|entry| ((entry >> 32) as u32, entry as u32))
    }

    /// The filling thread's: the rows that are to have one, each once, with `first` and those after it as stand-ins. Nothing is shown, and no
    /// reader still looks at what was.
    pub fn fill(&self, rows: &[u32], first: u32) {
        assert!(
            rows.len() * 2 <= self.entries.len(),
            "no more rows than there is room for"
        );
        for word in &self.filter {
            word.store(0, Ordering::Relaxed);
        }
        for entry in &self.entries {
            entry.store(NONE, Ordering::Relaxed);
        }
        for (&row, place) in rows.iter().zip(first..) {
            self.set(row, place);
        }
    }

    /// The filling thread's: from now on rows have their stand-ins, whose bytes were written before.
    pub fn show(&self, rows: u32) {
        self.shown.store(rows, Ordering::Release);
    }

    /// The filling thread's: from now on rows stand for themselves again, with the bytes that were written before.
    pub fn hide(&self) {
        self.shown.store(0, Ordering::Release);
    }

    fn find(&self, row: u32, hash: u64) -> Option<u32> {
        let mut at = self.place(hash);
        loop {
            let entry = self.entries[at].load(Ordering::Acquire);
            if entry == NONE {
                return None;
            }
            if (entry >> 32) as u32 == row {
                return Some(entry as u32);
            }
            at = self.next(at);
        }
    }

    /// The word of a hash, and its two bits there.
    fn filter_bits(&self, hash: u64) -> (usize, u64) {
        let word = (hash >> 32) as usize & (self.filter.len() - 1);
        (word, 1 << (hash & 63) | 1 << (hash >> 6 & 63))
    }

    fn place(&self, hash: u64) -> usize {
        // Other bits than the filter's lowest, so that rows which meet there don't meet here.
        (hash >> 11) as usize & (self.entries.len() - 1)
    }

    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.entries.len() - 1)
    }
}

fn words(count: usize, value: u64) -> Result<Box<[AtomicU64]>, TryReserveError> {
    let mut words = Vec::new();
    words.try_reserve_exact(count)?;
    words.extend((0..count).map(|_| AtomicU64::new(value)));
    Ok(words.into_boxed_slice())
}

/// Spreads rows: Fibonacci hashing, and the high bits folded in, since multiplying moves nothing down.
fn hash(row: u32) -> u64 {
    let product = u64::from(row).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ (product >> 29)
}
