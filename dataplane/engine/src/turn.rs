//! A turn of the engine: one micro-batch of the request whose turn it is.

use rowmill_cache::OnFailure;
use rowmill_wire::{Refusal, Status};

use crate::accept;
use crate::ahead;
use crate::batch::Work;
use crate::engine::{Engine, bound};
use crate::limits::{AHEAD_CONNECTIONS, BATCH_BYTES, CHECK_AHEAD, ROWS_WAIT, TURN_BYTES};
use crate::memory::{Denied, Memory};
use crate::parked::Bag;
use crate::slot::{Slot, Stage};
use crate::step::step;

/// What a call of [`Engine::turn`] found to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// There is no request in progress and nothing to announce.
    Idle,
    /// All requests in progress wait for room or for data of theirs, or there is none and rows are on their way.
    Blocked,
    /// A micro-batch of this many bytes was done; 0 where it only parked bags or looked for rows to prefetch, and where rows have come or
    /// were asked for, and no micro-batch was done.
    Worked {
        /// Bytes of rows read and results written, and of ids that were checked, as estimated for the budget.
        bytes: u64,
    },
}

/// What a micro-batch was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Done {
    /// Bytes of rows read and results written.
    bytes: u64,
    /// Whether there was nothing besides, so that the time it took tells the memory's rate.
    is_pure: bool,
}

/// Which requests in progress can't go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stuck {
    /// All, or there is none.
    All,
    /// As many as a turn may look at.
    Some,
}

impl Engine {
    /// Does one micro-batch of the request whose turn it is. Requests past their deadline end first.
    pub fn turn(&mut self, now_ns: u64, memory: &mut impl Memory) -> Turn {
        self.adapt(now_ns);
        if now_ns >= self.earliest_ns {
            self.expire(now_ns, memory);
        }
        self.ask(now_ns, memory);
        self.pass();
        // Requests that can go on come first: what is done for the rows that others wait for takes longer than most of them.
        let wait_ns = ROWS_WAIT.saturating_mul(self.limits.micro_batch_ns);
        let are_due = now_ns.saturating_sub(self.rows_ns) >= wait_ns;
        let mut has_moved = are_due && self.take_rows(now_ns, memory);
        let outcome = self.work_next(now_ns, memory);
        let pure = outcome.ok().filter(|done| done.is_pure);
        self.last = pure.map(|done| (now_ns, done.bytes));
        match outcome {
            Ok(Done { bytes, .. }) => return Turn::Worked { bytes },
            Err(_) if are_due => {}
            Err(_) => has_moved = self.take_rows(now_ns, memory),
        }
        // What has just expired has still to be announced.
        if has_moved || !self.done.is_empty() || outcome == Err(Stuck::Some) {
            Turn::Worked { bytes: 0 }
        } else if !self.is_idle() {
            Turn::Blocked
        } else {
            Turn::Idle
        }
    }

    /// The cache's turn under way ends: nothing found in it is in use any more.
    fn pass(&mut self) {
        self.touch_hits();
        self.turns.pass();
    }

    /// Does one micro-batch of the request whose turn it is, or of the first after it that can go on.
    fn work_next(&mut self, now_ns: u64, memory: &mut impl Memory) -> Result<Done, Stuck> {
        // One that waits for room gives its turn to the next.
        let mut first = None;
        for _ in 0..AHEAD_CONNECTIONS {
            let next = self.schedule.next(self.budget);
            let Some((index, allowed)) = next.filter(|&(index, _)| first != Some(index)) else {
                return Err(Stuck::All);
            };
            first = first.or(Some(index));
            let mut worked = self.work(now_ns, index, allowed, memory);
            if worked.is_none() {
                // It waits for staging, which another of its connection may have, or have held for bags that are ready: that one goes on, or
                // nobody would.
                let has_staging = |slot: &Slot| slot.staging.is_some() || !slot.ready.is_empty();
                let holder = self.schedule.behind(index, &self.slots, has_staging);
                worked = holder.and_then(|holder| self.work(now_ns, holder, allowed, memory));
            }
            if let Some(done) = worked {
                return Ok(done);
            }
            let conn = self.slots[index as usize].conn;
            self.schedule.pass(conn);
        }
        Err(Stuck::Some)
    }

    /// Takes rows that have come: bags that waited for them can be pooled, or their requests end. Returns whether
    /// there was anything to do.
    fn take_rows(&mut self, now_ns: u64, memory: &mut impl Memory) -> bool {
        self.rows_ns = now_ns;
        let mut has_moved = self.cached.worker.has_work() && self.poll_rows(now_ns, memory);
        // Room that has become free is for the first that waits for some, and that aside for any.
        let mut waiting = self.cached.crowd.waiting();
        let next = waiting.find(|&index| {
            let slot = &self.slots[index as usize];
            slot.stage == Stage::Waiting && self.cached.has_room(index, slot)
        });
        drop(waiting);
        if let Some(index) = next {
            self.wake(index);
            has_moved = true;
        }
        has_moved
    }

    fn poll_rows(&mut self, now_ns: u64, memory: &mut impl Memory) -> bool {
        let has_answered = self.cached.answer_resident();
        ahead::tell(&mut self.cached, &self.slots, &self.connections);
        let has_moved = self.cached.worker.poll(now_ns) | has_answered;
        while let Some(ready) = self.cached.worker.next_ready() {
            let bag = self.cached.parked.bag(ready.bag);
            if ready.outcome.is_err() && self.fails(&bag) {
                let index = bag.first_id
                    - self.slots[bag.slot as usize].spans[bag.feature as usize].ids_from;
                let refusal = Refusal::at(Status::RowUnavailable, bag.feature, index);
                self.finish(now_ns, bag.slot, refusal, memory);
                continue;
            }
            let slot = &mut self.slots[bag.slot as usize];
            self.cached.parked.remove(&mut slot.parked, bag.id);
            self.cached.parked.push(&mut slot.ready, bag);
            self.wake(bag.slot);
        }
        has_moved
    }

    /// Whether a bag has no result without all of its rows.
    fn fails(&self, bag: &Bag) -> bool {
        let slot = &self.slots[bag.slot as usize];
        let table = bound(&self.connections, slot).features[bag.feature as usize].table;
        let home = self.cached.homes.of(slot.side, table);
        self.cached.worker.on_failure(home) == OnFailure::Error
    }

    /// A request can go on, if it waited.
    pub(crate) fn wake(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if slot.stage == Stage::Waiting {
            slot.stage = Stage::Pooling;
            self.schedule.push(index, &mut self.slots);
        }
    }

    /// Does one micro-batch of a request, or `None` where it has to wait.
    fn work(
        &mut self,
        now_ns: u64,
        index: u32,
        allowed: u64,
        memory: &mut impl Memory,
    ) -> Option<Done> {
        let slot = &mut self.slots[index as usize];
        let (conn, pooling) = (slot.conn, slot.stage == Stage::Pooling);
        let schema = bound(&self.connections, slot);
        // What a connection owes delays its next turn, and does not make this one small.
        let budget = self.budget;
        // As in `pass`: the cache's turn of what was found before is over.
        self.cached.worker.touch_hits();
        let mut work = Work {
            now_ns,
            index,
            budget,
            kernels: &self.kernels,
            turn: self.turns.turn(),
            cached: &mut self.cached,
        };
        let outcome = match step(&mut work, slot, schema, memory) {
            Err(Denied::Later) => return None,
            Err(Denied::Refused(status)) => Err(Refusal::whole(status)),
            Ok(outcome) => outcome,
        };
        // A turn that has checked its own request's ids has been long enough.
        let ahead = self.schedule.upcoming(index, &self.slots);
        let ahead = ahead.filter(|_| pooling && outcome.is_ok());
        self.counters.micro_batches += 1;
        let mut done = match outcome {
            Err(refusal) => {
                // A refusal costs the whole turn: otherwise a client whose requests are all refused at
                // their last id would keep everybody else waiting.
                self.schedule.charge(conn, allowed, self.budget);
                self.finish(now_ns, index, refusal, memory);
                Done {
                    bytes: 0,
                    is_pure: true,
                }
            }
            Ok(made) => {
                self.counters.rows += made.rows;
                self.counters.bytes += made.bytes;
                let cost = made.cost().max(TURN_BYTES);
                self.schedule.charge(conn, cost, self.budget);
                if made.waits {
                    self.schedule.remove(index, &mut self.slots);
                    self.slots[index as usize].stage = Stage::Waiting;
                }
                self.announce(now_ns, index, &made, memory);
                Done {
                    bytes: made.bytes,
                    is_pure: made.besides == 0,
                }
            }
        };
        if let Some(ahead) = ahead {
            done.bytes += self.check_ahead(now_ns, ahead, memory);
        }
        Some(done)
    }

    /// Checks ids of the request whose turn comes next, so that keys of hashed tables are resolved a
    /// request ahead. Its own connection pays for that.
    fn check_ahead(&mut self, now_ns: u64, index: u32, memory: &mut impl Memory) -> u64 {
        let slot = &mut self.slots[index as usize];
        if slot.stage != Stage::Checking {
            return 0;
        }
        let conn = slot.conn;
        let schema = bound(&self.connections, slot);
        match accept::check_step(slot, schema, memory, None, CHECK_AHEAD) {
            Err(refusal) => {
                // As costly as in a turn of its own.
                self.schedule.owe(conn, self.budget);
                self.finish(now_ns, index, refusal, memory);
                0
            }
            Ok(ids) => {
                let bytes = ids * 8;
                self.counters.bytes += bytes;
                self.schedule.owe(conn, bytes);
                bytes
            }
        }
    }

    /// Follows the measured rate, so that nearly every micro-batch takes less than it may: it aims at
    /// half of that, since one over memory that others use too takes up to about twice its mean.
    fn adapt(&mut self, now_ns: u64) {
        if let Some((began_ns, bytes)) = self.last {
            let took_ns = now_ns.saturating_sub(began_ns);
            // Small batches say more about overheads than about the memory's rate.
            if bytes >= self.budget / 2 && took_ns > 0 {
                let aim_ns = self.limits.micro_batch_ns / 2;
                let fitting = bytes.saturating_mul(aim_ns) / took_ns;
                // One batch that was interrupted must not shrink the next ones by much.
                let fitting = fitting.clamp(self.budget / 2, self.budget * 2);
                self.budget = ((self.budget * 15 + fitting) / 16)
                    .clamp(*BATCH_BYTES.start(), *BATCH_BYTES.end());
            }
        }
    }

    fn expire(&mut self, now_ns: u64, memory: &mut impl Memory) {
        for slot in 0..self.slots.len() as u32 {
            let s = &self.slots[slot as usize];
            if s.stage != Stage::Free && s.deadline_ns <= now_ns {
                self.finish(now_ns, slot, Refusal::whole(Status::Expired), memory);
            }
        }
        let running = self.slots.iter().filter(|s| s.stage != Stage::Free);
        self.earliest_ns = running.map(|s| s.deadline_ns).min().unwrap_or(u64::MAX);
    }
}
