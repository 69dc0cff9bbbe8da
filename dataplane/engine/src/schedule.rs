//! Deficit round robin over connections (M. Shreedhar and G. Varghese, SIGCOMM 1995), by estimated
//! bytes: each connection with work gets about one micro-batch a round, whatever its requests' size.

use std::collections::VecDeque;

use crate::memory::Conn;
use crate::slot::{NONE, Slot};

#[derive(Clone, Copy, Debug)]
struct Queue {
    head: u32,
    tail: u32,
    deficit: i64,
}

const EMPTY: Queue = Queue {
    head: NONE,
    tail: NONE,
    deficit: 0,
};

/// Which request is worked on next.
#[derive(Debug)]
pub(crate) struct Schedule {
    queues: Box<[Queue]>,
    /// Connections with work, each once; its capacity is their number, so that it never grows.
    ring: VecDeque<u32>,
}

impl Schedule {
    pub(crate) fn new(connections: u32) -> Schedule {
        Schedule {
            queues: vec![EMPTY; connections as usize].into_boxed_slice(),
            ring: VecDeque::with_capacity(connections as usize),
        }
    }

    /// Queues a slot behind its connection's others.
    pub(crate) fn push(&mut self, slot: u32, slots: &mut [Slot]) {
        let conn = slots[slot as usize].conn;
        slots[slot as usize].next = NONE;
        let queue = &mut self.queues[conn.0 as usize];
        if queue.head == NONE {
            *queue = Queue {
                head: slot,
                tail: slot,
                deficit: 0,
            };
            self.ring.push_back(conn.0);
        } else {
            slots[queue.tail as usize].next = slot;
            queue.tail = slot;
        }
    }

    /// The slot whose turn it is, and how many bytes it may use. `quantum` is added to its
    /// connection's deficit where less than half of one is left, so that no turn is tiny.
    pub(crate) fn next(&mut self, quantum: u64) -> Option<(u32, u64)> {
        let &conn = self.ring.front()?;
        let queue = &mut self.queues[conn as usize];
        while queue.deficit < quantum as i64 / 2 {
            queue.deficit += quantum as i64;
        }
        Some((queue.head, queue.deficit as u64))
    }

    /// Charges the connection whose turn it was; when less than half a quantum is left, the next
    /// one's turn comes.
    pub(crate) fn charge(&mut self, conn: Conn, bytes: u64, quantum: u64) {
        let queue = &mut self.queues[conn.0 as usize];
        queue.deficit = queue.deficit.saturating_sub_unsigned(bytes);
        if queue.deficit < quantum as i64 / 2 && self.ring.front() == Some(&conn.0) {
            self.ring.rotate_left(1);
        }
    }

    /// Takes a slot out, wherever it stands in its connection's queue.
    pub(crate) fn remove(&mut self, slot: u32, slots: &mut [Slot]) {
        let conn = slots[slot as usize].conn;
        let queue = &mut self.queues[conn.0 as usize];
        let next = slots[slot as usize].next;
        if queue.head == slot {
            queue.head = next;
        } else {
            let mut before = queue.head;
            while slots[before as usize].next != slot {
                before = slots[before as usize].next;
            }
            slots[before as usize].next = next;
            if queue.tail == slot {
                queue.tail = before;
            }
        }
        if queue.head == NONE {
            *queue = EMPTY;
            if let Some(at) = self.ring.iter().position(|&c| c == conn.0) {
                self.ring.remove(at);
            }
        }
    }
}
