//! What the device said of a queue pair or completion queue beside completions, as bits that any thread can read.

use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A kind of trouble with one object, reported as an asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A queue pair or completion queue failed and can't be used any more: IBV_EVENT_QP_FATAL, IBV_EVENT_CQ_ERR
    /// (a completion queue that ran over, most of all).
    Fatal = 1,
    /// A peer's request was invalid: IBV_EVENT_QP_REQ_ERR.
    Request = 2,
    /// A peer tried to access what it may not: IBV_EVENT_QP_ACCESS_ERR.
    Access = 4,
}

/// The troubles of one object so far.
#[derive(Debug, Default)]
pub struct Health {
    bits: AtomicU32,
}

impl Health {
    /// Whether there was none.
    pub fn is_good(&self) -> bool {
        self.bits.load(Ordering::Relaxed) == 0
    }

    /// Whether there was this one.
    pub fn had(&self, trouble: Trouble) -> bool {
        self.bits.load(Ordering::Relaxed) & trouble as u32 != 0
    }

    pub(crate) fn note(&self, trouble: Trouble) {
        self.bits.fetch_or(trouble as u32, Ordering::Relaxed);
    }
}

/// The health of the objects of a device, found by the object's address. An object is entered before it is
/// used and left out before it is destroyed, so that an address never leads to a former object's health;
/// an event that comes between is of an object that nobody asks about any more.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    objects: Mutex<HashMap<u64, Arc<Health>>>,
}

impl Registry {
    pub(crate) fn enter(&self, object: u64) -> Arc<Health> {
        let health = Arc::new(Health::default());
        self.enter_again(object, &health);
        health
    }

    /// Enters an object that was left out and then could not be destroyed.
    pub(crate) fn enter_again(&self, object: u64, health: &Arc<Health>) {
        let mut objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        objects.insert(object, Arc::clone(health));
    }

    pub(crate) fn leave(&self, object: u64) {
        let mut objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        objects.remove(&object);
    }

    pub(crate) fn note(&self, object: u64, trouble: Trouble) {
        let objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(health) = objects.get(&object) {
            health.note(trouble);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_finds_its_object_and_no_former_one() {
        let registry = Registry::default();
        let (one, other) = (registry.enter(8), registry.enter(16));
        registry.note(8, Trouble::Access);
        assert!(one.had(Trouble::Access) && !one.had(Trouble::Fatal) && !one.is_good());
        assert!(other.is_good());
        registry.leave(8);
        registry.note(8, Trouble::Fatal);
        assert!(!one.had(Trouble::Fatal));
        assert!(registry.enter(8).is_good());
    }
}
