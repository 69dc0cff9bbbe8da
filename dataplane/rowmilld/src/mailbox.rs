//! What other threads tell a worker: schemas to bind, tables that are elsewhere, and when to stop. The worker looks here once a
//! step, without waiting.

use core::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32,
    Ordering::{Acquire, Release},
};
use std::sync::{Arc, OnceLock};

use crossbeam_queue::ArrayQueue;
use rowmill_cache::store::Resize;
use rowmill_cache::{Rules, WarmRows};
use rowmill_engine::{BoundSchema, Conn, Engine, HELD, Home, Side, SideTier};
use rowmill_port::{ConnId, Waker};

use crate::turnover::Turnover;

/// Schemas on their way to one worker. Each client can have one, and those that were given up besides. The worker takes all
/// of them in each pass, and the control thread sends what found no room when it looks again; so this bounds no client,
/// but how many a pass takes in.
const BINDINGS: usize = 16;

/// A schema as it is bound to each generation that is held.
pub(crate) type Versions = [Option<Arc<BoundSchema>>; HELD];

/// A schema that every worker is to know under a number of a connection.
///
/// Whoever made it keeps an `Arc` until it holds the only one, so that a worker that drops its own
/// never frees memory.
#[derive(Debug)]
pub(crate) struct Binding {
    conn: ConnId,
    number: u32,
    schemas: Versions,
    missing: AtomicU32,
    abandoned: AtomicBool,
}

impl Binding {
    pub(crate) fn new(conn: ConnId, number: u32, schemas: Versions, workers: u32) -> Binding {
        Binding {
            conn,
            number,
            schemas,
            missing: AtomicU32::new(workers),
            abandoned: AtomicBool::new(false),
        }
    }

    /// The number that requests name the schema by.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Whether every worker knows the schema.
    pub(crate) fn is_known(&self) -> bool {
        self.missing.load(Acquire) == 0
    }

    /// Nobody waits for it any more: workers that have not yet taken it in leave it.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Release);
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Acquire)
    }

    pub(crate) fn conn(&self) -> ConnId {
        self.conn
    }

    /// A worker's: has its engine know it.
    pub(crate) fn tell(&self, engine: &mut Engine) {
        for (side, schema) in Side::ALL.into_iter().zip(&self.schemas) {
            if let Some(schema) = schema {
                engine.bind_in(side, Conn(self.conn.0), self.number, Arc::clone(schema));
            }
        }
        self.missing.fetch_sub(1, Release);
    }
}

/// What a worker is to know of listed tables from now on. It comes back, so that the worker neither makes memory nor frees any.
#[derive(Debug)]
pub enum Move {
    /// The rows of the table of this number are found here. It comes back with where they were.
    Home(usize, Box<Home>),
    /// Its store is about to have another size, if it is cached.
    Size(usize, Resize),
    /// What rows of a side's tables come from. It comes back with what they came from before and true; or, as long as that has something to
    /// answer, as it was.
    Tier(Side, Box<SideTier>, bool),
    /// These rows were hot when their table was cached before, and are to be loaded.
    Warm(Arc<[WarmRows]>),
}

impl Move {
    /// A worker's: has its engine know it. Between two turns.
    pub(crate) fn tell(&mut self, engine: &mut Engine) {
        match self {
            Move::Home(table, home) => engine.place(*table, home),
            Move::Size(table, resize) => engine.resize(*table, *resize),
            Move::Tier(side, tier, is_taken) => *is_taken = engine.replace_tier(*side, tier),
            Move::Warm(rows) => engine.warm(rows),
        }
    }
}

/// What all workers are to do about listed tables from now on, of a policy.
///
/// Whoever made it keeps it until all workers have taken the one after it, so that a worker that drops its own, or a part of it, never frees
/// memory.
#[derive(Debug)]
pub struct Directive {
    /// By table: its number in the first generation, the threshold below which its lookups are sampled, and which rows come and stay.
    tables: Box<[(usize, u32, Rules)]>,
    /// Rows that are to stay and are not there.
    lacking: Arc<[WarmRows]>,
    missing: AtomicU32,
}

impl Directive {
    /// For so many workers.
    pub fn new(
        tables: Box<[(usize, u32, Rules)]>,
        lacking: Arc<[WarmRows]>,
        workers: u32,
    ) -> Directive {
        Directive {
            tables,
            lacking,
            missing: AtomicU32::new(workers),
        }
    }

    /// What it says of each table.
    pub(crate) fn tables(&self) -> &[(usize, u32, Rules)] {
        &self.tables
    }

    /// Whether every worker knows it.
    pub fn is_known(&self) -> bool {
        self.missing.load(Acquire) == 0
    }

    /// A worker's: has its engine know it.
    pub(crate) fn tell(&self, engine: &mut Engine) {
        let tables = engine.cache().on_side(1, 0);
        for (table, threshold, rules) in &self.tables {
            for side in Side::ALL {
                let home = side.index() * tables + table;
                engine.sample(home, *threshold);
                engine.rule(home, rules);
            }
        }
        engine.load_pinned(Arc::clone(&self.lacking));
        self.missing.fetch_sub(1, Release);
    }
}

/// How far the service is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Orders {
    /// Serve.
    Serve,
    /// Refuse new requests, finish those in progress.
    Drain,
    /// End.
    Stop,
}

/// One worker's mailbox.
pub struct Mailbox {
    bindings: ArrayQueue<Arc<Binding>>,
    /// The table that is to move, and the one that has. One moves at a time.
    moves: ArrayQueue<Box<Move>>,
    moved: ArrayQueue<Box<Move>>,
    /// What it is to do about listed tables from now on.
    directives: ArrayQueue<Arc<Directive>>,
    /// What it is to know of generations from now on. One step is made at a time.
    turnovers: ArrayQueue<Arc<Turnover>>,
    orders: AtomicU8,
    waker: OnceLock<Arc<dyn Waker>>,
}

impl Default for Mailbox {
    fn default() -> Mailbox {
        Mailbox {
            bindings: ArrayQueue::new(BINDINGS),
            moves: ArrayQueue::new(1),
            moved: ArrayQueue::new(1),
            directives: ArrayQueue::new(1),
            turnovers: ArrayQueue::new(1),
            orders: AtomicU8::new(Orders::Serve as u8),
            waker: OnceLock::new(),
        }
    }
}

impl Mailbox {
    /// Says how the worker is woken; once, when its half of the port is there.
    pub fn set_waker(&self, waker: Arc<dyn Waker>) {
        let first = self.waker.set(waker).is_ok();
        assert!(first, "a worker has one half of a port");
    }

    /// Sends a schema.
    ///
    /// # Errors
    /// The schema, when the mailbox is full.
    pub(crate) fn send(&self, binding: Arc<Binding>) -> Result<(), Arc<Binding>> {
        self.bindings.push(binding)?;
        self.wake();
        Ok(())
    }

    /// Tells the worker where a table's rows are. When it knows, [`moved`](Mailbox::moved) gives this back.
    ///
    /// # Panics
    /// If the one before was not taken back.
    pub fn move_table(&self, moving: Box<Move>) {
        assert!(self.moved.is_empty(), "one table moves at a time");
        let sent = self.moves.push(moving);
        sent.expect("one table moves at a time");
        self.wake();
    }

    /// The table that was to move, once the worker knows where it is.
    pub fn moved(&self) -> Option<Box<Move>> {
        self.moved.pop()
    }

    /// The worker's: the next table that is to move.
    pub(crate) fn next_move(&self) -> Option<Box<Move>> {
        // As with bindings.
        if self.moves.is_empty() {
            None
        } else {
            self.moves.pop()
        }
    }

    /// The worker's: it knows where the table is.
    pub(crate) fn has_moved(&self, moved: Box<Move>) {
        let sent = self.moved.push(moved);
        sent.expect("the one before was taken back");
    }

    /// Tells the worker what to do about listed tables.
    ///
    /// # Panics
    /// If it does not know the one before yet.
    pub fn direct(&self, directive: Arc<Directive>) {
        let sent = self.directives.push(directive);
        sent.expect("the worker knows the one before");
        self.wake();
    }

    /// The worker's: what it is to do about listed tables.
    pub(crate) fn next_directive(&self) -> Option<Arc<Directive>> {
        // As with bindings.
        if self.directives.is_empty() {
            None
        } else {
            self.directives.pop()
        }
    }

    /// Tells the worker of generations.
    ///
    /// # Panics
    /// If it has not taken the one before.
    pub fn turn_over(&self, turnover: Arc<Turnover>) {
        let sent = self.turnovers.push(turnover);
        sent.expect("one step is made at a time");
        self.wake();
    }

    /// The worker's: what it is to know of generations.
    pub(crate) fn next_turnover(&self) -> Option<Arc<Turnover>> {
        // As with bindings.
        if self.turnovers.is_empty() {
            None
        } else {
            self.turnovers.pop()
        }
    }

    /// Changes the orders.
    pub fn order(&self, orders: Orders) {
        self.orders.store(orders as u8, Release);
        self.wake();
    }

    /// The orders.
    pub fn orders(&self) -> Orders {
        match self.orders.load(Acquire) {
            0 => Orders::Serve,
            1 => Orders::Drain,
            _ => Orders::Stop,
        }
    }

    pub(crate) fn receive(&self) -> Option<Arc<Binding>> {
        // Looking costs two loads; popping from an empty queue would cost a fence.
        if self.bindings.is_empty() {
            None
        } else {
            self.bindings.pop()
        }
    }

    /// Ends the worker's sleep, the current one or the next.
    pub fn wake(&self) {
        // Without a waker the worker has not begun; it looks here before it first sleeps.
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }
}
