//! Uses of cached rows, counted by what was known of the row.

use super::ages::{BANDS, band};
use super::word::{CLASSES, Tick, Word};

/// Counts of uses by the class of the row and by its age then. Each worker has one of its own, in which it counts the hits whose
/// words it touches, and hands it to the [`Policy`](super::Policy) now and then.
#[derive(Clone, Debug)]
pub struct Reuses {
    counts: [[u32; BANDS]; CLASSES],
}

impl Reuses {
    /// None yet.
    #[expect(clippy::new_without_default, reason = "one way to make it is enough")]
    pub fn new() -> Reuses {
        Reuses {
            counts: [[0; BANDS]; CLASSES],
        }
    }

    /// Counts a use of a row, of which this was the word before it.
    #[inline]
    pub fn count(&mut self, word: Word, now: Tick) {
        let count = &mut self.counts[word.class()][band(word.age(now))];
        *count = count.saturating_add(1);
    }

    /// What was counted, by class and band; from then on it counts from zero.
    pub(super) fn take(&mut self) -> [[u32; BANDS]; CLASSES] {
        std::mem::replace(&mut self.counts, [[0; BANDS]; CLASSES])
    }
}
