//! The requests of a hub: whose answer has come, and whose nobody wants any more.

use super::bell::Ring;
use crate::answer::{Answer, Ticket};

/// No request of the table.
const NONE: u32 = u32::MAX;

enum State {
    Free,
    InFlight(Ticket),
    /// In flight, and nobody will ask for the answer.
    Abandoned,
    Answered(Answer),
}

struct Request {
    state: State,
    /// The number of its result.
    lease: u32,
    /// The bell that is to be rung when the answer has come.
    ring: Option<Ring>,
}

/// An answer, and the number of its result.
pub(crate) struct Ended {
    pub(crate) answer: Answer,
    pub(crate) lease: u32,
}

/// As many requests as the session can have; all of it is allocated at the start.
pub(crate) struct Table {
    requests: Vec<Request>,
    free: Vec<u32>,
    /// The request of each entry of the session.
    by_entry: Vec<u32>,
    /// Requests with a bell.
    ringing: usize,
}

impl Table {
    pub(crate) fn new(most: usize) -> Table {
        let request = || Request {
            state: State::Free,
            lease: 0,
            ring: None,
        };
        Table {
            requests: (0..most).map(|_| request()).collect(),
            free: (0..most as u32).rev().collect(),
            by_entry: vec![NONE; most],
            ringing: 0,
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Requests whose answers were not taken.
    pub(crate) fn taken(&self) -> usize {
        self.requests.len() - self.free.len()
    }

    /// Enters a request that was sent; the table is not full.
    pub(crate) fn begin(&mut self, ticket: Ticket, lease: u32) -> u32 {
        let at = self.free.pop().expect("asked before");
        let state = State::InFlight(ticket);
        let ring = None;
        self.requests[at as usize] = Request { state, lease, ring };
        self.by_entry[ticket.index as usize] = at;
        at
    }

    /// Takes an answer in. Gives the request that waits for it; or the answer back, with the number of its result, where nobody does.
    pub(crate) fn end(&mut self, answer: Answer) -> Result<u32, (Answer, Option<u32>)> {
        let entry = &mut self.by_entry[answer.ticket.index as usize];
        let at = std::mem::replace(entry, NONE);
        if at == NONE {
            return Err((answer, None));
        }
        let request = &mut self.requests[at as usize];
        if matches!(request.state, State::Abandoned) {
            request.state = State::Free;
            self.free.push(at);
            return Err((answer, Some(self.requests[at as usize].lease)));
        }
        request.state = State::Answered(answer);
        if let Some(ring) = self.silence(at) {
            ring.ring();
        }
        Ok(at)
    }

    /// Requests that a bell is to be rung for.
    pub(crate) fn ringing(&self) -> usize {
        self.ringing
    }

    /// Has a bell rung for a request, and no other one any more: at once, if it has been answered.
    pub(crate) fn ring(&mut self, at: u32, ring: Ring) {
        if let Some(before) = self.silence(at) {
            before.give_up();
        }
        match self.ticket(at) {
            Some(_) => {
                self.requests[at as usize].ring = Some(ring);
                self.ringing += 1;
            }
            None => ring.ring(),
        }
    }

    /// Rings for all that were to be rung for: their answers will not come.
    pub(crate) fn ring_all(&mut self) {
        for at in 0..self.requests.len() {
            if let Some(ring) = self.silence(at as u32) {
                ring.ring();
            }
        }
    }

    fn silence(&mut self, at: u32) -> Option<Ring> {
        let ring = self.requests[at as usize].ring.take();
        self.ringing -= usize::from(ring.is_some());
        ring
    }

    /// Takes the answer of a request, if it has come.
    pub(crate) fn take(&mut self, at: u32) -> Option<Ended> {
        let request = &mut self.requests[at as usize];
        match std::mem::replace(&mut request.state, State::Free) {
            State::Answered(answer) => {
                self.free.push(at);
                let lease = request.lease;
                Some(Ended { answer, lease })
            }
            other => {
                request.state = other;
                None
            }
        }
    }

    /// Nobody will ask for this answer. Gives it back where it has come.
    pub(crate) fn abandon(&mut self, at: u32) -> Option<Ended> {
        if let Some(ring) = self.silence(at) {
            ring.give_up();
        }
        let ended = self.take(at);
        if ended.is_none() {
            self.requests[at as usize].state = State::Abandoned;
        }
        ended
    }

    /// The session's ticket of a request in flight.
    pub(crate) fn ticket(&self, at: u32) -> Option<Ticket> {
        match self.requests[at as usize].state {
            State::InFlight(ticket) => Some(ticket),
            _ => None,
        }
    }

    pub(crate) fn has_answer(&self, at: u32) -> bool {
        matches!(self.requests[at as usize].state, State::Answered(_))
    }
}
