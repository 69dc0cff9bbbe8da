//! What an engine needs for cached tables.

use rowmill_cache::Worker;
use rowmill_wire::limits::MAX_IDS_PER_BAG;

use crate::crowd::Crowd;
use crate::parked::Parked;
use crate::slot::Slot;

/// The rows of cached tables, and bags that wait for some.
#[derive(Debug)]
pub(crate) struct Cached {
    pub(crate) worker: Worker,
    pub(crate) parked: Parked,
    /// Where the rows of ids are that are looked up together.
    pub(crate) places: Box<[u32]>,
    /// Who waits for room to park a bag.
    pub(crate) crowd: Crowd,
}

impl Cached {
    /// For an engine of so many slots.
    pub(crate) fn new(worker: Worker, slots: u32) -> Cached {
        Cached {
            parked: Parked::new(worker.bags()),
            places: vec![u32::MAX; MAX_IDS_PER_BAG as usize].into_boxed_slice(),
            crowd: Crowd::new(slots),
            worker,
        }
    }

    /// Whether the request in a slot can go on as far as it needs room: it waits for none, or is the first that does and there is
    /// enough.
    pub(crate) fn has_room(&self, index: u32, slot: &Slot) -> bool {
        slot.crowded == 0 || (self.crowd.lets(index) && self.worker.has_room(slot.crowded as usize))
    }

    /// Gives up the parked bags of the request in a slot, and its wait for room.
    pub(crate) fn give_up(&mut self, index: u32, slot: &mut Slot) {
        self.crowd.leave(index);
        slot.crowded = 0;
        for list in [&mut slot.parked, &mut slot.ready] {
            while let Some(bag) = self.parked.first(list) {
                self.parked.remove(list, bag.id);
                let ids = bag.first_id as usize..(bag.first_id + bag.ids) as usize;
                self.worker.release(bag.id, &slot.data.ids[ids]);
            }
        }
        slot.unplaced.fill(0);
    }
}
