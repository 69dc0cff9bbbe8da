//! The workers of the simulated service: `rowmilld`'s own steps, on a clock on which work takes the
//! time of its bytes, a worker can stop for a while, and the process can be killed.

use std::sync::Arc;

use fastrand::Rng;
use rowmill_cache::figures::Count;
use rowmill_engine::Turn;
use rowmill_port::ConnId;
use rowmill_port::sim::SimNet;
use rowmill_rowmilld::worker::Worker;

use super::deltas::{Deltas, Kept};
use super::generations::Generations;
use super::ledger::{Ledger, Violation};
use super::moves::Moves;
use super::planted::Planted;
use super::policies::Policies;
use super::process::{Changes, Kills, Parts, Plan, Process, Strains};
use super::story::Story;
use super::warm::{File, WarmTally};

/// How fast workers are, and how often they stop.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Bytes that a micro-batch moves in a microsecond.
    pub bytes_per_us: u64,
    /// Nanoseconds of a step without work.
    pub step_ns: u64,
    /// Nanoseconds of an event.
    pub event_ns: u64,
    /// Of 10,000 steps, after how many the worker stops.
    pub stops: u32,
    /// For how long at most, in nanoseconds.
    pub stop_ns_max: u64,
    /// Of 10,000 steps of all workers, before how many the process is killed.
    pub kills: u32,
}

struct Lane {
    worker: Worker<Planted>,
    /// When the step before ends.
    ready_ns: u64,
    idle: bool,
}

impl Lane {
    /// Those of a process that is there from this time on.
    fn all(parts: Vec<Parts>, plan: &Plan, ready_ns: u64) -> Vec<Lane> {
        let connections = plan.limits.connections.into();
        let lane = |(engine, port, mailbox)| Lane {
            worker: Worker::new(engine, connections, port, mailbox, Arc::default()),
            ready_ns,
            idle: true,
        };
        parts.into_iter().map(lane).collect()
    }

    fn rows_failed(&self) -> u64 {
        let fetches = self.worker.engine().cache().fetch_counters();
        fetches.failed + fetches.late
    }

    /// Whether there is nothing to do but what clients send. Other workers may have asked for rows since its last step.
    fn is_idle(&self) -> bool {
        self.idle && self.worker.engine().is_idle()
    }
}

/// How often the process of a world is killed at most, and how long nobody listens then.
const MOST_KILLS: u64 = 3;
const DOWN_NS: u64 = 2_000_000;
/// How much more often it is killed while some workers have switched to another generation and others not.
const HALF_SWITCHED: u32 = 50;

/// All workers, and the ledger that watches them.
pub struct Dataplane {
    net: SimNet,
    plan: Plan,
    lanes: Vec<Lane>,
    pace: Pace,
    rng: Rng,
    /// The client that acts now.
    pub acting: Option<ConnId>,
    /// Who owns what.
    pub ledger: Ledger,
    /// What happened.
    pub story: Story,
    /// The first thing that was wrong.
    pub violation: Option<Violation>,
    /// Steps made by all workers.
    pub steps: u64,
    /// How often the process was killed.
    pub kills: Kills,
    /// What the processes before this one had done.
    before: Changes,
    /// What became of their lists of rows that were hot, and how often they had too little.
    before_hot: WarmTally,
    before_strains: Strains,
    /// The file of these, which outlives them.
    file: File,
    /// What has tables move.
    pub moves: Moves,
    /// What has generations change.
    pub generations: Generations,
    /// What has rows become others.
    pub deltas: Deltas,
    /// What has other rows stay in caches.
    pub policies: Policies,
}

/// How long a worker is away that can go on with none of its requests.
const BLOCKED_NS: u64 = 1000;

impl Dataplane {
    /// The first process of a plan.
    pub(super) fn new(
        plan: Plan,
        pace: Pace,
        seed: u64,
        (ledger, story): (Ledger, Story),
    ) -> Dataplane {
        let mut file = File::new(plan.keeps_warm, Rng::with_seed(!seed));
        let Process {
            parts,
            moves,
            generations,
            deltas,
            policies,
        } = plan.start(0, Kept::default(), &mut file);
        Dataplane {
            net: plan.net.clone(),
            lanes: Lane::all(parts, &plan, 0),
            plan,
            pace,
            rng: Rng::with_seed(seed),
            acting: None,
            ledger,
            story,
            violation: None,
            steps: 0,
            kills: Kills::default(),
            before: Changes::default(),
            before_hot: WarmTally::default(),
            before_strains: Strains::default(),
            file,
            moves,
            generations,
            deltas,
            policies,
        }
    }

    /// All clients have left: nothing is begun any more that has no end of its own, and it is this process that has to come to rest.
    pub fn end(&mut self) {
        self.policies.end();
        self.moves.end();
        self.pace.kills = 0;
    }

    /// The process is killed, and another starts in its place.
    fn kill(&mut self) {
        self.after_client();
        // What it has written until now it was to write.
        let untouched = self.ledger.check_all();
        self.end_with(untouched);
        self.ledger.was_killed = true;
        self.before = self.changes();
        self.kills = self.kills.and(Kills {
            all: 1,
            in_generation: self.generations.is_under_way().into(),
            in_switch: self.generations.is_half_switched().into(),
            in_delta: self.deltas.is_under_way().into(),
            in_policy: self.policies.is_under_way().into(),
            in_move: self.moves.is_under_way().into(),
        });
        let down_ns = self.rng.u64(0..=DOWN_NS);
        self.net.kill(down_ns);
        self.after_client();
        let kept = self.deltas.killed();
        self.before_hot = self.before_hot.and(self.moves.hot.tally);
        self.before_strains = self.before_strains.and(self.own_strains());
        self.file.killed();
        let Process {
            parts,
            moves,
            generations,
            deltas,
            policies,
        } = self.plan.start(self.kills.all, kept, &mut self.file);
        (self.moves, self.generations) = (moves, generations);
        (self.deltas, self.policies) = (deltas, policies);
        self.lanes = Lane::all(parts, &self.plan, self.net.now_ns() + down_ns);
    }

    /// What all processes have done.
    pub fn changes(&self) -> Changes {
        let Dataplane {
            moves,
            generations,
            deltas,
            policies,
            ..
        } = self;
        self.before.and(Changes {
            moves: moves.made,
            resized: moves.resized,
            switched: generations.switched,
            released: generations.released,
            failed: generations.failed,
            brought: moves.brought,
            deltas: deltas.applied,
            broken_off: deltas.broken_off,
            policies: policies.published,
            loads: policies.loads,
            stayed: policies.stayed,
        })
    }

    /// What became of all lists of rows that were hot.
    pub fn warm(&self) -> WarmTally {
        let hot = self.before_hot.and(self.moves.hot.tally);
        hot.and(self.file.tally)
    }

    /// How often something was too little, in all processes.
    pub fn strains(&self) -> Strains {
        let [full, hung] = self.plan.cached.watch().counts();
        let tiers = Strains {
            full,
            hung,
            ..Strains::default()
        };
        self.before_strains.and(self.own_strains()).and(tiers)
    }

    /// What this process's workers have counted of that.
    fn own_strains(&self) -> Strains {
        let hot = &self.moves.hot;
        Strains {
            crowded: hot.count(Count::Crowded),
            unparked: hot.count(Count::ParksRefused),
            ..Strains::default()
        }
    }

    /// Goes on with lists of rows that were hot.
    ///
    /// # Errors
    /// If one that was loaded was not.
    pub fn keep_hot(&mut self) -> Result<(), Violation> {
        let caches = self.lanes.iter().map(|lane| lane.worker.engine().cache());
        let is_quiet = caches.map(|cache| cache.held().0).sum::<usize>() == 0;
        let (newest, tables) = self.generations.newest();
        self.moves
            .keep_hot(&mut self.file, (newest, tables), is_quiet)
    }

    /// When a worker next has something to do, or the thread of deltas.
    pub fn next_ns(&self) -> Option<u64> {
        let is_told = self.is_told();
        let at = |(i, lane): (usize, &Lane)| match lane.is_idle() && !is_told {
            true => self
                .net
                .next_at_lane(i as u16)
                .map(|due| due.max(lane.ready_ns)),
            false => Some(lane.ready_ns),
        };
        let lanes = self.lanes.iter().enumerate().filter_map(at);
        lanes.chain(self.deltas.next_ns()).min()
    }

    /// Whether workers are to look at their mailboxes.
    fn is_told(&self) -> bool {
        self.generations.is_under_way() || self.policies.is_under_way()
    }

    /// How many workers there are.
    pub fn lanes(&self) -> u16 {
        self.lanes.len() as u16
    }

    /// What each worker has on its way of cached tables.
    pub fn cached(&self) -> Vec<String> {
        let of = |lane: &Lane| {
            let cache = lane.worker.engine().cache();
            let (rows, staged) = cache.held();
            let (asked, is_idle) = (cache.asked(), cache.is_idle());
            format!(
                "{rows} rows on their way, {staged} staged, {asked} asked of others; idle: {is_idle}"
            )
        };
        self.lanes.iter().map(of).collect()
    }

    /// Takes the lookups that were sampled, of tables of which each has `rows`. Returns how many there were.
    ///
    /// # Errors
    /// If one is of no row.
    pub fn take_samples(&self, rows: &[u32]) -> Result<u64, Violation> {
        let mut taken = 0;
        for lane in &self.lanes {
            let cache = lane.worker.engine().cache();
            while let Some(sample) = cache.samples().take() {
                taken += 1;
                let table = cache.shares_with(sample.table as usize);
                if sample.row >= rows[table] {
                    return Err(Violation(format!("a lookup of no row: {sample:?}")));
                }
            }
        }
        Ok(taken)
    }

    /// Requests in progress on all workers.
    pub fn in_progress(&self) -> usize {
        self.lanes
            .iter()
            .map(|lane| lane.worker.engine().in_progress())
            .sum()
    }

    /// Steps every worker that is ready and has something to do; with `idle_too`, each that is ready.
    pub fn step_ready(&mut self, idle_too: bool) {
        let now_ns = self.net.now_ns();
        self.deltas.go_on(now_ns);
        for i in 0..self.lanes.len() {
            let lane = &self.lanes[i];
            let due = !lane.is_idle()
                || self.is_told()
                || idle_too
                || self
                    .net
                    .next_at_lane(i as u16)
                    .is_some_and(|due| due <= now_ns);
            if due && lane.ready_ns <= now_ns && self.violation.is_none() {
                self.step(i);
            }
        }
    }

    fn step(&mut self, i: usize) {
        // The moment in which some workers have switched and others not is short.
        let often = match self.generations.is_half_switched() {
            true => HALF_SWITCHED * self.pace.kills,
            false => self.pace.kills,
        };
        if self.kills.all < MOST_KILLS && self.rng.u32(0..10_000) < often {
            return self.kill();
        }
        self.after_client();
        // While a delta is applied, nothing comes that it would have to be applied to as well.
        let may_come = !self.deltas.is_under_way();
        self.moves.go_on(may_come);
        self.generations.go_on(&mut self.moves, may_come);
        let loaded = self.keep_hot();
        self.end_with(loaded);
        let obeyed = self.policies.go_on(&self.moves);
        self.end_with(obeyed);
        let now_ns = self.net.now_ns();
        let held = self.generations.held();
        self.deltas.begin_some(now_ns, &held, &self.moves);
        self.deltas.go_on(now_ns);
        let lane = &mut self.lanes[i];
        let quantum = lane.worker.engine().micro_batch_bytes();
        let stepped = lane.worker.step(now_ns);
        let (bytes, waited_ns) = match stepped.turn {
            Turn::Idle => (0, 0),
            // It lets others go first.
            Turn::Blocked => (0, BLOCKED_NS),
            Turn::Worked { bytes } => (bytes, 0),
        };
        let took_ns = self.pace.step_ns
            + waited_ns
            + self.pace.event_ns * u64::from(stepped.events)
            + bytes * 1000 / self.pace.bytes_per_us;
        lane.ready_ns = now_ns + took_ns;
        // It sleeps then, or others would wait for its next turn.
        lane.idle = stepped.is_idle() && lane.worker.rest();
        if self.rng.u32(0..10_000) < self.pace.stops {
            lane.ready_ns += self.rng.u64(0..=self.pace.stop_ns_max);
        }
        let entries = self.net.take_log();
        let rows_failed = self.lanes.iter().map(Lane::rows_failed).sum();
        if rows_failed != self.ledger.rows_failed {
            let hot = &self.moves.hot;
            let given_up = (0..self.ledger.given_up.len()).map(|table| hot.has_given_up(table));
            self.ledger.given_up = given_up.collect();
            self.ledger.rows_failed = rows_failed;
        }
        let outcome = self
            .ledger
            .after_step(i as u16, now_ns, bytes, quantum, &entries);
        self.end_with(outcome);
        self.story.add(entries);
        self.steps += 1;
    }

    /// Before a client acts: what it holds is compared with what it has to be.
    pub fn before_client(&mut self, conn: Option<ConnId>) {
        // What arrived meanwhile.
        self.acting = None;
        self.after_client();
        self.acting = conn;
        if let Some(conn) = conn {
            let untouched = self.ledger.check_untouched(conn);
            self.end_with(untouched);
            let arrived = self.ledger.check_arrived(conn);
            self.end_with(arrived);
        }
    }

    /// Books what clients did since the last step.
    pub fn after_client(&mut self) {
        let entries = self.net.take_log();
        let outcome = self.ledger.after_client(self.acting, &entries);
        self.end_with(outcome);
        self.story.add(entries);
    }

    /// Keeps the first violation.
    pub fn end_with(&mut self, outcome: Result<(), Violation>) {
        if let Err(violation) = outcome {
            self.violation.get_or_insert(violation);
        }
    }

    /// A little of the world's work while a client waits.
    ///
    /// # Panics
    /// If something is wrong, since the client would wait for ever.
    pub fn go_on(&mut self) {
        if let Some(violation) = &self.violation {
            panic!("{violation}");
        }
        let now_ns = self.net.now_ns();
        let next = self.next_ns().unwrap_or(u64::MAX);
        self.net.advance_to(next.clamp(now_ns + 100, now_ns + 1000));
        self.step_ready(true);
    }
}
