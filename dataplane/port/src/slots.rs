//! What a side knows of the slots of a lane: a request holds its slot until its final record, and may be cancelled once.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    held: bool,
    /// Its request can be cancelled: by the side that asks, while it is held; that a cancel comes after the final record,
    /// which it crossed, is nothing wrong.
    cancellable: bool,
}

/// The slots of one lane, as one side sees them.
#[derive(Debug)]
pub(crate) struct Slots(Vec<Slot>);

impl Slots {
    pub(crate) fn new(credits: u16) -> Slots {
        let free = Slot {
            held: false,
            cancellable: false,
        };
        Slots(vec![free; usize::from(credits)])
    }

    /// A request takes a slot; false if one holds it, or if there is no such slot.
    #[must_use]
    pub(crate) fn take(&mut self, slot: u16) -> bool {
        match self.0.get_mut(usize::from(slot)) {
            Some(slot) if !slot.held => {
                (slot.held, slot.cancellable) = (true, true);
                true
            }
            _ => false,
        }
    }

    /// Whether this is the first cancel since the last request.
    #[must_use]
    pub(crate) fn cancel(&mut self, slot: u16) -> bool {
        let slot = self.0.get_mut(usize::from(slot));
        slot.is_some_and(|slot| std::mem::take(&mut slot.cancellable))
    }

    /// Whether a request holds a slot.
    pub(crate) fn holds(&self, slot: u16) -> bool {
        self.0.get(usize::from(slot)).is_some_and(|slot| slot.held)
    }

    /// The final record of a slot's request.
    pub(crate) fn free(&mut self, slot: u16) {
        if let Some(slot) = self.0.get_mut(usize::from(slot)) {
            slot.held = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_held_until_its_final_record_and_cancelled_once() {
        let mut slots = Slots::new(2);
        assert!(!slots.cancel(0), "nothing to cancel");
        assert!(slots.take(0) && !slots.take(0) && slots.holds(0) && !slots.holds(1));
        assert!(slots.cancel(0) && !slots.cancel(0));
        assert!(!slots.take(0), "a cancelled request still holds its slot");
        slots.free(0);
        assert!(slots.take(0));
        slots.free(0);
        assert!(slots.cancel(0), "it crossed the final record");
        assert!(!slots.cancel(0));
        assert!(
            !slots.take(2) && !slots.cancel(2) && !slots.holds(2),
            "two slots"
        );
    }
}
