//! The 32-bit immediate that travels with every request and every status record:
//! kind (4 bits), slot (12), low (16). Over RDMA it is the WRITE_WITH_IMM's; over shared memory an
//! entry of the submission queue.

use crate::limits::{MAX_SLOTS, SLOT_BYTES};

/// A decoded immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Immediate {
    /// Client to server: a frame of `len` bytes lies in `slot`.
    Request {
        /// The slot, below the granted credits.
        slot: u16,
        /// Bytes of the frame, at least 1 and at most [`SLOT_BYTES`].
        len: u16,
    },
    /// Client to server: end the request in `slot` early.
    Cancel {
        /// The slot of the request.
        slot: u16,
    },
    /// Server to client: slice `slice` of the request in `slot` is placed.
    Slice {
        /// The slot of the request.
        slot: u16,
        /// The slice's number, from 0.
        slice: u16,
    },
    /// Server to client: the request in `slot` has ended; its slot and its target are the client's again.
    Final {
        /// The slot of the request.
        slot: u16,
        /// How many slices it had, less one.
        slice: u16,
    },
}

const REQUEST: u32 = 1;
const CANCEL: u32 = 2;
const SLICE: u32 = 3;
const FINAL: u32 = 4;

impl Immediate {
    /// The immediate's 32 bits.
    pub fn encode(self) -> u32 {
        let (kind, slot, low) = match self {
            Immediate::Request { slot, len } => (REQUEST, slot, len),
            Immediate::Cancel { slot } => (CANCEL, slot, 0),
            Immediate::Slice { slot, slice } => (SLICE, slot, slice),
            Immediate::Final { slot, slice } => (FINAL, slot, slice),
        };
        debug_assert!(slot < MAX_SLOTS, "slot fits in 12 bits");
        kind << 28 | u32::from(slot & 0xfff) << 16 | u32::from(low)
    }

    /// The immediate of 32 bits; `None` for an unknown kind, a request of no bytes or longer than
    /// a slot, or a cancel with a low half.
    pub fn decode(bits: u32) -> Option<Immediate> {
        let slot = (bits >> 16 & 0xfff) as u16;
        let low = (bits & 0xffff) as u16;
        match bits >> 28 {
            REQUEST if (1..=SLOT_BYTES).contains(&usize::from(low)) => {
                Some(Immediate::Request { slot, len: low })
            }
            CANCEL if low == 0 => Some(Immediate::Cancel { slot }),
            SLICE => Some(Immediate::Slice { slot, slice: low }),
            FINAL => Some(Immediate::Final { slot, slice: low }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_they_should() {
        let slot = MAX_SLOTS - 1;
        let cases = [
            (Immediate::Request { slot, len: 8192 }, 0x1fff_2000),
            (Immediate::Cancel { slot: 1 }, 0x2001_0000),
            (
                Immediate::Slice {
                    slot: 0x123,
                    slice: 63,
                },
                0x3123_003f,
            ),
            (
                Immediate::Final {
                    slot: 0,
                    slice: u16::MAX,
                },
                0x4000_ffff,
            ),
        ];
        for (immediate, bits) in cases {
            assert_eq!(immediate.encode(), bits, "{immediate:?}");
            assert_eq!(Immediate::decode(bits), Some(immediate));
        }
    }

    #[test]
    fn breaches_are_refused() {
        for bits in [
            0,
            0x0001_0001,
            0x1000_0000,
            0x1000_2001,
            0x2000_0001,
            0x5000_0000,
            u32::MAX,
        ] {
            assert_eq!(Immediate::decode(bits), None, "{bits:#010x}");
        }
    }

    #[test]
    #[should_panic(expected = "slot fits in 12 bits")]
    fn slots_past_12_bits_are_the_callers_mistake() {
        Immediate::Cancel { slot: MAX_SLOTS }.encode();
    }
}
