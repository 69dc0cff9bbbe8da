//! How a request is split by bags into parts, at most one a lane.

use crate::limits::MAX_LANES;

/// The rule that a server advertises at connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitRule {
    /// Lanes (workers) of the server, at least 1 and at most [`MAX_LANES`].
    pub lanes: u16,
    /// Fewest bags of a part, so that small requests are not spread over workers; at least 1.
    pub min_bags: u32,
}

impl SplitRule {
    /// How many parts a request of `bags` bags has: as many as leave each at least `min_bags`,
    /// between 1 and the number of lanes.
    pub fn parts(&self, bags: u32) -> u32 {
        let lanes = self.lanes.clamp(1, MAX_LANES);
        (bags / self.min_bags.max(1)).clamp(1, u32::from(lanes))
    }

    /// The parts as (first bag, number of bags), contiguous and in order; the first `bags % parts`
    /// parts have one bag more than the others.
    pub fn split(&self, bags: u32) -> impl Iterator<Item = (u32, u32)> + use<> {
        let parts = self.parts(bags);
        let (base, longer) = (bags / parts, bags % parts);
        (0..parts).map(move |p| (p * base + p.min(longer), base + u32::from(p < longer)))
    }
}
