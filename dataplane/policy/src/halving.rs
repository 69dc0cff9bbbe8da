//! When counts of uses are halved.
//!
//! Counts end with the highest class. Were they never halved, all rows that are kept would end there, and be told apart by their ages
//! alone: Zipf's popularity had three points less after some thousand turnovers, and rows that come again after times of their own ten. So when there are
//! many of that class, all are halved, as for TinyLFU (Einziger, Friedman and Manes, "TinyLFU: a highly efficient cache admission policy", 2017). To lower
//! classes at random instead, each in its time, blurs them: it gained a third as much.
//!
//! Words are not gone through for that. Whoever looks at one knows by its age whether its row was used since ([`Word::halved`](super::Word::halved)). So it is done
//! no oftener than a stamp can tell ages. Rows that are used more rarely than that have the class that they had.

use super::word::{CLASSES, HalvedAgo, TICKS};

/// Of the rows in slots those that may be of the highest class. With twice as many hit rates were the same within 0.1 points.
const MOST: f64 = 0.125;
/// Words that are looked at before it is told.
const LOOKED: f64 = 2000.0;

/// See the module's text.
#[derive(Clone, Debug)]
pub(super) struct Halving {
    /// At which tick it was done last, or 0.
    at: u64,
    /// Words that were looked at since, and those of the highest class, fading.
    looked: f64,
    highest: f64,
}

impl Halving {
    pub(super) fn new() -> Halving {
        Halving {
            at: 0,
            looked: 0.0,
            highest: 0.0,
        }
    }

    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// How long ago it was, at this tick.
    #[inline]
    pub(super) fn ago(&self, ticks: u64) -> HalvedAgo {
        HalvedAgo::new(match self.at {
            0 => u64::MAX,
            at => ticks.saturating_sub(at),
        })
    }

    /// There is a row of a class in a slot.
    pub(super) fn looked(&mut self, class: usize) {
        self.looked += 1.0;
        self.highest += f64::from(u8::from(class + 1 == CLASSES));
    }

    /// Everything that was counted counts for less.
    pub(super) fn fade(&mut self, factor: f64) {
        self.looked *= factor;
        self.highest *= factor;
    }

    /// Whether it is time.
    pub(super) fn is_due(&self, ticks: u64) -> bool {
        self.highest > MOST * self.looked.max(LOOKED)
            && ticks >= self.at.saturating_add(TICKS.into())
    }

    /// It was done at this tick last, or never, if that is 0. Tells whether that is new.
    pub(super) fn follow(&mut self, at: u64) -> bool {
        if at == self.at {
            return false;
        }
        (self.at, self.looked, self.highest) = (at, 0.0, 0.0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::word::{Tick, Word};
    use super::*;

    #[test]
    fn it_is_time_when_many_rows_are_of_the_highest_class() {
        let mut halving = Halving::new();
        let ticks = u64::from(TICKS);
        // One in ten, for long.
        for n in 0..100_000 {
            halving.looked(if n % 10 == 0 { CLASSES - 1 } else { n % 20 });
        }
        assert!(!halving.is_due(ticks));
        halving.fade(0.1);
        (0..1_000).for_each(|_| halving.looked(CLASSES - 1));
        assert!(!halving.is_due(ticks - 1) && halving.is_due(ticks));
        assert!(halving.follow(ticks) && !halving.follow(ticks));
        // It has to be seen anew, and stamps tell no more.
        (0..1_999).for_each(|_| halving.looked(CLASSES - 1));
        assert!(!halving.is_due(2 * ticks - 1) && halving.is_due(2 * ticks));
    }

    #[test]
    fn a_few_words_tell_nothing() {
        let mut halving = Halving::new();
        (0..200).for_each(|_| halving.looked(CLASSES - 1));
        assert!(!halving.is_due(u64::from(TICKS)));
    }

    #[test]
    fn rows_that_were_not_used_since_are_halved() {
        let mut halving = Halving::new();
        let class = |halving: &Halving, used, now| {
            let word = Word::of(20, Tick::new(used));
            word.halved(Tick::new(now), halving.ago(now)).class()
        };
        assert_eq!(class(&halving, 90, 100), 20);
        halving.follow(5_000);
        assert_eq!(class(&halving, 4_990, 5_000), 16);
        assert_eq!(class(&halving, 4_999, 5_100), 16);
        assert_eq!(class(&halving, 5_000, 5_000), 20);
        assert_eq!(class(&halving, 5_000, 5_100), 20);
        // It is as long ago as stamps tell, and then nothing is known.
        let last = 5_000 + u64::from(TICKS) - 2;
        assert_eq!(class(&halving, 4_999, last), 16);
        assert_eq!(class(&halving, 4_999, last + 2), 20);
    }
}
