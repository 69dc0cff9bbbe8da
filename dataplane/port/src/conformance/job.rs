//! What a worker of the suite has to do over several turns, since data and room can come later.

use rowmill_arena::Strip;
use rowmill_wire::status::NOWHERE;
use rowmill_wire::{Completion, CompletionKind, Status};

use super::task::{Task, pattern};
use crate::{ConnId, Extent, Fetch, RegionError, RegionId, RoomError, ServerPort};

/// A request that is being worked on.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) conn: ConnId,
    pub(super) slot: u16,
    /// What to read first.
    source: Option<Extent>,
    /// Whether the port holds data for it.
    fetched: bool,
    /// Whether these are on their way.
    coming: bool,
    store: Store,
}

/// Bytes to store as vectors of a strip.
#[derive(Debug)]
struct Store {
    region: RegionId,
    strip: Strip,
    bytes: Vec<u8>,
    /// Vectors placed.
    placed: u64,
    /// Vectors after which a slice is announced.
    step: u64,
    /// The answer's request number.
    request: u64,
}

/// Whether a job goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It waits for data or room.
    Waits,
    /// It has been answered.
    Ended,
}

impl Job {
    /// The job of a task that stores something.
    ///
    /// # Errors
    /// What the port says of the target.
    pub(super) fn new(
        port: &dyn ServerPort,
        conn: ConnId,
        slot: u16,
        task: &Task,
    ) -> Result<Job, RegionError> {
        let (source, store) = match *task {
            Task::Fill {
                region,
                offset,
                len,
                seed,
                slices,
            } => {
                // The whole range is asked for first, so that an impossible length costs no memory.
                port.check(conn, RegionId(region), offset, len)?;
                let vector = len / u64::from(slices);
                let strip = strip(offset, vector, vector, slices.into());
                (None, Store::pattern(region, strip, seed, 1))
            }
            Task::Stripe {
                region,
                offset,
                bytes,
                stride,
                count,
                seed,
            } => {
                let strip = strip(offset, bytes.into(), stride.into(), count.into());
                let end = strip.end().ok_or(RegionError::OutOfBounds)?;
                port.check(conn, RegionId(region), offset, end - offset)?;
                (None, Store::pattern(region, strip, seed, count.into()))
            }
            Task::Copy {
                from,
                offset,
                len,
                to,
                to_offset,
            } => {
                let source = Extent {
                    region: RegionId(from),
                    offset,
                    len,
                };
                // Sources and targets are bounded by the largest region.
                let len = len.min(1 << 30);
                let store = Store {
                    region: RegionId(to),
                    strip: strip(to_offset, 1, 1, len),
                    bytes: Vec::new(),
                    placed: 0,
                    step: len,
                    request: 0,
                };
                (Some(source), store)
            }
            Task::Echo | Task::Hold | Task::Close(_) => unreachable!("they store nothing"),
        };
        Ok(Job {
            conn,
            slot,
            source,
            fetched: false,
            coming: false,
            store,
        })
    }

    /// Whether it uses a region.
    pub(super) fn uses(&self, region: RegionId) -> bool {
        self.store.region == region || self.source.is_some_and(|s| s.region == region)
    }

    /// Its data are there, or can't be had.
    pub(super) fn arrived(
        &mut self,
        port: &mut dyn ServerPort,
        outcome: Result<(), RegionError>,
    ) -> Progress {
        assert!(
            self.coming,
            "data come once, and only where they were asked for"
        );
        self.coming = false;
        match outcome {
            Ok(()) => self.advance(port),
            Err(error) => self.end(port, status_of(Err(error))),
        }
    }

    /// Goes on as far as it can.
    pub(super) fn advance(&mut self, port: &mut dyn ServerPort) -> Progress {
        match self.try_advance(port) {
            Ok(()) => self.end(port, Status::Ok),
            Err(RoomError::Later) => Progress::Waits,
            Err(RoomError::Region(error)) => self.end(port, status_of(Err(error))),
        }
    }

    /// Ends it with a status.
    pub(super) fn end(&mut self, port: &mut dyn ServerPort, status: Status) -> Progress {
        self.drop_data(port);
        let slices = self.store.strip.count / self.store.step.max(1);
        let mut record = last(self.slot, status, self.store.request);
        record.slice = slices.saturating_sub(1) as u16;
        port.complete(self.conn, &record);
        Progress::Ended
    }

    /// Gives back what the port holds for it.
    pub(super) fn drop_data(&mut self, port: &mut dyn ServerPort) {
        if std::mem::take(&mut self.fetched) {
            port.release(self.conn, self.slot);
        }
        self.coming = false;
    }

    fn try_advance(&mut self, port: &mut dyn ServerPort) -> Result<(), RoomError> {
        if self.coming {
            return Err(RoomError::Later);
        }
        if let Some(source) = self.source {
            self.take_source(port, source)?;
        }
        let store = &mut self.store;
        while store.placed < store.strip.count {
            store.place_some(port, self.conn)?;
            if store.placed < store.strip.count && store.placed.is_multiple_of(store.step) {
                let mut record = last(self.slot, Status::Ok, store.request);
                record.kind = CompletionKind::Slice;
                record.slice = (store.placed / store.step - 1) as u16;
                record.credits = 0;
                port.complete(self.conn, &record);
            }
        }
        Ok(())
    }

    /// Fetches and reads what is to be copied.
    fn take_source(&mut self, port: &mut dyn ServerPort, source: Extent) -> Result<(), RoomError> {
        if !self.fetched && source.len > 0 {
            let fetch = port.fetch(self.conn, self.slot, &[source])?;
            self.fetched = port.fetches();
            self.coming = fetch == Fetch::Coming;
            if self.coming {
                return Err(RoomError::Later);
            }
        }
        let mut bytes = vec![0; (source.len as usize).min(16 << 20)];
        if !bytes.is_empty() {
            port.read(
                self.conn,
                self.slot,
                source.region,
                source.offset,
                &mut bytes,
            )?;
        }
        self.drop_data(port);
        port.check(
            self.conn,
            self.store.region,
            self.store.strip.offset,
            source.len,
        )?;
        self.store.bytes = bytes;
        self.source = None;
        Ok(())
    }
}

impl Store {
    fn pattern(region: u32, strip: Strip, seed: u64, step: u64) -> Store {
        let mut bytes = vec![0; strip.total() as usize];
        pattern(seed, &mut bytes);
        Store {
            region: RegionId(region),
            strip,
            bytes,
            placed: 0,
            step,
            request: seed,
        }
    }

    /// Places as many vectors as are staged together, up to the next slice; of vectors that are larger
    /// than staging, which have no holes between them, all pieces of one.
    fn place_some(&mut self, port: &mut dyn ServerPort, conn: ConnId) -> Result<(), RoomError> {
        let all = self.strip;
        let vectors = self.step - self.placed % self.step;
        let fitting = port.stage_bytes() / all.bytes.max(1);
        if fitting == 0 {
            return self.place_pieces(port, conn);
        }
        let count = vectors.min(fitting);
        let from = (self.placed * all.bytes) as usize;
        let part = Strip {
            offset: all.offset + self.placed * all.stride,
            count,
            ..all
        };
        let bytes = &self.bytes[from..from + part.total() as usize];
        if !bytes.is_empty() {
            place(port, conn, self.region, part, bytes)?;
        }
        self.placed += count;
        Ok(())
    }

    fn place_pieces(&mut self, port: &mut dyn ServerPort, conn: ConnId) -> Result<(), RoomError> {
        // Once more from the vector's begin where room was lacking: the bytes are the same.
        let most = port.stage_bytes() as usize;
        let offset = self.strip.offset + self.placed * self.strip.stride;
        let from = (self.placed * self.strip.bytes) as usize;
        let vector = &self.bytes[from..from + self.strip.bytes as usize];
        for (i, bytes) in vector.chunks(most).enumerate() {
            let len = bytes.len() as u64;
            let part = strip(offset + (i * most) as u64, len, len, 1);
            place(port, conn, self.region, part, bytes)?;
        }
        self.placed += 1;
        Ok(())
    }
}

fn place(
    port: &mut dyn ServerPort,
    conn: ConnId,
    region: RegionId,
    part: Strip,
    bytes: &[u8],
) -> Result<(), RoomError> {
    let staging = port.stage(conn, region, &[part])?;
    let laid = staging.lay(&[part])[0];
    match port.window(conn, region, &staging) {
        Ok(window) => {
            for (i, vector) in bytes.chunks(part.bytes as usize).enumerate() {
                window.write(laid.at as usize + i * laid.stride as usize, vector);
            }
        }
        Err(error) => {
            port.unstage(conn, region, staging);
            return Err(error.into());
        }
    }
    Ok(port.place(conn, region, staging, &[part])?)
}

const fn strip(offset: u64, bytes: u64, stride: u64, count: u64) -> Strip {
    Strip {
        offset,
        bytes,
        stride,
        count,
    }
}

/// The status that says what a port said.
pub(super) fn status_of(result: Result<(), RegionError>) -> Status {
    match result {
        Ok(()) => Status::Ok,
        Err(RegionError::Unknown) => Status::UnknownRegion,
        Err(RegionError::Forbidden) => Status::RegionForbidden,
        Err(RegionError::OutOfBounds) => Status::TargetOutOfRegion,
        Err(RegionError::Lost) => Status::RegionLost,
    }
}

/// A final record.
pub(super) fn last(slot: u16, status: Status, request: u64) -> Completion {
    Completion {
        kind: CompletionKind::Final,
        part: 0,
        status,
        slot,
        slice: 0,
        request,
        generation: 7,
        delta: 0,
        attempt: 0,
        credits: 1,
        feature: NOWHERE,
        index: NOWHERE,
        service_ns: 0,
        newest: 8,
    }
}
