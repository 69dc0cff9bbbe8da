//! The state of a simulated net: queues of messages with the time at which each arrives.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rowmill_wire::control::Rights;
use rowmill_wire::limits::{MAX_REGIONS, SLOT_BYTES};
use rowmill_wire::{Completion, Status};

use super::far::Room;
use super::link::Writes;
use super::log::{Entry, What};
use super::memory::SimMemory;
use super::{Bounds, Faults, Loss, Scribble};
use crate::{ConnId, Event, RegionError, RegionId};

/// A queue that keeps its order, whatever the delays drawn for its messages.
#[derive(Debug)]
pub(super) struct Fifo<T> {
    queue: VecDeque<(u64, T)>,
    last_due: u64,
}

impl<T> Fifo<T> {
    fn new() -> Fifo<T> {
        Fifo {
            queue: VecDeque::new(),
            last_due: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn push(&mut self, due: u64, message: T) {
        self.last_due = self.last_due.max(due);
        self.queue.push_back((self.last_due, message));
    }

    pub(super) fn next_due(&self) -> Option<u64> {
        self.queue.front().map(|&(due, _)| due)
    }

    /// Messages that are due after `moment` are lost.
    pub(super) fn cut_off(&mut self, moment: u64) {
        self.queue.retain(|&(due, _)| due <= moment);
    }

    /// No message arrives before `until`.
    pub(super) fn hold_up(&mut self, until: u64) {
        self.last_due = self.last_due.max(until);
        for (due, _) in &mut self.queue {
            *due = until.max(*due);
        }
    }

    /// Messages that can be taken.
    pub(super) fn ready(&self, now_ns: u64) -> usize {
        self.queue
            .iter()
            .take_while(|&&(due, _)| due <= now_ns)
            .count()
    }

    pub(super) fn pop(&mut self, now_ns: u64) -> Option<T> {
        self.next_due().filter(|&due| due <= now_ns)?;
        self.queue.pop_front().map(|(_, message)| message)
    }
}

/// One lane of the dataplane.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) control: Fifo<Event>,
    /// The event given by the last poll, acknowledged by the next one.
    pub(super) given: Option<Event>,
    /// The connection that is asked first by the next poll.
    pub(super) turn: usize,
    pub(super) woken: Arc<AtomicBool>,
    /// Where its worker can't reach the memory of clients.
    pub(super) room: Option<Room>,
}

impl Lane {
    fn new(bounds: Bounds) -> Lane {
        Lane {
            control: Fifo::new(),
            given: None,
            turn: 0,
            woken: Arc::default(),
            room: bounds.far.map(Room::new),
        }
    }
}

/// What one connection has on one lane.
#[derive(Debug)]
pub(super) struct ConnLane {
    /// The worker knows of the connection.
    pub(super) attached: bool,
    /// The worker was told that it ended.
    pub(super) detached: bool,
    pub(super) submissions: Fifo<u32>,
    /// The request ring, which the client can write at any time.
    pub(super) ring: Box<[[u8; SLOT_BYTES]]>,
}

/// What is on its way to a client: it stays readable when the dataplane has forgotten the connection.
#[derive(Debug)]
pub(super) struct Inbox {
    /// Of each lane.
    pub(super) records: Vec<Fifo<Completion>>,
    /// When the client learns of the connection's end. From its being set on, the connection's number
    /// is no longer the client's to use.
    pub(super) cut_due: Option<u64>,
    /// The client has destroyed its queue pairs: nothing of this connection reaches its memory any more.
    pub(super) fenced: bool,
}

impl Inbox {
    /// When the next thing arrives.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.records
            .iter()
            .filter_map(Fifo::next_due)
            .chain(self.cut_due)
            .min()
    }
}

/// A registered region.
pub(super) struct Region {
    pub(super) client: Rc<SimMemory>,
    /// What the dataplane has mapped: the client's memory, or what took its place when that was lost.
    pub(super) server: Rc<SimMemory>,
    rights: Rights,
    /// Where workers are far: what was posted, wherever it is now, at its place in the region.
    pub(super) posted: Option<Rc<SimMemory>>,
    pub(super) lost: bool,
    lose_at_grant: bool,
    pub(super) scribble: Option<Scribble>,
    /// Lanes that have been told of it.
    pub(super) known: usize,
    /// Lanes that must not touch it any more.
    pub(super) gone: Box<[bool]>,
    /// Lanes that have acknowledged that.
    pub(super) released: usize,
}

/// A connection.
pub(super) struct Connection {
    pub(super) credits: u16,
    pub(super) completions: usize,
    pub(super) lanes: Vec<ConnLane>,
    pub(super) regions: Vec<Option<Region>>,
    pub(super) inbox: Rc<RefCell<Inbox>>,
    /// Until when its link is silent.
    pub(super) silent_until: u64,
    /// Lanes that have acknowledged the end.
    released: usize,
}

/// The net.
pub(super) struct Net {
    pub(super) now_ns: u64,
    pub(super) rng: fastrand::Rng,
    pub(super) faults: Faults,
    pub(super) bounds: Bounds,
    /// The dataplane's program has ended.
    pub(super) stopped: bool,
    /// Until when nobody listens.
    pub(super) down_until: u64,
    pub(super) lanes: Vec<Lane>,
    pub(super) connections: Vec<Option<Connection>>,
    /// What was placed and has not reached its client.
    pub(super) writes: Writes,
    pub(super) log: Vec<Entry>,
}

impl Net {
    pub(super) fn new(seed: u64, bounds: Bounds, faults: Faults) -> Net {
        Net {
            now_ns: 0,
            rng: fastrand::Rng::with_seed(seed),
            faults,
            bounds,
            stopped: false,
            down_until: 0,
            lanes: (0..bounds.lanes).map(|_| Lane::new(bounds)).collect(),
            connections: (0..bounds.connections).map(|_| None).collect(),
            writes: Writes::default(),
            log: Vec::new(),
        }
    }

    pub(super) fn note(&mut self, conn: ConnId, what: What) {
        self.log.push(Entry {
            at_ns: self.now_ns,
            conn,
            what,
        });
    }

    /// When a message that leaves now arrives.
    pub(super) fn draw_due(&mut self) -> u64 {
        let held_up = self.rng.u32(0..1000) < self.faults.held_up_per_mille;
        let more = if held_up { self.faults.held_up_ns } else { 0 };
        self.now_ns + self.rng.u64(self.faults.delay_ns.clone()) + more
    }

    pub(super) fn connection_mut(&mut self, conn: ConnId) -> Option<&mut Connection> {
        self.connections.get_mut(conn.0 as usize)?.as_mut()
    }

    pub(super) fn region_mut(&mut self, conn: ConnId, region: RegionId) -> Option<&mut Region> {
        self.connection_mut(conn)?
            .regions
            .get_mut(region.0 as usize)?
            .as_mut()
    }

    /// A connection with a free number, announced to every lane.
    pub(super) fn attach(
        &mut self,
        credits: u16,
        completions: usize,
    ) -> Option<(ConnId, Rc<RefCell<Inbox>>)> {
        let free = self.connections.iter().position(Option::is_none)?;
        let conn = ConnId(free as u32);
        let lane = |_| ConnLane {
            attached: false,
            detached: false,
            submissions: Fifo::new(),
            ring: vec![[0; SLOT_BYTES]; usize::from(credits)].into_boxed_slice(),
        };
        let records = (0..self.lanes.len()).map(|_| Fifo::new()).collect();
        let inbox = Rc::new(RefCell::new(Inbox {
            records,
            cut_due: None,
            fenced: false,
        }));
        self.connections[free] = Some(Connection {
            credits,
            completions,
            lanes: (0..self.lanes.len()).map(lane).collect(),
            regions: Vec::new(),
            inbox: Rc::clone(&inbox),
            silent_until: 0,
            released: 0,
        });
        self.note(conn, What::Connected);
        self.tell_lanes(Event::Attached { conn, credits });
        Some((conn, inbox))
    }

    /// Registers zeroed memory, and tells the lanes. `None` when there are too many regions.
    pub(super) fn register(
        &mut self,
        conn: ConnId,
        bytes: usize,
        rights: Rights,
    ) -> Option<RegionId> {
        let lanes = self.lanes.len();
        let far = self.bounds.far.is_some();
        let regions = &mut self.connection_mut(conn)?.regions;
        let free = regions
            .iter()
            .position(Option::is_none)
            .unwrap_or(regions.len());
        if free >= MAX_REGIONS as usize {
            return None;
        }
        let memory = Rc::new(SimMemory::new(bytes));
        let region = Region {
            client: Rc::clone(&memory),
            server: memory,
            rights,
            posted: far.then(|| Rc::new(SimMemory::new(bytes))),
            lost: false,
            lose_at_grant: false,
            scribble: None,
            known: 0,
            gone: vec![false; lanes].into_boxed_slice(),
            released: 0,
        };
        if free == regions.len() {
            regions.push(Some(region));
        } else {
            regions[free] = Some(region);
        }
        let region = RegionId(free as u32);
        self.note(
            conn,
            What::Registered {
                region,
                len: bytes as u64,
            },
        );
        self.tell_lanes(Event::Region {
            conn,
            region,
            len: bytes as u64,
        });
        Some(region)
    }

    /// Tells every lane, each at its time.
    pub(super) fn tell_lanes(&mut self, event: Event) {
        self.tell_lanes_in(0, event);
    }

    /// The same, so much later.
    pub(super) fn tell_lanes_in(&mut self, later_ns: u64, event: Event) {
        for lane in 0..self.lanes.len() {
            let due = self.draw_due() + later_ns;
            self.lanes[lane].control.push(due, event);
        }
    }

    pub(super) fn cut(&mut self, conn: ConnId) {
        let (due, far) = (self.draw_due(), self.bounds.far);
        let Some(connection) = self.connection_mut(conn) else {
            return;
        };
        let mut inbox = connection.inbox.borrow_mut();
        if inbox.cut_due.is_some() {
            return;
        }
        if let Some(far) = far {
            drop(inbox);
            return self.fail(conn, far.link);
        }
        // The client learns of the end after the records that were on their way.
        let last_record = inbox.records.iter().map(|r| r.last_due).max();
        inbox.cut_due = Some(due.max(last_record.unwrap_or(0)));
        drop(inbox);
        self.note(conn, What::Cut);
        self.tell_lanes(Event::Detached { conn });
    }

    /// The dataplane's process dies, and another listens in its place from `until` on, with nothing of it. Of WRITEs under way some had been
    /// sent, and are placed; no connection is left.
    pub(super) fn kill(&mut self, until: u64) {
        self.down_until = until;
        self.break_off_writes();
        for at in 0..self.connections.len() {
            let conn = ConnId(at as u32);
            let Some(connection) = self.connections[at].take() else {
                continue;
            };
            let (due, now_ns, far) = (self.draw_due(), self.now_ns, self.bounds.far.is_some());
            let mut inbox = connection.inbox.borrow_mut();
            if far {
                inbox.records.iter_mut().for_each(|r| r.cut_off(now_ns));
            }
            if inbox.cut_due.is_none() {
                // In memory that is shared, records that were on their way are there.
                let last_record = inbox.records.iter().map(|r| r.last_due).max();
                inbox.cut_due = Some(due.max(last_record.unwrap_or(0)));
                self.note(conn, What::Cut);
            }
            drop(inbox);
            for (lane, own) in (0..).zip(&connection.lanes) {
                if !own.detached {
                    self.note(conn, What::Detached { lane });
                }
                self.note(conn, What::Released { lane });
            }
            self.note(conn, What::Gone);
        }
        let bounds = self.bounds;
        self.lanes.fill_with(|| Lane::new(bounds));
    }

    /// A worker or the port cuts a client off.
    pub(super) fn close(&mut self, conn: ConnId, why: Status) {
        self.note(conn, What::Closed { why });
        self.cut(conn);
    }

    pub(super) fn lose(&mut self, conn: ConnId, id: RegionId, when: Loss) {
        let Some(region) = self.region_mut(conn, id).filter(|r| !r.lost) else {
            return;
        };
        match when {
            Loss::AtNextGrant => region.lose_at_grant = true,
            Loss::Now => {
                region.lost = true;
                region.server = Rc::new(SimMemory::new(region.client.len()));
                self.note(conn, What::Lost { region: id });
            }
        }
    }

    /// The region as a lane may use it now, if the range lies inside it.
    pub(super) fn usable(
        &mut self,
        lane: usize,
        conn: ConnId,
        region: RegionId,
        offset: u64,
        len: u64,
        right: fn(Rights) -> bool,
    ) -> Result<&mut Region, RegionError> {
        let connection = self.connection_mut(conn).ok_or(RegionError::Unknown)?;
        if connection.lanes[lane].detached {
            return Err(RegionError::Unknown);
        }
        let region = connection
            .regions
            .get_mut(region.0 as usize)
            .and_then(Option::as_mut);
        let region = region
            .filter(|r| !r.gone[lane])
            .ok_or(RegionError::Unknown)?;
        if !right(region.rights) {
            return Err(RegionError::Forbidden);
        }
        if region.lost {
            return Err(RegionError::Lost);
        }
        match offset.checked_add(len) {
            Some(end) if end <= region.client.len() as u64 => Ok(region),
            _ => Err(RegionError::OutOfBounds),
        }
    }

    /// Copies bytes out of a region for a worker; they may change just before.
    pub(super) fn read(
        &mut self,
        lane: usize,
        conn: ConnId,
        id: RegionId,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), RegionError> {
        let from = self.usable(lane, conn, id, offset, out.len() as u64, Rights::read)?;
        let scribbled = from.scribble.is_some();
        if let Some(scribble) = &mut from.scribble {
            scribble(from.client.window(), offset, out.len());
        }
        from.server.window().read(offset as usize, out);
        if scribbled {
            self.note(conn, What::Scribbled { region: id });
        }
        let read = What::Read {
            lane: lane as u16,
            region: id,
            offset,
            bytes: out.to_vec(),
        };
        self.note(conn, read);
        Ok(())
    }

    /// Grants a window's memory; a loss that waits for it happens now.
    pub(super) fn grant(
        &mut self,
        lane: usize,
        conn: ConnId,
        id: RegionId,
        offset: u64,
        len: u64,
    ) -> Result<Rc<SimMemory>, RegionError> {
        let region = self.usable(lane, conn, id, offset, len, Rights::write)?;
        let strike = region.lose_at_grant && len > 0;
        if strike {
            region.lost = true;
            region.server = Rc::new(SimMemory::new(region.client.len()));
        }
        let memory = Rc::clone(&region.server);
        self.note(
            conn,
            What::Granted {
                lane: lane as u16,
                region: id,
                offset,
                len,
            },
        );
        if strike {
            self.note(conn, What::Lost { region: id });
        }
        Ok(memory)
    }

    /// Queues a record for the client; one that does not read cuts itself off when its queue is full.
    pub(super) fn announce(&mut self, lane: usize, conn: ConnId, record: &Completion) {
        let (due, far) = (self.record_due(conn, lane), self.bounds.far.is_some());
        let Some(connection) = self
            .connection_mut(conn)
            .filter(|c| !c.lanes[lane].detached)
        else {
            return;
        };
        let mut inbox = connection.inbox.borrow_mut();
        if inbox.records[lane].len() >= connection.completions {
            drop(inbox);
            return self.close(conn, Status::LimitReached);
        }
        match inbox.cut_due {
            // What follows a failure is lost.
            Some(_) if far => {}
            Some(cut) => inbox.records[lane].push(due.min(cut), *record),
            None => inbox.records[lane].push(due, *record),
        }
        drop(inbox);
        self.note(
            conn,
            What::Announced {
                lane: lane as u16,
                record: *record,
            },
        );
        self.may_fail(conn);
    }

    /// Books that a lane holds nothing of what the event before ended. Returns a connection that is
    /// now gone altogether.
    pub(super) fn acknowledge(&mut self, lane: usize) -> Option<ConnId> {
        let lanes = self.lanes.len();
        match self.lanes[lane].given.take()? {
            Event::RegionGone { conn, region: id } => {
                self.note(
                    conn,
                    What::RegionReleased {
                        lane: lane as u16,
                        region: id,
                    },
                );
                if let Some(region) = self.region_mut(conn, id) {
                    region.released += 1;
                    self.let_regions_go(conn);
                }
                None
            }
            Event::Detached { conn } => {
                self.note(conn, What::Released { lane: lane as u16 });
                self.destroy_queue_pair(conn, lane);
                let connection = self.connection_mut(conn)?;
                connection.released += 1;
                (connection.released == lanes).then_some(conn)
            }
            _ => None,
        }
    }

    pub(super) fn next_at_lane(&self, lane: usize) -> Option<u64> {
        let submissions = self.connections.iter().flatten().map(|c| &c.lanes[lane]);
        let submissions = submissions
            .filter(|l| l.attached && !l.detached)
            .filter_map(|l| l.submissions.next_due());
        // An event that was given waits to be acknowledged by one more poll.
        let ack = self.lanes[lane].given.map(|_| self.now_ns);
        let room = self.lanes[lane].room.as_ref().and_then(Room::next_due);
        submissions
            .chain(self.lanes[lane].control.next_due())
            .chain(ack)
            .chain(room)
            .min()
    }
}
