//! What a client asks of its half of the port.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rowmill_arena::{Region, Window};
use rowmill_wire::control::{Control, Rights, TableEntry, Welcome};
use rowmill_wire::limits::MAX_REGIONS;
use rowmill_wire::{Completion, Schema};
use rustix::event::PollFlags;

use super::client::{End, RdmaClient};
use super::client_lane::ClientLane;
use super::memory::OwnRegion;
use super::sleep::{self, Sleeper};
use crate::calls::{self, bound, unexpected};
use crate::patience::Patience;
use crate::{ClientPort, Foreign, Lost, PortError, RegionId, Rest, WakeFds};

impl RdmaClient {
    /// Something of a lane has failed: finds out what has become of the connection.
    pub(super) fn find_out(&mut self, lane: u16, what: Lost) -> PortError {
        self.lanes[usize::from(lane)].failed.get_or_insert(what);
        self.hear_the_end()
    }

    /// How long something that was posted may take.
    pub(super) fn limit(&self) -> Duration {
        self.config.connection.overdue()
    }

    fn register_for(&mut self, bytes: usize, rights: Rights) -> Result<RegionId, PortError> {
        if let Some(end) = self.ended {
            return Err(end.error());
        }
        let held: u64 = self.regions.iter().flatten().map(|r| r.len() as u64).sum();
        let left = self.welcome.max_region.saturating_sub(held);
        let region = OwnRegion::new(&self.domain, bytes, left, self.config.huge_pages, rights)?;
        self.announce(region, rights)
    }

    /// Tells the dataplane of a region.
    fn announce(&mut self, region: OwnRegion, rights: Rights) -> Result<RegionId, PortError> {
        let remote = region.remote();
        let question = Control::RegisterRemote {
            bytes: region.len() as u64,
            address: remote.address,
            key: remote.key,
            rights,
        };
        match self.call(&question)? {
            Control::Registered { region: number } if number < MAX_REGIONS => {
                self.regions[number as usize] = Some(region);
                Ok(RegionId(number))
            }
            other => Err(unexpected(&other)),
        }
    }
}

impl ClientPort for RdmaClient {
    fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    fn tables(&mut self) -> Result<Vec<TableEntry>, PortError> {
        calls::tables(|question| self.call(question))
    }

    fn bind(&mut self, schema: &Schema) -> Result<u32, PortError> {
        let mut patience = Patience::new(self.config.reply_limit, &self.config.interrupt);
        self.settle(&mut patience)?;
        if let Some(number) = self.late.claim(schema) {
            return Ok(number);
        }
        bound(&self.call(&Control::Bind(schema.clone()))?)
    }

    fn register(&mut self, bytes: usize) -> Result<RegionId, PortError> {
        self.register_for(bytes, Rights::Write)
    }

    fn register_source(&mut self, bytes: usize) -> Result<RegionId, PortError> {
        self.register_for(bytes, Rights::Read)
    }

    fn register_foreign(&mut self, foreign: Foreign) -> Result<RegionId, PortError> {
        if let Some(end) = self.ended {
            return Err(end.error());
        }
        let region = OwnRegion::foreign(&self.domain, foreign)?;
        self.announce(region, Rights::Write)
    }

    fn unregister(&mut self, region: RegionId) -> Result<(), PortError> {
        let outcome = self.call(&Control::Unregister { region: region.0 });
        let gone = calls::unregistered(outcome, region);
        if let Ok(()) | Err(PortError::NoAnswer { .. } | PortError::Interrupted) = gone
            && let Some(region) = self.regions.get_mut(region.0 as usize)
        {
            *region = None;
        }
        gone
    }

    fn memory(&self, region: RegionId) -> Option<Window<'_>> {
        let region = self.regions.get(region.0 as usize)?.as_ref()?;
        region.mapped().map(|memory| memory.window())
    }

    fn share(&self, region: RegionId) -> Option<Arc<Region>> {
        let region = self.regions.get(region.0 as usize)?.as_ref()?;
        region.mapped().map(Arc::clone)
    }

    fn submit(&mut self, lane: u16, slot: u16, frame: &[u8]) -> Result<(), PortError> {
        if let Some(end) = self.ended {
            return Err(end.error());
        }
        let limit = self.limit();
        let sent = self.lanes[usize::from(lane)].submit(slot, frame, limit);
        sent.map_err(|what| self.find_out(lane, what))
    }

    fn cancel(&mut self, lane: u16, slot: u16) -> Result<(), PortError> {
        if let Some(end) = self.ended {
            return Err(end.error());
        }
        let limit = self.limit();
        let sent = self.lanes[usize::from(lane)].cancel(slot, limit);
        sent.map_err(|what| self.find_out(lane, what))
    }

    fn poll(&mut self, lane: u16) -> Result<Option<Completion>, PortError> {
        let end = &mut self.lanes[usize::from(lane)];
        if !end.has_record() {
            end.drain();
        }
        let failed = end.failed.is_some();
        match end.next() {
            Ok(Some(record)) => return Ok(Some(record)),
            Ok(None) => (),
            Err(what) => {
                // Its request would never end. Once the queue pairs are gone nothing is written to its target.
                tracing::warn!(lane, what, "a dataplane that breaks the protocol is left");
                self.finish(End::Lost(Lost::Nonsense));
            }
        }
        if let Some(end) = self.ended {
            return Err(end.error());
        }
        // At the control stream and the connection manager, which costs system calls.
        if self.ticks.has_passed() || failed {
            self.look();
        }
        Ok(None)
    }

    fn lie_down(&mut self, limit: Option<Duration>) -> Rest {
        // What has come before, the next poll finds.
        match self.is_quiet() && sleep::lie_down(self) {
            true => Rest::Quiet(Some(self.at_most(limit))),
            false => Rest::Disturbed,
        }
    }

    /// Completions, and what the connection manager tells.
    fn wake_fds(&self) -> WakeFds<BorrowedFd<'_>> {
        WakeFds::of([
            (self.completion_channel.as_fd(), PollFlags::IN),
            (self.channel.as_fd(), PollFlags::IN),
        ])
    }

    fn get_up(&mut self) -> Result<(), PortError> {
        self.take_events();
        self.lanes.iter_mut().for_each(ClientLane::drain);
        Ok(())
    }

    fn close(&mut self) {
        self.finish(End::Closed);
    }
}
