//! Which two sets a row may be in, and what says which of the rows of a set it is.

/// The odd number nearest to 2^64 divided by the golden ratio, as SplitMix64 counts.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// How rows are spread over sets, by a seed that clients don't know: without it nobody can name rows that are all of one set.
///
/// The shards take turns: set number `n` is of shard `n` modulo their number. So all of them end together, and become larger or smaller at
/// one end. Within a shard rows lie in the order of their hashes, however many sets it has. Both sets of a row are of one shard, and
/// they differ.
///
/// The hash permutes the numbers that have as many bits as those of the table's rows. So the rows whose primary set is one have hashes that
/// follow one another, and the lowest bits of these, their *tags*, tell them apart, as long as there are no more of them than tags. The
/// secondary set is as far from the primary one as the tag says, so that it, too, has one row of a tag. (Quotienting: Knuth, The Art of
/// Computer Programming 3, 6.4, exercise 13; the other set by what is left of the row: Fan and others, "Cuckoo Filter: Practically Better Than
/// Bloom", CoNEXT 2014.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// What a row is multiplied by, and what is added, in each round of the hash.
    rounds: [(u32, u32); 3],
    /// The same for a tag.
    tag_rounds: [(u32, u64); 3],
    /// Bits of a hash: as many as those of the table's rows.
    bits: u32,
    shards: u32,
    shard_sets: u32,
}

/// Bits of a tag.
const TAG_BITS: u32 = 14;
/// Bits of a hash at least: with fewer there would be fewer rows than tags.
const LEAST_BITS: u32 = TAG_BITS + 1;

/// Rows have numbers below this.
pub const ROWS_END: u32 = 1 << 31;

impl Spread {
    /// A spread of the rows with numbers below `end` over `shards` times `shard_sets` sets.
    ///
    /// # Panics
    /// If there is no shard, a shard has fewer than two sets, or rows or sets can't be numbered.
    pub fn new(seed: u64, end: u32, shards: u32, shard_sets: u32) -> Spread {
        assert!(end <= ROWS_END, "{end} rows");
        // Odd and large, so that both halves of a product have to do with all bits of the row.
        let factor = |counter| (word(seed, counter) >> 32) as u32 | 0x8000_0001;
        let round = |counter| (factor(counter), word(seed, counter + 6));
        let spread = Spread {
            rounds: [1, 2, 3]
                .map(round)
                .map(|(factor, add)| (factor, add as u32)),
            tag_rounds: [4, 5, 6].map(round),
            bits: end.next_power_of_two().ilog2().max(LEAST_BITS),
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

    /// Rows with numbers below it have hashes of their own. Others have the hash of one of those, and only numbers tell them apart.
    #[inline(always)]
    pub fn end(&self) -> u32 {
        1 << self.bits
    }

    /// Whether tags tell all rows below the [end](Self::end) apart that may be in a set. Else they say only which rows it may be.
    pub fn is_exact(&self) -> bool {
        // A set has so many hashes, rounded up or down, of which each has so many bits.
        let tags = (1_u64 << TAG_BITS) - 1;
        u64::from(self.end()) <= u64::from(self.sets()) * tags
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
        let away = self.tag_rounds.into_iter().fold((hash & TAG).into(), round);
        // One less than all, and not none: it is another set.
        let away = scaled(away, self.shard_sets.wrapping_sub(1)).wrapping_add(1);
        let other = scaled(at, self.shard_sets).wrapping_add(away);
        let all = u64::from(self.shard_sets);
        let around = if other >= all { all } else { 0 };
        self.set(shard, other.wrapping_sub(around)) as u32
    }

    /// The tag of a row, of 14 bits.
    #[inline(always)]
    pub fn tag(&self, row: u32) -> u32 {
        self.hash(row) & TAG
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
    fn whereabouts(&self, hash: u32) -> (u64, u64) {
        let of_all = hash << (u32::BITS.wrapping_sub(self.bits));
        let product = u64::from(of_all).wrapping_mul(self.shards.into());
        (product >> 32, product & LOW)
    }

    /// Of a row or another number. With a round less some rows that are evenly spaced would be on few sets, with an unlucky seed.
    #[inline(always)]
    fn hash(&self, row: u32) -> u32 {
        let all = self.end().wrapping_sub(1);
        let folded = |bits: u32| bits ^ bits >> (self.bits / 2);
        // Numbers of so many bits are permuted each time: by their upper half upon the lower one, by an odd factor and by a sum.
        let round = |bits: u32, (factor, add): (u32, u32)| {
            folded(bits.wrapping_mul(factor).wrapping_add(add) & all)
        };
        self.rounds.into_iter().fold(folded(row & all), round)
    }
}

/// The bits of a hash that are the tag.
const TAG: u32 = (1 << TAG_BITS) - 1;

/// The lower half of a word.
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
            let spread = Spread::new(seed, ROWS_END, 4, SHARD_SETS);
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
            let spread = Spread::new(7, ROWS_END, shards, shard_sets);
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
            let spread = Spread::new(7, ROWS_END, shards, shard_sets);
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
        let spread = Spread::new(3, 1 << 24, 1, 1 << 10);
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
        let [one, other] = [1, 2].map(|seed| Spread::new(seed, ROWS_END, 1, 1000));
        let same = (0..10_000).filter(|&row| one.primary(row) == other.primary(row));
        assert!(same.count() < 100);
    }

    #[test]
    fn a_set_has_one_row_of_each_tag_where_tags_are_exact() {
        for (end, shards, shard_sets) in [
            (1, 1, 3),
            (1 << 15, 1, 3),
            (50_000, 3, 2),
            (1 << 17, 1, 9),
            (100_000, 4, 5),
            (1 << 20, 5, 13),
            (1 << 20, 4, 1000),
        ] {
            let spread = Spread::new(9, end, shards, shard_sets);
            assert!(spread.is_exact() && spread.end() >= end);
            let tags = 1 << TAG_BITS;
            for set_of in [Spread::primary, Spread::secondary] {
                let mut seen = vec![false; (spread.sets() * tags) as usize];
                for row in 0..spread.end() {
                    let tag = spread.tag(row);
                    assert!(tag < tags);
                    let seen = &mut seen[(set_of(&spread, row) * tags + tag) as usize];
                    assert!(!*seen, "row {row} of {end} over {shards} x {shard_sets}");
                    *seen = true;
                }
            }
            let fewer = spread.end() >> TAG_BITS;
            let few = Spread::new(9, end, 1, fewer.max(2));
            assert_eq!(few.is_exact(), fewer < 2, "{end}");
        }
    }

    #[test]
    fn sets_are_even_in_small_tables_too() {
        for seed in 0..50 {
            for end in [20_000, 1 << 16, 100_000] {
                let spread = Spread::new(seed, end, 2, 150);
                for step in [1, 2, 3, 16] {
                    for set_of in [Spread::primary, Spread::secondary] {
                        let mut loads = vec![0; spread.sets() as usize];
                        let rows = (0..end).step_by(step);
                        let count = rows.len();
                        rows.for_each(|row| loads[set_of(&spread, row) as usize] += 1);
                        let spread = dispersion(&loads, count);
                        assert!(spread < 2.0, "{spread} for {end} by {step}, seed {seed}");
                    }
                }
            }
        }
    }
}
