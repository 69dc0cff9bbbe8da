//! The memory that the halves of a lane's rings share, for the model: words are atomics, and all other places must not be
//! accessed by both sides at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use loom::cell::UnsafeCell;

use super::layout::{CLIENT_SLEEPING, COMPLETION_TAIL, Layout, SUBMISSION_TAIL, WORKER_SLEEPING};
use crate::sync::AtomicU32;

/// Records that a model writes at most.
const RECORDS: u32 = 4;

/// A lane's block.
pub(super) struct Memory {
    words: BTreeMap<usize, AtomicU32>,
    places: BTreeMap<usize, UnsafeCell<Vec<u8>>>,
}

// SAFETY: the rings order all accesses to a place, which is what loom checks here.
unsafe impl Sync for Memory {}

impl Memory {
    pub(super) fn new(layout: Layout) -> Memory {
        let words = [
            SUBMISSION_TAIL,
            WORKER_SLEEPING,
            COMPLETION_TAIL,
            CLIENT_SLEEPING,
        ];
        let submissions = (0..layout.submissions()).map(|number| layout.submission(number));
        let records = (0..RECORDS).map(|number| layout.completion(number));
        let slots = (0..layout.credits()).map(|slot| layout.slot(slot));
        let places = submissions.chain(records).chain(slots);
        Memory {
            words: words.map(|at| (at, AtomicU32::new(0))).into(),
            places: places.map(|at| (at, UnsafeCell::default())).collect(),
        }
    }
}

/// One side's way to it.
pub(super) struct Block(Arc<Memory>);

impl Block {
    pub(super) fn of(memory: &Arc<Memory>) -> Block {
        Block(Arc::clone(memory))
    }

    pub(super) fn word(&self, at: usize) -> &AtomicU32 {
        &self.0.words[&at]
    }

    pub(super) fn load_u32(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        self.read(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    pub(super) fn store_u32(&self, at: usize, value: u32) {
        self.write(at, &value.to_le_bytes());
    }

    pub(super) fn read(&self, at: usize, out: &mut [u8]) {
        // SAFETY: as said above.
        let place = |place: *const Vec<u8>| unsafe { &*place }[..out.len()].to_vec();
        out.copy_from_slice(&self.0.places[&at].with(place));
    }

    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        // SAFETY: as said above.
        self.0.places[&at].with_mut(|place| unsafe { *place = bytes.to_vec() });
    }
}
