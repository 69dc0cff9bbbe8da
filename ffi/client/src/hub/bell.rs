//! Bells: they tell an event loop, by a descriptor, that requests have been answered.

use core::fmt;
use core::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use crossbeam_queue::ArrayQueue;
use rowmill_port::{ParentFd, PortError, Process};
use rustix::event::{EventfdFlags, eventfd};

use crate::error::ClientError;
use crate::ports::AnyPort;
use crate::session::within;

/// Most bells of a hub. One serves any number of requests, so an event loop needs one.
pub(crate) const BELLS_MAX: usize = 16;

/// An eventfd that can be read while a request that it was given with [`Pending::ring`](crate::Pending::ring) has been answered,
/// and was not heard. Made by [`Hub::bell`](crate::Hub::bell).
///
/// Clones are the same bell; its descriptor is closed with the last of them. Requests that it was given go on without it. It keeps
/// no connection open, and is rung for all its requests when theirs ends. In a forked child it is never rung.
pub struct Bell<P = AnyPort> {
    pub(crate) chime: Arc<Chime>,
    port: PhantomData<fn() -> P>,
}

/// What a bell is made of.
pub(crate) struct Chime {
    process: Process,
    /// Whose requests it is rung for.
    pub(crate) session: u64,
    fd: ParentFd,
    /// Whether it was rung since it was last heard.
    rung: AtomicBool,
    /// How often it was rung, less what was read of that: while it is 0 there is nothing to read.
    unread: AtomicU64,
    /// Of requests that were answered and not heard. Never full: `owed` is at most its capacity.
    tokens: ArrayQueue<u64>,
    /// Requests that it was given and were not heard yet.
    owed: AtomicUsize,
}

impl<P> Bell<P> {
    /// A bell for at most `most` requests that were not heard.
    pub(crate) fn new(process: Process, session: u64, most: usize) -> Result<Bell<P>, ClientError> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let fd = fd.map_err(|errno| PortError::System {
            call: "making an eventfd",
            source: errno.into(),
        })?;
        let chime = Chime {
            process,
            session,
            fd: ParentFd::new(fd)?,
            rung: AtomicBool::new(false),
            unread: AtomicU64::new(0),
            tokens: ArrayQueue::new(most),
            owed: AtomicUsize::new(0),
        };
        Ok(Bell {
            chime: Arc::new(chime),
            port: PhantomData,
        })
    }

    /// Takes the tokens of requests that were answered since the last call, in the order of their answers, and puts them behind those
    /// in `tokens`. The descriptor can't be read any more, until the next answer. Never blocks, and makes no system call while it has not
    /// been rung. It may give none: the descriptor may have become ready just before the call that took the token.
    pub fn heard(&self, tokens: &mut Vec<u64>) {
        let chime = &*self.chime;
        if !chime.process.is_this() {
            return;
        }
        // In this order: what is rung after the store can be read again, and what was before is taken below. There is
        // nothing to read where another thread was first.
        let mut count = [0u8; 8];
        if chime.unread.load(Ordering::SeqCst) > 0
            && rustix::io::read(&chime.fd, &mut count).is_ok()
        {
            let read = u64::from_ne_bytes(count);
            chime.unread.fetch_sub(read, Ordering::SeqCst);
        }
        chime.rung.store(false, Ordering::SeqCst);
        while let Some(token) = chime.tokens.pop() {
            chime.owed.fetch_sub(1, Ordering::Relaxed);
            tokens.push(token);
        }
    }
}

impl<P> Clone for Bell<P> {
    fn clone(&self) -> Bell<P> {
        Bell {
            chime: Arc::clone(&self.chime),
            port: PhantomData,
        }
    }
}

impl<P> AsFd for Bell<P> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.chime.fd.as_fd()
    }
}

impl<P> fmt::Debug for Bell<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Bell({} not heard)",
            self.chime.owed.load(Ordering::Relaxed)
        )
    }
}

/// That a bell is to be rung for a request.
pub(crate) struct Ring {
    chime: Weak<Chime>,
    token: u64,
}

impl Ring {
    /// Counts a request to the bell. Called with the lock held, so that the bound is kept.
    pub(crate) fn new(chime: &Arc<Chime>, token: u64) -> Result<Ring, ClientError> {
        let (owed, most) = (chime.owed.load(Ordering::Relaxed), chime.tokens.capacity());
        let advice = "call `heard`, which takes those that were answered";
        let what = "requests of a bell that were not heard";
        within(what, owed as u64 + 1, most as u64, advice)?;
        chime.owed.fetch_add(1, Ordering::Relaxed);
        let chime = Arc::downgrade(chime);
        Ok(Ring { chime, token })
    }

    /// The request has been answered.
    pub(crate) fn ring(self) {
        let Some(chime) = self.chime.upgrade() else {
            return;
        };
        let pushed = chime.tokens.push(self.token);
        debug_assert!(pushed.is_ok(), "owed requests are bounded");
        if !chime.rung.swap(true, Ordering::SeqCst) {
            // Before it can be read.
            chime.unread.fetch_add(1, Ordering::SeqCst);
            // It fails only where it has been rung 2^64 - 2 times.
            let _ = rustix::io::write(&chime.fd, &1u64.to_ne_bytes());
        }
    }

    /// Nobody wants to know any more.
    pub(crate) fn give_up(self) {
        if let Some(chime) = self.chime.upgrade() {
            chime.owed.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The bells of a hub that are not gone.
pub(crate) struct Bells(Vec<Weak<Chime>>);

impl Bells {
    pub(crate) fn new() -> Bells {
        Bells(Vec::with_capacity(BELLS_MAX))
    }

    /// Makes a bell, if there are not too many.
    pub(crate) fn add<P>(
        &mut self,
        process: Process,
        session: u64,
        most: usize,
    ) -> Result<Bell<P>, ClientError> {
        self.0.retain(|bell| bell.strong_count() > 0);
        let advice = "one bell serves any number of requests; drop those that are not needed";
        let (given, limit) = (self.0.len() as u64 + 1, BELLS_MAX as u64);
        within("bells of a client", given, limit, advice)?;
        let bell = Bell::new(process, session, most)?;
        self.0.push(Arc::downgrade(&bell.chime));
        Ok(bell)
    }
}
