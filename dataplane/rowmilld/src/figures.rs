//! What a worker tells others about itself: relaxed atomics that it alone writes, read by the admin
//! pages whenever they like. Publishing costs a few stores, and no memory.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

pub use rowmill_cache::figures::{BUCKETS, Times};
use rowmill_engine::{Counters, Engine, HELD, Side};

/// One of the engine's counters: its name, what it counts, and where it is.
pub struct Counter {
    /// The name, as in `rowmill_NAME_total` and in `/status`.
    pub name: &'static str,
    /// What it counts.
    pub help: &'static str,
    of: fn(&Counters) -> u64,
}

/// Every counter of the engine.
pub const COUNTERS: [Counter; 13] = [
    counter(
        "requests",
        "Request frames received, whatever became of them.",
        |c| c.requests,
    ),
    counter(
        "completed",
        "Requests answered OK, null requests included.",
        |c| c.completed,
    ),
    counter("refused", "Requests refused for what they said.", |c| {
        c.refused
    }),
    counter("busy", "Requests answered BUSY.", |c| c.busy),
    counter("expired", "Requests answered EXPIRED.", |c| c.expired),
    counter("cancelled", "Requests answered CANCELLED.", |c| c.cancelled),
    counter(
        "region_lost",
        "Requests given up because their region was lost.",
        |c| c.region_lost,
    ),
    counter(
        "row_unavailable",
        "Requests given up because a row of a cached table could not be fetched.",
        |c| c.row_unavailable,
    ),
    counter(
        "gone",
        "Requests dropped because their client left before they were answered.",
        |c| c.gone,
    ),
    counter("bags", "Samples of completed requests.", |c| c.bags),
    counter("rows", "Rows read.", |c| c.rows),
    counter("bytes", "Bytes of rows read and results written.", |c| {
        c.bytes
    }),
    counter("micro_batches", "Micro-batches.", |c| c.micro_batches),
];

const fn counter(name: &'static str, help: &'static str, of: fn(&Counters) -> u64) -> Counter {
    Counter { name, help, of }
}

/// Adds to a figure that only the calling thread writes: no locked instruction is needed.
fn add(figure: &AtomicU64, by: u64) {
    figure.store(figure.load(Relaxed).wrapping_add(by), Relaxed);
}

/// One worker's figures, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Figures {
    counters: [AtomicU64; COUNTERS.len()],
    /// Service times of lookups answered OK.
    pub times: Times,
    in_progress: AtomicU64,
    in_progress_on: [AtomicU64; HELD],
    micro_batch_bytes: AtomicU64,
    doorbells: AtomicU64,
    sleeps: AtomicU64,
    sleeping: AtomicBool,
    stepped_ns: AtomicU64,
    drained: AtomicBool,
}

impl Figures {
    /// The worker is there and about to make its first step.
    pub(crate) fn begin(&self, now_ns: u64) {
        self.stepped_ns.store(now_ns, Relaxed);
    }

    /// Publishes the engine's figures after a step. `before` is what was published last.
    pub(crate) fn publish(&self, now_ns: u64, engine: &Engine, before: &mut Counters) {
        let counters = engine.counters();
        if counters != before {
            for (figure, counter) in self.counters.iter().zip(&COUNTERS) {
                figure.store((counter.of)(counters), Relaxed);
            }
            *before = *counters;
        }
        self.in_progress.store(engine.in_progress() as u64, Relaxed);
        for side in Side::ALL {
            let count = engine.in_progress_on(side) as u64;
            self.in_progress_on[side.index()].store(count, Relaxed);
        }
        self.micro_batch_bytes
            .store(engine.micro_batch_bytes(), Relaxed);
        self.stepped_ns.store(now_ns, Relaxed);
    }

    /// Publishes how many doorbells the worker's half of the port has rung.
    pub(crate) fn set_doorbells(&self, doorbells: u64) {
        self.doorbells.store(doorbells, Relaxed);
    }

    /// The worker is about to sleep, or awake again.
    pub(crate) fn sleep(&self, sleeping: bool) {
        if sleeping {
            add(&self.sleeps, 1);
        }
        self.sleeping.store(sleeping, Relaxed);
    }

    /// The worker refuses new requests and has none left in progress.
    pub(crate) fn set_drained(&self) {
        self.drained.store(true, Relaxed);
    }

    /// The counters' values, in the order of [`COUNTERS`].
    pub fn counters(&self) -> [u64; COUNTERS.len()] {
        core::array::from_fn(|i| self.counters[i].load(Relaxed))
    }

    /// Requests in progress.
    pub fn in_progress(&self) -> u64 {
        self.in_progress.load(Relaxed)
    }

    /// Those on the generation of a side.
    pub fn in_progress_on(&self, side: Side) -> u64 {
        self.in_progress_on[side.index()].load(Relaxed)
    }

    /// Bytes of the next micro-batch.
    pub fn micro_batch_bytes(&self) -> u64 {
        self.micro_batch_bytes.load(Relaxed)
    }

    /// Doorbells that the worker has rung: lists of work requests that it gave to a device. On soft-RoCE each is a
    /// system call.
    pub fn doorbells(&self) -> u64 {
        self.doorbells.load(Relaxed)
    }

    /// How often the worker went to sleep.
    pub fn sleeps(&self) -> u64 {
        self.sleeps.load(Relaxed)
    }

    /// Whether it sleeps now.
    pub fn is_sleeping(&self) -> bool {
        self.sleeping.load(Relaxed)
    }

    /// When it made its last step, by the clock that its steps are given.
    pub fn stepped_ns(&self) -> u64 {
        self.stepped_ns.load(Relaxed)
    }

    /// Whether it refuses new requests and has none left in progress.
    pub fn is_drained(&self) -> bool {
        self.drained.load(Relaxed)
    }
}
