//! A request on its way, and its answer.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use rowmill_port::ClientPort;

use super::bell::{Bell, Ring};
use super::lease::Lease;
use super::shared::{Guard, Inner, Owner, Shared};
use super::waiters::Seat;
use crate::answer::Ticket;
use crate::error::{ClientError, Failure};
use crate::options::Wait;
use crate::ports::AnyPort;

/// A request that was sent by a [`Hub`](crate::Hub). Any thread may wait for it, one at a time. Dropped, it goes on, and its answer
/// is dropped with its result.
#[must_use = "dropped, it loses its answer"]
pub struct Pending<P: ClientPort = AnyPort> {
    shared: Arc<Owner<P>>,
    pub(super) at: u32,
    taken: bool,
}

/// The end of a request.
#[derive(Debug)]
#[must_use = "the reply says whether there is a result"]
pub struct Reply {
    /// The result, where `outcome` is `Ok`; otherwise some of it may have been written.
    pub lease: Lease,
    /// Whether the result is there; see [`Answer::outcome`](crate::Answer::outcome).
    pub outcome: Result<(), Failure>,
    /// The generation of the rows; where parts report several, the newest.
    pub generation: u64,
    /// The last delta of that generation of which each row of the result is, or of a later one; 0 before the first. Where parts report several, the earliest.
    pub delta: u64,
    /// Nanoseconds from a part's receipt to its end by the dataplane's clock; of the slowest part.
    pub service_ns: u64,
    /// In how many parts the request was sent.
    pub parts: u32,
    /// How many slices were placed, over all parts.
    pub slices: u32,
    /// The attempt, as the request named it.
    pub attempt: u16,
}

impl<P: ClientPort> Pending<P> {
    pub(super) fn new(shared: Arc<Owner<P>>, at: u32) -> Pending<P> {
        let taken = false;
        Pending { shared, at, taken }
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// [`ClientError::Stopped`], [`ClientError::Forked`]; [`ClientError::UnknownTicket`] where the answer was taken. The
    /// connection's end is no error here but the reply's outcome.
    pub fn wait(mut self, how: Wait) -> Result<Reply, ClientError> {
        let reply = self.wait_until(how, None)?;
        Ok(reply.expect("a wait without limit ends with an answer"))
    }

    /// As [`Pending::wait`], for who has the lock.
    pub(super) fn wait_with(
        mut self,
        inner: Guard<'_, P>,
        how: Wait,
    ) -> Result<Reply, ClientError> {
        let (shared, at) = (&self.shared, self.at);
        let take = |inner: &mut Inner<P>| take(shared, inner, at);
        let reply = shared.wait_with(inner, Seat::Request(at), how, None, take)?;
        self.taken = reply.is_some();
        Ok(reply.expect("a wait without limit ends with an answer"))
    }

    /// Waits for the answer, at most for `limit`. After `None` the request is still in flight. A signal's handler runs
    /// meanwhile, but does not end the wait: who wants to look at what it has done waits a little at a time.
    ///
    /// # Errors
    /// As [`Pending::wait`].
    pub fn wait_for(&mut self, how: Wait, limit: Duration) -> Result<Option<Reply>, ClientError> {
        self.wait_until(how, Some(limit))
    }

    fn wait_until(
        &mut self,
        how: Wait,
        limit: Option<Duration>,
    ) -> Result<Option<Reply>, ClientError> {
        if self.taken {
            return Err(ClientError::UnknownTicket);
        }
        let (shared, at) = (&self.shared, self.at);
        let take = |inner: &mut Inner<P>| take(shared, inner, at);
        let reply = shared.wait_until(Seat::Request(at), how, limit, take)?;
        self.taken = reply.is_some();
        Ok(reply)
    }

    /// Takes the answer, if it is there. Looks once for what has come. After `None` the request is still in flight.
    ///
    /// # Errors
    /// As [`Pending::wait`].
    pub fn try_take(&mut self) -> Result<Option<Reply>, ClientError> {
        if self.taken {
            return Err(ClientError::UnknownTicket);
        }
        let mut inner = self.shared.lock()?;
        self.shared.turn(&mut inner)?;
        let reply = take(&self.shared, &mut inner, self.at);
        self.taken = reply.is_some();
        Ok(reply)
    }

    /// Whether the answer has come, and was not taken yet.
    ///
    /// # Errors
    /// [`ClientError::Stopped`], [`ClientError::Forked`].
    pub fn is_done(&self) -> Result<bool, ClientError> {
        let mut inner = self.shared.lock()?;
        self.shared.turn(&mut inner)?;
        Ok(!self.taken && inner.table.has_answer(self.at))
    }

    /// [`Pending::is_done`] with the lock of this hub held.
    pub(super) fn is_done_in(
        &self,
        shared: &Arc<Owner<P>>,
        inner: &Inner<P>,
    ) -> Result<bool, ClientError> {
        match Arc::ptr_eq(&self.shared, shared) {
            true => Ok(!self.taken && inner.table.has_answer(self.at)),
            false => Err(ClientError::OtherClient { what: "request" }),
        }
    }

    /// Asks for an early end. The answer still comes: `Cancelled`, or whatever else it had become by then. Nothing happens where it
    /// has come.
    ///
    /// # Errors
    /// [`ClientError::Stopped`], [`ClientError::Forked`]; where the connection has ended, [`ClientError::Closed`] or
    /// [`ClientError::Lost`].
    pub fn cancel(&self) -> Result<(), ClientError> {
        self.canceller()?.cancel()
    }

    /// What cancels it while a thread waits for it.
    ///
    /// # Errors
    /// [`ClientError::Stopped`], [`ClientError::Forked`].
    pub fn canceller(&self) -> Result<Canceller<P>, ClientError> {
        let ticket = self.shared.lock()?.table.ticket(self.at);
        Ok(Canceller {
            shared: Arc::clone(&self.shared),
            at: self.at,
            ticket: ticket.filter(|_| !self.taken),
        })
    }
}

/// Cancels a request from any thread, also while another one waits for it.
pub struct Canceller<P: ClientPort = AnyPort> {
    shared: Arc<Owner<P>>,
    at: u32,
    /// None where the answer had come.
    ticket: Option<Ticket>,
}

impl<P: ClientPort> Canceller<P> {
    /// As [`Pending::cancel`].
    ///
    /// # Errors
    /// As [`Pending::cancel`].
    pub fn cancel(&self) -> Result<(), ClientError> {
        let mut inner = self.shared.lock()?;
        // Its place may be another request's by now.
        let ticket = inner.table.ticket(self.at);
        let ticket = ticket.filter(|&ticket| self.ticket == Some(ticket));
        let outcome = ticket.map_or(Ok(()), |ticket| inner.session.cancel(ticket));
        self.shared.hand_out(&mut inner);
        outcome
    }
}

impl<P: ClientPort> fmt::Debug for Canceller<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Canceller({:?})", self.ticket)
    }
}

impl<P: ClientPort + Send + 'static> Pending<P> {
    /// Has the bell rung with `token` when the answer has come: at once, if it has already. From now on a thread of the
    /// client's own looks for the answer, while no thread waits in person. A bell that the request was given before is not
    /// rung for it any more; nor is any when the `Pending` is dropped, unless it was rung before that.
    ///
    /// # Errors
    /// [`ClientError::OtherClient`] for another client's bell; [`ClientError::TooLarge`] where too many of the bell's requests were
    /// answered and not heard; [`ClientError::Port`] where the thread can't be started; as [`Pending::wait`].
    pub fn ring(&self, bell: &Bell<P>, token: u64) -> Result<(), ClientError> {
        if self.taken {
            return Err(ClientError::UnknownTicket);
        }
        let mut inner = self.shared.lock()?;
        if bell.chime.session != inner.session.id {
            return Err(ClientError::OtherClient { what: "bell" });
        }
        self.shared.turn(&mut inner)?;
        if !inner.table.has_answer(self.at) {
            self.shared.shared().start_progress(&mut inner)?;
        }
        inner.table.ring(self.at, Ring::new(&bell.chime, token)?);
        self.shared.wake_progress(&mut inner);
        Ok(())
    }
}

impl<P: ClientPort> fmt::Debug for Pending<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending({}, taken: {})", self.at, self.taken)
    }
}

impl<P: ClientPort> Drop for Pending<P> {
    fn drop(&mut self) {
        // Without the lock, which may be held by this thread's caller or, in a child, by nobody.
        if !self.taken && self.shared.process.is_this() {
            let _ = self.shared.dropped.push(self.at);
        }
    }
}

/// Takes a request's answer, if it has come.
fn take<P: ClientPort>(shared: &Shared<P>, inner: &mut Inner<P>, at: u32) -> Option<Reply> {
    let ended = inner.table.take(at)?;
    shared.changed(inner);
    let answer = ended.answer;
    let memory = inner.pool.memory_of(&answer.target);
    Some(Reply {
        lease: inner.leases.lease(ended.lease, answer.target, memory),
        outcome: answer.outcome,
        generation: answer.generation,
        delta: answer.delta,
        service_ns: answer.service_ns,
        parts: answer.parts,
        slices: answer.slices,
        attempt: answer.attempt,
    })
}
