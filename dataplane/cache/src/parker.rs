//! Bags that miss rows are parked, and each row is looked for where it is to be had.

use crate::fetch::{BagId, Fetches, Kept, Lane, Room, Source};
use crate::owners::Owners;
use crate::store::{Found, MISS, Spread};

/// What parks bags of a table whose rows were just looked up.
#[derive(Debug)]
pub struct Parker<'w> {
    pub(crate) fetches: &'w mut Fetches,
    pub(crate) owners: &'w Owners,
    pub(crate) spread: Spread,
    pub(crate) table: usize,
}

impl Parker<'_> {
    /// Where there is room now for a bag of so many rows of a table, which need not be the looked up one.
    pub fn room_for_bag(&self, table: usize, rows: u32, kept: Kept) -> Room {
        self.fetches.room_for_bag(table, rows, kept)
    }

    /// Parks the bag whose rows are those of `found` from a position on; missing ones are read in the turns of `lane`. Each row is replaced by its place in staging. `None`
    /// where there is no room now, or the table has to leave that to others.
    pub fn park(
        &mut self,
        now_ns: u64,
        lane: Lane,
        rows: &mut [u32],
        found: &Found<'_>,
        from: usize,
    ) -> Option<BagId> {
        (from..from + rows.len()).for_each(|position| found.prefetch_row(position));
        let places = found.places();
        let row_bytes = found.row_bytes();
        let Parker {
            fetches,
            owners,
            spread,
            table,
        } = self;
        fetches.park(now_ns, lane, *table as u32, rows, |position, row, out| {
            if places[from + position] != MISS {
                found.copy_row(from + position, &mut out[..row_bytes]);
                Source::Store
            } else if owners.owner(spread.shard(row)) == owners.number() {
                Source::Tier
            } else {
                Source::Owner
            }
        })
    }
}
