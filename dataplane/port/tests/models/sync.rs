//! What `crate::sync` is to the files under test: loom's atomics, which planted mistakes can weaken, and a queue of such.

use loom::cell::UnsafeCell;
use loom::sync::atomic;
pub(crate) use loom::sync::atomic::{AtomicBool, Ordering};

use crate::plant::{Mistake, is};

fn weakened(order: Ordering) -> Ordering {
    match order {
        Ordering::Release if is(Mistake::RelaxedStore) => Ordering::Relaxed,
        Ordering::Acquire if is(Mistake::RelaxedLoad) => Ordering::Relaxed,
        order => order,
    }
}

/// A fence.
pub(crate) fn fence(order: Ordering) {
    if !is(Mistake::NoFence) {
        atomic::fence(order);
    }
}

/// A word.
#[derive(Debug)]
pub(crate) struct AtomicU32(atomic::AtomicU32);

impl AtomicU32 {
    pub(crate) fn new(value: u32) -> AtomicU32 {
        AtomicU32(atomic::AtomicU32::new(value))
    }

    pub(crate) fn load(&self, order: Ordering) -> u32 {
        self.0.load(weakened(order))
    }

    /// A swap, since loom (0.7.2) does not put an exchange right behind the store that it read, as it is in the one order
    /// of a word's stores: it could load the exchange's value over that of a later store. As swaps they all are in that
    /// order. Nothing gets stronger by that: a word has one thread that releases, or none.
    pub(crate) fn store(&self, value: u32, order: Ordering) {
        self.0.swap(value, weakened(order));
    }

    pub(crate) fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.0.swap(value, weakened(order))
    }
}

/// A counter.
#[derive(Debug)]
pub(crate) struct AtomicUsize(atomic::AtomicUsize);

impl AtomicUsize {
    pub(crate) fn new(value: usize) -> AtomicUsize {
        AtomicUsize(atomic::AtomicUsize::new(value))
    }

    pub(crate) fn load(&self, order: Ordering) -> usize {
        self.0.load(weakened(order))
    }

    pub(crate) fn fetch_add(&self, value: usize, order: Ordering) -> usize {
        self.0.fetch_add(value, weakened(order))
    }
}

struct Place<T> {
    full: atomic::AtomicBool,
    item: UnsafeCell<Option<T>>,
}

/// A queue with the orderings that crossbeam's has between a push and the pop that finds it, and none besides. Its places
/// are not used again, so that it has as many as a model pushes.
pub(crate) struct ArrayQueue<T> {
    places: Box<[Place<T>]>,
    pushed: atomic::AtomicUsize,
    popped: atomic::AtomicUsize,
}

// SAFETY: an item is written by whoever took its place from `pushed`, and taken out by whoever moved `popped` past it,
// after `full` was seen; loom checks that these accesses are ordered.
unsafe impl<T: Send> Sync for ArrayQueue<T> {}

impl<T> std::fmt::Debug for ArrayQueue<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ArrayQueue")
    }
}

impl<T> ArrayQueue<T> {
    pub(crate) fn new(places: usize) -> ArrayQueue<T> {
        let place = |_| Place {
            full: atomic::AtomicBool::new(false),
            item: UnsafeCell::new(None),
        };
        ArrayQueue {
            places: (0..places).map(place).collect(),
            pushed: atomic::AtomicUsize::new(0),
            popped: atomic::AtomicUsize::new(0),
        }
    }

    pub(crate) fn push(&self, item: T) -> Result<(), T> {
        let at = self.pushed.fetch_add(1, Ordering::Relaxed);
        let Some(place) = self.places.get(at) else {
            return Err(item);
        };
        // SAFETY: nobody else has got this number.
        place.item.with_mut(|place| unsafe { *place = Some(item) });
        place.full.store(true, Ordering::Release);
        Ok(())
    }

    pub(crate) fn pop(&self) -> Option<T> {
        loop {
            let at = self.popped.load(Ordering::Relaxed);
            let place = self.places.get(at)?;
            if !place.full.load(Ordering::Acquire) {
                return None;
            }
            let (next, order) = (at + 1, Ordering::Relaxed);
            if self.popped.compare_exchange(at, next, order, order).is_ok() {
                // SAFETY: it is full, and nobody else moved the count past it.
                return place.item.with_mut(|place| unsafe { (*place).take() });
            }
        }
    }
}
