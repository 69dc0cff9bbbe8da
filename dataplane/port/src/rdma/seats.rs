//! The seats of a worker: one for each connection, found by its number and in no other way.

use std::cell::Cell;

use super::seat::Seat;
use crate::ConnId;

/// Seats by their connections' numbers. There is no way to go through all of them but to end them all, so that what a poll
/// costs can't grow with connections that have nothing to do; and each look at one is counted.
pub(super) struct Seats {
    places: Vec<Option<Box<Seat>>>,
    looks: Cell<u64>,
}

impl Seats {
    /// Room for connections numbered from 0 to `most - 1`.
    pub(super) fn new(most: usize) -> Seats {
        Seats {
            places: (0..most).map(|_| None).collect(),
            looks: Cell::new(0),
        }
    }

    /// How often a seat was looked at so far.
    pub(super) fn looks(&self) -> u64 {
        self.looks.get()
    }

    fn count(&self) {
        self.looks.set(self.looks.get() + 1);
    }

    /// The seat of a connection; `None` of one that is gone, or of a number that is none.
    pub(super) fn get(&self, conn: ConnId) -> Option<&Seat> {
        self.count();
        self.places.get(conn.0 as usize)?.as_deref()
    }

    /// As [`get`](Seats::get), to change it.
    pub(super) fn get_mut(&mut self, conn: ConnId) -> Option<&mut Seat> {
        self.count();
        self.places.get_mut(conn.0 as usize)?.as_deref_mut()
    }

    /// Gives a connection its seat.
    ///
    /// # Panics
    /// If the number is none.
    pub(super) fn put(&mut self, conn: ConnId, seat: Box<Seat>) {
        self.places[conn.0 as usize] = Some(seat);
    }

    /// Takes a connection's seat.
    pub(super) fn take(&mut self, conn: ConnId) -> Option<Box<Seat>> {
        self.places.get_mut(conn.0 as usize)?.take()
    }

    /// The numbers of all connections, for what ends them all.
    pub(super) fn all(&self) -> Vec<ConnId> {
        let there = |&conn: &usize| self.places[conn].is_some();
        let all = (0..self.places.len()).filter(there);
        all.map(|conn| ConnId(conn as u32)).collect()
    }

    /// Drops all seats.
    pub(super) fn clear(&mut self) {
        self.places.clear();
    }
}
