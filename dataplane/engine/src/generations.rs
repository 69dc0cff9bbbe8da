//! Generations of the model: at most two are held at a time, each on a side of its own.
//!
//! Every schema is bound to the tables of each generation that is held, and a request goes on with the one that it began with. So
//! another generation is brought in beside the one that is served ([`prepare`](Engine::prepare), [`bind_also`](Engine::bind_also)),
//! requests that name none get it from one turn to the next ([`switch`](Engine::switch)), and the earlier one goes when no request
//! uses it any more ([`close`](Engine::close), [`forget`](Engine::forget)). While it is there, switching back is as quick.

use std::sync::Arc;

use rowmill_wire::limits::MAX_SCHEMAS;
use rowmill_wire::{Refusal, Status};

use crate::bind::BoundSchema;
use crate::engine::Engine;
use crate::memory::Conn;

/// Generations that are held at a time.
pub const HELD: usize = 2;

/// Where one of the generations that are held is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Side {
    /// That of the generation which is there at the start.
    #[default]
    A,
    /// The other.
    B,
}

impl Side {
    /// Both.
    pub const ALL: [Side; HELD] = [Side::A, Side::B];

    /// The other one.
    pub fn other(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }

    /// Its number, below [`HELD`].
    pub fn index(self) -> usize {
        self as usize
    }
}

/// A schema of a connection as it is bound to each generation that is held, by side.
pub(crate) type Sides = [Option<Arc<BoundSchema>>; HELD];

/// All schemas of a connection, by number.
pub(crate) type Schemas = [Sides; MAX_SCHEMAS as usize];

/// No schemas.
pub(crate) const NO_SCHEMAS: Schemas = [const { [const { None }; HELD] }; MAX_SCHEMAS as usize];

/// Which generations an engine holds.
#[derive(Debug, Default)]
pub(crate) struct Generations {
    numbers: [Option<u64>; HELD],
    newest: Side,
    /// Requests in progress on each.
    in_progress: [usize; HELD],
}

impl Generations {
    /// The number of the newest one; 0 as long as none is known.
    pub(crate) fn newest(&self) -> u64 {
        self.numbers[self.newest.index()].unwrap_or(0)
    }

    /// The side that a request is for which names a generation, or none with 0. One that is not held is taken for the newest, whose
    /// number is another.
    ///
    /// # Errors
    /// [`Status::UnknownSchema`] where the schema is not bound.
    pub(crate) fn side<'s>(
        &self,
        named: u64,
        sides: Option<&'s Sides>,
    ) -> Result<(Side, &'s BoundSchema), Refusal> {
        let is_named = |side: &Side| named != 0 && self.numbers[side.index()] == Some(named);
        let side = Side::ALL.into_iter().find(is_named).unwrap_or(self.newest);
        let schema = sides.and_then(|sides| sides[side.index()].as_deref());
        let schema = schema.ok_or(Refusal::whole(Status::UnknownSchema))?;
        Ok((side, schema))
    }

    /// A request begins.
    pub(crate) fn begin(&mut self, side: Side) {
        self.in_progress[side.index()] += 1;
    }

    /// A request has ended.
    pub(crate) fn end(&mut self, side: Side) {
        self.in_progress[side.index()] -= 1;
    }
}

impl Engine {
    /// A connection has a schema bound under a number, to the newest generation.
    ///
    /// # Panics
    /// If the connection is not attached or the number out of bounds (the driver's mistake).
    pub fn bind(&mut self, conn: Conn, schema: u32, bound: Arc<BoundSchema>) {
        self.bind_in(self.generations.newest, conn, schema, bound);
    }

    /// A connection has a schema bound under a number, to the generation of a side.
    ///
    /// # Panics
    /// As [`Engine::bind`].
    pub fn bind_in(&mut self, side: Side, conn: Conn, schema: u32, bound: Arc<BoundSchema>) {
        let connection = &mut self.connections[conn.0 as usize];
        assert!(
            connection.attached,
            "schemas are bound on attached connections"
        );
        if side == self.generations.newest {
            let number = &mut self.generations.numbers[side.index()];
            number.get_or_insert(bound.generation());
        }
        connection.schemas[schema as usize][side.index()] = Some(bound);
    }

    /// The generation of a side is held from now on: requests that name it are answered, once their schemas are bound to it. The other
    /// side's goes on as it was.
    pub fn prepare(&mut self, side: Side, generation: u64) {
        self.generations.numbers[side.index()] = Some(generation);
    }

    /// A schema that a connection has bound to the other generation, as `before`, is bound to that of this side, too. Where the
    /// connection is gone, or is another's by now, nothing happens.
    pub fn bind_also(
        &mut self,
        side: Side,
        (conn, schema): (Conn, u32),
        before: &Arc<BoundSchema>,
        bound: &Arc<BoundSchema>,
    ) {
        let sides = &mut self.connections[conn.0 as usize].schemas[schema as usize];
        let other = sides[side.other().index()].as_ref();
        if other.is_some_and(|other| Arc::ptr_eq(other, before)) {
            sides[side.index()] = Some(Arc::clone(bound));
        }
    }

    /// Requests that come from now on and name no generation are answered from that of a side. Those in progress go on as they began.
    ///
    /// # Panics
    /// If the side holds none (the driver's mistake).
    pub fn switch(&mut self, side: Side) {
        let is_held = self.generations.numbers[side.index()].is_some();
        assert!(is_held, "a generation is prepared before it is the newest");
        self.generations.newest = side;
    }

    /// Requests that come from now on and name the generation of a side are answered [`Status::Retry`]. Those in progress go on.
    ///
    /// # Panics
    /// If it is the newest (the driver's mistake).
    pub fn close(&mut self, side: Side) {
        assert!(
            side != self.generations.newest,
            "the newest generation is served"
        );
        self.generations.numbers[side.index()] = None;
    }

    /// Gives up what is bound to the generation of a side, which was closed.
    ///
    /// # Panics
    /// If it is not closed, or a request is in progress on it (the driver's mistake).
    pub fn forget(&mut self, side: Side) {
        let is_held = self.generations.numbers[side.index()].is_some();
        assert!(
            !is_held && self.in_progress_on(side) == 0,
            "nobody uses what is given up"
        );
        for connection in &mut self.connections {
            for sides in &mut connection.schemas {
                sides[side.index()] = None;
            }
        }
    }

    /// Requests in progress on the generation of a side.
    pub fn in_progress_on(&self, side: Side) -> usize {
        self.generations.in_progress[side.index()]
    }
}
