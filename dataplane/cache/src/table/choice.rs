//! Which slot a row is to have that is about to be fetched, and which rows move for it.

use rowmill_policy::{Newcomer, Resident, Word};

use super::CachedTable;
use crate::store::{Candidate, Held, WAYS, Writer};

/// A row that is looked up within so many lookups doesn't move, since for a turn or two it could not be found.
const MOVE_LOOKUPS: u32 = 512;

/// Rows of those that a newcomer could replace that may move for it. Nearly each has 16 slots more to choose from, which takes half a
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

    /// A row to take the slot of instead, and the slot that it moves to: an empty one, or, where the chosen slot's row is known to be
    /// looked up, or none was chosen for a row that is, one whose row is wanted later or not at all.
    pub(super) fn roomier(
        &self,
        newcomer: &Newcomer,
        chosen: Option<u32>,
        next_use: impl Fn(u32) -> Option<u32>,
    ) -> Option<(Resident, u32)> {
        if self.moves.is_full() || self.is_silent || self.is_resizing {
            return None;
        }
        let next_use = |row| self.rules.next_use(row, &next_use);
        let writer = self.writer(newcomer.row);
        let own = || writer.candidates(newcomer.row);
        let stays = |mover: &Resident| next_use(mover.row).is_some_and(|next| next < MOVE_LOOKUPS);
        let movers = || own().filter_map(resident).filter(|mover| !stays(mover));
        let others = |mover: Resident| writer.elsewhere(mover.row, mover.slot);
        if !self.is_full(writer) {
            if own().any(|slot| is_empty(&slot)) {
                return None;
            }
            let to = |mover| Some((mover, others(mover).find(is_empty)?.slot));
            if let Some(found) = movers().find_map(to) {
                return Some(found);
            }
        }
        // What it gains where tags are far away, and each set is some lines from memory, was not tried.
        if !self.store.is_near() {
            return None;
        }
        let movers = || movers().step_by(2 * WAYS / MOVERS);
        let wanted = next_use(newcomer.row)?;
        let latest = match chosen {
            Some(slot) => next_use(own().filter_map(resident).find(|own| own.slot == slot)?.row)?,
            None => wanted,
        };
        let others = |mover| others(mover).filter_map(resident);
        let to = self
            .policy
            .victim(newcomer, movers().flat_map(others), next_use)?;
        let goes = |mover: Resident| others(mover).find(|other| other.slot == to);
        let (mover, gone) = movers().find_map(|mover| Some((mover, goes(mover)?)))?;
        let is_later = next_use(gone.row).is_none_or(|next| next > latest);
        is_later.then_some((mover, to))
    }

    /// Whether a writer's shard has no empty slot, as far as that is told by its counts.
    fn is_full(&self, writer: &Writer) -> bool {
        let counts = writer.counts();
        counts.rows + counts.tickets + counts.limbo >= self.shard_sets * WAYS as u32
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

#[cfg(test)]
mod tests {
    use rowmill_arena::HugePages;

    use super::*;
    use crate::store::{Epochs, Shape, Store, Tags};

    /// How many rows a table has after as many were offered to it as it has slots.
    fn held(slots: u32) -> u32 {
        let (epochs, mut workers) = Epochs::new(1);
        let shape = Shape::new(slots, 1, 4, 4).unwrap();
        let (store, writers) =
            Store::new(shape, 1, 4, &epochs, Tags::detect(), HugePages::Off).unwrap();
        let mut table = CachedTable::new(0, store, writers, 1);
        for row in 0..slots {
            let taken = table.begin(row, None, |_| None);
            for _ in 0..2 {
                workers[0].pass();
                table.advance();
            }
            if let Ok(taken) = taken {
                table.publish(taken, &row.to_le_bytes());
            }
        }
        let mut bytes = [0; 4];
        let held = (0..slots).filter(|&row| table.read(row, &mut bytes));
        held.count() as u32
    }

    #[test]
    fn nobody_has_to_go_while_there_are_empty_slots() {
        // A row that may be in two full sets is put into the place of one that may be elsewhere, unless that is full for all of them. The
        // second table's tags are far away.
        for (slots, lost) in [(1 << 10, 8), (1 << 17, 1 << 10)] {
            let held = held(slots);
            assert!(held >= slots - lost, "{held} of {slots}");
        }
    }
}
