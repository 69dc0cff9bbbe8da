//! The requests of a hub: whose answer has come, and whose nobody wants any more.

use std::sync::Arc;

use super::bell::Ring;
use super::watch::Watcher;
use crate::answer::{Answer, Ticket};
use crate::error::Failure;

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
    /// Who is told of its slices and its end.
    watcher: Option<Arc<dyn Watcher>>,
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
    /// Bells that are to be rung, and watchers.
    unattended: usize,
}

impl Table {
    pub(crate) fn new(most: usize) -> Table {
        let request = || Request {
            state: State::Free,
            lease: 0,
            ring: None,
            watcher: None,
        };
        Table {
            requests: (0..most).map(|_| request()).collect(),
            free: (0..most as u32).rev().collect(),
            by_entry: vec![NONE; most],
            unattended: 0,
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
        self.requests[at as usize] = Request {
            state,
            lease,
            ring: None,
            watcher: None,
        };
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
        self.dismiss(at, answer.outcome);
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

    /// What is to be told to those who don't wait: bells to be rung, and watchers.
    pub(crate) fn unattended(&self) -> usize {
        self.unattended
    }

    /// Has somebody told of a request in flight.
    pub(crate) fn watch(&mut self, at: u32, watcher: Arc<dyn Watcher>) {
        self.requests[at as usize].watcher = Some(watcher);
        self.unattended += 1;
    }

    /// Who is told of a request, if anybody.
    pub(crate) fn watcher(&self, ticket: Ticket) -> Option<&dyn Watcher> {
        let at = self.by_entry[ticket.index as usize];
        self.requests.get(at as usize)?.watcher.as_deref()
    }

    fn dismiss(&mut self, at: u32, outcome: Result<(), Failure>) {
        if let Some(watcher) = self.requests[at as usize].watcher.take() {
            self.unattended -= 1;
            watcher.end(outcome);
        }
    }

    /// Has a bell rung for a request, and no other one any more: at once, if it has been answered.
    pub(crate) fn ring(&mut self, at: u32, ring: Ring) {
        if let Some(before) = self.silence(at) {
            before.give_up();
        }
        match self.ticket(at) {
            Some(_) => {
                self.requests[at as usize].ring = Some(ring);
                self.unattended += 1;
            }
            None => ring.ring(),
        }
    }

    /// Tells all who don't wait that no answers will come.
    pub(crate) fn end_all(&mut self) {
        for at in 0..self.requests.len() as u32 {
            self.dismiss(at, Err(Failure::Disconnected));
            if let Some(ring) = self.silence(at) {
                ring.ring();
            }
        }
    }

    fn silence(&mut self, at: u32) -> Option<Ring> {
        let ring = self.requests[at as usize].ring.take();
        self.unattended -= usize::from(ring.is_some());
        ring
    }

    /// Takes the answer of a request, if it has come.
    pub(crate) fn take(&mut self, at: u32) -> Option<Ended> {
        // Asked at each poll.
        if !self.has_answer(at) {
            return None;
        }
        let request = &mut self.requests[at as usize];
        let lease = request.lease;
        match std::mem::replace(&mut request.state, State::Free) {
            State::Answered(answer) => {
                self.free.push(at);
                Some(Ended { answer, lease })
            }
            _ => None,
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
