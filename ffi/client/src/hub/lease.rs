//! Leases: results that are held, by any thread and for any time, and given back without the lock.

use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use rowmill_arena::{Region, Window};
use rowmill_port::{ClientPort, Process};

use crate::error::ClientError;
use crate::memory::Target;
use crate::schema::BoundSchema;
use crate::session::Session;

/// How often each result is held, and those that nobody holds any more.
pub(crate) struct Returns {
    process: Process,
    holders: Box<[AtomicUsize]>,
    /// As many as there are results, each at most once: it is never full.
    free: ArrayQueue<u32>,
}

/// A result: the right to read a range of memory that no request writes to while it is held.
///
/// It can be cloned, and be dropped by any thread: with the last clone the range goes back to where it came from, without a lock,
/// an allocation or a system call. It keeps its memory mapped, also when the client is gone.
pub struct Lease {
    returns: Arc<Returns>,
    number: u32,
    session: u64,
    /// None where it is not this side's to read.
    memory: Option<Arc<Region>>,
    offset: u64,
    bytes: u64,
}

impl Lease {
    /// Its size: what the answer can take at most.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its memory. Whoever keeps an address into it keeps the lease, too. Empty where it lies in memory that was registered by its
    /// address ([`Hub::register_memory`](crate::Hub::register_memory)).
    pub fn window(&self) -> Window<'_> {
        let Some(memory) = &self.memory else {
            return Window::over(&mut []);
        };
        let window = memory.window();
        let part = window.part(self.offset as usize, self.bytes as usize);
        part.expect("targets lie in their region")
    }

    /// Copies bytes out as they were placed, from `offset` on.
    ///
    /// # Errors
    /// [`ClientError::NotInResult`] where they don't all lie inside; [`ClientError::Forked`] in a child of the process, where
    /// it can't be told what the parent does with the memory.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ClientError> {
        self.check()?;
        let part = usize::try_from(offset).ok();
        let part = part.and_then(|offset| self.window().part(offset, bytes.len()));
        let (what, limit) = ("a range of bytes", self.window().len() as u64);
        let part = part.ok_or(ClientError::NotInResult { what, limit })?;
        part.read(0, bytes);
        Ok(())
    }

    /// Copies a vector out: that of a bag, or of an id where the feature is not pooled. `out` has the feature's dim; elements
    /// of 2 bytes are widened.
    ///
    /// # Errors
    /// [`ClientError::OtherClient`] for another client's schema; [`ClientError::NotInResult`] where there is no such feature
    /// or vector, or `out` has another length than its vectors; [`ClientError::Forked`].
    pub fn read_vector(
        &self,
        schema: &BoundSchema,
        feature: usize,
        vector: u32,
        out: &mut [f32],
    ) -> Result<(), ClientError> {
        self.check()?;
        if schema.session != self.session {
            return Err(ClientError::OtherClient { what: "schema" });
        }
        let absent = |what, limit| Err(ClientError::NotInResult { what, limit });
        if feature >= schema.features() {
            return absent("a feature of that number", schema.features() as u64);
        }
        if out.len() != schema.dim(feature) {
            let what = "a vector of as many elements";
            return absent(what, schema.dim(feature) as u64);
        }
        let end = schema.vector_end(feature, vector);
        let window = self.window();
        if end.is_none_or(|end| end > window.len() as u64) {
            return absent("a vector of that number", window.len() as u64);
        }
        schema.read_vector(feature, vector, out, |at, bytes| {
            window.read(at as usize, bytes);
        });
        Ok(())
    }

    fn check(&self) -> Result<(), ClientError> {
        match self.returns.process.is_this() {
            true => Ok(()),
            false => Err(ClientError::Forked),
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lease { offset, bytes, .. } = self;
        write!(f, "Lease({bytes} bytes at {offset} of their region)")
    }
}

impl Clone for Lease {
    fn clone(&self) -> Lease {
        // As with Arc: whoever clones holds it, so the count can't fall to nothing meanwhile.
        self.returns.holders[self.number as usize].fetch_add(1, Ordering::Relaxed);
        Lease {
            returns: Arc::clone(&self.returns),
            memory: self.memory.clone(),
            ..*self
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A child's copy of the queue may be in the middle of another thread's push.
        if !self.returns.process.is_this() {
            return;
        }
        let holders = &self.returns.holders[self.number as usize];
        if holders.fetch_sub(1, Ordering::Release) == 1 {
            // All that other holders read, they read before the range is given to somebody else.
            fence(Ordering::Acquire);
            let _ = self.returns.free.push(self.number);
        }
    }
}

/// The results that can be held at a time, each with a number.
pub(crate) struct Leases {
    returns: Arc<Returns>,
    /// Those that are held, by number.
    targets: Vec<Option<Target>>,
    /// Numbers of neither requests in flight nor held results.
    free: Vec<u32>,
}

impl Leases {
    pub(crate) fn new(process: Process, most: u32) -> Leases {
        let returns = Returns {
            process,
            holders: (0..most).map(|_| AtomicUsize::new(0)).collect(),
            free: ArrayQueue::new(most as usize),
        };
        Leases {
            returns: Arc::new(returns),
            targets: (0..most).map(|_| None).collect(),
            free: (0..most).rev().collect(),
        }
    }

    /// Results in flight or held.
    pub(crate) fn taken(&self) -> usize {
        self.targets.len() - self.free.len()
    }

    /// A number for a result that a request is to bring.
    pub(crate) fn reserve(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Gives a number back that no lease was made of.
    pub(crate) fn give(&mut self, number: u32) {
        self.free.push(number);
    }

    /// Makes the first lease of a reserved number.
    pub(crate) fn lease(
        &mut self,
        number: u32,
        target: Target,
        memory: Option<Arc<Region>>,
    ) -> Lease {
        let (session, offset, bytes) = (target.session, target.offset(), target.bytes());
        self.targets[number as usize] = Some(target);
        self.returns.holders[number as usize].store(1, Ordering::Relaxed);
        Lease {
            returns: Arc::clone(&self.returns),
            number,
            session,
            memory,
            offset,
            bytes,
        }
    }

    /// Takes back what nobody holds any more.
    pub(crate) fn take_in<P: ClientPort>(&mut self, session: &mut Session<P>) {
        while let Some(number) = self.returns.free.pop() {
            let target = self.targets[number as usize].take();
            session.release(target.expect("what was held has its target"));
            self.free.push(number);
        }
    }
}
