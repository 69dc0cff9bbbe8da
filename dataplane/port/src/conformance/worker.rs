//! The suite's workers: they do what frames ask and write down what they saw.

use std::mem::take;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rowmill_wire::Status;
use rowmill_wire::limits::SLOT_BYTES;

use super::job::{Job, Progress, last, status_of};
use super::task::{Task, fingerprint};
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
    jobs: Vec<Job>,
    ended: Option<Event>,
}

impl Worker {
    /// A worker that writes to `journal`.
    pub fn new(journal: Arc<Journal>) -> Worker {
        Worker {
            journal,
            frame: Box::new([0; SLOT_BYTES]),
            held: Vec::new(),
            jobs: Vec::new(),
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
        self.jobs
            .retain_mut(|job| job.advance(port) == Progress::Waits);
        let Some(event) = event else {
            return !self.jobs.is_empty();
        };
        self.journal.write(Entry::Saw(event));
        match event {
            Event::Attached { .. } | Event::Region { .. } => (),
            Event::RegionGone { conn, region } => {
                let (gone, stay) = take(&mut self.jobs)
                    .into_iter()
                    .partition(|job: &Job| job.conn == conn && job.uses(region));
                self.jobs = stay;
                for mut job in gone {
                    job.end(port, Status::UnknownRegion);
                }
                self.ended = Some(event);
            }
            Event::Detached { conn } => {
                self.held.retain(|(c, _)| *c != conn);
                for job in self.jobs.iter_mut().filter(|job| job.conn == conn) {
                    job.drop_data(port);
                }
                self.jobs.retain(|job| job.conn != conn);
                self.ended = Some(event);
            }
            Event::Cancel { conn, slot } => self.cancel(port, conn, slot),
            Event::Request { conn, slot, len } => self.serve(port, conn, slot, len),
            Event::Fetched {
                conn,
                slot,
                outcome,
            } => {
                let job = self
                    .jobs
                    .iter()
                    .position(|j| (j.conn, j.slot) == (conn, slot));
                let job = job.expect("data come for requests in progress");
                if self.jobs[job].arrived(port, outcome) == Progress::Ended {
                    self.jobs.swap_remove(job);
                }
            }
        }
        true
    }

    fn cancel(&mut self, port: &mut dyn ServerPort, conn: ConnId, slot: u16) {
        if let Some(at) = self.held.iter().position(|h| *h == (conn, slot)) {
            self.held.swap_remove(at);
            port.complete(conn, &last(slot, Status::Cancelled, 0));
        }
        let mut jobs = self.jobs.iter();
        if let Some(at) = jobs.position(|job| (job.conn, job.slot) == (conn, slot)) {
            self.jobs.swap_remove(at).end(port, Status::Cancelled);
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
            Task::Hold => self.held.push((conn, slot)),
            Task::Close(status) => port.close(conn, status),
            task => match Job::new(port, conn, slot, &task) {
                Ok(mut job) => {
                    if job.advance(port) == Progress::Waits {
                        self.jobs.push(job);
                    }
                }
                Err(error) => port.complete(conn, &last(slot, status_of(Err(error)), 0)),
            },
        }
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
            assert_eq!(port.check(conn, region, 0, 1).err(), unknown);
            assert_eq!(port.read(conn, 0, region, 0, &mut [0; 1]).err(), unknown);
        }
    }
}
