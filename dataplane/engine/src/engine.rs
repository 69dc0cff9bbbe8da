//! The engine's events and actions.

use std::collections::VecDeque;
use std::sync::Arc;

use rowmill_cache::store::{Epochs, Resize, Worker as Turns};
use rowmill_cache::{Rules, WarmRows, Worker};
use rowmill_pooling::Kernels;
use rowmill_wire::request::Header;
use rowmill_wire::{Completion, Op, Refusal, Request, Status};

use crate::accept;
use crate::answer::Counters;
use crate::bind::BoundSchema;
use crate::cached::{Cached, Home, SideTier};
use crate::fetch;
use crate::generations::{Generations, NO_SCHEMAS, Schemas, Side};
use crate::limits::{BATCH_BYTES, BYTES_PER_NS_FIRST, Limits};
use crate::memory::{Conn, Memory};
use crate::schedule::Schedule;
use crate::slot::{NONE, Slot, Stage};

/// A client broke the protocol so that no answer could be addressed: cut it off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("slot {slot} was used again before its request had ended")]
pub struct ProtocolError {
    /// The slot.
    pub slot: u16,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) attached: bool,
    /// The engine's slot that holds the request of each of the connection's slots, or `NONE`.
    held: Box<[u32]>,
    pub(crate) schemas: Schemas,
}

/// One worker's requests. See the crate's documentation.
#[derive(Debug)]
pub struct Engine {
    pub(crate) limits: Limits,
    pub(crate) kernels: Kernels,
    pub(crate) connections: Box<[Connection]>,
    pub(crate) slots: Box<[Slot]>,
    pub(crate) generations: Generations,
    free: Vec<u32>,
    pub(crate) schedule: Schedule,
    /// Requests whose data have still to be asked for, in the order in which they came: one that waits for room is asked for
    /// before all that came later, whoever's they are.
    asking: VecDeque<u32>,
    pub(crate) done: VecDeque<(Conn, Completion)>,
    pub(crate) counters: Counters,
    /// No deadline of a request in progress lies before this.
    pub(crate) earliest_ns: u64,
    draining: bool,
    /// See [`Engine::take_handled`].
    handled: u64,
    pub(crate) turns: Turns,
    pub(crate) cached: Cached,
    /// Bytes of the next micro-batch.
    pub(crate) budget: u64,
    /// When the last micro-batch began, and its bytes; `None` after an idle turn, or one that parked bags, which tells no rate.
    pub(crate) last: Option<(u64, u64)>,
    /// When rows were last taken.
    pub(crate) rows_ns: u64,
}

impl Engine {
    /// An engine without connections, of which all tables are resident. All memory it will ever use is taken here.
    pub fn new(limits: Limits, kernels: Kernels) -> Engine {
        let (_, mut turns) = Epochs::new(1);
        let turns = turns.remove(0);
        Engine::with_cache(limits, kernels, turns, Worker::none())
    }

    /// An engine without connections. `cache` knows which tables are cached, and has their rows; `turns` is this engine's part of
    /// what tells their writers when nobody reads a row any more.
    pub fn with_cache(limits: Limits, kernels: Kernels, turns: Turns, cache: Worker) -> Engine {
        let connection = || Connection {
            attached: false,
            held: vec![NONE; usize::from(limits.credits)].into_boxed_slice(),
            schemas: NO_SCHEMAS,
        };
        Engine {
            limits,
            kernels,
            connections: (0..limits.connections).map(|_| connection()).collect(),
            slots: (0..limits.slots).map(|_| Slot::new(&limits)).collect(),
            generations: Generations::default(),
            free: (0..limits.slots).rev().collect(),
            schedule: Schedule::new(limits.connections),
            asking: VecDeque::with_capacity(limits.slots as usize),
            // A call ends at most every slot and refuses one frame; slices come one a turn.
            done: VecDeque::with_capacity(limits.slots as usize + 2),
            counters: Counters::default(),
            earliest_ns: u64::MAX,
            draining: false,
            handled: 0,
            turns,
            cached: Cached::new(cache, &limits),
            budget: (limits.micro_batch_ns / 2)
                .saturating_mul(BYTES_PER_NS_FIRST)
                .clamp(*BATCH_BYTES.start(), *BATCH_BYTES.end()),
            last: None,
            rows_ns: 0,
        }
    }

    /// The store of a table that is cached is about to have another size. Between two turns.
    ///
    /// # Panics
    /// If the table is always resident.
    pub fn resize(&mut self, table: usize, resize: Resize) {
        self.cached.worker.resize(table, resize);
    }

    /// Lookups of a listed table's rows whose place is below `threshold`, of 2^32, are sampled from now on while it is cached.
    ///
    /// # Panics
    /// If the table is always resident.
    pub fn sample(&mut self, table: usize, threshold: u32) {
        self.cached.worker.sample(table, threshold);
    }

    /// Which rows of a listed table come into the cache and which stay there from now on. Between two turns.
    ///
    /// # Panics
    /// If the table is always resident.
    pub fn rule(&mut self, table: usize, rules: &Rules) {
        self.cached.worker.rule(table, rules);
    }

    /// Loads rows of tables that were cached before and are again, beside those of others that are still being loaded. Between two turns.
    pub fn warm(&mut self, tables: &Arc<[WarmRows]>) {
        self.cached.worker.warm(tables);
    }

    /// Loads rows of cached tables that are to stay, as far as they are not there. Between two turns.
    pub fn load_pinned(&mut self, tables: Arc<[WarmRows]>) {
        self.cached.worker.load_pinned(tables);
    }

    /// What rows of a side's listed tables come from, and which tables of its generation are which of the listed ones, from now on: takes both
    /// from there, and leaves what was before, for another thread to free. Returns false, and nothing is done, as long as some that were asked for
    /// are not answered. Between two turns, while no request is in progress on that side.
    pub fn replace_tier(&mut self, side: Side, new: &mut SideTier) -> bool {
        let has_replaced = (self.cached.worker).replace_tier(side.index(), &mut new.tier);
        if has_replaced {
            self.cached.homes.replace(side, &mut new.homes);
        }
        has_replaced
    }

    /// Keeps rows of a listed table that another thread has read, where it is cached, as far as there is room for them. `uses` says how often each may have been
    /// used. Between two turns.
    ///
    /// # Panics
    /// As [`Worker::keep`].
    pub fn keep(&mut self, table: usize, rows: &[u32], uses: &[u32], bytes: &[u8]) {
        self.cached.worker.keep(table, rows, uses, bytes);
    }

    /// Has a listed table's rows elsewhere from now on: takes them from `home`, and leaves there what was before, for another thread to
    /// free. Between two turns; requests in progress go on with the new rows, also those that wait for rows of it or for room to.
    ///
    /// # Panics
    /// If the table is always resident.
    pub fn place(&mut self, table: usize, home: &mut Home) {
        self.cached.place(table, home);
        if self.cached.worker.is_cached(table) {
            return;
        }
        for index in 0..self.slots.len() as u32 {
            let slot = &mut self.slots[index as usize];
            let waits = slot.stage != Stage::Free && slot.crowded > 0;
            let feature = slot.walk.feature as usize;
            if !waits {
                continue;
            }
            let of = bound(&self.connections, slot).features[feature].table;
            if self.cached.homes.of(slot.side, of) == table {
                // Its bags need no room any more.
                slot.crowded = 0;
                self.cached.crowd.leave(index);
                self.wake(index);
            }
        }
    }

    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Requests in progress.
    pub fn in_progress(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether no request is in progress and no row of a cached table on its way, for requests of this worker or of others.
    pub fn is_idle(&self) -> bool {
        self.in_progress() == 0 && self.cached.worker.is_idle()
    }

    /// What it knows of cached tables.
    pub fn cache(&self) -> &Worker {
        &self.cached.worker
    }

    /// Bytes of the next micro-batch, adapted to the measured rate.
    pub fn micro_batch_bytes(&self) -> u64 {
        self.budget
    }

    /// A connection begins.
    ///
    /// # Panics
    /// If the number is out of bounds or still attached (the driver's mistake).
    pub fn attach(&mut self, conn: Conn) {
        let connection = &mut self.connections[conn.0 as usize];
        assert!(
            !connection.attached,
            "a connection's number is free before it is given again"
        );
        connection.attached = true;
        self.schedule.begin(conn);
    }

    /// A connection ends: its requests are dropped without an answer, and nothing is written to its
    /// memory after this call.
    pub fn detach(&mut self, conn: Conn, memory: &mut impl Memory) {
        for slot in 0..self.slots.len() as u32 {
            if self.holds(slot, conn) {
                self.counters.gone += 1;
                self.release(slot, memory);
            }
        }
        let connection = &mut self.connections[conn.0 as usize];
        connection.attached = false;
        connection.schemas = NO_SCHEMAS;
    }

    /// A region is given up: requests that use it end with `UnknownRegion`, and nothing is written
    /// to it after this call.
    pub fn region_gone(&mut self, now_ns: u64, conn: Conn, region: u32, memory: &mut impl Memory) {
        for slot in 0..self.slots.len() as u32 {
            if self.holds(slot, conn) && uses(&self.slots[slot as usize].header, region) {
                self.finish(now_ns, slot, Refusal::whole(Status::UnknownRegion), memory);
            }
        }
    }

    /// From now on new requests are answered DRAINING.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// A frame arrived in a connection's slot.
    ///
    /// # Errors
    /// [`ProtocolError`] when the slot's last request has not ended: there is no way to answer.
    ///
    /// # Panics
    /// If the connection is not attached or the slot is past its credits (ports check both).
    pub fn request(
        &mut self,
        now_ns: u64,
        conn: Conn,
        port_slot: u16,
        frame: &[u8],
        memory: &mut impl Memory,
    ) -> Result<(), ProtocolError> {
        let connection = &self.connections[conn.0 as usize];
        assert!(connection.attached, "requests come on attached connections");
        if connection.held[usize::from(port_slot)] != NONE {
            return Err(ProtocolError { slot: port_slot });
        }
        self.counters.requests += 1;
        if let Err(refusal) = self.accept(now_ns, conn, port_slot, frame, memory) {
            let (request, attempt, part) = Request::address(frame);
            let header = Header {
                request,
                attempt,
                part,
                ..Header::null(0)
            };
            self.count(refusal.status);
            self.answer(conn, port_slot, &header, (0, 0), refusal, 0);
        }
        Ok(())
    }

    fn accept(
        &mut self,
        now_ns: u64,
        conn: Conn,
        port_slot: u16,
        frame: &[u8],
        memory: &mut impl Memory,
    ) -> Result<(), Refusal> {
        // Said first, so that it costs least when there is most to do.
        let takes_slot = [Op::Lookup, Op::Prefetch].map(|op| Some(op as u8));
        if self.free.is_empty() && takes_slot.contains(&frame.get(2).copied()) {
            return Err(Refusal::whole(Status::Busy));
        }
        let request = Request::parse(frame)?;
        let header = request.header();
        if self.draining {
            return Err(Refusal::whole(Status::Draining));
        }
        if header.op == Op::Null {
            return Err(Refusal::whole(Status::Ok));
        }
        let schemas = &self.connections[conn.0 as usize].schemas;
        let sides = schemas.get(header.schema as usize);
        let (side, schema) = self.generations.side(header.generation, sides)?;
        accept::check_shape(&request, schema, &self.limits)?;
        let &index = self.free.last().ok_or(Refusal::whole(Status::Busy))?;
        let slot = &mut self.slots[index as usize];
        slot.conn = conn;
        slot.port_slot = port_slot;
        (slot.schema, slot.side) = (header.schema as usize, side);
        slot.delta = schema.tables.delta();
        slot.received_ns = now_ns;
        slot.deadline_ns = match header.remaining_us {
            0 => u64::MAX,
            us => now_ns.saturating_add(u64::from(us) * 1000),
        };
        slot.handled = 0;
        let filled = accept::fill(slot, &request, schema, memory);
        let handled = core::mem::take(&mut slot.handled);
        self.handled += handled;
        if let Err(refusal) = filled {
            slot.stage = Stage::Free;
            return Err(refusal);
        }
        let asks = slot.stage == Stage::Asking;
        self.schedule.owe(conn, handled);
        let slot = &mut self.slots[index as usize];
        self.earliest_ns = self.earliest_ns.min(slot.deadline_ns);
        self.free.pop();
        self.generations.begin(side);
        self.connections[conn.0 as usize].held[usize::from(port_slot)] = index;
        if asks {
            self.asking.push_back(index);
            self.ask(now_ns, memory);
        } else {
            self.schedule.push(index, &mut self.slots);
        }
        Ok(())
    }

    /// Asks for the data of those that wait for it, until there is no room.
    pub(crate) fn ask(&mut self, now_ns: u64, memory: &mut impl Memory) {
        while let Some(&index) = self.asking.front() {
            let slot = &mut self.slots[index as usize];
            let schema = bound(&self.connections, slot);
            let Ok(asked) = fetch::ask(slot, schema, memory) else {
                return;
            };
            self.asking.pop_front();
            self.went_on(now_ns, index, asked, memory);
        }
    }

    /// A request that was not scheduled has come further: it is now, or it ends, or it goes on waiting.
    fn went_on(
        &mut self,
        now_ns: u64,
        index: u32,
        outcome: Result<(), Refusal>,
        memory: &mut impl Memory,
    ) {
        let slot = &mut self.slots[index as usize];
        let (conn, handled) = (slot.conn, core::mem::take(&mut slot.handled));
        self.handled += handled;
        self.schedule.owe(conn, handled);
        if let Err(refusal) = outcome {
            // It stands in no queue.
            slot.stage = Stage::Fetching;
            self.finish(now_ns, index, refusal, memory);
        } else if slot.stage != Stage::Fetching {
            self.schedule.push(index, &mut self.slots);
        }
    }

    /// Bytes of lengths and ids that were copied and checked, and of data that were asked for, in calls of
    /// [`Engine::request`] and [`Engine::fetched`] since this was last asked.
    pub fn take_handled(&mut self) -> u64 {
        core::mem::take(&mut self.handled)
    }

    /// A client wants a request ended early. It may have ended already; then nothing happens.
    pub fn cancel(&mut self, now_ns: u64, conn: Conn, port_slot: u16, memory: &mut impl Memory) {
        if let Some(slot) = self.held(conn, port_slot) {
            self.finish(now_ns, slot, Refusal::whole(Status::Cancelled), memory);
        }
    }

    /// The data of the request in a connection's slot, which [`Memory::fetch`] said are coming, can be read
    /// now, or not at all.
    pub fn fetched(
        &mut self,
        now_ns: u64,
        conn: Conn,
        port_slot: u16,
        outcome: Result<(), Status>,
        memory: &mut impl Memory,
    ) {
        let held = self.held(conn, port_slot);
        let fetching = |&slot: &u32| self.slots[slot as usize].stage == Stage::Fetching;
        let Some(index) = held.filter(fetching) else {
            return;
        };
        let slot = &mut self.slots[index as usize];
        let schema = bound(&self.connections, slot);
        let outcome = outcome.map_err(Refusal::whole);
        let outcome = outcome.and_then(|()| accept::arrived(slot, schema, memory));
        self.went_on(now_ns, index, outcome, memory);
    }

    /// The engine's slot that holds the request in a connection's.
    fn held(&self, conn: Conn, port_slot: u16) -> Option<u32> {
        let held = &self.connections[conn.0 as usize].held;
        let slot = *held.get(usize::from(port_slot))?;
        (slot != NONE).then_some(slot)
    }

    /// Tells the policies of cached tables of what the last turn has found. A driver does it when that turn's answers have gone, and reads
    /// the clock for the next turn after that; or else the next turn does it, and its micro-batch seems to take as much longer. Returns
    /// whether there was something, which may take as long as a micro-batch.
    pub fn touch_hits(&mut self) -> bool {
        self.cached.worker.touch_hits()
    }

    /// The driver is about to sleep: nobody waits for this engine's next turn. Returns whether it may: not where another worker has
    /// just asked for a row, which the next turn takes up.
    #[must_use = "an engine that others wait for does not sleep"]
    pub fn rest(&mut self) -> bool {
        self.touch_hits();
        let may = self.cached.worker.rest();
        if may {
            self.turns.rest();
        }
        may
    }

    /// The next status record to announce, in the order in which they came about.
    pub fn poll_completion(&mut self) -> Option<(Conn, Completion)> {
        self.done.pop_front()
    }

    fn holds(&self, slot: u32, conn: Conn) -> bool {
        let slot = &self.slots[slot as usize];
        slot.stage != Stage::Free && slot.conn == conn
    }

    pub(crate) fn release(&mut self, index: u32, memory: &mut impl Memory) {
        match self.slots[index as usize].stage {
            Stage::Asking => self.asking.retain(|&waiting| waiting != index),
            Stage::Fetching | Stage::Waiting | Stage::Free => {}
            Stage::Checking | Stage::Pooling => self.schedule.remove(index, &mut self.slots),
        }
        let slot = &mut self.slots[index as usize];
        let held = slot.held.drain(..).map(|held| held.staging);
        for staging in held.chain(slot.staging.take()) {
            memory.unstage(slot.conn, slot.header.target_region, staging);
        }
        fetch::release(slot, memory);
        self.cached.give_up(index, slot);
        slot.stage = Stage::Free;
        self.generations.end(slot.side);
        self.connections[slot.conn.0 as usize].held[usize::from(slot.port_slot)] = NONE;
        self.free.push(index);
    }
}

fn uses(header: &Header, region: u32) -> bool {
    let of = |segment: &rowmill_wire::Segment| matches!(segment.place, rowmill_wire::Place::Region { region: r, .. } if r == region);
    header.target_region == region || of(&header.lengths) || of(&header.ids) || of(&header.weights)
}

/// The schema of a request in progress.
pub(crate) fn bound<'c>(connections: &'c [Connection], slot: &Slot) -> &'c BoundSchema {
    let sides = &connections[slot.conn.0 as usize].schemas[slot.schema];
    let schema = sides[slot.side.index()].as_deref();
    schema.expect("a schema stays bound while its connection is attached and a request uses it")
}
