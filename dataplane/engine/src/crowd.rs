//! Who may park bags where there is no room for all.
//!
//! A request whose next bag has to be parked and finds no room waits here, and is not scheduled meanwhile. While somebody waits
//! only the first parks bags; the others go on with bags whose rows are there, and with those that they have parked. So a bag that
//! needs much room is not overtaken for ever by those that need little.
//!
//! One whose table has all that it may have beside others ([`Room::Over`]) keeps only those of the same
//! table back: its file may hang. Since none of these parks a bag before it, its table has nothing any more in the end; from then on it waits
//! for room like any other. And a bag for which its table's own part has room ([`Room::Own`]) waits only for those of the same table: no other
//! may have that room.
//!
//! But who needs little does not wait for those who need much, either: some room is kept *aside* for bags that find no other, a small part of it
//! for each connection. What may be parked there before the first has been served is bounded, too.
//!
//! That ends: room is held by parked bags and by rows on their way, and while somebody waits no more of either begin, but for so much aside. A
//! row on its way comes or is given up in its time. A parked bag that has its rows needs nothing else: it is pooled into the target itself, or into the staging
//! of its run, which the request has; and requests that have staging are worked on whatever others wait for (`turn.rs`). So in the
//! end all room but that aside and other tables' own is free, and any bag fits that ([`Limits::longest`](fetch::Limits::longest)).

use std::collections::VecDeque;

use rowmill_cache::fetch::{self, Kept, Room};

use crate::limits::Limits;
use crate::memory::Conn;

/// Of all room this part is kept aside, and of that this part is for one connection: of 16,384 rows 2,048, and 256, which are some
/// bags of a model's features.
const ASIDE: u32 = 8;
const SHARE: u32 = 8;

/// Where a bag is parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Among all.
    Main,
    /// In what is kept aside.
    Aside,
}

/// Rows and bags that are kept aside.
#[derive(Debug)]
struct Aside {
    rows: u32,
    bags: u32,
    held_rows: u32,
    held_bags: u32,
    /// Rows that each connection holds.
    by_connection: Box<[u32]>,
    /// Rows that may still be parked before the first that waits has been served, and at most.
    left: u32,
    most: u32,
}

/// A request that waits for room.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// The engine's slot.
    slot: u32,
    bag: Wanted,
}

/// A bag that is to be parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The number of its table, that on the first side.
    pub(crate) table: usize,
    pub(crate) ids: u32,
}

/// The engine's slots of requests that wait for room to park a bag, in the order in which they came to that.
#[derive(Debug)]
pub(crate) struct Crowd {
    slots: VecDeque<Waiting>,
    aside: Aside,
}

impl Crowd {
    /// For an engine, each of whose slots stands here once at most, and the room that there is.
    pub(crate) fn new(limits: &Limits, room: &fetch::Limits) -> Crowd {
        let aside = Aside {
            // The longest bag fits beside it: tables' own parts are the other half of what there is beside that.
            rows: (room.staged / ASIDE).min((room.staged - room.longest) / 2),
            bags: room.bags / ASIDE,
            held_rows: 0,
            held_bags: 0,
            by_connection: vec![0; limits.connections as usize].into_boxed_slice(),
            left: room.staged,
            most: room.staged,
        };
        Crowd {
            slots: VecDeque::with_capacity(limits.slots as usize),
            aside,
        }
    }

    /// Where the request in a slot may park a bag now. `room` says where there is room for a bag that leaves so much to others.
    pub(crate) fn place(
        &self,
        slot: u32,
        conn: Conn,
        bag: Wanted,
        room: impl Fn(Wanted, Kept) -> Room,
    ) -> Option<Place> {
        let (aside, ids) = (&self.aside, bag.ids);
        let kept = Kept {
            rows: aside.rows - aside.held_rows,
            bags: aside.bags - aside.held_bags,
        };
        let is_over = |bag| room(bag, Kept::default()) == Room::Over;
        match room(bag, kept) {
            Room::Over => return None,
            Room::Own if self.lets(slot, bag, |_| true) => return Some(Place::Main),
            Room::Shared if self.lets(slot, bag, is_over) => return Some(Place::Main),
            _ => {}
        }
        let held = aside.by_connection[conn.0 as usize];
        let is_small = held + ids <= aside.rows / SHARE;
        let fits = ids <= kept.rows.min(aside.left) && kept.bags > 0;
        let has_room = || room(bag, Kept::default()) != Room::None;
        (is_small && fits && has_room()).then_some(Place::Aside)
    }

    /// A bag was parked.
    pub(crate) fn parked(&mut self, conn: Conn, ids: u32, place: Place) {
        if place == Place::Aside {
            self.aside.held_rows += ids;
            self.aside.held_bags += 1;
            self.aside.by_connection[conn.0 as usize] += ids;
            self.aside.left -= ids;
        }
    }

    /// A bag is parked no more.
    pub(crate) fn released(&mut self, conn: Conn, ids: u32, place: Place) {
        if place == Place::Aside {
            self.aside.held_rows -= ids;
            self.aside.held_bags -= 1;
            self.aside.by_connection[conn.0 as usize] -= ids;
        }
    }

    /// All that wait, in their order.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = u32> {
        self.slots.iter().map(|waiting| waiting.slot)
    }

    /// The bag for which the request in a slot waits, if it does.
    pub(crate) fn waits_for(&self, slot: u32) -> Option<Wanted> {
        let mut waiting = self.slots.iter();
        let own = waiting.find(|waiting| waiting.slot == slot);
        own.map(|own| own.bag)
    }

    /// Whether the request in a slot may park a bag now: nobody waits before it but for other tables' bags that it may pass.
    fn lets(&self, slot: u32, bag: Wanted, may_pass: impl Fn(Wanted) -> bool) -> bool {
        let mut before = self.slots.iter().take_while(|before| before.slot != slot);
        before.all(|before| before.bag.table != bag.table && may_pass(before.bag))
    }

    fn is_first(&self, slot: u32) -> bool {
        self.slots.front().is_none_or(|first| first.slot == slot)
    }

    /// A request waits for room for a bag, from now on if it does not yet.
    pub(crate) fn join(&mut self, slot: u32, bag: Wanted) {
        let mut waiting = self.slots.iter_mut();
        match waiting.find(|waiting| waiting.slot == slot) {
            Some(own) => own.bag = bag,
            None => self.slots.push_back(Waiting { slot, bag }),
        }
    }

    /// A request has come past the bag for which it waited, if it did.
    pub(crate) fn go_on(&mut self, slot: u32) {
        if self.is_first(slot) {
            self.aside.left = self.aside.most;
            self.slots.pop_front();
        } else {
            self.leave(slot);
        }
    }

    /// A request has ended.
    pub(crate) fn leave(&mut self, slot: u32) {
        if self.is_first(slot) {
            self.aside.left = self.aside.most;
        }
        self.slots.retain(|waiting| waiting.slot != slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_a_table_that_has_its_part_keeps_only_that_table_back() {
        let room = fetch::Limits {
            staged: 1 << 17,
            longest: 1 << 13,
            prefetched: 0,
            asked: 0,
            bags: 100,
            row_bytes: 4,
            budget_ns: 0,
        };
        let mut crowd = Crowd::new(&Limits::default(), &room);
        let bag = |table| Wanted { table, ids: 5000 };
        // One table has its part, and another has room in its own.
        let rooms = |hung: usize, own: usize| {
            move |bag: Wanted, _: Kept| match bag.table {
                table if table == hung => Room::Over,
                table if table == own => Room::Own,
                _ => Room::Shared,
            }
        };
        crowd.join(7, bag(0));
        crowd.join(8, bag(0));
        crowd.join(9, bag(1));
        let place_of = |crowd: &Crowd, slot, table, hung, own| {
            crowd.place(slot, Conn(0), bag(table), rooms(hung, own))
        };
        let place = |crowd: &Crowd, slot, table, hung| place_of(crowd, slot, table, hung, 9);
        // Table 0 has its part: others go on, in their order.
        assert_eq!(place(&crowd, 7, 0, 0), None);
        assert_eq!(place(&crowd, 9, 1, 0), Some(Place::Main));
        assert_eq!(place(&crowd, 3, 1, 0), None);
        assert_eq!(place(&crowd, 3, 2, 0), None);
        assert_eq!(place(&crowd, 3, 2, 1), None);
        // But what is its table's own another one's bag does not wait for.
        assert_eq!(place_of(&crowd, 3, 2, 9, 2), Some(Place::Main));
        assert_eq!(place_of(&crowd, 3, 1, 9, 1), None);
        assert_eq!(place_of(&crowd, 8, 0, 9, 0), None);
        crowd.go_on(9);
        assert_eq!(place(&crowd, 3, 2, 0), Some(Place::Main));
        // There is no room: only the first goes on.
        assert_eq!(place(&crowd, 8, 0, 9), None);
        assert_eq!(place(&crowd, 3, 2, 9), None);
        assert_eq!(place(&crowd, 7, 0, 9), Some(Place::Main));
        crowd.go_on(7);
        assert_eq!(place(&crowd, 8, 0, 9), Some(Place::Main));
        assert_eq!(crowd.waits_for(8), Some(bag(0)));
        crowd.join(8, bag(2));
        assert_eq!(crowd.waits_for(8), Some(bag(2)));
        crowd.leave(8);
        assert_eq!(crowd.waits_for(8), None);
    }
}
