//! One connection as the control thread sees it.

use std::sync::Arc;
use std::time::Instant;

use rowmill_arena::Region;
use rowmill_wire::limits::MAX_REGIONS;

use super::bell::Bell;
use super::dispose::ClientStream;
use super::inbox::{LaneSet, Link};
use super::server::ConnectionInfo;
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
    /// Once the connection has ended: the lanes that have not let go.
    pub(super) ending: Option<LaneSet>,
    /// Whether the client hung up or broke the protocol, so that nobody reads its records any more.
    pub(super) left: bool,
    // Last, since it keeps the stream open.
    pub(super) link: Arc<Link>,
}

impl Session {
    pub(super) fn member(&mut self) -> Option<&mut Member> {
        match &mut self.phase {
            Phase::Member(member) => Some(member),
            Phase::Greeting { .. } => None,
        }
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

/// Lets a bounded number of lines about clients into the log each second, so that none can fill it, and
/// says how many it kept out.
pub(super) struct LogLimit {
    since: Instant,
    lines: u32,
}

impl LogLimit {
    const LINES_PER_SECOND: u32 = 10;

    pub(super) fn new(now: Instant) -> LogLimit {
        LogLimit {
            since: now,
            lines: 0,
        }
    }

    /// Whether a line may be written now.
    pub(super) fn admit(&mut self, now: Instant) -> bool {
        if now.duration_since(self.since).as_secs() >= 1 {
            let kept_out = self.lines.saturating_sub(Self::LINES_PER_SECOND);
            if kept_out > 0 {
                tracing::warn!(kept_out, "lines about shm clients were left out of the log");
            }
            *self = LogLimit::new(now);
        }
        self.lines += 1;
        self.lines <= Self::LINES_PER_SECOND
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_log_is_bounded() {
        let start = Instant::now();
        let mut limit = LogLimit::new(start);
        let admitted = (0..1000).filter(|_| limit.admit(start)).count();
        assert_eq!(admitted, 10);
        assert!(limit.admit(start + Duration::from_secs(1)));
    }
}
