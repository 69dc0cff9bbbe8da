//! The slots whose rows were taken away and may still be read: a ring, in the order in which they become free.

/// A slot in limbo.
#[derive(Clone, Copy, Debug)]
struct Entry {
    slot: u32,
    /// Whether nobody waits for it: it becomes an empty slot.
    ownerless: bool,
    /// The epoch that has to be passed, once it is known.
    epoch: u64,
}

/// A ring of bounded length. Places are counted from the first there ever was.
#[derive(Debug)]
pub(super) struct Limbo {
    entries: Box<[Entry]>,
    /// Entries that are free again.
    freed: u64,
    /// Entries whose epoch is known.
    sealed: u64,
    /// Entries there ever were.
    pushed: u64,
}

impl Limbo {
    /// Room for `most` slots.
    pub(super) fn new(most: usize) -> Limbo {
        let none = Entry {
            slot: 0,
            ownerless: false,
            epoch: 0,
        };
        Limbo {
            entries: vec![none; most].into(),
            freed: 0,
            sealed: 0,
            pushed: 0,
        }
    }

    /// Slots in limbo.
    pub(super) fn len(&self) -> usize {
        (self.pushed - self.freed) as usize
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() == self.entries.len()
    }

    /// Takes a slot in and tells its place.
    pub(super) fn push(&mut self, slot: u32, ownerless: bool) -> u64 {
        assert!(!self.is_full(), "limbo has room");
        let place = self.pushed;
        *self.entry(place) = Entry {
            slot,
            ownerless,
            epoch: 0,
        };
        self.pushed += 1;
        place
    }

    /// Whether the slot at a place is free by now.
    pub(super) fn is_free(&self, place: u64) -> bool {
        assert!(place < self.pushed, "a place that was given");
        place < self.freed
    }

    /// Nobody waits for the slot at this place any more, which is not free yet.
    pub(super) fn disown(&mut self, place: u64) {
        assert!(!self.is_free(place), "a slot in limbo");
        self.entry(place).ownerless = true;
    }

    /// Whether there are slots whose epoch is not known.
    pub(super) fn is_open(&self) -> bool {
        self.sealed < self.pushed
    }

    /// Gives all slots that have none the epoch that was ended after they were taken in.
    pub(super) fn seal(&mut self, epoch: u64) {
        for place in self.sealed..self.pushed {
            self.entry(place).epoch = epoch;
        }
        self.sealed = self.pushed;
    }

    /// Frees the slots whose epoch was passed, and tells of each that nobody waits for.
    pub(super) fn free(&mut self, passed: u64, mut emptied: impl FnMut(u32)) {
        while self.freed < self.sealed {
            let entry = *self.entry(self.freed);
            if entry.epoch > passed {
                return;
            }
            self.freed += 1;
            if entry.ownerless {
                emptied(entry.slot);
            }
        }
    }

    fn entry(&mut self, place: u64) -> &mut Entry {
        let room = self.entries.len() as u64;
        &mut self.entries[(place % room) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn freed(limbo: &mut Limbo, passed: u64) -> Vec<u32> {
        let mut slots = Vec::new();
        limbo.free(passed, |slot| slots.push(slot));
        slots
    }

    #[test]
    fn slots_are_free_in_their_order_and_not_before_their_epoch() {
        let mut limbo = Limbo::new(3);
        let first = limbo.push(10, true);
        let second = limbo.push(11, false);
        assert_eq!(freed(&mut limbo, u64::MAX), [0u32; 0], "no epoch was ended");
        limbo.seal(5);
        let third = limbo.push(12, false);
        assert!(limbo.is_full() && limbo.is_open());
        limbo.seal(6);
        assert!(!limbo.is_open());
        assert_eq!(freed(&mut limbo, 4), [0u32; 0]);
        assert!(!limbo.is_free(first));
        assert_eq!(freed(&mut limbo, 5), [10]);
        assert!(limbo.is_free(first) && limbo.is_free(second) && !limbo.is_free(third));
        limbo.disown(third);
        assert_eq!(limbo.len(), 1);
        limbo.push(13, true);
        assert_eq!(freed(&mut limbo, 100), [12], "the last has no epoch");
        limbo.seal(101);
        assert_eq!(freed(&mut limbo, 101), [13]);
        assert_eq!(limbo.len(), 0);
    }

    #[test]
    #[should_panic(expected = "limbo has room")]
    fn a_full_limbo_takes_nothing() {
        let mut limbo = Limbo::new(1);
        limbo.push(1, false);
        limbo.push(2, false);
    }
}
