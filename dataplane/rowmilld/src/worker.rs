//! A worker: one engine and its half of a port, and the loop between them.

use core::cell::Cell;
use core::time::Duration;
use std::sync::Arc;

use arrayvec::ArrayVec;
use rowmill_arena::{Staging, Strip, Window};
use rowmill_engine::{self as engine, Conn, Counters, Denied, Engine, Memory, Turn};
use rowmill_port::{
    ConnId, Event, Extent, Fetch, Idle, MAX_EXTENTS, RegionError, RegionId, RoomError, ServerPort,
};
use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::{CompletionKind, Status};

use crate::clock::Clock;
use crate::config;
use crate::figures::Figures;
use crate::mailbox::{Binding, Mailbox, Orders};
use crate::turnover::Turnover;

/// A poll ends once it has moved this many bytes, so that it takes less than a micro-batch (50 us):
/// copying and checking runs at 5 GB/s or more, so 128 KiB take at most 26 us. What a poll leaves is
/// taken by the next. One request more may bring its lengths, at most `max_lengths` of them (65,536 take up to 130 us).
const POLL_BYTES: u64 = 128 << 10;

/// What an event counts for beside the bytes it moves: the half microsecond or so that taking a
/// frame, parsing it and answering it takes is the time of about 4 KiB. So a poll has at most 32 events.
const EVENT_BYTES: u64 = 4 << 10;

/// Of passes that spin and find nothing, one in so many reads the clock: nobody waits for the time then, and
/// where reading it is a system call (some virtual machines) that would take most of a pass.
const CLOCK_EVERY: u32 = 64;

/// Longest sleep, so that a worker that sleeps still shows that it is alive.
pub const SLEEP_MAX: Duration = Duration::from_secs(1);

/// One worker: everything that its thread owns.
pub struct Worker<P> {
    engine: Engine,
    port: P,
    mailbox: Arc<Mailbox>,
    figures: Arc<Figures>,
    frame: Box<[u8; SLOT_BYTES]>,
    /// By connection: whether the port has announced it.
    attached: Box<[bool]>,
    /// Schemas that came before their connections, at most one a connection: each binds one at a time, and what was sent
    /// before was abandoned. Nobody else's wait behind them.
    waiting: Vec<Arc<Binding>>,
    /// What it was told of generations and has not done yet.
    turnover: Option<Arc<Turnover>>,
    draining: bool,
    published: Counters,
    /// When the clock was read last, and how many passes have spun since there was work; the last of [`CLOCK_EVERY`]
    /// reads the clock.
    now_ns: u64,
    spins: u32,
    /// When the last pass ended, if it did something.
    ended_ns: Option<u64>,
}

/// What a step found to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stepped {
    /// Events taken from the port.
    pub events: u32,
    /// What the engine did.
    pub turn: Turn,
}

impl Stepped {
    /// Whether there was nothing to do.
    pub fn is_idle(&self) -> bool {
        self.events == 0 && self.turn == Turn::Idle
    }
}

impl<P: ServerPort> Worker<P> {
    /// A worker of `engine`, made for `connections` connections, and its half of the port.
    pub fn new(
        engine: Engine,
        connections: u32,
        port: P,
        mailbox: Arc<Mailbox>,
        figures: Arc<Figures>,
    ) -> Worker<P> {
        Worker {
            engine,
            port,
            mailbox,
            figures,
            frame: Box::new([0; SLOT_BYTES]),
            attached: vec![false; connections as usize].into_boxed_slice(),
            waiting: Vec::with_capacity(connections as usize),
            turnover: None,
            draining: false,
            published: Counters::default(),
            now_ns: 0,
            ended_ns: None,
            spins: CLOCK_EVERY - 1,
        }
    }

    /// The loop: steps until the orders are to stop, and waits as `idle` says when there is nothing
    /// to do. Nothing here allocates, locks, logs, or, while there is work, makes a system call.
    pub fn run(mut self, idle: config::Idle, clock: &Clock) {
        let mut backoff = Backoff::new(idle);
        let last_ns = Cell::new(0);
        let clock = || {
            // It may go back where this thread moves between CPUs; here it never does.
            last_ns.set(clock.now_ns().max(last_ns.get()));
            last_ns.get()
        };
        while self.mailbox.orders() != Orders::Stop {
            let stepped = self.pass(clock);
            let how = backoff.after(stepped, self.now_ns);
            self.spins = match how {
                None => 0,
                Some(Idle::Spin) => self.spins.wrapping_add(1),
                Some(Idle::Yield | Idle::Sleep(_)) => CLOCK_EVERY - 1,
            };
            match how {
                None => {}
                // Another worker has just asked for a row.
                Some(Idle::Sleep(_)) if !self.engine.rest() => {}
                Some(how @ Idle::Sleep(_)) => {
                    self.figures.sleep(true);
                    self.port.idle(how);
                    self.figures.sleep(false);
                }
                Some(how) => self.port.idle(how),
            }
        }
    }

    /// One pass at a time that is an argument, so that a simulation drives the very same code.
    pub fn step(&mut self, now_ns: u64) -> Stepped {
        (self.ended_ns, self.spins) = (None, CLOCK_EVERY - 1);
        self.pass(|| now_ns)
    }

    /// One pass: what others sent, what the clients sent, one micro-batch, what came of it.
    fn pass(&mut self, clock: impl Fn() -> u64) -> Stepped {
        // What was announced in the last pass leaves with the first poll, so nothing is asked for before.
        let mut read_ns = self.ended_ns.take();
        self.read_mailbox();
        let (mut events, mut bytes) = (0, 0);
        while bytes < POLL_BYTES
            && let Some(event) = self.port.poll(&mut self.frame)
        {
            let now_ns = *read_ns.get_or_insert_with(&clock);
            bytes += EVENT_BYTES + self.handle(now_ns, event);
            self.announce(None);
            events += 1;
        }
        // The last turn's answers have gone with the first poll.
        let has_touched = self.engine.touch_hits();
        let wanted = !self.engine.is_idle() || self.spins % CLOCK_EVERY == CLOCK_EVERY - 1;
        let now_ns = match read_ns {
            // That took time, and is not this turn's.
            _ if has_touched => clock(),
            Some(now_ns) => now_ns,
            None if wanted => clock(),
            // An idle engine asks nobody for the time.
            None => self.now_ns,
        };
        self.now_ns = now_ns;
        let turn = self
            .engine
            .turn(now_ns, &mut PortMemory::new(&mut self.port));
        if turn != Turn::Idle {
            let ended_ns = clock();
            self.announce(Some(ended_ns - now_ns));
            // The next pass begins now.
            self.ended_ns = Some(ended_ns);
        }
        self.figures
            .publish(now_ns, &self.engine, &mut self.published);
        self.figures.set_doorbells(self.port.doorbells());
        if self.draining && self.engine.in_progress() == 0 {
            self.figures.set_drained();
        }
        Stepped { events, turn }
    }

    fn read_mailbox(&mut self) {
        if !self.draining && self.mailbox.orders() >= Orders::Drain {
            self.draining = true;
            self.engine.drain();
        }
        if let Some(mut moving) = self.mailbox.next_move() {
            moving.tell(&mut self.engine);
            self.mailbox.has_moved(moving);
        }
        if let Some(directive) = self.mailbox.next_directive() {
            directive.tell(&mut self.engine);
        }
        if let Some(turnover) = self.mailbox.next_turnover() {
            turnover.begin(&mut self.engine);
            self.turnover = Some(turnover);
        }
        let engine = &mut self.engine;
        self.turnover.take_if(|turnover| turnover.end(engine));
        // Where the connection ended before it came, nobody asks for it any more.
        self.waiting.retain(|binding| !binding.is_abandoned());
        while let Some(binding) = self.mailbox.receive() {
            if self.attached[binding.conn().0 as usize] {
                self.bind(&binding);
                continue;
            }
            let mut waiting = self.waiting.iter_mut();
            match waiting.find(|waiting| waiting.conn() == binding.conn()) {
                Some(abandoned) => *abandoned = binding,
                None => self.waiting.push(binding),
            }
        }
    }

    /// Takes a schema of an attached connection in.
    fn bind(&mut self, binding: &Binding) {
        if binding.is_abandoned() {
            return;
        }
        binding.tell(&mut self.engine);
    }

    /// Tells the engine. Returns the bytes that were moved.
    fn handle(&mut self, now_ns: u64, event: Event) -> u64 {
        match event {
            Event::Attached { conn, .. } => {
                self.attached[conn.0 as usize] = true;
                self.engine.attach(Conn(conn.0));
                let at = self.waiting.iter().position(|b| b.conn() == conn);
                if let Some(at) = at {
                    let binding = self.waiting.swap_remove(at);
                    self.bind(&binding);
                }
            }
            Event::Detached { conn } => {
                self.attached[conn.0 as usize] = false;
                let mut memory = PortMemory::new(&mut self.port);
                self.engine.detach(Conn(conn.0), &mut memory);
            }
            // The port knows the region; the engine learns of it when a request names it.
            Event::Region { .. } => {}
            Event::RegionGone { conn, region } => {
                let mut memory = PortMemory::new(&mut self.port);
                self.engine
                    .region_gone(now_ns, Conn(conn.0), region.0, &mut memory);
            }
            Event::Cancel { conn, slot } => {
                let mut memory = PortMemory::new(&mut self.port);
                self.engine.cancel(now_ns, Conn(conn.0), slot, &mut memory);
            }
            Event::Fetched {
                conn,
                slot,
                outcome,
            } => {
                let mut memory = PortMemory::new(&mut self.port);
                let outcome = outcome.map_err(|e| status(e, Status::SegmentOutOfRegion));
                self.engine
                    .fetched(now_ns, Conn(conn.0), slot, outcome, &mut memory);
                return self.engine.take_handled();
            }
            Event::Request { conn, slot, len } => {
                let mut memory = PortMemory::new(&mut self.port);
                let frame = &self.frame[..len];
                let outcome = self
                    .engine
                    .request(now_ns, Conn(conn.0), slot, frame, &mut memory);
                if outcome.is_err() {
                    // There is no way to answer; nobody logs here. The port tells who was cut off.
                    self.port.close(conn, Status::Malformed);
                }
                return len as u64 + self.engine.take_handled();
            }
        }
        0
    }

    /// Hands completions to the port. Called after each call of the engine that can make some, since
    /// the engine's queue holds those of one call. After a turn it is told how long the pass has
    /// taken, which the engine, asked at its begin, could not know.
    fn announce(&mut self, spent_ns: Option<u64>) {
        while let Some((conn, mut record)) = self.engine.poll_completion() {
            if let Some(spent_ns) = spent_ns {
                record.service_ns += spent_ns;
                if record.kind == CompletionKind::Final && record.status == Status::Ok {
                    self.figures.times.record(record.service_ns);
                }
            }
            self.port.complete(ConnId(conn.0), &record);
        }
    }

    /// The port, for whoever drives the steps.
    pub fn port(&mut self) -> &mut P {
        &mut self.port
    }

    /// As before it sleeps, for whoever drives it by [steps](Worker::step): nobody waits for its next one. Returns whether it may, as
    /// [`Engine::rest`] says.
    #[must_use = "a worker that others wait for does not sleep"]
    pub fn rest(&mut self) -> bool {
        self.engine.rest()
    }

    /// The engine, to look at.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}

/// A port's memory as the engine wants to see it.
#[derive(Debug)]
pub struct PortMemory<'a, P> {
    port: &'a mut P,
}

impl<'a, P: ServerPort> PortMemory<'a, P> {
    /// The memory behind a port.
    pub fn new(port: &'a mut P) -> PortMemory<'a, P> {
        PortMemory { port }
    }
}

impl<P: ServerPort> Memory for PortMemory<'_, P> {
    fn check(&self, conn: Conn, region: u32, offset: u64, len: u64) -> Result<(), Status> {
        let outcome = self
            .port
            .check(ConnId(conn.0), RegionId(region), offset, len);
        outcome.map_err(of_target)
    }

    fn fetch(
        &mut self,
        conn: Conn,
        slot: u16,
        extents: &mut dyn Iterator<Item = engine::Extent>,
    ) -> Result<engine::Fetch, Denied> {
        if !self.port.fetches() {
            return Ok(engine::Fetch::Ready);
        }
        let extents: ArrayVec<Extent, MAX_EXTENTS> = extents
            .map(|e| Extent {
                region: RegionId(e.region),
                offset: e.offset,
                len: e.len,
            })
            .collect();
        match self.port.fetch(ConnId(conn.0), slot, &extents) {
            Ok(Fetch::Ready) => Ok(engine::Fetch::Ready),
            Ok(Fetch::Coming) => Ok(engine::Fetch::Coming),
            Err(error) => Err(denied(error, Status::SegmentOutOfRegion)),
        }
    }

    fn read(
        &mut self,
        conn: Conn,
        slot: u16,
        region: u32,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), Status> {
        let outcome = self
            .port
            .read(ConnId(conn.0), slot, RegionId(region), offset, out);
        outcome.map_err(|error| status(error, Status::SegmentOutOfRegion))
    }

    fn release(&mut self, conn: Conn, slot: u16) {
        self.port.release(ConnId(conn.0), slot);
    }

    fn stage_bytes(&self) -> u64 {
        self.port.stage_bytes()
    }

    fn keep(&mut self, conn: Conn, staging: &Staging) -> bool {
        self.port.keep(ConnId(conn.0), staging)
    }

    fn stage(&mut self, conn: Conn, region: u32, strips: &[Strip]) -> Result<Staging, Denied> {
        let staging = self.port.stage(ConnId(conn.0), RegionId(region), strips);
        staging.map_err(|error| denied(error, Status::TargetOutOfRegion))
    }

    fn window(&mut self, conn: Conn, region: u32, staging: &Staging) -> Result<Window<'_>, Status> {
        let window = self.port.window(ConnId(conn.0), RegionId(region), staging);
        window.map_err(of_target)
    }

    fn place(
        &mut self,
        conn: Conn,
        region: u32,
        staging: Staging,
        strips: &[Strip],
    ) -> Result<(), Status> {
        let (conn, region) = (ConnId(conn.0), RegionId(region));
        let outcome = self.port.place(conn, region, staging, strips);
        outcome.map_err(of_target)
    }

    fn unstage(&mut self, conn: Conn, region: u32, staging: Staging) {
        self.port.unstage(ConnId(conn.0), RegionId(region), staging);
    }
}

fn of_target(error: RegionError) -> Status {
    status(error, Status::TargetOutOfRegion)
}

fn denied(error: RoomError, out_of_bounds: Status) -> Denied {
    match error {
        RoomError::Later => Denied::Later,
        RoomError::Region(error) => Denied::Refused(status(error, out_of_bounds)),
    }
}

fn status(error: RegionError, out_of_bounds: Status) -> Status {
    match error {
        RegionError::Unknown => Status::UnknownRegion,
        RegionError::Forbidden => Status::RegionForbidden,
        RegionError::OutOfBounds => out_of_bounds,
        RegionError::Lost => Status::RegionLost,
    }
}

/// Decides how to wait, from how long there has been nothing to do.
#[derive(Debug)]
struct Backoff {
    spin_ns: u64,
    yield_ns: u64,
    sleep: bool,
    idle_since_ns: Option<u64>,
}

impl Backoff {
    fn new(idle: config::Idle) -> Backoff {
        let spin_ns = u64::from(idle.spin_us) * 1000;
        let yield_ns = spin_ns + u64::from(idle.yield_us) * 1000;
        Backoff {
            spin_ns,
            yield_ns,
            sleep: idle.sleep,
            idle_since_ns: None,
        }
    }

    fn after(&mut self, stepped: Stepped, now_ns: u64) -> Option<Idle> {
        // What requests in progress wait for comes from others, who may need this core.
        let blocked = stepped.events == 0 && stepped.turn == Turn::Blocked;
        if !stepped.is_idle() && !blocked {
            self.idle_since_ns = None;
            return None;
        }
        let idle_ns = now_ns - *self.idle_since_ns.get_or_insert(now_ns);
        Some(if idle_ns < self.spin_ns {
            Idle::Spin
        } else if idle_ns < self.yield_ns || !self.sleep || blocked {
            Idle::Yield
        } else {
            // An idle engine has no request and no row on its way, and so no deadline to be awake for.
            Idle::Sleep(Some(SLEEP_MAX))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backs_off_from_spinning_through_yielding_to_sleeping() {
        let mut backoff = Backoff::new(config::Idle {
            spin_us: 1,
            yield_us: 2,
            sleep: true,
        });
        let idle = Stepped {
            events: 0,
            turn: Turn::Idle,
        };
        let busy = Stepped {
            events: 1,
            turn: Turn::Idle,
        };
        let asleep = Some(Idle::Sleep(Some(SLEEP_MAX)));
        let cases = [
            (idle, 5_000, Some(Idle::Spin)),
            (idle, 5_999, Some(Idle::Spin)),
            (idle, 6_000, Some(Idle::Yield)),
            (idle, 7_999, Some(Idle::Yield)),
            (idle, 8_000, asleep),
            (busy, 9_000, None),
            (idle, 9_100, Some(Idle::Spin)),
            (
                Stepped {
                    events: 0,
                    turn: Turn::Worked { bytes: 0 },
                },
                9_200,
                None,
            ),
            (
                Stepped {
                    events: 0,
                    turn: Turn::Blocked,
                },
                9_300,
                Some(Idle::Spin),
            ),
            (
                Stepped {
                    events: 0,
                    turn: Turn::Blocked,
                },
                99_000,
                Some(Idle::Yield),
            ),
        ];
        for (stepped, now_ns, expected) in cases {
            assert_eq!(backoff.after(stepped, now_ns), expected, "at {now_ns}");
        }
        let mut never = Backoff::new(config::Idle {
            spin_us: 0,
            yield_us: 0,
            sleep: false,
        });
        assert_eq!(never.after(idle, 1), Some(Idle::Yield));
    }
}
