//! How many objects of the device this process has: counted where they are made and where they are destroyed, so that one
//! that is left behind shows.

use std::sync::atomic::{AtomicU64, Ordering};

/// Objects of one kind.
pub(crate) struct Count(AtomicU64);

impl Count {
    /// One was made.
    pub(crate) fn made(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// One was destroyed.
    pub(crate) fn gone(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(crate) static DOMAINS: Count = Count(AtomicU64::new(0));
pub(crate) static COMPLETION_QUEUES: Count = Count(AtomicU64::new(0));
pub(crate) static QUEUE_PAIRS: Count = Count(AtomicU64::new(0));
pub(crate) static REGIONS: Count = Count(AtomicU64::new(0));
pub(crate) static IDS: Count = Count(AtomicU64::new(0));

/// Objects that this process has, on all devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    /// Protection domains.
    pub domains: u64,
    /// Completion queues.
    pub completion_queues: u64,
    /// Queue pairs.
    pub queue_pairs: u64,
    /// Memory regions, those of slabs included.
    pub regions: u64,
    /// Ids of the connection manager, listeners included.
    pub ids: u64,
}

impl Live {
    /// As it is now.
    pub fn now() -> Live {
        let count = |of: &Count| of.0.load(Ordering::Relaxed);
        Live {
            domains: count(&DOMAINS),
            completion_queues: count(&COMPLETION_QUEUES),
            queue_pairs: count(&QUEUE_PAIRS),
            regions: count(&REGIONS),
            ids: count(&IDS),
        }
    }
}
