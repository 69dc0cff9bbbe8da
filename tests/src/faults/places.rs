//! Where the fields of [`Hostile::good`](super::hostile::Hostile::good)'s frame lie; SPEC.md section 5
//! has them all.

pub(super) const LENGTH: usize = 4;
pub(super) const PART: usize = 18;
pub(super) const PARTS: usize = 19;
pub(super) const SCHEMA: usize = 20;
pub(super) const GENERATION: usize = 24;
pub(super) const SLICE_BAGS: usize = 36;
pub(super) const FIRST_BAG: usize = 40;
pub(super) const BAGS: usize = 44;
pub(super) const TARGET_REGION: usize = 48;
pub(super) const FEATURES: usize = 52;
pub(super) const RESERVED: usize = 54;
pub(super) const TARGET_BASE: usize = 56;
pub(super) const LENGTHS: usize = 64;
pub(super) const IDS: usize = 88;
pub(super) const WEIGHTS: usize = 112;
pub(super) const SPANS: usize = 136;
pub(super) const INLINE: usize = 168;
