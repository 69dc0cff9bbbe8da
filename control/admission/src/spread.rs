//! How much of a difference between two sizes may be chance: that of which rows were sampled.

/// Groups that sampled rows are in, by their places. Other numbers were not tried.
pub(crate) const GROUPS: usize = 16;

/// How far the hits by size differ between groups of the sampled rows, which are drawn alike: what differs between them would differ
/// between samples, too. Lookups of one row are no independent draws, so that their number tells too little of that.
///
/// The variance of a mean is that between groups over their number (random groups: Wolter, Introduction to Variance Estimation, 2007,
/// chapter 2), times the part of the rows that was not sampled.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Spread {
    /// By size: what each group's hits are more than the mean, times the root of the part that was not sampled.
    points: Vec<(u64, [f64; GROUPS])>,
}

impl Spread {
    /// The group of a row at this place. Sampling goes by the highest bits of places, and a dataplane's places have as many as the numbers of
    /// the table's rows: the lowest are zeros. So the group is told by the highest bits of a product, to which all of them come (Fibonacci
    /// hashing: Knuth, The Art of Computer Programming 3, 6.4).
    pub(crate) fn group(place: u32) -> usize {
        const GOLDEN: u32 = 0x9e37_79b9;
        (place.wrapping_mul(GOLDEN) >> (u32::BITS - GROUPS.ilog2())) as usize
    }

    /// Of points with rising rows: the size, hits of each group, each as a part of what was to be expected of it, and the rate of sampling.
    pub(crate) fn new(points: impl IntoIterator<Item = (u64, [f64; GROUPS], f64)>) -> Spread {
        let centred = |(rows, hits, rate): (u64, [f64; GROUPS], f64)| {
            let mean = hits.iter().sum::<f64>() / GROUPS as f64;
            let unseen = (1.0 - rate).max(0.0).sqrt();
            (rows, hits.map(|hits| (hits - mean) * unseen))
        };
        let points = points.into_iter().map(centred).collect();
        Spread { points }
    }

    /// The variance of the difference between the parts of lookups that hit with so many rows and with so many others.
    pub(crate) fn variance(&self, from: u64, to: u64) -> f64 {
        let (from, to) = (self.at(from), self.at(to));
        let squares = from.iter().zip(to).map(|(from, to)| (to - from).powi(2));
        squares.sum::<f64>() / (GROUPS * (GROUPS - 1)) as f64
    }

    /// Between two points it is straight, as a [`Curve`](crate::curve::Curve) is, and none at no rows, where nothing hits.
    fn at(&self, rows: u64) -> [f64; GROUPS] {
        let after = self.points.partition_point(|point| point.0 <= rows);
        let before = match after {
            0 => (0, [0.0; GROUPS]),
            _ => self.points[after - 1],
        };
        let Some(after) = self.points.get(after) else {
            return before.1;
        };
        let part = (rows - before.0) as f64 / (after.0 - before.0) as f64;
        core::array::from_fn(|group| before.1[group] + part * (after.1[group] - before.1[group]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampled_rows_are_in_all_groups_however_few_bits_places_have() {
        for bits in [10, 15, 19, 25, 32] {
            // Of so many rows those that one in 64 of them is.
            let sampled = 1_u64 << (bits - 6);
            let mut groups = [0_u64; GROUPS];
            for row in 0..sampled.min(1 << 16) {
                groups[Spread::group((row as u32) << (32 - bits))] += 1;
            }
            let mean = groups.iter().sum::<u64>() / GROUPS as u64;
            let most = mean / 8 + 3;
            assert!(
                groups.iter().all(|rows| rows.abs_diff(mean) <= most),
                "{bits} bits: {groups:?}"
            );
        }
    }

    #[test]
    fn it_is_that_of_means_between_samples() {
        // Means of groups of independent draws: their variance is known.
        let mut random = fastrand::Rng::with_seed(4);
        let mut found = 0.0;
        for _ in 0..2_000 {
            let hits = core::array::from_fn(|_| random.f64());
            found += Spread::new([(10, hits, 0.0)]).variance(0, 10) / 2_000.0;
        }
        let expected = 1.0 / 12.0 / GROUPS as f64;
        assert!((found / expected - 1.0).abs() < 0.05, "{found}, {expected}");
    }

    #[test]
    fn what_all_sizes_share_is_no_difference_and_what_was_seen_whole_is_no_chance() {
        let hits = core::array::from_fn(|group| group as f64);
        let spread = Spread::new([(10, hits, 0.5), (30, hits, 0.5)]);
        assert!(spread.variance(10, 30).abs() < 1e-12);
        assert!(spread.variance(30, 99).abs() < 1e-12);
        let (whole, half) = (spread.variance(0, 10), spread.variance(0, 5));
        assert!(whole > 0.0 && (half / whole - 0.25).abs() < 1e-9);
        assert!((spread.variance(5, 0) - half).abs() < 1e-12);
        let rarer = Spread::new([(10, hits, 0.0)]).variance(0, 10);
        assert!((rarer / whole - 2.0).abs() < 1e-9);
        assert!(Spread::new([(10, hits, 1.0)]).variance(0, 10).abs() < 1e-12);
        assert!(Spread::default().variance(0, 10).abs() < 1e-12);
    }
}
