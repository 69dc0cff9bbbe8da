//! What a worker asks of its half of the port.

use std::sync::Arc;

use rowmill_arena::{Layout, MAX_STRIPS, Staging, Strip, Window};
use rowmill_wire::control::Rights;
use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::{Completion, Status};

use super::inbox::Cut;
use super::lane::RdmaLane;
use super::pool::Base;
use super::scatter::Scatter;
use super::seat::Item;
use crate::{
    ConnId, Event, Extent, Fetch, Idle, RegionError, RegionId, RoomError, ServerPort, Waker,
};

impl ServerPort for RdmaLane {
    fn poll(&mut self, frame: &mut [u8; SLOT_BYTES]) -> Option<Event> {
        self.next_event(frame)
    }

    fn fetches(&self) -> bool {
        true
    }

    fn fetch(&mut self, conn: ConnId, slot: u16, extents: &[Extent]) -> Result<Fetch, RoomError> {
        let mut total = 0u64;
        for extent in extents {
            self.bounded(conn, extent.region, extent.offset, extent.len, Rights::read)?;
            total = total
                .checked_add(extent.len)
                .ok_or(RegionError::OutOfBounds)?;
        }
        let most = u64::from(self.pool.fetchable()) * self.pool.block_bytes();
        if total > most || extents.len() > crate::MAX_EXTENTS {
            return Err(RegionError::OutOfBounds.into());
        }
        if total == 0 {
            return Ok(Fetch::Ready);
        }
        let seat = self.seats.get_mut(conn);
        let seat = seat.ok_or(RegionError::Unknown)?;
        if seat.failed {
            return Err(RegionError::Lost.into());
        }
        let place = seat
            .pulls
            .get_mut(usize::from(slot))
            .ok_or(RegionError::Unknown)?;
        assert!(place.is_none(), "what was fetched before is released first");
        let number = self
            .pool
            .pull(seat.fetching, total)
            .ok_or(RoomError::Later)?;
        *place = Some(number);
        let pull = &mut self.pool.pulls[usize::from(number)];
        pull.of = Some((conn, slot));
        for extent in extents {
            let region = seat.region(extent.region).ok_or(RegionError::Unknown)?;
            let base = Base {
                address: region.address,
                key: region.key,
            };
            pull.extents.push((*extent, base.at(extent.offset)));
        }
        seat.fetching += pull.blocks.len() as u32;
        seat.queue(Item::Fetch { pull: number });
        self.soil(conn);
        Ok(Fetch::Coming)
    }

    fn read(
        &mut self,
        conn: ConnId,
        slot: u16,
        region: RegionId,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), RegionError> {
        self.bounded(conn, region, offset, out.len() as u64, Rights::read)?;
        if out.is_empty() {
            return Ok(());
        }
        let seat = self.seat(conn).ok_or(RegionError::Unknown)?;
        let number = seat.pulls.get(usize::from(slot)).copied().flatten();
        let number = number.ok_or(RegionError::Unknown)?;
        let wanted = Extent {
            region,
            offset,
            len: out.len() as u64,
        };
        let pull = &self.pool.pulls[usize::from(number)];
        if pull.missing > 0 || !pull.read(wanted, out, self.pool.block_bytes()) {
            return Err(RegionError::OutOfBounds);
        }
        Ok(())
    }

    fn release(&mut self, conn: ConnId, slot: u16) {
        let seat = self.seats.get_mut(conn);
        let place = seat.and_then(|seat| seat.pulls.get_mut(usize::from(slot)));
        let Some(number) = place.and_then(Option::take) else {
            return;
        };
        self.forget_fetched(conn, slot);
        let pull = &mut self.pool.pulls[usize::from(number)];
        pull.released = true;
        if pull.missing == 0 {
            self.free_pull(conn, number);
        }
    }

    fn check(
        &self,
        conn: ConnId,
        region: RegionId,
        offset: u64,
        len: u64,
    ) -> Result<(), RegionError> {
        self.bounded(conn, region, offset, len, Rights::write)
            .map(|_| ())
    }

    fn stage_bytes(&self) -> u64 {
        self.pool.block_bytes()
    }

    fn keep(&mut self, conn: ConnId, staging: &Staging) -> bool {
        let seat = self.seats.get_mut(conn);
        seat.is_some_and(|seat| self.pool.keep(staging.block, &mut seat.blocks))
    }

    fn stage(
        &mut self,
        conn: ConnId,
        region: RegionId,
        strips: &[Strip],
    ) -> Result<Staging, RoomError> {
        let mut len = 0u64;
        if strips.is_empty() || strips.len() > MAX_STRIPS {
            return Err(RegionError::OutOfBounds.into());
        }
        for strip in strips {
            let end = strip.end().ok_or(RegionError::OutOfBounds)?;
            self.bounded(
                conn,
                region,
                strip.offset,
                end - strip.offset,
                Rights::write,
            )?;
            len = strip
                .bytes
                .checked_mul(strip.count)
                .and_then(|bytes| len.checked_add(bytes))
                .ok_or(RegionError::OutOfBounds)?;
        }
        if len > self.pool.block_bytes() {
            return Err(RegionError::OutOfBounds.into());
        }
        let seat = self.seats.get_mut(conn);
        let seat = seat.ok_or(RegionError::Unknown)?;
        if seat.failed {
            return Err(RegionError::Lost.into());
        }
        let block = self.pool.stage(&mut seat.blocks);
        let block = block.ok_or(RoomError::Later)?;
        Ok(Staging {
            layout: Layout::Packed,
            len,
            block,
        })
    }

    fn window(
        &mut self,
        _conn: ConnId,
        _region: RegionId,
        staging: &Staging,
    ) -> Result<Window<'_>, RegionError> {
        let staged = self.pool.staged.get_mut(staging.block as usize);
        let block = staged.and_then(|staged| staged.block.as_mut());
        let block = block.ok_or(RegionError::Unknown)?;
        Ok(Window::over(
            &mut block.as_mut_slice()[..staging.len as usize],
        ))
    }

    fn place(
        &mut self,
        conn: ConnId,
        region: RegionId,
        staging: Staging,
        strips: &[Strip],
    ) -> Result<(), RegionError> {
        let block = staging.block;
        let seat = self.seats.get_mut(conn);
        let target = seat.and_then(|seat| Some((seat.region(region)?, seat)));
        let Some((memory, seat)) = target else {
            self.unstaged(conn, block);
            return Err(RegionError::Unknown);
        };
        let staged = &mut self.pool.staged[block as usize];
        staged.strips = strips.iter().copied().collect();
        staged.scatter = Scatter::default();
        staged.region = Base {
            address: memory.address,
            key: memory.key,
        };
        if !seat.queue(Item::Place { block }) {
            self.unstaged(conn, block);
            return Err(RegionError::Lost);
        }
        self.pool.send(block, &mut seat.blocks);
        self.soil(conn);
        Ok(())
    }

    fn unstage(&mut self, conn: ConnId, _region: RegionId, staging: Staging) {
        self.unstaged(conn, staging.block);
    }

    fn complete(&mut self, conn: ConnId, record: &Completion) {
        let seat = self.seats.get_mut(conn);
        if let Some(seat) = seat
            && seat.queue(Item::Record(*record))
        {
            self.soil(conn);
        }
    }

    fn close(&mut self, conn: ConnId, why: Status) {
        self.cut(conn, Cut::Worker(why));
    }

    fn doorbells(&self) -> u64 {
        self.doorbells
    }

    fn idle(&mut self, how: Idle) {
        match how {
            Idle::Sleep(limit) => self.sleep(limit),
            Idle::Spin => {
                self.progress();
                std::hint::spin_loop();
            }
            Idle::Yield => {
                self.progress();
                std::thread::yield_now();
            }
        }
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.shared.clone()
    }
}

impl RdmaLane {
    fn unstaged(&mut self, conn: ConnId, block: u32) {
        let seat = self.seats.get_mut(conn);
        self.pool.unstage(block, seat.map(|seat| &mut seat.blocks));
    }
}
