//! What a cached row is worth, learnt from what rows like it came to.
//!
//! Rows are alike that are of one class and one age. Of these it is counted how often one was used ([`Model::reused`]), and, by
//! looking at a part of them now and then, how long rows were of that class and age ([`Model::seen`]), whether they
//! were cached then or only remembered. The quotient is the rate at which such rows are used, and doesn't depend on what the
//! cache keeps.
//!
//! A row's rank is the best rate of uses that keeping it for some time can have: uses expected until its next use or the end of that
//! time, over the time expected until then, for the time for which this is largest (Gittins' index). Where the rate falls
//! with age, that is the rate now, and old rows go first, as with LRU. Where it is the same at all ages, that is the
//! rate of the class, as with LFU. Where it rises first, as for rows that come again after a while and not sooner, it is the rate
//! that waiting pays with.
//!
//! Rows of a class are taken to be used no less often than ones of their age that were used a little less, and came again as soon or late ([`below`]). They may seem to be: where rows
//! come again in a loop, those that were used twice are first seen to lie unused, all of them, for as long as the loop takes. It is believed
//! as long as none of them is seen to have become older than that: rows that are used twice and no more do.
//!
//! How much more or less often rows of a class are used than others is taken to hold at all ages; of rows that were used once, only at ages that were
//! seen lately. Else the policy would make its belief true: a loop's rows are all used once, and not again until the loop begins anew, and were they
//! dropped before, for being used less, none would be left by which to see that they come again. At ages that were not seen they are taken to be used as
//! rows of all classes are, and by what was said before so are rows that were used twice.

use super::ages::{BANDS, PARTS, STEPS, middle, step, ticks};
use super::word::{CLASSES, Tick, Word, below};

/// What is assumed before anything is known weighs as much as that many uses. With twice as many Zipf has up to 0.1 points less.
const ASSUMED_USES: f64 = 2.0;
/// How much of what is known of ages is assumed of those just above them: how many times as often rows are used as was assumed, to the
/// power of a quarter. 0 is nothing of it, 1 is all. Found by trying (bench/RESULTS.md). Where these are used less than was assumed, as beside a loop or a scan, less of it keeps
/// more rows that lay unused for as long as any did.
fn carried_over(times: f64) -> f64 {
    // Takes much less than `powf`.
    times.sqrt().sqrt()
}

/// Uses and row-ticks by class and band.
type Table = [[f64; BANDS]; CLASSES];

/// What is known of rows of all classes together, by band.
struct Common {
    /// Uses per row and tick.
    rates: [f64; BANDS],
    /// How much is known of an age, from 0 to 1: by half at as many row-ticks as have [`ASSUMED_USES`] where rows are used as often as is assumed.
    known: [f64; BANDS],
}

/// Rates by class and age.
#[derive(Clone, Debug)]
pub(super) struct Model {
    uses: Table,
    row_ticks: Table,
    /// Uses per row and tick: of a class, at a step of age.
    ranks: [[f32; STEPS]; CLASSES],
}

impl Model {
    pub(super) fn new() -> Model {
        let mut model = Model {
            uses: [[0.0; BANDS]; CLASSES],
            row_ticks: [[0.0; BANDS]; CLASSES],
            ranks: [[0.0; STEPS]; CLASSES],
        };
        model.rank_classes(0..CLASSES);
        model
    }

    /// Rows of a class were used at ages in a band.
    pub(super) fn reused(&mut self, class: usize, band: usize, times: f64) {
        self.uses[class][band] += times;
    }

    /// A row of a class was seen at an age in a band, and stands for so many row-ticks.
    pub(super) fn seen(&mut self, class: usize, band: usize, row_ticks: f64) {
        self.row_ticks[class][band] += row_ticks;
    }

    /// Rows have half the uses that they had, and what was known of those of a class is known of others.
    pub(super) fn halve(&mut self) {
        for table in [&mut self.uses, &mut self.row_ticks] {
            let before = std::mem::replace(table, [[0.0; BANDS]; CLASSES]);
            for (bands, halved) in before.iter().zip(Word::halved_classes()) {
                for (sum, value) in table[halved].iter_mut().zip(bands) {
                    *sum += value;
                }
            }
        }
        self.rank_classes(0..CLASSES);
    }

    /// Everything that was counted counts for less.
    pub(super) fn fade(&mut self, factor: f64) {
        let tables = [&mut self.uses, &mut self.row_ticks];
        let cells = tables.into_iter().flatten().flatten();
        cells.for_each(|cell| *cell *= factor);
    }

    /// The rank of a row: expected uses a tick.
    #[inline]
    pub(super) fn rank(&self, word: Word, now: Tick) -> f32 {
        self.ranks[word.class()][step(word.age(now))]
    }

    /// Computes the ranks of classes anew: some thousand floating-point operations, and half as many for each of them.
    pub(super) fn rank_classes(&mut self, classes: impl IntoIterator<Item = usize>) {
        let common = self.common();
        for class in classes {
            self.rank_class(class, &common);
        }
    }

    fn rank_class(&mut self, class: usize, common: &Common) {
        let mut rates = self.rates(class, common);
        if let Some(below) = below(class) {
            self.raise(class, &mut rates, &self.rates(below, common));
        }
        let at_band = best_rates(&rates);
        for (step, rank) in self.ranks[class].iter_mut().enumerate() {
            *rank = between(&at_band, step) as f32;
        }
    }

    /// Uses per row and tick of a class, by band, drawn to those of all classes together where there are few.
    fn rates(&self, class: usize, common: &Common) -> [f64; BANDS] {
        let (uses, row_ticks) = (&self.uses[class], &self.row_ticks[class]);
        // How much more often rows of this class are used than others of their age.
        let found: f64 = uses.iter().sum();
        let expected = row_ticks
            .iter()
            .zip(&common.rates)
            .map(|(t, rate)| t * rate);
        let factor = (found + ASSUMED_USES) / (expected.sum::<f64>() + ASSUMED_USES);
        std::array::from_fn(|band| {
            // Of rows that were used once that is taken to hold only at ages of which something is known: see the module's text.
            let factor = match class {
                0 => factor.powf(common.known[band]),
                _ => factor,
            };
            rate(uses[band], row_ticks[band], common.rates[band] * factor)
        })
    }

    /// Raises the rates of a class to those of the class below it ([`below`]), as far as these may be: whole while no row of the class is known to have
    /// become older, and then by the part that there was of the uses that there should have been. Those of the class below are as they were before they were
    /// raised themselves: it goes one level far.
    fn raise(&self, class: usize, rates: &mut [f64; BANDS], of_below: &[f64; BANDS]) {
        let (uses, row_ticks) = (&self.uses[class], &self.row_ticks[class]);
        // The most rows that are known of any older band.
        let mut older: f64 = 0.0;
        for band in (0..BANDS).rev() {
            let rate = of_below[band];
            if rate > rates[band] {
                let expected = (uses[band] + older) * (1.0 - stays_unused(rate, band));
                let belief = (uses[band] + ASSUMED_USES) / (expected + ASSUMED_USES);
                rates[band] = rates[band].max(rate * belief.min(1.0));
            }
            older = older.max(row_ticks[band] / ticks(band));
        }
    }

    /// What is known of all classes together. Where that is little at an age, rows are taken to be used as much more or less
    /// often than is assumed as at ages just below it, in part.
    fn common(&self) -> Common {
        let (uses, row_ticks) = (of_all_classes(&self.uses), of_all_classes(&self.row_ticks));
        let mut common = Common {
            rates: [0.0; BANDS],
            known: [0.0; BANDS],
        };
        let mut younger: f64 = 1.0;
        for band in 0..BANDS {
            // Before anything is known, older rows are used less, as with LRU. Half a use a lifetime, and 3 ticks, a tenth
            // of what it takes to look up as many rows as there are slots, are of a right order of magnitude.
            let assumed = 0.5 / (middle(band) + 3.0);
            let found = rate(uses[band], row_ticks[band], assumed * carried_over(younger));
            younger = found / assumed;
            common.rates[band] = found;
            let expected = row_ticks[band] * assumed;
            common.known[band] = expected / (expected + ASSUMED_USES);
        }
        common
    }
}

/// Sums over the classes, by band.
fn of_all_classes(table: &Table) -> [f64; BANDS] {
    let mut sums = [0.0; BANDS];
    for bands in table {
        for (sum, value) in sums.iter_mut().zip(bands) {
            *sum += value;
        }
    }
    sums
}

/// The rate of so many uses in so many row-ticks, drawn to what is assumed where there are few.
fn rate(uses: f64, row_ticks: f64, assumed: f64) -> f64 {
    (uses + ASSUMED_USES) / (row_ticks + ASSUMED_USES / assumed)
}

/// The chance that a row used at this rate is not used within a band.
fn stays_unused(rate: f64, band: usize) -> f64 {
    (-rate * ticks(band)).exp()
}

/// Some bands in turn, for a row that begins the first of them.
#[derive(Clone, Copy, Default)]
struct Span {
    /// Uses expected until its next use or the end, and the time expected until then.
    uses: f64,
    time: f64,
    /// The chance that it is not used.
    unused: f64,
}

impl Span {
    fn of_band(rate: f64, band: usize) -> Span {
        let unused = stays_unused(rate, band);
        let uses = 1.0 - unused;
        // Of a rate so small that no use is expected it would be 0 / 0.
        let time = if uses > 0.0 { uses / rate } else { ticks(band) };
        Span { uses, time, unused }
    }

    /// The two, one behind the other.
    fn then(self, next: Span) -> Span {
        Span {
            uses: self.uses + self.unused * next.uses,
            time: self.time + self.unused * next.time,
            unused: self.unused * next.unused,
        }
    }

    fn is_better_than(self, other: Span) -> bool {
        self.uses * other.time > other.uses * self.time
    }
}

/// For each band, the best rate that keeping a row from then on to the end of some later band has.
///
/// A row is kept through a span that is better than the one before it, if it is kept through that. So the spans behind a band, each better
/// than those behind it, are those that it is extended by, while they are better than what it is by then: the upper hull of uses by time (Andrew, "Another
/// efficient algorithm for convex hulls in two dimensions", 1979).
fn best_rates(rates: &[f64; BANDS]) -> [f64; BANDS] {
    let (mut spans, mut count) = ([Span::default(); BANDS], 0);
    let mut best = [0.0; BANDS];
    for band in (0..BANDS).rev() {
        let mut span = Span::of_band(rates[band], band);
        while let Some(next) = spans[..count].last()
            && next.is_better_than(span)
        {
            span = span.then(*next);
            count -= 1;
        }
        best[band] = span.uses / span.time;
        spans[count] = span;
        count += 1;
    }
    best
}

/// The value at a step of age: in the middle of bands what it is there, between them in between.
fn between(at_band: &[f64; BANDS], step: usize) -> f64 {
    let band = step / PARTS;
    let part = ((step % PARTS) as f64 + 0.5) / PARTS as f64 - 0.5;
    let other = if part < 0.0 {
        band.saturating_sub(1)
    } else {
        (band + 1).min(BANDS - 1)
    };
    at_band[band] + (at_band[other] - at_band[band]) * part.abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model that saw a hundred thousand row-ticks in each band of class 3, with these rates.
    fn model(rate: impl Fn(usize) -> f64) -> Model {
        let mut model = Model::new();
        for band in 0..BANDS {
            model.seen(3, band, 1e5);
            model.reused(3, band, 1e5 * rate(band));
        }
        model.rank_classes([3]);
        model
    }

    /// Used after 64 to 128 ticks, and else hardly ever.
    fn after_a_while(band: usize) -> f64 {
        if (64.0..128.0).contains(&middle(band)) {
            0.05
        } else {
            1e-4
        }
    }

    fn rank(model: &Model, age: u64) -> f64 {
        model
            .rank(Word::of(3, Tick::default()), Tick::new(age))
            .into()
    }

    #[test]
    fn rows_used_at_one_rate_are_ranked_by_it() {
        for rate in [0.001, 0.02, 0.3] {
            let model = model(|_| rate);
            for age in [0, 1, 7, 100, 2047] {
                let found = rank(&model, age);
                assert!(
                    (found / rate - 1.0).abs() < 0.05,
                    "{found} of {rate} at {age}"
                );
            }
        }
    }

    #[test]
    fn rows_used_less_and_less_are_ranked_by_the_rate_now() {
        let falling = |band| 0.13 / middle(band);
        let model = model(falling);
        for band in 1..BANDS - 1 {
            let found = rank(&model, middle(band) as u64);
            let expected = falling(band);
            assert!(
                (0.8..1.3).contains(&(found / expected)),
                "{found}, {expected}"
            );
        }
        assert!((0..2047).all(|age| rank(&model, age) >= rank(&model, age + 1)));
    }

    #[test]
    fn rows_that_come_again_after_a_while_are_worth_waiting_for() {
        let model = model(after_a_while);
        let now = |age| rank(&model, age);
        assert!(now(0) > 50.0 * 1e-4, "{}", now(0));
        assert!(now(40) > now(0) && now(96) > now(40));
        assert!(now(300) < now(0) / 10.0);
    }

    #[test]
    fn the_best_rate_is_the_best_of_all_times() {
        let some = [
            0.3, 0.01, 0.02, 0.2, 0.1, 0.001, 0.04, 0.03, 0.02, 0.05, 0.001, 0.01, 0.002,
        ];
        let rates = std::array::from_fn(|band| some[band % some.len()]);
        let found = best_rates(&rates);
        for (from, found) in found.into_iter().enumerate() {
            // Tick by tick, for each band to end with.
            let rate = |end: usize| {
                let (mut uses, mut time, mut unused) = (0.0, 0.0, 1.0f64);
                for (band, rate) in rates.iter().enumerate().take(end + 1).skip(from) {
                    const SLICES: usize = 200;
                    let slice = ticks(band) / SLICES as f64;
                    for _ in 0..SLICES {
                        let used = unused * rate * slice;
                        (uses, time, unused) = (uses + used, time + unused * slice, unused - used);
                    }
                }
                uses / time
            };
            let best = (from..BANDS).map(rate).fold(0.0, f64::max);
            assert!(
                (found / best - 1.0).abs() < 0.02,
                "band {from}: {found}, {best}"
            );
        }
    }

    /// What [`best_rates`] means: of all bands to end with, the one with the best rate.
    fn best_rate_of_all_ends(rates: &[f64; BANDS], from: usize) -> f64 {
        let mut span = Span {
            unused: 1.0,
            ..Span::default()
        };
        let ends = (from..BANDS).map(|band| {
            span = span.then(Span::of_band(rates[band], band));
            span.uses / span.time
        });
        ends.fold(0.0, f64::max)
    }

    #[test]
    fn no_end_is_better_than_that_of_the_hull() {
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..1000 {
            // From rates that hardly differ to some of which a band has no use, or all.
            let spread = 12.0 * random.f64();
            let rates = std::array::from_fn(|_| (spread * (random.f64() - 0.8)).exp());
            for (from, found) in best_rates(&rates).into_iter().enumerate() {
                let expected = best_rate_of_all_ends(&rates, from);
                assert!((found / expected - 1.0).abs() < 1e-9, "{from}: {rates:?}");
            }
        }
    }

    #[test]
    fn bands_in_which_no_use_is_expected_hide_none_behind_them() {
        let mut rates = [0.01; BANDS];
        (rates[0], rates[7]) = (1e-17, 0.0);
        for (from, found) in best_rates(&rates).into_iter().enumerate() {
            let expected = best_rate_of_all_ends(&rates, from);
            assert!(
                found > 1e-3 && (found / expected - 1.0).abs() < 1e-9,
                "{from}: {found}"
            );
        }
    }

    #[test]
    fn rows_are_worth_no_less_for_another_use() {
        for class in [2, 5, 6, 17, 30, CLASSES - 1] {
            // Rows of the class below were used after 64 to 128 ticks. Of this one it was seen only that they were not used before.
            let fewer = below(class).unwrap();
            let mut model = Model::new();
            for band in 0..BANDS {
                model.seen(fewer, band, 1e5);
                model.reused(fewer, band, 1e5 * after_a_while(band));
            }
            (0..=12).for_each(|band| model.seen(class, band, 1e5));
            model.rank_classes([fewer, class]);
            for age in [0, 40, 96] {
                let of_class =
                    |class| f64::from(model.rank(Word::of(class, Tick::default()), Tick::new(age)));
                let (fewer, more) = (of_class(fewer), of_class(class));
                assert!(more >= fewer * 0.99, "{class}: {more}, {fewer} at {age}");
            }
        }
    }

    #[test]
    fn rows_that_became_older_unused_are_worth_nothing() {
        // The same, and rows of class 5 got through the band in which they should have been used.
        let mut model = model(after_a_while);
        (0..=15).for_each(|band| model.seen(5, band, 1e5));
        model.rank_classes([5]);
        for age in [0, 40, 96] {
            let of_class = |class: u16| {
                f64::from(model.rank(Word::of(class.into(), Tick::default()), Tick::new(age)))
            };
            let (fewer, more) = (of_class(3), of_class(5));
            assert!(more < fewer / 5.0, "{more}, {fewer} at {age}");
        }
    }

    #[test]
    fn ages_that_were_never_seen_are_taken_to_go_on_in_part() {
        // All rows are known up to 32 ticks, and used much more, as assumed, or hardly ever.
        let rate = |times: f64| {
            let mut model = Model::new();
            for band in (0..BANDS).take_while(|&band| middle(band) < 32.0) {
                let assumed = 0.5 / (middle(band) + 3.0);
                model.seen(3, band, 1e6);
                model.reused(3, band, 1e6 * assumed * times);
            }
            model.common().rates
        };
        let (more, same, less) = (rate(10.0), rate(1.0), rate(0.1));
        let unknown = |rates: &[f64; BANDS]| {
            let next = (0..BANDS).find(|&band| middle(band) > 32.0).unwrap();
            rates[next] / same[next]
        };
        for (rates, times) in [(&more, 10.0f64), (&less, 0.1)] {
            let found = unknown(rates);
            assert!((found / carried_over(times) - 1.0).abs() < 0.01, "{found}");
        }
        // Far from what is known it is as if nothing were.
        let last = BANDS - 1;
        assert!((more[last] / same[last] - 1.0).abs() < 0.01);
    }

    #[test]
    fn rows_used_once_may_come_again_at_ages_that_were_never_seen() {
        // Rows of three classes are used a hundredth as often as those of class 9, at all ages up to 100 ticks.
        let mut model = Model::new();
        for band in (0..BANDS).take_while(|&band| middle(band) < 100.0) {
            let rate = 0.5 / (middle(band) + 3.0);
            for (class, rate) in [
                (0, rate / 100.0),
                (1, rate / 100.0),
                (3, rate / 100.0),
                (9, rate),
            ] {
                model.seen(class, band, 1e6);
                model.reused(class, band, 1e6 * rate);
            }
        }
        model.rank_classes(0..CLASSES);
        let rank =
            |class: u16, age| model.rank(Word::of(class.into(), Tick::default()), Tick::new(age));
        // By the rate of all classes then, nearly half a use a lifetime; twice is no less, and more often is what was seen.
        for class in [0, 1] {
            assert!(rank(class, 10) < rank(9, 10) / 2.0);
            assert!(rank(class, 200) > 0.3 / 200.0, "{}", rank(class, 200));
        }
        assert!(rank(3, 200) < 0.03 / 200.0, "{}", rank(3, 200));
    }

    #[test]
    fn what_is_unknown_is_like_what_is_known() {
        // Class 9 was seen in one band only, and used there ten times as often as class 3, which rows are used at 0.01.
        let mut model = model(|_| 0.01);
        model.seen(9, 3, 1e4);
        model.reused(9, 3, 1000.0);
        model.rank_classes([9]);
        let of_nine = |model: &Model, age| model.rank(Word::of(9, Tick::default()), Tick::new(age));
        assert!(of_nine(&model, 5) > 0.05 && of_nine(&model, 200) > 0.05);
        model.fade(0.0);
        model.rank_classes([9]);
        assert!(of_nine(&model, 200) < 0.01);
    }
}
