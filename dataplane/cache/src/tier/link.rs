//! One tier of a chain, and the book of what was asked of all of them.

use std::collections::VecDeque;

use super::{EachRow, FetchesFull, Tier, TierError, Wanted};
use crate::quotas::Quotas;

/// A tier, and what waits for it.
pub(super) struct Link {
    pub(super) tier: Box<dyn Tier + Send>,
    /// By the chain's number of a table, the tier's; none for those that it does not have.
    pub(super) tables: Box<[Option<u32>]>,
    /// Fetches that a tier before has failed and that this one has not taken yet, in the order in which they came.
    pub(super) waiting: VecDeque<u32>,
    /// Tables of which it took no more in this poll.
    pub(super) is_passed: Box<[bool]>,
}

/// What was asked of the chain, by the number that is the token for its tiers.
pub(super) struct Book {
    pub(super) fetches: Box<[Option<Asked>]>,
    pub(super) free: Vec<u32>,
    pub(super) quotas: Quotas,
}

/// A fetch that is not answered yet.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub(super) wanted: Wanted,
    /// Tiers that may still give the row, with the one that is asked.
    pub(super) left: u32,
    /// Whether none was asked before.
    pub(super) is_first: bool,
}

impl Book {
    pub(super) fn asked(&mut self, number: u32) -> &mut Asked {
        let asked = self.fetches[number as usize].as_mut();
        asked.expect("a fetch is asked of one tier at a time")
    }

    /// A fetch is answered. Returns the token that it came with.
    pub(super) fn end(&mut self, number: u32) -> u64 {
        let wanted = self.asked(number).wanted;
        self.fetches[number as usize] = None;
        self.free.push(number);
        self.quotas.give_back(wanted.table as usize, 1);
        wanted.token
    }
}

impl Link {
    /// Whether it has a table.
    pub(super) fn has(&self, table: u32) -> bool {
        self.tables.get(table as usize).is_some_and(Option::is_some)
    }

    /// Asks the tier, which has the table, where so many may still give the row.
    pub(super) fn ask(
        &mut self,
        now_ns: u64,
        token: u64,
        wanted: Wanted,
        left: u32,
    ) -> Result<(), FetchesFull> {
        let table = self.tables[wanted.table as usize];
        let wanted = Wanted {
            table: table.expect("a table of the tier"),
            token,
            deadline_ns: now_ns + part_ns(now_ns, wanted, left),
            ..wanted
        };
        self.tier.fetch(now_ns, wanted)
    }

    /// Asks for what waits, as far as the tier takes it.
    pub(super) fn take_waiting(&mut self, now_ns: u64, book: &mut Book, each: EachRow<'_>) {
        let mut waiting = std::mem::take(&mut self.waiting);
        self.is_passed.fill(false);
        let mut is_full = false;
        waiting.retain(|&number| {
            let Asked { wanted, left, .. } = *book.asked(number);
            if wanted.deadline_ns <= now_ns {
                each(book.end(number), Err(TierError::Late));
                return false;
            }
            if is_full || self.is_passed[wanted.table as usize] {
                return true;
            }
            let taken = self.ask(now_ns, number.into(), wanted, left);
            is_full = taken == Err(FetchesFull::ForAll);
            self.is_passed[wanted.table as usize] = taken.is_err();
            taken.is_err()
        });
        self.waiting = waiting;
    }
}

/// The part of a fetch's time that one of so many tiers has.
pub(super) fn part_ns(now_ns: u64, wanted: Wanted, tiers: u32) -> u64 {
    wanted.deadline_ns.saturating_sub(now_ns) / u64::from(tiers)
}
