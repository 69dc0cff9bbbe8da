//! Tables of the simulated world that become cached, and resident again, and whose stores change their sizes, while requests are in
//! progress.

use std::sync::Arc;

use fastrand::Rng;
use rowmill_cache::Shares;
use rowmill_cache::store::{ResizeError, Store};
use rowmill_engine::Home;
use rowmill_rowmilld::mailbox::{Mailbox, Move, To};
use rowmill_table::Resident;

use super::shelf::MOST_SETS;

/// Moves tables, one at a time.
pub struct Moves {
    shares: Shares,
    tables: Arc<Resident>,
    mailboxes: Vec<Arc<Mailbox>>,
    listed: Vec<Listed>,
    /// After how many of 10,000 steps of workers a table moves, if none is on its way.
    often: u32,
    /// Workers that don't know yet where the last one is.
    unaware: usize,
    rng: Rng,
    /// Moves and changes of size that all workers know of.
    pub made: u64,
    /// Changes of size that were begun.
    pub resized: u64,
}

/// A table that may be cached.
struct Listed {
    table: usize,
    /// What is kept of it, if it is.
    store: Option<Arc<Store>>,
    /// Whether it may be resident.
    moves: bool,
}

impl Moves {
    /// Of tables whose `stores` are given as they are at first, if they are cached then, and of which `moves` says whether they may be
    /// resident. None of the others ever is cached.
    pub(super) fn new(
        shares: Shares,
        tables: Arc<Resident>,
        mailboxes: Vec<Arc<Mailbox>>,
        stores: Vec<Option<Arc<Store>>>,
        moves: &[Option<bool>],
        mut rng: Rng,
    ) -> Moves {
        let often = if rng.bool() { rng.u32(1..=300) } else { 0 };
        let listed = stores.into_iter().zip(moves).enumerate();
        let listed = listed.filter_map(|(table, (store, moves))| {
            let moves = (*moves)?;
            Some(Listed {
                table,
                store,
                moves,
            })
        });
        Moves {
            shares,
            tables,
            mailboxes,
            listed: listed.collect(),
            often,
            unaware: 0,
            rng,
            made: 0,
            resized: 0,
        }
    }

    /// Takes back what workers had, and has a table move or a store change its size now and then.
    pub(super) fn go_on(&mut self) {
        for store in self
            .listed
            .iter()
            .filter_map(|listed| listed.store.as_ref())
        {
            store.settle().expect("memory can be given back");
        }
        if self.unaware > 0 {
            let aware = self.mailboxes.iter().filter_map(|mailbox| mailbox.moved());
            self.unaware -= aware.count();
            self.made += u64::from(self.unaware == 0);
        } else if !self.listed.is_empty() && self.rng.u32(0..10_000) < self.often {
            let which = self.rng.usize(0..self.listed.len());
            let Listed { store, moves, .. } = &self.listed[which];
            match store {
                Some(store) if !moves || self.rng.bool() => {
                    let store = Arc::clone(store);
                    self.resize(which, &store);
                }
                _ if *moves => self.place(which),
                _ => {}
            }
        }
    }

    /// Gives a store another size, if it is not changing it already.
    fn resize(&mut self, which: usize, store: &Store) {
        let resize = match store.resize(self.rng.u32(2..=MOST_SETS)) {
            Ok(Some(resize)) => resize,
            Ok(None) | Err(ResizeError::Busy) => return,
            Err(error) => panic!("{error}"),
        };
        let table = self.listed[which].table;
        for mailbox in &self.mailboxes {
            let to = To::Size(resize);
            mailbox.move_table(Box::new(Move { table, to }));
        }
        self.unaware = self.mailboxes.len();
        self.resized += 1;
    }

    /// Has a table resident where it is cached, and cached where it is resident.
    fn place(&mut self, which: usize) {
        let Listed { table, store, .. } = &mut self.listed[which];
        let table = *table;
        let parts = match store {
            Some(_) => None,
            None => Some(self.shares.table(table).expect("little memory")),
        };
        let first = parts.as_ref().and_then(|parts| parts.first());
        *store = first.map(|part| Arc::clone(part.store()));
        let mut parts = parts.map(Vec::into_iter);
        for mailbox in &self.mailboxes {
            let cached = parts.as_mut().and_then(Iterator::next);
            let rows = || Box::new(self.tables.tables()[table].clone());
            let home = Home {
                resident: cached.is_none().then(rows),
                cached,
            };
            let to = To::Home(Box::new(home));
            mailbox.move_table(Box::new(Move { table, to }));
        }
        self.unaware = self.mailboxes.len();
    }
}
