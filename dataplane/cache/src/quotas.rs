//! How much of what all tables share one of them may hold, so that tables whose files hang leave some for the others.
//!
//! As switches share a buffer among queues: each table has a small part of its own, and of the rest as much as *dynamic thresholds* let it
//! (A. K. Choudhury and E. L. Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", IEEE/ACM Transactions on
//! Networking 6(2), 1998): at most [`ALPHA`] times what is free of it. Where k tables take all that they may, each holds `ALPHA * free` of
//! `rest = free * (1 + k * ALPHA)`. So nobody has to know beforehand who will want how much, and what a table holds is in its own part first.
//!
//! **Why 8.** A table that is the only busy one of several is not to be slowed down: it gets 8/9 of the rest. Half as much would cost it another
//! tenth; twice as much would leave others half of what that leaves.
//!
//! **Why own parts.** What a hung table holds can't be taken from it, so tables that hang one after another take 8/9 of what is left of the rest
//! each: after three nothing is. The own parts together are a quarter of all, but at least one each, as long as that leaves half of what
//! there is beside the longest that is taken at once: who needs that can have it some time, whoever holds own parts. So where there are `n` tables
//! each has one at least if there is room for `longest + 2 * (n - 1)`; where there is less none has, and several that hang may leave nothing.
//!
//! |  of  | tables | own | one that is alone busy holds | one whose neighbours all hung still gets |
//! |-----:|-------:|----:|-----------------------------:|-----------------------------------------:|
//! |  128 |      2 |  16 |                          101 |                                       25 |
//! |  128 |      4 |   8 |                           93 |                                        9 |
//! |  128 |     16 |   2 |                           87 |                                        2 |
//! |  128 |     64 |   1 |                           57 |                                        1 |
//! |  128 |   1000 |   0 |                          113 |                                        0 |
//! |   16 |      2 |   2 |                           12 |                                        3 |
//! |   16 |      4 |   1 |                           11 |                                        1 |
//! |   16 |     16 |   0 |                           14 |                                        0 |
//! |    8 |      2 |   1 |                            6 |                                        2 |
//! |    8 |      4 |   1 |                            4 |                                        1 |
//! |    8 |     16 |   0 |                            7 |                                        0 |
//!
//! Of reads of a disk that takes 100 us for one, 9 at a time are 90,000 rows a second. Of a single table there is nobody to leave anything
//! to: it may have all.

use crate::sides::on_one_side;
use crate::tier::FetchesFull;

/// How many times what is free a table may hold of what is no table's own.
const ALPHA: u32 = 8;
/// The own parts together are this part of all, where that is at least one each.
const OWNED: u32 = 4;

/// How much there has to be of something for each of so many tables to have some of its own, where up to `longest` is taken at once.
pub const fn room_for(tables: u32, longest: u32) -> u32 {
    longest + 2 * tables.saturating_sub(1)
}

/// What each of so many tables has of its own. The others' parts are at most half of what there is beside the longest.
fn own_part(room: u32, longest: u32, tables: u32) -> u32 {
    match tables.saturating_sub(1) {
        0 => 0,
        others => {
            let most = room.saturating_sub(longest) / 2 / others;
            (room / OWNED / tables).max(1).min(most)
        }
    }
}

/// Where there is room for more of a table's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// In its own part, whatever others hold.
    Own,
    /// In what is no table's own.
    Shared,
    /// There is some, which it has to leave to others.
    Over,
    /// There is not so much now.
    None,
}

/// Something of which there is so much, and how much of it each table holds.
#[derive(Debug)]
pub(crate) struct Quotas {
    held: Box<[u32]>,
    /// What each table has of its own.
    own: u32,
    /// What is no table's own, and what is free of that.
    shared: u32,
    free: u32,
    /// What nobody holds, with what is kept for tables whose own it is.
    left: u32,
    /// Tables that share it.
    sharers: u32,
}

impl Quotas {
    /// So much of it, for those tables of which `tables` says so, by their numbers on a [side](crate::SIDES); those of one name have one
    /// part. Up to `longest` is taken at once.
    pub(crate) fn new(room: u32, longest: u32, tables: &[bool]) -> Quotas {
        let sharers = tables.iter().filter(|&&shares| shares).count() as u32;
        let own = own_part(room, longest, sharers);
        let shared = room - own * sharers;
        Quotas {
            held: vec![0; tables.len()].into_boxed_slice(),
            own,
            shared,
            free: shared,
            left: room,
            sharers,
        }
    }

    /// What nobody holds, if only some tables may have it.
    pub(crate) fn left(&self) -> u32 {
        self.left
    }

    /// Where it is noted what a table holds: with the other side's of the same name.
    fn at(&self, table: usize) -> usize {
        on_one_side(table, self.held.len())
    }

    /// What a table holds.
    pub(crate) fn held(&self, table: usize) -> u32 {
        self.held[self.at(table)]
    }

    /// How much more a table could hold if it had to leave nothing to others, and how much if nobody held anything.
    pub(crate) fn room(&self, table: usize) -> (u32, u32) {
        let own = self.own.saturating_sub(self.held(table));
        (own + self.free, self.own + self.shared)
    }

    /// What one that holds so much has of what is no table's own.
    fn beside_own(&self, held: u32) -> u32 {
        held.saturating_sub(self.own)
    }

    /// Where there is room for so much more of a table's, if `kept` of what is no table's own is not for it.
    pub(crate) fn place(&self, table: usize, more: u32, kept: u32) -> Room {
        let held = self.held(table);
        let (before, behind) = (self.beside_own(held), self.beside_own(held + more));
        let taken = behind - before;
        if taken == 0 {
            return Room::Own;
        }
        let left = self.free.saturating_sub(taken);
        // One that has nothing of it may have all that is free: what is larger than its part could otherwise never be had.
        if before > 0 && self.sharers > 1 && behind > left.saturating_mul(ALPHA) {
            return Room::Over;
        }
        match self.free < taken.saturating_add(kept) {
            true => Room::None,
            false => Room::Shared,
        }
    }

    /// Whether a table may take so much more.
    ///
    /// # Errors
    /// [`FetchesFull::ForAll`] where there is not so much; [`FetchesFull::ForTable`] where it has to leave that to others.
    pub(crate) fn lets(&self, table: usize, more: u32) -> Result<(), FetchesFull> {
        if self.left < more {
            return Err(FetchesFull::ForAll);
        }
        match self.place(table, more, 0) {
            Room::Own | Room::Shared => Ok(()),
            Room::Over | Room::None => Err(FetchesFull::ForTable),
        }
    }

    /// A table takes so much.
    ///
    /// # Panics
    /// If there is not so much for it.
    pub(crate) fn take(&mut self, table: usize, more: u32) {
        let before = self.held(table);
        let taken = self.beside_own(before + more) - self.beside_own(before);
        let free = self.free.checked_sub(taken);
        self.free = free.expect("what is taken was free");
        self.left -= more;
        self.held[self.at(table)] = before + more;
    }

    /// A table gives so much back.
    ///
    /// # Panics
    /// If it does not hold so much.
    pub(crate) fn give_back(&mut self, table: usize, less: u32) {
        let before = self.held(table);
        let after = before.checked_sub(less);
        let after = after.expect("what is given back was taken");
        self.free += self.beside_own(before) - self.beside_own(after);
        self.left += less;
        self.held[self.at(table)] = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes one after another as long as it may.
    fn fill(quotas: &mut Quotas, table: usize) -> FetchesFull {
        loop {
            match quotas.lets(table, 1) {
                Ok(()) => quotas.take(table, 1),
                Err(full) => return full,
            }
        }
    }

    /// As the module's text has it: of so much, for so many tables, each one's own, what one that is alone busy holds, and what is left to one
    /// whose neighbours have all hung, one after another.
    const HELD: [(u32, usize, [u32; 3]); 12] = [
        (128, 2, [16, 101, 25]),
        (128, 4, [8, 93, 9]),
        (128, 16, [2, 87, 2]),
        (128, 64, [1, 57, 1]),
        (128, 65, [0, 113, 0]),
        (128, 1000, [0, 113, 0]),
        (16, 2, [2, 12, 3]),
        (16, 4, [1, 11, 1]),
        (16, 16, [0, 14, 0]),
        (8, 2, [1, 6, 2]),
        (8, 4, [1, 4, 1]),
        (8, 16, [0, 7, 0]),
    ];

    #[test]
    fn tables_that_hang_one_after_another_leave_the_last_its_own() {
        for (room, tables, [own, alone, last]) in HELD {
            let mut quotas = Quotas::new(room, 1, &vec![true; tables]);
            (0..tables).for_each(|table| _ = fill(&mut quotas, table));
            let held = [0, tables - 1].map(|table| quotas.held(table));
            assert_eq!(
                (quotas.own, held),
                (own, [alone, last]),
                "{tables} tables of {room}"
            );
            assert_eq!(own > 0, room >= room_for(tables as u32, 1));
        }
    }

    #[test]
    fn the_longest_can_be_had_whatever_others_have_of_their_own() {
        for (room, longest) in [(8192, 8192), (8200, 8192), (16384, 8192), (3, 1), (64, 60)] {
            for tables in [2, 3, 5, 40] {
                let mut quotas = Quotas::new(room, longest, &vec![true; tables]);
                let own = quotas.own;
                assert_eq!(own > 0, room >= room_for(tables as u32, longest));
                (1..tables).for_each(|table| quotas.take(table, own));
                assert_ne!(quotas.place(0, longest, 0), Room::None);
                assert_eq!(quotas.lets(0, longest), Ok(()), "{longest} of {room}");
            }
        }
    }

    #[test]
    fn one_that_is_alone_has_all() {
        let mut alone = Quotas::new(5, 1, &[false, true]);
        assert_eq!(fill(&mut alone, 1), FetchesFull::ForAll);
        assert_eq!((alone.held(1), alone.left()), (5, 0));
    }

    #[test]
    fn one_that_has_its_own_only_may_have_all_that_is_shared() {
        // 2 are each one's own, and 12 are shared.
        let mut quotas = Quotas::new(16, 4, &[true; 2]);
        assert_eq!(quotas.room(0), (14, 14));
        assert_eq!(quotas.lets(0, 17), Err(FetchesFull::ForAll));
        assert_eq!(quotas.lets(0, 15), Err(FetchesFull::ForTable));
        quotas.take(0, 2);
        assert_eq!(quotas.place(0, 12, 0), Room::Shared);
        assert_eq!(quotas.place(0, 12, 1), Room::None);
        quotas.take(0, 1);
        assert_eq!(quotas.place(0, 11, 0), Room::Over);
        assert_eq!(fill(&mut quotas, 0), FetchesFull::ForTable);
        assert_eq!((quotas.held(0), quotas.room(0)), (12, (2, 14)));
        assert_eq!(quotas.place(1, 2, 9), Room::Own);
        assert_eq!(quotas.place(1, 4, 0), Room::Shared);
        assert_eq!(quotas.place(1, 5, 0), Room::None);
        quotas.take(1, 4);
        assert_eq!(quotas.lets(1, 1), Err(FetchesFull::ForAll));
        quotas.give_back(1, 1);
        assert_eq!(quotas.place(0, 1, 0), Room::Over);
        quotas.give_back(0, 12);
        assert_eq!((quotas.left(), quotas.room(0)), (13, (13, 14)));
    }
}
