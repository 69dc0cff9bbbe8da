//! The link between a worker and clients whose memory it can't reach: WRITEs that are under way, and connections that fail.
//!
//! What is simulated is what soft-RoCE was seen to do, as far as it shows at the contract:
//! * WRITEs are placed late and in any order, each before the record that was posted behind it; what a WRITE carries is read
//!   from the worker's block when it is placed, so that a block that is used again too early shows.
//! * A connection fails at any moment, in the middle of a worker's step too, as by a completion with an error or an
//!   asynchronous event: of what is under way a first part arrives, records behind it never do, and WRITEs behind it may
//!   still be placed (retransmissions), until the queue pair is destroyed at either end. What is posted to it later meets the
//!   same end. Each side learns of it when it likes: one that hears nothing gives up after a while.
//! * A link is silent for a while: nothing arrives, nothing is reported. If it lasts, that is a failure.
//! * Connecting fails, or is accepted and the client never hears of it. A fetch fails and ends the connection. Data of a
//!   fetch that was given back still arrive, and take their room until then.
//!
//! What is not, since nothing of it passes the contract: errors of single work requests (each ends its connection, whatever
//! its code), stale completions and the numbers of queue pairs (the device tests reuse those), receivers that are not ready
//! (`rdma::bounds` proves that there are none), credits beside those of records, the sharing of one link by connections, and
//! packets that outlive the queue pair that sent them (the client's fence ends them like all others).

use std::cell::RefCell;
use std::rc::Rc;

use super::Mistake;
use super::log::What;
use super::memory::SimMemory;
use super::net::{Inbox, Net};
use crate::{ConnId, Event, RegionError, RegionId};

/// How a link fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Of 100,000 things that a worker posts (pieces of results, records, fetches) how many end their connection.
    pub failures_per_100k: u32,
    /// Of 1000 attempts to connect how many fail, half of them after the dataplane has let the client in.
    pub lost_connects_per_mille: u32,
    /// Nanoseconds of silence after which a side takes the other for lost.
    pub silence_ns: u64,
    /// Nanoseconds that what was under way may still be, at most, after its connection has failed.
    pub dying_ns: u64,
}

/// A WRITE that is under way.
pub(super) struct Write {
    due: u64,
    conn: ConnId,
    lane: usize,
    region: RegionId,
    memory: Rc<SimMemory>,
    offset: u64,
    /// Where its bytes are read when it is placed.
    block: Rc<SimMemory>,
    from: usize,
    len: usize,
    /// Tells the client from a later one of the same number.
    inbox: Rc<RefCell<Inbox>>,
}

impl Write {
    /// What becomes of it when its connection fails at a moment: it is lost, or placed later with what it carried.
    fn lingers(self, moment: u64, dying_ns: u64, rng: &mut fastrand::Rng) -> Option<Write> {
        let carried = self.block.clone_part(self.from, self.len);
        let write = Write {
            due: moment + rng.u64(0..=dying_ns),
            block: Rc::new(carried),
            from: 0,
            ..self
        };
        rng.bool().then_some(write)
    }
}

/// All WRITEs that are under way.
#[derive(Default)]
pub(super) struct Writes(Vec<Write>);

impl Writes {
    /// When the last of a lane's to a connection is placed.
    fn last_due(&self, conn: ConnId, lane: usize) -> u64 {
        let of_lane = self.0.iter().filter(|w| w.conn == conn && w.lane == lane);
        of_lane.map(|w| w.due).max().unwrap_or(0)
    }

    fn reach(&self, conn: ConnId, region: RegionId) -> bool {
        self.0.iter().any(|w| w.conn == conn && w.region == region)
    }
}

impl Net {
    /// When something that is posted to a connection now arrives.
    pub(super) fn due_at(&mut self, conn: ConnId) -> u64 {
        let due = self.draw_due();
        let silent = self.connection_mut(conn).map_or(0, |c| c.silent_until);
        due.max(silent)
    }

    /// A record arrives after what was posted before it.
    pub(super) fn record_due(&mut self, conn: ConnId, lane: usize) -> u64 {
        let due = self.due_at(conn);
        match self.faults.mistake {
            Some(Mistake::RecordOvertakesData) => due,
            _ => due.max(self.writes.last_due(conn, lane)),
        }
    }

    /// Posts the WRITE of a piece of a block; when it will have been sent.
    pub(super) fn post_write(
        &mut self,
        lane: usize,
        conn: ConnId,
        region: RegionId,
        offset: u64,
        (block, from, len): (&Rc<SimMemory>, usize, usize),
    ) -> Result<u64, RegionError> {
        let memory = self.grant(lane, conn, region, offset, len as u64)?;
        if let Some(posted) = self
            .region_mut(conn, region)
            .and_then(|r| r.posted.as_ref())
        {
            posted
                .window()
                .write(offset as usize, &block.bytes(from, len));
        }
        let due = self.due_at(conn);
        let connection = self.connection_mut(conn).ok_or(RegionError::Unknown)?;
        let inbox = Rc::clone(&connection.inbox);
        let failed = inbox.borrow().cut_due.is_some();
        let write = Write {
            due,
            conn,
            lane,
            region,
            memory,
            offset,
            block: Rc::clone(block),
            from,
            len,
            inbox,
        };
        let dying_ns = self.dying_ns();
        // What is posted to a connection that has failed lingers like what was posted before.
        let write = match failed {
            true => write.lingers(self.now_ns, dying_ns, &mut self.rng),
            false => Some(write),
        };
        self.writes.0.extend(write);
        Ok(due)
    }

    /// Of a worker's posts to a connection some end it.
    pub(super) fn may_fail(&mut self, conn: ConnId) {
        let per_100k = self.bounds.far.map_or(0, |far| far.link.failures_per_100k);
        if self.rng.u32(0..100_000) < per_100k {
            self.cut(conn);
        }
    }

    /// Whether an attempt to connect fails, and if so whether the dataplane lets the client in nevertheless.
    pub(super) fn loses_connect(&mut self) -> Option<bool> {
        let link = self.bounds.far?.link;
        let lost = self.rng.u32(0..1000) < link.lost_connects_per_mille;
        lost.then(|| self.rng.bool())
    }

    /// Places what is due, in the order in which it is.
    pub(super) fn land(&mut self) {
        let now_ns = self.now_ns;
        if !self.writes.0.iter().any(|w| w.due <= now_ns) {
            return;
        }
        let (mut due, rest): (Vec<Write>, Vec<Write>) =
            self.writes.0.drain(..).partition(|w| w.due <= now_ns);
        self.writes.0 = rest;
        due.sort_by_key(|w| w.due);
        for write in due {
            self.place(&write);
        }
        for at in 0..self.connections.len() as u32 {
            self.let_regions_go(ConnId(at));
        }
    }

    fn place(&mut self, write: &Write) {
        if write.inbox.borrow().fenced {
            return;
        }
        let (conn, region) = (write.conn, write.region);
        if self.region_mut(conn, region).is_some_and(|r| r.lost) {
            // The client's memory refuses it, which ends the connection before whatever was posted behind it.
            let before = write.due.saturating_sub(1);
            write.inbox.borrow_mut().records[write.lane].cut_off(before);
            return self.cut(conn);
        }
        let bytes = write.block.bytes(write.from, write.len);
        write.memory.window().write(write.offset as usize, &bytes);
        let landed = What::Landed {
            lane: write.lane as u16,
            region,
            offset: write.offset,
            len: write.len as u64,
        };
        self.note(conn, landed);
    }

    /// Forgets regions that all lanes have acknowledged the end of and that nothing under way can reach.
    pub(super) fn let_regions_go(&mut self, conn: ConnId) {
        let (lanes, early) = (
            self.lanes.len(),
            self.faults.mistake == Some(Mistake::RegionLetGoEarly),
        );
        let Net {
            connections,
            writes,
            ..
        } = self;
        let Some(connection) = connections
            .get_mut(conn.0 as usize)
            .and_then(Option::as_mut)
        else {
            return;
        };
        let mut gone = Vec::new();
        for (id, region) in (0..).map(RegionId).zip(&mut connection.regions) {
            let released = region.as_ref().is_some_and(|r| r.released == lanes);
            if released && (early || !writes.reach(conn, id)) {
                *region = None;
                gone.push(id);
            }
        }
        for region in gone {
            self.note(conn, What::Unregistered { region });
        }
    }

    /// A connection fails: what arrives before a moment that is drawn arrives, records behind it are lost, and WRITEs behind
    /// it linger. Both sides learn of it, each at its time.
    pub(super) fn fail(&mut self, conn: ConnId, link: Link) {
        let moment = self.now_ns + self.rng.u64(0..=link.dying_ns);
        let heard = moment + self.rng.u64(0..=link.silence_ns);
        let Some(connection) = self.connection_mut(conn) else {
            return;
        };
        let mut inbox = connection.inbox.borrow_mut();
        for records in &mut inbox.records {
            records.cut_off(moment);
        }
        inbox.cut_due = Some(heard);
        drop(inbox);
        self.note(conn, What::Cut);
        self.linger(conn, moment);
        let told = self.rng.u64(0..=link.silence_ns);
        self.tell_lanes_in(told, Event::Detached { conn });
    }

    /// WRITEs to a connection that fails linger where they would be placed after this moment.
    fn linger(&mut self, conn: ConnId, moment: u64) {
        let dying_ns = self.dying_ns();
        for write in std::mem::take(&mut self.writes.0) {
            let fails = write.conn == conn && write.due > moment;
            let left = match fails {
                true => write.lingers(moment, dying_ns, &mut self.rng),
                false => Some(write),
            };
            self.writes.0.extend(left);
        }
    }

    /// All queue pairs are gone: what had left is placed now, the rest never.
    pub(super) fn break_off_writes(&mut self) {
        self.land();
        for write in std::mem::take(&mut self.writes.0) {
            if self.rng.bool() {
                self.place(&write);
            }
        }
    }

    /// A worker lets go of a connection: of what is under way nothing arrives any more.
    pub(super) fn destroy_queue_pair(&mut self, conn: ConnId, lane: usize) {
        let mistaken = self.faults.mistake == Some(Mistake::QueuePairStays);
        if self.bounds.far.is_none() || mistaken {
            return;
        }
        self.writes.0.retain(|w| w.conn != conn || w.lane != lane);
        let now_ns = self.now_ns;
        if let Some(connection) = self.connection_mut(conn) {
            connection.inbox.borrow_mut().records[lane].cut_off(now_ns);
        }
    }

    fn dying_ns(&self) -> u64 {
        self.bounds.far.map_or(0, |far| far.link.dying_ns)
    }

    /// Nothing arrives over a connection's link for a while; if it is long, each side gives the other up.
    pub(super) fn silence(&mut self, conn: ConnId, for_ns: u64) {
        let Some(link) = self.bounds.far.map(|far| far.link) else {
            return;
        };
        let until = self.now_ns + for_ns;
        let Some(connection) = self.connection_mut(conn) else {
            return;
        };
        if connection.inbox.borrow().cut_due.is_some() {
            return;
        }
        connection.silent_until = until;
        for lane in &mut connection.lanes {
            lane.submissions.hold_up(until);
        }
        let mut inbox = connection.inbox.borrow_mut();
        inbox.records.iter_mut().for_each(|r| r.hold_up(until));
        drop(inbox);
        let Net { writes, lanes, .. } = self;
        for write in writes.0.iter_mut().filter(|w| w.conn == conn) {
            write.due = write.due.max(until);
            if let Some(room) = &mut lanes[write.lane].room {
                room.hold_up(&write.block, until);
            }
        }
        self.note(conn, What::Silent { for_ns });
        if for_ns > link.silence_ns {
            self.fail(conn, link);
        }
    }
}
