//! Ids of rows: uniform, or skewed as popularity is.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Exponent of the skewed distribution.
pub(crate) const ZIPF_EXPONENT: f64 = 1.05;

/// How ids are spread over the rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Spread {
    /// All rows alike.
    Uniform,
    /// By Zipf's law.
    Zipf,
}

impl Spread {
    /// Its name in a case.
    pub(crate) fn name(self) -> String {
        match self {
            Spread::Uniform => "uniform".into(),
            Spread::Zipf => format!("zipf-{ZIPF_EXPONENT}"),
        }
    }
}

/// `count` ids of `rows` rows, seeded.
pub(crate) fn ids(spread: Spread, rows: u32, count: usize, seed: u64) -> Vec<u32> {
    let mut random = SmallRng::seed_from_u64(seed);
    match spread {
        Spread::Uniform => (0..count).map(|_| random.random_range(0..rows)).collect(),
        Spread::Zipf => {
            // Ranks are dealt to rows at random, so that popular rows are no neighbours.
            let zipf = Zipf::new(f64::from(rows), ZIPF_EXPONENT);
            let mut row_of: Vec<u32> = (0..rows).collect();
            for i in (1..row_of.len()).rev() {
                row_of.swap(i, random.random_range(0..=i));
            }
            (0..count)
                .map(|_| row_of[zipf.sample(&mut random) as usize - 1])
                .collect()
        }
    }
}

/// Ranks 1 to n with probability proportional to rank^-s, s above 1, by rejection-inversion (Hörmann
/// and Derflinger 1996): the inverse of the integral proposes, rejection corrects.
struct Zipf {
    exponent: f64,
    ranks: f64,
    low: f64,
    high: f64,
}

impl Zipf {
    fn new(ranks: f64, exponent: f64) -> Zipf {
        let low = Zipf::integral(1.5, exponent) - 1.0;
        Zipf {
            exponent,
            ranks,
            low,
            high: Zipf::integral(ranks + 0.5, exponent),
        }
    }

    /// The integral of x^-s from 1 on.
    fn integral(x: f64, s: f64) -> f64 {
        (1.0 - x.powf(1.0 - s)) / (s - 1.0)
    }

    fn sample(&self, random: &mut SmallRng) -> u32 {
        let s = self.exponent;
        loop {
            let u = random.random_range(self.low..self.high);
            let x = (1.0 - u * (s - 1.0)).powf(1.0 / (1.0 - s));
            let rank = x.round().clamp(1.0, self.ranks);
            if u >= Zipf::integral(rank + 0.5, s) - rank.powf(-s) {
                return rank as u32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_ranks_come_as_often_as_they_should() {
        let (ranks, draws) = (1000u32, 200_000);
        let zipf = Zipf::new(f64::from(ranks), ZIPF_EXPONENT);
        let mut random = SmallRng::seed_from_u64(5);
        let mut counts = vec![0.0; ranks as usize + 1];
        for _ in 0..draws {
            counts[zipf.sample(&mut random) as usize] += 1.0;
        }
        let weight = |rank: u32| f64::from(rank).powf(-ZIPF_EXPONENT);
        let total: f64 = (1..=ranks).map(weight).sum();
        for rank in [1, 2, 10, 50] {
            let expected = f64::from(draws) * weight(rank) / total;
            let found: f64 = counts[rank as usize];
            assert!(
                (found - expected).abs() < 6.0 * expected.sqrt(),
                "{rank}: {found}, {expected}"
            );
        }
    }
}
