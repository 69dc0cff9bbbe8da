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

/// One of loom's, with orders that may be weakened.
macro_rules! atomic {
    ($(#[$what:meta])* $name:ident, $word:ty) => {
        $(#[$what])*
        #[derive(Debug)]
        pub(crate) struct $name(atomic::$name);

        impl $name {
            pub(crate) fn new(value: $word) -> $name {
                $name(atomic::$name::new(value))
            }

            pub(crate) fn load(&self, order: Ordering) -> $word {
                self.0.load(weakened(order))
            }

            pub(crate) fn store(&self, value: $word, order: Ordering) {
                self.0.store(value, weakened(order));
            }
        }
    };
}

atomic! {
    /// A tag of one byte.
    AtomicU8, u8
}
atomic! {
    /// A tag of two bytes.
    AtomicU16, u16
}
atomic! {
    /// A row's number.
    AtomicU32, u32
}
atomic! {
    /// The newest epoch, which is only exchanged, a note, which is only stored, or the number of sets.
    AtomicU64, u64
}

impl AtomicU64 {
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
