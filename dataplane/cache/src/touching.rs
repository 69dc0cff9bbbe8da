//! One hit in how many is touched: more where there are misses, which are fewer for it and cost far more.
//!
//! While meta words stay in a core's caches, all are touched. Elsewhere each is a line from memory: touching one in 16 takes
//! 2 to 7 % of the rate of lookups that all hit. What is not touched is not known to the policy: with 100,000 rows one in
//! 16 costs 0 to 1.7 points of hits (Zipf 0.8: 54.4 and 56.0 %), which is as many misses of a microsecond or more.

use std::num::NonZeroU32;

/// Lookups after which it is judged anew.
const WINDOW: u64 = 1 << 14;
/// Misses of a window from which on all hits are touched, a 64th, and those from which on one in [`SOME`] is.
const MANY: u64 = WINDOW / 64;
const FEW: u64 = WINDOW / 1024;
/// See above.
const SOME: NonZeroU32 = NonZeroU32::new(16).expect("a number");
/// What is touched of the hits as long as there is hardly a miss.
const HARDLY: NonZeroU32 = NonZeroU32::new(64).expect("a number");

/// What a worker lately found of a table.
#[derive(Debug)]
pub(crate) struct Touching {
    lookups: u64,
    misses: u64,
    every: NonZeroU32,
}

impl Touching {
    /// Of a table in which nothing was looked up: all hits are touched.
    pub(crate) fn new() -> Touching {
        Touching {
            lookups: 0,
            misses: 0,
            every: NonZeroU32::MIN,
        }
    }

    /// One hit in how many is to be touched where meta words are far away.
    pub(crate) fn every(&self) -> NonZeroU32 {
        self.every
    }

    /// A piece was looked up.
    pub(crate) fn count(&mut self, lookups: usize, misses: usize) {
        self.lookups += lookups as u64;
        self.misses += misses as u64;
        // More at once, fewer only after a window.
        let wanted = match self.misses {
            MANY.. => NonZeroU32::MIN,
            FEW.. => SOME,
            _ => HARDLY,
        };
        self.every = self.every.min(wanted);
        if self.lookups >= WINDOW {
            self.every = wanted;
            (self.lookups, self.misses) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_misses_the_more_hits_are_touched_and_sooner_more_than_fewer() {
        let mut touching = Touching::new();
        let mut of = |pieces: usize, misses: usize| {
            (0..pieces).for_each(|_| touching.count(512, misses));
            touching.every().get()
        };
        assert_eq!(of(31, 0), 1, "nothing is known");
        assert_eq!(of(1, 0), 64);
        assert_eq!(of(15, 1), 64);
        assert_eq!(of(1, 1), 16);
        assert_eq!(of(64, 1), 16);
        assert_eq!(of(5, 60), 1);
        assert_eq!(of(26, 0), 1, "until the window's end");
        assert_eq!(of(32, 0), 64);
        assert_eq!(of(1, 512), 1);
    }
}
