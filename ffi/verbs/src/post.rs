//! Posting: lists of work requests, filled one after the other and posted with one doorbell.

use core::mem;
use core::ops::Range;
use std::fmt;

use crate::error::Error;
use crate::memory::Remote;
use crate::queue_pair::{LocalKey, QueuePair};
use crate::slab::Block;
use crate::sys;
use crate::work_id::{Kind, WorkId};

/// Most requests of a list: a doorbell is cheap a sixteenth, and the list stays in the nearest cache (2 KiB).
pub const BATCH: usize = 16;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Places bytes in the peer's memory; the peer is not told.
    Write(Remote),
    /// Places bytes, then completes one of the peer's receives, which gets the immediate.
    WriteImmediate(Remote, u32),
    /// Fetches bytes of the peer's memory.
    Read(Remote),
    /// Sends a message into the memory of one of the peer's receives.
    Send,
}

/// Whether a request's own completion is wanted. A failure completes either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// It is, and it ends the wait of all requests before it.
    Yes,
    /// Not unless too many before it were not either: at least each 64th request, and each half of the queue, is
    /// signalled, since without completions a queue stays full.
    No,
}

/// Some bytes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where they begin in the block.
    pub offset: usize,
    /// How many there are.
    pub len: usize,
}

impl From<Range<usize>> for Piece {
    fn from(range: Range<usize>) -> Piece {
        Piece {
            offset: range.start,
            len: range.end.saturating_sub(range.start),
        }
    }
}

/// Local memory for a request: a block that is given away until the device is done with it.
pub struct Local<'p, T> {
    /// The block.
    pub block: Block,
    /// The registration of its slab that the queue pair holds.
    pub key: LocalKey,
    /// The bytes of the block that count, in the order in which they follow one another at the other side.
    pub pieces: &'p [Piece],
    /// What comes back with the block.
    pub note: T,
}

impl<T> fmt::Debug for Local<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?}", self.pieces, self.block)
    }
}

/// There is no room in the list or in the send queue; what was to be posted is given back.
#[derive(Debug)]
pub struct Full<P>(pub P);

/// A list of requests to a queue pair. Without [`ring`](Batch::ring) nothing of it is posted, and blocks that it was
/// given go back to their slabs.
///
/// Bytes that go inline are copied, so that the buffer can be used again at once, even before the doorbell:
///
/// ```
/// use rowmill_verbs::*;
/// fn send(qp: &mut QueuePair<u8>, to: Remote) -> Result<(), Error> {
///     let mut buffer = [1; 8];
///     let mut batch = qp.batch();
///     batch.post_inline(Operation::Write(to), &buffer, Signal::No).expect("room");
///     buffer[0] = 2;
///     batch.ring()?;
///     Ok(())
/// }
/// ```
#[must_use = "nothing is posted before `ring`"]
pub struct Batch<'q, T> {
    qp: &'q mut QueuePair<T>,
    count: usize,
    // What `since_signal` of the queue pair was before the list.
    since_signal: u32,
}

impl<'q, T> Batch<'q, T> {
    pub(crate) fn new(qp: &'q mut QueuePair<T>) -> Batch<'q, T> {
        let since_signal = qp.since_signal;
        Batch {
            qp,
            count: 0,
            since_signal,
        }
    }

    /// Requests that can be added now.
    pub fn room(&self) -> usize {
        let queue = usize::try_from(self.qp.sends.room()).unwrap_or(usize::MAX);
        (BATCH - self.count).min(queue)
    }

    /// Requests in the list.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes that can be posted inline.
    pub fn inline_bytes(&self) -> usize {
        self.qp.inline_bytes
    }

    /// Adds a request over pieces of a block, which is the queue pair's until it comes back by
    /// [`QueuePair::retire`].
    ///
    /// # Errors
    /// [`Full`], with what was to be posted.
    ///
    /// # Panics
    /// If a piece lies outside the block, if there are more pieces than were asked for when the queue pair was made, or
    /// more bytes than a message can have, if the key is not of this queue pair and slab, or while another block is open.
    #[inline]
    pub fn post<'p>(
        &mut self,
        operation: Operation,
        local: Local<'p, T>,
        signal: Signal,
    ) -> Result<(), Full<Local<'p, T>>> {
        assert!(self.qp.open.is_none(), "blocks come back in order");
        if self.room() == 0 {
            return Err(Full(local));
        }
        let key = self.qp.local_key(local.key, &local.block);
        let list = &mut self.qp.list;
        let bytes = list.set_pieces(self.count, &local.block, key, local.pieces);
        assert!(bytes <= self.qp.message_bytes, "bytes of one message");
        let sequence = self.qp.sends.next;
        self.add(operation, 0, signal);
        let payload = (local.block, local.note);
        self.qp.sends.flight.push(sequence..=sequence, payload);
        Ok(())
    }

    /// Adds a request whose bytes are copied into it; none at all is fine.
    ///
    /// # Errors
    /// [`Full`].
    ///
    /// # Panics
    /// If there are more bytes than [`inline_bytes`](Batch::inline_bytes), or if it is a READ.
    #[inline]
    pub fn post_inline(
        &mut self,
        operation: Operation,
        bytes: &[u8],
        signal: Signal,
    ) -> Result<(), Full<()>> {
        assert!(
            bytes.len() <= self.qp.inline_bytes,
            "few enough bytes for inline"
        );
        assert!(
            !matches!(operation, Operation::Read(_)),
            "a READ needs memory"
        );
        if self.room() == 0 {
            return Err(Full(()));
        }
        self.qp.list.set_inline(self.count, bytes);
        let flags = if bytes.is_empty() {
            0
        } else {
            sys::ibv_send_flags::IBV_SEND_INLINE.0
        };
        self.add(operation, flags, signal);
        Ok(())
    }

    /// Whether a block is open.
    pub fn is_open(&self) -> bool {
        self.qp.open.is_some()
    }

    /// Opens a block for several requests over parts of it, in this batch and in those that follow. It is the
    /// queue pair's until all of them are done.
    ///
    /// # Panics
    /// If another block is open, or the key is not of this queue pair and slab.
    pub fn open(&mut self, block: Block, key: LocalKey, note: T) {
        assert!(self.qp.open.is_none(), "one block at a time");
        let key = self.qp.local_key(key, &block);
        self.qp.open = Some(Open {
            block,
            key,
            note,
            requests: None,
        });
    }

    /// Adds a request over pieces of the block that is open.
    ///
    /// # Errors
    /// [`Full`]; the block stays open.
    ///
    /// # Panics
    /// If no block is open; otherwise like [`post`](Batch::post).
    #[inline]
    pub fn post_open(
        &mut self,
        operation: Operation,
        pieces: &[Piece],
        signal: Signal,
    ) -> Result<(), Full<()>> {
        if self.room() == 0 {
            return Err(Full(()));
        }
        let number = self.qp.sends.next;
        let open = self.qp.open.as_mut().expect("an open block");
        let list = &mut self.qp.list;
        let bytes = list.set_pieces(self.count, &open.block, open.key, pieces);
        assert!(bytes <= self.qp.message_bytes, "bytes of one message");
        open.requests = match open.requests {
            Some((first, _)) => Some((first, number)),
            None => Some((number, number)),
        };
        self.add(operation, 0, signal);
        Ok(())
    }

    /// Closes the open block: it comes back when the last request over it is done. If that has happened, or there was
    /// no request, it comes back at once.
    ///
    /// # Panics
    /// If no block is open.
    #[must_use = "the block may come back at once"]
    pub fn close(&mut self) -> Option<(Block, T)> {
        let open = self.qp.open.take().expect("an open block");
        let sends = &mut self.qp.sends;
        match open.requests {
            Some((first, last)) if last >= sends.done => {
                sends.flight.push(first..=last, (open.block, open.note));
                None
            }
            _ => Some((open.block, open.note)),
        }
    }

    #[inline]
    fn add(&mut self, operation: Operation, flags: u32, signal: Signal) {
        let qp = &mut *self.qp;
        qp.since_signal += 1;
        let signalled = signal == Signal::Yes || qp.since_signal >= qp.signal_every;
        let mut flags = flags;
        if signalled {
            qp.since_signal = 0;
            flags |= sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        let id = WorkId::new(Kind::Send, qp.epoch, qp.connection, qp.sends.next);
        qp.list.set(self.count, id, operation, flags);
        qp.sends.next += 1;
        self.count += 1;
    }

    /// Posts the list with one doorbell; how many requests that were. An empty list rings none.
    ///
    /// # Errors
    /// A failed call. Requests before the one that failed are posted; blocks of the others go back to their slabs.
    /// The queue pair is to be failed then, since its requests are no longer what was meant.
    #[inline]
    pub fn ring(mut self) -> Result<usize, Error> {
        let count = mem::take(&mut self.count);
        if count == 0 {
            return Ok(0);
        }
        let (posted, answer) = self.qp.post_list(count);
        if posted < count {
            self.count = count - posted;
            self.take_back();
        }
        answer.map(|()| count)
    }

    /// Forgets the requests of the list that were not posted, and lets go of their blocks.
    fn take_back(&mut self) {
        let count = mem::take(&mut self.count) as u64;
        if count == 0 {
            return;
        }
        let sends = &mut self.qp.sends;
        sends.next -= count;
        while sends.flight.take_back(sends.next).is_some() {}
        if let Some(open) = &mut self.qp.open {
            open.take_back(sends.next);
        }
        self.qp.since_signal = self.since_signal;
    }
}

impl<T> Drop for Batch<'_, T> {
    fn drop(&mut self) {
        self.take_back();
    }
}

impl<T> fmt::Debug for Batch<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({} requests for {:?})", self.count, self.qp)
    }
}

/// A block that requests are being made over.
pub(crate) struct Open<T> {
    pub(crate) block: Block,
    key: u32,
    pub(crate) note: T,
    /// The numbers of the first and the last request over it.
    requests: Option<(u64, u64)>,
}

impl<T> Open<T> {
    /// Requests from `from` on were not posted.
    fn take_back(&mut self, from: u64) {
        self.requests = match self.requests {
            Some((first, last)) if first < from => Some((first, last.min(from - 1))),
            _ => None,
        };
    }
}
