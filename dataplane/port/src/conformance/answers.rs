//! A service for the suite.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use rowmill_wire::control::{TableEntry, Welcome};
use rowmill_wire::{Refusal, Schema, SplitRule, Status};

use crate::{Bound, ConnId, PendingBind, Service};

/// Tables that [`Answers`] lists: more than one page, and the last page not full.
pub const TABLES: usize = 300;

/// Welcomes everybody but a client named `nobody`, binds schemas but of a table named `missing`, keeps those of a table
/// named [`Answers::HELD`] waiting, and remembers which connections ended.
#[derive(Debug)]
pub struct Answers {
    lanes: u16,
    gone: Mutex<Vec<ConnId>>,
    held: Arc<Held>,
    gate: Gate,
}

/// What the control thread waits at before it lists tables.
#[derive(Debug, Default)]
struct Gate {
    /// Whether it is shut, and whether somebody waits.
    state: Mutex<(bool, bool)>,
    opened: Condvar,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, (bool, bool)> {
        self.state.lock().expect("no panic while locked")
    }

    fn pass(&self) {
        let mut state = self.state();
        while state.0 {
            state.1 = true;
            state = self.opened.wait(state).expect("no panic while locked");
        }
    }
}

/// Schemas that no worker seems to take in.
#[derive(Debug, Default)]
struct Held {
    now: AtomicUsize,
    ever: AtomicUsize,
    known: AtomicBool,
}

struct HeldBind {
    number: u32,
    held: Arc<Held>,
}

impl PendingBind for HeldBind {
    fn number(&self) -> u32 {
        self.number
    }

    fn is_known(&mut self) -> bool {
        self.held.known.load(Ordering::SeqCst)
    }
}

impl Drop for HeldBind {
    fn drop(&mut self) {
        self.held.now.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Answers {
    /// The table that is not bound before [`Answers::let_held_go`].
    pub const HELD: &str = "held";

    /// For a port with `lanes` lanes.
    pub fn new(lanes: u16) -> Answers {
        Answers {
            lanes,
            gone: Mutex::new(Vec::new()),
            held: Arc::default(),
            gate: Gate::default(),
        }
    }

    /// Schemas of the table [`Answers::HELD`] that are neither answered nor abandoned.
    pub fn held(&self) -> usize {
        self.held.now.load(Ordering::SeqCst)
    }

    /// How many there have been.
    pub fn held_ever(&self) -> usize {
        self.held.ever.load(Ordering::SeqCst)
    }

    /// From now on those are known like any other.
    pub fn let_held_go(&self) {
        self.held.known.store(true, Ordering::SeqCst);
    }

    /// From now on who asks for the tables holds the control thread up, until [`Answers::open`] is called.
    pub fn shut(&self) {
        *self.gate.state() = (true, false);
    }

    /// Whether somebody holds it up.
    pub fn is_held_up(&self) -> bool {
        self.gate.state().1
    }

    /// Lets it go on.
    pub fn open(&self) {
        *self.gate.state() = (false, false);
        self.gate.opened.notify_all();
    }

    /// The connections that ended, in order.
    pub fn gone(&self) -> Vec<ConnId> {
        self.gone.lock().expect("no panic while locked").clone()
    }
}

impl Service for Answers {
    fn welcome(&self, client: &str) -> Result<Welcome, (Refusal, String)> {
        if client == "nobody" {
            return Err((Refusal::whole(Status::Draining), "not today".to_owned()));
        }
        Ok(Welcome {
            model: "conformance".to_owned(),
            generation: 7,
            split: SplitRule {
                lanes: self.lanes,
                min_bags: 1,
            },
            credits: u16::MAX,
            completions: 1,
            max_ids: 1000,
            max_lengths: 1000,
            max_region: 0,
        })
    }

    fn tables(&self) -> Vec<TableEntry> {
        self.gate.pass();
        (0..TABLES)
            .map(|i| TableEntry {
                name: format!("table-{i}"),
                rows: i as u64,
                dim: 4,
                format: 0,
                kind: 0,
            })
            .collect()
    }

    fn bind(
        &self,
        _conn: ConnId,
        schema: Schema,
    ) -> Result<Box<dyn PendingBind>, (Refusal, String)> {
        let number = schema.features.len() as u32;
        let find = |table: &str| schema.features.iter().position(|f| f.table == table);
        if let Some(i) = find("missing") {
            return Err((
                Refusal::feature(Status::UnknownTable, i as u32),
                "no such table".to_owned(),
            ));
        }
        if find(Answers::HELD).is_none() {
            return Ok(Box::new(Bound(number)));
        }
        let held = self.held.clone();
        held.now.fetch_add(1, Ordering::SeqCst);
        held.ever.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(HeldBind { number, held }))
    }

    fn gone(&self, conn: ConnId) {
        self.gone.lock().expect("no panic while locked").push(conn);
    }
}
