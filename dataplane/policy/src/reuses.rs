//! Uses of cached rows, counted by what was known of the row.

use super::ages::{BANDS, band};
use super::word::{CLASSES, Tick, Word};

/// Counts of uses by the class of the row and by its age then. Each worker has one of its own, in which it counts the hits whose
/// words it touches, and hands it to its [`Policy`](super::Policy).
#[derive(Clone, Debug)]
pub struct Reuses {
    /// By class, lane and band. As many bands as fill vectors, which tell at once that all are zero.
    counts: [[[u32; ROOM]; LANES]; CLASSES],
}

/// Counts are in turns of one lane and another: many uses that follow one another are of one class and band, and a count that was
/// just stored has to be waited for.
const LANES: usize = 2;
const ROOM: usize = BANDS.next_power_of_two();

impl Reuses {
    /// None yet.
    #[expect(clippy::new_without_default, reason = "one way to make it is enough")]
    pub fn new() -> Reuses {
        Reuses {
            counts: [[[0; ROOM]; LANES]; CLASSES],
        }
    }

    /// Counts a use of a row, of which this was the word before it. `n` counts the calls, more or less.
    #[inline]
    pub fn count(&mut self, n: usize, word: Word, now: Tick) {
        let count = &mut self.counts[word.class()][n % LANES][band(word.age(now))];
        *count = count.wrapping_add(1);
    }

    /// Calls `each` with class, band and number of what was counted; from then on it counts from zero.
    pub(super) fn take(&mut self, mut each: impl FnMut(usize, usize, u32)) {
        for (class, lanes) in self.counts.iter_mut().enumerate() {
            if lanes
                .as_flattened()
                .iter()
                .fold(0, |any, count| any | count)
                == 0
            {
                continue;
            }
            for band in 0..BANDS {
                let count = lanes.iter().fold(0, |sum, lane| sum + lane[band]);
                if count > 0 {
                    each(class, band, count);
                }
            }
            *lanes = [[0; ROOM]; LANES];
        }
    }
}
