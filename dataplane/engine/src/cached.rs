//! What an engine needs for cached tables.

use core::fmt;

use rowmill_cache::tier::Tier;
use rowmill_cache::{CachedTable, SIDES, Worker};
use rowmill_table::ResidentTable;
use rowmill_wire::limits::MAX_IDS_PER_BAG;

use crate::crowd::{Crowd, Place, Wanted};
use crate::generations::{HELD, Side};
use crate::limits::Limits;
use crate::parked::Parked;
use crate::slot::Slot;

const _: () = assert!(HELD == SIDES);
/// Who waits for room in staging goes on when this part of it is free.
const SOME_ROOM: u32 = 8;
/// Fewest rows to look up at a time: they take about a microsecond.
const LOOKUPS_LEAST: u32 = 256;

/// Where a worker finds the rows of a table: one of the two, or none where they are with the schema's tables.
#[derive(Debug, Default)]
pub struct Home {
    /// The table with its rows.
    pub resident: Option<Box<ResidentTable>>,
    /// The worker's part of the table in the cache.
    pub cached: Option<CachedTable>,
}

/// What rows of one generation's listed tables are fetched from.
#[derive(Default)]
pub struct SideTier {
    /// The worker's own; none where the generation is gone.
    pub tier: Option<Box<dyn Tier + Send>>,
    /// By the number of a table in the generation, its home: the number by which the [cache](Worker) knows it, or a larger one where it is not
    /// listed.
    pub homes: Box<[u32]>,
}

impl fmt::Debug for SideTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SideTier")
            .field("homes", &self.homes)
            .finish_non_exhaustive()
    }
}

/// Where the listed tables of each side's generation are known.
#[derive(Debug)]
pub(crate) struct Homes([Box<[u32]>; HELD]);

impl Homes {
    /// By which number the cache knows a table of the generation of a side, if it is listed.
    pub(crate) fn of(&self, side: Side, table: usize) -> usize {
        let homes = &self.0[side.index()];
        homes.get(table).map_or(usize::MAX, |&home| home as usize)
    }

    pub(crate) fn replace(&mut self, side: Side, homes: &mut Box<[u32]>) {
        core::mem::swap(&mut self.0[side.index()], homes);
    }
}

/// The rows of cached tables, and bags that wait for some.
#[derive(Debug)]
pub(crate) struct Cached {
    pub(crate) worker: Worker,
    pub(crate) parked: Parked,
    pub(crate) homes: Homes,
    /// By the table's home: resident ones that may become cached. The others' rows are with the schema's tables.
    resident: Box<[Option<Box<ResidentTable>>]>,
    /// Where the rows of ids are that are looked up together.
    pub(crate) places: Box<[u32]>,
    /// Who waits for room to park a bag.
    pub(crate) crowd: Crowd,
}

impl Cached {
    /// For an engine.
    pub(crate) fn new(worker: Worker, limits: &Limits) -> Cached {
        Cached {
            parked: Parked::new(worker.limits().bags),
            places: vec![u32::MAX; MAX_IDS_PER_BAG as usize].into_boxed_slice(),
            crowd: Crowd::new(limits, worker.limits()),
            resident: (0..worker.tables()).map(|_| None).collect(),
            // As the first generation numbers them.
            homes: Homes([(0..worker.on_side(1, 0) as u32).collect(), Box::default()]),
            worker,
        }
    }

    /// A resident table with its rows, where `bound` is the schema's.
    pub(crate) fn with_rows<'a>(
        &'a self,
        table: usize,
        bound: &'a ResidentTable,
    ) -> &'a ResidentTable {
        let own = self.resident.get(table).and_then(Option::as_deref);
        own.unwrap_or(bound)
    }

    /// Puts a listed table elsewhere, and gives what was there.
    pub(crate) fn place(&mut self, table: usize, home: &mut Home) {
        core::mem::swap(&mut self.resident[table], &mut home.resident);
        home.cached = self.worker.replace(table, home.cached.take());
    }

    /// Gives the rows of tables that have just become resident to those who wait for them, some in a call. Returns whether there were any.
    pub(crate) fn answer_resident(&mut self) -> bool {
        let resident = &self.resident;
        self.worker.answer_resident(|table, row, out| {
            let (table, mut row) = (resident[table].as_deref()?, [row]);
            table.stand_in(&mut row);
            let (at, out) = (
                row[0] as usize * table.stride(),
                out.get_mut(..table.stride())?,
            );
            table.window().part(at, out.len())?.read(0, out);
            Some(out.len())
        })
    }

    /// Whether the request in a slot can go on as far as it needs room: it waits for none, or is the first that does and there is
    /// enough, for some more bags too, since each time it goes on costs a lookup; or there is enough aside.
    pub(crate) fn has_room(&self, index: u32, slot: &Slot) -> bool {
        let waits_for = self.crowd.waits_for(index);
        let Some(bag) = waits_for.filter(|_| slot.crowded > 0) else {
            return true;
        };
        let (free, all) = self.worker.room(bag.table);
        let room = |bag: Wanted, kept| self.worker.room_for_bag(bag.table, bag.ids, kept);
        match self.crowd.place(index, slot.conn, bag, room) {
            // Where other tables' rows don't come, half of what they have left is enough.
            Some(Place::Main) => {
                free >= all / SOME_ROOM || free >= self.worker.staged_of(bag.table)
            }
            place => place.is_some(),
        }
    }

    /// Rows to look up at a time: if all bags have to be parked there is room for most.
    pub(crate) fn lookups(&self, table: usize) -> u32 {
        let (free, _) = self.worker.room(table);
        free.clamp(LOOKUPS_LEAST, MAX_IDS_PER_BAG)
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
                self.crowd.released(slot.conn, bag.ids, bag.place);
            }
        }
        slot.unplaced.fill(0);
    }
}
