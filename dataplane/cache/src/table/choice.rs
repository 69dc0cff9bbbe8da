//! Which slot a row is to have that is about to be fetched, and which rows move for it.

use rowmill_policy::{Newcomer, Resident, Word};

use super::CachedTable;
use crate::store::{Candidate, Held, WAYS};

/// A row that is looked up within so many lookups doesn't move, since for a turn or two it could not be found.
const MOVE_LOOKUPS: u32 = 512;

/// Rows of those that a newcomer could replace that may move for it. Each has 16 slots more to choose from, which takes half a
/// microsecond in all. With 1,000 rows and batches of 64 x 80 lookups hits are 63.51 % without moves and 63.65 % with them, with one
/// batch more waiting 65.88 and 66.19; twice as many give 0.04 more.
const MOVERS: usize = 8;

impl CachedTable {
    /// The slot that a newcomer is to have of its own: an empty one, or, as long as rows come, that of a row which is worth less.
    pub(super) fn choose(
        &self,
        newcomer: &Newcomer,
        next_use: impl Fn(u32) -> Option<u32>,
    ) -> Option<u32> {
        let (row, writer) = (newcomer.row, self.writer(newcomer.row));
        if let Some(empty) = writer.candidates(row).find(is_empty) {
            return Some(empty.slot);
        }
        if self.is_silent {
            return None;
        }
        // Where tags are far away, a row in its second set costs a line more in each lookup. To have both to choose from is worth a
        // point of hits with 1,000 slots, and less than 0.1 points with 25,000.
        let next_use = |row| self.rules.next_use(row, &next_use);
        let together = if self.store.is_near() { 2 * WAYS } else { WAYS };
        let first = writer.candidates(row).take(together);
        let first = first.filter_map(resident);
        let others = writer.candidates(row).skip(together).filter_map(resident);
        let victim = self.policy.victim(newcomer, first, next_use);
        victim.or_else(|| self.policy.victim(newcomer, others, next_use))
    }

    /// Where the chosen slot's row is known to be looked up, or none was chosen for a row that is: a row to take the slot of instead, and
    /// the slot that it moves to, if what is held there is wanted later or not at all.
    pub(super) fn roomier(
        &self,
        newcomer: &Newcomer,
        chosen: Option<u32>,
        next_use: impl Fn(u32) -> Option<u32>,
    ) -> Option<(Resident, u32)> {
        let next_use = |row| self.rules.next_use(row, &next_use);
        let wanted = next_use(newcomer.row)?;
        if !self.store.is_near() || self.moves.is_full() || self.is_silent || self.is_resizing {
            return None;
        }
        let writer = self.writer(newcomer.row);
        let own = || writer.candidates(newcomer.row).filter_map(resident);
        let stays = |mover: &Resident| next_use(mover.row).is_some_and(|next| next < MOVE_LOOKUPS);
        let latest = match chosen {
            Some(slot) => next_use(own().find(|own| own.slot == slot)?.row)?,
            None => wanted,
        };
        let movers = || {
            own()
                .filter(|mover| !stays(mover))
                .step_by(2 * WAYS / MOVERS)
        };
        let others = |mover: Resident| {
            let others = writer.elsewhere(mover.row, mover.slot);
            others.filter_map(resident)
        };
        let to = self
            .policy
            .victim(newcomer, movers().flat_map(others), next_use)?;
        let goes = |mover: Resident| others(mover).find(|other| other.slot == to);
        let (mover, gone) = movers().find_map(|mover| Some((mover, goes(mover)?)))?;
        let is_later = next_use(gone.row).is_none_or(|next| next > latest);
        is_later.then_some((mover, to))
    }
}

/// Whether a slot holds nothing.
pub(super) fn is_empty(candidate: &Candidate) -> bool {
    candidate.held == Held::Nothing
}

/// The row in a slot, if there is one.
pub(super) fn resident(candidate: Candidate) -> Option<Resident> {
    match candidate.held {
        Held::Row(row) => Some(Resident {
            slot: candidate.slot,
            row,
            word: Word::from_bits(candidate.meta),
        }),
        Held::Nothing | Held::Taken => None,
    }
}
