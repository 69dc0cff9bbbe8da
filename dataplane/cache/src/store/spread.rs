//! Which two sets a row may be in.

/// The odd number nearest to 2^64 divided by the golden ratio, as SplitMix64 counts.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// How rows are spread over sets, by a seed that clients don't know: without it nobody can name rows that are all of one set.
///
/// The sets of a shard follow one another. Both sets of a row are of one shard, and they differ.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// Four words that follow from the seed; those that multiply are odd.
    words: [u64; 4],
    sets: u32,
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
        let [first, between, second, third] = [1, 2, 3, 4].map(|counter| word(seed, counter));
        Spread {
            words: [first | 1, between, second | 1, third | 1],
            sets,
            shard_sets,
        }
    }

    /// The number of sets.
    pub fn sets(&self) -> u32 {
        self.sets
    }

    /// The set in which a row is looked for first.
    ///
    /// Its bits are those of a product of 128 bits folded: multiplying alone would leave rows that are evenly spaced evenly
    /// spaced, and with an unlucky seed on few sets.
    #[inline(always)]
    pub fn primary(&self, row: u32) -> u32 {
        scaled(self.hash(row) >> 32, self.sets)
    }

    /// The set in which a row is looked for where it is not in the first.
    #[inline(always)]
    pub fn secondary(&self, row: u32) -> u32 {
        let hash = self.hash(row);
        let primary = scaled(hash >> 32, self.sets);
        let shard_start = primary - primary % self.shard_sets;
        let other = fold(hash, self.words[3]) >> 32;
        let other = shard_start + scaled(other, self.shard_sets - 1);
        // One less than all, and none twice: those from the primary on move up by one.
        other + u32::from(other >= primary)
    }

    /// The shard of a row.
    pub fn shard(&self, row: u32) -> u32 {
        self.primary(row) / self.shard_sets
    }

    #[inline(always)]
    fn hash(&self, row: u32) -> u64 {
        let [first, between, second, _] = self.words;
        fold(u64::from(row).wrapping_mul(first) ^ between, second)
    }
}

/// The halves of the product, one upon the other.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// A number of 32 bits as one below `end`, evenly spread.
#[inline(always)]
fn scaled(bits: u64, end: u32) -> u32 {
    ((bits * u64::from(end)) >> 32) as u32
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
                        spread < 1.2,
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
