//! The 64 bits that a work request carries to its completion.
//!
//! ```text
//! kind 4 | epoch 16 | connection 16 | sequence 28
//! ```
//!
//! In a completion with an error nothing but these bits, the status, the vendor's code and the queue pair's
//! number is valid, so all that is needed to tell what ended is in them. The epoch tells a queue pair from a
//! former one of the same number, whose completions some devices leave in the completion queue.

use std::fmt;

const SEQUENCE_BITS: u32 = 28;
const SEQUENCE_MASK: u64 = (1 << SEQUENCE_BITS) - 1;

/// What kind of work request it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A WRITE, READ or SEND.
    Send = 1,
    /// A receive.
    Receive = 2,
    /// The request behind all others of a send queue that has failed.
    Beacon = 3,
}

/// What a work request was, as its completion tells.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct WorkId(u64);

impl WorkId {
    pub(crate) fn new(kind: Kind, epoch: u16, connection: u16, sequence: u64) -> WorkId {
        WorkId(
            (kind as u64) << 60
                | u64::from(epoch) << 44
                | u64::from(connection) << SEQUENCE_BITS
                | sequence & SEQUENCE_MASK,
        )
    }

    pub(crate) fn from_raw(raw: u64) -> WorkId {
        WorkId(raw)
    }

    pub(crate) fn raw(self) -> u64 {
        self.0
    }

    /// The kind; `None` for what this crate did not post.
    pub fn kind(self) -> Option<Kind> {
        [Kind::Send, Kind::Receive, Kind::Beacon]
            .into_iter()
            .find(|kind| *kind as u64 == self.0 >> 60)
    }

    /// The queue pair's epoch.
    pub fn epoch(self) -> u16 {
        (self.0 >> 44) as u16
    }

    /// The number that whoever made the queue pair gave it.
    pub fn connection(self) -> u16 {
        (self.0 >> SEQUENCE_BITS) as u16
    }

    /// The whole sequence number, where `next` is the next one to be posted; at most 2^28 are in flight.
    pub(crate) fn sequence(self, next: u64) -> u64 {
        let behind = next.wrapping_sub(self.0) & SEQUENCE_MASK;
        next.wrapping_sub(behind)
    }
}

impl fmt::Debug for WorkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sequence = self.0 & SEQUENCE_MASK;
        match self.kind() {
            Some(kind) => write!(
                f,
                "{kind:?} {sequence} of connection {}, epoch {}",
                self.connection(),
                self.epoch()
            ),
            None => write!(f, "work id {:#x}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_touch() {
        let id = WorkId::new(Kind::Receive, 0xffff, 0x1234, 0xfff_ffff);
        assert_eq!(id.raw(), 0x2fff_f123_4fff_ffff);
        assert_eq!(id.kind(), Some(Kind::Receive));
        assert_eq!((id.epoch(), id.connection()), (0xffff, 0x1234));
        let id = WorkId::new(Kind::Beacon, 0, 0xffff, 1 << 28);
        assert_eq!(
            (id.kind(), id.epoch(), id.connection()),
            (Some(Kind::Beacon), 0, 0xffff)
        );
        assert_eq!(WorkId::from_raw(0).kind(), None);
        assert_eq!(WorkId::from_raw(u64::MAX).kind(), None);
    }

    #[test]
    fn sequences_are_whole_again() {
        for next in [1, 5, (1 << 28) + 3, (7 << 28) + 1, 1 << 40] {
            for behind in [1, 2, 1000] {
                let Some(sequence) = u64::checked_sub(next, behind) else {
                    continue;
                };
                let id = WorkId::new(Kind::Send, 3, 4, sequence);
                assert_eq!(id.sequence(next), sequence, "{behind} behind {next}");
            }
        }
    }
}
