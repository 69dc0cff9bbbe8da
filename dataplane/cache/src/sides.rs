//! Generations of a model whose tables are cached beside one another: each is on a side.
//!
//! The tables of a model have numbers from 0 on, and those of the other side follow in the same order: of `n` tables number `t` is `n + t` there. Each
//! has slots of its own and, as long as its generation is held, a tier of its own. Of what all tables of a worker share, those of one name have
//! one part together, so that a generation which is held beside another takes nothing of what other tables have.

use core::fmt;

use crate::fetch::Read;
use crate::tier::{EachRow, FetchesFull, Tier, TierCounts, Wanted};

/// Generations that are held at a time.
pub const SIDES: usize = 2;

/// The number of the table on the first side that a table has the name of, where there are so many on each.
pub(crate) fn on_one_side(table: usize, tables: usize) -> usize {
    match table < tables {
        true => table,
        false => table - tables,
    }
}

/// Why a row can't be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// As [`FetchesFull::ForTable`]; rows of other tables may be.
    OfTable,
    /// All that this generation's may have is taken; rows of the other's may be.
    OfSide,
    /// As [`FetchesFull::ForAll`].
    AllFull,
    /// The generation that it is of is gone.
    Gone,
}

/// What rows of each side come from.
pub(crate) struct Tiers {
    of: [Option<Box<dyn Tier + Send>>; SIDES],
    /// Tables of a side.
    tables: usize,
}

impl fmt::Debug for Tiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = self.of.each_ref().map(Option::is_some);
        f.debug_tuple("Tiers").field(&held).finish()
    }
}

impl Tiers {
    /// Those of a model with so many tables, of which only the first side's generation is held.
    pub(crate) fn new(first: Box<dyn Tier + Send>, tables: usize) -> Tiers {
        Tiers {
            of: [Some(first), None],
            tables,
        }
    }

    /// Whether rows of a side's tables come from somewhere.
    pub(crate) fn has(&self, side: usize) -> bool {
        self.of[side].is_some()
    }

    /// That of a table.
    pub(crate) fn side(&self, table: usize) -> usize {
        usize::from(table >= self.tables)
    }

    /// Asks for a row of a table, which the tier of its side knows by the number `in_tier`.
    pub(crate) fn fetch(&mut self, now_ns: u64, read: &Read, in_tier: u32) -> Result<(), Refused> {
        let side = self.side(read.table as usize);
        let is_alone = self.of[1 - side].is_none();
        let tier = self.of[side].as_mut().ok_or(Refused::Gone)?;
        let wanted = Wanted {
            table: in_tier,
            row: read.row,
            token: read.ticket.token(),
            deadline_ns: read.deadline_ns,
        };
        tier.fetch(now_ns, wanted).map_err(|full| match full {
            FetchesFull::ForAll if is_alone => Refused::AllFull,
            FetchesFull::ForAll => Refused::OfSide,
            FetchesFull::ForTable => Refused::OfTable,
        })
    }

    /// Polls all that there are.
    pub(crate) fn poll(&mut self, now_ns: u64, each: EachRow<'_>) {
        for tier in self.of.iter_mut().flatten() {
            tier.poll(now_ns, each);
        }
    }

    /// Reads that were asked for.
    pub(crate) fn reads(&self) -> u64 {
        let counts = self.of.iter().flatten().map(|tier| tier.counts());
        counts.map(|TierCounts { reads, .. }| reads).sum()
    }

    /// Puts a tier, or none, in the place of a side's, which it leaves in `tier`. False, and nothing is done, as long as that one has not
    /// answered all that it was asked.
    pub(crate) fn replace(&mut self, side: usize, tier: &mut Option<Box<dyn Tier + Send>>) -> bool {
        let own = &mut self.of[side];
        let is_answered = own.as_ref().is_none_or(|own| own.unanswered() == 0);
        if is_answered {
            core::mem::swap(own, tier);
        }
        is_answered
    }
}
