//! What all workers of a table tell one another of its lookups.

use core::array;
use core::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use super::ages::BANDS;
use super::reuses::Reuses;
use super::word::CLASSES;

/// How many lookups there were in a table, and which uses of cached rows were counted among them: a worker finds rows in all shards,
/// and who writes a shard has to know of it.
///
/// Each number is one for itself; of all orders in which changes are seen any will do.
#[derive(Debug)]
pub struct Usage {
    lookups: CachePadded<AtomicU64>,
    uses: [[AtomicU64; BANDS]; CLASSES],
    halved: AtomicU64,
}

impl Usage {
    /// None yet.
    #[expect(clippy::new_without_default, reason = "one way to make it is enough")]
    pub fn new() -> Usage {
        Usage {
            lookups: CachePadded::default(),
            uses: array::from_fn(|_| array::from_fn(|_| AtomicU64::new(0))),
            halved: AtomicU64::new(0),
        }
    }

    /// How many lookups there were that workers have told of.
    pub fn lookups(&self) -> u64 {
        self.lookups.load(Ordering::Relaxed)
    }

    /// At which tick counts of uses were halved last, or 0.
    pub(super) fn halved(&self) -> u64 {
        self.halved.load(Ordering::Relaxed)
    }

    /// Halves them at this tick, unless somebody has since they were `before`.
    pub(super) fn halve(&self, before: u64, ticks: u64) {
        // Who fails is told by `halved` of what was done instead.
        let _ = self
            .halved
            .compare_exchange(before, ticks, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Adds lookups, and uses of which each stands for so many; tells how many lookups there were.
    pub(super) fn add(&self, lookups: u64, reuses: &mut Reuses, each: u32) -> u64 {
        reuses.take(|class, band, count| {
            let uses = u64::from(count) * u64::from(each);
            self.uses[class][band].fetch_add(uses, Ordering::Relaxed);
        });
        self.lookups.fetch_add(lookups, Ordering::Relaxed) + lookups
    }

    /// Calls `learn` with the class, band and number of uses that are not in `known`, which has them then.
    pub(super) fn since(
        &self,
        known: &mut [[u64; BANDS]; CLASSES],
        mut learn: impl FnMut(usize, usize, u64),
    ) {
        for (class, (bands, known)) in self.uses.iter().zip(known).enumerate() {
            for (band, (uses, known)) in bands.iter().zip(known).enumerate() {
                let uses = uses.load(Ordering::Relaxed);
                if uses != *known {
                    learn(class, band, uses - *known);
                    *known = uses;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::word::{Tick, Word};
    use super::*;

    #[test]
    fn who_halves_later_finds_it_done() {
        let usage = Usage::new();
        for (before, at, expected) in [(0, 100, 100), (0, 105, 100), (100, 9_000, 9_000)] {
            usage.halve(before, at);
            assert_eq!(usage.halved(), expected);
        }
    }

    #[test]
    fn what_is_added_is_told_once_to_each() {
        let usage = Usage::new();
        let mut reuses = Reuses::new();
        let mut known = [[[0; BANDS]; CLASSES]; 2];
        let told = |known: &mut _| {
            let mut told = Vec::new();
            usage.since(known, |class, band, uses| told.push((class, band, uses)));
            told
        };
        let word = |class: u16| Word::of(class.into(), Tick::default());
        reuses.count(0, word(3), Tick::new(5));
        reuses.count(1, word(3), Tick::new(5));
        assert_eq!(usage.add(10, &mut reuses, 16), 10);
        assert_eq!(told(&mut known[0]), [(3, 4, 32)]);
        reuses.count(0, word(3), Tick::new(5));
        reuses.count(1, word(9), Tick::new(0));
        assert_eq!(usage.add(7, &mut reuses, 1), 17);
        assert_eq!(told(&mut known[0]), [(3, 4, 1), (9, 0, 1)]);
        assert_eq!(told(&mut known[1]), [(3, 4, 33), (9, 0, 1)]);
        assert_eq!(told(&mut known[1]), []);
        assert_eq!(usage.add(0, &mut reuses, 1), 17);
        assert_eq!(told(&mut known[0]), []);
    }
}
