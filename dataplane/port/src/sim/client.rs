//! A session's half of the simulated port, and what a hostile client can do besides.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rowmill_arena::{Region, Window};
use rowmill_wire::control::{Control, Rights, TableEntry, Welcome};
use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::{Completion, CompletionKind, Immediate, Schema, Status};

use super::log::What;
use super::memory::SimMemory;
use super::net::{Connection, Inbox, Net};
use super::{Mistake, SimNet, refused};
use crate::{ClientPort, ConnId, Event, PortError, RegionId, Rest, WakeFds};

/// A client's connection. Dropping it is what the end of the client's process is.
pub struct SimClient {
    net: SimNet,
    conn: ConnId,
    welcome: Welcome,
    memory: BTreeMap<RegionId, Rc<SimMemory>>,
    inbox: Rc<RefCell<Inbox>>,
    /// Lanes and slots of requests that no cancel was sent for.
    cancellable: BTreeSet<(u16, u16)>,
}

impl SimClient {
    pub(super) fn connect(
        net: &SimNet,
        client: &str,
        credits: u16,
    ) -> Result<SimClient, PortError> {
        net.travel("hello")?;
        if net.net.borrow().stopped {
            return Err(PortError::Closed);
        }
        if net.now_ns() < net.net.borrow().down_until {
            return Err(PortError::Connect {
                endpoint: "sim".to_owned(),
                source: std::io::ErrorKind::ConnectionRefused.into(),
            });
        }
        let mut welcome = match net.service.welcome(client) {
            Ok(welcome) => welcome,
            Err((refusal, detail)) => return Err(PortError::Refused { refusal, detail }),
        };
        let lost = net.net.borrow_mut().loses_connect();
        if lost == Some(false) {
            return Err(PortError::Connect {
                endpoint: "sim".to_owned(),
                source: std::io::ErrorKind::ConnectionRefused.into(),
            });
        }
        let bounds = net.net.borrow().bounds;
        welcome.credits = welcome.credits.min(credits).min(bounds.credits).max(1);
        welcome.max_region = bounds.max_region;
        // What the shared-memory port does: room for every record that the credits allow for.
        let records = usize::from(welcome.credits) * rowmill_wire::limits::MAX_SLICES as usize;
        welcome.completions = records.next_power_of_two() as u32;
        let attached = net
            .net
            .borrow_mut()
            .attach(welcome.credits, welcome.completions as usize);
        let (conn, inbox) = attached.ok_or_else(|| {
            refused(
                Status::LimitReached,
                &format!("at most {} clients at a time", bounds.connections),
            )
        })?;
        let client = SimClient {
            net: net.clone(),
            conn,
            welcome,
            memory: BTreeMap::new(),
            inbox,
            cancellable: BTreeSet::new(),
        };
        if lost.is_some() {
            // The dataplane has let it in, and it never hears of that. Dropping it is what its giving up is.
            return Err(PortError::Connect {
                endpoint: "sim".to_owned(),
                source: std::io::ErrorKind::TimedOut.into(),
            });
        }
        let index = conn.0 as usize;
        let known = |net: &Net| {
            net.connections[index]
                .as_ref()
                .is_none_or(|c| c.lanes.iter().all(|l| l.attached))
        };
        client.wait_for("hello", known)?;
        Ok(client)
    }

    /// The connection's number.
    pub fn conn(&self) -> ConnId {
        self.conn
    }

    /// Whether the connection is ending, though the client may not have been told yet.
    pub fn is_cut(&self) -> bool {
        self.inbox.borrow().cut_due.is_some()
    }

    /// Whether the client has been told that the connection ended.
    fn is_closed(&self) -> bool {
        let due = self.inbox.borrow().cut_due;
        let closed = due.is_some_and(|due| due <= self.net.now_ns());
        if closed {
            self.fence();
        }
        closed
    }

    /// Destroys its queue pairs: nothing is written to its memory any more.
    fn fence(&self) {
        let mut net = self.net.net.borrow_mut();
        let forgotten = net.faults.mistake == Some(Mistake::FenceForgotten);
        if std::mem::replace(&mut self.inbox.borrow_mut().fenced, !forgotten) {
            return;
        }
        // Later the number may be another's.
        let own = |c: &mut Connection| Rc::ptr_eq(&c.inbox, &self.inbox);
        if net.bounds.far.is_some() && net.connection_mut(self.conn).is_some_and(own) {
            net.note(self.conn, What::Fenced);
        }
    }

    /// Lets the world go on until `done`, or the connection ends.
    fn wait_for(&self, what: &str, mut done: impl FnMut(&Net) -> bool) -> Result<(), PortError> {
        self.net.wait_for(what, |net| {
            self.inbox.borrow().cut_due.is_some() || done(net)
        })
    }

    fn open(&self) -> Result<(), PortError> {
        if self.is_closed() {
            Err(PortError::Closed)
        } else {
            Ok(())
        }
    }

    /// Puts any 32 bits into a lane's submission queue. A queue that is overfilled cuts the client off.
    ///
    /// # Errors
    /// [`PortError::Closed`].
    pub fn submit_bits(&mut self, lane: u16, bits: u32) -> Result<(), PortError> {
        self.open()?;
        if self.is_cut() {
            // It goes to where nobody listens any more.
            return Ok(());
        }
        let mut net = self.net.net.borrow_mut();
        let conn = self.conn;
        let due = net.due_at(conn);
        net.note(conn, What::Submitted { lane, bits });
        let connection = net
            .connection_mut(conn)
            .expect("a connection is there until it is cut");
        // For every slot a request, its cancel, and the cancel of the request before, which may have
        // ended without it.
        let room = 3 * usize::from(connection.credits);
        let queue = &mut connection.lanes[usize::from(lane)].submissions;
        if queue.len() >= room {
            net.close(conn, Status::LimitReached);
        } else {
            queue.push(due, bits);
        }
        Ok(())
    }

    /// Writes into a slot of the request ring at any time, a submitted frame's too.
    ///
    /// # Panics
    /// If there is no such slot, or the bytes leave it.
    pub fn write_slot(&mut self, lane: u16, slot: u16, offset: usize, bytes: &[u8]) {
        if self.is_cut() {
            return;
        }
        if let Some(connection) = self.net.net.borrow_mut().connection_mut(self.conn) {
            let slot = &mut connection.lanes[usize::from(lane)].ring[usize::from(slot)];
            slot[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Begins to give a region up; [`SimClient::is_registered`] says when the dataplane has done so.
    ///
    /// # Errors
    /// [`PortError::Closed`].
    pub fn begin_unregister(&mut self, region: RegionId) -> Result<(), PortError> {
        self.open()?;
        if self.is_cut() {
            return Ok(());
        }
        let mut net = self.net.net.borrow_mut();
        net.note(self.conn, What::Unregistering { region });
        net.tell_lanes(Event::RegionGone {
            conn: self.conn,
            region,
        });
        Ok(())
    }

    /// Whether the dataplane still has the region.
    pub fn is_registered(&self, region: RegionId) -> bool {
        !self.is_cut()
            && self
                .net
                .net
                .borrow_mut()
                .region_mut(self.conn, region)
                .is_some()
    }

    fn register_for(&mut self, bytes: usize, rights: Rights) -> Result<RegionId, PortError> {
        self.open()?;
        self.net.travel("a region")?;
        if self.is_cut() {
            return Err(PortError::Closed);
        }
        if bytes == 0 || bytes as u64 > self.welcome.max_region {
            return Err(refused(Status::RegionRefused, "the size of the region"));
        }
        let others: u64 = self.memory.values().map(|m| m.window().len() as u64).sum();
        if others + bytes as u64 > self.welcome.max_region {
            return Err(refused(Status::LimitReached, "the regions in all"));
        }
        let region = self.net.net.borrow_mut().register(self.conn, bytes, rights);
        let region = region.ok_or_else(|| refused(Status::LimitReached, "too many regions"))?;
        let memory = self.net.memory(self.conn, region).expect("just registered");
        self.memory.insert(region, memory);
        let (conn, id) = (self.conn.0 as usize, region.0 as usize);
        self.wait_for("a region", |net| {
            let region = net.connections[conn]
                .as_ref()
                .and_then(|c| c.regions[id].as_ref());
            region.is_none_or(|r| r.known == net.lanes.len())
        })?;
        self.open()?;
        Ok(region)
    }
}

impl Drop for SimClient {
    fn drop(&mut self) {
        if !self.is_cut() {
            self.net.net.borrow_mut().cut(self.conn);
        }
        self.fence();
    }
}

impl ClientPort for SimClient {
    fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    fn tables(&mut self) -> Result<Vec<TableEntry>, PortError> {
        self.open()?;
        self.net.travel("a list of tables")?;
        Ok(self.net.service.tables())
    }

    fn bind(&mut self, schema: &Schema) -> Result<u32, PortError> {
        self.open()?;
        self.net.travel("a schema")?;
        if self.is_cut() {
            // It goes to where nobody listens any more.
            return Err(PortError::Closed);
        }
        // As a real stream carries it, so that what cannot be parsed is refused here too.
        let schema = match Control::parse(&Control::Bind(schema.clone()).encode(0)) {
            Ok((_, Control::Bind(schema))) => schema,
            Ok(_) => return Err(PortError::Protocol("a schema became something else".into())),
            Err(refusal) => {
                return Err(PortError::Refused {
                    refusal,
                    detail: String::new(),
                });
            }
        };
        let begun = self.net.service.bind(self.conn, schema);
        let mut pending =
            begun.map_err(|(refusal, detail)| PortError::Refused { refusal, detail })?;
        self.wait_for("a schema", |_| pending.is_known())?;
        self.open()?;
        Ok(pending.number())
    }

    fn register(&mut self, bytes: usize) -> Result<RegionId, PortError> {
        self.register_for(bytes, Rights::Write)
    }

    fn register_source(&mut self, bytes: usize) -> Result<RegionId, PortError> {
        self.register_for(bytes, Rights::Read)
    }

    fn unregister(&mut self, region: RegionId) -> Result<(), PortError> {
        if self.memory.remove(&region).is_none() {
            return Err(refused(Status::UnknownRegion, "the region"));
        }
        self.begin_unregister(region)?;
        let conn = self.conn;
        self.wait_for("a region", |net| {
            net.connections[conn.0 as usize]
                .as_ref()
                .is_none_or(|c| c.regions[region.0 as usize].is_none())
        })
    }

    fn memory(&self, region: RegionId) -> Option<Window<'_>> {
        self.memory.get(&region).map(|memory| memory.window())
    }

    fn share(&self, _region: RegionId) -> Option<Arc<Region>> {
        None
    }

    fn submit(&mut self, lane: u16, slot: u16, frame: &[u8]) -> Result<(), PortError> {
        self.open()?;
        assert!(
            frame.len() <= SLOT_BYTES && slot < self.welcome.credits,
            "frames and slots within what was granted"
        );
        self.write_slot(lane, slot, 0, frame);
        self.cancellable.insert((lane, slot));
        self.submit_bits(
            lane,
            Immediate::Request {
                slot,
                len: frame.len() as u16,
            }
            .encode(),
        )
    }

    fn cancel(&mut self, lane: u16, slot: u16) -> Result<(), PortError> {
        // Once a request, and nothing where no request holds the slot.
        match self.cancellable.remove(&(lane, slot)) {
            true => self.submit_bits(lane, Immediate::Cancel { slot }.encode()),
            false => self.open(),
        }
    }

    fn poll(&mut self, lane: u16) -> Result<Option<Completion>, PortError> {
        self.net.net.borrow_mut().land();
        let now_ns = self.net.now_ns();
        let mut inbox = self.inbox.borrow_mut();
        if let Some(record) = inbox.records[usize::from(lane)].pop(now_ns) {
            if record.kind == CompletionKind::Final {
                self.cancellable.remove(&(lane, record.slot));
            }
            if inbox.cut_due.is_none() {
                // Later the number may be another's.
                let mut net = self.net.net.borrow_mut();
                net.note(self.conn, What::Received { lane, record });
            }
            return Ok(Some(record));
        }
        let drained = inbox.records.iter().all(|r| r.len() == 0);
        drop(inbox);
        if drained && self.is_closed() {
            return Err(PortError::Closed);
        }
        Ok(None)
    }

    fn lie_down(&mut self, limit: Option<Duration>) -> Rest {
        let (due, now_ns) = (self.inbox.borrow().next_due(), self.net.now_ns());
        match due.is_some_and(|due| due <= now_ns) {
            true => Rest::Disturbed,
            false => Rest::Quiet(limit),
        }
    }

    fn wake_fds(&self) -> WakeFds<BorrowedFd<'_>> {
        WakeFds::none()
    }

    /// Lets the world go on until something has come.
    fn sleep(&mut self, limit: Option<Duration>) -> Result<(), PortError> {
        let until = limit.map_or(u64::MAX, |limit| {
            self.net
                .now_ns()
                .saturating_add(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX))
        });
        let inbox = Rc::clone(&self.inbox);
        self.net.wait_for("a wait", |net| {
            let now_ns = net.now_ns;
            now_ns >= until || inbox.borrow().next_due().is_some_and(|due| due <= now_ns)
        })
    }

    fn get_up(&mut self) -> Result<(), PortError> {
        Ok(())
    }

    fn close(&mut self) {
        if !self.is_cut() {
            self.net.net.borrow_mut().cut(self.conn);
        }
        let now_ns = self.net.now_ns();
        let mut inbox = self.inbox.borrow_mut();
        for records in &mut inbox.records {
            records.cut_off(now_ns);
        }
        inbox.cut_due = Some(now_ns);
        drop(inbox);
        self.fence();
    }
}
