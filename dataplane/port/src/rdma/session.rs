//! One connection as the control thread sees it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use rowmill_verbs::{Connection, IdToken, ProtectionDomain, Remote};
use rowmill_wire::Status;
use rowmill_wire::limits::MAX_REGIONS;

use super::config::ConnectionParameters;
use super::inbox::RemoteRegion;
use super::link::Link;
use super::private_data::SessionId;
use super::progress::{Age, Progress};
use super::seat::Seat;
use super::server::ConnectionInfo;
use crate::control::{BindCall, LaneSet};
use crate::{ConnId, RegionId};

/// A client's session: its control stream, and what it has besides.
pub(super) struct Session {
    pub(super) phase: Phase,
    pub(super) id: SessionId,
    pub(super) peer: Option<SocketAddr>,
    pub(super) link: Link,
    pub(super) connection: Connection,
    /// What both sides set their queue pairs to; of packets, the smaller of both sides' bounds.
    pub(super) parameters: ConnectionParameters,
    pub(super) domain: ProtectionDomain,
    /// Ids of the connection manager, its own and its lanes'.
    pub(super) tokens: Vec<IdToken>,
}

/// How far a session has come.
pub(super) enum Phase {
    /// Connected, and has not said hello.
    Greeting { since: Instant },
    /// Has a number.
    Member(Box<Member>),
    /// Hears the last that there is to say.
    Parting { until: Instant, was: Option<Was> },
}

/// Who parts.
pub(super) struct Was {
    pub(super) conn: ConnId,
    pub(super) name: String,
}

/// A lane as a client has it.
pub(super) enum LaneEnd {
    /// Not connected.
    Missing,
    /// Connected; the client has not said where records go.
    Connected {
        seat: Box<Seat>,
        connection: Connection,
    },
    /// The queue pair is the worker's.
    Attached {
        connection: Connection,
        /// How far it gets, and what was seen of that.
        progress: Arc<Progress>,
        age: Age,
    },
}

/// How a connection ends.
pub(super) struct Ending {
    /// The lanes that have not let go.
    pub(super) waiting: LaneSet,
    /// What the client is told; nothing where it is gone.
    pub(super) goodbye: Option<(Status, String)>,
}

/// What a welcomed client has.
pub(super) struct Member {
    pub(super) conn: ConnId,
    pub(super) name: String,
    pub(super) credits: u16,
    pub(super) since: Instant,
    pub(super) lanes: Vec<LaneEnd>,
    pub(super) regions: [Option<RemoteRegion>; MAX_REGIONS as usize],
    /// Where beats go, once lane 0 is open.
    pub(super) beat: Option<Remote>,
    /// A region that is being given up: its number, the question's sequence number, and the lanes that have not let go.
    pub(super) leaving: Option<(RegionId, u32, LaneSet)>,
    /// A schema that the workers are to know.
    pub(super) binding: Option<BindCall>,
    pub(super) ending: Option<Ending>,
}

impl Member {
    /// Whether all lanes are open.
    pub(super) fn is_live(&self) -> bool {
        let open = |lane: &LaneEnd| matches!(lane, LaneEnd::Attached { .. });
        self.lanes.iter().all(open)
    }

    /// Whether its last control message is not answered.
    pub(super) fn awaits_answer(&self) -> bool {
        self.leaving.is_some() || self.binding.is_some()
    }

    pub(super) fn region_bytes(&self) -> u64 {
        self.regions.iter().flatten().map(|r| r.bytes).sum()
    }
}

impl Session {
    pub(super) fn member(&mut self) -> Option<&mut Member> {
        match &mut self.phase {
            Phase::Member(member) => Some(member),
            _ => None,
        }
    }

    /// Queue pairs that it has.
    pub(super) fn queue_pairs(&self) -> u64 {
        let lanes = match &self.phase {
            Phase::Member(member) => {
                let made = |lane: &&LaneEnd| !matches!(lane, LaneEnd::Missing);
                member.lanes.iter().filter(made).count()
            }
            _ => 0,
        };
        1 + lanes as u64
    }

    /// Whether a schema of its is on its way to the workers.
    pub(super) fn binds(&self) -> bool {
        matches!(&self.phase, Phase::Member(member) if member.binding.is_some())
    }

    /// What status pages show; nothing of those that have not said hello.
    pub(super) fn info(&self) -> Option<ConnectionInfo> {
        let Phase::Member(member) = &self.phase else {
            return None;
        };
        Some(ConnectionInfo {
            conn: member.conn,
            client: member.name.clone(),
            peer: self.peer,
            credits: member.credits,
            regions: member.regions.iter().flatten().count() as u32,
            region_bytes: member.region_bytes(),
            ending: member.ending.is_some(),
        })
    }
}
