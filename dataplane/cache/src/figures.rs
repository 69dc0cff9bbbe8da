//! What one worker has done about one cached table: relaxed atomics that it alone writes, read by others whenever they like.
//!
//! So counting costs a load and a store, and neither publishing nor memory.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::tier::{TierCounts, TierError};

/// Bounded buckets of [`Times`]: bucket `i` holds times up to 2^i microseconds, so that the last one
/// ends at 2^22 us, about 4 s; longer times are in one more bucket.
pub const BUCKETS: usize = 23;

/// A histogram of times with one writer.
#[derive(Debug)]
pub struct Times {
    counts: [AtomicU64; BUCKETS + 1],
    sum_ns: AtomicU64,
}

impl Default for Times {
    fn default() -> Times {
        Times {
            counts: [const { AtomicU64::new(0) }; BUCKETS + 1],
            sum_ns: AtomicU64::new(0),
        }
    }
}

impl Times {
    /// Counts a time. Only one thread may call this.
    pub fn record(&self, ns: u64) {
        let us = ns.div_ceil(1000).max(1);
        let bucket = (us.next_power_of_two().trailing_zeros() as usize).min(BUCKETS);
        add(&self.counts[bucket], 1);
        add(&self.sum_ns, ns);
    }

    /// The buckets' counts (not cumulative; the last is of longer times) and the sum of all times.
    pub fn read(&self) -> ([u64; BUCKETS + 1], u64) {
        (
            core::array::from_fn(|i| self.counts[i].load(Relaxed)),
            self.sum_ns.load(Relaxed),
        )
    }
}

/// Adds to a figure that only the calling thread writes: no locked instruction is needed.
pub(crate) fn add(figure: &AtomicU64, by: u64) {
    figure.store(figure.load(Relaxed).wrapping_add(by), Relaxed);
}

/// Something that is counted of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Rows looked up, in whatever shard.
    Lookups,
    /// Those of them that were there.
    Hits,
    /// Rows asked for of the tier.
    Fetched,
    /// Rows that came.
    Arrived,
    /// Rows that were asked for of the tier and did not come in time.
    Late,
    /// Rows that were asked for of the tier and came from memory before they came from there: their table became resident.
    Unneeded,
    /// Rows that were given up before they were asked for, since the tier answered nothing.
    Stalled,
    /// Rows that were given up before they were asked for, since other tables' rows had what the tier can be asked for at a time.
    Starved,
    /// Rows in pages that don't match their checksums.
    Corrupt,
    /// Rows behind the end of their file.
    Gone,
    /// Rows that the kernel could not read.
    Failed,
    /// Rows that came into the store. What arrived is one of this, [`Refused`](Count::Refused), [`Crowded`](Count::Crowded) and
    /// [`Unkept`](Count::Unkept).
    Admitted,
    /// Rows that had to leave it for others, which have come.
    Evicted,
    /// Rows that came and that the policy did not take in, or that were asked for in a silence of the tier, when none takes another's place.
    Refused,
    /// Rows that were asked for while rows went by when they were used last, and not by what the policy has learnt of them.
    ByRecency,
    /// Rows that came and found no slot, since all that they may be in were taken or still being read.
    Crowded,
    /// Rows that came and were there already, or whose table was not cached when they were asked for, or is not any more.
    Unkept,
    /// Rows that were said to be wanted soon and were not there; one that is named again shortly after counts once.
    Hinted,
    /// Those of them that there was no room for, or whose generation was given up before they were asked for.
    HintsDropped,
    /// Times that there was no room to park a bag.
    ParksRefused,
    /// Lookups that were sampled, for the control plane.
    Sampled,
    /// Lookups that would have been sampled, and nobody took those before them in time.
    SamplesDropped,
}

/// Every [`Count`] with its name in metrics and what it counts, in their order.
pub const COUNTS: [(Count, &str, &str); 22] = [
    (
        Count::Lookups,
        "lookups",
        "Rows looked up in cached tables.",
    ),
    (
        Count::Hits,
        "hits",
        "Of these, rows that were in the cache.",
    ),
    (
        Count::Fetched,
        "fetched",
        "Rows asked for, of whichever tier. What came of those that were on their way when the table was moved is counted after that.",
    ),
    (Count::Arrived, "arrived", "Of these, rows that came."),
    (
        Count::Late,
        "late",
        "Rows asked for that did not come in time from any tier.",
    ),
    (
        Count::Unneeded,
        "unneeded",
        "Rows asked for whose table became resident before they came.",
    ),
    (
        Count::Stalled,
        "stalled",
        "Rows given up before they were asked for, since no tier answered.",
    ),
    (
        Count::Starved,
        "starved",
        "Rows given up before they were asked for, since other tables' rows held all reads.",
    ),
    (
        Count::Corrupt,
        "corrupt",
        "Rows that did not come, since in the last tier their pages don't match their checksums.",
    ),
    (
        Count::Gone,
        "gone",
        "Rows that did not come, since they are behind the end of the last tier's file.",
    ),
    (
        Count::Failed,
        "failed",
        "Rows that did not come, since the kernel could not read them in the last tier.",
    ),
    (
        Count::Admitted,
        "admitted",
        "Rows that came into the cache.",
    ),
    (
        Count::Evicted,
        "evicted",
        "Rows that left the cache for others, and not with their table, when it became resident.",
    ),
    (
        Count::Refused,
        "not_admitted",
        "Rows that came and that were not taken in: the others are worth more, or the tier was silent when they were asked for.",
    ),
    (
        Count::ByRecency,
        "by_recency",
        "Rows asked for while rows went by when they were used last, and not by what the policy had learnt, which was behind.",
    ),
    (
        Count::Crowded,
        "crowded",
        "Rows that came and found no free slot.",
    ),
    (
        Count::Unkept,
        "unkept",
        "Rows that came and were there already, or whose table was not cached then.",
    ),
    (
        Count::Hinted,
        "hinted",
        "Rows that were said to be wanted soon and were not there; one that is named again shortly after counts once.",
    ),
    (
        Count::HintsDropped,
        "hints_dropped",
        "Of these, rows that there was no room for (cache.prefetched_rows), or whose generation was given up meanwhile.",
    ),
    (
        Count::ParksRefused,
        "parks_refused",
        "Times that a bag found no room to wait for its rows, and its request waited for that.",
    ),
    (
        Count::Sampled,
        "sampled",
        "Lookups sampled for the control plane.",
    ),
    (
        Count::SamplesDropped,
        "samples_dropped",
        "Lookups that would have been sampled, and of which nobody could be told.",
    ),
];

/// Something that is counted of one of a worker's tiers, of all tables.
pub struct TierCount {
    /// The name in metrics.
    pub name: &'static str,
    /// What it counts.
    pub help: &'static str,
    of: fn(&TierCounts) -> u64,
}

/// All that is told of tiers.
pub const TIER_COUNTS: [TierCount; 5] = [
    tier_count("reads", "Reads asked for.", |c| c.reads),
    tier_count("read_bytes", "Bytes of these reads.", |c| c.read_bytes),
    tier_count(
        "joined",
        "Rows that came with a read for another one.",
        |c| c.joined,
    ),
    tier_count(
        "waits",
        "Times that rows began to wait, as many being read as can be.",
        |c| c.refused,
    ),
    tier_count(
        "stalls",
        "Times that the kernel could not be asked for what was read.",
        |c| c.stalls,
    ),
];

const fn tier_count(
    name: &'static str,
    help: &'static str,
    of: fn(&TierCounts) -> u64,
) -> TierCount {
    TierCount { name, help, of }
}

/// What one worker has done with one of its tiers, and with those that were in its place before: written by it alone, read by others
/// whenever they like.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct TierFigures {
    counts: [AtomicU64; TIER_COUNTS.len()],
}

impl TierFigures {
    /// Publishes what was counted of a tier since `before`, which then is that. Only the worker may call this.
    pub(crate) fn publish(&self, before: &mut TierCounts, counts: &TierCounts) {
        if before == counts {
            return;
        }
        for (figure, count) in self.counts.iter().zip(&TIER_COUNTS) {
            add(figure, (count.of)(counts) - (count.of)(before));
        }
        *before = *counts;
    }

    /// The counts of all workers together, in the order of [`TIER_COUNTS`].
    pub fn sum<'a>(workers: impl IntoIterator<Item = &'a TierFigures>) -> [u64; TIER_COUNTS.len()] {
        workers
            .into_iter()
            .fold([0; TIER_COUNTS.len()], |all, worker| {
                core::array::from_fn(|i| all[i] + worker.counts[i].load(Relaxed))
            })
    }
}

/// See the module's text.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct TableFigures {
    counts: [AtomicU64; COUNTS.len()],
    /// From when a row is asked of its tier until it is there.
    pub fetch_times: Times,
}

impl TableFigures {
    /// Counts some more. Only the worker may call this.
    pub(crate) fn count(&self, what: Count, by: u64) {
        add(&self.counts[what as usize], by);
    }

    /// Counts a row that did not come.
    pub(crate) fn failed(&self, why: TierError) {
        let what = match why {
            TierError::Late => Count::Late,
            TierError::Corrupt { .. } => Count::Corrupt,
            TierError::Gone => Count::Gone,
            TierError::Os(_) | TierError::Unreached => Count::Failed,
        };
        self.count(what, 1);
    }

    /// How often something happened since the start.
    pub fn get(&self, what: Count) -> u64 {
        self.counts[what as usize].load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_fall_into_the_bucket_that_ends_at_or_above_them() {
        let times = Times::default();
        let cases = [
            (0, 0),
            (1, 0),
            (1000, 0),
            (1001, 1),
            (2000, 1),
            (2001, 2),
            (1 << 40, BUCKETS),
            (u64::MAX / 4, BUCKETS),
        ];
        for (ns, bucket) in cases {
            let before = times.read().0[bucket];
            times.record(ns);
            assert_eq!(times.read().0[bucket], before + 1, "{ns} ns");
        }
        assert_eq!(times.read().0.iter().sum::<u64>(), cases.len() as u64);
    }
}
