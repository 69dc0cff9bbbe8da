//! One worker's way to rows of another dataplane: a queue pair to READ by, given by the thread that connects, and given back to it.

use core::fmt;
use core::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::Arc;

use arrayvec::ArrayVec;
use crossbeam_queue::ArrayQueue;
use rowmill_verbs::{
    BATCH, CompletionQueue, Connection, EventChannel, Local, LocalKey, Operation, Piece, QueuePair,
    Remote, Signal, Slab, Status,
};

/// What a session's lanes know of it.
#[derive(Debug)]
pub(super) struct Session {
    /// Until when READs may be posted, by the workers' clock.
    pub(super) until_ns: AtomicU64,
    /// Nothing is to be read any more.
    pub(super) is_over: AtomicBool,
    /// The status of the first READ that failed.
    failed: ArrayQueue<Status>,
}

impl Default for Session {
    fn default() -> Session {
        Session {
            until_ns: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            failed: ArrayQueue::new(1),
        }
    }
}

impl Session {
    /// Why lanes have ended it.
    pub(super) fn why_over(&self) -> String {
        match self.failed.pop() {
            Some(status) => format!("a READ has failed: {status:?}"),
            None => "the lease was not renewed in time".into(),
        }
    }

    /// Whether READs may be posted.
    fn is_good(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns.load(Acquire) && !self.is_over.load(Acquire)
    }
}

/// Where rows of a table lie, as granted and checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) first: Remote,
    pub(super) rows: u64,
    pub(super) stride: u32,
}

/// A connection to READ by. Fields are dropped in order: the queue pair before what it uses.
pub(super) struct Link {
    pub(super) qp: QueuePair<u64>,
    pub(super) key: LocalKey,
    pub(super) slab: Slab,
    pub(super) completions: CompletionQueue,
    pub(super) connection: Connection,
    /// The id of the connection is on it; the session tells of its end.
    pub(super) _channel: EventChannel,
    pub(super) session: Arc<Session>,
    /// By the reader's number of a table; none where it was not granted.
    pub(super) tables: Box<[Option<Place>]>,
    /// A call or a READ has failed: the queue pair is done for.
    pub(super) has_failed: bool,
}

/// What goes between a worker and the thread that connects. A worker has one link at most, and takes another only after it has given that
/// back: so there are two on the way back at most, if that thread takes those before it gives another.
pub(super) struct Handover {
    pub(super) given: ArrayQueue<Link>,
    pub(super) returned: ArrayQueue<Link>,
}

impl Default for Handover {
    fn default() -> Handover {
        Handover {
            given: ArrayQueue::new(1),
            returned: ArrayQueue::new(2),
        }
    }
}

/// What a READ that is not posted yet is to bring.
#[derive(Clone, Copy)]
struct Ask {
    from: Remote,
    len: usize,
    token: u64,
}

/// One worker's half. What it reads lies in blocks of a slab that is registered for that alone; a block that a READ may write to is the queue
/// pair's until the READ has completed or the queue pair is destroyed.
pub struct ReadLane {
    handover: Arc<Handover>,
    link: Option<Link>,
    asked: ArrayVec<Ask, BATCH>,
}

impl fmt::Debug for ReadLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadLane")
            .field("is_connected", &self.link.is_some())
            .finish_non_exhaustive()
    }
}

impl ReadLane {
    pub(super) fn new(handover: Arc<Handover>) -> ReadLane {
        ReadLane {
            handover,
            link: None,
            asked: ArrayVec::new(),
        }
    }

    /// READs that can be asked for now; `None` where there is no connection whose lease is good, and once after one has ended:
    /// what was asked for before and has not come never will.
    pub fn room(&mut self, now_ns: u64) -> Option<usize> {
        if let Some(link) = &self.link
            && (link.has_failed || !link.session.is_good(now_ns))
        {
            link.session.is_over.store(true, Release);
            self.asked.clear();
            let link = self.link.take().expect("there is one");
            // Destroying it takes system calls: that is for the other thread.
            drop(self.handover.returned.push(link));
            return None;
        }
        if self.link.is_none() {
            self.link = self.handover.given.pop();
            let link = self.link.as_ref()?;
            if !link.session.is_good(now_ns) {
                return self.room(now_ns);
            }
        }
        let link = self.link.as_ref()?;
        // A slab has whole pages, and so may have more blocks than READs can be posted.
        let sends = u64::from(link.qp.capacity().sends) - link.qp.sends_outstanding();
        let room = link.slab.free().min(sends as usize);
        Some(room.min(self.asked.remaining_capacity()))
    }

    /// Whether rows of a table are granted, known by its place in what was wanted.
    pub fn has(&self, table: u32) -> bool {
        let place = |link: &Link| link.tables[table as usize].is_some();
        self.link.as_ref().is_some_and(place)
    }

    /// Asks for a row of a table that is granted. There is room.
    ///
    /// # Panics
    /// If there is not, or no such row.
    pub fn read(&mut self, table: u32, row: u32, token: u64) {
        let link = self.link.as_ref().expect("room was asked for");
        let place = link.tables[table as usize].expect("a table that is granted");
        assert!(u64::from(row) < place.rows, "a row that the table has");
        let offset = u64::from(row) * u64::from(place.stride);
        self.asked.push(Ask {
            from: Remote {
                address: place.first.address + offset,
                key: place.first.key,
            },
            len: place.stride as usize,
            token,
        });
    }

    /// Posts what was asked for with one doorbell, and hands out what has come: its token, and at least as many bytes as the row has.
    pub fn poll(&mut self, each: &mut dyn FnMut(u64, &[u8])) {
        let Some(link) = &mut self.link else {
            return;
        };
        if !self.asked.is_empty() && !link.has_failed {
            link.has_failed = link.post(&self.asked).is_err();
        }
        self.asked.clear();
        link.take_in(each);
    }
}

impl Link {
    /// Only the last READ is signalled: they complete in order, so those before it are done, too.
    fn post(&mut self, asked: &[Ask]) -> Result<(), ()> {
        let mut batch = self.qp.batch();
        for (at, ask) in asked.iter().enumerate() {
            let local = Local {
                block: self.slab.take().ok_or(())?,
                key: self.key,
                pieces: &[Piece::from(0..ask.len)],
                note: ask.token,
            };
            let signal = match at + 1 == asked.len() {
                true => Signal::Yes,
                false => Signal::No,
            };
            let posted = batch.post(Operation::Read(ask.from), local, signal);
            posted.map_err(drop)?;
        }
        batch.ring().map(drop).map_err(drop)
    }

    fn take_in(&mut self, each: &mut dyn FnMut(u64, &[u8])) {
        let Ok(done) = self.completions.poll() else {
            self.has_failed = true;
            return;
        };
        for done in done {
            if done.status() != Status::Success {
                // What it brought is not known; the queue pair is in the error state, and what comes now is flushed.
                self.has_failed = true;
                let _ = self.session.failed.push(done.status());
                return;
            }
            if let Ok(blocks) = self.qp.retire(done) {
                blocks.for_each(|(block, token)| each(token, block.as_slice()));
            }
        }
    }

    /// Whether its peer or its worker has ended it.
    pub(super) fn has_ended(channel: &EventChannel) -> bool {
        use rowmill_verbs::CmEventKind::{AddressChange, Established, TimewaitExit};
        while let Ok(Some(event)) = channel.take_event() {
            if !matches!(event.kind, Established | AddressChange | TimewaitExit) {
                return true;
            }
        }
        false
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.session.is_over.store(true, Relaxed);
        let _ = self.qp.fail();
        let _ = self.connection.disconnect();
    }
}
