//! Which two sets a row may be in.

/// The odd number nearest to 2^64 divided by the golden ratio, as SplitMix64 counts.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// How rows are spread over sets, by a seed that clients don't know: without it nobody can name rows that are all of one set.
///
/// The shards take turns: set number `n` is of shard `n` modulo their number. So all of them end together, and become larger or smaller at
/// one end. Within a shard rows lie in the order of their hashes, however many sets it has. Both sets of a row are of one shard, and
/// they differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// What a row is multiplied by, and what is added, in each round of the hash.
    rounds: [(u32, u64); 3],
    shards: u32,
    shard_sets: u32,
}

impl Spread {
    /// A spread over `shards` times `shard_sets` sets.
    ///
    /// # Panics
    /// If there is no shard, a shard has fewer than two sets, or sets can't be numbered with 32 bits.
    pub fn new(seed: u64, shards: u32, shard_sets: u32) -> Spread {
        // Odd and large, so that both halves of a product have to do with all bits of the row.
        let factor = |counter| (word(seed, counter) >> 32) as u32 | 0x8000_0001;
        let round = |counter| (factor(counter), word(seed, counter + 3));
        let spread = Spread {
            rounds: [1, 2, 3].map(round),
            shards,
            shard_sets: 2,
        };
        spread.over(shard_sets)
    }

    /// The same over another number of sets. Rows keep their shards.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn over(self, shard_sets: u32) -> Spread {
        let shards = self.shards;
        assert!(
            shards > 0 && shard_sets > 1,
            "{shards} shards of {shard_sets} sets"
        );
        shards.checked_mul(shard_sets).expect("sets have numbers");
        Spread { shard_sets, ..self }
    }

    /// Whether rows are of the same shards as in another.
    pub fn shards_as(&self, other: &Spread) -> bool {
        *self == other.over(self.shard_sets)
    }

    /// The number of sets.
    pub fn sets(&self) -> u32 {
        self.shards * self.shard_sets
    }

    /// The number of shards.
    pub fn shards(&self) -> u32 {
        self.shards
    }

    /// The number of sets of each shard.
    pub fn shard_sets(&self) -> u32 {
        self.shard_sets
    }

    /// The set in which a row is looked for first.
    #[inline(always)]
    pub fn primary(&self, row: u32) -> u32 {
        let (shard, at) = self.whereabouts(self.hash(row));
        self.set(shard, scaled(at, self.shard_sets)) as u32
    }

    /// The set in which a row is looked for where it is not in the first.
    #[inline(always)]
    pub fn secondary(&self, row: u32) -> u32 {
        let hash = self.hash(row);
        let (shard, at) = self.whereabouts(hash);
        let primary = scaled(at, self.shard_sets);
        // The row again, since rows of one hash would stay together otherwise.
        let other = round(round(row.into(), self.rounds[2]) ^ hash, self.rounds[0]);
        let other = scaled(other, self.shard_sets.wrapping_sub(1));
        // One less than all, and none twice: those from the primary on move up by one.
        let other = other.wrapping_add(u64::from(other >= primary));
        self.set(shard, other) as u32
    }

    /// The shard of a row.
    pub fn shard(&self, row: u32) -> u32 {
        self.whereabouts(self.hash(row)).0 as u32
    }

    /// Where a row is among those of its shard, of 2^32, evenly; the same however many sets there are.
    pub fn place(&self, row: u32) -> u32 {
        self.whereabouts(self.hash(row)).1 as u32
    }

    /// The number below which the primary sets of all rows are whose places are below a threshold.
    pub(super) fn below(&self, threshold: u32) -> u32 {
        let last = threshold.checked_sub(1);
        // Shards take turns, so that the first sets of all shards come before the others.
        last.map_or(0, |last| {
            (scaled(last.into(), self.shard_sets) as u32 + 1) * self.shards
        })
    }

    /// A set by its number among those of a shard.
    #[inline(always)]
    pub(super) fn set(&self, shard: u64, number: u64) -> u64 {
        number.wrapping_mul(self.shards.into()).wrapping_add(shard)
    }

    /// The shard of a hash, and where in the shard it is, of 2^32.
    #[inline(always)]
    fn whereabouts(&self, hash: u64) -> (u64, u64) {
        let product = (hash & LOW).wrapping_mul(self.shards.into());
        (product >> 32, product & LOW)
    }

    /// Two rounds, of which the lower half counts. One would leave rows that are evenly spaced evenly spaced, and with an unlucky seed on
    /// few sets.
    #[inline(always)]
    fn hash(&self, row: u32) -> u64 {
        round(round(row.into(), self.rounds[0]), self.rounds[1])
    }
}

/// The lower half of a word. All of the hash is done in words of 64 bits, which is what vectors multiply at once: making words of 32 bits of
/// them between, and back, was two instructions of five.
const LOW: u64 = u32::MAX as u64;

/// The halves of a sum, one upon the other, of which the lower half counts.
#[inline(always)]
fn round(bits: u64, (factor, add): (u32, u64)) -> u64 {
    let sum = (bits & LOW).wrapping_mul(factor.into()).wrapping_add(add);
    sum ^ sum >> 32
}

/// A number of 32 bits as one below `end`, evenly spread.
#[inline(always)]
fn scaled(bits: u64, end: u32) -> u64 {
    (bits & LOW).wrapping_mul(end.into()) >> 32
}

/// Word number `counter` of a seed: SplitMix64's output function.
fn word(seed: u64, counter: u64) -> u64 {
    let mut bits = seed.wrapping_add(counter.wrapping_mul(GOLDEN));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows that somebody might ask for: one behind the other, evenly spaced, and with few bits that differ.
    fn patterns(count: u32) -> Vec<Vec<u32>> {
        let mut patterns: Vec<Vec<u32>> = [1, 2, 3, 16, 1000, 4096, 12_345, 1 << 14]
            .into_iter()
            .map(|step: u32| (0..count).map(|i| i * step).collect())
            .collect();
        let spaced = |i: u32| (i & 0xff) | (i >> 8) << 20;
        patterns.push((0..count).map(spaced).collect());
        patterns
    }

    /// The mean square of how far sets are from the mean, which for rows that are thrown at random is the mean itself.
    fn dispersion(loads: &[u32], rows: usize) -> f64 {
        let mean = rows as f64 / loads.len() as f64;
        let squares = loads.iter().map(|&load| (f64::from(load) - mean).powi(2));
        squares.sum::<f64>() / loads.len() as f64 / mean
    }

    #[test]
    fn sets_are_even_whatever_the_rows_and_the_seed() {
        const SHARD_SETS: u32 = 999;
        for seed in 0..50 {
            let spread = Spread::new(seed, 4, SHARD_SETS);
            for (number, rows) in patterns(1 << 16).into_iter().enumerate() {
                for (which, set_of) in [Spread::primary, Spread::secondary].into_iter().enumerate()
                {
                    let mut loads = vec![0; spread.sets() as usize];
                    for &row in &rows {
                        loads[set_of(&spread, row) as usize] += 1;
                    }
                    let spread = dispersion(&loads, rows.len());
                    assert!(
                        spread < 1.15,
                        "{spread} for pattern {number}, seed {seed}, choice {which}"
                    );
                }
            }
        }
    }

    #[test]
    fn both_sets_are_of_the_shard_and_differ() {
        for (shards, shard_sets) in [(1, 2), (3, 2), (4, 999), (7, 1 << 20)] {
            let spread = Spread::new(7, shards, shard_sets);
            for row in (0..1 << 31).step_by(1_234_567) {
                let [a, b] = [spread.primary(row), spread.secondary(row)];
                assert_ne!(a, b, "row {row}");
                assert!(a < spread.sets() && b < spread.sets());
                assert_eq!(a % shards, spread.shard(row));
                assert_eq!(b % shards, spread.shard(row));
            }
        }
    }

    #[test]
    fn rows_below_a_threshold_are_in_the_first_sets_of_their_shards() {
        for (shards, shard_sets) in [(1, 2), (3, 7), (4, 999)] {
            let spread = Spread::new(7, shards, shard_sets);
            assert_eq!(spread.below(0), 0);
            assert_eq!(spread.below(u32::MAX), spread.sets());
            for threshold in [1, 1 << 20, 1 << 28, 1 << 31] {
                let below = spread.below(threshold);
                let drawn = (0..20_000).filter(|&row| spread.place(row) < threshold);
                let drawn: Vec<u32> = drawn.collect();
                let part = drawn.len() as f64 / 20_000.0 - f64::from(threshold) / 2_f64.powi(32);
                assert!(part.abs() < 0.02, "{threshold}: {part}");
                assert!(drawn.iter().all(|&row| spread.primary(row) < below));
                // Not many more than needed.
                let sets = f64::from(below - shards) / f64::from(spread.sets());
                assert!(sets <= f64::from(threshold) / 2_f64.powi(32));
            }
        }
    }

    #[test]
    fn rows_of_one_set_part_in_their_secondary() {
        let spread = Spread::new(3, 1, 1 << 10);
        let of_one = (0..1 << 20).filter(|&row| spread.primary(row) == 5);
        let mut loads = vec![0; 1 << 10];
        let mut rows = 0;
        for row in of_one {
            loads[spread.secondary(row) as usize] += 1;
            rows += 1;
        }
        assert!(rows > 500, "{rows}");
        assert!(loads.iter().max() < Some(&12), "{loads:?}");
    }

    #[test]
    fn another_seed_gives_other_sets() {
        let [one, other] = [1, 2].map(|seed| Spread::new(seed, 1, 1000));
        let same = (0..10_000).filter(|&row| one.primary(row) == other.primary(row));
        assert!(same.count() < 100);
    }
}
