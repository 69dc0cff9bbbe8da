//! What `store/sync.rs` is to the files under test: loom's atomics, which planted mistakes can weaken.

use loom::sync::atomic;
pub(crate) use loom::sync::atomic::Ordering;

pub(crate) use crate::overlay::stand_ins::StandIns;
use crate::plant::{Mistake, is};

fn weakened(order: Ordering) -> Ordering {
    match order {
        Ordering::Release if is(Mistake::RelaxedStore) => Ordering::Relaxed,
        Ordering::Acquire if is(Mistake::RelaxedLoad) => Ordering::Relaxed,
        Ordering::AcqRel if is(Mistake::RelaxedExchange) => Ordering::Relaxed,
        order => order,
    }
}

/// A fence.
pub(crate) fn fence(order: Ordering) {
    if !is(Mistake::NoFence) {
        atomic::fence(order);
    }
}

/// A tag of one byte.
#[derive(Debug)]
pub(crate) struct AtomicU8(atomic::AtomicU8);

impl AtomicU8 {
    pub(crate) fn new(value: u8) -> AtomicU8 {
        AtomicU8(atomic::AtomicU8::new(value))
    }

    pub(crate) fn load(&self, order: Ordering) -> u8 {
        self.0.load(weakened(order))
    }

    pub(crate) fn store(&self, value: u8, order: Ordering) {
        self.0.store(value, weakened(order));
    }
}

/// A tag of two bytes.
#[derive(Debug)]
pub(crate) struct AtomicU16(atomic::AtomicU16);

impl AtomicU16 {
    pub(crate) fn new(value: u16) -> AtomicU16 {
        AtomicU16(atomic::AtomicU16::new(value))
    }

    pub(crate) fn load(&self, order: Ordering) -> u16 {
        self.0.load(weakened(order))
    }

    pub(crate) fn store(&self, value: u16, order: Ordering) {
        self.0.store(value, weakened(order));
    }
}

/// A row's number.
#[derive(Debug)]
pub(crate) struct AtomicU32(atomic::AtomicU32);

impl AtomicU32 {
    pub(crate) fn new(value: u32) -> AtomicU32 {
        AtomicU32(atomic::AtomicU32::new(value))
    }

    pub(crate) fn load(&self, order: Ordering) -> u32 {
        self.0.load(weakened(order))
    }

    pub(crate) fn store(&self, value: u32, order: Ordering) {
        self.0.store(value, weakened(order));
    }
}

/// The newest epoch, which is only exchanged, a note, which is only stored, or the number of sets.
#[derive(Debug)]
pub(crate) struct AtomicU64(atomic::AtomicU64);

impl AtomicU64 {
    pub(crate) fn new(value: u64) -> AtomicU64 {
        AtomicU64(atomic::AtomicU64::new(value))
    }

    pub(crate) fn load(&self, order: Ordering) -> u64 {
        self.0.load(weakened(order))
    }

    pub(crate) fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, weakened(order));
    }

    pub(crate) fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_sub(value, weakened(order))
    }

    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        if value == 0 && is(Mistake::WakesByALoad) {
            return self.0.load(Ordering::Acquire);
        }
        self.0.fetch_add(value, weakened(order))
    }
}
