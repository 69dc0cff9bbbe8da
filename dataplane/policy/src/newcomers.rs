//! Whether rows that nobody asked for before are as good now as they were.
//!
//! A scan is made of such rows, and ages tell nothing of it: all rows become older while it lasts. But it shows in that new
//! rows are not used again as often as new rows used to be.

/// Lookups over which it is seen how new rows do now: an eighth of what it takes to look up as many rows as there are slots, but
/// enough to have some hundred new rows in them.
const RECENT: (f64, f64) = (0.125, 2_000.0);
/// Lookups over which it is seen how they usually do.
const USUAL: (f64, f64) = (4.0, 20_000.0);

/// New rows may be used again this much less than usual before it is held against them: counts are noisy, and the next use of the
/// newest has still to come.
const TOLERATED: f64 = 1.5;
/// Less than this is none.
const NOTHING: f64 = 1e-9;
/// Something is left always, so that it is seen when new rows are used again.
const LEAST: f64 = 0.02;

/// Counts that fade with the lookups.
#[derive(Clone, Copy, Debug)]
struct Fading {
    /// New rows, and rows that were used for the second time.
    new: f64,
    again: f64,
    lookups: f64,
}

impl Fading {
    fn over(time: (f64, f64), slots: usize) -> Fading {
        Fading {
            new: 0.0,
            again: 0.0,
            lookups: lookups(time, slots),
        }
    }

    fn pass(&mut self, lookups: f64) {
        let left = (-lookups / self.lookups).exp();
        for count in [&mut self.new, &mut self.again] {
            *count *= left;
            // Where nothing comes for long it would end among numbers with which some processors reckon slowly.
            if *count < NOTHING {
                *count = 0.0;
            }
        }
    }
}

/// Lookups over which counts fade.
fn lookups((per_slot, at_least): (f64, f64), slots: usize) -> f64 {
    (per_slot * slots as f64).max(at_least)
}

/// How many new rows there were, and how many were used again, lately and before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newcomers {
    recent: Fading,
    usual: Fading,
}

impl Newcomers {
    pub(super) fn new(slots: usize) -> Newcomers {
        Newcomers {
            recent: Fading::over(RECENT, slots),
            usual: Fading::over(USUAL, slots),
        }
    }

    /// There are so many slots from now on.
    pub(super) fn resize(&mut self, slots: usize) {
        self.recent.lookups = lookups(RECENT, slots);
        self.usual.lookups = lookups(USUAL, slots);
    }

    /// So many lookups were done.
    pub(super) fn pass(&mut self, lookups: f64) {
        self.recent.pass(lookups);
        self.usual.pass(lookups);
    }

    /// A row was asked for of which nothing is known.
    pub(super) fn came(&mut self) {
        self.recent.new += 1.0;
        self.usual.new += 1.0;
    }

    /// Rows were used for the second time.
    pub(super) fn again(&mut self, times: f64) {
        self.recent.again += times;
        self.usual.again += times;
    }

    /// By what the rank of a new row is to be multiplied: 1, or less in a scan.
    pub(super) fn discount(&self) -> f32 {
        let recent = (self.recent.again + 0.5) / (self.recent.new + 0.5);
        let usual = (self.usual.again + 1.0) / (self.usual.new + 1.0);
        (TOLERATED * recent / usual).clamp(LEAST, 1.0) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_is_seen_while_it_lasts() {
        let mut newcomers = Newcomers::new(10_000);
        let usual = |newcomers: &mut Newcomers| {
            for _ in 0..20_000 {
                newcomers.pass(2.0);
                newcomers.came();
                newcomers.again(0.6);
            }
        };
        assert_eq!(newcomers.discount(), 1.0);
        usual(&mut newcomers);
        assert_eq!(newcomers.discount(), 1.0);
        for _ in 0..5_000 {
            newcomers.pass(1.0);
            newcomers.came();
        }
        assert!(newcomers.discount() < 0.2, "{}", newcomers.discount());
        usual(&mut newcomers);
        assert_eq!(newcomers.discount(), 1.0);
    }

    #[test]
    fn a_few_uses_less_are_tolerated() {
        let mut newcomers = Newcomers::new(1_000);
        for again in [0.5, 0.4] {
            for _ in 0..3_000 {
                newcomers.pass(1.0);
                newcomers.came();
                newcomers.again(again);
            }
            assert_eq!(newcomers.discount(), 1.0);
        }
    }

    #[test]
    fn counts_of_what_is_long_ago_are_none() {
        let mut newcomers = Newcomers::new(1_000);
        newcomers.came();
        newcomers.again(1.0);
        for _ in 0..100_000 {
            newcomers.pass(32.0);
        }
        for fading in [newcomers.recent, newcomers.usual] {
            assert_eq!((fading.new, fading.again), (0.0, 0.0));
        }
        assert_eq!(newcomers.discount(), 1.0);
    }
}
