//! Which rows of a table are sampled.

use rowmill_link::Sample;

use crate::hash::hash;

/// Places that there are.
const ALL: f64 = (1_u64 << 32) as f64;

/// Rows drawn by their places, which the dataplane's hash gives them ([`Sample::place`]): all lookups of a row are sampled, or none, since
/// what matters is when a row is looked up again (SHARDS: Waldspurger and others, FAST 2015). Of two samplings the rows of the rarer one are
/// among those of the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sampling {
    threshold: u32,
}

impl Sampling {
    /// No row.
    pub const NONE: Sampling = Sampling { threshold: 0 };

    /// Rows whose place is less.
    pub fn below(threshold: u32) -> Sampling {
        Sampling { threshold }
    }

    /// Rows at a rate from 0 to 1, as far as thresholds can tell: of all but one in 2^32 at 1.
    ///
    /// # Panics
    /// If the rate is none.
    pub fn new(rate: f64) -> Sampling {
        assert!((0.0..=1.0).contains(&rate), "a rate of {rate}");
        // A number that is too large becomes the largest one.
        let threshold = (rate * ALL).round() as u32;
        Sampling { threshold }
    }

    /// See [`below`](Self::below).
    pub fn threshold(&self) -> u32 {
        self.threshold
    }

    /// The part of all rows that is taken.
    pub fn rate(&self) -> f64 {
        f64::from(self.threshold) / ALL
    }

    /// One of this rate, if it is rarer than this one, else this one.
    #[must_use]
    pub fn rarer(&self, rate: f64) -> Sampling {
        Sampling::new(rate.min(1.0)).min(*self)
    }

    /// Those of some lookups whose rows are taken, with places as [`place`] gives them.
    pub fn of(&self, seed: u64, lookups: &[u32]) -> Vec<Sample> {
        let samples = lookups.iter().map(|&row| Sample {
            row,
            place: place(seed, row),
        });
        samples.filter(|sample| self.takes(sample.place)).collect()
    }

    /// Whether a row at this place is taken.
    pub fn takes(&self, place: u32) -> bool {
        place < self.threshold
    }
}

/// A place for a row, where no dataplane gives it one: for lookups out of a file or a generator.
pub fn place(seed: u64, row: u32) -> u32 {
    (hash(seed, row) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_rows_are_taken_as_the_rate_says() {
        for rate in [0.0, 0.001, 0.1, 0.5, 1.0] {
            let sampling = Sampling::new(rate);
            assert!((sampling.rate() - rate).abs() < 1e-9);
            let taken = (0..1_000_000).filter(|&row| sampling.takes(place(7, row)));
            let (taken, expected) = (taken.count() as f64, 1e6 * rate);
            let deviation = (expected * (1.0 - rate)).sqrt();
            assert!(
                (taken - expected).abs() <= 5.0 * deviation,
                "{taken} of {expected}"
            );
        }
    }

    #[test]
    fn rarer_samples_are_parts_of_others() {
        let often = Sampling::new(0.3);
        let rare = often.rarer(0.01);
        assert!(rare < often && rare == Sampling::below(rare.threshold()));
        assert_eq!(often.rarer(0.5), often);
        let lookups: Vec<u32> = (0..100_000).collect();
        let (rare, often) = (rare.of(3, &lookups), often.of(3, &lookups));
        assert!(rare.iter().all(|sample| often.contains(sample)));
        assert!((800..1200).contains(&rare.len()), "{}", rare.len());
        assert_eq!(Sampling::NONE.of(3, &lookups), []);
    }
}
