//! Bags that wait for rows: parked where there is room for all of their rows, ready once these are there, and released once they are pooled.

use super::rows::RowKey;
use super::{Bag, BagId, Fetches, Kept, Lane, NONE, Ready, Room, Source, Wait, push};

impl Fetches {
    /// Where there is room for a bag of so many rows of a table, whichever of them are missing.
    pub fn room_for_bag(&self, table: usize, rows: u32, kept: Kept) -> Room {
        // All of them may be, and different.
        let rooms = [
            self.slab.quotas().place(table, rows, kept.rows),
            self.wait_quotas.place(table, rows, kept.rows),
            self.bag_quotas.place(table, 1, kept.bags),
        ];
        let worst = [Room::Over, Room::None, Room::Shared];
        let worst = worst.into_iter().find(|room| rooms.contains(room));
        worst.unwrap_or(Room::Own)
    }

    /// Counts a bag for which there is no room.
    pub fn refuse(&mut self) {
        self.counters.refused += 1;
    }

    /// Parks a bag, whose rows are read in the turns of `lane`. `rows` are its rows, and each is replaced by its place in staging. `find` is given the
    /// position and the number of each once, copies it if the store has it, and says where others are.
    ///
    /// Returns `None`, with nothing changed, where there is no room for the bag now, or its table has to leave that to others: some will
    /// be when others are ready and pooled.
    ///
    /// # Panics
    /// If the bag has more rows than the longest: no room might ever be enough.
    pub fn park(
        &mut self,
        now_ns: u64,
        lane: Lane,
        table: u32,
        rows: &mut [u32],
        mut find: impl FnMut(usize, u32, &mut [u8]) -> Source,
    ) -> Option<BagId> {
        assert!(
            rows.len() <= self.limits.longest as usize,
            "limits let any bag be parked"
        );
        let count = rows.len() as u32;
        let room = self.room_for_bag(table as usize, count, Kept::default());
        let has_room = matches!(room, Room::Own | Room::Shared);
        let index = self.free_bags.pop_if(|_| has_room)?;
        let turn = self.bags[index as usize].turn;
        let bag = BagId { index, turn };
        let mut pending = 0;
        for (position, row) in rows.iter_mut().enumerate() {
            let place = self.slab.take(table);
            let source = find(position, *row, self.slab.row(place));
            *row = if source == Source::Store {
                place
            } else {
                self.slab.release(place);
                pending += 1;
                let is_asked = source == Source::Owner;
                self.wait(now_ns, lane, bag, RowKey { table, row: *row }, is_asked)
            };
        }
        self.counters.parked += 1;
        self.bag_quotas.take(table as usize, 1);
        self.bags[index as usize] = Bag {
            turn,
            table,
            parked: true,
            pending,
            outcome: Ok(()),
        };
        if pending == 0 {
            self.now_ready(bag);
        }
        Some(bag)
    }

    /// A position of a bag waits for a row. Returns its place.
    fn wait(&mut self, now_ns: u64, lane: Lane, bag: BagId, key: RowKey, is_asked: bool) -> u32 {
        let ticket = self.want(now_ns, lane, key, is_asked);
        let fetch = &mut self.fetches[ticket.index as usize];
        if fetch.place == NONE {
            fetch.place = self.slab.take(key.table); // The fetch's own use of it.
        }
        self.slab.share(fetch.place);
        let wait = self.free_waits.pop().expect("room was looked for");
        self.wait_quotas.take(key.table as usize, 1);
        let next = core::mem::replace(&mut fetch.wait, wait);
        self.waits[wait as usize] = Wait { bag, next };
        fetch.place
    }

    pub(super) fn now_ready(&mut self, bag: BagId) {
        push(&mut self.ready, bag, |b| is_parked(&self.bags, b));
    }

    /// The next bag that waits for nothing any more. It keeps its places until it is given to [`Fetches::release`].
    pub fn next_ready(&mut self) -> Option<Ready> {
        while let Some(bag) = self.ready.pop_front() {
            if is_parked(&self.bags, bag) {
                let outcome = self.bags[bag.index as usize].outcome;
                return Some(Ready { bag, outcome });
            }
        }
        None
    }

    /// A parked bag is pooled, or given up: its places are free for others as far as no other bag waits with them. `places` is
    /// what [`Fetches::park`] has made of its rows.
    ///
    /// # Panics
    /// If it is not parked any more.
    pub fn release(&mut self, bag: BagId, places: &[u32]) {
        assert!(is_parked(&self.bags, bag), "a bag is released once");
        let record = &mut self.bags[bag.index as usize];
        record.parked = false;
        self.bag_quotas.give_back(record.table as usize, 1);
        record.turn = record.turn.wrapping_add(1);
        self.free_bags.push(bag.index);
        for &place in places {
            self.slab.release(place);
        }
    }
}

pub(super) fn is_parked(bags: &[Bag], bag: BagId) -> bool {
    let record = &bags[bag.index as usize];
    record.turn == bag.turn && record.parked
}
