//! One connection as the control thread sees it.

use std::sync::Arc;
use std::time::Instant;

use rowmill_arena::Region;
use rowmill_wire::limits::MAX_REGIONS;

use super::dispose::ClientStream;
use super::inbox::Link;
use super::server::ConnectionInfo;
use crate::control::{Bell, BindCall, LaneSet};
use crate::{ConnId, RegionId};

/// A client's connection. Fields are dropped in this order: regions go before the stream is closed.
pub(super) struct Session {
    pub(super) phase: Phase,
    pub(super) stream: Arc<ClientStream>,
    pub(super) pid: i32,
    pub(super) uid: u32,
}

/// How far a connection has come.
pub(super) enum Phase {
    /// Connected, and has not said hello.
    Greeting { since: Instant },
    /// Has a number and rings.
    Member(Box<Member>),
}

/// What a welcomed client has.
pub(super) struct Member {
    pub(super) conn: ConnId,
    pub(super) name: String,
    pub(super) credits: u16,
    pub(super) regions: [Option<Arc<Region>>; MAX_REGIONS as usize],
    /// One a lane; the client rings them.
    pub(super) doorbells: Vec<Bell>,
    /// A region that is being given up: its number, the question's sequence number, and the lanes that
    /// have not let go of it.
    pub(super) leaving: Option<(RegionId, u32, LaneSet)>,
    /// A schema that the workers are to know.
    pub(super) binding: Option<BindCall>,
    /// Once the connection has ended: the lanes that have not let go.
    pub(super) ending: Option<LaneSet>,
    /// Whether the client hung up or broke the protocol, so that nobody reads its records any more.
    pub(super) left: bool,
    // Last, since it keeps the stream open.
    pub(super) link: Arc<Link>,
}

impl Member {
    /// Whether its last control message is not answered.
    pub(super) fn awaits_answer(&self) -> bool {
        self.leaving.is_some() || self.binding.is_some()
    }
}

impl Session {
    pub(super) fn member(&mut self) -> Option<&mut Member> {
        match &mut self.phase {
            Phase::Member(member) => Some(member),
            Phase::Greeting { .. } => None,
        }
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
        let regions = || member.regions.iter().flatten();
        Some(ConnectionInfo {
            conn: member.conn,
            client: member.name.clone(),
            pid: self.pid,
            uid: self.uid,
            credits: member.credits,
            regions: regions().count() as u32,
            region_bytes: regions().map(|r| r.len() as u64).sum(),
            ending: member.ending.is_some(),
        })
    }
}
