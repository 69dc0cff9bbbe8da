//! Cheap draws from a seed.

/// A sequence of numbers that pass for random, always the same for a seed.
#[derive(Clone, Debug)]
pub struct Draw {
    state: u64,
}

impl Draw {
    /// The sequence of a seed, which may be any.
    pub fn new(seed: u64) -> Draw {
        Draw { state: mixed(seed) }
    }

    /// A number below `end`, which is not 0.
    #[inline]
    pub fn below(&mut self, end: u32) -> u32 {
        ((u64::from(self.word()) * u64::from(end)) >> 32) as u32
    }

    /// Any number.
    #[inline]
    pub fn word(&mut self) -> u32 {
        // Knuth's linear congruential generator, of which the upper bits are used.
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 32) as u32
    }
}

/// The bits of a number mixed up, as SplitMix64 does it: different for different numbers.
#[inline]
pub(super) fn mixed(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
