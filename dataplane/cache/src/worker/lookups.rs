//! Looking rows up, and telling the policies of it.

use super::Worker;
use super::poll::cached;
use crate::figures::Count;
use crate::parker::Parker;
use crate::sides::on_one_side;
use crate::store::{Found, Turn};

impl Worker {
    /// Looks rows of a cached table up: the slot of each, or [`MISS`](crate::store::MISS), and what parks bags that miss some. The
    /// table's policy may be told of it only by [`touch_hits`](Self::touch_hits), which is to be called before the turn ends.
    pub fn find<'t>(
        &'t mut self,
        turn: Turn<'t>,
        table: usize,
        rows: &[u32],
        places: &'t mut [u32],
    ) -> (Found<'t>, Parker<'t>) {
        let threshold = self.tables[table].as_ref().map_or(0, |home| home.threshold);
        self.drawn.begin(threshold);
        let is_later = self.tells_later(table, rows.len());
        let cached = cached(&mut self.tables, table as u32);
        let found = cached.find(turn, rows, &mut *places, &mut self.drawn);
        let misses = found.misses();
        if is_later {
            self.later.put(table, &found);
        } else {
            cached.touch(places, misses);
        }
        let cached = &*cached;
        let found = cached.store().found(turn, places, misses);
        let parker = Parker {
            fetches: &mut self.fetches,
            owners: &self.owners,
            spread: *cached.spread(),
            table,
        };
        (found, parker)
    }

    /// Whether a table's policy is told later of so many rows that are looked up next. Those before are told of first where it is not, or
    /// where they have taken the room.
    fn tells_later(&mut self, table: usize, rows: usize) -> bool {
        let is_slow = self.cached(table).is_touched_slowly();
        let is_behind = !is_slow && self.later.has(table);
        if is_behind || (is_slow && !self.later.has_room(rows)) {
            self.touch_hits();
        }
        is_slow && self.later.has_room(rows)
    }

    /// Tells the policies of what was looked up in this turn and was put off, since that takes about as long as what those need who
    /// wait for answers: their hits are touched. Returns whether there was something. Before the turn ends; a poll does it, too.
    pub fn touch_hits(&mut self) -> bool {
        let Worker { tables, later, .. } = self;
        later.take(|table, places, misses| cached(tables, table as u32).touch(places, misses))
    }

    /// Lookups of this turn that the policies are still to be [told](Self::touch_hits) of.
    pub fn untouched(&self) -> usize {
        self.later.len()
    }

    /// Counts the lookups of the last piece that were made use of, its first ones, and how many of them were hits. (Those that find no
    /// room are made again.) Whoever wants [samples](Self::samples) is told of those of them that are sampled.
    pub fn count(&mut self, table: usize, lookups: u64, hits: u64) {
        let figures = self.cached(table).figures();
        figures.count(Count::Lookups, lookups);
        figures.count(Count::Hits, hits);
        if self.drawn.rows().is_empty() {
            return;
        }
        let table = on_one_side(table, self.on_a_side);
        let (put, dropped) = self.samples.put(table as u32, &self.drawn, lookups);
        figures.count(Count::Sampled, put);
        figures.count(Count::SamplesDropped, dropped);
    }
}
