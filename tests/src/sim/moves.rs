//! Tables of the simulated world that become cached, and resident again, while requests are in progress.

use std::sync::Arc;

use fastrand::Rng;
use rowmill_cache::Shares;
use rowmill_engine::Home;
use rowmill_rowmilld::mailbox::{Mailbox, Move};
use rowmill_table::Resident;

/// Moves tables, one at a time.
pub struct Moves {
    shares: Shares,
    tables: Arc<Resident>,
    mailboxes: Vec<Arc<Mailbox>>,
    /// Tables that may be cached, and whether they are.
    listed: Vec<(usize, bool)>,
    /// After how many of 10,000 steps of workers a table moves, if none is on its way.
    often: u32,
    /// Workers that don't know yet where the last one is.
    unaware: usize,
    rng: Rng,
    /// Moves that all workers know of.
    pub made: u64,
}

impl Moves {
    /// Of tables that `cached` says of whether they are cached at first; none of the others ever is.
    pub(super) fn new(
        shares: Shares,
        tables: Arc<Resident>,
        mailboxes: Vec<Arc<Mailbox>>,
        cached: &[Option<bool>],
        mut rng: Rng,
    ) -> Moves {
        let listed = cached.iter().enumerate();
        let often = if rng.bool() { rng.u32(1..=300) } else { 0 };
        Moves {
            shares,
            tables,
            mailboxes,
            listed: listed
                .filter_map(|(t, cached)| Some((t, (*cached)?)))
                .collect(),
            often,
            unaware: 0,
            rng,
            made: 0,
        }
    }

    /// Takes back what workers had, and has a table move now and then.
    pub(super) fn go_on(&mut self) {
        if self.unaware > 0 {
            let aware = self.mailboxes.iter().filter_map(|mailbox| mailbox.moved());
            self.unaware -= aware.count();
            self.made += u64::from(self.unaware == 0);
        } else if !self.listed.is_empty() && self.rng.u32(0..10_000) < self.often {
            let which = self.rng.usize(0..self.listed.len());
            let (table, is_cached) = &mut self.listed[which];
            let parts = match is_cached {
                true => None,
                false => Some(self.shares.table(*table).expect("little memory")),
            };
            *is_cached = !*is_cached;
            let mut parts = parts.map(Vec::into_iter);
            for mailbox in &self.mailboxes {
                let cached = parts.as_mut().and_then(Iterator::next);
                let rows = || Box::new(self.tables.tables()[*table].clone());
                let home = Home {
                    resident: cached.is_none().then(rows),
                    cached,
                };
                let table = *table;
                mailbox.move_table(Box::new(Move { table, home }));
            }
            self.unaware = self.mailboxes.len();
        }
    }
}
