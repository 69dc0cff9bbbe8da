//! Sampled lookups on their way from a worker to whoever tells the control plane of them.

use crossbeam_queue::ArrayQueue;

use crate::store::Drawn;

/// How many wait to be taken. At 3,000 a second for a dataplane, as the control plane aims at, that is more than a second's.
const ROOM: usize = 4096;

/// A row that was looked up and is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The table's number.
    pub table: u32,
    /// The row's number.
    pub row: u32,
    /// Its place, of 2^32: less than the threshold that was in force.
    pub place: u32,
}

/// Those of one worker, in the order of its lookups. What finds no room is dropped, and counted with its table.
#[derive(Debug)]
pub struct Samples {
    queue: ArrayQueue<Sample>,
}

impl Samples {
    pub(crate) fn new() -> Samples {
        Samples {
            queue: ArrayQueue::new(ROOM),
        }
    }

    /// The one that waits longest. For any thread.
    pub fn take(&self) -> Option<Sample> {
        self.queue.pop()
    }

    /// Puts those that were drawn of the first `lookups` of a piece. Returns how many, and how many were dropped.
    pub(crate) fn put(&self, table: u32, drawn: &Drawn, lookups: u64) -> (u64, u64) {
        let (mut put, mut dropped) = (0, drawn.dropped());
        for drawn in drawn.rows() {
            if u64::from(drawn.position) >= lookups {
                continue;
            }
            let (row, place) = (drawn.row, drawn.place);
            match self.queue.push(Sample { table, row, place }) {
                Ok(()) => put += 1,
                Err(_) => dropped += 1,
            }
        }
        (put, dropped)
    }
}
