//! What is known of a table: its hits by size, from sampled lookups.

use crate::curve::{Curve, Point};
use crate::miniature::Miniature;
use crate::sampling::Sampling;

/// Slots of a miniature, at most. More cost memory and time. With these, and some 40,000 sampled lookups a table, an arena is divided within
/// 0.13 points of the best way (`rowmill-bench cache --case trace=mixture`); other numbers were not tried.
const SLOTS: u32 = 1024;
/// A size of which a miniature would have fewer slots is not tried.
const SLOTS_LEAST: u32 = 128;
/// From one size that is tried to the next.
const STEP: f64 = 1.5;
/// Sampled lookups, expected of the exact count, before a size's hits count.
const LOOKUPS_LEAST: f64 = 500.0;

/// A size that is tried.
#[derive(Debug)]
struct Probe {
    rows: u64,
    sampling: Sampling,
    miniature: Miniature,
    /// Lookups that should have been sampled, those that were, and how many of these hit; all of them fade alike.
    expected: f64,
    sampled: f64,
    hits: f64,
}

/// A table's sampled lookups at several sizes of its cache.
#[derive(Debug)]
pub struct Model {
    sampling: Sampling,
    probes: Vec<Probe>,
}

impl Model {
    /// A model of a table that is sampled like this, at sizes from as few rows as the sample can tell of up to `most`.
    pub fn new(sampling: Sampling, most: u64, seed: u64) -> Model {
        let least = (f64::from(SLOTS_LEAST) / sampling.rate()).ceil();
        let sizes = std::iter::successors(Some(least), |rows| Some(rows * STEP));
        let sizes = sizes
            .map(|rows| rows as u64)
            .take_while(|&rows| rows < most);
        let last = (most as f64 >= least).then_some(most);
        let probe = |rows: u64| {
            let rate = sampling.rate().min(f64::from(SLOTS) / rows as f64);
            let sampling = sampling.at_rate(rate);
            let slots = (rows as f64 * rate).round() as u32;
            Probe {
                rows,
                sampling,
                miniature: Miniature::new(slots.max(Miniature::SLOTS_MIN), seed ^ rows),
                expected: 0.0,
                sampled: 0.0,
                hits: 0.0,
            }
        };
        Model {
            sampling,
            probes: sizes.chain(last).map(probe).collect(),
        }
    }

    /// How the table is to be sampled.
    pub fn sampling(&self) -> Sampling {
        self.sampling
    }

    /// So many more lookups were done, of which `sampled` are those of sampled rows, in their order.
    pub fn learn(&mut self, lookups: u64, sampled: &[u32]) {
        for probe in &mut self.probes {
            probe.expected += lookups as f64 * probe.sampling.rate();
            for &row in sampled.iter().filter(|&&row| probe.sampling.takes(row)) {
                probe.sampled += 1.0;
                probe.hits += f64::from(u8::from(probe.miniature.access(row)));
            }
        }
    }

    /// Lets what was counted so far count less: `left` of it is left. What the miniatures hold stays.
    ///
    /// # Panics
    /// If `left` is no part of all.
    pub fn fade(&mut self, left: f64) {
        assert!((0.0..=1.0).contains(&left), "{left} left");
        for probe in &mut self.probes {
            probe.expected *= left;
            probe.sampled *= left;
            probe.hits *= left;
        }
    }

    /// Hits by size, as far as is known: none as long as too little was looked up.
    ///
    /// Where more or fewer lookups were sampled than the rate lets expect, there are too many or too few of the few rows that are looked
    /// up most, which hit at any size: so the difference is taken off, or counted as hits (SHARDS-adj of the paper named at [`Sampling`]).
    pub fn curve(&self) -> Option<Curve> {
        let known = self
            .probes
            .iter()
            .filter(|probe| probe.expected >= LOOKUPS_LEAST);
        let points: Vec<Point> = known.map(Probe::point).collect();
        (!points.is_empty()).then(|| Curve::new(points))
    }
}

impl Probe {
    fn point(&self) -> Point {
        let hits = (self.hits + self.expected - self.sampled) / self.expected;
        Point {
            rows: self.rows,
            hits: hits.clamp(0.0, 1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lookups by Zipf's law with an exponent of 1, as far as 32 bits can tell.
    fn zipf(rows: u32, count: usize, seed: u64) -> Vec<u32> {
        let mut random = fastrand::Rng::with_seed(seed);
        let ranks = (0..count).map(|_| (f64::from(rows).powf(random.f64()) as u32).min(rows - 1));
        ranks
            .map(|rank| rank.wrapping_mul(2_654_435_761) % 1_000_003)
            .collect()
    }

    fn learnt(rate: f64, most: u64, lookups: &[u32]) -> Model {
        let mut model = Model::new(Sampling::new(5, rate), most, 1);
        for lookups in lookups.chunks(1000) {
            let sampling = model.sampling();
            let sampled = sampling.of(lookups);
            model.learn(lookups.len() as u64, &sampled);
        }
        model
    }

    #[test]
    fn a_sample_has_the_hits_of_the_whole() {
        let lookups = zipf(200_000, 300_000, 3);
        let curve = learnt(0.1, 40_000, &lookups).curve().unwrap();
        for rows in [2_000, 10_000, 40_000] {
            let mut whole = Miniature::new(rows, 8);
            let hits = lookups.iter().filter(|&&row| whole.access(row)).count();
            let (found, expected) = (curve.at(rows.into()), hits as f64 / lookups.len() as f64);
            assert!(
                (found - expected).abs() < 0.03,
                "{rows} rows: {found}, {expected}"
            );
        }
    }

    #[test]
    fn without_the_correction_a_popular_row_would_shift_all() {
        let lookups = zipf(200_000, 300_000, 3);
        let raw = |probe: &Probe| probe.hits / probe.sampled;
        let shift = (0..6).map(|seed| {
            let mut model = Model::new(Sampling::new(seed, 0.05), 20_000, 1);
            let sampling = model.sampling();
            let sampled = sampling.of(&lookups);
            model.learn(lookups.len() as u64, &sampled);
            let last = model.probes.last().unwrap();
            (raw(last), last.point().hits)
        });
        let (raw, adjusted): (Vec<f64>, Vec<f64>) = shift.unzip();
        let spread = |all: &[f64]| {
            all.iter().fold(0.0, |most: f64, a| most.max(*a))
                - all.iter().fold(1.0, |least: f64, a| least.min(*a))
        };
        assert!(
            spread(&raw) > 2.0 * spread(&adjusted),
            "{raw:?}, {adjusted:?}"
        );
        assert!(spread(&adjusted) < 0.06, "{adjusted:?}");
    }

    #[test]
    fn nothing_is_told_of_too_little_and_what_is_old_fades() {
        let mut model = Model::new(Sampling::new(1, 1.0), 4_000, 1);
        assert_eq!(model.curve(), None);
        let rows: Vec<u32> = (0..300).collect();
        model.learn(300, &rows);
        assert_eq!(model.curve(), None);
        model.learn(300, &rows);
        let first = model.curve().unwrap().at(4_000);
        assert!((first - 0.5).abs() < 1e-9, "{first}");
        model.fade(0.5);
        assert_eq!(model.curve(), None, "300 lookups");
        (0..10).for_each(|_| model.learn(300, &rows));
        let later = model.curve().unwrap().at(4_000);
        assert!((later - 3150.0 / 3300.0).abs() < 0.01, "{later}");
        // A table that is smaller than what the sample can tell of has no sizes.
        assert_eq!(
            Model::new(Sampling::new(1, 0.001), 4_000, 1).probes.len(),
            0
        );
    }
}
