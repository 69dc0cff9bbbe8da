//! Waiting for answers, and the synchronous calls made of it.

use core::hint::spin_loop;
use core::time::Duration;
use std::thread::yield_now;
use std::time::Instant;

use rowmill_port::{ClientPort, PortError, Rest};
use rowmill_wire::Status;

use crate::answer::{Answer, Ticket};
use crate::batch::Batch;
use crate::error::{ClientError, Failure, Unsent};
use crate::memory::Target;
use crate::options::{Backoff, RequestOptions, Retry, Wait};
use crate::schema::BoundSchema;
use crate::session::Session;

/// How often a request that named no generation is sent again, because its parts named one that is not held any more: it goes once,
/// and once more where another goes right then.
pub const RENAMED: u32 = 2;

/// Whether a request was refused because its parts named a generation that is not held any more, though it asked for the newest: its
/// answer has told of that, so that the same request, sent again, names it. [`Session::lookup`] and [`Hub::lookup`](crate::Hub::lookup)
/// do that themselves, at most [`RENAMED`] times; so does who waits for requests that it has sent with `submit`, if it still has the ids.
pub fn has_renamed(outcome: &Result<(), Failure>, options: &RequestOptions) -> bool {
    let is_gone =
        matches!(outcome, Err(Failure::Refused(refusal)) if refusal.status == Status::Retry);
    options.generation == 0 && is_gone
}

/// What to do until the next look.
pub(crate) enum Pause {
    /// A pause instruction.
    Spin,
    /// Let another thread run.
    Yield,
    /// Sleep in the port, at most this long.
    Sleep(Duration),
}

/// How long a wait may take, and how far it has backed off.
pub(crate) struct Waiting {
    how: Wait,
    until: Option<Instant>,
    rounds: u32,
}

impl Waiting {
    pub(crate) fn new(how: Wait, limit: Option<Duration>) -> Waiting {
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        Waiting {
            how,
            until,
            rounds: 0,
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Whether it ever sleeps.
    pub(crate) fn sleeps(&self) -> bool {
        self.how == Wait::Block
    }

    /// What is left of its time, and of `most`.
    pub(crate) fn left(&self, most: Duration) -> Duration {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        self.until.map_or(most, |until| left(until).min(most))
    }

    /// What is next.
    pub(crate) fn pause(&mut self, backoff: Backoff) -> Pause {
        self.rounds = self.rounds.saturating_add(1);
        if self.how == Wait::Poll || self.rounds <= backoff.spins {
            Pause::Spin
        } else if self.rounds - backoff.spins <= backoff.yields {
            Pause::Yield
        } else {
            Pause::Sleep(self.left(backoff.sleep))
        }
    }
}

impl<P: ClientPort> Session<P> {
    /// Waits for the ticket's answer. Other answers stay to be polled for.
    ///
    /// # Errors
    /// [`ClientError::UnknownTicket`] after it was taken; [`ClientError::Port`]. The connection's end
    /// is no error here but the answer's outcome.
    pub fn wait(&mut self, ticket: Ticket, how: Wait) -> Result<Answer, ClientError> {
        let answer = self.wait_until(ticket, &mut Waiting::new(how, None))?;
        Ok(answer.expect("a wait without limit ends with an answer"))
    }

    /// Waits for the ticket's answer, at most for `limit`. After `None` the request is still in
    /// flight and its target still the dataplane's: wait again, or cancel it and wait.
    ///
    /// # Errors
    /// As [`Session::wait`].
    pub fn wait_for(
        &mut self,
        ticket: Ticket,
        how: Wait,
        limit: Duration,
    ) -> Result<Option<Answer>, ClientError> {
        self.wait_until(ticket, &mut Waiting::new(how, Some(limit)))
    }

    fn wait_until(
        &mut self,
        ticket: Ticket,
        waiting: &mut Waiting,
    ) -> Result<Option<Answer>, ClientError> {
        if !self.flight.knows(ticket) {
            return Err(ClientError::UnknownTicket);
        }
        loop {
            self.take_in()?;
            if let Some(answer) = self.flight.take_one(ticket) {
                return Ok(Some(answer));
            }
            if waiting.is_over() {
                return Ok(None);
            }
            self.pause(waiting)?;
        }
    }

    /// Lets a moment pass: an instruction, a turn of the scheduler, or a sleep in the port.
    fn pause(&mut self, waiting: &mut Waiting) -> Result<(), ClientError> {
        match waiting.pause(self.options.backoff) {
            Pause::Spin => spin_loop(),
            Pause::Yield => yield_now(),
            Pause::Sleep(limit) => {
                let slept = self.port.wait(Some(limit));
                return self.slept(slept);
            }
        }
        Ok(())
    }

    /// What a sleep has shown. The connection's end is no error: it has ended every request, which the next look finds.
    fn slept(&mut self, outcome: Result<(), PortError>) -> Result<(), ClientError> {
        match outcome.map_err(|error| self.failed(error)) {
            Err(error) if !error.is_end() => Err(error),
            _ => Ok(()),
        }
    }

    /// The part of a sleep before it, for who sleeps without the session; see [`ClientPort::lie_down`].
    pub(crate) fn lie_down(&mut self, limit: Duration) -> Rest {
        self.port.lie_down(Some(limit))
    }

    /// The part of such a sleep after it.
    pub(crate) fn get_up(&mut self, slept: Result<(), PortError>) -> Result<(), ClientError> {
        let up = self.port.get_up();
        self.slept(up.and(slept))
    }

    /// Sends a batch and waits for its answer; waits for a slot before where all are in flight. A request that named no generation is
    /// sent again where the one that its parts named is not held any more (`Retry`), with the newest that the answer told of.
    ///
    /// # Errors
    /// [`Unsent`] as for [`Session::submit`], but for a lack of slots or source space; and for a
    /// failure of the port while waiting, then without the target. What the dataplane refuses is the
    /// answer's outcome.
    pub fn lookup(
        &mut self,
        schema: &BoundSchema,
        batch: &Batch,
        target: Target,
        options: &RequestOptions,
        how: Wait,
    ) -> Result<Answer, Unsent> {
        let mut answer = self.lookup_once(schema, batch, target, options, how)?;
        for _ in 0..RENAMED {
            if !has_renamed(&answer.outcome, options) {
                break;
            }
            answer = self.lookup_once(schema, batch, answer.target, options, how)?;
        }
        Ok(answer)
    }

    fn lookup_once(
        &mut self,
        schema: &BoundSchema,
        batch: &Batch,
        target: Target,
        options: &RequestOptions,
        how: Wait,
    ) -> Result<Answer, Unsent> {
        let mut waiting = Waiting::new(how, None);
        let mut target = target;
        let ticket = loop {
            match self.submit(schema, batch, target, options) {
                Ok(ticket) => break ticket,
                // Only taking an answer frees an entry; while none has ended, time will help.
                Err(Unsent {
                    error,
                    target: Some(back),
                }) if error.would_block() && self.can_wait() => {
                    target = back;
                    let waited = self.pause(&mut waiting).and_then(|()| self.take_in());
                    if let Err(error) = waited {
                        return Err(Unsent {
                            error,
                            target: Some(target),
                        });
                    }
                }
                Err(unsent) => return Err(unsent),
            }
        };
        self.wait(ticket, how).map_err(|error| Unsent {
            error,
            target: None,
        })
    }

    /// Whether some request in flight has yet to end.
    pub(crate) fn can_wait(&self) -> bool {
        (0..self.flight.lanes()).any(|lane| self.flight.on_lane(lane) > 0)
    }

    /// As [`Session::lookup`], and again after a jittered pause while the answer is `Busy` or `Retry`
    /// and attempts are left. Each attempt is sent after the one before has ended, to the same
    /// target; `options.attempt` is the first one's number. Gives the last attempt's answer.
    ///
    /// # Errors
    /// As [`Session::lookup`].
    pub fn lookup_retrying(
        &mut self,
        schema: &BoundSchema,
        batch: &Batch,
        target: Target,
        options: &RequestOptions,
        how: Wait,
        retry: &Retry,
    ) -> Result<Answer, Unsent> {
        let mut options = *options;
        let mut answer = self.lookup(schema, batch, target, &options, how)?;
        for attempt in 1..retry.attempts {
            let again = match answer.outcome {
                Err(Failure::Refused(refusal)) => {
                    matches!(refusal.status, Status::Busy | Status::Retry)
                }
                _ => false,
            };
            if !again {
                break;
            }
            std::thread::sleep(retry.pause(attempt, fastrand::f64()));
            options.attempt = options.attempt.wrapping_add(1);
            answer = self.lookup(schema, batch, answer.target, &options, how)?;
        }
        Ok(answer)
    }
}
