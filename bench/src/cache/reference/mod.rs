//! Known policies, as small as they go, to compare with: one row an access, all rows of one size. They have the
//! parameters that libCacheSim 0.3.5 has by default, whose hit rates on a public trace are known (`table.rs`).

mod arc;
mod belady;
mod clock;
mod fifo;
mod lists;
mod lru;
mod s3_fifo;
mod sieve;
mod slru;
mod two_q;
mod w_tiny_lfu;

pub(crate) use belady::Belady;

use arc::Arc;
use clock::Clock;
use fifo::Fifo;
use lru::Lru;
use s3_fifo::S3Fifo;
use sieve::Sieve;
use slru::Slru;
use two_q::TwoQ;
use w_tiny_lfu::WTinyLfu;

/// A cache of a fixed number of rows that sees one access after another.
pub(crate) trait Cache {
    /// Looks a row up and takes it in where it is missing; whether it was there.
    fn access(&mut self, row: u32) -> bool;
}

/// The policies that know nothing of the future.
pub(crate) const ONLINE: [&str; 9] = [
    "fifo",
    "lru",
    "slru",
    "clock",
    "s3-fifo",
    "sieve",
    "w-tinylfu",
    "2q",
    "arc",
];

/// The policy of that name, empty; `None` for names not in [`ONLINE`]. `capacity` rows are held at most, out of
/// a table of `rows`.
pub(crate) fn online(name: &str, capacity: usize, rows: usize) -> Option<Box<dyn Cache>> {
    Some(match name {
        "fifo" => Box::new(Fifo::new(capacity, rows)),
        "lru" => Box::new(Lru::new(capacity, rows)),
        "slru" => Box::new(Slru::new(capacity, rows)),
        "clock" => Box::new(Clock::new(capacity, rows)),
        "s3-fifo" => Box::new(S3Fifo::new(capacity, rows)),
        "sieve" => Box::new(Sieve::new(capacity, rows)),
        "w-tinylfu" => Box::new(WTinyLfu::new(capacity, rows)),
        "2q" => Box::new(TwoQ::new(capacity, rows)),
        "arc" => Box::new(Arc::new(capacity, rows)),
        _ => return None,
    })
}

/// How many accesses of `trace` hit.
pub(crate) fn hits(cache: &mut dyn Cache, trace: &[u32]) -> usize {
    trace.iter().filter(|&&row| cache.access(row)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::generators::{GENERATORS, ROWS};

    /// Hits of libCacheSim 0.3.5 with 1,000 rows on accesses 200,000 to 300,000 of generated traces, in the order
    /// of [`ONLINE`].
    const LIBCACHESIM: [(&str, [usize; 9]); 3] = [
        (
            "zipf-0.8",
            [
                10571, 12214, 17209, 12925, 19581, 18360, 17803, 17937, 19486,
            ],
        ),
        (
            "weak-recency",
            [7136, 7379, 970, 7473, 3595, 1708, 1170, 3772, 6770],
        ),
        (
            "shift",
            [
                39055, 42676, 46385, 43676, 48748, 44309, 44943, 47202, 49093,
            ],
        ),
    ];

    #[test]
    fn hits_are_those_of_libcachesim() {
        for (name, expected) in LIBCACHESIM {
            let generator = GENERATORS.iter().find(|g| g.name == name);
            let trace = generator.expect("a generator").trace();
            for (policy, expected) in ONLINE.into_iter().zip(expected) {
                let mut cache = online(policy, 1_000, ROWS).expect("a policy");
                let found = hits(&mut *cache, &trace[200_000..300_000]);
                if policy == "w-tinylfu" {
                    // Other hash functions, so other false counts: an eighth at most.
                    assert!(
                        found.abs_diff(expected) <= expected / 8,
                        "{name}: {found}, {expected}"
                    );
                } else {
                    assert_eq!(found, expected, "{policy} on {name}");
                }
            }
        }
    }

    #[test]
    fn belady_evicts_what_is_used_last() {
        let trace = GENERATORS[7].trace();
        let mut trace: Vec<u32> = trace[400_000..402_000]
            .iter()
            .map(|row| row % 300)
            .collect();
        trace.extend((0..300).chain(0..300));
        for capacity in [1, 7, 50, 299, 300] {
            let mut cached: Vec<u32> = Vec::new();
            let mut hits = 0;
            for (at, &row) in trace.iter().enumerate() {
                if cached.contains(&row) {
                    hits += 1;
                    continue;
                }
                if cached.len() == capacity {
                    let next = |row: u32| trace[at..].iter().position(|&r| r == row);
                    let last = |&at: &usize| next(cached[at]).unwrap_or(usize::MAX);
                    let victim = (0..capacity).max_by_key(last).expect("rows");
                    cached.swap_remove(victim);
                }
                cached.push(row);
            }
            assert_eq!(Belady::hits(&trace, capacity, 300), hits, "{capacity} rows");
        }
    }
}
