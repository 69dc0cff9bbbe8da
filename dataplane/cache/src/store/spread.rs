//! Which two sets a row may be in, and what says which of the rows of a set it is.

use super::key::{Keys, Width};

/// The odd number nearest to 2^64 divided by the golden ratio, as SplitMix64 counts.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// How rows are spread over sets, by a seed that clients don't know: without it nobody can name rows that are all of one set.
///
/// The shards take turns: set number `n` is of shard `n` modulo their number. So all of them end together, and become larger or smaller at
/// one end. Within a shard rows lie in the order of their hashes, however many sets it has. Both sets of a row are of one shard, and
/// they differ, but for rows that have one only (see below).
///
/// The hash permutes the numbers that have as many bits as those of the table's rows. So the rows whose primary set is one have hashes that
/// follow one another, and the lowest bits of these, their *tags*, tell them apart, as long as there are no more of them than tags. The
/// secondary set is as far from the primary one as the tag says, so that it, too, has one row of a tag. (Quotienting: Knuth, The Art of
/// Computer Programming 3, 6.4, exercise 13; the other set by what is left of the row: Fan and others, "Cuckoo Filter: Practically Better Than
/// Bloom", CoNEXT 2014.) Where tags have one byte a row of tag 0 has no other set, since what would say so says that there is no row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// What a row is multiplied by, and what is added, in each round of the hash.
    rounds: [(u32, u32); 3],
    /// The same for a tag.
    tag_rounds: [(u32, u64); 3],
    /// Bits of a hash: as many as those of the table's rows.
    bits: u32,
    keys: Keys,
    shards: u32,
    shard_sets: u32,
}

/// Rows have numbers below this.
pub const ROWS_END: u32 = 1 << 31;

impl Spread {
    /// A spread of the rows with numbers below `end` over `shards` times `shard_sets` sets, with tags of such a width.
    ///
    /// # Panics
    /// If there is no shard, a shard has fewer than two sets, or rows or sets can't be numbered.
    pub fn new(seed: u64, end: u32, shards: u32, shard_sets: u32, width: Width) -> Spread {
        assert!(end <= ROWS_END, "{end} rows");
        // Odd and large, so that both halves of a product have to do with all bits of the row.
        let factor = |counter| (word(seed, counter) >> 32) as u32 | 0x8000_0001;
        let round = |counter| (factor(counter), word(seed, counter + 6));
        let spread = Spread {
            rounds: [1, 2, 3]
                .map(round)
                .map(|(factor, add)| (factor, add as u32)),
            tag_rounds: [4, 5, 6].map(round),
            bits: width.hash_bits(end),
            keys: width.keys(),
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
        self.keys.are_exact(self.bits, self.sets())
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
        self.set(shard, scaled(at, self.shard_sets))
    }

    /// The primary sets of some rows, and what is looked for there.
    #[inline(always)]
    pub(super) fn primaries(&self, rows: &Lanes) -> (Lanes, Lanes) {
        let hashes = rows.map(|row| self.hash(row));
        let keys = hashes.map(|hash| self.keys.primary(self.tag_of(hash)));
        // Two to a word, of which products have 64 bits: a vector of words that are half as long would have to be taken apart and put together.
        let (shards, shard_sets) = (u64::from(self.shards), u64::from(self.shard_sets));
        let set_of = |hash: u64| {
            let place = hash.wrapping_mul(shards);
            let number = (place & LOW).wrapping_mul(shard_sets) >> 32;
            number.wrapping_mul(shards).wrapping_add(place >> 32)
        };
        let mut pairs: [u64; LANES / 2] = bytemuck::cast(hashes);
        for pair in &mut pairs {
            *pair = set_of(*pair & LOW) | set_of(*pair >> 32) << 32;
        }
        let sets = bytemuck::cast(pairs);
        (sets, keys)
    }

    /// The set in which a row is looked for where it is not in the first; the same if it has no other.
    #[inline(always)]
    pub fn secondary(&self, row: u32) -> u32 {
        let hash = self.hash(row);
        let (shard, at) = self.whereabouts(hash);
        let tag = self.tag_of(hash);
        let away = self.tag_rounds.into_iter().fold(tag.into(), round) as u32;
        // One less than all, and not none: it is another set.
        let away = scaled(away, self.shard_sets.wrapping_sub(1)).wrapping_add(1);
        let away = if self.keys.has_other(tag) { away } else { 0 };
        let other = scaled(at, self.shard_sets).wrapping_add(away);
        let around = if other >= self.shard_sets {
            self.shard_sets
        } else {
            0
        };
        self.set(shard, other.wrapping_sub(around))
    }

    /// The tag of a row.
    #[inline(always)]
    pub fn tag(&self, row: u32) -> u32 {
        self.tag_of(self.hash(row))
    }

    #[inline(always)]
    fn tag_of(&self, hash: u32) -> u32 {
        self.keys.tag(hash >> self.above())
    }

    /// What is looked for in the primary set of a row: its tag, and that this is the set.
    #[inline(always)]
    pub fn primary_key(&self, row: u32) -> u32 {
        self.keys.primary(self.tag(row))
    }

    /// The same in the secondary one.
    #[inline(always)]
    pub fn secondary_key(&self, row: u32) -> u32 {
        self.keys.secondary(self.tag(row))
    }

    /// The shard of a row.
    pub fn shard(&self, row: u32) -> u32 {
        self.whereabouts(self.hash(row)).0
    }

    /// Where a row is among those of its shard, of 2^32, evenly; the same however many sets there are.
    pub fn place(&self, row: u32) -> u32 {
        self.whereabouts(self.hash(row)).1
    }

    /// The number below which the primary sets of all rows are whose places are below a threshold.
    pub(super) fn below(&self, threshold: u32) -> u32 {
        let last = threshold.checked_sub(1);
        // Shards take turns, so that the first sets of all shards come before the others.
        last.map_or(0, |last| (scaled(last, self.shard_sets) + 1) * self.shards)
    }

    /// A set by its number among those of a shard.
    #[inline(always)]
    pub(super) fn set(&self, shard: u32, number: u32) -> u32 {
        number.wrapping_mul(self.shards).wrapping_add(shard)
    }

    /// The shard of a hash, and where in the shard it is, of 2^32.
    #[inline(always)]
    fn whereabouts(&self, hash: u32) -> (u32, u32) {
        (scaled(hash, self.shards), hash.wrapping_mul(self.shards))
    }

    /// Bits of a word that are not of a hash.
    #[inline(always)]
    fn above(&self) -> u32 {
        u32::BITS.wrapping_sub(self.bits)
    }

    /// Of a row or another number, in the upper bits of a word. With a round less some rows that are evenly spaced would be on few sets, with an
    /// unlucky seed.
    #[inline(always)]
    fn hash(&self, row: u32) -> u32 {
        // What overflows is no bit of the hash. (In the lower bits all but those of the hash would have to be cleared each time.)
        let all = u32::MAX << self.above();
        let folded = |bits: u32| bits ^ bits >> (self.bits / 2) & all;
        // Numbers of so many bits are permuted each time: by their upper half upon the lower one, by an odd factor and by a sum.
        let round = |bits: u32, (factor, add): (u32, u32)| {
            folded(bits.wrapping_mul(factor).wrapping_add(add << self.above()))
        };
        self.rounds
            .into_iter()
            .fold(folded(row << self.above()), round)
    }
}

/// As many rows as the widest vector has words for.
pub(super) const LANES: usize = 16;
pub(super) type Lanes = [u32; LANES];

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
fn scaled(bits: u32, end: u32) -> u32 {
    (u64::from(bits).wrapping_mul(end.into()) >> 32) as u32
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

    const WIDTHS: [Width; 2] = [Width::One, Width::Two];

    #[test]
    fn sets_are_even_whatever_the_rows_and_the_seed() {
        const SHARD_SETS: u32 = 999;
        for seed in 0..50 {
            let width = WIDTHS[seed as usize % 2];
            let spread = Spread::new(seed, ROWS_END, 4, SHARD_SETS, width);
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
    fn both_sets_are_of_the_shard_and_differ_unless_a_row_has_one() {
        for (shards, shard_sets) in [(1, 2), (3, 2), (4, 999), (7, 1 << 20)] {
            for width in WIDTHS {
                let spread = Spread::new(7, ROWS_END, shards, shard_sets, width);
                for row in (0..1 << 31).step_by(1_234_567) {
                    let [a, b] = [spread.primary(row), spread.secondary(row)];
                    let has_one = width == Width::One && spread.tag(row) == 0;
                    assert_eq!(a == b, has_one, "row {row}");
                    assert!(a < spread.sets() && b < spread.sets());
                    assert_eq!(a % shards, spread.shard(row));
                    assert_eq!(b % shards, spread.shard(row));
                }
            }
        }
    }

    #[test]
    fn rows_below_a_threshold_are_in_the_first_sets_of_their_shards() {
        for (shards, shard_sets) in [(1, 2), (3, 7), (4, 999)] {
            let spread = Spread::new(7, ROWS_END, shards, shard_sets, Width::One);
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
        let spread = Spread::new(3, 1 << 24, 1, 1 << 10, Width::Two);
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
        let [one, other] = [1, 2].map(|seed| Spread::new(seed, ROWS_END, 1, 1000, Width::Two));
        let same = (0..10_000).filter(|&row| one.primary(row) == other.primary(row));
        assert!(same.count() < 100);
    }

    #[test]
    fn a_set_has_one_row_of_each_key_where_tags_are_exact() {
        for (end, shards, shard_sets, width) in [
            (1, 1, 3, Width::Two),
            (1 << 15, 1, 3, Width::Two),
            (50_000, 3, 2, Width::Two),
            (1 << 17, 1, 9, Width::Two),
            (100_000, 4, 5, Width::Two),
            (1 << 20, 5, 13, Width::Two),
            (1 << 20, 4, 1000, Width::Two),
            (1, 1, 9, Width::One),
            (2000, 3, 7, Width::One),
            (1 << 15, 2, 150, Width::One),
            (1 << 20, 4, 2048, Width::One),
            (1, 1, 8, Width::One),
            (1 << 20, 4, 16, Width::Two),
        ] {
            let spread = Spread::new(9, end, shards, shard_sets, width);
            assert!(spread.is_exact() && spread.end() >= end);
            let tags = width.keys().tag(u32::MAX);
            let keys = 1 << (8 * width.bytes());
            let mut seen = vec![false; spread.sets() as usize * keys];
            for row in 0..spread.end() {
                assert!(spread.tag(row) <= tags);
                let [primary, secondary] = [spread.primary(row), spread.secondary(row)];
                let mut see = |set: u32, key: u32| {
                    assert!(key > 0 && key < keys as u32, "{key}");
                    let seen = &mut seen[set as usize * keys + key as usize];
                    assert!(!*seen, "row {row} of {end} over {shards} x {shard_sets}");
                    *seen = true;
                };
                see(primary, spread.primary_key(row));
                if secondary != primary {
                    see(secondary, spread.secondary_key(row));
                } else {
                    assert_eq!(spread.secondary_key(row), spread.primary_key(row));
                }
            }
            let fewer = (spread.end() - 1) / (tags + 1);
            let few = Spread::new(9, end, 1, fewer.max(2), width);
            assert_eq!(few.is_exact(), fewer < 2, "{end}");
        }
    }

    #[test]
    fn sets_are_even_in_small_tables_too() {
        for seed in 0..50 {
            for end in [1000, 5000, 20_000, 1 << 16, 100_000] {
                let width = WIDTHS[seed as usize % 2];
                let spread = Spread::new(seed, end, 2, 150, width);
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
