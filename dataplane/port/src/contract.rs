//! The traits and values of the port contract.

use core::any::Any;
use core::fmt;
use core::time::Duration;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rowmill_arena::{Region, Staging, Strip, Window};
use rowmill_wire::control::{TableEntry, Welcome};
use rowmill_wire::limits::{MAX_FEATURES, SLOT_BYTES};
use rowmill_wire::{Completion, Refusal, Schema, Status};

use crate::rest::{Rest, WakeFds};

/// A connection's number within one dataplane: an index below the configured maximum, used again
/// only after every worker has acknowledged the end of its last holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u32);

/// A region's number within its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(pub u32);

/// Something that happened on a worker's half of a port.
///
/// The next call of [`ServerPort::poll`] acknowledges the event given before: by then the worker
/// holds nothing of a connection or region that has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client connected and was granted `credits` slots on this lane.
    Attached {
        /// Its number.
        conn: ConnId,
        /// Slots it may have in flight here.
        credits: u16,
    },
    /// A client registered a region.
    Region {
        /// Whose.
        conn: ConnId,
        /// Its number.
        region: RegionId,
        /// Its size in bytes.
        len: u64,
    },
    /// A region is to be given up; it is unmapped once every worker has acknowledged.
    RegionGone {
        /// Whose.
        conn: ConnId,
        /// Its number.
        region: RegionId,
    },
    /// A frame arrived and was copied to the buffer given to `poll`.
    Request {
        /// From whom.
        conn: ConnId,
        /// The slot it came in, below the granted credits.
        slot: u16,
        /// Its length in bytes.
        len: usize,
    },
    /// What [`ServerPort::fetch`] was asked for is there, or can't be had.
    Fetched {
        /// Whose.
        conn: ConnId,
        /// For the request in which slot.
        slot: u16,
        /// Whether it can be read now.
        outcome: Result<(), RegionError>,
    },
    /// The client wants the request in `slot` ended early.
    Cancel {
        /// Who.
        conn: ConnId,
        /// Which.
        slot: u16,
    },
    /// The client is gone, or broke the protocol and was cut off.
    Detached {
        /// Who.
        conn: ConnId,
    },
}

/// Why a region can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionError {
    /// No region of that number is registered.
    Unknown,
    /// It was registered for something else: results are to go where only request data are read, or the other way round.
    Forbidden,
    /// The range leaves the region.
    OutOfBounds,
    /// Its memory was taken away.
    Lost,
}

/// Bytes of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The region.
    pub region: RegionId,
    /// Its first byte that is meant.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
}

/// Whether what was asked for can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// At once.
    Ready,
    /// After [`Event::Fetched`].
    Coming,
}

/// Why there is no room for data or results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoomError {
    /// The region can't be used.
    Region(RegionError),
    /// All room is taken, or as much of it as this client may have. Some will be free later, without the worker's doing
    /// more for this client; no client can keep all of it.
    Later,
}

impl From<RegionError> for RoomError {
    fn from(error: RegionError) -> RoomError {
        RoomError::Region(error)
    }
}

/// How a worker waits when it finds nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Come back at once (a pause instruction).
    Spin,
    /// Let another thread run first.
    Yield,
    /// Sleep until a client submits, the waker is used, or the time has passed (`None`: no limit).
    Sleep(Option<Duration>),
}

/// Wakes one worker's half of a port out of [`Idle::Sleep`], from any thread.
pub trait Waker: Send + Sync {
    /// Ends the current or the next sleep.
    fn wake(&self);
}

/// Most extents of one fetch: lengths, ids and weights of each feature.
pub const MAX_EXTENTS: usize = 3 * MAX_FEATURES;

/// One worker's half of a port. Nothing in it blocks but [`ServerPort::idle`], and nothing
/// allocates, locks or makes a system call while the clients poll, but for the one that tells the
/// control thread that the worker has let go of a region or connection, or wants one cut off.
pub trait ServerPort {
    /// The next event; a request's frame is copied to `frame`. Acknowledges the event before.
    /// Fair between connections: each gets its turn before any gets a second one.
    fn poll(&mut self, frame: &mut [u8; SLOT_BYTES]) -> Option<Event>;

    /// Whether request data have to be fetched before they are read. Where not, [`ServerPort::fetch`] says
    /// [`Fetch::Ready`] to anything.
    fn fetches(&self) -> bool;

    /// Makes these bytes readable for the request in `slot`, which has nothing fetched now. There are 1 to
    /// [`MAX_EXTENTS`], none empty; they may overlap, and lie anywhere: more bytes than a port has room for at all are
    /// [`RegionError::OutOfBounds`]. A port that fetches never says [`Fetch::Ready`].
    ///
    /// # Errors
    /// As [`RoomError`] says. Nothing is held then.
    fn fetch(&mut self, conn: ConnId, slot: u16, extents: &[Extent]) -> Result<Fetch, RoomError>;

    /// Copies request data out of a region, once; where [`ServerPort::fetches`], of what was fetched for
    /// the request in `slot`.
    ///
    /// # Errors
    /// As [`RegionError`] says; `Lost` also where the memory vanished while it was copied.
    fn read(
        &mut self,
        conn: ConnId,
        slot: u16,
        region: RegionId,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), RegionError>;

    /// Gives back what was fetched for a request, or is coming; no [`Event::Fetched`] follows. Room that a device may still
    /// write to is free only when it does not any more.
    fn release(&mut self, conn: ConnId, slot: u16);

    /// Whether results can go to these bytes.
    ///
    /// # Errors
    /// As [`RegionError`] says.
    fn check(
        &self,
        conn: ConnId,
        region: RegionId,
        offset: u64,
        len: u64,
    ) -> Result<(), RegionError>;

    /// Most bytes of strips that are staged together where they are packed: at least 64 KiB.
    fn stage_bytes(&self) -> u64;

    /// Keeps packed strips staged for as long as a request waits for rows of theirs, if there is room for that: then they take nothing from what
    /// others stage. They are placed or given back as all others are. Where none is packed nobody asks.
    fn keep(&mut self, conn: ConnId, staging: &Staging) -> bool;

    /// Where results for these strips of the region are stored until they are placed: the region's own
    /// memory where the port has it, else memory of the worker's, from which the port sends them. It has
    /// to be given to [`ServerPort::place`] or [`ServerPort::unstage`] before the worker acknowledges the
    /// end of the region or connection.
    ///
    /// # Errors
    /// As [`RoomError`] says; `OutOfBounds` also for strips that are none.
    fn stage(
        &mut self,
        conn: ConnId,
        region: RegionId,
        strips: &[Strip],
    ) -> Result<Staging, RoomError>;

    /// The memory of staging.
    ///
    /// # Errors
    /// As [`RegionError`] says.
    fn window(
        &mut self,
        conn: ConnId,
        region: RegionId,
        staging: &Staging,
    ) -> Result<Window<'_>, RegionError>;

    /// Places what is stored in staging: the bytes of the strips for which it was given, and no others, before
    /// what the next [`ServerPort::complete`] announces. It never waits, however many pieces there are; what is still on its
    /// way when the worker acknowledges the end of the region is for the port to wait for.
    ///
    /// # Errors
    /// As [`RegionError`] says; `Lost` where what was stored went nowhere.
    fn place(
        &mut self,
        conn: ConnId,
        region: RegionId,
        staging: Staging,
        strips: &[Strip],
    ) -> Result<(), RegionError>;

    /// Gives staging back with nothing placed.
    fn unstage(&mut self, conn: ConnId, region: RegionId, staging: Staging);

    /// Announces that what this request had to place is placed. Never blocks on the client.
    fn complete(&mut self, conn: ConnId, record: &Completion);

    /// Cuts a connection off; [`Event::Detached`] follows.
    fn close(&mut self, conn: ConnId, why: Status);

    /// Doorbells rung so far: lists of work requests that were given to a device. None where there is no device.
    fn doorbells(&self) -> u64 {
        0
    }

    /// Waits. Returns early for any reason.
    fn idle(&mut self, how: Idle);

    /// What ends this half's sleep, for other threads that have something for the worker.
    fn waker(&self) -> Arc<dyn Waker>;
}

/// What a port's control thread asks of the program: the answers to control messages.
pub trait Service: Send + Sync {
    /// What to grant a client. The port fills in `credits` (at most the given ones), `completions`,
    /// the split rule's `lanes`, and `max_region`.
    ///
    /// # Errors
    /// A refusal and its details, when no more clients are taken.
    fn welcome(&self, client: &str) -> Result<Welcome, (Refusal, String)>;

    /// The model's tables.
    fn tables(&self) -> Vec<TableEntry>;

    /// Begins to bind a schema for a connection, which has no other one under way. Waits for no worker: the port asks
    /// what this returns.
    ///
    /// # Errors
    /// A refusal and its details.
    fn bind(&self, conn: ConnId, schema: Schema)
    -> Result<Box<dyn PendingBind>, (Refusal, String)>;

    /// The connection is gone and every worker has acknowledged that: its schemas can be forgotten.
    fn gone(&self, conn: ConnId);
}

/// A schema on its way to the workers. Dropped before every worker knows it, it is abandoned: workers that have not taken
/// it in leave it.
pub trait PendingBind: Send {
    /// The number that requests name the schema by.
    fn number(&self) -> u32;

    /// Whether every worker knows it. Never waits.
    fn is_known(&mut self) -> bool;
}

/// A schema that every worker knows at once, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound(pub u32);

impl PendingBind for Bound {
    fn number(&self) -> u32 {
        self.0
    }

    fn is_known(&mut self) -> bool {
        true
    }
}

/// Why a client's call failed.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The endpoint can't be reached.
    #[error(
        "cannot connect to {endpoint}: {source}; is rowmilld running, and is this its endpoint?"
    )]
    Connect {
        /// Where.
        endpoint: String,
        /// Why.
        source: std::io::Error,
    },
    /// The endpoint can't be opened.
    #[error("cannot listen on {endpoint}: {reason}")]
    Listen {
        /// Where.
        endpoint: String,
        /// Why, and what to do.
        reason: String,
    },
    /// The endpoint's text is not understood.
    #[error("`{endpoint}` is not an endpoint: {reason}")]
    Endpoint {
        /// What was given.
        endpoint: String,
        /// Why.
        reason: String,
    },
    /// The dataplane is gone.
    #[error("the dataplane closed the connection")]
    Closed,
    /// The connection was lost, and is fenced: nothing can be written to this side's regions any more, so that all
    /// targets are its own again.
    #[error("the connection was lost: {what}; connect again")]
    Lost {
        /// How.
        what: Lost,
    },
    /// A control call had no answer in time. The connection goes on: the answer is heard when it comes, before another call
    /// is made, and what it gives is given back; a schema is kept for the next [`ClientPort::bind`] of an equal one.
    #[error(
        "the dataplane did not answer within {limit:?}; see whether it is stopped or overloaded, and try again"
    )]
    NoAnswer {
        /// How long the answer was waited for.
        limit: Duration,
    },
    /// A control call's caller has ended it ([`Interrupt`](crate::Interrupt)). Its answer is heard as after [`PortError::NoAnswer`].
    #[error("the call was interrupted by its caller before the dataplane had answered")]
    Interrupted,
    /// A control call was refused.
    #[error("refused: {refusal}{}{detail}", if detail.is_empty() { "" } else { ": " })]
    Refused {
        /// Why.
        refusal: Refusal,
        /// Details.
        detail: String,
    },
    /// The dataplane's answer makes no sense.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// Port, device or kernel can't do this.
    #[error("{what} is not supported here")]
    Unsupported {
        /// What.
        what: &'static str,
    },
    /// A system call failed.
    #[error("{call} failed")]
    System {
        /// Which.
        call: &'static str,
        /// Why.
        source: std::io::Error,
    },
}

/// How a connection was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The dataplane shows no life, although its host may.
    #[error("the dataplane shows no sign of life")]
    PeerSilent,
    /// What was sent is not acknowledged.
    #[error("the dataplane's host does not acknowledge what is sent to it")]
    TransportRetries,
    /// The dataplane had no room for what was submitted: it was more than the credits allow.
    #[error("the dataplane was not ready for more than its credits allow")]
    NotReady,
    /// The dataplane's memory can't be accessed as it said.
    #[error("the dataplane's memory refuses what is sent to it")]
    RemoteAccess,
    /// This side's device or memory failed.
    #[error("this side's device failed or refused the dataplane's access")]
    LocalFault,
    /// The dataplane ended it without a word, most likely with its process.
    #[error("the dataplane is gone, most likely with its process")]
    Disconnected,
    /// What the dataplane sent makes no sense.
    #[error("what the dataplane sent makes no sense; what it was stands in this side's log")]
    Nonsense,
    /// The dataplane cut this client off, and said why; what exactly was wrong stands in this side's log and in the
    /// dataplane's.
    #[error("the dataplane cut this client off: {0}")]
    CutOff(Status),
}

/// Memory that a client half did not make, a GPU's or the caller's: results can be written to it where the port has a NIC.
#[derive(Debug)]
pub enum Foreign {
    /// A range of a dma-buf.
    DmaBuf {
        /// The dma-buf.
        fd: OwnedFd,
        /// Where the range begins in it.
        offset: u64,
        /// The address by which the device knows it; equal to the offset modulo the page size.
        address: u64,
        /// Its size.
        bytes: u64,
    },
    /// Memory by its address: a device's, which a kernel module of the device's driver knows, or this process'.
    Peer(PeerMemory),
}

/// A range of memory by its address: a device's, or the caller's in this process.
pub struct PeerMemory {
    address: u64,
    bytes: u64,
    /// Keeps it allocated.
    owner: Box<dyn Any + Send>,
}

impl PeerMemory {
    /// `bytes` from `address` on, which `owner` keeps allocated.
    ///
    /// # Safety
    /// They must be memory of a device, or of this process and then none that Rust refers to while a result may be on its way
    /// there; and stay allocated until the owner is dropped.
    pub unsafe fn new(address: u64, bytes: u64, owner: Box<dyn Any + Send>) -> PeerMemory {
        PeerMemory {
            address,
            bytes,
            owner,
        }
    }

    /// The first byte's address.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What keeps it allocated.
    pub fn into_owner(self) -> Box<dyn Any + Send> {
        self.owner
    }
}

impl fmt::Debug for PeerMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerMemory({} bytes at {:#x})", self.bytes, self.address)
    }
}

/// One session's half of a port.
pub trait ClientPort {
    /// What the server granted.
    fn welcome(&self) -> &Welcome;

    /// The server's tables, all pages.
    ///
    /// # Errors
    /// [`PortError`].
    fn tables(&mut self) -> Result<Vec<TableEntry>, PortError>;

    /// Binds a schema.
    ///
    /// # Errors
    /// [`PortError::Refused`] with the reason.
    fn bind(&mut self, schema: &Schema) -> Result<u32, PortError>;

    /// Makes memory of at least `bytes` for results, and registers it: the dataplane may write to it, and reads nothing
    /// from it.
    ///
    /// # Errors
    /// [`PortError`].
    fn register(&mut self, bytes: usize) -> Result<RegionId, PortError>;

    /// As [`ClientPort::register`], for request data: the dataplane may read them, and writes nothing there.
    ///
    /// # Errors
    /// [`PortError`].
    fn register_source(&mut self, bytes: usize) -> Result<RegionId, PortError>;

    /// As [`ClientPort::register`], of memory that is there. There is no window to it.
    ///
    /// # Errors
    /// [`PortError::Unsupported`] where the port has no NIC, or NIC and kernel can't reach such memory; [`PortError`].
    fn register_foreign(&mut self, foreign: Foreign) -> Result<RegionId, PortError> {
        drop(foreign);
        let what = "writing to a device's memory without a NIC";
        Err(PortError::Unsupported { what })
    }

    /// Gives a region up; returns once the server has unmapped it. Nothing may be in flight to it.
    ///
    /// # Errors
    /// [`PortError`]. After [`PortError::NoAnswer`] and [`PortError::Interrupted`] it is given up all the same: the
    /// server is told as soon as it listens.
    fn unregister(&mut self, region: RegionId) -> Result<(), PortError>;

    /// The region's memory. None where it is a device's.
    fn memory(&self, region: RegionId) -> Option<Window<'_>>;

    /// The region's memory, to be kept: it stays mapped for as long as somebody holds it, also when the region is given up and
    /// the port is gone. None where there is no such region, or its memory is simulated or a device's.
    fn share(&self, region: RegionId) -> Option<Arc<Region>>;

    /// Sends a frame in a slot that no request of this lane holds.
    ///
    /// # Errors
    /// [`PortError::Closed`].
    fn submit(&mut self, lane: u16, slot: u16, frame: &[u8]) -> Result<(), PortError>;

    /// Asks for an early end of the request in `slot`: once for a request, however often this is called, and not at all
    /// where no request holds the slot.
    ///
    /// # Errors
    /// [`PortError::Closed`].
    fn cancel(&mut self, lane: u16, slot: u16) -> Result<(), PortError>;

    /// The next status record of a lane. It makes a system call at most once a tick of the kernel's coarse clock (1 to 10 ms), to see
    /// whether the dataplane is there: who polls learns of its end within one.
    ///
    /// # Errors
    /// [`PortError::Closed`] once the dataplane is gone and no record is left, or [`PortError::Lost`].
    fn poll(&mut self, lane: u16) -> Result<Option<Completion>, PortError>;

    /// Sleeps until a record may have come on any lane, the connection may have ended, or the time has passed (`None`: no
    /// limit). Returns early for any reason.
    ///
    /// # Errors
    /// [`PortError`] of a failed system call.
    fn wait(&mut self, limit: Option<Duration>) -> Result<(), PortError> {
        match self.lie_down(limit) {
            Rest::Disturbed => Ok(()),
            Rest::Quiet(limit) => {
                let slept = self.sleep(limit);
                self.get_up().and(slept)
            }
        }
    }

    /// The part of [`ClientPort::wait`] before the sleep, which is for `limit` at most: from now on one of
    /// [`ClientPort::wake_fds`] becomes ready when a record comes on any lane, or the connection ends. Then it looks whether
    /// that has happened before. It never sleeps.
    ///
    /// After [`Rest::Quiet`] the caller sleeps on the descriptors, and calls [`ClientPort::get_up`]. It need not hold the
    /// port asleep: meanwhile other threads may call everything else here. Two things are left to them. One lies at
    /// a time, since getting up is for all. And who takes what the sleeper waits for, by [`ClientPort::poll`], or makes a
    /// call that waits for the dataplane's answer, which may take what would have woken it, wakes the sleeper by
    /// a descriptor of its own ([`WakeFds::with`]); it gets up and looks again.
    fn lie_down(&mut self, limit: Option<Duration>) -> Rest;

    /// What to sleep on after [`ClientPort::lie_down`]; the same for as long as the port lives. None where time is simulated.
    fn wake_fds(&self) -> WakeFds<BorrowedFd<'_>>;

    /// The part of [`ClientPort::wait`] between lying down and getting up. Ports that don't wake by descriptors have one
    /// of their own.
    ///
    /// # Errors
    /// [`PortError`] of a failed system call.
    fn sleep(&mut self, limit: Option<Duration>) -> Result<(), PortError> {
        self.wake_fds().sleep(limit)
    }

    /// The part of [`ClientPort::wait`] after the sleep, whatever ended it.
    ///
    /// # Errors
    /// [`PortError`] of a failed system call.
    fn get_up(&mut self) -> Result<(), PortError>;

    /// Ends the connection from this side, without waiting for the dataplane; nothing happens where it has ended. From now on
    /// it is as if the dataplane had closed it: records that have come can still be polled for, then every call is
    /// [`PortError::Closed`], and who sleeps on [`ClientPort::wake_fds`] may be woken or not.
    ///
    /// Memory that is shared stays mapped. A dataplane that stores to it in place may go on with what is in flight until it
    /// has learned of the end; over RDMA nothing is written any more.
    fn close(&mut self);
}
