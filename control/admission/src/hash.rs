//! One hash for all that is drawn by row.

/// SplitMix64's output function (Steele, Lea and Flood, 2014) of a row under a seed.
pub(crate) fn hash(seed: u64, row: u32) -> u64 {
    let mut bits = seed ^ u64::from(row).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// 32 bits as a number below `end`, evenly spread.
pub(crate) fn scaled(bits: u32, end: u32) -> u32 {
    ((u64::from(bits) * u64::from(end)) >> 32) as u32
}
