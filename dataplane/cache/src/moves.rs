//! Rows that make way for others within the cache: each moves to the other set that it may be in.
//!
//! A row that is about to be fetched may take 32 slots, or 16 if it has one set only. Where all of their rows are known to be looked up soon, one of these is put
//! into its other set, in the place of a row there that is wanted later or not at all. And where all slots hold rows, and one of them may
//! have an empty slot in its other set, it is put there. It can't be found from the start of the
//! move until nobody reads the slot that it goes to, about a turn, and keeps its word.

use crate::store::{Ticket, Writer};

/// Moves at a time; more are not begun.
const MOST: usize = 64;

/// A row on its way from a slot, which is another's by now and written after the move, to that of a ticket.
#[derive(Debug)]
struct Move {
    from: u32,
    to: Ticket,
    meta: u16,
}

/// The moves that a worker has begun in a table.
#[derive(Debug)]
pub(crate) struct Moves {
    begun: Vec<Move>,
    /// A row between two slots.
    row: Box<[u8]>,
}

impl Moves {
    /// None, of rows of so many bytes.
    pub(crate) fn new(row_bytes: usize) -> Moves {
        Moves {
            begun: Vec::with_capacity(MOST),
            row: vec![0; row_bytes].into_boxed_slice(),
        }
    }

    /// Whether none is on its way.
    pub(crate) fn is_empty(&self) -> bool {
        self.begun.is_empty()
    }

    /// Whether no more can be begun.
    pub(crate) fn is_full(&self) -> bool {
        self.begun.len() == MOST
    }

    /// Whether a row is on its way.
    pub(crate) fn has(&self, row: u32) -> bool {
        self.begun.iter().any(|begun| begun.to.row() == row)
    }

    /// A row that was taken out of slot `from`, with this meta word, goes to the slot of its ticket, which was taken in the same epoch.
    pub(crate) fn begin(&mut self, from: u32, to: Ticket, meta: u16) {
        assert!(!self.is_full(), "there is room for another move");
        self.begun.push(Move { from, to, meta });
    }

    /// Ends those moves in a writer's shard whose slots nobody reads any more. To be called whenever slots have become free, before any
    /// of them is written.
    pub(crate) fn finish(&mut self, writer: &mut Writer) {
        let mut i = 0;
        while let Some(begun) = self.begun.get(i) {
            if writer.owns(&begun.to) && writer.is_free(&begun.to) {
                let Move { from, to, meta } = self.begun.swap_remove(i);
                writer.read_slot(from, &mut self.row);
                writer.publish(to, &self.row, meta);
            } else {
                i += 1;
            }
        }
    }
}
