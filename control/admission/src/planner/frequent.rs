//! Which sampled rows are looked up most.

use std::collections::HashMap;

/// Rows that are counted at most: when there are more, the rarer half is forgotten.
const ROWS_MAX: usize = 4096;
/// In this time counts become half of what they were.
const HALF_LIFE_NS: u64 = 10_000_000_000;

/// How often rows were sampled, where what is long ago counts less.
#[derive(Debug, Default)]
pub(crate) struct Frequent {
    counts: HashMap<u32, f32>,
    /// The same of all rows, also of those that are forgotten.
    all: f64,
    faded_ns: u64,
}

impl Frequent {
    pub(crate) fn count(&mut self, row: u32) {
        *self.counts.entry(row).or_default() += 1.0;
        self.all += 1.0;
        if self.counts.len() > ROWS_MAX {
            let kept = self.top(ROWS_MAX / 2);
            self.counts = kept.into_iter().collect();
        }
    }

    /// It is now so late.
    pub(crate) fn fade(&mut self, now_ns: u64) {
        while now_ns.saturating_sub(self.faded_ns) >= HALF_LIFE_NS {
            self.faded_ns += HALF_LIFE_NS;
            self.all *= 0.5;
            self.counts.retain(|_, count| {
                *count *= 0.5;
                *count >= 0.25
            });
            if self.counts.is_empty() {
                (self.faded_ns, self.all) = (now_ns, 0.0);
            }
        }
    }

    /// The most frequent rows, those with the most first, each with its count.
    pub(crate) fn top(&self, rows: usize) -> Vec<(u32, f32)> {
        let mut all: Vec<(u32, f32)> = self.counts.iter().map(|(&row, &n)| (row, n)).collect();
        all.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        all.truncate(rows);
        all
    }

    /// How often rows were sampled lately, all together.
    pub(crate) fn all(&self) -> f64 {
        self.all
    }

    /// How often a row was sampled lately, if it is known.
    pub(crate) fn of(&self, row: u32) -> Option<f32> {
        self.counts.get(&row).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_frequent_stays_among_many_that_come_once() {
        let mut frequent = Frequent::default();
        for row in 0..50_000 {
            frequent.count(1_000_000 + row);
            frequent.count(row % 7);
        }
        assert!(frequent.counts.len() <= ROWS_MAX);
        let mut top: Vec<u32> = frequent.top(7).iter().map(|(row, _)| *row).collect();
        top.sort_unstable();
        assert_eq!(top, [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!((frequent.of(0), frequent.of(9)), (Some(7143.0), None));
        assert!((frequent.all() - 100_000.0).abs() < 1e-6);
    }

    #[test]
    fn what_is_long_ago_counts_less() {
        let mut frequent = Frequent::default();
        (0..8).for_each(|_| frequent.count(1));
        frequent.fade(HALF_LIFE_NS - 1);
        assert_eq!(frequent.of(1), Some(8.0));
        frequent.count(2);
        frequent.fade(2 * HALF_LIFE_NS);
        assert_eq!(frequent.top(9), [(1, 2.0), (2, 0.25)]);
        assert!((frequent.all() - 2.25).abs() < 1e-6);
        frequent.fade(u64::MAX);
        assert_eq!(frequent.top(9), []);
        assert!(frequent.all() < 1e-6);
    }
}
