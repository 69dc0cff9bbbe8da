//! Quiescence: when nobody can still read a row that was taken away.
//!
//! A worker looks rows up and reads them in *turns*, and keeps nothing that it found beyond a turn. So a slot whose row was
//! taken away can be written once every worker has begun a turn, or rests, after the row could no longer be found. Epochs tell
//! that: a writer that has taken rows away ends an epoch and notes its number; a worker that begins a turn notes the newest
//! number it knows; and what was taken away in epoch `e` is free when all workers have noted `e` or more.
//!
//! Why that is so, by the memory model of C11. `newest` is changed by read-modify-writes alone, so that whoever reads a number
//! with acquire sees what every writer did before it made that number or a smaller one.
//!
//! 1. *A worker that has noted `e` finds nothing that was taken away before `e`.* It has read `e` or more from `newest` with
//!    acquire, and the writer took the row away before its read-modify-write, which releases: the change of the tag happens
//!    before the worker's looks of this turn and of all later ones.
//! 2. *What it read in earlier turns it has read.* It notes `e` by a store with release, behind its reads, and the writer reads
//!    that note with acquire before it writes the slot.
//! 3. *A worker that rests holds nothing*, by the same store and load. When it wakes, it first takes back its note that it
//!    rests, then changes `newest` by adding nothing, and only then looks anything up. Of that change and the writer's one comes
//!    first. If it is the writer's, the worker sees what was taken away, as in 1. If it is the worker's, the writer's reads from
//!    it or behind it with acquire, so that the writer's looks at notes, which come after, see that this worker no longer
//!    rests. This is where a store must be seen before a later load is done; both sides' read-modify-writes of one word see to
//!    it, so that no fence is needed, and none at all in a turn.

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use super::sync::{AtomicU64, Ordering};

/// The note of a worker that rests: greater than every number.
const RESTING: u64 = u64::MAX;
/// The note of a worker that wakes: smaller than every number of an epoch that was ended.
const WAKING: u64 = 0;

/// The epochs that the workers of a dataplane and all their writers share.
#[derive(Debug)]
pub struct Epochs {
    /// The number of the epoch that was ended last.
    newest: CachePadded<AtomicU64>,
    /// Each worker's note, on a line of its own: it alone writes it.
    notes: Box<[CachePadded<AtomicU64>]>,
}

impl Epochs {
    /// Epochs for as many workers, which all rest.
    pub fn new(workers: usize) -> (Arc<Epochs>, Vec<Worker>) {
        let note = |_| CachePadded::new(AtomicU64::new(RESTING));
        let epochs = Arc::new(Epochs {
            newest: CachePadded::new(AtomicU64::new(WAKING)),
            notes: (0..workers).map(note).collect(),
        });
        let worker = |number| Worker {
            epochs: Arc::clone(&epochs),
            number,
            noted: RESTING,
        };
        let workers = (0..workers).map(worker).collect();
        (epochs, workers)
    }

    /// Ends an epoch, in which the caller took rows away: its number.
    pub(super) fn end(&self) -> u64 {
        // Acquire for 3: a worker's note that it no longer rests.
        self.newest.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Ends an epoch and returns when all workers have passed it, calling `pause` as long as some have not: nobody uses any more what can't be
    /// found since before this was called. For a thread that is no worker.
    pub fn pass_all(&self, mut pause: impl FnMut()) {
        let epoch = self.end();
        while self.passed() < epoch {
            pause();
        }
    }

    /// The number of an epoch that all workers have passed, and of no later one as far as is known.
    pub(super) fn passed(&self) -> u64 {
        let notes = self.notes.iter().map(|note| note.load(Ordering::Acquire));
        notes.min().unwrap_or(RESTING)
    }
}

/// What a worker says of its turns. It rests at first.
#[derive(Debug)]
pub struct Worker {
    epochs: Arc<Epochs>,
    number: usize,
    /// Its note.
    noted: u64,
}

impl Worker {
    /// Begins a turn: whatever was found in earlier ones is forgotten.
    #[inline]
    pub fn turn(&mut self) -> Turn<'_> {
        self.pass();
        Turn {
            epochs: &self.epochs,
        }
    }

    /// Says that nothing found in earlier turns is in use any more, as a worker does that has nothing to look up and does not
    /// [rest](Self::rest).
    #[inline]
    pub fn pass(&mut self) {
        if self.noted == RESTING {
            self.wake();
            return;
        }
        let newest = self.epochs.newest.load(Ordering::Acquire);
        // Mostly nothing was taken away meanwhile, and then the line of the note stays with those who read it.
        if newest != self.noted {
            self.note(newest);
        }
    }

    /// Says so for all the time until the next turn: the worker is about to sleep.
    pub fn rest(&mut self) {
        self.note(RESTING);
    }

    #[cold]
    fn wake(&mut self) {
        self.epochs.notes[self.number].store(WAKING, Ordering::Relaxed);
        let newest = self.epochs.newest.fetch_add(0, Ordering::AcqRel);
        self.note(newest);
    }

    fn note(&mut self, number: u64) {
        self.epochs.notes[self.number].store(number, Ordering::Release);
        self.noted = number;
    }
}

impl Drop for Worker {
    /// A worker that is gone holds up no writer.
    fn drop(&mut self) {
        self.rest();
    }
}

/// A turn of a worker, in which what it finds stays as it is.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'w> {
    epochs: &'w Arc<Epochs>,
}

impl Turn<'_> {
    /// Whether writers that end these epochs wait for this turn.
    pub(super) fn is_of(&self, epochs: &Arc<Epochs>) -> bool {
        Arc::ptr_eq(self.epochs, epochs)
    }
}
