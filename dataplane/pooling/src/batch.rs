//! A batch: the bags of several features, each with its rows, ids and place in the target.

use crate::Rows;
use crate::select::greatest;

/// What becomes of the rows of a bag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Their sum, weighted where there are weights.
    Sum,
    /// Their sum divided by their number; where there are weights, their weighted sum divided by the sum
    /// of the weights.
    Mean,
    /// The greatest value of each dimension: a NaN is greater than all, and +0 is greater than -0.
    Max,
    /// The rows themselves, one for each id, in the order of the ids.
    None,
}

impl Mode {
    /// Whether ids can have weights.
    pub const fn takes_weights(self) -> bool {
        matches!(self, Mode::Sum | Mode::Mean)
    }
}

/// How the elements of results are stored, little-endian. Results are f32 until they are stored, and
/// then rounded to nearest, ties to even; subnormal results are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// 32-bit floats.
    F32,
    /// IEEE 754 binary16; what is too large becomes infinite.
    F16,
    /// bfloat16.
    Bf16,
}

impl Output {
    /// All of them.
    pub const ALL: [Output; 3] = [Output::F32, Output::F16, Output::Bf16];

    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            Output::F32 => 4,
            Output::F16 | Output::Bf16 => 2,
        }
    }
}

/// The bags of one feature: whose rows, which ids, and where the vectors go.
#[derive(Clone, Copy, Debug)]
pub struct Bags<'a> {
    /// The rows that ids name.
    pub rows: Rows<'a>,
    /// The ids of all bags, one bag after the other.
    pub ids: &'a [u32],
    /// How many ids each bag has. Their sum is `ids.len()`.
    pub lengths: &'a [u32],
    /// A weight for each id, with a mode that takes weights.
    pub weights: Option<&'a [f32]>,
    /// What becomes of the rows of a bag.
    pub mode: Mode,
    /// How elements of vectors are stored.
    pub output: Output,
    /// The byte of the target at which the first vector starts.
    pub offset: usize,
    /// Bytes of the target from one vector to the next. There is one vector a bag; with [`Mode::None`]
    /// one an id.
    pub stride: usize,
}

impl Bags<'_> {
    /// Bytes of one vector.
    pub fn vector_bytes(&self) -> usize {
        self.output.bytes() * self.rows.dim()
    }

    /// How many vectors there are: one a bag, or one an id with [`Mode::None`].
    pub fn vectors(&self) -> usize {
        match self.mode {
            Mode::None => self.ids.len(),
            Mode::Sum | Mode::Mean | Mode::Max => self.lengths.len(),
        }
    }

    /// The byte just after the last vector, or `None` where that overflows. 0 without vectors.
    pub fn target_end(&self) -> Option<usize> {
        match self.vectors().checked_sub(1) {
            None => Some(0),
            Some(last) => last
                .checked_mul(self.stride)?
                .checked_add(self.offset)?
                .checked_add(self.vector_bytes()),
        }
    }

    /// Asserts all that the kernels rely on, for a target of `target_len` bytes.
    ///
    /// # Panics
    /// As [`crate::Kernels::pool`] says.
    pub(crate) fn assert_sound(&self, target_len: usize) {
        let total: u64 = self.lengths.iter().map(|&length| u64::from(length)).sum();
        assert_eq!(
            total,
            self.ids.len() as u64,
            "sum of the lengths, number of ids"
        );
        if let Some(weights) = self.weights {
            assert_eq!(
                weights.len(),
                self.ids.len(),
                "number of weights, number of ids"
            );
            assert!(
                self.mode.takes_weights(),
                "weights go with sums and means, not with {:?}",
                self.mode
            );
        }
        if let Err(position) = check_ids(self.ids, self.rows.count()) {
            panic!(
                "id {} at {position}, but there are {} rows",
                self.ids[position],
                self.rows.count()
            );
        }
        let end = self.target_end();
        assert!(
            end.is_some_and(|end| end <= target_len),
            "vectors end at byte {end:?} of a target of {target_len}"
        );
    }
}

/// Whether all `ids` are below `count`.
///
/// # Errors
/// The position of the first id that is not.
pub fn check_ids(ids: &[u32], count: u32) -> Result<(), usize> {
    // The greatest first, by vector instructions; the position only when it is needed.
    let fits = greatest(ids) < count;
    if fits || ids.is_empty() {
        return Ok(());
    }
    Err(ids
        .iter()
        .position(|&id| id >= count)
        .expect("the maximum is one of the ids"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RowFormat;

    #[test]
    fn first_bad_id_is_found() {
        assert_eq!(check_ids(&[], 0), Ok(()));
        assert_eq!(check_ids(&[0], 0), Err(0));
        let mut ids = vec![9; 1000];
        assert_eq!(check_ids(&ids, 10), Ok(()));
        for position in [0, 1, 500, 999] {
            ids[position] = 10;
            assert_eq!(check_ids(&ids, 10), Err(position));
            ids[position] = u32::MAX;
            assert_eq!(check_ids(&ids, 10), Err(position));
            ids[position] = 9;
        }
    }

    #[test]
    fn target_end_does_not_overflow() {
        let bytes = [0u8; 16];
        let rows = Rows::new(&bytes, 16, 1, 4, RowFormat::F32).unwrap();
        let bags = |lengths, offset, stride| Bags {
            rows,
            ids: &[],
            lengths,
            weights: None,
            mode: Mode::Sum,
            output: Output::F32,
            offset,
            stride,
        };
        assert_eq!(bags(&[], usize::MAX, usize::MAX).target_end(), Some(0));
        assert_eq!(bags(&[0], 3, usize::MAX).target_end(), Some(19));
        assert_eq!(bags(&[0, 0], 3, 20).target_end(), Some(39));
        assert_eq!(bags(&[0, 0], 3, usize::MAX).target_end(), None);
        assert_eq!(bags(&[0, 0, 0], 0, usize::MAX / 2 + 1).target_end(), None);
        assert_eq!(bags(&[0], usize::MAX, 0).target_end(), None);
    }
}
