//! The status record: 64 bytes that announce a slice or the end of a request.

use crate::codec::Reader;
use crate::immediate::Immediate;
use crate::limits::MAX_SLOTS;
use crate::status::{Refusal, Status};

/// Bytes of an encoded record: one cache line.
pub const COMPLETION_BYTES: usize = 64;

/// Whether a record ends its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CompletionKind {
    /// A slice is placed; more records follow.
    Slice = 0,
    /// The request has ended; slot and target are the client's again.
    Final = 1,
}

/// A status record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Whether the request goes on.
    pub kind: CompletionKind,
    /// The part, as the request named it.
    pub part: u8,
    /// The outcome.
    pub status: Status,
    /// The slot of the request, below [`MAX_SLOTS`].
    pub slot: u16,
    /// The slice that is placed; in a final record the number of slices less one.
    pub slice: u16,
    /// The request's number, as the client chose it.
    pub request: u64,
    /// The generation that the rows came from.
    pub generation: u64,
    /// The last delta of that generation of which all rows were served when the request came; 0 before the first.
    pub delta: u64,
    /// The attempt, as the request named it.
    pub attempt: u16,
    /// Credits given back: 1 in a final record, 0 in a slice's.
    pub credits: u16,
    /// The feature that a refusal is about, or [`crate::status::NOWHERE`].
    pub feature: u32,
    /// The bag or id within that feature's span, or [`crate::status::NOWHERE`].
    pub index: u32,
    /// Nanoseconds from the receipt of the request to this record, by the server's clock.
    pub service_ns: u64,
    /// The newest generation that the server holds: the one that requests get that name none. 0 where it says nothing of that.
    pub newest: u64,
}

impl Completion {
    /// The record's bytes.
    pub fn encode(&self) -> [u8; COMPLETION_BYTES] {
        let mut out = [0; COMPLETION_BYTES];
        out[0] = self.kind as u8;
        out[1] = self.part;
        out[2..4].copy_from_slice(&(self.status as u16).to_le_bytes());
        out[4..6].copy_from_slice(&self.slot.to_le_bytes());
        out[6..8].copy_from_slice(&self.slice.to_le_bytes());
        out[8..16].copy_from_slice(&self.request.to_le_bytes());
        out[16..24].copy_from_slice(&self.generation.to_le_bytes());
        out[24..32].copy_from_slice(&self.delta.to_le_bytes());
        out[32..34].copy_from_slice(&self.attempt.to_le_bytes());
        out[34..36].copy_from_slice(&self.credits.to_le_bytes());
        out[36..40].copy_from_slice(&self.feature.to_le_bytes());
        out[40..44].copy_from_slice(&self.index.to_le_bytes());
        out[48..56].copy_from_slice(&self.service_ns.to_le_bytes());
        out[56..64].copy_from_slice(&self.newest.to_le_bytes());
        out
    }

    /// Parses a record.
    ///
    /// # Errors
    /// Malformed for an unknown kind or status, a slot that an immediate can't name, or reserved bytes
    /// that are not zero.
    pub fn parse(bytes: &[u8; COMPLETION_BYTES]) -> Result<Completion, Refusal> {
        let malformed = || Refusal::whole(Status::Malformed);
        let mut r = Reader::new(bytes);
        let kind = match r.u8()? {
            0 => CompletionKind::Slice,
            1 => CompletionKind::Final,
            _ => return Err(malformed()),
        };
        let part = r.u8()?;
        let status = Status::from_code(r.u16()?).ok_or_else(malformed)?;
        let (slot, slice) = (r.u16()?, r.u16()?);
        if slot >= MAX_SLOTS {
            return Err(malformed());
        }
        let (request, generation, delta) = (r.u64()?, r.u64()?, r.u64()?);
        let (attempt, credits) = (r.u16()?, r.u16()?);
        let (feature, index) = (r.u32()?, r.u32()?);
        r.zeros(4)?;
        let (service_ns, newest) = (r.u64()?, r.u64()?);
        r.end()?;
        Ok(Completion {
            kind,
            part,
            status,
            slot,
            slice,
            request,
            generation,
            delta,
            attempt,
            credits,
            feature,
            index,
            service_ns,
            newest,
        })
    }

    /// The immediate that announces this record.
    pub fn immediate(&self) -> Immediate {
        match self.kind {
            CompletionKind::Slice => Immediate::Slice {
                slot: self.slot,
                slice: self.slice,
            },
            CompletionKind::Final => Immediate::Final {
                slot: self.slot,
                slice: self.slice,
            },
        }
    }
}
