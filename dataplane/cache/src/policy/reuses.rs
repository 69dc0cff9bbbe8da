//! Uses of cached rows, counted by what was known of the row.

use super::ages::{BANDS, band};
use super::word::{CLASSES, Tick, Word};

/// Counts of uses by the class of the row and by its age then. Each worker has one of its own, in which it counts the hits whose
/// words it touches, and hands it to its [`Policy`](super::Policy).
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

    /// Calls `each` with class, band and number of what was counted; from then on it counts from zero.
    pub(super) fn take(&mut self, mut each: impl FnMut(usize, usize, u32)) {
        for (class, bands) in self.counts.iter_mut().enumerate() {
            for (band, count) in bands.iter_mut().enumerate() {
                if *count > 0 {
                    each(class, band, std::mem::take(count));
                }
            }
        }
    }
}
