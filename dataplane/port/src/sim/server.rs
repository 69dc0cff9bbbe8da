//! A worker's half of the simulated port.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rowmill_arena::Window;
use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::{Completion, Immediate, Status};

use super::SimNet;
use super::log::What;
use super::memory::SimMemory;
use super::net::Net;
use crate::{ConnId, Event, Idle, RegionError, RegionId, ServerPort, Waker};

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
        net.lanes[self.lane].polls += 1;
        if let Some(conn) = net.acknowledge(self.lane) {
            // The number may be given again only after the service has forgotten its last holder.
            drop(net);
            self.net.service.gone(conn);
            net = self.net.net.borrow_mut();
            net.connections[conn.0 as usize] = None;
            net.note(conn, What::Gone);
        }
        let event = control(&mut net, self.lane).or_else(|| submission(&mut net, self.lane, frame));
        net.lanes[self.lane].given = event;
        event
    }

    fn read(
        &mut self,
        conn: ConnId,
        region: RegionId,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), RegionError> {
        let mut net = self.net.net.borrow_mut();
        let from = net.usable(self.lane, conn, region, offset, out.len() as u64)?;
        let scribbled = from.scribble.is_some();
        if let Some(scribble) = &mut from.scribble {
            scribble(from.client.window(), offset, out.len());
        }
        from.server.window().read(offset as usize, out);
        if scribbled {
            net.note(conn, What::Scribbled { region });
        }
        net.note(
            conn,
            What::Read {
                lane: self.lane as u16,
                region,
                offset,
                bytes: out.to_vec(),
            },
        );
        Ok(())
    }

    fn target(
        &mut self,
        conn: ConnId,
        region: RegionId,
        offset: u64,
        len: u64,
    ) -> Result<Window<'_>, RegionError> {
        let memory = self
            .net
            .net
            .borrow_mut()
            .grant(self.lane, conn, region, offset, len)?;
        let window = self.granted.insert(memory).window();
        Ok(window
            .part(offset as usize, len as usize)
            .expect("granted ranges lie inside their region"))
    }

    fn is_lost(&self, conn: ConnId, region: RegionId) -> bool {
        self.net
            .net
            .borrow_mut()
            .region_mut(conn, region)
            .is_some_and(|r| r.lost)
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
