//! Hit rates of libCacheSim 0.3.5 on the public trace `reuse_medium_500k.txt` (MICRO 2024, "Pushing the Performance
//! Envelope of DNN-based Recommendation Systems Inference on GPUs"): what the reference policies are checked against.

use super::trace::Trace;

/// Accesses of that trace, and distinct rows among them.
const ACCESSES: usize = 429_951;
const DISTINCT: usize = 102_524;

/// Sizes of the cache, in rows.
const CAPACITIES: [usize; 5] = [1_000, 5_000, 10_000, 25_000, 50_000];

/// Per cent of accesses that hit, for each of [`CAPACITIES`].
const TABLE: [(&str, [f64; 5]); 10] = [
    ("fifo", [52.2, 67.3, 68.4, 70.9, 73.8]),
    ("lru", [55.6, 67.5, 68.7, 71.3, 74.2]),
    ("slru", [44.2, 65.9, 68.7, 71.4, 74.3]),
    ("arc", [52.4, 67.0, 68.4, 71.0, 74.3]),
    ("2q", [49.4, 67.6, 68.9, 71.2, 73.8]),
    ("clock", [55.9, 67.5, 68.7, 71.4, 74.1]),
    ("s3-fifo", [46.5, 59.3, 66.8, 71.3, 74.2]),
    ("sieve", [31.3, 55.0, 62.7, 69.5, 73.8]),
    ("w-tinylfu", [7.0, 20.2, 34.3, 52.3, 67.9]),
    ("belady", [67.2, 72.5, 74.6, 76.2, 76.2]),
];

/// Whether it is that trace.
pub(crate) fn is_of(trace: &Trace) -> bool {
    trace.accesses.len() == ACCESSES && trace.rows == DISTINCT
}

/// What libCacheSim says, as a fraction; `None` for other traces, sizes and policies.
pub(crate) fn hit_rate(trace: &Trace, capacity: usize, policy: &str) -> Option<f64> {
    let at = CAPACITIES.iter().position(|&c| c == capacity)?;
    let (_, rates) = TABLE.iter().find(|(name, _)| *name == policy)?;
    is_of(trace).then(|| rates[at] / 100.0)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::cache::{PUBLIC_TRACE, hit_rate_of};

    #[test]
    fn reference_policies_have_the_hit_rates_of_libcachesim() {
        // Tests run in the folder of their crate.
        let path = Path::new("..").join(PUBLIC_TRACE);
        if !path.exists() {
            eprintln!("skipped: there is no {}", path.display());
            return;
        }
        let trace = Trace::read(&path).expect("the trace");
        for (policy, rates) in &TABLE {
            for (capacity, rate) in CAPACITIES.iter().zip(rates) {
                let found = 100.0 * hit_rate_of(policy, *capacity, &trace).expect("a policy");
                // The table is rounded to a tenth. W-TinyLFU's sketch has other hash functions here.
                let bound = if *policy == "w-tinylfu" { 0.5 } else { 0.055 };
                assert!(
                    (found - rate).abs() <= bound,
                    "{policy} with {capacity} rows: {found:.2}, libCacheSim has {rate}"
                );
            }
        }
    }

    #[test]
    fn other_traces_have_no_figures() {
        let trace = Trace::new("other", &[1, 2, 1]);
        assert_eq!(hit_rate(&trace, 1_000, "lru"), None);
    }
}
