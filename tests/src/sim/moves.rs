//! Tables of the simulated world that become cached, and resident again, and whose stores change their sizes, while requests are in
//! progress; and those of generations that come and go.

use std::collections::VecDeque;
use std::sync::Arc;

use fastrand::Rng;
use rowmill_cache::Shares;
use rowmill_cache::store::{ResizeError, Store};
use rowmill_cache::tier::Tier;
use rowmill_engine::{Home, Side, SideTier};
use rowmill_rowmilld::mailbox::{Mailbox, Move};
use rowmill_table::Resident;

use super::history::History;
use super::ledger::Violation;
use super::planted::Mistake;
use super::shelf::MOST_SETS;
use super::warm::{File, Hot};

/// Makes what a worker reads rows of these tables from.
pub type MakeTier = Box<dyn FnMut(&Arc<Resident>) -> Box<dyn Tier + Send>>;

/// Moves tables, one at a time.
pub struct Moves {
    shares: Shares,
    /// The tables of each generation that workers have, by side.
    tables: [Option<Arc<Resident>>; 2],
    tier: MakeTier,
    mailboxes: Vec<Arc<Mailbox>>,
    listed: Vec<Listed>,
    /// What was hot in tables, and in the generation of which side.
    pub(super) hot: Hot,
    newest: Side,
    /// What deltas have made of rows.
    history: History,
    mistake: Option<Mistake>,
    /// After how many of 10,000 steps of workers a table moves, if none is on its way.
    often: u32,
    /// What workers are told next, each its own.
    next: VecDeque<Vec<Move>>,
    /// Workers that don't know yet where the last one is.
    unaware: usize,
    rng: Rng,
    /// Moves and changes of size that all workers know of.
    pub made: u64,
    /// Changes of size that were begun.
    pub resized: u64,
    /// Generations with cached tables that came beside another.
    pub brought: u64,
}

/// A table that may be cached.
struct Listed {
    table: usize,
    /// What is kept of it in the generation of each side, if it is cached there.
    stores: [Option<Arc<Store>>; 2],
    /// Whether it may be resident.
    moves: bool,
}

impl Moves {
    /// Of tables whose `stores` are given as they are at first, if they are cached then, and of which `moves` says whether they may be
    /// resident. None of the others ever is cached.
    pub(super) fn new(
        (shares, tier): (Shares, MakeTier),
        tables: Arc<Resident>,
        mailboxes: Vec<Arc<Mailbox>>,
        stores: Vec<Option<Arc<Store>>>,
        moves: &[Option<bool>],
        (history, hot, mistake): (History, Hot, Option<Mistake>),
        mut rng: Rng,
    ) -> Moves {
        let often = if rng.bool() { rng.u32(1..=300) } else { 0 };
        let listed = stores.into_iter().zip(moves).enumerate();
        let listed = listed.filter_map(|(table, (store, moves))| {
            let moves = (*moves)?;
            Some(Listed {
                table,
                stores: [store, None],
                moves,
            })
        });
        Moves {
            shares,
            tables: [Some(tables), None],
            tier,
            mailboxes,
            listed: listed.collect(),
            hot,
            newest: Side::A,
            history,
            mistake,
            often,
            next: VecDeque::new(),
            unaware: 0,
            rng,
            made: 0,
            resized: 0,
            brought: 0,
        }
    }

    /// Nothing is begun any more.
    pub(super) fn end(&mut self) {
        self.often = 0;
    }

    /// Goes on with the file of hot rows, of the newest generation, and looks at lists that were loaded when nothing is on its way.
    ///
    /// # Errors
    /// If rows of one are not there that could be.
    pub(super) fn keep_hot(
        &mut self,
        file: &mut File,
        (newest, tables): (Side, &Resident),
        is_quiet: bool,
    ) -> Result<(), Violation> {
        if core::mem::replace(&mut self.newest, newest) != newest {
            self.hot.forget();
        }
        let stores = self.listed.iter();
        let stores = stores.map(|listed| (listed.table, listed.stores[newest.index()].as_ref()));
        let stores: Vec<_> = stores.collect();
        file.go_on(&mut self.hot, tables, &stores);
        if !is_quiet {
            return Ok(());
        }
        let first = newest.index() * tables.tables().len();
        let of_home = |home: usize| {
            let of_it = |(table, _): &&(usize, _)| home == first + table;
            stores.iter().find(of_it).and_then(|(_, store)| *store)
        };
        self.hot.check(of_home, self.resized)
    }

    /// Whether workers have still to be told something.
    pub(super) fn is_under_way(&self) -> bool {
        self.unaware > 0 || !self.next.is_empty()
    }

    /// Takes back what workers had, and has a table move or a store change its size now and then, if it `may`.
    pub(super) fn go_on(&mut self, may: bool) {
        let stores = self.listed.iter().flat_map(|listed| &listed.stores);
        for store in stores.flatten() {
            store.settle().expect("memory can be given back");
        }
        if self.unaware > 0 {
            let back: Vec<Box<Move>> = self
                .mailboxes
                .iter()
                .filter_map(|mailbox| mailbox.moved())
                .collect();
            self.unaware -= back.len();
            // One whose tier has something to answer is asked again; and the others, which have given theirs back.
            let busy = back.iter().find_map(|moved| match **moved {
                Move::Tier(side, _, false) => Some(side),
                _ => None,
            });
            if let Some(side) = busy {
                self.leave_tier(side);
            }
            let has_list = back.iter().any(|moved| matches!(**moved, Move::Warm(_)));
            self.made += u64::from(self.unaware == 0 && !has_list);
        } else if let Some(news) = self.next.pop_front() {
            self.tell(news);
        } else if may && !self.listed.is_empty() && self.rng.u32(0..10_000) < self.often {
            self.begin();
        }
    }

    fn tell(&mut self, news: Vec<Move>) {
        for (mailbox, new) in self.mailboxes.iter().zip(news) {
            mailbox.move_table(Box::new(new));
        }
        self.unaware = self.mailboxes.len();
    }

    fn begin(&mut self) {
        let which = self.rng.usize(0..self.listed.len());
        let held: Vec<Side> = (Side::ALL.into_iter())
            .filter(|side| self.tables[side.index()].is_some())
            .collect();
        let side = held[self.rng.usize(0..held.len())];
        let Listed { stores, moves, .. } = &self.listed[which];
        match &stores[side.index()] {
            Some(store) if !moves || held.len() > 1 || self.rng.bool() => {
                let store = Arc::clone(store);
                self.resize((which, side), &store);
            }
            _ if *moves && held.len() == 1 => {
                self.change_place(which, side);
            }
            _ => {}
        }
    }

    /// A table becomes resident, or cached: then what was hot in it is loaded.
    fn change_place(&mut self, which: usize, side: Side) {
        let Listed { table, stores, .. } = &self.listed[which];
        let (table, store) = (*table, stores[side.index()].clone());
        if let Some(store) = &store {
            self.hot.leaves(table, self.home(table, side), store);
        }
        let news = self.homes((which, side), store.is_none());
        self.tell(news);
        let store = self.listed[which].stores[side.index()].as_ref();
        let list = store.and_then(|store| self.hot.comes(table, store, self.resized));
        if let Some(list) = list {
            let lists = self.mailboxes.iter();
            let lists = lists.map(|_| Move::Warm(Arc::clone(&list))).collect();
            self.next.push_back(lists);
        }
    }

    /// What is kept of tables that are cached, with the numbers by which workers know these, and those of the tables.
    pub(super) fn stores(&self) -> impl Iterator<Item = (usize, usize, &Arc<Store>)> {
        self.listed.iter().flat_map(move |listed| {
            let stores = Side::ALL.into_iter().zip(&listed.stores);
            let table = listed.table;
            stores.filter_map(move |(side, store)| {
                Some((self.home(table, side), table, store.as_ref()?))
            })
        })
    }

    /// What is kept of cached tables of a generation, with their numbers.
    pub(super) fn stores_of(&self, tables: &Arc<Resident>) -> Vec<(usize, Arc<Store>)> {
        let is_its =
            |of: &Option<Arc<Resident>>| of.as_ref().is_some_and(|of| Arc::ptr_eq(of, tables));
        let Some(side) = self.tables.iter().position(is_its) else {
            return Vec::new();
        };
        let stores = self.listed.iter().filter_map(|listed| {
            let store = listed.stores[side].clone()?;
            Some((listed.table, store))
        });
        stores.collect()
    }

    /// The number by which workers know a table of the second side, or of the first.
    pub(super) fn home_on(&self, table: usize, is_second: bool) -> usize {
        self.home(table, Side::ALL[usize::from(is_second)])
    }

    /// The number by which workers know a table of a side.
    fn home(&self, table: usize, side: Side) -> usize {
        let any = self.tables.iter().flatten().next();
        side.index() * any.expect("a generation").tables().len() + table
    }

    /// Gives a store another size, if it is not changing it already.
    fn resize(&mut self, (which, side): (usize, Side), store: &Store) {
        let resize = match store.resize(self.rng.u32(2..=MOST_SETS)) {
            Ok(Some(resize)) => resize,
            Ok(None) | Err(ResizeError::Busy) => return,
            Err(error) => panic!("{error}"),
        };
        let home = self.home(self.listed[which].table, side);
        let sizes = self.mailboxes.iter().map(|_| Move::Size(home, resize));
        self.tell(sizes.collect());
        self.resized += 1;
    }

    /// What each worker has of a table that is cached or resident in the generation of a side.
    fn homes(&mut self, (which, side): (usize, Side), is_cached: bool) -> Vec<Move> {
        let table = self.listed[which].table;
        let home = self.home(table, side);
        let parts = is_cached.then(|| self.shares.table(home).expect("little memory"));
        let first = parts.as_ref().and_then(|parts| parts.first());
        let store = first.map(|part| Arc::clone(part.store()));
        let mut parts = parts.map(Vec::into_iter);
        let tables = self.tables[side.index()].as_ref();
        let tables = tables.expect("a generation that is held");
        // Resident ones have their rows as they are now.
        if let Some(store) = store
            .as_ref()
            .filter(|_| self.mistake != Some(Mistake::ForgetsDeltas))
        {
            let (rows, bytes) = self.history.others(tables.generation(), table);
            let patched = store.patch(&rows, &bytes, &mut || ());
            patched.expect("room for all rows");
        }
        self.listed[which].stores[side.index()] = store;
        let of_worker = |_| {
            let cached = parts.as_mut().and_then(Iterator::next);
            let rows = || Box::new(tables.tables()[table].clone());
            let own = Home {
                resident: cached.is_none().then(rows),
                cached,
            };
            Move::Home(home, Box::new(own))
        };
        self.mailboxes.iter().map(of_worker).collect()
    }

    /// A generation comes, on a side where none is: what is cached of the other is cached of it, too.
    pub(super) fn bring(&mut self, side: Side, tables: &Arc<Resident>) {
        if self.listed.is_empty() {
            return;
        }
        self.tables[side.index()] = Some(Arc::clone(tables));
        let from = self.home(0, side) as u32;
        let homes: Box<[u32]> = (from..from + tables.tables().len() as u32).collect();
        let tier = |_| {
            let new = SideTier {
                tier: Some((self.tier)(tables)),
                homes: homes.clone(),
            };
            Move::Tier(side, Box::new(new), false)
        };
        let tiers = (0..self.mailboxes.len()).map(tier).collect();
        self.next.push_back(tiers);
        for which in 0..self.listed.len() {
            let is_cached = self.listed[which].stores[side.other().index()].is_some();
            let homes = self.homes((which, side), is_cached);
            self.next.push_back(homes);
        }
        self.brought += 1;
    }

    /// The generation of a side goes, of which no request is in progress.
    pub(super) fn leave(&mut self, side: Side) {
        if self.listed.is_empty() {
            return;
        }
        for which in 0..self.listed.len() {
            let home = self.home(self.listed[which].table, side);
            let nothing = |_| Move::Home(home, Box::default());
            let news = self.mailboxes.iter().map(nothing).collect();
            self.next.push_back(news);
            self.listed[which].stores[side.index()] = None;
        }
        self.leave_tier(side);
        self.tables[side.index()] = None;
    }

    fn leave_tier(&mut self, side: Side) {
        let nothing = |_| Move::Tier(side, Box::default(), false);
        let news = (0..self.mailboxes.len()).map(nothing).collect();
        self.next.push_back(news);
    }
}
