//! What becomes of rows where the store is to have another size.

use rowmill_policy::{Policy, Word};

use super::CachedTable;
use super::choice::resident;
use crate::figures::{Count, TableFigures};
use crate::pins::Rules;
use crate::store::{Candidate, Evicted, Judge, Resize, Swept, WAYS};

impl CachedTable {
    /// The store is about to have another size.
    pub(crate) fn resize(&mut self, resize: Resize) {
        let Resize { shard_sets, clock } = resize;
        let shape = self.store.most().over(shard_sets);
        let slots = self.own.len() as u32 * shard_sets * WAYS as u32;
        self.policy.resize(slots, shape.slots(), clock);
        self.shard_sets = shard_sets;
        self.is_resizing = true;
    }

    /// Moves some rows to where they are in a store of another size, if it is about to have one. Returns whether there is more to do. Once
    /// a turn.
    pub(crate) fn sweep(&mut self) -> bool {
        if !self.is_resizing {
            return false;
        }
        // A move knows its slot from before; it takes a turn or two.
        if !self.moves.is_empty() {
            return true;
        }
        let mut ranks = Ranks {
            policy: &mut self.policy,
            rules: &self.rules,
            figures: &self.figures,
        };
        let mut own = self.writers.iter_mut().flatten();
        self.is_resizing = own.any(|writer| writer.sweep(&mut ranks) == Swept::More);
        self.is_resizing
    }
}

/// Lets rows of lower rank make way where a store becomes smaller.
struct Ranks<'t> {
    policy: &'t mut Policy,
    rules: &'t Rules,
    figures: &'t TableFigures,
}

impl Judge for Ranks<'_> {
    fn victim(&self, mover: Candidate, others: &mut dyn Iterator<Item = Candidate>) -> Option<u32> {
        let mover = self.policy.mover(resident(mover)?);
        let next_use = |row| self.rules.next_use(row, |_| None);
        self.policy
            .victim(&mover, others.filter_map(resident), next_use)
    }

    fn evicted(&mut self, evicted: Evicted) {
        let Evicted { row, meta } = evicted;
        self.policy.evicted(row, Word::from_bits(meta));
        self.figures.count(Count::Evicted, 1);
    }
}
