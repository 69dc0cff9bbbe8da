//! What is known of a table, whichever dataplanes serve it.

use rowmill_link::TableSamples;

use super::frequent::Frequent;
use crate::curve::{Curve, Point};
use crate::model::{Model, SLOTS_LEAST};
use crate::sampling::Sampling;

/// Sampled lookups a second that each table has, whatever its part of the traffic.
const SAMPLES_LEAST: f64 = 100.0;
/// So many fewest slots are to be drawn of an equal share, where that isn't too much: then sizes down to a quarter of it can be told of.
const SIZES_BELOW: f64 = 4.0;
/// A table's traffic is taken for what it was for about so long: one that pauses is not sampled more, which would make its sizes be learnt anew.
const PAUSE_HALF_LIFE_NS: f64 = 30e9;
/// The rate as long as a table's traffic is not known.
const RATE_FIRST: f64 = 1.0 / 128.0;
/// The lowest rate: below it, a size of a million times the fewest slots is the first that can be told of.
const RATE_LEAST: f64 = 1e-6;
/// Samples that were dropped, of all, above which the rest of a body says nothing of when rows are looked up again.
const DROPPED_MAX: f64 = 0.01;
/// A dataplane that had to drop samples is asked for half as many for so long.
const SPARED_NS: u64 = 60_000_000_000;
/// How often rows that are pinned are chosen anew.
const RANKING_NS: u64 = 10_000_000_000;
/// Rows that can be pinned at most: a policy is one body of HTTP.
pub(crate) const PINNED_MAX: usize = 2048;
/// Points of the hits that pinned rows have, by their number.
const PINNED_POINTS: usize = 64;
/// Rows sampled fewer times lately are not pinned.
const PINNED_COUNT: f32 = 2.0;

/// A table and what was sampled of it.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) model: Model,
    pub(crate) frequent: Frequent,
    /// The dataplane that samples it, and its instance.
    pub(crate) sampler: Option<(String, u128)>,
    /// Since when.
    pub(crate) sampler_since_ns: u64,
    /// Rows in the order in which they would be pinned.
    pub(crate) ranking: Vec<u32>,
    ranked_ns: u64,
    /// A rate that is too high for its dataplane, until when.
    spared: Option<(f64, u64)>,
    seed: u64,
    most: u64,
    /// Lookups a second, and before a pause.
    pub(crate) traffic: f64,
    aimed: bool,
    /// Samples that were taken, and those that were not there.
    pub(crate) taken: u64,
    pub(crate) dropped: u64,
    /// When its popularity was last seen to be another one.
    pub(crate) shifted_ns: Option<u64>,
}

impl Table {
    pub(crate) fn new(seed: u64) -> Table {
        Table {
            model: Model::new(Sampling::new(RATE_FIRST), 0, seed),
            frequent: Frequent::default(),
            sampler: None,
            sampler_since_ns: 0,
            ranking: Vec::new(),
            ranked_ns: 0,
            spared: None,
            seed,
            most: 0,
            traffic: 0.0,
            aimed: false,
            taken: 0,
            dropped: 0,
            shifted_ns: None,
        }
    }

    /// Another dataplane samples it, or another start of one: its hash is another one, so that what was sampled has no sequel.
    pub(crate) fn sampled_by(&mut self, now_ns: u64, dataplane: &str, instance: u128) {
        self.sampler = Some((dataplane.into(), instance));
        self.sampler_since_ns = now_ns;
        self.model = Model::new(self.model.sampling(), self.most, self.seed);
    }

    /// Takes samples of the dataplane that is to sample it.
    pub(crate) fn learn(&mut self, now_ns: u64, part: &TableSamples) {
        let taken = part.samples.len() as u64;
        self.taken += taken;
        self.dropped = self.dropped.saturating_add(part.dropped);
        let drawn = Sampling::below(part.threshold);
        if part.dropped as f64 > DROPPED_MAX * (part.dropped as f64 + taken as f64) {
            self.spared = Some((drawn.rate() / 2.0, now_ns.saturating_add(SPARED_NS)));
            return;
        }
        self.model.learn(drawn, part.lookups, &part.samples);
        for sample in &part.samples {
            self.frequent.count(sample.row);
        }
    }

    /// Lookups a second that are to be sampled for its sizes to be known, beside those that its traffic has: of a table that has
    /// so many rows, or an equal share of so many.
    pub(crate) fn wants(&self, rows: u64) -> f64 {
        let rate = SIZES_BELOW * f64::from(SLOTS_LEAST) / (rows.max(1)) as f64;
        self.traffic * rate.min(1.0)
    }

    /// It has so many lookups a second.
    pub(crate) fn asked(&mut self, passed_ns: u64, lookups: Option<f64>) {
        let left = 0.5_f64.powf(passed_ns as f64 / PAUSE_HALF_LIFE_NS);
        self.traffic = (self.traffic * left).max(lookups.unwrap_or(0.0));
    }

    /// Chooses how the table is sampled, where so many of its lookups a second may be, and sizes up to `most` count. A rate that does is
    /// kept: another one makes some sizes be learnt anew.
    pub(crate) fn aim(&mut self, now_ns: u64, samples: f64, most: u64) {
        let present = self.model.sampling().rate();
        let mut rate = present;
        if self.traffic > 0.0 {
            let aim = samples.max(SAMPLES_LEAST) / self.traffic;
            let other = aim < present / 2.0 || aim > present * 3.0;
            // The first rate was none that fits anything.
            if other || !self.aimed {
                rate = aim;
            }
            self.aimed = true;
        }
        self.spared = self.spared.filter(|&(_, until)| now_ns < until);
        if let Some((most, _)) = self.spared {
            rate = rate.min(most);
        }
        // Powers of two: so the sizes that two rates can tell of are mostly drawn alike.
        let rate = 0.5_f64.powf((-rate.clamp(RATE_LEAST, 1.0).log2()).round());
        let sampling = Sampling::new(rate);
        if sampling != self.model.sampling() || most != self.most {
            self.most = most;
            self.model.adapt(sampling, most);
        }
    }

    /// Time has passed.
    pub(crate) fn fade(&mut self, now_ns: u64, passed_ns: u64) {
        self.model.fade(passed_ns);
        self.frequent.fade(now_ns);
    }

    /// Rows that could be pinned as things are.
    pub(crate) fn pinnable(&self) -> u64 {
        let top = self.frequent.top(PINNED_MAX).into_iter();
        top.filter(|(_, count)| *count >= PINNED_COUNT).count() as u64
    }

    /// Hits by size where pinned rows come and no others, and are this `part` of the slots: what they had lately of the lookups that were sampled, of
    /// which there are so many in all lookups. Beyond the last of them a larger share has no more hits. `None` as long as there is none.
    pub(crate) fn pinned_curve(&self, part: f64) -> Option<Curve> {
        let sampled = self.model.sampling().rate();
        let step = self.ranking.len().div_ceil(PINNED_POINTS).max(1);
        let mut hits = 0.0;
        let mut points = Vec::new();
        for (at, chunk) in self.ranking.chunks(step).enumerate() {
            let counts = chunk.iter().filter_map(|&row| self.frequent.of(row));
            hits += counts.map(f64::from).sum::<f64>() / self.frequent.all().max(1.0);
            let pinned = at * step + chunk.len();
            let rows = (pinned as f64 / part).ceil() as u64;
            // No cache has more slots, and above some size they don't rise any more.
            if rows > u32::MAX.into() {
                break;
            }
            let hits = (hits * sampled).min(1.0);
            points.push(Point { rows, hits });
        }
        (!points.is_empty()).then(|| Curve::new(points))
    }

    /// Ranks rows for being pinned, if it is time to. An order that names nearly the same ones is kept.
    pub(crate) fn rank(&mut self, now_ns: u64) {
        if !self.ranking.is_empty() && now_ns < self.ranked_ns.saturating_add(RANKING_NS) {
            return;
        }
        self.ranked_ns = now_ns;
        let top = self.frequent.top(PINNED_MAX);
        let top = top.into_iter().filter(|(_, count)| *count >= PINNED_COUNT);
        let top: Vec<u32> = top.map(|(row, _)| row).collect();
        let new = top.iter().filter(|row| !self.ranking.contains(row)).count();
        if 8 * new > top.len() || top.len() > self.ranking.len() {
            self.ranking = top;
        }
    }
}

#[cfg(test)]
mod tests {
    use rowmill_link::Sample;

    use super::*;

    fn part(samples: u32, dropped: u64, threshold: u32) -> TableSamples {
        let sample = |row| Sample {
            row: row % 50,
            place: 0,
        };
        TableSamples {
            table: "a".into(),
            lookups: 1000,
            dropped,
            threshold,
            samples: (0..samples).map(sample).collect(),
        }
    }

    #[test]
    fn rates_follow_traffic_in_steps_and_spare_who_drops() {
        let mut table = Table::new(1);
        let rate = |table: &Table| table.model.sampling().rate();
        table.aim(0, 3000.0, 1 << 20);
        assert!((rate(&table) - RATE_FIRST).abs() < 1e-6);
        table.asked(0, Some(1e6));
        table.aim(1, 2000.0, 1 << 20);
        assert!(
            (rate(&table) - 1.0 / 512.0).abs() < 1e-6,
            "{}",
            rate(&table)
        );
        // Somewhat more or less traffic is no reason to begin anew, nor is a pause.
        for (passed_s, lookups) in [
            (0.0, Some(1.2e6)),
            (15.0, Some(0.7e6)),
            (15.0, Some(0.0)),
            (0.0, None),
        ] {
            table.asked((passed_s * 1e9) as u64, lookups);
            table.aim(2, 2000.0, 1 << 20);
            assert!((rate(&table) - 1.0 / 512.0).abs() < 1e-6);
        }
        let mut table = Table::new(1);
        table.asked(0, Some(10_000.0));
        assert!((table.wants(1024) - 5000.0).abs() < 1e-6);
        assert!((table.wants(0) - 10_000.0).abs() < 1e-6);
        table.aim(3, 700.0, 1000);
        assert!((rate(&table) - 1.0 / 16.0).abs() < 1e-6, "{}", rate(&table));
        let threshold = table.model.sampling().threshold();
        table.learn(4, &part(99, 1, threshold));
        table.aim(4, 700.0, 1000);
        assert!((rate(&table) - 1.0 / 16.0).abs() < 1e-6);
        assert_eq!(table.frequent.of(0), Some(2.0));
        table.learn(5, &part(98, 2, threshold));
        assert_eq!(table.frequent.of(0), Some(2.0), "it says nothing");
        for now in [5, SPARED_NS] {
            table.aim(now, 700.0, 1000);
            assert!((rate(&table) - 1.0 / 32.0).abs() < 1e-6);
        }
        table.aim(SPARED_NS + 5, 4000.0, 1000);
        assert!(rate(&table) > 1.0 / 32.0);
        assert_eq!((table.taken, table.dropped), (197, 3));
    }

    #[test]
    fn pinned_rows_have_the_hits_of_those_that_are_sampled() {
        let mut table = Table::new(1);
        assert_eq!(table.pinned_curve(0.5), None);
        let threshold = table.model.sampling().threshold();
        table.learn(0, &part(1000, 0, threshold));
        table.rank(0);
        let curve = table.pinned_curve(0.5).unwrap();
        // Each of 50 rows has a 50th of what is sampled, a 128th of all.
        for (rows, part) in [(0, 0.0), (2, 0.02), (50, 0.5), (100, 1.0), (1 << 40, 1.0)] {
            let hits = curve.at(rows);
            assert!((hits - part * RATE_FIRST).abs() < 1e-6, "{rows}: {hits}");
        }
        assert_eq!(table.pinned_curve(1e-300), None);
        assert_eq!(table.pinned_curve(1e-8).unwrap().points().len(), 43);
    }

    #[test]
    fn rankings_change_when_they_differ_and_not_always() {
        let mut table = Table::new(1);
        table.learn(0, &part(100, 0, 1));
        table.rank(0);
        assert_eq!(table.ranking, (0..50).collect::<Vec<u32>>());
        for row in 40..45 {
            (0..9).for_each(|_| table.frequent.count(row + 20));
        }
        table.rank(1);
        assert_eq!(table.ranking.len(), 50, "it is early");
        table.rank(RANKING_NS);
        assert_eq!(table.ranking.len(), 55);
        assert_eq!(table.ranking[0], 60);
        // The same rows in another order.
        (0..9).for_each(|_| table.frequent.count(3));
        table.rank(2 * RANKING_NS);
        assert_eq!(table.ranking[0], 60);
    }
}
