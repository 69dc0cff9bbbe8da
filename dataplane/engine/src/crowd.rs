//! Who may park bags where there is no room for all.
//!
//! A request whose next bag has to be parked and finds no room waits here, and is not scheduled meanwhile. While somebody waits
//! only the first parks bags; the others go on with bags whose rows are there, and with those that they have parked. So a bag that
//! needs much room is not overtaken for ever by those that need little.
//!
//! That ends: room is held by parked bags and by rows on their way, and while somebody waits no more of either begin. A row on its way comes or
//! is given up in its time. A parked bag that has its rows needs nothing else: it is pooled into the target itself, or into the staging
//! of its run, which the request has; and requests that have staging are worked on whatever others wait for (`turn.rs`). So in the
//! end all room is free, and any bag fits that.

use std::collections::VecDeque;

/// The engine's slots of requests that wait for room to park a bag, in the order in which they came to that.
#[derive(Debug)]
pub(crate) struct Crowd {
    slots: VecDeque<u32>,
}

impl Crowd {
    /// For an engine of so many slots, of which each stands here once at most.
    pub(crate) fn new(slots: u32) -> Crowd {
        Crowd {
            slots: VecDeque::with_capacity(slots as usize),
        }
    }

    /// The one that is the next to park a bag.
    pub(crate) fn first(&self) -> Option<u32> {
        self.slots.front().copied()
    }

    /// Whether the request in a slot may park bags now: nobody waits before it.
    pub(crate) fn lets(&self, slot: u32) -> bool {
        self.first().is_none_or(|first| first == slot)
    }

    /// A request waits, from now on if it does not yet.
    pub(crate) fn join(&mut self, slot: u32) {
        if !self.slots.contains(&slot) {
            self.slots.push_back(slot);
        }
    }

    /// A request that may park bags has come past the one for which it waited, if it did.
    pub(crate) fn leave_front(&mut self, slot: u32) {
        self.slots.pop_front_if(|first| *first == slot);
    }

    /// A request has ended.
    pub(crate) fn leave(&mut self, slot: u32) {
        self.slots.retain(|&waiting| waiting != slot);
    }
}
