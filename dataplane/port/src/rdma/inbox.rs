//! What the control thread and the lanes say to each other.

use std::sync::Arc;

use rowmill_wire::Status;
use rowmill_wire::control::Rights;
use rowmill_wire::limits::MAX_REGIONS;
use rustix::io::Errno;

use super::seat::Seat;
use crate::control::{self, Bell};
use crate::{ConnId, RegionId};

/// Messages that a lane can have unread of one connection: its attachment and its end, and each region number's coming
/// and going, since a number is not given again before its going was acknowledged.
pub(super) const MESSAGES_PER_CONNECTION: usize = 2 + 2 * MAX_REGIONS as usize;

/// Notices that the control thread can have unread of one connection: each region's acknowledgement, that of its end,
/// and the one cut.
const NOTICES_PER_CONNECTION: usize = MAX_REGIONS as usize + 2;

/// A region of a client, as its device knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemoteRegion {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) key: u32,
    pub(super) rights: Rights,
}

/// From the control thread to a lane.
pub(super) enum Message {
    /// A connection, with its queue pair: from now on only the lane posts to that.
    Attach {
        conn: ConnId,
        seat: Box<Seat>,
    },
    Region {
        conn: ConnId,
        region: RegionId,
        memory: RemoteRegion,
    },
    RegionGone {
        conn: ConnId,
        region: RegionId,
    },
    /// The connection ends; `in_order` if what was announced should still arrive.
    Detach {
        conn: ConnId,
        in_order: bool,
    },
}

/// From a lane to the control thread.
pub(super) enum Notice {
    /// Nothing that the lane has posted can reach the region any more.
    RegionLetGo { conn: ConnId, region: RegionId },
    /// The lane holds nothing of the connection any more: here is what it had.
    LetGo { conn: ConnId, seat: Box<Seat> },
    /// The connection has to be cut off.
    Cut { conn: ConnId, why: Cut },
}

/// Why a lane wants a connection cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// The worker says so.
    Worker(Status),
    /// The client broke the protocol.
    Breach(&'static str),
    /// The queue pair failed.
    Failed(rowmill_verbs::Status),
}

/// What a lane and the control thread share.
pub(super) type LaneShared = control::LaneShared<Message, Notice>;

/// What a lane shares with the control thread that watches `bell`.
pub(super) fn lane_shared(
    lane: u16,
    max_connections: u16,
    bell: Arc<Bell>,
) -> Result<LaneShared, Errno> {
    let most = usize::from(max_connections);
    let (messages, notices) = (
        most * MESSAGES_PER_CONNECTION,
        most * NOTICES_PER_CONNECTION,
    );
    LaneShared::new(lane, messages, notices, bell)
}
