//! How many sets a store has, and which sets a row may be in while that changes.
//!
//! A row's place in the order of its shard is the same whatever the number of sets ([`Spread`]). So each writer goes once through the sets
//! of its shard as they were, from the last on where there are to be more, from the first on where there are to be fewer, and moves the
//! rows that belong elsewhere. How far it has come is its *frontier*: a row that was in a set which was passed is in the set that it has
//! by the new number, each other one in the set that it has by the old. That goes for both sets of a row, each for itself.
//!
//! Readers load the number of sets before and after once in a lookup, and frontiers as they go. An old frontier may lead to a set that a
//! row has left, or a new one to a set where it has not been seen to come: then it is missed. What is found has the row's number, wherever
//! that stands (`agree.rs`).

use crossbeam_utils::CachePadded;

use super::spread::{Lanes, Spread};
use super::sync::{AtomicU64, Ordering};

/// Which two sets a row may be in.
pub(super) trait Sets: Copy {
    /// Sets have numbers below it.
    fn end(&self) -> u32;
    /// What is looked for in the primary set of a row, and in its secondary one.
    fn primary_key(&self, row: u32) -> u32;
    fn secondary_key(&self, row: u32) -> u32;
    /// The set in which a row is looked for first.
    fn primary(&self, row: u32) -> u32;
    /// The set in which it is looked for then, which may be the same.
    fn secondary(&self, row: u32) -> u32;
    /// The primary sets of rows, and what is looked for there.
    #[inline(always)]
    fn primaries(&self, rows: &Lanes) -> (Lanes, Lanes) {
        let set_of = |row| self.primary(row);
        (rows.map(set_of), rows.map(|row| self.primary_key(row)))
    }
    /// The number below which the primary sets of all rows are whose places are below a threshold.
    fn below(&self, threshold: u32) -> u32;
    /// The place of a row, see [`Spread::place`].
    fn place(&self, row: u32) -> u32;
}

impl Sets for Spread {
    fn end(&self) -> u32 {
        self.sets()
    }

    #[inline(always)]
    fn primary_key(&self, row: u32) -> u32 {
        Spread::primary_key(self, row)
    }

    #[inline(always)]
    fn secondary_key(&self, row: u32) -> u32 {
        Spread::secondary_key(self, row)
    }

    #[inline(always)]
    fn primaries(&self, rows: &Lanes) -> (Lanes, Lanes) {
        Spread::primaries(self, rows)
    }

    #[inline(always)]
    fn primary(&self, row: u32) -> u32 {
        Spread::primary(self, row)
    }

    #[inline(always)]
    fn secondary(&self, row: u32) -> u32 {
        Spread::secondary(self, row)
    }

    fn below(&self, threshold: u32) -> u32 {
        Spread::below(self, threshold)
    }

    fn place(&self, row: u32) -> u32 {
        Spread::place(self, row)
    }
}

/// From one number of sets to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub(super) old: Spread,
    pub(super) new: Spread,
}

impl Change {
    /// Whether there are to be more.
    pub(super) fn grows(&self) -> bool {
        self.new.shard_sets() > self.old.shard_sets()
    }

    /// The frontier of a shard of which nothing was passed, and of one that was passed whole.
    pub(super) fn ends(&self) -> (u32, u32) {
        let sets = self.old.shard_sets();
        if self.grows() { (sets, 0) } else { (0, sets) }
    }

    /// Whether a set was passed, by its number among the shard's as they were.
    fn is_passed(&self, number: u32, frontier: u32) -> bool {
        (number < frontier) != self.grows()
    }

    /// Both sets of a row of a shard that has come so far.
    pub(super) fn sets_of(&self, row: u32, frontier: u32) -> [u32; 2] {
        [Spread::primary, Spread::secondary].map(|set_of| self.set(set_of, row, frontier))
    }

    fn set(&self, set_of: impl Fn(&Spread, u32) -> u32, row: u32, frontier: u32) -> u32 {
        let set = set_of(&self.old, row);
        if self.is_passed(set / self.old.shards(), frontier) {
            set_of(&self.new, row)
        } else {
            set
        }
    }
}

/// A change that is under way, as readers see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moving<'e> {
    change: Change,
    frontiers: &'e [CachePadded<AtomicU64>],
}

impl Moving<'_> {
    fn set(&self, set_of: impl Fn(&Spread, u32) -> u32, row: u32) -> u32 {
        let shard = self.change.old.shard(row);
        // Relaxed, since nothing depends on it but where is looked.
        let frontier = self.frontiers[shard as usize].load(Ordering::Relaxed);
        self.change.set(set_of, row, frontier as u32)
    }
}

impl Sets for Moving<'_> {
    fn end(&self) -> u32 {
        self.change.old.sets().max(self.change.new.sets())
    }

    fn primary_key(&self, row: u32) -> u32 {
        self.change.old.primary_key(row)
    }

    fn secondary_key(&self, row: u32) -> u32 {
        self.change.old.secondary_key(row)
    }

    fn primary(&self, row: u32) -> u32 {
        self.set(Spread::primary, row)
    }

    fn secondary(&self, row: u32) -> u32 {
        self.set(Spread::secondary, row)
    }

    fn below(&self, threshold: u32) -> u32 {
        let Change { old, new } = self.change;
        old.below(threshold).max(new.below(threshold))
    }

    fn place(&self, row: u32) -> u32 {
        self.change.old.place(row)
    }
}

/// The sets that there are now.
#[derive(Clone, Copy, Debug)]
pub(super) enum View<'e> {
    Still(Spread),
    Moving(Moving<'e>),
}

/// The number of a store's sets, shared by all.
#[derive(Debug)]
pub(super) struct Extent {
    /// Of a shard, before and after: the upper and the lower half. They are the same while nothing changes.
    sets: CachePadded<AtomicU64>,
    /// By shard.
    frontiers: Box<[CachePadded<AtomicU64>]>,
    /// Shards that have not come to the end.
    left: AtomicU64,
    /// Whether there may be rows that the spread has no hashes of their own for.
    has_beyond: AtomicU64,
}

impl Extent {
    /// As many sets as a spread has.
    pub(super) fn new(spread: &Spread) -> Extent {
        let sets = spread.shard_sets();
        let frontier = |_| CachePadded::new(AtomicU64::new(0));
        Extent {
            sets: CachePadded::new(AtomicU64::new(both(sets, sets))),
            frontiers: (0..spread.shards()).map(frontier).collect(),
            left: AtomicU64::new(0),
            has_beyond: AtomicU64::new(0),
        }
    }

    /// A writer is about to let a row be found, by a store that releases. (Another generation's table may have more rows than the one for
    /// which the spread was made.)
    pub(super) fn note(&self, row: u32, spread: &Spread) {
        if row >= spread.end() {
            self.has_beyond.store(1, Ordering::Relaxed);
        }
    }

    /// Whether a lookup can trust tags: of rows below `end`, who has found any of them, with an acquire fence behind.
    pub(super) fn is_exact(&self, spread: &Spread, end: u32) -> bool {
        spread.is_exact() && end <= spread.end() && self.has_beyond.load(Ordering::Relaxed) == 0
    }

    /// The sets that there are, for a lookup of a turn. They have memory while the turn lasts.
    #[inline]
    pub(super) fn view(&self, spread: &Spread) -> View<'_> {
        // Acquire: tags of sets that are new were made empty before.
        let sets = self.sets.load(Ordering::Acquire);
        let (old, new) = ((sets >> 32) as u32, sets as u32);
        if old == new {
            return View::Still(spread.over(new));
        }
        let change = Change {
            old: spread.over(old),
            new: spread.over(new),
        };
        let frontiers = &self.frontiers;
        View::Moving(Moving { change, frontiers })
    }

    /// The number of sets of a shard, before and after.
    pub(super) fn shard_sets(&self) -> (u32, u32) {
        let sets = self.sets.load(Ordering::Acquire);
        ((sets >> 32) as u32, sets as u32)
    }

    /// Begins a change, for which there is memory, with empty tags. No reader knows of an earlier one.
    pub(super) fn begin(&self, change: &Change) {
        let (first, _) = change.ends();
        for frontier in &self.frontiers {
            frontier.store(first.into(), Ordering::Relaxed);
        }
        let (old, new) = (change.old.shard_sets(), change.new.shard_sets());
        self.left
            .store(self.frontiers.len() as u64, Ordering::Relaxed);
        self.sets.store(both(old, new), Ordering::Release);
    }

    /// A writer has come so far.
    pub(super) fn pass(&self, shard: u32, frontier: u32) {
        self.frontiers[shard as usize].store(frontier.into(), Ordering::Relaxed);
    }

    /// A writer has come to the end, and its shard has nothing in sets that are to go. With the last one the change is done.
    pub(super) fn end(&self) {
        // Both: who ends the change has seen what all writers did before.
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let (_, new) = self.shard_sets();
            self.sets.store(both(new, new), Ordering::Release);
        }
    }
}

fn both(old: u32, new: u32) -> u64 {
    u64::from(old) << 32 | u64::from(new)
}

#[cfg(test)]
mod tests {
    use super::super::key::Width;
    use super::*;

    #[test]
    fn each_set_of_a_row_changes_when_its_former_set_is_passed() {
        for (old, new, width) in [
            (9, 20, Width::Two),
            (20, 9, Width::One),
            (8, 9, Width::One),
            (9, 8, Width::Two),
        ] {
            let spread = Spread::new(5, 1 << 20, 3, old, width);
            let change = Change {
                old: spread,
                new: spread.over(new),
            };
            let (first, last) = change.ends();
            for row in 0..2000 {
                let sets = |spread: &Spread| [spread.primary(row), spread.secondary(row)];
                assert_eq!(change.sets_of(row, first), sets(&change.old));
                assert_eq!(change.sets_of(row, last), sets(&change.new));
                for frontier in 0..=old {
                    let now = change.sets_of(row, frontier);
                    for (now, (was, will)) in now
                        .into_iter()
                        .zip(sets(&change.old).into_iter().zip(sets(&change.new)))
                    {
                        let passed = if new > old {
                            was / 3 >= frontier
                        } else {
                            was / 3 < frontier
                        };
                        assert_eq!(now, if passed { will } else { was });
                        assert_eq!(now % 3, spread.shard(row));
                    }
                }
            }
        }
    }
}
