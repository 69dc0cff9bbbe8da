//! What the control thread and a lane tell each other, in queues that can't overflow.

use std::sync::Arc;

use rowmill_arena::Region;
use rowmill_wire::Status;
use rowmill_wire::control::Rights;
use rowmill_wire::limits::MAX_REGIONS;
use rustix::io::Errno;

use super::dispose::ClientStream;
use super::layout::Layout;
use super::wake::WakeSocket;
use crate::control::{self, Bell};
use crate::{ConnId, RegionId};

/// Messages that a lane can have unread of one connection: its attachment and its end, and each region
/// number's coming and going, since a number is not given again before its going was acknowledged.
const MESSAGES_PER_CONNECTION: usize = 2 + 2 * MAX_REGIONS as usize;

/// Notices that the control thread can have unread of one connection: each region's acknowledgement,
/// that of its end, and the one cut.
const NOTICES_PER_CONNECTION: usize = MAX_REGIONS as usize + 2;

/// What all holders of a connection keep open for as long as they hold it.
///
/// The stream is closed when the last lane and the control thread have let go, so a client that sees
/// it closed knows that nobody can reach its memory any more. Fields are dropped in this order.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) memory: Arc<Region>,
    pub(super) wake: WakeSocket,
    pub(super) _stream: Arc<ClientStream>,
}

/// From the control thread to a lane.
#[derive(Debug)]
pub(super) enum Message {
    Attach {
        conn: ConnId,
        link: Arc<Link>,
        layout: Layout,
    },
    Region {
        conn: ConnId,
        region: RegionId,
        memory: Arc<Region>,
        rights: Rights,
    },
    RegionGone {
        conn: ConnId,
        region: RegionId,
    },
    Detach {
        conn: ConnId,
    },
}

/// From a lane to the control thread.
#[derive(Debug)]
pub(super) enum Notice {
    /// The lane holds nothing of the region any more.
    RegionLetGo { conn: ConnId, region: RegionId },
    /// The lane holds nothing of the connection any more.
    LetGo { conn: ConnId },
    /// The connection has to be cut off.
    Cut {
        conn: ConnId,
        why: Status,
        breach: Option<&'static str>,
    },
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
