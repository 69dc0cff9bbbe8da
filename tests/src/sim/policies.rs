//! Policies of the simulated world: which lookups of tables that may be cached are sampled, which rows of them come and which stay, published at
//! any time, wherever the tables are by then.
//!
//! They reach workers as those of the control plane do (`rowmilld`'s `control/apply.rs`): one directive at a time, which all workers take
//! between two turns before there is the next. What a policy says of shares is in [`Moves`]. Answers are the same whatever it says; beside that,
//! rows that are to stay and are there have to be there later, as long as their store neither changes its size nor goes.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use rowmill_cache::store::Store;
use rowmill_cache::{Pins, Rules, WarmRows};
use rowmill_rowmilld::mailbox::{Directive, Mailbox};

use super::ledger::Violation;
use super::moves::Moves;
use super::planted::Mistake;

/// Rows that are looked for after so many steps of workers, on average.
const CHECK_STEPS: u32 = 50;
/// Most rows of a table that are loaded at a time.
const LOADED: usize = 20;

/// Rows that are to stay and are there.
struct Watched {
    store: Arc<Store>,
    rows: Vec<u32>,
}

/// Publishes policies, one at a time.
pub struct Policies {
    mailboxes: Vec<Arc<Mailbox>>,
    /// Tables that may be cached, and how many rows they have.
    listed: Vec<(usize, u32)>,
    mistake: Option<Mistake>,
    /// After how many of 10,000 steps of workers one is published, if all know the one before.
    often: u32,
    /// What all workers know, which frees what they had before, and what some of them don't know yet.
    known: Option<Arc<Directive>>,
    telling: Option<Arc<Directive>>,
    /// What was said last, and which rows are to stay, by table.
    rules: BTreeMap<usize, (u32, Rules)>,
    pins: BTreeMap<usize, Vec<u32>>,
    /// By the number that workers know a table of a side by.
    watched: BTreeMap<usize, Watched>,
    /// Changes of stores' sizes that had begun by then.
    resized: u64,
    rng: Rng,
    /// Policies that were published.
    pub published: u64,
    /// Lists of rows to load.
    pub loads: u64,
    /// How often a row that was to stay was found again.
    pub stayed: u64,
}

impl Policies {
    /// For these tables; none are published where there are none.
    pub(super) fn new(
        mailboxes: Vec<Arc<Mailbox>>,
        listed: Vec<(usize, u32)>,
        mistake: Option<Mistake>,
        mut rng: Rng,
    ) -> Policies {
        let often = rng.u32(1..=300);
        Policies {
            mailboxes,
            often: if listed.is_empty() { 0 } else { often },
            listed,
            mistake,
            known: None,
            telling: None,
            rules: BTreeMap::new(),
            pins: BTreeMap::new(),
            watched: BTreeMap::new(),
            resized: 0,
            rng,
            published: 0,
            loads: 0,
            stayed: 0,
        }
    }

    /// Publishes nothing more: a list whose rows hang keeps workers busy for so long that there would be another before it is done.
    pub(super) fn end(&mut self) {
        self.often = 0;
    }

    /// Whether workers are to look at their mailboxes.
    pub(super) fn is_under_way(&self) -> bool {
        self.telling.is_some()
    }

    /// Publishes something now and then, and looks whether what was published is obeyed.
    ///
    /// # Errors
    /// If it is not.
    pub(super) fn go_on(&mut self, moves: &Moves) -> Result<(), Violation> {
        if let Some(telling) = self.telling.take() {
            match telling.is_known() {
                true => self.known = Some(telling),
                false => self.telling = Some(telling),
            }
            return Ok(());
        }
        if self.known.is_some() && self.rng.u32(0..CHECK_STEPS) == 0 {
            self.check(moves)?;
        }
        if self.rng.u32(0..10_000) < self.often {
            match self.known.is_some() && self.rng.bool() {
                true => self.load(moves),
                false => self.publish(),
            }
        }
        Ok(())
    }

    /// Rows that are to stay and were there are there, and those that are there now will be: all workers know.
    pub(super) fn check(&mut self, moves: &Moves) -> Result<(), Violation> {
        if self.telling.is_some() {
            return Ok(());
        }
        let before = core::mem::take(&mut self.watched);
        let were_still = core::mem::replace(&mut self.resized, moves.resized) == moves.resized;
        for (home, table, store) in moves.stores() {
            let is_still = store.settle().expect("memory can be given back");
            let Some(pins) = self.pins.get(&table).filter(|_| is_still) else {
                continue;
            };
            let (_, lacking) = store.lacking(pins);
            let watched = before.get(&home).filter(|_| were_still);
            if let Some(watched) = watched.filter(|watched| Arc::ptr_eq(&watched.store, store)) {
                if let Some(gone) = watched.rows.iter().find(|row| lacking.contains(row)) {
                    return Err(Violation(format!(
                        "row {gone} of table {table} was to stay, and is gone"
                    )));
                }
                self.stayed += watched.rows.len() as u64;
            }
            let there = pins.iter().filter(|row| !lacking.contains(row));
            let watched = Watched {
                store: Arc::clone(store),
                rows: there.copied().collect(),
            };
            self.watched.insert(home, watched);
        }
        Ok(())
    }

    /// Other rules for some tables; of those that aren't named nothing changes.
    fn publish(&mut self) {
        let rng = &mut self.rng;
        for &(table, rows) in &self.listed {
            if rng.bool() {
                continue;
            }
            let mut pins: Vec<u32> = (0..rows).collect();
            rng.shuffle(&mut pins);
            pins.truncate([0, 3, 20, 100][rng.usize(0..4)]);
            pins.sort_unstable();
            let rules = Rules {
                pins: (!pins.is_empty()).then(|| Arc::new(Pins::new(&pins))),
                only_pins: rng.u8(0..4) == 0,
            };
            let threshold = [0, 1 << 28, u32::MAX][rng.usize(0..3)];
            self.rules.insert(table, (threshold, rules));
            self.pins.insert(table, pins);
        }
        // What is there when all workers know it is watched anew.
        self.watched.clear();
        self.direct(&[]);
        self.published += 1;
    }

    /// Rows that are to stay and are not there are to be loaded, of tables that were cached when somebody looked.
    fn load(&mut self, moves: &Moves) {
        let mut lists = Vec::new();
        for (home, table, store) in moves.stores() {
            let pins = self.pins.get(&table).map_or(&[][..], |pins| &pins[..]);
            let (_, mut rows) = store.lacking(pins);
            rows.truncate(LOADED);
            lists.push(WarmRows { table: home, rows });
        }
        // Somebody may have looked long ago.
        for &(table, _) in &self.listed {
            let (side, rows) = (self.rng.bool(), self.pins.get(&table));
            let rows = rows.map_or(&[][..], |rows| &rows[..rows.len().min(3)]);
            let home = moves.home_on(table, side);
            if lists.iter().all(|list| list.table != home) {
                let rows = rows.to_vec();
                lists.push(WarmRows { table: home, rows });
            }
        }
        lists.retain(|list| !list.rows.is_empty());
        if !lists.is_empty() {
            self.direct(&lists);
            self.loads += 1;
        }
    }

    fn direct(&mut self, lacking: &[WarmRows]) {
        let rules = self.rules.iter();
        let rules = rules.map(|(&table, (threshold, rules))| (table, *threshold, rules.clone()));
        let told = match self.mistake {
            Some(Mistake::LeavesWorkerOut) => &self.mailboxes[1..],
            _ => &self.mailboxes[..],
        };
        let directive = Directive::new(rules.collect(), lacking.into(), told.len() as u32);
        let directive = Arc::new(directive);
        for mailbox in told {
            mailbox.direct(Arc::clone(&directive));
        }
        self.telling = Some(directive);
    }
}
