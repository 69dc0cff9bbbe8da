//! What tiers of the simulated world were asked for, and what they failed to give, of all workers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use rowmill_cache::tier::{EachRow, FetchesFull, Tier, TierCounts, TierError, Wanted};

/// A row, after the number of its table on a side.
type Row = (usize, u32);

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Fetches that found no room, of whatever kind, and those that were not answered in time.
    full: AtomicU64,
    late: AtomicU64,
    /// Rows that a tier of this process failed to give, in any generation.
    failed: Mutex<BTreeSet<Row>>,
}

impl Watch {
    fn failed(&self) -> MutexGuard<'_, BTreeSet<Row>> {
        self.failed.lock().expect("a panic ends the run")
    }

    /// Whether a row did not come some time.
    pub(super) fn has_failed(&self, row: Row) -> bool {
        self.failed().contains(&row)
    }

    /// Another process takes the place of the one before.
    pub(super) fn starts_over(&self) {
        self.failed().clear();
    }

    /// Fetches that found no room, and those that were not answered in time.
    pub(super) fn counts(&self) -> [u64; 2] {
        [&self.full, &self.late].map(|count| count.load(Relaxed))
    }
}

/// A worker's tier.
pub(super) struct Watched {
    pub(super) tier: Box<dyn Tier + Send>,
    pub(super) watch: Arc<Watch>,
    /// By their tokens.
    wanted: BTreeMap<u64, Row>,
}

impl Watched {
    pub(super) fn new(tier: Box<dyn Tier + Send>, watch: &Arc<Watch>) -> Watched {
        Watched {
            tier,
            watch: Arc::clone(watch),
            wanted: BTreeMap::new(),
        }
    }
}

impl Tier for Watched {
    fn fetch(&mut self, now_ns: u64, wanted: Wanted) -> Result<(), FetchesFull> {
        let fetched = self.tier.fetch(now_ns, wanted);
        match fetched {
            Ok(()) => {
                let row = (wanted.table as usize, wanted.row);
                self.wanted.insert(wanted.token, row);
            }
            Err(_) => _ = self.watch.full.fetch_add(1, Relaxed),
        }
        fetched
    }

    fn poll(&mut self, now_ns: u64, each: EachRow<'_>) {
        let Watched {
            tier,
            watch,
            wanted,
        } = self;
        tier.poll(now_ns, &mut |token, outcome| {
            let row = wanted.remove(&token).expect("an answer to a fetch");
            if let Err(why) = outcome {
                watch.failed().insert(row);
                let is_late = why == TierError::Late;
                watch.late.fetch_add(is_late.into(), Relaxed);
            }
            each(token, outcome);
        });
    }

    fn unanswered(&self) -> usize {
        self.tier.unanswered()
    }

    fn counts(&self) -> TierCounts {
        self.tier.counts()
    }
}
