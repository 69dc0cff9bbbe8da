//! One worker's half of the shared-memory port.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Duration;

use rowmill_arena::{Layout, Region, Staging, Strip, Window};
use rowmill_wire::control::Rights;
use rowmill_wire::limits::{MAX_REGIONS, SLOT_BYTES};
use rowmill_wire::{Completion, Status};
use rustix::event::epoll;

use super::block::Block;
use super::handoff::{self, Consumer};
use super::inbox::{LaneShared, Link, Message, Notice};
use super::rings::{Submission, WorkerRings};
use crate::rest::timespec;
use crate::{
    ConnId, Event, Extent, Fetch, Idle, RegionError, RegionId, RoomError, ServerPort, Waker,
};

/// A lane's share of one connection. Fields are dropped in this order: the regions and the rings go
/// before the link, whose end tells the client that they have gone.
#[derive(Default)]
struct Seat {
    regions: [Option<(Arc<Region>, Rights)>; MAX_REGIONS as usize],
    rings: Option<WorkerRings>,
    link: Option<Arc<Link>>,
}

/// What the next poll acknowledges.
enum Ending {
    Region(ConnId, RegionId),
    Connection(ConnId),
}

/// One worker's half: give it to the worker's thread. Dropping it lets go of all connections.
pub struct ShmLane {
    // Declared first, dropped first.
    seats: Vec<Seat>,
    // Connections whose rings are polled, in the order of their turns.
    active: Vec<ConnId>,
    turn: usize,
    messages_taken: usize,
    ending: Option<Ending>,
    shared: Arc<LaneShared>,
}

impl ShmLane {
    pub(super) fn new(shared: Arc<LaneShared>, max_connections: u16) -> ShmLane {
        let most = usize::from(max_connections);
        ShmLane {
            seats: (0..most).map(|_| Seat::default()).collect(),
            active: Vec::with_capacity(most),
            turn: 0,
            messages_taken: 0,
            ending: None,
            shared,
        }
    }

    /// The lane's number, which clients submit to.
    pub fn lane(&self) -> u16 {
        self.shared.lane
    }

    /// Lets go of what the event before has ended, and says so.
    fn acknowledge(&mut self) {
        match self.ending.take() {
            None => (),
            Some(Ending::Region(conn, region)) => {
                self.seats[conn.0 as usize].regions[region.0 as usize] = None;
                self.shared.notify(Notice::RegionLetGo { conn, region });
            }
            Some(Ending::Connection(conn)) => {
                self.seats[conn.0 as usize] = Seat::default();
                self.shared.notify(Notice::LetGo { conn });
            }
        }
    }

    /// Whether the control thread has said something new: one load.
    fn has_message(&self) -> bool {
        self.shared.posted() != self.messages_taken
    }

    fn take_message(&mut self) -> Option<Event> {
        let message = self.shared.take()?;
        self.messages_taken = self.messages_taken.wrapping_add(1);
        Some(match message {
            Message::Attach { conn, link, layout } => {
                let block = Block::new(link.memory.clone(), &layout, self.shared.lane);
                let seat = &mut self.seats[conn.0 as usize];
                seat.rings = Some(WorkerRings::new(block, layout));
                seat.link = Some(link);
                self.active.push(conn);
                Event::Attached {
                    conn,
                    credits: layout.credits(),
                }
            }
            Message::Region {
                conn,
                region,
                memory,
                rights,
            } => {
                let len = memory.len() as u64;
                self.seats[conn.0 as usize].regions[region.0 as usize] = Some((memory, rights));
                Event::Region { conn, region, len }
            }
            Message::RegionGone { conn, region } => {
                self.ending = Some(Ending::Region(conn, region));
                Event::RegionGone { conn, region }
            }
            Message::Detach { conn } => {
                self.retire(conn);
                self.ending = Some(Ending::Connection(conn));
                Event::Detached { conn }
            }
        })
    }

    /// Takes a connection's rings out of the turns; false if they were out already.
    fn retire(&mut self, conn: ConnId) -> bool {
        let Some(at) = self.active.iter().position(|c| *c == conn) else {
            return false;
        };
        self.active.remove(at);
        if self.turn > at {
            self.turn -= 1;
        }
        true
    }

    /// Asks the control thread to cut a connection off, once.
    fn cut(&mut self, conn: ConnId, why: Status, breach: Option<&'static str>) {
        if self.retire(conn) {
            self.shared.notify(Notice::Cut { conn, why, breach });
        }
    }

    /// A region, if the client gave this right to it.
    fn region(
        &self,
        conn: ConnId,
        region: RegionId,
        right: fn(Rights) -> bool,
    ) -> Result<&Region, RegionError> {
        let (memory, rights) = self
            .seats
            .get(conn.0 as usize)
            .and_then(|seat| seat.regions.get(region.0 as usize)?.as_ref())
            .ok_or(RegionError::Unknown)?;
        match right(*rights) {
            true => Ok(memory),
            false => Err(RegionError::Forbidden),
        }
    }

    /// Memory of a region that results can go to.
    fn target(
        &self,
        conn: ConnId,
        region: RegionId,
        offset: u64,
        len: u64,
    ) -> Result<Window<'_>, RegionError> {
        let region = self.region(conn, region, Rights::write)?;
        let window = region
            .window_at(offset, len)
            .ok_or(RegionError::OutOfBounds)?;
        if region.is_lost() {
            return Err(RegionError::Lost);
        }
        Ok(window)
    }

    /// The memory of staging, which is the region's own.
    fn staged(
        &self,
        conn: ConnId,
        region: RegionId,
        staging: &Staging,
    ) -> Result<Window<'_>, RegionError> {
        let Layout::InPlace(low) = staging.layout else {
            return Err(RegionError::Unknown);
        };
        self.target(conn, region, low, staging.len)
    }

    fn has_submission(&self, conn: ConnId) -> bool {
        let rings = &self.seats[conn.0 as usize].rings;
        rings.as_ref().is_some_and(WorkerRings::has_entry)
    }

    fn active_rings(&self) -> impl Iterator<Item = &WorkerRings> + Clone {
        self.active
            .iter()
            .filter_map(|conn| self.seats[conn.0 as usize].rings.as_ref())
    }

    fn sleep(&mut self, limit: Option<Duration>) {
        if self.ending.is_some() {
            return; // The acknowledgement is for the next poll.
        }
        if !handoff::lie_down(self.active_rings(), || !self.has_message()) {
            return;
        }
        let mut events = [MaybeUninit::uninit(); 16];
        let limit = limit.map(timespec);
        // Whatever ends it, an interruption too, the caller polls again.
        let _ = epoll::wait(&self.shared.epoll, &mut events, limit.as_ref());
        handoff::get_up(self.active_rings());
    }
}

impl ServerPort for ShmLane {
    fn poll(&mut self, frame: &mut [u8; SLOT_BYTES]) -> Option<Event> {
        self.acknowledge();
        if self.has_message() {
            return self.take_message();
        }
        for _ in 0..self.active.len() {
            if self.turn >= self.active.len() {
                self.turn = 0;
            }
            let Some(&conn) = self.active.get(self.turn) else {
                break; // The only one was cut off.
            };
            if !self.has_submission(conn) {
                self.turn += 1;
                continue;
            }
            if self.has_message() {
                // What came before this submission, such as its region, has to be said before it. It
                // was sent before the tail that was just read, so it is seen here at the latest.
                return self.take_message();
            }
            let rings = self.seats[conn.0 as usize].rings.as_mut();
            match rings.expect("an active connection has rings").next(frame) {
                Ok(None) => self.turn += 1,
                Ok(Some(Submission::Request { slot, len })) => {
                    self.turn += 1;
                    return Some(Event::Request { conn, slot, len });
                }
                Ok(Some(Submission::Cancel { slot })) => {
                    self.turn += 1;
                    return Some(Event::Cancel { conn, slot });
                }
                Err(breach) => self.cut(conn, Status::Malformed, Some(breach)),
            }
        }
        None
    }

    fn fetches(&self) -> bool {
        false
    }

    fn fetch(&mut self, _: ConnId, _: u16, _: &[Extent]) -> Result<Fetch, RoomError> {
        Ok(Fetch::Ready)
    }

    fn read(
        &mut self,
        conn: ConnId,
        _slot: u16,
        region: RegionId,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), RegionError> {
        let region = self.region(conn, region, Rights::read)?;
        let window = region
            .window_at(offset, out.len() as u64)
            .ok_or(RegionError::OutOfBounds)?;
        window.read(0, out);
        if region.is_lost() {
            return Err(RegionError::Lost);
        }
        Ok(())
    }

    fn release(&mut self, _: ConnId, _: u16) {}

    fn check(
        &self,
        conn: ConnId,
        region: RegionId,
        offset: u64,
        len: u64,
    ) -> Result<(), RegionError> {
        self.target(conn, region, offset, len).map(|_| ())
    }

    fn keep(&mut self, _: ConnId, _: &Staging) -> bool {
        false
    }

    fn stage_bytes(&self) -> u64 {
        u64::MAX
    }

    fn stage(
        &mut self,
        conn: ConnId,
        region: RegionId,
        strips: &[Strip],
    ) -> Result<Staging, RoomError> {
        let staging = Staging::in_place(strips).ok_or(RegionError::OutOfBounds)?;
        self.staged(conn, region, &staging)?;
        Ok(staging)
    }

    fn window(
        &mut self,
        conn: ConnId,
        region: RegionId,
        staging: &Staging,
    ) -> Result<Window<'_>, RegionError> {
        self.staged(conn, region, staging)
    }

    fn place(
        &mut self,
        conn: ConnId,
        region: RegionId,
        _: Staging,
        _: &[Strip],
    ) -> Result<(), RegionError> {
        let region = self.region(conn, region, Rights::write)?;
        // The worker has stored: what went nowhere is given back.
        region.discard_if_lost();
        if region.is_lost() {
            return Err(RegionError::Lost);
        }
        Ok(())
    }

    fn unstage(&mut self, conn: ConnId, region: RegionId, _: Staging) {
        if let Ok(region) = self.region(conn, region, Rights::write) {
            region.discard_if_lost();
        }
    }

    fn complete(&mut self, conn: ConnId, record: &Completion) {
        let Some(seat) = self.seats.get_mut(conn.0 as usize) else {
            return;
        };
        if let (Some(rings), Some(link)) = (&mut seat.rings, &seat.link)
            && rings.complete(record)
        {
            link.wake.wake();
        }
    }

    fn close(&mut self, conn: ConnId, why: Status) {
        self.cut(conn, why, None);
    }

    fn idle(&mut self, how: Idle) {
        match how {
            Idle::Spin => std::hint::spin_loop(),
            Idle::Yield => std::thread::yield_now(),
            Idle::Sleep(limit) => self.sleep(limit),
        }
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.shared.clone()
    }
}

impl Drop for ShmLane {
    fn drop(&mut self) {
        // First let go of everything, then say so.
        self.seats.clear();
        self.shared.leave();
    }
}
