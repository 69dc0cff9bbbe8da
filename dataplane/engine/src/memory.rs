//! What the engine needs of whoever drives it: access to the memory that clients registered.

use rowmill_arena::{Staging, Strip, Window};
use rowmill_wire::Status;
use rowmill_wire::limits::MAX_FEATURES;

/// A connection's number: an index below [`crate::Limits::connections`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Conn(pub u32);

/// Bytes of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The region.
    pub region: u32,
    /// Its first byte that is meant.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
}

/// Whether request data can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// At once.
    Ready,
    /// Once the driver says [`crate::Engine::fetched`].
    Coming,
}

/// Why something is not to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// For good: the request ends with this status.
    Refused(Status),
    /// Room for it is taken; some will be free later, without the client's doing.
    Later,
}

impl From<Status> for Denied {
    fn from(status: Status) -> Denied {
        Denied::Refused(status)
    }
}

/// Bytes that staging holds at least, so that any vector (8 KiB at most) has room, and rows of features
/// side by side mostly have.
pub const STAGE_BYTES_MIN: u64 = 64 << 10;

/// Most extents of one request: lengths, ids and weights of each feature.
pub const EXTENTS_MAX: usize = 3 * MAX_FEATURES;

/// Access to registered memory. The driver implements it over its port.
pub trait Memory {
    /// Whether results can go to these bytes of a region.
    ///
    /// # Errors
    /// `UnknownRegion`, `TargetOutOfRegion` or `RegionLost`.
    fn check(&self, conn: Conn, region: u32, offset: u64, len: u64) -> Result<(), Status>;

    /// Makes these bytes readable for the request in the connection's `slot`: at most
    /// [`EXTENTS_MAX`] extents, none empty. Memory that is readable at once need not look at them.
    ///
    /// # Errors
    /// `UnknownRegion`, `SegmentOutOfRegion`, `RegionLost`, or [`Denied::Later`].
    fn fetch(
        &mut self,
        conn: Conn,
        slot: u16,
        extents: &mut dyn Iterator<Item = Extent>,
    ) -> Result<Fetch, Denied>;

    /// Copies request data that was fetched out of a region, once.
    ///
    /// # Errors
    /// `UnknownRegion`, `SegmentOutOfRegion` or `RegionLost`.
    fn read(
        &mut self,
        conn: Conn,
        slot: u16,
        region: u32,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), Status>;

    /// What was fetched for a request is not needed any more. Nothing happens where nothing was.
    fn release(&mut self, conn: Conn, slot: u16);

    /// Most bytes of packed strips that are staged together, at least [`STAGE_BYTES_MIN`].
    fn stage_bytes(&self) -> u64;

    /// A place to store results in that are for these strips of a region.
    ///
    /// # Errors
    /// `UnknownRegion`, `TargetOutOfRegion`, `RegionLost`, or [`Denied::Later`].
    fn stage(&mut self, conn: Conn, region: u32, strips: &[Strip]) -> Result<Staging, Denied>;

    /// Keeps packed strips staged for as long as a request waits for rows of theirs, if there is room for that: then they take nothing from what
    /// others stage. They are placed or given back as all others are.
    fn keep(&mut self, conn: Conn, staging: &Staging) -> bool;

    /// The memory of such a place.
    ///
    /// # Errors
    /// As [`Memory::stage`].
    fn window(&mut self, conn: Conn, region: u32, staging: &Staging) -> Result<Window<'_>, Status>;

    /// Places what is stored there: the bytes of the strips, and no others.
    ///
    /// # Errors
    /// `UnknownRegion`, or `RegionLost` where what was stored is lost.
    fn place(
        &mut self,
        conn: Conn,
        region: u32,
        staging: Staging,
        strips: &[Strip],
    ) -> Result<(), Status>;

    /// Gives such a place back without placing anything.
    fn unstage(&mut self, conn: Conn, region: u32, staging: Staging);
}
