//! Waiting, by threads that share a session.
//!
//! One of those that wait is the leader: it polls for all, and hands each answer to its request. The others, followers, sleep on
//! a condition variable of their request's. When nothing comes for a while the leader sleeps on the port's descriptors, without the
//! lock, so that others may submit meanwhile. Who leaves wakes a follower to be the next leader, if there is none: while
//! anybody waits, somebody leads, or has been woken to.

use core::hint::spin_loop;
use core::time::Duration;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread::yield_now;

use crossbeam_queue::ArrayQueue;
use rowmill_port::{ClientPort, ParentFd, PortError, Process, Rest, WakeFds};
use rustix::event::{EventfdFlags, eventfd};

use super::fork::InParent;
use super::lease::Leases;
use super::pool::Pool;
use super::table::Table;
use crate::error::ClientError;
use crate::options::{Backoff, Wait};
use crate::session::Session;
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
}

/// Who waits.
pub(crate) struct Waiters {
    /// Whether somebody leads, awake or asleep.
    led: bool,
    /// What the leader waits for, while it sleeps.
    sleeper: Option<Seat>,
    /// Whether the bell has been rung for this sleep.
    rung: bool,
    /// The requests whose followers sleep.
    followers: Vec<u32>,
    /// Followers that sleep until there is room.
    room: usize,
    /// Threads that wait for an answer, which each of them will take.
    requests: usize,
}

/// What the lock guards.
pub(crate) struct Inner<P: ClientPort> {
    pub(crate) session: InParent<Session<P>>,
    pub(crate) table: Table,
    pub(crate) leases: Leases,
    pub(crate) pool: Pool,
    waiters: Waiters,
    /// How often an answer has come or been taken: whether it is worth while to try for room again.
    pub(crate) changes: u64,
    /// Why the client can't go on.
    stopped: Option<String>,
}

/// A session that threads share.
pub(crate) struct Shared<P: ClientPort> {
    inner: Mutex<Inner<P>>,
    /// Threads that want the lock, which a leader that polls lets go first.
    wanting: AtomicU32,
    /// For the follower of each request.
    turns: Box<[Condvar]>,
    room: Condvar,
    /// Ends the leader's sleep.
    bell: OwnedFd,
    fds: WakeFds<ParentFd>,
    backoff: Backoff,
    pub(crate) process: Process,
    /// Requests that nobody waits for any more, each at most once: never full.
    pub(crate) dropped: ArrayQueue<u32>,
}

pub(crate) type Guard<'a, P> = MutexGuard<'a, Inner<P>>;

impl<P: ClientPort> Inner<P> {
    /// Whether room will come without anybody's doing: a request in flight ends, or a thread takes the answer that it waits for.
    pub(crate) fn can_wait(&self) -> bool {
        self.session.can_wait() || self.waiters.requests > 0
    }
}

impl<P: ClientPort> Shared<P> {
    pub(crate) fn new(
        session: Session<P>,
        results: u32,
        pool: Pool,
    ) -> Result<Shared<P>, ClientError> {
        let process = Process::this()?;
        let failed = |source: std::io::Error| {
            let call = "making an eventfd";
            ClientError::Port(PortError::System { call, source })
        };
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = bell.map_err(|errno| failed(errno.into()))?;
        let fds = session.port.wake_fds().try_to_owned()?;
        let fds = fds.with(bell.try_clone().map_err(failed)?)?;
        let most = session.flight.most_requests();
        let backoff = session.options.backoff;
        let waiters = Waiters {
            led: false,
            sleeper: None,
            rung: false,
            followers: Vec::with_capacity(most),
            room: 0,
            requests: 0,
        };
        let inner = Inner {
            session: InParent::new(process, session),
            table: Table::new(most),
            leases: Leases::new(process, results),
            pool,
            waiters,
            changes: 0,
            stopped: None,
        };
        Ok(Shared {
            inner: Mutex::new(inner),
            wanting: AtomicU32::new(0),
            turns: (0..most).map(|_| Condvar::new()).collect(),
            room: Condvar::new(),
            bell,
            fds,
            backoff,
            process,
            dropped: ArrayQueue::new(most),
        })
    }

    /// The lock, in the process that has connected.
    pub(crate) fn lock(&self) -> Result<Guard<'_, P>, ClientError> {
        if !self.process.is_this() {
            return Err(ClientError::Forked);
        }
        self.wanting.fetch_add(1, Ordering::Relaxed);
        let inner = self.inner.lock();
        self.wanting.fetch_sub(1, Ordering::Relaxed);
        let inner = inner.map_err(|_| panicked())?;
        match &inner.stopped {
            Some(why) => Err(ClientError::Stopped { why: why.clone() }),
            None => Ok(inner),
        }
    }

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

    /// Takes in what has come, and what was dropped, and hands it out.
    pub(crate) fn turn(&self, inner: &mut Inner<P>) -> Result<(), ClientError> {
        match inner.session.take_in() {
            Ok(()) => {
                self.hand_out(inner);
                Ok(())
            }
            // The record that made no sense may have been an answer that somebody waits for.
            Err(error) => Err(self.stop(inner, &error)),
        }
    }

    /// Hands answers that were taken in to their requests.
    pub(crate) fn hand_out(&self, inner: &mut Inner<P>) {
        while let Some(at) = self.dropped.pop() {
            if let Some(ended) = inner.table.abandon(at) {
                inner.session.release(ended.answer.target);
                inner.leases.give(ended.lease);
                self.changed(inner);
            }
        }
        while let Some(answer) = inner.session.flight.take_any() {
            match inner.table.end(answer) {
                Ok(at) => self.wake(inner, Seat::Request(at)),
                Err((answer, lease)) => {
                    inner.session.release(answer.target);
                    if let Some(lease) = lease {
                        inner.leases.give(lease);
                    }
                }
            }
            self.changed(inner);
        }
    }

    /// There may be room now.
    pub(crate) fn changed(&self, inner: &mut Inner<P>) {
        inner.changes += 1;
        self.wake(inner, Seat::Room);
    }

    /// Whether the leader sleeps, and goes on sleeping.
    #[cfg(test)]
    pub(crate) fn sleeps(&self) -> bool {
        let inner = self.lock().expect("open");
        inner.waiters.sleeper.is_some() && !inner.waiters.rung
    }

    fn wake(&self, inner: &mut Inner<P>, seat: Seat) {
        if inner.waiters.sleeper == Some(seat) {
            self.ring(inner);
        }
        match seat {
            Seat::Request(at) if inner.waiters.followers.contains(&at) => {
                self.turns[at as usize].notify_one();
            }
            Seat::Room if inner.waiters.room > 0 => self.room.notify_all(),
            _ => (),
        }
    }

    /// Ends the leader's sleep.
    pub(crate) fn ring(&self, inner: &mut Inner<P>) {
        if inner.waiters.sleeper.is_some() && !inner.waiters.rung {
            inner.waiters.rung = true;
            // It fails only where the bell has been rung 2^64 - 2 times.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Ends the client for all threads.
    fn stop(&self, inner: &mut Inner<P>, error: &ClientError) -> ClientError {
        let why = error.to_string();
        inner.stopped = Some(why.clone());
        for &at in &inner.waiters.followers {
            self.turns[at as usize].notify_one();
        }
        self.room.notify_all();
        self.ring(inner);
        ClientError::Stopped { why }
    }

    /// Waits until `ready` gives something, which is asked with the lock held; `None` when the time is over.
    pub(crate) fn wait_until<T>(
        &self,
        seat: Seat,
        how: Wait,
        limit: Option<Duration>,
        mut ready: impl FnMut(&mut Inner<P>) -> Option<T>,
    ) -> Result<Option<T>, ClientError> {
        let mut waiting = Waiting::new(how, limit);
        let mut inner = self.lock()?;
        let for_request = usize::from(seat != Seat::Room);
        inner.waiters.requests += for_request;
        let (mut leads, mut polls) = (false, 0u32);
        loop {
            let mut outcome = Ok(ready(&mut inner));
            if let Ok(None) = outcome {
                outcome = self.turn(&mut inner).map(|()| ready(&mut inner));
            }
            if !matches!(outcome, Ok(None)) || waiting.is_over() {
                inner.waiters.led &= !leads;
                inner.waiters.requests -= for_request;
                self.pass_on(&mut inner);
                return outcome;
            }
            if !leads && !inner.waiters.led {
                (leads, inner.waiters.led) = (true, true);
            }
            inner = if leads || !waiting.sleeps() {
                polls = polls.wrapping_add(1);
                let lets_go = polls.is_multiple_of(BURST);
                self.lead(inner, seat, &mut waiting, lets_go)?
            } else {
                self.follow(inner, seat, &waiting)?
            };
        }
    }

    /// Wakes a follower to lead, where nobody does.
    fn pass_on(&self, inner: &mut Inner<P>) {
        match inner.waiters.followers.last() {
            _ if inner.waiters.led => (),
            Some(&at) => self.turns[at as usize].notify_one(),
            None if inner.waiters.room > 0 => self.room.notify_one(),
            None => (),
        }
    }

    /// Lets a moment pass between two polls.
    fn lead<'a>(
        &'a self,
        inner: Guard<'a, P>,
        seat: Seat,
        waiting: &mut Waiting,
        lets_go: bool,
    ) -> Result<Guard<'a, P>, ClientError> {
        match waiting.pause(self.backoff) {
            Pause::Spin if lets_go => self.relock(inner, false),
            Pause::Spin => {
                spin_loop();
                Ok(inner)
            }
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
        if std::mem::take(&mut inner.waiters.rung) {
            // It has been rung, so there is something to read.
            let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
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
        let turn = match seat {
            Seat::Request(at) => {
                inner.waiters.followers.push(at);
                &self.turns[at as usize]
            }
            Seat::Room => {
                inner.waiters.room += 1;
                &self.room
            }
        };
        let woken = turn.wait_timeout(inner, waiting.left(FOLLOW.max(self.backoff.sleep)));
        let (mut inner, _) = woken.map_err(|_| panicked())?;
        match seat {
            Seat::Request(at) => inner.waiters.followers.retain(|&other| other != at),
            Seat::Room => inner.waiters.room -= 1,
        }
        match &inner.stopped {
            Some(why) => Err(ClientError::Stopped { why: why.clone() }),
            None => Ok(inner),
        }
    }
}

fn panicked() -> ClientError {
    let why = "a thread has panicked in it".into();
    ClientError::Stopped { why }
}
