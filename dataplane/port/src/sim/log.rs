//! What happened at a simulated port, in order.

use core::fmt;

use rowmill_wire::{Completion, Immediate, Status};

use crate::{ConnId, RegionId};

/// Something that happened, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// By the net's clock.
    pub at_ns: u64,
    /// Whose connection.
    pub conn: ConnId,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A client connected.
    Connected,
    /// A client put an immediate into a lane's submission queue.
    Submitted {
        /// To which lane.
        lane: u16,
        /// The immediate, which may be nonsense.
        bits: u32,
    },
    /// A lane learnt of the connection.
    Attached {
        /// Which lane.
        lane: u16,
    },
    /// A worker took a frame.
    Delivered {
        /// On which lane.
        lane: u16,
        /// From which slot.
        slot: u16,
        /// Its bytes, as the worker has them.
        frame: Vec<u8>,
    },
    /// A worker learnt of a cancel.
    CancelDelivered {
        /// On which lane.
        lane: u16,
        /// For which slot.
        slot: u16,
    },
    /// A worker copied bytes out of a region.
    Read {
        /// On which lane.
        lane: u16,
        /// Which region.
        region: RegionId,
        /// From where.
        offset: u64,
        /// The bytes that it got.
        bytes: Vec<u8>,
    },
    /// A worker was granted a window to store results in.
    Granted {
        /// On which lane.
        lane: u16,
        /// Which region.
        region: RegionId,
        /// From where.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// Bytes that a worker had posted reached a region.
    Landed {
        /// Of which lane.
        lane: u16,
        /// Which region.
        region: RegionId,
        /// From where.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// Bytes of a region changed under a worker's hands.
    Scribbled {
        /// Which region.
        region: RegionId,
    },
    /// A region was registered.
    Registered {
        /// Which.
        region: RegionId,
        /// Its bytes.
        len: u64,
    },
    /// A region's memory was taken away.
    Lost {
        /// Which.
        region: RegionId,
    },
    /// A client gives a region up.
    Unregistering {
        /// Which.
        region: RegionId,
    },
    /// A lane has acknowledged that a region is gone.
    RegionReleased {
        /// Which lane.
        lane: u16,
        /// Which region.
        region: RegionId,
    },
    /// A region is given up: all lanes have acknowledged it, and nothing under way can reach it.
    Unregistered {
        /// Which.
        region: RegionId,
    },
    /// A worker announced a record.
    Announced {
        /// On which lane.
        lane: u16,
        /// The record.
        record: Completion,
    },
    /// A client took a record.
    Received {
        /// From which lane.
        lane: u16,
        /// The record.
        record: Completion,
    },
    /// The dataplane cuts the connection off.
    Closed {
        /// Why.
        why: Status,
    },
    /// The stream between client and dataplane broke or was closed.
    Cut,
    /// Nothing arrives over the connection's link for so long.
    Silent {
        /// Nanoseconds.
        for_ns: u64,
    },
    /// The client has destroyed its queue pairs: its memory is its own again.
    Fenced,
    /// A worker learnt of the connection's end.
    Detached {
        /// Which lane's.
        lane: u16,
    },
    /// A lane has acknowledged the connection's end.
    Released {
        /// Which lane.
        lane: u16,
    },
    /// Every lane has acknowledged it: the number is free.
    Gone,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.at_ns as f64 / 1000.0;
        write!(f, "{us:>12.3} us  conn {:<2} ", self.conn.0)?;
        match &self.what {
            What::Submitted { lane, bits } => match Immediate::decode(*bits) {
                Some(immediate) => write!(f, "lane {lane}: submits {immediate:?}"),
                None => write!(f, "lane {lane}: submits nonsense {bits:#010x}"),
            },
            What::Delivered { lane, slot, frame } => write!(
                f,
                "lane {lane}: {} bytes of slot {slot} arrive",
                frame.len()
            ),
            What::Read {
                lane,
                region,
                offset,
                bytes,
            } => {
                write!(
                    f,
                    "lane {lane}: reads {} bytes at {offset} of region {}",
                    bytes.len(),
                    region.0
                )
            }
            What::Granted {
                lane,
                region,
                offset,
                len,
            } => {
                write!(
                    f,
                    "lane {lane}: is granted {offset}..{} of region {}",
                    offset + len,
                    region.0
                )
            }
            What::Landed {
                lane,
                region,
                offset,
                len,
            } => {
                write!(
                    f,
                    "lane {lane}: {offset}..{} of region {} are placed",
                    offset + len,
                    region.0
                )
            }
            What::Silent { for_ns } => write!(f, "the link is silent for {for_ns} ns"),
            What::Fenced => write!(f, "the client has destroyed its queue pairs"),
            What::Announced { lane, record } => {
                write!(f, "lane {lane}: announces {}", brief(record))
            }
            What::Received { lane, record } => {
                write!(f, "lane {lane}: client receives {}", brief(record))
            }
            other => write!(f, "{other:?}"),
        }
    }
}

fn brief(record: &Completion) -> String {
    let Completion {
        kind,
        slot,
        slice,
        request,
        part,
        status,
        feature,
        index,
        ..
    } = record;
    format!(
        "{kind:?} {} of request {request:#x} part {part} slot {slot} slice {slice} (feature {feature:#x}, index {index:#x})",
        status.name()
    )
}
