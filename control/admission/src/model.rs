//! What is known of a table: its hits by size, from sampled lookups.

use rowmill_link::Sample;

use crate::curve::{Curve, Point};
use crate::miniature::Miniature;
use crate::sampling::Sampling;
use crate::spread::{GROUPS, Spread};

/// Slots of a miniature, at most. More cost memory and time. With these, and some 40,000 sampled lookups a table, an arena is divided within
/// 0.13 points of the best way (`rowmill-bench cache --case trace=mixture`); other numbers were not tried.
const SLOTS: u32 = 1024;
/// A size of which a miniature would have fewer slots is not tried.
pub(crate) const SLOTS_LEAST: u32 = 128;
/// From one size that is tried to the next.
const STEP: f64 = 1.5;
/// Sampled lookups, expected of the exact count, before a size's hits count.
const LOOKUPS_LEAST: f64 = 500.0;
/// So many lookups ahead it is asked for what a miniature reads: as many as are from one body, mostly.
const AHEAD: usize = 16;
/// Half of what was counted of a size is forgotten in this time, but not before so many sampled lookups of it: with fewer its hits are
/// known to a point or so, and a table whose lookups are few is not known better by forgetting them.
const HALF_LIFE_NS: f64 = 2e9;
const HALF_LIFE_LOOKUPS: f64 = 2_000.0;

/// A size that is tried.
#[derive(Debug)]
struct Probe {
    rows: u64,
    sampling: Sampling,
    miniature: Miniature,
    /// Lookups that should have been sampled, and those that were and missed, by the group of their row; all of them fade alike.
    expected: f64,
    missed: [f64; GROUPS],
    /// Lookups that should have been sampled since it faded.
    since: f64,
}

/// A table's sampled lookups at several sizes of its cache.
#[derive(Debug)]
pub struct Model {
    sampling: Sampling,
    seed: u64,
    /// By size.
    probes: Vec<Probe>,
}

impl Model {
    /// A model of a table that is sampled like this, at sizes from as few rows as the sample can tell of up to `most`.
    pub fn new(sampling: Sampling, most: u64, seed: u64) -> Model {
        let mut model = Model {
            sampling,
            seed,
            probes: Vec::new(),
        };
        model.adapt(sampling, most);
        model
    }

    /// How the table is to be sampled.
    pub fn sampling(&self) -> Sampling {
        self.sampling
    }

    /// From now on the table is sampled like this, and sizes up to `most` count. What is known of sizes that are tried as before stays.
    pub fn adapt(&mut self, sampling: Sampling, most: u64) {
        self.sampling = sampling;
        let mut known = std::mem::take(&mut self.probes);
        for rows in sizes(sampling, most) {
            let rarer = sampling.rarer(f64::from(SLOTS) / rows as f64);
            let same = |probe: &Probe| (probe.rows, probe.sampling) == (rows, rarer);
            self.probes.push(match known.iter().position(same) {
                Some(at) => known.swap_remove(at),
                None => Probe::new(rows, rarer, self.seed),
            });
        }
    }

    /// So many more lookups were done while the table was sampled like `drawn`, of which `sampled` are those of sampled rows, in their
    /// order. Sizes that want more of the rows than were drawn learn nothing.
    pub fn learn(&mut self, drawn: Sampling, lookups: u64, sampled: &[Sample]) {
        for probe in &mut self.probes {
            if probe.sampling > drawn {
                continue;
            }
            let expected = lookups as f64 * probe.sampling.rate();
            probe.expected += expected;
            probe.since += expected;
            let sampling = probe.sampling;
            let taken = sampled.iter().filter(|s| sampling.takes(s.place));
            let mut ahead = taken.clone();
            let soon = ahead.by_ref().take(AHEAD);
            soon.for_each(|s| probe.miniature.prefetch(s.row));
            for sample in taken {
                if let Some(later) = ahead.next() {
                    probe.miniature.prefetch(later.row);
                }
                let missed = !probe.miniature.access(sample.row);
                probe.missed[Spread::group(sample.place)] += f64::from(u8::from(missed));
            }
        }
    }

    /// So much time has passed: what was counted before counts less. What the miniatures hold stays, and what little was learnt meanwhile
    /// makes little forgotten.
    pub fn fade(&mut self, passed_ns: u64) {
        for probe in &mut self.probes {
            let by_time = passed_ns as f64 / HALF_LIFE_NS;
            let by_lookups = probe.since / HALF_LIFE_LOOKUPS;
            probe.since = 0.0;
            probe.forget(0.5_f64.powf(by_time.min(by_lookups)));
        }
    }

    /// Half of what was counted is forgotten: popularity is seen to be another one.
    pub fn shifted(&mut self) {
        self.probes.iter_mut().for_each(|probe| probe.forget(0.5));
    }

    /// Hits by size, as far as is known: none as long as too little was looked up.
    ///
    /// Where more or fewer lookups were sampled than the rate lets expect, there are too many or too few of the few rows that are looked
    /// up most, which hit at any size: so the difference is taken off, or counted as hits (SHARDS-adj of the paper named at [`Sampling`]).
    /// What hits is all that was to be expected but for what missed.
    pub fn curve(&self) -> Option<Curve> {
        let points: Vec<Point> = self.known().map(Probe::point).collect();
        (!points.is_empty()).then(|| Curve::new(points))
    }

    /// How much the [curve](Self::curve) may differ with the rows that were sampled.
    pub(crate) fn spread(&self) -> Spread {
        let groups = |probe: &Probe| {
            let expected = probe.expected / GROUPS as f64;
            let hits = probe.missed.map(|missed| 1.0 - missed / expected);
            (probe.rows, hits, probe.sampling.rate())
        };
        Spread::new(self.known().map(groups))
    }

    /// Sampled lookups that stand behind the [curve](Self::curve), where fewest do.
    pub fn weight(&self) -> f64 {
        let least = self.known().map(|probe| probe.expected);
        least.reduce(f64::min).unwrap_or(0.0)
    }

    fn known(&self) -> impl Iterator<Item = &Probe> {
        let known = |probe: &&Probe| probe.expected >= LOOKUPS_LEAST;
        self.probes.iter().filter(known)
    }
}

/// Sizes that such a sample can tell of, up to `most` and with it. They lie on the same steps whatever the sample.
fn sizes(sampling: Sampling, most: u64) -> impl Iterator<Item = u64> {
    let least = f64::from(SLOTS_LEAST) / sampling.rate();
    let steps = std::iter::successors(Some(f64::from(SLOTS_LEAST)), |rows| Some(rows * STEP));
    let told = move |&rows: &u64| rows as f64 >= least;
    let steps = steps.map(|rows| rows as u64);
    let steps = steps.take_while(move |&rows| rows < most);
    steps.chain([most]).filter(told)
}

impl Probe {
    fn new(rows: u64, sampling: Sampling, seed: u64) -> Probe {
        let slots = (rows as f64 * sampling.rate()).round() as u32;
        Probe {
            rows,
            sampling,
            miniature: Miniature::new(slots.max(Miniature::SLOTS_MIN), seed ^ rows),
            expected: 0.0,
            missed: [0.0; GROUPS],
            since: 0.0,
        }
    }

    fn forget(&mut self, left: f64) {
        self.expected *= left;
        self.missed.iter_mut().for_each(|missed| *missed *= left);
    }

    fn point(&self) -> Point {
        let hits = 1.0 - self.missed.iter().sum::<f64>() / self.expected;
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

    fn learn(model: &mut Model, places: u64, lookups: &[u32]) {
        let sampling = model.sampling();
        let sampled = sampling.of(places, lookups);
        model.learn(sampling, lookups.len() as u64, &sampled);
    }

    fn learnt(rate: f64, most: u64, lookups: &[u32]) -> Model {
        let mut model = Model::new(Sampling::new(rate), most, 1);
        for lookups in lookups.chunks(1000) {
            learn(&mut model, 5, lookups);
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
        let shift = (0..6).map(|seed| {
            let mut model = Model::new(Sampling::new(0.05), 20_000, 1);
            learn(&mut model, seed, &lookups);
            let last = model.probes.last().unwrap();
            let sampled = last.sampling.of(seed, &lookups).len() as f64;
            let missed: f64 = last.missed.iter().sum();
            (1.0 - missed / sampled, last.point().hits)
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
        let mut model = Model::new(Sampling::new(1.0), 1_000, 1);
        assert_eq!(model.curve(), None);
        let rows: Vec<u32> = (0..300).collect();
        learn(&mut model, 1, &rows);
        assert_eq!((model.curve(), model.weight()), (None, 0.0));
        learn(&mut model, 1, &rows);
        let at = |model: &Model| model.curve().unwrap().at(1_000);
        assert!((at(&model) - 0.5).abs() < 1e-6, "{}", at(&model));
        model.shifted();
        assert_eq!(model.curve(), None, "300 lookups");
        (0..10).for_each(|_| learn(&mut model, 1, &rows));
        assert!((at(&model) - 3150.0 / 3300.0).abs() < 0.01);
        assert!((model.weight() - 3300.0).abs() < 1.0);
        // In a long time half is forgotten for each 2,000 lookups, in a short one by time; and nothing where nothing was looked up.
        model.fade(1_000_000_000_000);
        assert!((model.weight() - 3300.0 * 0.5_f64.powf(1.8)).abs() < 1.0);
        let before = model.weight();
        model.fade(1_000_000_000_000);
        assert!((model.weight() - before).abs() < 1e-9);
        (0..10).for_each(|_| learn(&mut model, 1, &rows));
        let before = model.weight();
        model.fade(2_000_000_000);
        assert!((model.weight() - before / 2.0).abs() < 1.0);
        // A table that is smaller than what the sample can tell of has no sizes.
        let rare = Sampling::new(0.001);
        assert_eq!(Model::new(rare, 4_000, 1).probes.len(), 0);
    }

    #[test]
    fn what_is_tried_as_before_stays_known() {
        let lookups = zipf(100_000, 100_000, 3);
        let mut model = learnt(0.25, 30_000, &lookups);
        let before = model.curve().unwrap();
        model.adapt(Sampling::new(0.125), 30_000);
        let after = model.curve().unwrap();
        // What was drawn more rarely already is as it was; the last point, that of the most, too.
        let kept = |point: &&Point| point.rows >= 8 * u64::from(SLOTS);
        let kept: Vec<Point> = before.points().iter().filter(kept).copied().collect();
        assert!(kept.len() > 2);
        assert_eq!(after.points()[1..], kept);
        // What is drawn too rarely for a size teaches it nothing, and is no reason to think that nothing was looked up.
        let before = model.curve();
        let none = Sampling::NONE;
        model.learn(none, 1_000_000, &[]);
        assert_eq!(model.curve(), before);
    }
}
