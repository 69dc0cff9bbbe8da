//! A process of the simulated service: what it is made of when it starts, for the first time or after another one was killed.
//!
//! What outlives a process is what lies on its disk: the tables' files, the deltas that it has kept, which the next one applies
//! before it serves, and the list of rows that were hot, which it loads. All else (connections, caches, generations loaded later, policies) is gone.

use std::sync::Arc;

use fastrand::Rng;
use rowmill_engine::{Engine, Side};
use rowmill_pooling::{Isa, Kernels};
use rowmill_port::sim::SimNet;
use rowmill_rowmilld::config::Limits;
use rowmill_rowmilld::mailbox::Mailbox;
use rowmill_rowmilld::service::Sessions;
use rowmill_table::Resident;

use super::deltas::{Deltas, Kept};
use super::draws::{Recipe, make};
use super::generations::Generations;
use super::model::Truth;
use super::moves::Moves;
use super::planted::{Mistake, Planted};
use super::policies::Policies;
use super::service::Noted;
use super::shelf::Drawn;
use super::warm::{File, Hot};

/// What every process of a world is made of.
pub(super) struct Plan {
    pub(super) net: SimNet,
    pub(super) service: Arc<Noted>,
    pub(super) truth: Truth,
    pub(super) limits: Limits,
    pub(super) workers: usize,
    pub(super) isa: Isa,
    pub(super) recipes: Vec<Recipe>,
    pub(super) cached: Drawn,
    /// Of each table that may be cached, whether it is at first.
    pub(super) begin_cached: Vec<Option<bool>>,
    /// And whether it may be resident.
    pub(super) moving: Vec<Option<bool>>,
    pub(super) has_deltas: bool,
    pub(super) has_policies: bool,
    /// Whether most ids are of rows that are looked for in the same slots.
    pub(super) has_crowd: bool,
    /// Whether rows that were hot are listed in a file.
    pub(super) keeps_warm: bool,
    pub(super) mistake: Option<Mistake>,
    pub(super) seed: u64,
}

/// A worker's engine, port and mailbox.
pub(super) type Parts = (Engine, Planted, Arc<Mailbox>);

/// A process.
pub(super) struct Process {
    /// One a worker.
    pub(super) parts: Vec<Parts>,
    /// What has tables move.
    pub(super) moves: Moves,
    /// What has generations change.
    pub(super) generations: Generations,
    /// What has rows become others.
    pub(super) deltas: Deltas,
    /// What has other rows stay in caches.
    pub(super) policies: Policies,
}

impl Plan {
    /// The process of that number, which finds these deltas kept, and this file of rows that were hot.
    pub(super) fn start(&self, number: u64, kept: Kept, file: &mut File) -> Process {
        let seed = self.seed.wrapping_add(number.wrapping_mul(0x9e37_79b9));
        let rng = |turn: u32| Rng::with_seed(seed.rotate_left(turn));
        let generations = make(&self.recipes, |_| self.has_deltas);
        let history = &self.truth.history;
        let others = kept.apply(&generations, history, self.mistake);
        let tables = Arc::clone(&generations[0]);
        let mailboxes: Vec<Arc<Mailbox>> = (0..self.workers).map(|_| Arc::default()).collect();
        let sessions = Sessions::new(
            "simulated".into(),
            Arc::clone(&tables),
            &self.limits,
            mailboxes.clone(),
        );
        let sessions = Arc::new(sessions);
        self.service.is_now(Arc::clone(&sessions));
        let files = &self.truth.generations;
        let (mut caches, shares) =
            (self.cached).workers(&mut rng(1), &files[0], &self.begin_cached, self.workers);
        let hot = caches.iter_mut().map(|(_, cache)| cache);
        let hot = Hot::start(file, &tables, hot, self.mistake);
        let (_, first) = caches.first().expect("a worker");
        let stores = (0..self.begin_cached.len()).map(|table| first.store(table).cloned());
        let stores: Vec<_> = stores.collect();
        self.cached.watch().starts_over();
        if self.has_crowd {
            for (table, store) in stores.iter().enumerate() {
                if let Some(store) = store {
                    let rows = tables.tables()[table].row_count();
                    self.truth.crowd.is_of(table, rows, store);
                }
            }
        }
        for (table, store) in stores.iter().enumerate() {
            if let Some(store) = store {
                let others = others.get(&(tables.generation(), table));
                let (rows, bytes): (Vec<u32>, Vec<&[u8]>) = others
                    .into_iter()
                    .flatten()
                    .map(|(&row, bytes)| (row, &bytes[..]))
                    .unzip();
                let patched = store.patch(&rows, &bytes.concat(), &mut || ());
                patched.expect("room for all rows");
            }
        }
        let (shelves, mut tiers, files) = (self.cached.clone(), rng(8), files.clone());
        // Files stay as they were at first.
        let tier = move |tables: &Arc<Resident>| {
            let mut files = files.iter();
            let of_it = files.find(|files| files.generation() == tables.generation());
            shelves.tier(of_it.expect("one of all"), tiers.fork())
        };
        let deltas = Deltas::new(
            (generations.clone(), kept),
            Arc::clone(shares.epochs()),
            history.clone(),
            self.mistake,
            rng(24),
        );
        let rows_of = |table: usize| (table, tables.tables()[table].row_count());
        let is_listed = |table: &usize| self.has_policies && self.begin_cached[*table].is_some();
        let listed = (0..self.begin_cached.len()).filter(is_listed).map(rows_of);
        let listed = listed.collect();
        let moves = Moves::new(
            (shares, Box::new(tier)),
            tables,
            mailboxes.clone(),
            stores,
            &self.moving,
            (history.clone(), hot, self.mistake),
            rng(32),
        );
        let policies = Policies::new(mailboxes.clone(), listed, self.mistake, rng(40));
        let turns = Generations::new(sessions, mailboxes.clone(), generations, rng(16));
        let parts = mailboxes.into_iter().zip(caches).enumerate();
        let parts = parts.map(|(lane, (mailbox, (turns, cache)))| {
            let kernels = Kernels::new(self.isa);
            let mut engine = Engine::with_cache(self.limits.engine(), kernels, turns, cache);
            engine.prepare(Side::A, 1);
            let port = Planted::new(self.net.lane(lane as u16), self.net.clone(), self.mistake);
            (engine, port, mailbox)
        });
        Process {
            parts: parts.collect(),
            moves,
            generations: turns,
            deltas,
            policies,
        }
    }
}

/// How often the process was killed, and what was under way then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kills {
    /// In all.
    pub all: u64,
    /// A generation was on its way in or out, or to become the newest.
    pub in_generation: u64,
    /// Some workers had switched to another generation, and others not.
    pub in_switch: u64,
    /// A delta was being applied.
    pub in_delta: u64,
    /// Not all workers had taken a policy in that was published.
    pub in_policy: u64,
    /// Not all workers knew where a table had moved, or that a store has another size.
    pub in_move: u64,
}

impl Kills {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Kills) -> Kills {
        Kills {
            all: self.all + other.all,
            in_generation: self.in_generation + other.in_generation,
            in_switch: self.in_switch + other.in_switch,
            in_delta: self.in_delta + other.in_delta,
            in_policy: self.in_policy + other.in_policy,
            in_move: self.in_move + other.in_move,
        }
    }
}

/// How often cached tables had too little of something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strains {
    /// Rows that came and found no slot.
    pub crowded: u64,
    /// Bags that found no room to wait.
    pub unparked: u64,
    /// Fetches that a tier had no room for.
    pub full: u64,
    /// Fetches that a tier did not answer in time.
    pub hung: u64,
}

impl Strains {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Strains) -> Strains {
        Strains {
            crowded: self.crowded + other.crowded,
            unparked: self.unparked + other.unparked,
            full: self.full + other.full,
            hung: self.hung + other.hung,
        }
    }
}

/// What processes have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Tables that became cached, or resident again, and stores that changed their sizes.
    pub moves: u64,
    /// The latter alone, begun.
    pub resized: u64,
    /// Generations that became the newest.
    pub switched: u64,
    /// Generations that were given up.
    pub released: u64,
    /// Generations that could not be loaded.
    pub failed: u64,
    /// Of those that came, how many with cached tables.
    pub brought: u64,
    /// Deltas that were acknowledged.
    pub deltas: u64,
    /// Deltas that ended in the middle.
    pub broken_off: u64,
    /// Policies that were published.
    pub policies: u64,
    /// Lists of rows that policies want to stay and that were not there.
    pub loads: u64,
    /// How often such a row was found again.
    pub stayed: u64,
}

impl Changes {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Changes) -> Changes {
        Changes {
            moves: self.moves + other.moves,
            resized: self.resized + other.resized,
            switched: self.switched + other.switched,
            released: self.released + other.released,
            failed: self.failed + other.failed,
            brought: self.brought + other.brought,
            deltas: self.deltas + other.deltas,
            broken_off: self.broken_off + other.broken_off,
            policies: self.policies + other.policies,
            loads: self.loads + other.loads,
            stayed: self.stayed + other.stayed,
        }
    }
}
