//! A cache in small: the dataplane's policy over a few sets, without rows.

use rowmill_arena::prefetch_line;
use rowmill_policy::{Draw, Policy, Resident, Reuses, Usage, Word};

use crate::hash::{hash, scaled};

/// Slots of a set, as many as the dataplane's store has.
const WAYS: u32 = 16;
/// A slot without a row.
const FREE: u32 = u32::MAX;

/// Rows in two sets of 16 slots each, replaced by the dataplane's policy, one lookup after the other.
///
/// With a sample of one row in n it has the hits of a cache n times as large with all rows, as far as the sample is like the whole
/// (miniature simulation: Waldspurger, Saemundsson, Ahmad and Park, ATC 2017).
#[derive(Debug)]
pub struct Miniature {
    seed: u64,
    policy: Policy,
    rows: Box<[u32]>,
    words: Box<[Word]>,
    usage: Usage,
    reuses: Reuses,
    draw: Draw,
    lookups: usize,
}

impl Miniature {
    /// The fewest slots that one can have: two sets.
    pub const SLOTS_MIN: u32 = 2 * WAYS;

    /// An empty one. Slots are whole sets; the same seed and lookups have the same results.
    ///
    /// # Panics
    /// If there are fewer than [`SLOTS_MIN`](Self::SLOTS_MIN).
    pub fn new(slots: u32, seed: u64) -> Miniature {
        assert!(slots >= Self::SLOTS_MIN, "{slots} slots");
        let slots = slots / WAYS * WAYS;
        let policy = Policy::new(slots, slots, seed);
        let word = Word::new(policy.now());
        Miniature {
            seed,
            policy,
            rows: vec![FREE; slots as usize].into_boxed_slice(),
            words: vec![word; slots as usize].into_boxed_slice(),
            usage: Usage::new(),
            reuses: Reuses::new(),
            draw: Draw::new(!seed),
            lookups: 0,
        }
    }

    /// How many rows it holds at most.
    pub fn slots(&self) -> u32 {
        self.rows.len() as u32
    }

    /// Asks for what [`access`](Self::access) reads of a row to be on its way: lines that nothing has touched since the row was looked up last, as a rule.
    pub fn prefetch(&self, row: u32) {
        self.policy.prefetch(row);
        for set in self.sets_of(row) {
            // Sets begin anywhere in a line.
            for slot in [set * WAYS, set * WAYS + WAYS - 1] {
                prefetch_line(&self.rows[slot as usize]);
                prefetch_line(&self.words[slot as usize]);
            }
        }
    }

    /// Looks a row up, and takes it in if the policy would. Tells whether it was there.
    pub fn access(&mut self, row: u32) -> bool {
        let hit = self.slots_of(row).find(|&slot| self.rows[slot] == row);
        self.lookups = self.lookups.wrapping_add(1);
        if let Some(slot) = hit {
            let (now, ago) = (self.policy.now(), self.policy.halved_ago());
            let word = self.words[slot].halved(now, ago);
            self.reuses.count(self.lookups, word, now);
            self.words[slot] = word.touched(now, &mut self.draw);
        }
        let (rows, words) = (&self.rows, &self.words);
        let of_set = |set: u32| {
            let slots = (set * WAYS) as usize..((set + 1) * WAYS) as usize;
            let held = rows[slots.clone()].iter().zip(&words[slots]);
            held.filter(|(row, _)| **row != FREE).map(|(_, &word)| word)
        };
        self.policy
            .advance(1, &mut self.reuses, 1, &self.usage, of_set);
        if hit.is_none() {
            self.admit(row);
        }
        hit.is_some()
    }

    fn admit(&mut self, row: u32) {
        let newcomer = self.policy.newcomer(row, true);
        let free = self.slots_of(row).find(|&slot| self.rows[slot] == FREE);
        let residents = self.slots_of(row).map(|slot| Resident {
            slot: slot as u32,
            row: self.rows[slot],
            word: self.words[slot],
        });
        let Some(slot) = free.or_else(|| {
            let victim = self.policy.victim(&newcomer, residents, |_| None);
            victim.map(|slot| slot as usize)
        }) else {
            self.policy.refused(newcomer);
            return;
        };
        if self.rows[slot] != FREE {
            self.policy.evicted(self.rows[slot], self.words[slot]);
        }
        (self.rows[slot], self.words[slot]) = (row, newcomer.word);
    }

    /// The two sets that a row may be in.
    fn sets_of(&self, row: u32) -> [u32; 2] {
        let (hash, sets) = (hash(self.seed, row), self.slots() / WAYS);
        let first = scaled(hash as u32, sets);
        let other = scaled((hash >> 32) as u32, sets - 1);
        let second = other + u32::from(other >= first);
        [first, second]
    }

    /// The slots that a row may be in.
    fn slots_of(&self, row: u32) -> impl Iterator<Item = usize> + use<> {
        let slots = |set: u32| (set * WAYS) as usize..((set + 1) * WAYS) as usize;
        let [first, second] = self.sets_of(row);
        slots(first).chain(slots(second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_fit_stay_and_come_once() {
        let mut cache = Miniature::new(100, 3);
        assert_eq!(cache.slots(), 96);
        // Half of its slots: sets are filled unevenly, but each row has two of them.
        for round in 0..20 {
            for row in 0..48 {
                assert_eq!(cache.access(row), round > 0, "row {row} in round {round}");
            }
        }
    }

    #[test]
    fn rows_used_often_stay_where_others_pass() {
        let mut cache = Miniature::new(64, 3);
        let (mut hits, mut random) = (0, fastrand::Rng::with_seed(1));
        for i in 0..100_000u32 {
            if i % 2 == 0 {
                hits += u32::from(cache.access(random.u32(0..32)));
            } else {
                cache.access(1000 + i);
            }
        }
        assert!(hits > 48_000, "{hits} of 50,000");
    }

    #[test]
    fn what_is_popular_is_known_after_thousands_of_turnovers() {
        let mut cache = Miniature::new(256, 3);
        let mut random = fastrand::Rng::with_seed(7);
        // Popularity by Zipf's law. Without halving it was 1,500 and more hits less.
        let mut hits = |lookups: u32| {
            let row = |random: &mut fastrand::Rng| 20_000f64.powf(random.f64()) as u32;
            let hits = (0..lookups).filter(|_| cache.access(row(&mut random)));
            hits.count()
        };
        hits(100_000);
        let early = hits(100_000);
        hits(2_000_000);
        let late = hits(100_000);
        assert!(late + 500 > early, "{late} late, {early} early");
    }

    #[test]
    fn the_same_has_the_same_results() {
        let run = || {
            let mut cache = Miniature::new(128, 9);
            let mut random = fastrand::Rng::with_seed(2);
            let hits = (0..20_000).map(|_| cache.access(random.u32(0..random.clone().u32(1..500))));
            hits.collect::<Vec<bool>>()
        };
        assert_eq!(run(), run());
    }
}
