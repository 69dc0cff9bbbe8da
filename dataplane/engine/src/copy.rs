//! Copies of request data: from the frame or a region, of either width, to private u32 or f32.
//!
//! Every element is read exactly once; what is checked afterwards is the copy.

use rowmill_wire::{Element, Place, Request, Segment, Status};

use crate::memory::{Conn, Memory};
use crate::slot::Slot;

/// Ids with this bit set are refused as negative: dense tables have fewer than 2^31 rows.
pub(crate) const SIGN: u32 = 1 << 31;

/// Stands for a 64-bit value that is not negative but too large for 32 bits: never a row, and not
/// negative as a 32-bit id.
pub(crate) const TOO_LARGE: u32 = SIGN - 1;

/// Where the bytes of a segment come from: kept in the slot, since ids are copied in later steps.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    Bytes(&'a [u8]),
    Region {
        conn: Conn,
        slot: u16,
        region: u32,
        offset: u64,
    },
}

impl<'a> Source<'a> {
    /// The source of a segment that is not absent; of one in the frame only while that is there.
    pub(crate) fn of(
        slot: &Slot,
        request: Option<&Request<'a>>,
        segment: &Segment,
    ) -> Option<Source<'a>> {
        match segment.place {
            Place::Absent => None,
            Place::Inline { .. } => request?.inline(segment).map(Source::Bytes),
            Place::Region { region, offset } => Some(Source::Region {
                conn: slot.conn,
                slot: slot.port_slot,
                region,
                offset,
            }),
        }
    }

    /// Copies bytes from `at` within the segment on.
    pub(crate) fn read(
        &self,
        at: u64,
        out: &mut [u8],
        memory: &mut impl Memory,
    ) -> Result<(), Status> {
        match *self {
            Source::Bytes(bytes) => {
                let at = at as usize;
                let from = bytes.get(at..at + out.len()).ok_or(Status::Malformed)?;
                out.copy_from_slice(from);
                Ok(())
            }
            Source::Region {
                conn,
                slot,
                region,
                offset,
            } => {
                let offset = offset.checked_add(at).ok_or(Status::SegmentOutOfRegion)?;
                memory.read(conn, slot, region, offset, out)
            }
        }
    }

    /// Copies elements `first..first + out.len()` as 32-bit numbers. 64-bit values keep their sign
    /// (as bit 31) and become [`TOO_LARGE`] where they exceed 31 bits.
    pub(crate) fn read_u32(
        &self,
        element: Element,
        first: u64,
        out: &mut [u32],
        memory: &mut impl Memory,
    ) -> Result<(), Status> {
        let mut at = first * element.bytes();
        if element.bytes() == 4 {
            self.read(at, bytemuck::cast_slice_mut(out), memory)?;
            out.iter_mut()
                .for_each(|value| *value = u32::from_le(*value));
            return Ok(());
        }
        let mut wide = [0u64; CHUNK];
        for part in out.chunks_mut(CHUNK) {
            let wide = &mut wide[..part.len()];
            self.read(at, bytemuck::cast_slice_mut(wide), memory)?;
            at += 8 * part.len() as u64;
            for (to, from) in part.iter_mut().zip(wide) {
                *to = narrow(u64::from_le(*from));
            }
        }
        Ok(())
    }

    /// Copies elements `first..first + out.len()` as they are, 32-bit ones widened.
    pub(crate) fn read_u64(
        &self,
        element: Element,
        first: u64,
        out: &mut [u64],
        memory: &mut impl Memory,
    ) -> Result<(), Status> {
        let at = first * element.bytes();
        if element.bytes() == 8 {
            self.read(at, bytemuck::cast_slice_mut(out), memory)?;
            out.iter_mut()
                .for_each(|value| *value = u64::from_le(*value));
            return Ok(());
        }
        let mut narrow = [0u32; CHUNK];
        let mut at = at;
        for part in out.chunks_mut(CHUNK) {
            let narrow = &mut narrow[..part.len()];
            self.read(at, bytemuck::cast_slice_mut(narrow), memory)?;
            at += 4 * part.len() as u64;
            for (to, from) in part.iter_mut().zip(narrow) {
                *to = u32::from_le(*from).into();
            }
        }
        Ok(())
    }

    /// Copies elements `first..` as f32.
    pub(crate) fn read_f32(
        &self,
        first: u64,
        out: &mut [f32],
        memory: &mut impl Memory,
    ) -> Result<(), Status> {
        self.read(first * 4, bytemuck::cast_slice_mut(out), memory)?;
        out.iter_mut()
            .for_each(|value| *value = f32::from_bits(u32::from_le(value.to_bits())));
        Ok(())
    }
}

/// Wide values copied at a time: 4 KiB, which stay in the first-level cache until they are narrowed.
pub(crate) const CHUNK: usize = 512;

fn narrow(value: u64) -> u32 {
    if value < u64::from(SIGN) {
        value as u32
    } else if value >> 63 == 1 {
        SIGN
    } else {
        TOO_LARGE
    }
}
