//! What the engine needs of whoever drives it: access to the memory that clients registered.

use rowmill_arena::Window;
use rowmill_wire::Status;

/// A connection's number: an index below [`crate::Limits::connections`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Conn(pub u32);

/// Access to registered memory. The driver implements it over its port.
pub trait Memory {
    /// Copies request data out of a region, once.
    ///
    /// # Errors
    /// `UnknownRegion`, `SegmentOutOfRegion` or `RegionLost`.
    fn read(&mut self, conn: Conn, region: u32, offset: u64, out: &mut [u8]) -> Result<(), Status>;

    /// The memory where results for `offset..offset + len` of a region are to be stored.
    ///
    /// # Errors
    /// `UnknownRegion`, `TargetOutOfRegion` or `RegionLost`.
    fn target(
        &mut self,
        conn: Conn,
        region: u32,
        offset: u64,
        len: u64,
    ) -> Result<Window<'_>, Status>;

    /// Whether the region's memory was taken away, so that what was stored is lost.
    fn is_lost(&self, conn: Conn, region: u32) -> bool;
}
