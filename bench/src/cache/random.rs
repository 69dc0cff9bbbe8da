//! Numbers that look drawn, the same on every machine and for ever: committed seeds stay committed traces.

/// SplitMix64 (Steele, Lea and Flood, 2014): a bijection of 64 bits whose results pass for random.
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A sequence of draws.
pub(crate) struct Random {
    state: u64,
}

impl Random {
    /// The sequence of that seed.
    pub(crate) fn new(seed: u64) -> Random {
        Random { state: mix(seed) }
    }

    /// All 64 bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// At least 0 and below 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Below `bound`, which is positive and much less than 2^64.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.bits()) * bound as u128) >> 64) as usize
    }

    /// Puts rows into any order, each as likely.
    pub(crate) fn shuffle(&mut self, rows: &mut [u32]) {
        for i in (1..rows.len()).rev() {
            rows.swap(i, self.below(i + 1));
        }
    }
}
