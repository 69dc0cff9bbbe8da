//! Which rows stand in for others right now.
//!
//! One thread fills this, shows it, and hides it; readers ask at any time. It is filled again only when every reader has passed a point
//! at which it had nothing in hand, since it was hidden: so nobody looks at what is being filled, and the stores to it need no order but
//! that of [`show`](StandIns::show), which releases, and [`are_shown`](StandIns::are_shown), which acquires.

use super::sync::{AtomicU32, AtomicU64, Ordering};

/// No row.
const NONE: u64 = u64::MAX;
/// Bits of the filter for each row that may have a stand-in: one row in 16 of the others is looked for in vain where all have one.
const FILTER_BITS: u32 = 16;

/// Which rows have others in their place, and which these are.
#[derive(Debug)]
pub(crate) struct StandIns {
    /// How many rows have one now; 0 where nothing is shown.
    shown: AtomicU32,
    /// A bit for each hash: none of the rows has it unless the bit is set.
    filter: Box<[AtomicU64]>,
    /// A row in the upper half and its stand-in in the lower, or [`NONE`]: at the place of the row's hash or in the next ones. At most half
    /// of them are taken.
    entries: Box<[AtomicU64]>,
}

impl StandIns {
    /// None are shown; `most` rows can have one at a time, at most 2^20.
    pub(crate) fn new(most: u32) -> StandIns {
        let bits = (most * FILTER_BITS).next_power_of_two().max(64);
        let entries = (2 * most).next_power_of_two();
        StandIns {
            shown: AtomicU32::new(0),
            filter: (0..bits / 64).map(|_| AtomicU64::new(0)).collect(),
            entries: (0..entries).map(|_| AtomicU64::new(NONE)).collect(),
        }
    }

    /// A reader's: whether rows have others in their place. What was written before they were shown, or hidden, is seen from here on.
    #[inline]
    pub(crate) fn are_shown(&self) -> bool {
        self.shown.load(Ordering::Acquire) != 0
    }

    /// A reader's, that has just found them shown: puts stand-ins in the place of the rows that have one.
    pub(crate) fn put(&self, rows: &mut [u32]) {
        for row in rows {
            let hash = hash(*row);
            let (word, bit) = self.filter_bit(hash);
            if self.filter[word].load(Ordering::Relaxed) & bit != 0 {
                *row = self.find(*row, hash);
            }
        }
    }

    /// The filling thread's: the rows that are to have one, each once, with `first` and those after it as stand-ins. Nothing is shown, and no
    /// reader still looks at what was.
    pub(crate) fn fill(&self, rows: &[u32], first: u32) {
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
            let hash = hash(row);
            let (word, bit) = self.filter_bit(hash);
            let bits = self.filter[word].load(Ordering::Relaxed);
            self.filter[word].store(bits | bit, Ordering::Relaxed);
            let mut at = self.place(hash);
            while self.entries[at].load(Ordering::Relaxed) != NONE {
                at = self.next(at);
            }
            let entry = u64::from(row) << 32 | u64::from(place);
            self.entries[at].store(entry, Ordering::Relaxed);
        }
    }

    /// The filling thread's: from now on rows have their stand-ins, whose bytes were written before.
    pub(crate) fn show(&self, rows: u32) {
        self.shown.store(rows, Ordering::Release);
    }

    /// The filling thread's: from now on rows stand for themselves again, with the bytes that were written before.
    pub(crate) fn hide(&self) {
        self.shown.store(0, Ordering::Release);
    }

    /// The row's stand-in, or itself where it has none.
    fn find(&self, row: u32, hash: u64) -> u32 {
        let mut at = self.place(hash);
        loop {
            let entry = self.entries[at].load(Ordering::Relaxed);
            if entry == NONE {
                return row;
            }
            if (entry >> 32) as u32 == row {
                return entry as u32;
            }
            at = self.next(at);
        }
    }

    fn filter_bit(&self, hash: u64) -> (usize, u64) {
        let bit = (hash >> 32) as usize & (self.filter.len() * 64 - 1);
        (bit / 64, 1 << (bit % 64))
    }

    fn place(&self, hash: u64) -> usize {
        // Other bits than the filter's lowest, so that rows which meet there don't meet here.
        (hash >> 11) as usize & (self.entries.len() - 1)
    }

    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.entries.len() - 1)
    }
}

/// Spreads rows: Fibonacci hashing, and the high bits folded in, since multiplying moves nothing down.
fn hash(row: u32) -> u64 {
    let product = u64::from(row).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ (product >> 29)
}
