//! Words that follow from a seed.

use std::hash::{BuildHasher, Hasher, RandomState};

/// The odd number nearest to 2^64 divided by the golden ratio, as SplitMix64 counts.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Word number `counter` of the sequence that `key` names: SplitMix64's output function. Words of one
/// sequence differ from one another, since each step can be undone.
pub(crate) fn word(key: u64, counter: u64) -> u64 {
    let mut bits = key.wrapping_add(counter.wrapping_add(1).wrapping_mul(GOLDEN));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// A seed that nobody can foresee, from the kernel by way of the standard library's hash maps.
pub(crate) fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_splitmix64() {
        // The published first outputs for seed 1234567.
        assert_eq!(word(1_234_567, 0), 6_457_827_717_110_365_317);
        assert_eq!(word(1_234_567, 1), 3_203_168_211_198_807_973);
    }

    #[test]
    fn seeds_differ() {
        assert_ne!(random_seed(), random_seed());
    }
}
