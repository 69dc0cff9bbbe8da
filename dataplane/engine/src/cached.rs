//! What an engine needs for cached tables.

use rowmill_cache::Worker;
use rowmill_wire::limits::MAX_IDS_PER_BAG;

use crate::parked::Parked;
use crate::slot::Slot;

/// The rows of cached tables, and bags that wait for some.
#[derive(Debug)]
pub(crate) struct Cached {
    pub(crate) worker: Worker,
    pub(crate) parked: Parked,
    /// Where the rows of ids are that are looked up together.
    pub(crate) places: Box<[u32]>,
}

impl Cached {
    pub(crate) fn new(worker: Worker) -> Cached {
        Cached {
            parked: Parked::new(worker.bags()),
            places: vec![u32::MAX; MAX_IDS_PER_BAG as usize].into_boxed_slice(),
            worker,
        }
    }

    /// Gives up the parked bags of a request.
    pub(crate) fn give_up(&mut self, slot: &mut Slot) {
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
