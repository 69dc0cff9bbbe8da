//! A simulated world: one service, several clients, one clock, one seed that decides everything.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fastrand::Rng;
use rowmill_cache::tier::Failures;
use rowmill_pooling::Isa;
use rowmill_port::sim::{Bounds, Faults, SimNet};
use rowmill_port::{ConnId, RegionId};
use rowmill_rowmilld::config::Limits;
use rowmill_table::{Resident, ResidentTable};

use super::crowd::Crowd;
use super::dataplane::{Dataplane, Pace};
use super::draws::{SILENCE_NS, draw_actors, draw_far, draw_generations, draw_tables, make};
use super::exporter::Figures;
use super::history::History;
use super::ledger::{Ledger, Pass, Violation};
use super::model::Truth;
use super::planted::Mistake;
use super::process::{Changes, Kills, Plan, Strains};
use super::records::Tally;
use super::service::{Noted, Schemas};
use super::shelf::Drawn;
use super::story::Story;
use super::warm::WarmTally;

/// What a client sees of the world.
pub struct Stage {
    /// The net, with the clock.
    pub net: SimNet,
    /// The model's tables.
    pub tables: Arc<Resident>,
    /// What rows are, of all generations of them that there may be.
    pub truth: Truth,
    dataplane: Rc<RefCell<Dataplane>>,
}

impl Stage {
    /// A client has connected in this action.
    pub fn welcome(&self, conn: ConnId, honest: bool) -> Pass {
        let mut dataplane = self.dataplane.borrow_mut();
        dataplane.after_client();
        dataplane.acting = Some(conn);
        dataplane.ledger.admit(conn, honest)
    }

    /// Whether the connection was ended by somebody else than the client.
    pub fn is_cut(&self, pass: Pass) -> bool {
        let mut dataplane = self.dataplane.borrow_mut();
        dataplane.after_client();
        dataplane.ledger.is_cut(pass)
    }

    /// Whether a client that still has its connection holds no slot.
    pub fn has_all_credits(&self, pass: Pass) -> bool {
        let mut dataplane = self.dataplane.borrow_mut();
        dataplane.after_client();
        dataplane.ledger.has_all_credits(pass)
    }

    /// The region that a connection registered last, while the connection stands.
    pub fn last_region(&self, pass: Pass) -> Option<RegionId> {
        if self.is_cut(pass) {
            None
        } else {
            self.dataplane.borrow().ledger.last_region(pass)
        }
    }
}

/// A client of the simulated world.
pub trait Actor {
    /// When it acts next.
    fn next_ns(&self) -> u64;

    /// Its connection, if it has one.
    fn pass(&self) -> Option<Pass>;

    /// Looks for answers, sends requests, or whatever it does.
    ///
    /// # Errors
    /// What it found to be wrong.
    fn act(&mut self, stage: &Stage) -> Result<(), Violation>;

    /// Whether it has left for good.
    fn is_done(&self) -> bool;

    /// Whether it keeps to the protocol.
    fn is_honest(&self) -> bool;
}

/// What a run came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Changes with every event.
    pub hash: u64,
    /// Events of the port.
    pub events: u64,
    /// Steps of the workers.
    pub steps: u64,
    /// Simulated time.
    pub end_ns: u64,
    /// What was counted.
    pub tally: Tally,
    /// What the processes have done.
    pub changes: Changes,
    /// How often the process was killed.
    pub kills: Kills,
    /// Vectors that could not be compared with all that they may be: see `SchemaModel::is_mixed`.
    pub untold: u64,
    /// Lookups that were sampled.
    pub sampled: u64,
    /// What became of lists of rows that were hot.
    pub warm: WarmTally,
    /// How often something was too little.
    pub strains: Strains,
    /// Rows that came from another dataplane's memory.
    pub far_rows: u64,
    /// READs of it that were under way as their connection ended.
    pub far_broken_off: u64,
    /// Rows that files failed to give, and why.
    pub failures: Failures,
}

/// A run that broke a rule.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "seed {seed}: {violation}\n\nThe world:\n{world}\nIts last events:\n{story}\nAgain: cargo run --release -p rowmill-tests --bin sim -- --seed {seed} --events"
)]
pub struct Failed {
    /// The seed.
    pub seed: u64,
    /// What was wrong.
    pub violation: String,
    /// What the seed had drawn.
    pub world: String,
    /// The last events.
    pub story: String,
}

/// No run lasts longer, in simulated time.
const END_NS: u64 = 100_000_000_000;

/// Runs a seed's world to its end.
///
/// # Errors
/// [`Failed`] with the first rule that was broken.
pub fn run(seed: u64, mistake: Option<Mistake>, aloud: bool) -> Result<Outcome, Failed> {
    let mut world = World::new(seed, mistake, aloud);
    let outcome = catch_unwind(AssertUnwindSafe(|| world.run()));
    let violation = match outcome {
        Ok(Ok(outcome)) => return Ok(outcome),
        Ok(Err(violation)) => violation.0,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            format!("panic: {}", text.unwrap_or_default())
        }
    };
    let story = match world.dataplane.try_borrow_mut() {
        Ok(mut dataplane) => {
            let rest = world.net.take_log();
            dataplane.story.add(rest);
            dataplane.story.tell()
        }
        Err(_) => String::new(),
    };
    Err(Failed {
        seed,
        violation,
        world: world.drawn.clone(),
        story,
    })
}

struct World {
    net: SimNet,
    stage: Stage,
    dataplane: Rc<RefCell<Dataplane>>,
    actors: Vec<Box<dyn Actor>>,
    rng: Rng,
    /// Of 10,000 actions of clients, after how many a connection is cut.
    cuts: u32,
    far_rows: Arc<Figures>,
    files: Drawn,
    drawn: String,
}

impl World {
    fn new(seed: u64, mistake: Option<Mistake>, aloud: bool) -> World {
        let mut rng = Rng::with_seed(seed);
        let workers = rng.u16(1..=5).min(4);
        let limits = Limits {
            connections: rng.u16(2..=6),
            slots: rng.u32(1..=6),
            credits: rng.u16(1..=6),
            max_ids: [512, 4096, 16_384][rng.usize(0..3)],
            max_lengths: [64, 512][rng.usize(0..2)],
            micro_batch_us: if rng.bool() {
                rng.u32(1..=4)
            } else {
                rng.u32(1..=50)
            },
            min_bags_per_part: rng.u32(1..=8),
            max_region_bytes: 8 << 20,
            ..Limits::default()
        };
        let bounds = Bounds {
            lanes: workers,
            connections: limits.connections.into(),
            credits: limits.credits,
            max_region: limits.max_region_bytes,
            far: draw_far(&mut rng, mistake),
        };
        let faults = Faults {
            delay_ns: 0..=rng.u64(0..=20_000),
            held_up_per_mille: rng.u32(0..=30),
            held_up_ns: rng.u64(0..=300_000),
            mistake: mistake.and_then(Mistake::of_port),
        };
        let mut killing = Rng::with_seed(seed.rotate_left(56));
        let is_killed = killing.bool() || mistake == Some(Mistake::StartsOver);
        let pace = Pace {
            kills: if is_killed { killing.u32(1..=20) } else { 0 },
            bytes_per_us: 200 << rng.u32(0..=7),
            step_ns: rng.u64(100..=1_000),
            event_ns: rng.u64(50..=800),
            stops: rng.u32(0..=50),
            stop_ns_max: rng.u64(1..=1_000_000),
        };
        let specs = draw_tables(&mut rng);
        let drawn =
            format!("{workers} workers, {limits:?}\n{bounds:?}\n{faults:?}\n{pace:?}\n{specs:?}\n");
        // By draws of their own: whatever else happens in a world does not depend on them.
        let mut draws = Rng::with_seed(!seed);
        let cached = Drawn::draw(&mut draws, specs.len(), limits.engine().max_ids)
            .with_exporter(mistake == Some(Mistake::TakesRowsEarly));
        let mut ruling = Rng::with_seed(seed.rotate_left(40));
        let has_policies = ruling.bool() || mistake == Some(Mistake::LeavesWorkerOut);
        let cached = match has_policies {
            true => cached.with_prefetched(ruling.u32(0..=20)),
            false => cached,
        };
        let mut keeping = Rng::with_seed(seed.rotate_left(8));
        let keeps_warm = keeping.bool() || mistake == Some(Mistake::DropsLists);
        let cached = match keeps_warm {
            true => cached.with_prefetched_least(keeping.u32(1..=20)),
            false => cached,
        };
        let has_crowd = Rng::with_seed(seed.rotate_left(12)).u8(0..4) == 0;
        let recipes = draw_generations(seed, &specs, &cached.tables());
        let firsts = make(&recipes, |_| false);
        let cached = cached.with_disk(&firsts, mistake == Some(Mistake::TrustsOthers));
        let mut changing = Rng::with_seed(seed.rotate_left(24));
        let has_deltas = changing.bool() || mistake.is_some_and(Mistake::is_of_deltas);
        let truth = Truth {
            generations: firsts,
            history: History::default(),
            lacks: cached.lacks().clone(),
            listed: cached.tables(),
            crowd: Crowd::default(),
            untold: Arc::default(),
        };
        let schemas = Schemas::new(truth.clone());
        let service = Arc::new(Noted::new(schemas.clone()));
        let net = SimNet::new(rng.u64(..), bounds, service.clone(), faults);
        let isas = Isa::available();
        let isa = isas[rng.usize(0..isas.len())];
        let drawn = format!("{drawn}{cached:?}\n");
        let mut moving = Rng::with_seed(seed.rotate_left(32));
        let begin_cached: Vec<Option<bool>> = (cached.tables().into_iter())
            .map(|is_listed| is_listed.then(|| moving.u8(0..4) > 0))
            .collect();
        // Resident they would have all rows.
        let stays = |(table, begins): (usize, &Option<bool>)| {
            begins.map(|begins| begins || cached.lacks().some_of(table))
        };
        let begin_cached: Vec<_> = begin_cached.iter().enumerate().map(stays).collect();
        let moves = |(table, begins): (usize, &Option<bool>)| {
            begins.map(|_| !cached.lacks().some_of(table))
        };
        let moving: Vec<_> = begin_cached.iter().enumerate().map(moves).collect();
        let far_rows = cached.far_rows().cloned().unwrap_or_default();
        let ledger = Ledger::new(
            net.clone(),
            schemas,
            workers,
            limits.slots as usize,
            bounds.far.is_some(),
            (cached.tables(), Arc::clone(cached.watch())),
        );
        let plan = Plan {
            net: net.clone(),
            service,
            truth: truth.clone(),
            limits,
            workers: workers.into(),
            isa,
            recipes,
            cached: cached.clone(),
            begin_cached,
            moving,
            has_deltas,
            has_policies,
            has_crowd,
            keeps_warm,
            mistake,
            seed,
        };
        let tables = Arc::clone(&truth.generations[0]);
        let dataplane = Dataplane::new(plan, pace, rng.u64(..), (ledger, Story::new(aloud)));
        let dataplane = Rc::new(RefCell::new(dataplane));
        let weak = Rc::downgrade(&dataplane);
        net.set_world(move |_| {
            if let Some(dataplane) = weak.upgrade() {
                dataplane.borrow_mut().go_on();
            }
        });
        let stage = Stage {
            net: net.clone(),
            tables,
            truth,
            dataplane: Rc::clone(&dataplane),
        };
        let actors = draw_actors(&mut rng);
        let cuts = rng.u32(0..=20);
        World {
            net,
            stage,
            dataplane,
            actors,
            rng,
            cuts,
            far_rows,
            files: cached,
            drawn,
        }
    }

    fn run(&mut self) -> Result<Outcome, Violation> {
        while self.actors.iter().any(|a| !a.is_done()) {
            let clients = self
                .actors
                .iter()
                .filter(|a| !a.is_done())
                .map(|a| a.next_ns())
                .min();
            self.advance(clients)?;
            let now_ns = self.net.now_ns();
            for i in 0..self.actors.len() {
                if !self.actors[i].is_done() && self.actors[i].next_ns() <= now_ns {
                    self.act(i)?;
                }
            }
        }
        self.end()
    }

    /// Moves the clock to whatever comes next, and lets workers do it.
    fn advance(&mut self, clients: Option<u64>) -> Result<(), Violation> {
        let mut dataplane = self.dataplane.borrow_mut();
        let next = dataplane.next_ns().into_iter().chain(clients).min();
        self.net.advance_to(next.unwrap_or(0));
        dataplane.step_ready(false);
        if self.net.now_ns() > END_NS {
            let open = dataplane.ledger.open_requests().join("\n");
            let cached = dataplane.cached().join("\n");
            return Err(Violation(format!(
                "the run does not come to an end; in progress:\n{open}\non the workers:\n{cached}"
            )));
        }
        dataplane.violation.clone().map_or(Ok(()), Err)
    }

    fn act(&mut self, i: usize) -> Result<(), Violation> {
        let actor = &mut self.actors[i];
        let known = |actor: &dyn Actor, dataplane: &RefCell<Dataplane>| {
            actor
                .pass()
                .filter(|pass| dataplane.borrow().ledger.knows(*pass))
                .map(|pass| pass.conn)
        };
        let conn = known(&**actor, &self.dataplane);
        self.dataplane.borrow_mut().before_client(conn);
        let outcome = actor.act(&self.stage);
        if let Some(conn) = known(&**actor, &self.dataplane)
            && self.rng.u32(0..10_000) < self.cuts
        {
            // A break that is noticed, or one that is not.
            match self.rng.bool() {
                true => self.net.cut(conn),
                false => self.net.silence(conn, self.rng.u64(0..=2 * SILENCE_NS)),
            }
        }
        let mut dataplane = self.dataplane.borrow_mut();
        dataplane.after_client();
        dataplane.acting = None;
        dataplane.violation.clone().map_or(outcome, Err)
    }

    /// All clients have left: the service must come to rest with nothing in its hands.
    fn end(&mut self) -> Result<Outcome, Violation> {
        self.dataplane.borrow_mut().end();
        while self.dataplane.borrow().next_ns().is_some() {
            self.advance(None)?;
        }
        let mut dataplane = self.dataplane.borrow_mut();
        dataplane.after_client();
        dataplane.ledger.check_all()?;
        dataplane.keep_hot()?;
        let left = dataplane.in_progress();
        let open = dataplane.ledger.open_requests();
        if left > 0 || !open.is_empty() || !dataplane.ledger.is_empty() {
            return Err(Violation(format!(
                "all clients have left, but {left} requests are in progress\n{}",
                open.join("\n")
            )));
        }
        for lane in 0..dataplane.lanes() {
            let held = self.net.held(lane);
            if held != (0, 0) {
                return Err(Violation(format!(
                    "all clients have left, but lane {lane} holds {held:?} blocks and requests' data"
                )));
            }
        }
        let Dataplane {
            policies,
            moves,
            deltas,
            ..
        } = &mut *dataplane;
        policies.check(moves)?;
        deltas.check_rows(&self.stage.truth, moves)?;
        let tables = self.stage.tables.tables().iter();
        let rows: Vec<u32> = tables.map(ResidentTable::row_count).collect();
        let sampled = dataplane.take_samples(&rows)?;
        Ok(Outcome {
            hash: dataplane.story.hash(),
            events: dataplane.story.events,
            steps: dataplane.steps,
            end_ns: self.net.now_ns(),
            tally: dataplane.ledger.tally,
            changes: dataplane.changes(),
            kills: dataplane.kills,
            untold: self.stage.truth.untold.load(Ordering::Relaxed),
            sampled,
            warm: dataplane.warm(),
            strains: dataplane.strains(),
            far_rows: self.far_rows.rows.load(Ordering::Relaxed),
            far_broken_off: self.far_rows.broken_off.load(Ordering::Relaxed),
            failures: self.files.failures(),
        })
    }
}
