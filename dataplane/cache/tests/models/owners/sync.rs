//! What `owners/sync.rs` is to the bell: loom's atomics, which planted mistakes can weaken.

use loom::sync::atomic;
pub(crate) use loom::sync::atomic::Ordering;

use crate::plant::{Mistake, is};

/// A bell's word.
#[derive(Debug)]
pub(crate) struct AtomicU8(atomic::AtomicU8);

impl AtomicU8 {
    pub(crate) fn new(value: u8) -> AtomicU8 {
        AtomicU8(atomic::AtomicU8::new(value))
    }

    pub(crate) fn load(&self, order: Ordering) -> u8 {
        self.0.load(order)
    }

    pub(crate) fn swap(&self, value: u8, order: Ordering) -> u8 {
        if is(Mistake::RingsByAStore) {
            let before = self.0.load(Ordering::Acquire);
            self.0.store(value, Ordering::Release);
            return before;
        }
        let relaxed = is(Mistake::RelaxedExchange);
        self.0
            .swap(value, if relaxed { Ordering::Relaxed } else { order })
    }

    pub(crate) fn compare_exchange(
        &self,
        from: u8,
        to: u8,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u8, u8> {
        if is(Mistake::LiesDownByAStore) {
            self.0.store(to, Ordering::Release);
            return Ok(from);
        }
        self.0.compare_exchange(from, to, success, failure)
    }
}
