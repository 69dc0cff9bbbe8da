//! Rounds of requests of several kinds in turn, and the quantiles of how long the requests took.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::driver::median;

/// Times that turns are drawn from those that were seen.
const DRAWS: usize = 1000;

/// How long a request took, in nanoseconds.
#[derive(Clone, Copy)]
pub(crate) struct Taken {
    /// From when it was due until the client had its answer.
    pub latency: u64,
    /// From when the client came to send it.
    pub sent: u64,
    /// How late the client came.
    pub late: u64,
    /// From receipt to end, which the worker takes.
    pub service: u64,
    /// Client or worker waited meanwhile for a CPU that something else had.
    pub is_disturbed: bool,
}

/// One of these times.
pub(crate) type Figure = fn(&Taken) -> u64;

/// What was seen in a round.
#[derive(Default)]
pub(crate) struct Round {
    /// The first client's requests.
    pub first: Vec<Taken>,
    /// The second's.
    pub second: Vec<Taken>,
    /// The part of all rows that missed.
    pub missed: f64,
}

/// The quantile `q` of a figure of all these requests, in microseconds; 0 of none.
pub(crate) fn quantile<'t>(taken: impl Iterator<Item = &'t Taken>, what: Figure, q: f64) -> f64 {
    let mut times: Vec<u64> = taken.map(what).collect();
    if times.is_empty() {
        return 0.0;
    }
    let at = (q * times.len() as f64).ceil() as usize;
    let (_, found, _) = times.select_nth_unstable(at.saturating_sub(1));
    *found as f64 / 1e3
}

/// Between what medians nine of ten are where as many ratios as these are drawn from them, with replacement (the percentile bootstrap:
/// Efron, Tibshirani, An Introduction to the Bootstrap, chapter 13). That is how much the median hangs on which turns there were, not on
/// the machine that day.
pub(crate) fn spread(ratios: &[f64]) -> [f64; 2] {
    let mut random = StdRng::seed_from_u64(3);
    let mut draw = |_| {
        let drawn = (0..ratios.len()).map(|_| ratios[random.random_range(0..ratios.len())]);
        median(drawn.collect())
    };
    let mut medians: Vec<f64> = (0..DRAWS).map(&mut draw).collect();
    medians.sort_by(f64::total_cmp);
    [medians[DRAWS / 20], medians[DRAWS - 1 - DRAWS / 20]]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests that took so many microseconds.
    fn taken(times: impl IntoIterator<Item = u64>) -> Vec<Taken> {
        let one = |us: u64| Taken {
            latency: us * 1000,
            sent: 0,
            late: 0,
            service: 0,
            is_disturbed: false,
        };
        times.into_iter().map(one).collect()
    }

    #[test]
    fn a_quantile_is_the_smallest_time_that_so_many_took_at_most() {
        let hundred = taken((1..=100).rev());
        let of = |q| quantile(hundred.iter(), |t| t.latency, q);
        assert_eq!([of(0.5), of(0.99), of(1.0)], [50.0, 99.0, 100.0]);
        assert_eq!(quantile([].iter(), |t| t.latency, 0.99), 0.0);
    }

    #[test]
    fn a_spread_holds_the_median_and_is_narrower_where_turns_are_alike() {
        assert_eq!(spread(&[0.5; 8]), [0.5; 2]);
        let of = |step: f64| spread(&[-2.0, -1.0, 0.0, 1.0, 2.0].map(|at| 1.0 + at * step));
        let ([low, high], wider) = (of(0.1), of(0.2));
        assert!((0.8..1.0).contains(&low) && 1.0 < high && high <= 1.2);
        assert!(wider[0] < low && high < wider[1]);
    }
}
