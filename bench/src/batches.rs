//! Lookups in one table, pooled call by call.

use std::hint::black_box;

use rowmill_arena::Window;
use rowmill_pooling::{Bags, Kernels, Mode, Output, Rows};

/// Bags that are pooled by one call.
pub(crate) const CALL_BAGS: usize = 2048;

/// All lookups of a case, to be pooled call by call into the same target.
pub(crate) struct Pooling<'a> {
    /// The table.
    pub(crate) rows: Rows<'a>,
    /// The ids of all bags.
    pub(crate) ids: &'a [u32],
    /// A weight for each id.
    pub(crate) weights: Option<&'a [f32]>,
    /// [`CALL_BAGS`] equal lengths.
    pub(crate) lengths: Vec<u32>,
    /// What becomes of the rows.
    pub(crate) mode: Mode,
    /// How results are stored.
    pub(crate) output: Output,
    /// The kernels.
    pub(crate) kernels: Kernels,
    /// Room for the vectors of one call.
    pub(crate) target: Vec<u8>,
}

impl Pooling<'_> {
    /// Pools all.
    pub(crate) fn pool_all(&mut self) {
        let bag_length = self.lengths[0] as usize;
        let stride = self.output.bytes() * self.rows.dim();
        let target = Window::over(&mut self.target);
        let mut first = 0;
        while first < self.ids.len() {
            let end = self.ids.len().min(first + CALL_BAGS * bag_length);
            let bags = Bags {
                rows: self.rows,
                ids: &self.ids[first..end],
                lengths: &self.lengths[..(end - first) / bag_length],
                weights: self.weights.map(|weights| &weights[first..end]),
                mode: self.mode,
                output: self.output,
                offset: 0,
                stride,
            };
            self.kernels.pool(&[bags], &target);
            first = end;
        }
        black_box(&self.target);
    }
}
