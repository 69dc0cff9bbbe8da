//! A worker's half of the simulated port.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rowmill_arena::{Layout, Staging, Strip, Window};
use rowmill_wire::control::Rights;
use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::{Completion, Immediate, Status};

use super::log::What;
use super::memory::SimMemory;
use super::net::{Connection, Net};
use super::{Mistake, SimNet};
use crate::{
    ConnId, Event, Extent, Fetch, Idle, RegionError, RegionId, RoomError, ServerPort, Waker,
};

/// One lane of a [`SimNet`].
pub struct SimServer {
    net: SimNet,
    lane: usize,
    /// Keeps the memory of the last window alive while the window is.
    granted: Option<Rc<SimMemory>>,
}

impl SimServer {
    pub(super) fn new(net: SimNet, lane: u16) -> SimServer {
        SimServer {
            net,
            lane: usize::from(lane),
            granted: None,
        }
    }
}

impl ServerPort for SimServer {
    fn poll(&mut self, frame: &mut [u8; SLOT_BYTES]) -> Option<Event> {
        let mut net = self.net.net.borrow_mut();
        if let Some(conn) = net.acknowledge(self.lane) {
            // The number may be given again only after the service has forgotten its last holder.
            drop(net);
            self.net.service.gone(conn);
            net = self.net.net.borrow_mut();
            net.connections[conn.0 as usize] = None;
            net.note(conn, What::Gone);
        }
        let now_ns = net.now_ns;
        if let Some(room) = &mut net.lanes[self.lane].room {
            room.settle(now_ns);
        }
        let event = control(&mut net, self.lane)
            .or_else(|| arrival(&mut net, self.lane))
            .or_else(|| submission(&mut net, self.lane, frame));
        net.lanes[self.lane].given = event;
        event
    }

    fn fetches(&self) -> bool {
        self.net.net.borrow().lanes[self.lane].room.is_some()
    }

    fn fetch(&mut self, conn: ConnId, slot: u16, extents: &[Extent]) -> Result<Fetch, RoomError> {
        let mut net = self.net.net.borrow_mut();
        let due = net.due_at(conn);
        for e in extents {
            net.usable(self.lane, conn, e.region, e.offset, e.len, Rights::read)?;
        }
        let Some(room) = &mut net.lanes[self.lane].room else {
            return Ok(Fetch::Ready);
        };
        if room.ask(conn, slot, extents, due) {
            Ok(Fetch::Coming)
        } else {
            Err(RoomError::Later)
        }
    }

    fn read(
        &mut self,
        conn: ConnId,
        slot: u16,
        region: RegionId,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), RegionError> {
        let mut net = self.net.net.borrow_mut();
        let Some(room) = &net.lanes[self.lane].room else {
            return net.read(self.lane, conn, region, offset, out);
        };
        let len = out.len() as u64;
        let from = Extent {
            region,
            offset,
            len,
        };
        room.read(conn, slot, from, out)
    }

    fn release(&mut self, conn: ConnId, slot: u16) {
        let mut net = self.net.net.borrow_mut();
        let kept = net.faults.mistake == Some(Mistake::FetchKept);
        if let Some(room) = &mut net.lanes[self.lane].room
            && !kept
        {
            room.release(conn, slot);
        }
    }

    fn check(
        &self,
        conn: ConnId,
        region: RegionId,
        offset: u64,
        len: u64,
    ) -> Result<(), RegionError> {
        let mut net = self.net.net.borrow_mut();
        net.usable(self.lane, conn, region, offset, len, Rights::write)
            .map(|_| ())
    }

    fn stage_bytes(&self) -> u64 {
        let net = self.net.net.borrow();
        let room = net.lanes[self.lane].room.as_ref();
        room.map_or(u64::MAX, |room| room.far.stage_bytes)
    }

    fn keep(&mut self, conn: ConnId, staging: &Staging) -> bool {
        let mut net = self.net.net.borrow_mut();
        let room = net.lanes[self.lane].room.as_mut();
        room.is_some_and(|room| room.keep(conn, staging.block))
    }

    fn stage(
        &mut self,
        conn: ConnId,
        region: RegionId,
        strips: &[Strip],
    ) -> Result<Staging, RoomError> {
        let mut net = self.net.net.borrow_mut();
        let hull = Staging::in_place(strips).ok_or(RegionError::OutOfBounds)?;
        if let Layout::InPlace(low) = hull.layout {
            net.usable(self.lane, conn, region, low, hull.len, Rights::write)?;
        }
        let Some(room) = &mut net.lanes[self.lane].room else {
            return Ok(hull);
        };
        let len: u64 = strips.iter().map(Strip::total).sum();
        assert!(
            len <= room.far.stage_bytes,
            "{len} bytes are more than are staged"
        );
        let block = room.take(conn).ok_or(RoomError::Later)?;
        Ok(Staging {
            layout: Layout::Packed,
            len,
            block,
        })
    }

    fn window(
        &mut self,
        conn: ConnId,
        region: RegionId,
        staging: &Staging,
    ) -> Result<Window<'_>, RegionError> {
        let mut net = self.net.net.borrow_mut();
        let (memory, offset) = match (staging.layout, &net.lanes[self.lane].room) {
            (Layout::Packed, Some(room)) => {
                let block = room.block(staging.block);
                net.usable(self.lane, conn, region, 0, 0, Rights::write)?;
                (block, 0)
            }
            (Layout::InPlace(low), _) => {
                (net.grant(self.lane, conn, region, low, staging.len)?, low)
            }
            (Layout::Packed, None) => unreachable!("staging of another port"),
        };
        drop(net);
        let window = self.granted.insert(memory).window();
        Ok(window
            .part(offset as usize, staging.len as usize)
            .expect("granted ranges lie inside their memory"))
    }

    fn place(
        &mut self,
        conn: ConnId,
        region: RegionId,
        staging: Staging,
        strips: &[Strip],
    ) -> Result<(), RegionError> {
        let mut net = self.net.net.borrow_mut();
        let Some(room) = &net.lanes[self.lane].room else {
            let lost = net.region_mut(conn, region).is_some_and(|r| r.lost);
            return if lost { Err(RegionError::Lost) } else { Ok(()) };
        };
        let block = room.block(staging.block);
        let (mut from, mut sent) = (0, net.draw_due());
        let mut outcome = Ok(());
        for (offset, len) in strips.iter().flat_map(|strip| strip.pieces()) {
            let piece = (&block, from, len as usize);
            match net.post_write(self.lane, conn, region, offset, piece) {
                Ok(due) => sent = sent.max(due),
                Err(error) => outcome = Err(error),
            }
            from += len as usize;
        }
        if net.faults.mistake == Some(Mistake::BlockFreedAtPost) {
            sent = net.now_ns;
        }
        if let Some(room) = &mut net.lanes[self.lane].room {
            room.give_back(staging.block, sent);
        }
        net.may_fail(conn);
        let lost = net.region_mut(conn, region).is_some_and(|r| r.lost);
        outcome.and(if lost { Err(RegionError::Lost) } else { Ok(()) })
    }

    fn unstage(&mut self, _: ConnId, _: RegionId, staging: Staging) {
        let mut net = self.net.net.borrow_mut();
        let now_ns = net.now_ns;
        let kept = net.faults.mistake == Some(Mistake::BlockKept);
        if let Some(room) = &mut net.lanes[self.lane].room
            && !kept
        {
            room.give_back(staging.block, now_ns);
        }
    }

    fn complete(&mut self, conn: ConnId, record: &Completion) {
        self.net.net.borrow_mut().announce(self.lane, conn, record);
    }

    fn close(&mut self, conn: ConnId, why: Status) {
        self.net.net.borrow_mut().close(conn, why);
    }

    /// Does nothing: whoever drives this lane decides when it runs again.
    fn idle(&mut self, _how: Idle) {}

    fn waker(&self) -> Arc<dyn Waker> {
        Arc::new(Flag(Arc::clone(
            &self.net.net.borrow().lanes[self.lane].woken,
        )))
    }
}

struct Flag(Arc<AtomicBool>);

impl Waker for Flag {
    fn wake(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What the control thread has for a lane.
fn control(net: &mut Net, lane: usize) -> Option<Event> {
    let event = net.lanes[lane].control.pop(net.now_ns)?;
    match event {
        Event::Attached { conn, .. } => {
            net.connection_mut(conn)?.lanes[lane].attached = true;
            net.note(conn, What::Attached { lane: lane as u16 });
        }
        Event::Region { conn, region, .. } => {
            if let Some(region) = net.region_mut(conn, region) {
                region.known += 1;
            }
        }
        Event::RegionGone { conn, region } => {
            if let Some(region) = net.region_mut(conn, region) {
                region.gone[lane] = true;
            }
        }
        Event::Detached { conn } => {
            net.connection_mut(conn)?.lanes[lane].detached = true;
            net.note(conn, What::Detached { lane: lane as u16 });
        }
        _ => {}
    }
    Some(event)
}

/// Data of a request that arrive now.
fn arrival(net: &mut Net, lane: usize) -> Option<Event> {
    let (conn, slot, extents) = net.lanes[lane].room.as_ref()?.arriving(net.now_ns)?;
    net.may_fail(conn);
    let failed = |c: &mut Connection| c.inbox.borrow().cut_due.is_some();
    if net.connection_mut(conn).is_none_or(failed) {
        // Nothing is said of data that can't come any more: the end of the connection is.
        net.lanes[lane].room.as_mut()?.abandon(conn, slot);
        return None;
    }
    let read = |e: &Extent| {
        let mut bytes = vec![0; e.len as usize];
        if net.faults.mistake != Some(Mistake::FetchedTooEarly) {
            net.read(lane, conn, e.region, e.offset, &mut bytes)?;
        }
        Ok(bytes)
    };
    let read: Result<Vec<_>, RegionError> = extents.iter().map(read).collect();
    let outcome = read.as_ref().map(|_| ()).map_err(|error| *error);
    if let Some(room) = &mut net.lanes[lane].room {
        room.arrived(conn, slot, read.unwrap_or_default());
    }
    Some(Event::Fetched {
        conn,
        slot,
        outcome,
    })
}

/// The next submission of a client, each connection in its turn.
fn submission(net: &mut Net, lane: usize, frame: &mut [u8; SLOT_BYTES]) -> Option<Event> {
    let count = net.connections.len();
    let first = net.lanes[lane].turn;
    for at in (0..count).map(|i| (first + i) % count) {
        let (conn, now_ns) = (ConnId(at as u32), net.now_ns);
        let Some(connection) = net.connection_mut(conn) else {
            continue;
        };
        let credits = connection.credits;
        let own = &mut connection.lanes[lane];
        if !own.attached || own.detached {
            continue;
        }
        let Some(bits) = own.submissions.pop(now_ns) else {
            continue;
        };
        net.lanes[lane].turn = (at + 1) % count;
        match Immediate::decode(bits) {
            Some(Immediate::Request { slot, len })
                if slot < credits && (1..=SLOT_BYTES).contains(&usize::from(len)) =>
            {
                let len = usize::from(len);
                let own = &net.connection_mut(conn)?.lanes[lane];
                frame[..len].copy_from_slice(&own.ring[usize::from(slot)][..len]);
                net.note(
                    conn,
                    What::Delivered {
                        lane: lane as u16,
                        slot,
                        frame: frame[..len].to_vec(),
                    },
                );
                return Some(Event::Request { conn, slot, len });
            }
            Some(Immediate::Cancel { slot }) if slot < credits => {
                net.note(
                    conn,
                    What::CancelDelivered {
                        lane: lane as u16,
                        slot,
                    },
                );
                return Some(Event::Cancel { conn, slot });
            }
            _ => net.close(conn, Status::Malformed),
        }
    }
    None
}
