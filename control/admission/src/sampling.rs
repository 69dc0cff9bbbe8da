//! Which rows of a table are sampled.

use crate::hash::hash;

/// All rows below it are taken at a rate of 1.
const ALL: u64 = 1 << 32;

/// Rows drawn by their numbers: all lookups of a row are sampled, or none, since what matters is when a row is looked up again (SHARDS:
/// Waldspurger and others, FAST 2015). Of two samplings with one seed the rows of the rarer are among those of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    seed: u64,
    threshold: u64,
}

impl Sampling {
    /// Rows at a rate from 0 to 1, in steps of 2^-32.
    ///
    /// # Panics
    /// If the rate is none.
    pub fn new(seed: u64, rate: f64) -> Sampling {
        assert!((0.0..=1.0).contains(&rate), "a rate of {rate}");
        Sampling {
            seed,
            threshold: (rate * ALL as f64).round() as u64,
        }
    }

    /// The part of all rows that is taken.
    pub fn rate(&self) -> f64 {
        self.threshold as f64 / ALL as f64
    }

    /// One with the same seed and another rate: of the rarer of both all rows are taken by the other.
    ///
    /// # Panics
    /// If the rate is none.
    #[must_use]
    pub fn at_rate(&self, rate: f64) -> Sampling {
        Sampling::new(self.seed, rate)
    }

    /// Those of some lookups whose rows are taken.
    pub fn of(&self, lookups: &[u32]) -> Vec<u32> {
        let lookups = lookups.iter().copied();
        lookups.filter(|&row| self.takes(row)).collect()
    }

    /// Whether a row is taken.
    pub fn takes(&self, row: u32) -> bool {
        hash(self.seed, row) >> 32 < self.threshold
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_rows_are_taken_as_the_rate_says() {
        for rate in [0.0, 0.001, 0.1, 0.5, 1.0] {
            let sampling = Sampling::new(7, rate);
            assert!((sampling.rate() - rate).abs() < 1e-9);
            let taken = (0..1_000_000).filter(|&row| sampling.takes(row)).count() as f64;
            let expected = 1e6 * rate;
            let deviation = (expected * (1.0 - rate)).sqrt();
            assert!(
                (taken - expected).abs() <= 5.0 * deviation,
                "{taken} of {expected}"
            );
        }
    }

    #[test]
    fn rarer_samples_are_parts_of_others_and_seeds_differ() {
        let [rare, often, other] =
            [(3, 0.01), (3, 0.3), (4, 0.01)].map(|(seed, rate)| Sampling::new(seed, rate));
        let rows = || (0..100_000).filter(|&row| rare.takes(row));
        assert!(rows().all(|row| often.takes(row)));
        assert!(rows().filter(|&row| other.takes(row)).count() < 50);
    }
}
