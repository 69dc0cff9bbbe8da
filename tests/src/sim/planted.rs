//! Planted mistakes, to show that the checks find them: those of a port here, those of deltas, policies and another
//! dataplane's memory where these are made.

use std::sync::Arc;

use rowmill_arena::{Layout, Staging, Strip, Window};
use rowmill_port::sim::{self, SimMemory, SimNet, SimServer};
use rowmill_port::{
    ConnId, Event, Extent, Fetch, Idle, RegionError, RegionId, RoomError, ServerPort, Waker,
};
use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::{Completion, CompletionKind, Status};

/// A mistake that the dataplane makes in every run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// Writes to the target once more after the final completion.
    WritesAfterFinal,
    /// Asks for the target once more after the final completion.
    GrantAfterFinal,
    /// Stores one byte past what a request owns.
    WritesBeyond,
    /// Never announces a final record.
    DropsRecord,
    /// Announces a final record twice.
    RepeatsRecord,
    /// Exchanges two parts of an answer before announcing it.
    SwapsVectors,
    /// Announces slices in the wrong order.
    SlicesOutOfOrder,
    /// Answers BUSY instead of OK.
    FalseBusy,
    /// Reads request data a second time.
    ReadsTwice,
    /// Gives two credits back for one request.
    DoubleCredit,
    /// Keeps the credit of a request.
    KeepsCredit,
    /// Raises a generation's delta number before the rows of the delta are found.
    NumberBeforeRows,
    /// Forgets the last row of each piece of a delta.
    LeavesRowOut,
    /// Takes back what it has changed before it begins a delta anew.
    TakesRowsBack,
    /// Has a table cached without what deltas have made of its rows.
    ForgetsDeltas,
    /// A process that is killed is followed by one that applies no deltas, though it names them.
    StartsOver,
    /// Tells all workers but the first one of policies.
    LeavesWorkerOut,
    /// Takes rows from another dataplane's memory before they have come.
    TakesRowsEarly,
    /// Has a table cached again without what was hot in it.
    DropsLists,
    /// Compares pages of files with the checksums of others that have taken their places.
    TrustsOthers,
    /// The port between the worker and memory that it can't reach makes it.
    Port(sim::Mistake),
}

impl Mistake {
    /// What a worker, or the decorator around its port, does wrong.
    const OF_WORKER: [Mistake; 11] = [
        Mistake::WritesAfterFinal,
        Mistake::GrantAfterFinal,
        Mistake::WritesBeyond,
        Mistake::DropsRecord,
        Mistake::RepeatsRecord,
        Mistake::SwapsVectors,
        Mistake::SlicesOutOfOrder,
        Mistake::FalseBusy,
        Mistake::ReadsTwice,
        Mistake::DoubleCredit,
        Mistake::KeepsCredit,
    ];

    /// What is done wrong in deltas.
    const OF_DELTAS: [Mistake; 5] = [
        Mistake::NumberBeforeRows,
        Mistake::LeavesRowOut,
        Mistake::TakesRowsBack,
        Mistake::ForgetsDeltas,
        Mistake::StartsOver,
    ];

    /// All of them.
    pub fn all() -> impl Iterator<Item = Mistake> {
        let of_port = sim::Mistake::ALL.into_iter().map(Mistake::Port);
        let of_dataplane = Mistake::OF_WORKER.into_iter().chain(Mistake::OF_DELTAS);
        let others = [
            Mistake::LeavesWorkerOut,
            Mistake::TakesRowsEarly,
            Mistake::TrustsOthers,
            Mistake::DropsLists,
        ];
        of_dataplane.chain(others).chain(of_port)
    }

    /// Whether it is one of deltas.
    pub fn is_of_deltas(self) -> bool {
        Mistake::OF_DELTAS.contains(&self)
    }

    /// What the port itself does wrong.
    pub fn of_port(self) -> Option<sim::Mistake> {
        match self {
            Mistake::Port(mistake) => Some(mistake),
            _ => None,
        }
    }
}

/// The simulated port, with or without a mistake.
pub struct Planted {
    port: SimServer,
    net: SimNet,
    mistake: Option<Mistake>,
    /// The last grant.
    granted: Option<(ConnId, RegionId, u64, u64)>,
}

impl Planted {
    /// Decorates a port.
    pub fn new(port: SimServer, net: SimNet, mistake: Option<Mistake>) -> Planted {
        Planted {
            port,
            net,
            mistake,
            granted: None,
        }
    }

    fn memory(&self) -> Option<(std::rc::Rc<SimMemory>, usize, usize)> {
        let (conn, region, offset, len) = self.granted?;
        Some((
            self.net.memory(conn, region)?,
            offset as usize,
            len as usize,
        ))
    }

    fn flip(&self, at: impl FnOnce(usize, usize) -> usize) {
        if let Some((memory, offset, len)) = self.memory() {
            let at = at(offset, len);
            if at < memory.len() {
                let byte = memory.bytes(at, 1)[0];
                memory.window().write(at, &[!byte]);
            }
        }
    }

    fn swap(&self) {
        if let Some((memory, offset, len)) = self.memory() {
            let half = len / 8 * 4;
            let (a, b) = (
                memory.bytes(offset, half),
                memory.bytes(offset + half, half),
            );
            memory.window().write(offset, &b);
            memory.window().write(offset + half, &a);
        }
    }
}

impl ServerPort for Planted {
    fn poll(&mut self, frame: &mut [u8; SLOT_BYTES]) -> Option<Event> {
        self.port.poll(frame)
    }

    fn fetches(&self) -> bool {
        self.port.fetches()
    }

    fn fetch(&mut self, conn: ConnId, slot: u16, extents: &[Extent]) -> Result<Fetch, RoomError> {
        self.port.fetch(conn, slot, extents)
    }

    fn read(
        &mut self,
        conn: ConnId,
        slot: u16,
        region: RegionId,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), RegionError> {
        if self.mistake == Some(Mistake::ReadsTwice) {
            self.port.read(conn, slot, region, offset, out)?;
        }
        self.port.read(conn, slot, region, offset, out)
    }

    fn release(&mut self, conn: ConnId, slot: u16) {
        self.port.release(conn, slot);
    }

    fn check(
        &self,
        conn: ConnId,
        region: RegionId,
        offset: u64,
        len: u64,
    ) -> Result<(), RegionError> {
        self.port.check(conn, region, offset, len)
    }

    fn keep(&mut self, conn: ConnId, staging: &Staging) -> bool {
        self.port.keep(conn, staging)
    }

    fn stage_bytes(&self) -> u64 {
        self.port.stage_bytes()
    }

    fn stage(
        &mut self,
        conn: ConnId,
        region: RegionId,
        strips: &[Strip],
    ) -> Result<Staging, RoomError> {
        let hull = Staging::in_place(strips);
        if let Some((Layout::InPlace(low), len)) = hull.map(|h| (h.layout, h.len)) {
            self.granted = Some((conn, region, low, len));
        }
        self.port.stage(conn, region, strips)
    }

    fn window(
        &mut self,
        conn: ConnId,
        region: RegionId,
        staging: &Staging,
    ) -> Result<Window<'_>, RegionError> {
        self.port.window(conn, region, staging)
    }

    fn place(
        &mut self,
        conn: ConnId,
        region: RegionId,
        staging: Staging,
        strips: &[Strip],
    ) -> Result<(), RegionError> {
        self.port.place(conn, region, staging, strips)
    }

    fn unstage(&mut self, conn: ConnId, region: RegionId, staging: Staging) {
        self.port.unstage(conn, region, staging);
    }

    fn complete(&mut self, conn: ConnId, record: &Completion) {
        let last = record.kind == CompletionKind::Final && record.status == Status::Ok;
        let mine = self.granted.is_some_and(|(of, ..)| of == conn);
        match self.mistake {
            Some(Mistake::DropsRecord) if last && mine => return,
            Some(Mistake::SwapsVectors) if last && mine => self.swap(),
            Some(Mistake::WritesBeyond) if last && mine => self.flip(|offset, len| offset + len),
            Some(Mistake::FalseBusy) if last && mine => {
                return self.port.complete(
                    conn,
                    &Completion {
                        status: Status::Busy,
                        ..*record
                    },
                );
            }
            Some(Mistake::SlicesOutOfOrder) if record.kind == CompletionKind::Slice => {
                return self.port.complete(
                    conn,
                    &Completion {
                        slice: record.slice + 1,
                        ..*record
                    },
                );
            }
            Some(Mistake::DoubleCredit) if last => {
                return self.port.complete(
                    conn,
                    &Completion {
                        credits: 2,
                        ..*record
                    },
                );
            }
            Some(Mistake::KeepsCredit) if last => {
                return self.port.complete(
                    conn,
                    &Completion {
                        credits: 0,
                        ..*record
                    },
                );
            }
            _ => {}
        }
        self.port.complete(conn, record);
        match self.mistake {
            Some(Mistake::RepeatsRecord) if last => self.port.complete(conn, record),
            Some(Mistake::WritesAfterFinal) if last && mine => self.flip(|offset, _| offset),
            Some(Mistake::GrantAfterFinal) if last && mine => {
                let (_, region, offset, bytes) = self.granted.expect("mine");
                let strips = [Strip {
                    offset,
                    bytes,
                    stride: bytes,
                    count: 1,
                }];
                // Refused or not, nothing is stored.
                if let Some(staging) = Staging::in_place(&strips) {
                    let _unused = self.port.window(conn, region, &staging);
                }
            }
            _ => {}
        }
    }

    fn close(&mut self, conn: ConnId, why: Status) {
        self.port.close(conn, why);
    }

    fn doorbells(&self) -> u64 {
        self.port.doorbells()
    }

    fn idle(&mut self, how: Idle) {
        self.port.idle(how);
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.port.waker()
    }
}
