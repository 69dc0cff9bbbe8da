//! Deficit round robin over connections by estimated bytes (M. Shreedhar and G. Varghese, SIGCOMM
//! 1995), with the two lists of FQ-CoDel (RFC 8290, section 4.2): a connection that had nothing to do
//! gets its first turn before those that have had one, so that a single sample waits for the
//! micro-batch under way and not for a round. When its work is done it stays in the round as if it
//! had more; so by asking again and again nobody gets more than a turn a round.

use std::collections::VecDeque;

use crate::limits::{AHEAD_CONNECTIONS, FRESH_DEBT};
use crate::memory::Conn;
use crate::slot::{NONE, Slot};

/// Where a connection waits for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nowhere: it has no work.
    Out,
    /// Among those that have had no turn yet.
    Fresh,
    /// In the round; possibly without work, until its turn comes.
    Round,
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    head: u32,
    tail: u32,
    /// Bytes that it may still use in this turn.
    deficit: i64,
    place: Place,
}

/// Which request is worked on next.
#[derive(Debug)]
pub(crate) struct Schedule {
    queues: Box<[Queue]>,
    // Each connection is in one of the two at most, so that neither ever grows.
    fresh: VecDeque<u32>,
    round: VecDeque<u32>,
}

impl Schedule {
    pub(crate) fn new(connections: u32) -> Schedule {
        let queue = Queue {
            head: NONE,
            tail: NONE,
            deficit: 0,
            place: Place::Out,
        };
        Schedule {
            queues: vec![queue; connections as usize].into_boxed_slice(),
            fresh: VecDeque::with_capacity(connections as usize),
            round: VecDeque::with_capacity(connections as usize),
        }
    }

    /// Queues a slot behind its connection's others.
    pub(crate) fn push(&mut self, slot: u32, slots: &mut [Slot]) {
        let conn = slots[slot as usize].conn;
        slots[slot as usize].next = NONE;
        let queue = &mut self.queues[conn.0 as usize];
        if queue.head == NONE {
            queue.head = slot;
        } else {
            slots[queue.tail as usize].next = slot;
        }
        queue.tail = slot;
        if queue.place == Place::Out {
            queue.deficit = queue.deficit.min(0);
            // One that owes for more than its request's own lengths has had its turn.
            if queue.deficit < -FRESH_DEBT {
                queue.place = Place::Round;
                self.round.push_back(conn.0);
            } else {
                queue.place = Place::Fresh;
                self.fresh.push_back(conn.0);
            }
        }
    }

    /// The slot whose turn it is, and how many bytes it may use. A connection whose turn comes gets
    /// `quantum`; one that still has less than half of that, because it took more than it had, waits
    /// for the next round, so that no turn is tiny.
    pub(crate) fn next(&mut self, quantum: u64) -> Option<(u32, u64)> {
        while let Some(&conn) = self.fresh.front() {
            let queue = &mut self.queues[conn as usize];
            if queue.head != NONE {
                return Some((queue.head, queue.allow(quantum)));
            }
            // Done within its first turn, or cancelled before it.
            self.fresh.pop_front();
            queue.place = Place::Round;
            self.round.push_back(conn);
        }
        while let Some(&conn) = self.round.front() {
            let queue = &mut self.queues[conn as usize];
            if queue.head == NONE {
                self.round.pop_front();
                queue.place = Place::Out;
            } else if queue.allow(quantum) >= quantum / 2 {
                return Some((queue.head, queue.deficit as u64));
            } else {
                self.round.rotate_left(1);
            }
        }
        None
    }

    /// The request whose turn comes after that of `slot`, as far as can be told: the next of its
    /// connection, or the first of the next connection that has one.
    pub(crate) fn upcoming(&self, slot: u32, slots: &[Slot]) -> Option<u32> {
        let Slot { conn, next, .. } = slots[slot as usize];
        if next != NONE {
            return Some(next);
        }
        let others = self.fresh.iter().chain(&self.round);
        others
            .take(AHEAD_CONNECTIONS)
            .filter(|&&other| other != conn.0)
            .map(|&other| self.queues[other as usize].head)
            .find(|&head| head != NONE)
    }

    /// The first request behind that of `slot` in its connection's queue that is as `wanted`.
    pub(crate) fn behind(
        &self,
        slot: u32,
        slots: &[Slot],
        wanted: impl Fn(&Slot) -> bool,
    ) -> Option<u32> {
        let next = |&slot: &u32| Some(slots[slot as usize].next).filter(|&next| next != NONE);
        let mut behind = core::iter::successors(next(&slot), next);
        behind.find(|&slot| wanted(&slots[slot as usize]))
    }

    /// Charges a connection for work that was done for it out of its turn.
    pub(crate) fn owe(&mut self, conn: Conn, bytes: u64) {
        let queue = &mut self.queues[conn.0 as usize];
        queue.deficit = queue.deficit.saturating_sub_unsigned(bytes);
    }

    /// Charges the connection whose turn it was; when less than half a quantum is left, the next
    /// one's turn comes.
    pub(crate) fn charge(&mut self, conn: Conn, bytes: u64, quantum: u64) {
        let queue = &mut self.queues[conn.0 as usize];
        queue.deficit = queue.deficit.saturating_sub_unsigned(bytes);
        if queue.deficit < quantum as i64 / 2 {
            self.pass(conn);
        }
    }

    /// A connection begins: it owes nothing.
    pub(crate) fn begin(&mut self, conn: Conn) {
        self.queues[conn.0 as usize].deficit = 0;
    }

    /// Gives a connection's turn to the next one: it has work that can't be done now.
    pub(crate) fn pass(&mut self, conn: Conn) {
        let queue = &mut self.queues[conn.0 as usize];
        match queue.place {
            Place::Fresh => {
                self.fresh.pop_front();
                queue.place = Place::Round;
                self.round.push_back(conn.0);
            }
            Place::Round => self.round.rotate_left(1),
            Place::Out => {}
        }
    }

    /// Takes a slot out, wherever it stands in its connection's queue. The connection keeps its place
    /// until its turn comes.
    pub(crate) fn remove(&mut self, slot: u32, slots: &mut [Slot]) {
        let conn = slots[slot as usize].conn;
        let queue = &mut self.queues[conn.0 as usize];
        let next = slots[slot as usize].next;
        if queue.head == slot {
            queue.head = next;
            return;
        }
        let mut before = queue.head;
        while slots[before as usize].next != slot {
            before = slots[before as usize].next;
        }
        slots[before as usize].next = next;
        if queue.tail == slot {
            queue.tail = before;
        }
    }
}

impl Queue {
    /// Adds a quantum where a turn begins; what may be used.
    fn allow(&mut self, quantum: u64) -> u64 {
        if self.deficit < quantum as i64 / 2 {
            self.deficit += quantum as i64;
        }
        self.deficit.max(0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::slot::Stage;

    const QUANTUM: u64 = 1000;

    fn slots(conns: &[u32]) -> Vec<Slot> {
        let limits = Limits {
            max_ids: 1,
            max_lengths: 1,
            ..Limits::DEFAULT
        };
        let slot = |&conn| Slot {
            conn: Conn(conn),
            ..Slot::new(&limits)
        };
        conns.iter().map(slot).collect()
    }

    #[test]
    fn one_that_just_came_goes_first_and_takes_a_quantum_a_round() {
        let mut slots = slots(&[0, 1, 2]);
        let mut schedule = Schedule::new(3);
        schedule.push(0, &mut slots);
        schedule.push(1, &mut slots);
        let mut served = Vec::new();
        for step in 0..9 {
            if step >= 2 && slots[2].stage == Stage::Free {
                // Connection 2 asks for a little as soon as it has its answer.
                slots[2].stage = Stage::Pooling;
                schedule.push(2, &mut slots);
            }
            let (slot, _) = schedule.next(QUANTUM).expect("there is work");
            served.push(slot);
            let bytes = if slot == 2 { 400 } else { QUANTUM };
            schedule.charge(slots[slot as usize].conn, bytes, QUANTUM);
            if slot == 2 {
                schedule.remove(2, &mut slots);
                slots[2].stage = Stage::Free;
            }
        }
        assert_eq!(
            served,
            [0, 1, 2, 2, 0, 1, 2, 2, 0],
            "a quantum each, and the others have their turns too"
        );
    }

    #[test]
    fn one_that_owes_for_its_lengths_goes_first_and_one_that_owes_more_does_not() {
        for (debt, first) in [(FRESH_DEBT, 1), (FRESH_DEBT + 1, 0)] {
            let mut slots = slots(&[0, 1]);
            let mut schedule = Schedule::new(2);
            schedule.push(0, &mut slots);
            // Its first turn is over, and it has more to do.
            schedule.charge(Conn(0), QUANTUM, QUANTUM);
            schedule.owe(Conn(1), debt as u64);
            schedule.push(1, &mut slots);
            let quantum = 4 * FRESH_DEBT as u64;
            assert_eq!(schedule.next(quantum).map(|(slot, _)| slot), Some(first));
        }
    }

    #[test]
    fn bytes_are_shared_evenly_whatever_a_turn_takes() {
        let mut slots = slots(&[0, 1]);
        let mut schedule = Schedule::new(2);
        schedule.push(0, &mut slots);
        schedule.push(1, &mut slots);
        let mut bytes = [0u64; 2];
        for _ in 0..1000 {
            let (slot, _) = schedule.next(QUANTUM).expect("there is work");
            // One can only do large pieces, the other small ones.
            let took = if slot == 0 { 1700 } else { 300 };
            bytes[slot as usize] += took;
            schedule.charge(Conn(slot), took, QUANTUM);
        }
        assert!(bytes[0].abs_diff(bytes[1]) < 5 * QUANTUM, "{bytes:?}");
    }

    #[test]
    fn slots_leave_from_anywhere() {
        let mut slots = slots(&[0, 0, 0]);
        let mut schedule = Schedule::new(1);
        (0..3).for_each(|slot| schedule.push(slot, &mut slots));
        schedule.remove(1, &mut slots);
        schedule.remove(2, &mut slots);
        schedule.push(1, &mut slots);
        assert_eq!(schedule.next(QUANTUM).map(|(slot, _)| slot), Some(0));
        schedule.remove(0, &mut slots);
        assert_eq!(schedule.next(QUANTUM).map(|(slot, _)| slot), Some(1));
        schedule.remove(1, &mut slots);
        assert_eq!(schedule.next(QUANTUM), None);
    }
}
