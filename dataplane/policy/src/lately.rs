//! Whether rows that lie unused have gone out of use.
//!
//! The model says how often rows of a class and an age are used, over a long time. Where popularity shifts there are times in which old rows are
//! used far less than that, however often they were used before, while young ones are used as ever. So for each doubling of age it is counted how
//! many uses there were lately, and how many the model expected; ranks of rows of ages that fall short of younger ones are lowered by as much, and those of all
//! older ones at least as far.
//!
//! That is myopic: rows may lie unused now and all come again soon, as in a loop. So ranks are lowered only as far as a cache by recency would have
//! more hits at present than there are ([`Stack`](super::stack::Stack)), and not at all for some time after rows went by recency altogether
//! ([`Contest`](super::contest::Contest)).

use super::ages::BANDS;
use super::stack::Uses;

/// Doublings of age, of two bands each.
const OCTAVES: usize = BANDS / 2;
/// Lookups over which uses count: a sixteenth of what it takes to look up as many rows as there are slots, but enough to have looked at some hundred words.
const RECENT: (f64, f64) = (1.0 / 16.0, 500.0);
/// Lookups over which hits are compared with those of a cache by recency.
const COMPARED: (f64, f64) = (0.25, 1_000.0);
/// What is found counts as if so many uses more had been expected: counts are noisy.
const DOUBTED_USES: f64 = 8.0;
/// Old rows may be used so many times less than young ones before it is held against them.
const TOLERATED: f64 = 1.3;
/// Something of a rank is left always.
const LEAST: f64 = 0.1;
/// Of the lookups, what a cache by recency has more when ranks are lowered as far as is found. Where it
/// counts that recency has less by no more than that, `zipf-0.6` loses 0.4 points with 100,000 slots.
const CONVINCING: f64 = 0.01;

/// See the module's text.
#[derive(Clone, Debug)]
pub(super) struct Lately {
    slots: f64,
    uses: [f64; OCTAVES],
    expected: [f64; OCTAVES],
    /// Hits that a cache by recency has more, of a lookup.
    by_recency: f64,
    /// What is left of ranks.
    left: [f32; OCTAVES],
}

impl Lately {
    pub(super) fn new(slots: usize) -> Lately {
        Lately {
            slots: slots as f64,
            uses: [0.0; OCTAVES],
            expected: [0.0; OCTAVES],
            by_recency: 0.0,
            left: [1.0; OCTAVES],
        }
    }

    /// There are so many slots from now on.
    pub(super) fn resize(&mut self, slots: usize) {
        self.slots = slots as f64;
    }

    /// Rows were used at ages in a band.
    pub(super) fn used(&mut self, band: usize, times: f64) {
        self.uses[band / 2] += times;
    }

    /// So many uses of rows at ages in a band were expected.
    pub(super) fn expected(&mut self, band: usize, times: f64) {
        self.expected[band / 2] += times;
    }

    /// What came of some lookups.
    pub(super) fn learn(&mut self, uses: Uses) {
        let more = (uses.by_recency - uses.had) / uses.lookups;
        let kept = self.kept(COMPARED, uses.lookups);
        self.by_recency = more + (self.by_recency - more) * kept;
    }

    /// So many lookups were done. `is_believed`: ranks may be lowered.
    pub(super) fn pass(&mut self, lookups: f64, is_believed: bool) {
        let belief = if is_believed {
            (self.by_recency / CONVINCING).clamp(0.0, 1.0)
        } else {
            0.0
        };
        let kept = self.kept(RECENT, lookups);
        let (mut uses, mut expected, mut lowest) = (0.0, 0.0, 1.0);
        for octave in 0..OCTAVES {
            let of_octave = (&mut self.uses[octave], &mut self.expected[octave]);
            // What is not known of younger rows is held against no older ones.
            let younger = (uses / (expected + DOUBTED_USES)).min(1.0);
            let older = (*of_octave.0 + DOUBTED_USES) / (*of_octave.1 + DOUBTED_USES);
            if older * TOLERATED < younger * lowest {
                lowest = (older * TOLERATED / younger).max(LEAST);
            }
            self.left[octave] = (1.0 - belief * (1.0 - lowest)) as f32;
            uses += *of_octave.0;
            expected += *of_octave.1;
            *of_octave.0 *= kept;
            *of_octave.1 *= kept;
        }
    }

    /// What is left of the rank of a row at an age in this band.
    #[inline]
    pub(super) fn left(&self, band: usize) -> f32 {
        self.left[band / 2]
    }

    /// What is kept of counts after so many lookups.
    fn kept(&self, (per_slot, at_least): (f64, f64), lookups: f64) -> f64 {
        (-lookups / (per_slot * self.slots).max(at_least)).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: usize = 10_000;
    /// Bands of young rows and of old ones.
    const YOUNG: usize = 4;
    const OLD: usize = 12;

    /// Some thousand lookups: of a hundred, so many uses of young and old rows where thirty of each were expected, and so many more by recency.
    fn pass(lately: &mut Lately, young: f64, old: f64, by_recency: f64, is_believed: bool) {
        for _ in 0..50 {
            for (band, times) in [(YOUNG, young), (OLD, old)] {
                lately.used(band, times);
                lately.expected(band, 30.0);
            }
            let had = young + old;
            lately.learn(Uses {
                lookups: 100.0,
                had,
                by_recency: had + by_recency,
            });
            lately.pass(100.0, is_believed);
        }
    }

    #[test]
    fn rows_that_went_out_of_use_are_worth_less() {
        let mut lately = Lately::new(SLOTS);
        pass(&mut lately, 30.0, 3.0, 2.0, true);
        assert_eq!(lately.left(YOUNG), 1.0);
        let left = lately.left(OLD);
        assert!((0.1..0.25).contains(&left), "{left}");
        // What is not seen to be used of older ones is no better.
        assert_eq!(lately.left(BANDS - 1), left);
        // They are used again.
        pass(&mut lately, 30.0, 30.0, 2.0, true);
        assert_eq!(lately.left(OLD), 1.0);
    }

    #[test]
    fn only_where_recency_has_more() {
        let mut lately = Lately::new(SLOTS);
        pass(&mut lately, 30.0, 3.0, -2.0, true);
        assert_eq!(lately.left(OLD), 1.0);
        pass(&mut lately, 30.0, 3.0, 2.0, false);
        assert_eq!(lately.left(OLD), 1.0);
    }

    #[test]
    fn what_is_less_for_all_is_held_against_none() {
        let mut lately = Lately::new(SLOTS);
        pass(&mut lately, 3.0, 3.0, 2.0, true);
        pass(&mut lately, 0.0, 3.0, 2.0, true);
        assert_eq!(lately.left(OLD), 1.0);
    }
}
