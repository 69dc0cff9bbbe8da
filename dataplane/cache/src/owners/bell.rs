//! Tells a worker that something came for it, also in its sleep.
//!
//! Who sends puts something into a queue and then rings; who receives answers the bell and then looks into the queue. The bell is
//! one word that both change by read-modify-writes alone, so each sees the newest, and everything that was sent before it:
//!
//! 1. *Nothing is left in a queue.* A ring comes before an answer in the word's order, and then the answer acquires what was sent
//!    (a later ring in between passes it on, being a read-modify-write); or it comes behind, and then the bell is rung again.
//! 2. *Nobody sleeps on.* A worker may sleep only if it turns the word from AWAKE to ASLEEP. A ring before that makes this fail; one behind
//!    it reads ASLEEP, and whoever reads that wakes the worker. Only the first does, since it leaves RUNG behind.

use super::sync::{AtomicU8, Ordering};

const AWAKE: u8 = 0;
const RUNG: u8 = 1;
const ASLEEP: u8 = 2;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Bell(AtomicU8);

impl Bell {
    /// Of a worker that is awake.
    pub(crate) fn new() -> Bell {
        Bell(AtomicU8::new(AWAKE))
    }

    /// Something was sent. Returns whether the worker sleeps, and has to be woken by who rang.
    #[must_use = "a worker that sleeps is woken"]
    pub(crate) fn ring(&self) -> bool {
        self.0.swap(RUNG, Ordering::AcqRel) == ASLEEP
    }

    /// Whether it has been rung, as far as is known. The worker asks.
    pub(crate) fn is_rung(&self) -> bool {
        self.0.load(Ordering::Relaxed) == RUNG
    }

    /// The worker is awake, and answers: whether it was rung since it last did.
    pub(crate) fn answer(&self) -> bool {
        // Mostly nobody has rung, and then the word's line stays where it is.
        self.0.load(Ordering::Relaxed) != AWAKE && self.0.swap(AWAKE, Ordering::AcqRel) == RUNG
    }

    /// The worker is about to sleep. Returns whether it may.
    #[must_use = "a worker that was rung does not sleep"]
    pub(crate) fn lie_down(&self) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        let before = self.0.compare_exchange(AWAKE, ASLEEP, success, failure);
        // Where it has slept before and did not answer since, the word says so still.
        before.is_ok() || before == Err(ASLEEP)
    }
}
