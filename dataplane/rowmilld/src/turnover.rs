//! What workers are told of generations: that another is held, that it is the newest, that one goes.

use core::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Release},
};
use std::sync::Arc;

use rowmill_engine::{BoundSchema, Conn, Engine, Side};
use rowmill_port::ConnId;

/// Schemas of a [`Stage::Bind`]: looking at each costs some tens of nanoseconds, so that none holds up a micro-batch.
pub const SCHEMAS: usize = 64;

/// A schema that is bound to another generation, too.
#[derive(Clone, Debug)]
pub struct Also {
    pub(crate) conn: ConnId,
    /// Its number on that connection.
    pub(crate) number: u32,
    /// As it is bound to the other generation, by which it is known that the connection is still the same.
    pub(crate) before: Arc<BoundSchema>,
    pub(crate) bound: Arc<BoundSchema>,
}

/// Rows that were read from a table's file.
#[derive(Debug)]
pub struct Rows {
    /// The number by which workers know the table.
    pub table: usize,
    /// Their numbers.
    pub rows: Vec<u32>,
    /// How often each may have been used.
    pub uses: Vec<u32>,
    /// Their bytes, one behind the other.
    pub bytes: Vec<u8>,
}

/// What there is to do for a side.
#[derive(Debug)]
pub enum Stage {
    /// It holds the generation of this number.
    Prepare(u64),
    /// These schemas are bound to it; at most [`SCHEMAS`].
    Bind(Box<[Also]>),
    /// These rows of one of its tables are kept in the cache, as far as there is room: no more than take a fraction of a micro-batch.
    Keep(Rows),
    /// It is the newest.
    Switch,
    /// It is to be given up.
    Release,
}

/// What all workers are to know of a side from now on, one step at a time.
///
/// Whoever made it keeps it until it holds the only one, so that a worker that drops its own never frees memory.
#[derive(Debug)]
pub struct Turnover {
    side: Side,
    stage: Stage,
    workers: u32,
    missing: AtomicU32,
}

impl Turnover {
    /// For so many workers.
    pub fn new(side: Side, stage: Stage, workers: u32) -> Turnover {
        Turnover {
            side,
            stage,
            workers,
            missing: AtomicU32::new(workers),
        }
    }

    /// Whether any worker has done what it says.
    pub fn is_begun(&self) -> bool {
        self.missing.load(Acquire) < self.workers
    }

    /// Whether every worker has done what it says.
    pub fn is_done(&self) -> bool {
        self.missing.load(Acquire) == 0
    }

    /// A worker's: has its engine begin with it. Between two turns.
    pub(crate) fn begin(&self, engine: &mut Engine) {
        match &self.stage {
            Stage::Prepare(generation) => engine.prepare(self.side, *generation),
            Stage::Bind(schemas) => {
                for also in schemas {
                    let schema = (Conn(also.conn.0), also.number);
                    engine.bind_also(self.side, schema, &also.before, &also.bound);
                }
            }
            Stage::Keep(read) => engine.keep(read.table, &read.rows, &read.uses, &read.bytes),
            Stage::Switch => engine.switch(self.side),
            Stage::Release => engine.close(self.side),
        }
    }

    /// A worker's: has its engine end it, between two turns. Returns whether it could: what requests use is given up when they have ended.
    pub(crate) fn end(&self, engine: &mut Engine) -> bool {
        if matches!(self.stage, Stage::Release) {
            if engine.in_progress_on(self.side) > 0 {
                return false;
            }
            engine.forget(self.side);
        }
        self.missing.fetch_sub(1, Release);
        true
    }
}
