//! Which two sets a row may be in.

/// The odd number nearest to 2^64 divided by the golden ratio, as SplitMix64 counts.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// How rows are spread over sets, by a seed that clients don't know: without it nobody can name rows that are all of one set.
///
/// The sets of a shard follow one another. Both sets of a row are of one shard, and they differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// What is added to a row, and what it is multiplied by, in each round of the hash.
    rounds: [(u32, u32); 3],
    sets: u32,
    shards: u32,
    shard_sets: u32,
}

impl Spread {
    /// A spread over `shards` times `shard_sets` sets.
    ///
    /// # Panics
    /// If there is no shard, a shard has fewer than two sets, or sets can't be numbered with 32 bits.
    pub fn new(seed: u64, shards: u32, shard_sets: u32) -> Spread {
        assert!(
            shards > 0 && shard_sets > 1,
            "{shards} shards of {shard_sets} sets"
        );
        let sets = shards.checked_mul(shard_sets).expect("sets have numbers");
        let round = |counter| {
            let word = word(seed, counter);
            // Odd and large, so that both halves of a product have to do with all bits of the row.
            (word as u32, (word >> 32) as u32 | 0x8000_0001)
        };
        Spread {
            rounds: [1, 2, 3].map(round),
            sets,
            shards,
            shard_sets,
        }
    }

    /// The number of sets.
    pub fn sets(&self) -> u32 {
        self.sets
    }

    /// The number of sets of each shard.
    pub fn shard_sets(&self) -> u32 {
        self.shard_sets
    }

    /// The set in which a row is looked for first.
    #[inline(always)]
    pub fn primary(&self, row: u32) -> u32 {
        scaled(self.hash(row), self.sets)
    }

    /// The set in which a row is looked for where it is not in the first.
    #[inline(always)]
    pub fn secondary(&self, row: u32) -> u32 {
        let hash = self.hash(row);
        let primary = scaled(hash, self.sets);
        // The primary's: rounding down twice is rounding down once.
        let shard_start = scaled(hash, self.shards).wrapping_mul(self.shard_sets);
        // The row again, since rows of one hash would stay together otherwise.
        let other = round(round(row, self.rounds[2]) ^ hash, self.rounds[0]);
        let other = shard_start.wrapping_add(scaled(other, self.shard_sets.wrapping_sub(1)));
        // One less than all, and none twice: those from the primary on move up by one.
        other.wrapping_add(u32::from(other >= primary))
    }

    /// The shard of a row.
    pub fn shard(&self, row: u32) -> u32 {
        scaled(self.hash(row), self.shards)
    }

    /// Two rounds. One would leave rows that are evenly spaced evenly spaced, and with an unlucky seed on few sets.
    ///
    /// In words of 32 bits, of which vectors hold many and multiply them at once.
    #[inline(always)]
    fn hash(&self, row: u32) -> u32 {
        round(round(row, self.rounds[0]), self.rounds[1])
    }
}

/// The halves of a product, one upon the other.
#[inline(always)]
fn round(bits: u32, (add, factor): (u32, u32)) -> u32 {
    let product = u64::from(bits.wrapping_add(add)).wrapping_mul(u64::from(factor));
    product as u32 ^ (product >> 32) as u32
}

/// A number as one below `end`, evenly spread.
#[inline(always)]
fn scaled(bits: u32, end: u32) -> u32 {
    (u64::from(bits).wrapping_mul(u64::from(end)) >> 32) as u32
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
                assert_eq!(a / shard_sets, spread.shard(row));
                assert_eq!(b / shard_sets, spread.shard(row));
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
