//! Waiting, by threads that share a session.
//!
//! One of those that wait is the leader: it polls for all, and hands each answer to its request. The others, followers, sleep on
//! a condition variable of their request's. When nothing comes for a while the leader sleeps on the port's descriptors, without the
//! lock, so that others may submit meanwhile. Who leaves wakes a follower to be the next leader, if there is none: while
//! anybody waits, somebody leads, or has been woken to.
//!
//! The thread that looks for answers where nobody waits in person (`progress.rs`) waits like the others, but for that: whoever
//! waits in person takes the lead from it. So they find their answers as fast as if it were not there.

use core::hint::spin_loop;
use core::time::Duration;
use std::sync::Condvar;
use std::sync::atomic::Ordering;
use std::thread::yield_now;

use rowmill_port::{ClientPort, Rest};

use super::shared::{Guard, Inner, Shared, panicked};
use crate::error::ClientError;
use crate::options::{Backoff, Wait};
use crate::waiting::{Pause, Waiting};

/// Polls between which the leader keeps the lock: some 2 to 4 us.
const BURST: u32 = 64;

/// How long a follower sleeps at least before it looks for itself, unless it is woken; else as long as the leader does. It need
/// not look, but for a leader that panics, which wakes nobody.
const FOLLOW: Duration = Duration::from_secs(1);

/// For what a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seat {
    /// The answer to this request.
    Request(u32),
    /// That there is room for another request.
    Room,
    /// That no request is left that nobody waits for in person.
    Progress,
}

/// Who leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lead {
    Nobody,
    /// The thread that waits for nothing in person.
    Progress,
    Person,
}

impl Seat {
    fn lead(self) -> Lead {
        match self {
            Seat::Progress => Lead::Progress,
            Seat::Request(_) | Seat::Room => Lead::Person,
        }
    }
}

/// Who waits.
pub(crate) struct Waiters {
    /// Who leads, awake or asleep.
    led: Lead,
    /// What the sleeper waits for. It is the leader, or was when it lay down.
    sleeper: Option<Seat>,
    /// Whether the alarm was given for this sleep.
    roused: bool,
    /// The requests whose followers sleep.
    followers: Vec<u32>,
    /// Followers that sleep until there is room.
    room: usize,
    /// Whether the thread that looks for answers sleeps as a follower.
    progress: bool,
    /// Threads that wait for an answer, which each of them will take.
    pub(super) requests: usize,
}

impl Waiters {
    /// Nobody; with room for followers of `most` requests.
    pub(super) fn new(most: usize) -> Waiters {
        Waiters {
            led: Lead::Nobody,
            sleeper: None,
            roused: false,
            followers: Vec::with_capacity(most),
            room: 0,
            progress: false,
            requests: 0,
        }
    }
}

/// What followers sleep on.
pub(super) struct Turns {
    /// For the follower of each request.
    requests: Box<[Condvar]>,
    room: Condvar,
    /// For the thread that looks for answers, parked or a follower.
    pub(super) progress: Condvar,
}

impl Turns {
    pub(super) fn new(most: usize) -> Turns {
        Turns {
            requests: (0..most).map(|_| Condvar::new()).collect(),
            room: Condvar::new(),
            progress: Condvar::new(),
        }
    }

    fn of(&self, seat: Seat) -> &Condvar {
        match seat {
            Seat::Request(at) => &self.requests[at as usize],
            Seat::Room => &self.room,
            Seat::Progress => &self.progress,
        }
    }
}

#[cfg(test)]
impl<P: ClientPort> Inner<P> {
    /// Whether a thread leads that waits in person, and it is the one that sleeps.
    pub(crate) fn is_led_in_person(&self) -> bool {
        let asleep = self.waiters.sleeper.map(Seat::lead);
        self.waiters.led == Lead::Person && asleep == Some(Lead::Person)
    }

    /// Whether the thread that looks for answers has nothing to do.
    pub(crate) fn is_parked(&self) -> bool {
        self.parked
    }
}

impl<P: ClientPort> Shared<P> {
    /// Lets others have the lock for a moment.
    fn relock<'a>(
        &'a self,
        inner: Guard<'a, P>,
        yields: bool,
    ) -> Result<Guard<'a, P>, ClientError> {
        drop(inner);
        if yields || self.wanting.load(Ordering::Relaxed) > 0 {
            yield_now();
        }
        self.lock()
    }

    /// Whether somebody sleeps on the port, and goes on sleeping.
    #[cfg(test)]
    pub(crate) fn sleeps(&self) -> bool {
        let inner = self.lock().expect("open");
        inner.waiters.sleeper.is_some() && !inner.waiters.roused
    }

    /// What those with this seat wait for is there.
    pub(super) fn wake(&self, inner: &mut Inner<P>, seat: Seat) {
        if inner.waiters.sleeper == Some(seat) {
            self.rouse(inner);
        }
        match seat {
            Seat::Request(at) if inner.waiters.followers.contains(&at) => {
                self.turns.of(seat).notify_one();
            }
            Seat::Room if inner.waiters.room > 0 => self.turns.room.notify_all(),
            _ => (),
        }
    }

    /// Wakes all, to see what has become of the client.
    pub(super) fn wake_all(&self, inner: &mut Inner<P>) {
        for &at in &inner.waiters.followers {
            self.turns.of(Seat::Request(at)).notify_one();
        }
        self.turns.room.notify_all();
        self.turns.progress.notify_all();
        self.rouse(inner);
    }

    /// Ends the sleep of who sleeps on the port.
    pub(crate) fn rouse(&self, inner: &mut Inner<P>) {
        if inner.waiters.sleeper.is_some() && !inner.waiters.roused {
            inner.waiters.roused = true;
            // It fails only where the alarm was given 2^64 - 2 times.
            let _ = rustix::io::write(&self.alarm, &1u64.to_ne_bytes());
        }
    }

    /// Waits until `ready` gives something, which is asked with the lock held; `None` when the time is over.
    pub(crate) fn wait_until<T>(
        &self,
        seat: Seat,
        how: Wait,
        limit: Option<Duration>,
        ready: impl FnMut(&mut Inner<P>) -> Option<T>,
    ) -> Result<Option<T>, ClientError> {
        let inner = self.lock()?;
        self.wait_with(inner, seat, how, limit, ready)
    }

    /// As [`Shared::wait_until`], for who has the lock.
    pub(crate) fn wait_with<'a, T>(
        &'a self,
        mut inner: Guard<'a, P>,
        seat: Seat,
        how: Wait,
        limit: Option<Duration>,
        mut ready: impl FnMut(&mut Inner<P>) -> Option<T>,
    ) -> Result<Option<T>, ClientError> {
        let mut waiting = Waiting::new(how, limit);
        let for_request = usize::from(matches!(seat, Seat::Request(_)));
        inner.waiters.requests += for_request;
        let (mut leads, mut polls) = (false, 0u32);
        loop {
            let mut outcome = Ok(ready(&mut inner));
            if let Ok(None) = outcome {
                outcome = self.turn(&mut inner).map(|()| ready(&mut inner));
            }
            // The lead may have been taken from it while it slept.
            leads &= inner.waiters.led == seat.lead();
            if !matches!(outcome, Ok(None)) || waiting.is_over() {
                if leads {
                    inner.waiters.led = Lead::Nobody;
                }
                inner.waiters.requests -= for_request;
                self.pass_on(&mut inner);
                return outcome;
            }
            leads = leads || self.take_lead(&mut inner, seat);
            inner = if leads || !waiting.sleeps() {
                polls = polls.wrapping_add(1);
                let lets_go = polls.is_multiple_of(BURST);
                self.lead(inner, seat, &mut waiting, lets_go)?
            } else {
                self.follow(inner, seat, &waiting)?
            };
        }
    }

    /// Takes the lead where nobody has it, or the one that yields to those who wait in person.
    fn take_lead(&self, inner: &mut Inner<P>, seat: Seat) -> bool {
        match (inner.waiters.led, seat.lead()) {
            (Lead::Nobody, _) => (),
            // It sleeps, and records that come meanwhile would wake it.
            (Lead::Progress, Lead::Person) => self.rouse(inner),
            _ => return false,
        }
        inner.waiters.led = seat.lead();
        true
    }

    /// Wakes a follower to lead, where nobody does.
    fn pass_on(&self, inner: &mut Inner<P>) {
        let waiters = &inner.waiters;
        let next = match waiters.followers.last() {
            _ if waiters.led != Lead::Nobody => return,
            Some(&at) => Seat::Request(at),
            None if waiters.room > 0 => Seat::Room,
            None if waiters.progress => Seat::Progress,
            None => return,
        };
        self.turns.of(next).notify_one();
    }

    /// Lets a moment pass between two polls.
    fn lead<'a>(
        &'a self,
        inner: Guard<'a, P>,
        seat: Seat,
        waiting: &mut Waiting,
        lets_go: bool,
    ) -> Result<Guard<'a, P>, ClientError> {
        let backoff = match seat {
            // Nobody has this core for it.
            Seat::Progress => Backoff {
                spins: 0,
                yields: 0,
                ..self.backoff
            },
            Seat::Request(_) | Seat::Room => self.backoff,
        };
        match waiting.pause(backoff) {
            Pause::Spin if lets_go => self.relock(inner, false),
            Pause::Spin => {
                spin_loop();
                Ok(inner)
            }
            // One sleeps at a time. Who does had the lead before, and gets up.
            Pause::Sleep(_) if inner.waiters.sleeper.is_some() => self.relock(inner, true),
            Pause::Yield => self.relock(inner, true),
            Pause::Sleep(limit) => self.sleep(inner, seat, limit),
        }
    }

    /// Sleeps without the lock until something comes.
    fn sleep<'a>(
        &'a self,
        mut inner: Guard<'a, P>,
        seat: Seat,
        limit: Duration,
    ) -> Result<Guard<'a, P>, ClientError> {
        let Rest::Quiet(limit) = inner.session.lie_down(limit) else {
            return Ok(inner);
        };
        inner.waiters.sleeper = Some(seat);
        drop(inner);
        let slept = self.fds.sleep(limit);
        let mut inner = self.lock()?;
        inner.waiters.sleeper = None;
        if std::mem::take(&mut inner.waiters.roused) {
            // The alarm was given, so there is something to read.
            let _ = rustix::io::read(&self.alarm, &mut [0u8; 8]);
        }
        match inner.session.get_up(slept) {
            Ok(()) => Ok(inner),
            Err(error) => Err(self.stop(&mut inner, &error)),
        }
    }

    /// Sleeps until the leader has the answer, or leaves.
    fn follow<'a>(
        &'a self,
        mut inner: Guard<'a, P>,
        seat: Seat,
        waiting: &Waiting,
    ) -> Result<Guard<'a, P>, ClientError> {
        let waiters = &mut inner.waiters;
        match seat {
            Seat::Request(at) => waiters.followers.push(at),
            Seat::Room => waiters.room += 1,
            Seat::Progress => waiters.progress = true,
        }
        let limit = waiting.left(FOLLOW.max(self.backoff.sleep));
        let woken = self.turns.of(seat).wait_timeout(inner, limit);
        let (mut inner, _) = woken.map_err(|_| panicked())?;
        let waiters = &mut inner.waiters;
        match seat {
            Seat::Request(at) => waiters.followers.retain(|&other| other != at),
            Seat::Room => waiters.room -= 1,
            Seat::Progress => waiters.progress = false,
        }
        inner.check()?;
        Ok(inner)
    }
}
