//! Handing over between two sides of which each may sleep: all orderings of the rings are in this file.
//!
//! Each ring has a tail, stored by its producer, and a flag, stored by its consumer before it sleeps.
//! No wake-up is lost, by Dekker's argument:
//!
//! ```text
//! producer                          consumer
//!   P1 tail := n      (release)       C1 flag := 1
//!   P2 fence          (SeqCst)        C2 fence         (SeqCst)
//!   P3 read flag                      C3 read tail     (acquire)
//!      1: flag := 0, ring                n seen: don't sleep
//!      0: nothing                        old: sleep until rung
//! ```
//!
//! The two fences have a place in the one order of all SeqCst fences. If P2 comes first, C3 reads what
//! P1 stored or something later, so the consumer does not sleep. If C2 comes first, P3 reads what C1
//! stored or something later, so the producer rings. A bell that is rung before the consumer really
//! sleeps is kept by the kernel (an edge of an eventfd, a message in a socket), so it ends the sleep that
//! follows. The producer resets the flag so that it rings once a sleep and not once an entry; a flag has
//! one producer only, and whoever resets it rings, so the reset loses nothing. A peer that writes
//! nonsense to the flag or resets it without ringing harms its own connection: workers and clients of
//! other connections have words and bells of their own.
//!
//! The bytes behind a tail are published by P1 and C3: release and acquire.
//!
//! `tests/models` runs this file, with the rings and their sleeping sides, in all orders that there are.

use crate::sync::{AtomicU32, Ordering, fence};

/// Producer: publishes everything written so far under the new tail. True if the consumer may be asleep
/// and has to be rung.
pub(super) fn publish(tail: &AtomicU32, value: u32, sleeping: &AtomicU32) -> bool {
    tail.store(value.to_le(), Ordering::Release);
    fence(Ordering::SeqCst);
    sleeping.load(Ordering::Relaxed) != 0 && sleeping.swap(0, Ordering::Relaxed) != 0
}

/// Consumer: the producer's tail; everything published under it can be read.
pub(super) fn tail(tail: &AtomicU32) -> u32 {
    u32::from_le(tail.load(Ordering::Acquire))
}

/// A ring as its consumer has it.
pub(super) trait Consumer {
    /// Whether the producer says that there is something to read.
    fn has_entry(&self) -> bool;

    /// The flag that says that this side sleeps.
    fn sleeping(&self) -> &AtomicU32;
}

/// Consumer: says on all its rings that it sleeps, unless one has an entry or `is_quiet` says that something else has come.
/// True if it may: then it sleeps until it is rung, and gets up.
pub(super) fn lie_down<'r, R: Consumer + 'r>(
    rings: impl Iterator<Item = &'r R> + Clone,
    is_quiet: impl FnOnce() -> bool,
) -> bool {
    say(rings.clone(), 1);
    fence(Ordering::SeqCst);
    let quiet = is_quiet() && !rings.clone().any(R::has_entry);
    if !quiet {
        get_up(rings);
    }
    quiet
}

/// Consumer: says that it does not sleep any more.
pub(super) fn get_up<'r, R: Consumer + 'r>(rings: impl Iterator<Item = &'r R>) {
    say(rings, 0);
}

fn say<'r, R: Consumer + 'r>(rings: impl Iterator<Item = &'r R>, sleeps: u32) {
    for ring in rings {
        ring.sleeping().store(sleeps.to_le(), Ordering::Relaxed);
    }
}
