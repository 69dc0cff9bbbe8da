//! The suite's workers: they do what frames ask and write down what they saw.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::status::NOWHERE;
use rowmill_wire::{Completion, CompletionKind, Status};

use super::task::{Task, fingerprint, pattern};
use crate::{ConnId, Event, RegionError, RegionId, ServerPort};

/// One thing that a worker saw or did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The port gave this event.
    Saw(Event),
    /// The worker acknowledged the end of a connection or region.
    Acknowledged(Event),
}

/// What a lane's worker saw, shared with the case that watches it.
#[derive(Debug, Default)]
pub struct Journal {
    entries: Mutex<Vec<Entry>>,
    paused: AtomicBool,
}

impl Journal {
    /// All entries so far.
    pub fn entries(&self) -> Vec<Entry> {
        self.entries.lock().expect("no panic while locked").clone()
    }

    /// How many entries satisfy `test`.
    pub fn count(&self, test: impl Fn(&Entry) -> bool) -> usize {
        self.entries
            .lock()
            .expect("no panic while locked")
            .iter()
            .filter(|entry| test(entry))
            .count()
    }

    /// Whether there is such an entry.
    pub fn has(&self, entry: Entry) -> bool {
        self.count(|e| *e == entry) > 0
    }

    /// Makes the worker stop polling, or go on. It takes effect at its next turn.
    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::SeqCst);
    }

    fn write(&self, entry: Entry) {
        self.entries
            .lock()
            .expect("no panic while locked")
            .push(entry);
    }
}

/// A worker of the suite.
pub struct Worker {
    journal: Arc<Journal>,
    frame: Box<[u8; SLOT_BYTES]>,
    held: Vec<(ConnId, u16)>,
    ended: Option<Event>,
}

impl Worker {
    /// A worker that writes to `journal`.
    pub fn new(journal: Arc<Journal>) -> Worker {
        Worker {
            journal,
            frame: Box::new([0; SLOT_BYTES]),
            held: Vec::new(),
            ended: None,
        }
    }

    /// Whether the worker must not be turned now: its owner lets time pass instead, without sleeping long.
    pub fn is_paused(&self) -> bool {
        self.journal.paused.load(Ordering::SeqCst)
    }

    /// Polls once and does what is asked; false if there was nothing, or the worker is paused.
    pub fn turn(&mut self, port: &mut dyn ServerPort) -> bool {
        if self.is_paused() {
            return false;
        }
        let event = port.poll(&mut self.frame);
        if let Some(ended) = self.ended.take() {
            assert_no_access(port, ended, event);
            self.journal.write(Entry::Acknowledged(ended));
        }
        let Some(event) = event else {
            return false;
        };
        self.journal.write(Entry::Saw(event));
        match event {
            Event::Attached { .. } | Event::Region { .. } => (),
            Event::RegionGone { .. } => self.ended = Some(event),
            Event::Detached { conn } => {
                self.held.retain(|(c, _)| *c != conn);
                self.ended = Some(event);
            }
            Event::Cancel { conn, slot } => self.cancel(port, conn, slot),
            Event::Request { conn, slot, len } => self.serve(port, conn, slot, len),
        }
        true
    }

    fn cancel(&mut self, port: &mut dyn ServerPort, conn: ConnId, slot: u16) {
        if let Some(at) = self.held.iter().position(|h| *h == (conn, slot)) {
            self.held.swap_remove(at);
            port.complete(conn, &last(slot, Status::Cancelled, 0));
        }
    }

    fn serve(&mut self, port: &mut dyn ServerPort, conn: ConnId, slot: u16, len: usize) {
        let frame = &self.frame[..len];
        match Task::parse(frame) {
            Task::Echo => {
                let mut record = last(slot, Status::Ok, fingerprint(frame));
                record.delta = len as u64;
                port.complete(conn, &record);
            }
            Task::Fill {
                region,
                offset,
                len,
                seed,
                slices,
            } => fill(
                port,
                conn,
                slot,
                (RegionId(region), offset, len),
                seed,
                slices,
            ),
            Task::Copy {
                from,
                offset,
                len,
                to,
                to_offset,
            } => {
                let mut bytes = vec![0; usize::try_from(len).unwrap_or(0).min(16 << 20)];
                let status = port
                    .read(conn, RegionId(from), offset, &mut bytes)
                    .and_then(|()| {
                        port.target(conn, RegionId(to), to_offset, len)
                            .map(|window| window.write(0, &bytes))
                    });
                port.complete(conn, &last(slot, status_of(status), 0));
            }
            Task::Hold => self.held.push((conn, slot)),
            Task::Close(status) => port.close(conn, status),
        }
    }
}

fn fill(
    port: &mut dyn ServerPort,
    conn: ConnId,
    slot: u16,
    (region, offset, len): (RegionId, u64, u64),
    seed: u64,
    slices: u16,
) {
    // The whole range is asked for first, so that an impossible length costs no memory.
    if let Err(error) = port.target(conn, region, offset, len) {
        return port.complete(conn, &last(slot, status_of(Err(error)), seed));
    }
    let mut bytes = vec![0; len as usize];
    pattern(seed, &mut bytes);
    let step = bytes.len() / usize::from(slices);
    let mut status = Ok(());
    for slice in 0..slices {
        let at = step * usize::from(slice);
        match port.target(conn, region, offset + at as u64, step as u64) {
            Ok(window) => window.write(0, &bytes[at..at + step]),
            Err(error) => status = Err(error),
        }
        if port.is_lost(conn, region) {
            status = Err(RegionError::Lost);
        }
        let mut record = last(slot, status_of(status), seed);
        record.slice = slice;
        if slice + 1 < slices {
            record.kind = CompletionKind::Slice;
            record.credits = 0;
        }
        port.complete(conn, &record);
    }
}

/// After the acknowledgement nothing of a connection or region can be reached any more, unless the
/// same poll gave the first event of a new holder of the number.
fn assert_no_access(port: &mut dyn ServerPort, ended: Event, next: Option<Event>) {
    let (conn, region) = match ended {
        Event::RegionGone { conn, region } => (conn, region),
        Event::Detached { conn } => (conn, RegionId(0)),
        _ => return,
    };
    match next {
        Some(Event::Region { conn: c, .. } | Event::Attached { conn: c, .. }) if c == conn => (),
        _ => {
            let unknown = Some(RegionError::Unknown);
            assert_eq!(port.target(conn, region, 0, 1).err(), unknown);
            assert_eq!(port.read(conn, region, 0, &mut [0; 1]).err(), unknown);
        }
    }
}

fn status_of(result: Result<(), RegionError>) -> Status {
    match result {
        Ok(()) => Status::Ok,
        Err(RegionError::Unknown) => Status::UnknownRegion,
        Err(RegionError::OutOfBounds) => Status::TargetOutOfRegion,
        Err(RegionError::Lost) => Status::RegionLost,
    }
}

fn last(slot: u16, status: Status, request: u64) -> Completion {
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
    }
}
