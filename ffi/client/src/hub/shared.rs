//! What threads share: the lock, and what it guards.

use core::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, LockResult, Mutex, MutexGuard, TryLockError};
use std::thread::{self, JoinHandle};

use crossbeam_queue::ArrayQueue;
use rowmill_port::{ClientPort, ParentFd, PortError, Process, WakeFds};
use rustix::event::{EventfdFlags, eventfd};

use super::bell::Bells;
use super::fork::InParent;
use super::lease::Leases;
use super::pool::Pool;
use super::table::Table;
use super::waiters::{Seat, Turns, Waiters};
use crate::error::ClientError;
use crate::options::Backoff;
use crate::session::Session;

/// What the lock guards.
pub(crate) struct Inner<P: ClientPort> {
    pub(crate) session: InParent<Session<P>>,
    pub(crate) table: Table,
    pub(crate) leases: Leases,
    pub(crate) pool: Pool,
    pub(crate) bells: Bells,
    pub(super) waiters: Waiters,
    /// The thread that looks for answers; see `progress.rs`.
    pub(super) progress: Option<InParent<JoinHandle<()>>>,
    /// Whether it is parked.
    pub(super) parked: bool,
    /// How often an answer has come or been taken: whether it is worth while to try for room again.
    pub(crate) changes: u64,
    /// Why the client can't go on.
    stopped: Option<String>,
    /// Whether its owner has closed it, or is gone.
    pub(crate) ended: bool,
}

/// A session that threads share.
pub(crate) struct Shared<P: ClientPort> {
    inner: Mutex<Inner<P>>,
    /// Threads that want the lock, which a leader that polls lets go first.
    pub(super) wanting: AtomicU32,
    pub(super) turns: Turns,
    /// Ends the leader's sleep.
    pub(super) alarm: OwnedFd,
    pub(super) fds: WakeFds<ParentFd>,
    pub(super) backoff: Backoff,
    pub(crate) process: Process,
    /// Whether the connection is known to have ended, for who does not wait for the lock.
    over: AtomicBool,
    /// Requests that nobody waits for any more, each at most once: never full.
    pub(crate) dropped: ArrayQueue<u32>,
}

pub(crate) type Guard<'a, P> = MutexGuard<'a, Inner<P>>;

impl<P: ClientPort> Inner<P> {
    /// Whether room will come without anybody's doing: a request in flight ends, or a thread takes the answer that it waits for.
    pub(crate) fn can_wait(&self) -> bool {
        self.session.can_wait() || self.waiters.requests > 0
    }

    /// Whether there is something to do for the thread that looks for answers.
    pub(super) fn has_progress(&self) -> bool {
        self.table.unattended() > 0 && !self.ended
    }

    pub(super) fn check(&self) -> Result<(), ClientError> {
        match &self.stopped {
            Some(why) => Err(ClientError::Stopped { why: why.clone() }),
            None => Ok(()),
        }
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
        let alarm = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let alarm = alarm.map_err(|errno| failed(errno.into()))?;
        let fds = session.port.wake_fds().try_to_owned()?;
        let fds = fds.with(alarm.try_clone().map_err(failed)?)?;
        let most = session.flight.most_requests();
        let backoff = session.options.backoff;
        let inner = Inner {
            session: InParent::new(process, session),
            table: Table::new(most),
            leases: Leases::new(process, results),
            pool,
            bells: Bells::new(),
            waiters: Waiters::new(most),
            progress: None,
            parked: false,
            changes: 0,
            stopped: None,
            ended: false,
        };
        Ok(Shared {
            inner: Mutex::new(inner),
            wanting: AtomicU32::new(0),
            turns: Turns::new(most),
            alarm,
            fds,
            backoff,
            process,
            over: AtomicBool::new(false),
            dropped: ArrayQueue::new(most),
        })
    }

    /// The lock, whatever has become of the client.
    pub(super) fn acquire(&self) -> LockResult<Guard<'_, P>> {
        match self.inner.try_lock() {
            Ok(inner) => return Ok(inner),
            Err(TryLockError::Poisoned(poisoned)) => return Err(poisoned),
            Err(TryLockError::WouldBlock) => (),
        }
        self.wanting.fetch_add(1, Ordering::Relaxed);
        let inner = self.inner.lock();
        self.wanting.fetch_sub(1, Ordering::Relaxed);
        inner
    }

    /// The lock, in the process that has connected.
    pub(crate) fn lock(&self) -> Result<Guard<'_, P>, ClientError> {
        if !self.process.is_this() {
            return Err(ClientError::Forked);
        }
        let inner = self.acquire().map_err(|_| panicked())?;
        inner.check()?;
        Ok(inner)
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
        // The look before is cheaper than a pop of nothing, and this is done at each poll.
        while !self.dropped.is_empty()
            && let Some(at) = self.dropped.pop()
        {
            if let Some(ended) = inner.table.abandon(at) {
                inner.session.release(ended.answer.target);
                inner.leases.give(ended.lease);
                self.changed(inner);
            }
        }
        while let Some(ticket) = inner.session.flight.take_news() {
            if let Some(watcher) = inner.table.watcher(ticket) {
                let each = |slice| watcher.slice(slice);
                inner.session.flight.report_slices(ticket, each);
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
        if !inner.has_progress() {
            self.wake(inner, Seat::Progress);
        }
        if inner.session.closed {
            self.over.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the connection is known to have ended, or is another process'.
    pub(super) fn is_closed(&self) -> bool {
        !self.process.is_this() || self.inner.is_poisoned() || self.over.load(Ordering::Relaxed)
    }

    /// There may be room now.
    pub(crate) fn changed(&self, inner: &mut Inner<P>) {
        inner.changes += 1;
        self.wake(inner, Seat::Room);
    }

    /// Ends the client for all threads.
    pub(super) fn stop(&self, inner: &mut Inner<P>, error: &ClientError) -> ClientError {
        let why = error.to_string();
        inner.stopped = Some(why.clone());
        self.over.store(true, Ordering::Relaxed);
        inner.table.end_all();
        self.wake_all(inner);
        ClientError::Stopped { why }
    }

    /// Ends the connection. What was in flight is answered by that.
    pub(crate) fn close(&self) {
        if !self.process.is_this() {
            return;
        }
        match self.acquire() {
            Ok(mut inner) => {
                inner.ended = true;
                inner.session.close();
                self.hand_out(&mut inner);
                self.changed(&mut inner);
                self.wake_all(&mut inner);
            }
            // A thread has panicked in the midst of something, so no more is done than has to be.
            Err(poisoned) => {
                let mut inner = poisoned.into_inner();
                inner.ended = true;
                inner.session.port.close();
                self.wake_all(&mut inner);
            }
        }
    }
}

pub(super) fn panicked() -> ClientError {
    let why = "a thread has panicked in it".into();
    ClientError::Stopped { why }
}

/// What users hold of it. With the last one the connection ends, and the thread that looks for answers.
pub(crate) struct Owner<P: ClientPort>(Arc<Shared<P>>);

impl<P: ClientPort> Owner<P> {
    pub(crate) fn new(shared: Shared<P>) -> Owner<P> {
        Owner(Arc::new(shared))
    }

    pub(super) fn shared(&self) -> &Arc<Shared<P>> {
        &self.0
    }
}

impl<P: ClientPort> Deref for Owner<P> {
    type Target = Shared<P>;

    fn deref(&self) -> &Shared<P> {
        &self.0
    }
}

impl<P: ClientPort> Drop for Owner<P> {
    fn drop(&mut self) {
        if !self.0.process.is_this() {
            return;
        }
        let inner = self.0.acquire();
        let mut inner = inner.unwrap_or_else(std::sync::PoisonError::into_inner);
        let progress = inner.progress.take();
        drop(inner);
        if let Some(progress) = progress {
            self.0.close();
            let thread = progress.into_inner();
            // It may be dropped by what the thread itself calls.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join(); // It has no result.
            }
        }
    }
}
