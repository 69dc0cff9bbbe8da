//! A batch: for each feature of a schema the jagged ids of the same number of bags.

use std::fmt;
use std::ops::Range;

use crate::error::BatchError;
use crate::shape::{Content, Divide, Field, Ids, Shape, Sink};

/// Borrowed ids of one feature. Signed ids are taken as they are: the dataplane refuses negative
/// ones with `IdNegative`.
#[derive(Clone, Copy, Debug)]
pub enum IdSlice<'a> {
    /// 32-bit ids.
    U32(&'a [u32]),
    /// 64-bit ids.
    U64(&'a [u64]),
}

impl IdSlice<'_> {
    /// How many ids.
    pub fn len(&self) -> usize {
        match self {
            IdSlice::U32(ids) => ids.len(),
            IdSlice::U64(ids) => ids.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn is_wide(&self) -> bool {
        matches!(self, IdSlice::U64(_))
    }
}

impl<'a> From<&'a [u32]> for IdSlice<'a> {
    fn from(ids: &'a [u32]) -> IdSlice<'a> {
        IdSlice::U32(ids)
    }
}

impl<'a> From<&'a [u64]> for IdSlice<'a> {
    fn from(ids: &'a [u64]) -> IdSlice<'a> {
        IdSlice::U64(ids)
    }
}

impl<'a> From<&'a [i32]> for IdSlice<'a> {
    fn from(ids: &'a [i32]) -> IdSlice<'a> {
        IdSlice::U32(bytemuck::cast_slice(ids))
    }
}

impl<'a> From<&'a [i64]> for IdSlice<'a> {
    fn from(ids: &'a [i64]) -> IdSlice<'a> {
        IdSlice::U64(bytemuck::cast_slice(ids))
    }
}

/// How the ids of a feature are divided into bags.
#[derive(Clone, Copy, Debug)]
pub enum Division<'a> {
    /// The length of each bag; as many as bags.
    Lengths(&'a [u32]),
    /// Where each bag begins, and where the last one ends; one more than bags, never falling. The
    /// first one need not be 0: ids are counted from there.
    Offsets(&'a [u32]),
    /// The same in 64 bits.
    Offsets64(&'a [u64]),
}

/// The jagged ids of a request, laid out as TorchRec's KeyedJaggedTensor: feature by feature, and bag
/// by bag within a feature, with optional f32 weights.
///
/// A batch owns copies and is meant to be used again: [`Batch::clear`] keeps its buffers, so that
/// filling it allocates nothing once it has been as large before.
///
/// ```
/// use rowmill_client::{Batch, Division};
/// let mut batch = Batch::new(3)?;
/// batch.push(Division::Lengths(&[2, 0, 1]), &[10u32, 11, 12][..])?;
/// batch.push_weighted(Division::Offsets(&[0, 1, 1, 2]), &[7u32, 9][..], &[0.5, 2.0])?;
/// assert_eq!((batch.bags(), batch.features(), batch.ids()), (3, 2, 5));
/// # Ok::<(), rowmill_client::BatchError>(())
/// ```
#[derive(Clone)]
pub struct Batch {
    shape: Shape,
    ids32: Vec<u32>,
    ids64: Vec<u64>,
    /// One for each id as soon as one feature is weighted, else empty.
    weights: Vec<f32>,
}

impl Divide for Division<'_> {
    fn given(&self) -> usize {
        match self {
            Division::Lengths(lengths) => lengths.len(),
            Division::Offsets(offsets) => offsets.len().saturating_sub(1),
            Division::Offsets64(offsets) => offsets.len().saturating_sub(1),
        }
    }

    fn each(
        &self,
        feature: usize,
        mut take: impl FnMut(u64) -> Result<(), BatchError>,
    ) -> Result<(), BatchError> {
        for bag in 0..self.given() {
            let length = match self {
                Division::Lengths(lengths) => Some(u64::from(lengths[bag])),
                Division::Offsets(o) => o[bag + 1].checked_sub(o[bag]).map(u64::from),
                Division::Offsets64(o) => o[bag + 1].checked_sub(o[bag]),
            };
            take(length.ok_or(BatchError::OffsetsFall { feature, bag })?)?;
        }
        Ok(())
    }
}

impl Batch {
    /// An empty batch of `bags` bags a feature.
    ///
    /// # Errors
    /// [`BatchError::Bags`] for 0 or more than the protocol's limit of 65,536.
    pub fn new(bags: usize) -> Result<Batch, BatchError> {
        let mut batch = Batch {
            shape: Shape::default(),
            ids32: Vec::new(),
            ids64: Vec::new(),
            weights: Vec::new(),
        };
        batch.clear(bags)?;
        Ok(batch)
    }

    /// Removes all features and sets the number of bags, keeping the buffers.
    ///
    /// # Errors
    /// As [`Batch::new`]; the batch stays as it was.
    pub fn clear(&mut self, bags: usize) -> Result<(), BatchError> {
        self.shape.begin(bags)?;
        self.ids32.clear();
        self.ids64.clear();
        self.weights.clear();
        Ok(())
    }

    /// Adds the next feature, without weights.
    ///
    /// # Errors
    /// [`BatchError`]; the batch stays as it was.
    pub fn push<'a>(
        &mut self,
        division: Division<'_>,
        ids: impl Into<IdSlice<'a>>,
    ) -> Result<(), BatchError> {
        self.add(division, ids.into(), None)
    }

    /// Adds the next feature with one weight for each id.
    ///
    /// # Errors
    /// [`BatchError`]; the batch stays as it was.
    pub fn push_weighted<'a>(
        &mut self,
        division: Division<'_>,
        ids: impl Into<IdSlice<'a>>,
        weights: &[f32],
    ) -> Result<(), BatchError> {
        self.add(division, ids.into(), Some(weights))
    }

    /// Replaces the content by a whole jagged tensor without weights: `lengths` holds those of
    /// feature 0, then of feature 1 and so on, and `ids` theirs in the same order.
    ///
    /// # Errors
    /// [`BatchError`]; the batch is then left with the features before the one named.
    pub fn fill<'a>(
        &mut self,
        bags: usize,
        lengths: &[u32],
        ids: impl Into<IdSlice<'a>>,
    ) -> Result<(), BatchError> {
        self.clear(bags)?;
        let ids = ids.into();
        let mut from = 0;
        for lengths in lengths.chunks(bags) {
            let claim = Ids {
                exactly: false,
                count: ids.len() - from,
                wide: ids.is_wide(),
            };
            let taken = self.shape.add(&Division::Lengths(lengths), claim, None)?;
            self.take(ids, from..from + taken);
            from += taken;
        }
        self.shape.all_taken(from, ids.len())
    }

    fn add(
        &mut self,
        division: Division<'_>,
        ids: IdSlice<'_>,
        weights: Option<&[f32]>,
    ) -> Result<(), BatchError> {
        let claim = Ids {
            exactly: true,
            count: ids.len(),
            wide: ids.is_wide(),
        };
        let first = self.ids();
        self.shape
            .add(&division, claim, weights.map(<[f32]>::len))?;
        self.take(ids, 0..ids.len());
        if let Some(weights) = weights {
            // Features before it that take none: their places are there but not read.
            self.weights.resize(first, 1.0);
            self.weights.extend_from_slice(weights);
        } else if self.is_weighted() {
            self.weights.resize(self.ids(), 1.0);
        }
        Ok(())
    }

    fn take(&mut self, ids: IdSlice<'_>, range: Range<usize>) {
        match ids {
            IdSlice::U32(ids) => self.ids32.extend_from_slice(&ids[range]),
            IdSlice::U64(ids) => self.ids64.extend_from_slice(&ids[range]),
        }
    }

    /// Bags a feature.
    pub fn bags(&self) -> u32 {
        self.shape.bags()
    }

    /// Features added.
    pub fn features(&self) -> usize {
        self.shape.features()
    }

    /// Ids of all features.
    pub fn ids(&self) -> usize {
        self.shape.ids()
    }

    /// Whether any feature has weights.
    pub fn is_weighted(&self) -> bool {
        self.shape.any_weighted()
    }
}

impl Content for Batch {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn copy(&self, field: Field, ids: Range<u32>, out: &mut Sink<'_>, at: usize) {
        let range = ids.start as usize..ids.end as usize;
        let bytes: &[u8] = match field {
            Field::Ids if self.shape.is_wide() => bytemuck::cast_slice(&self.ids64[range]),
            Field::Ids => bytemuck::cast_slice(&self.ids32[range]),
            Field::Weights => bytemuck::cast_slice(&self.weights[range]),
        };
        out.put(at, bytes);
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("bags", &self.bags())
            .field("features", &self.features())
            .field("ids", &self.ids())
            .field("weighted", &self.is_weighted())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use rowmill_wire::Element;

    use super::*;

    #[test]
    fn refusals_name_the_place_and_leave_the_batch_as_it_was() {
        use Division::{Lengths, Offsets, Offsets64};
        let mut batch = Batch::new(2).expect("2 bags");
        batch
            .push(Lengths(&[1, 0]), &[5u32][..])
            .expect("a good feature");
        let ids = &[1u32, 2, 3][..];
        let long = vec![0u64; 8193];
        let cases = [
            (
                batch.clone().push(Lengths(&[3]), ids),
                BatchError::LengthCount {
                    feature: 1,
                    given: 1,
                    bags: 2,
                },
            ),
            (
                batch.clone().push(Lengths(&[3, 1]), ids),
                BatchError::LengthSum {
                    feature: 1,
                    sum: 4,
                    ids: 3,
                },
            ),
            (
                batch.clone().push(Offsets(&[0, 3, 2]), ids),
                BatchError::OffsetsFall { feature: 1, bag: 1 },
            ),
            (
                batch.clone().push(Offsets64(&[]), ids),
                BatchError::LengthCount {
                    feature: 1,
                    given: 0,
                    bags: 2,
                },
            ),
            (
                batch.clone().push(Offsets64(&[0, u64::MAX, u64::MAX]), ids),
                BatchError::LongBag {
                    feature: 1,
                    bag: 0,
                    length: u64::MAX,
                },
            ),
            (
                batch.clone().push(Lengths(&[0, 8193]), &long[..]),
                BatchError::MixedWidths { feature: 1 },
            ),
            (
                batch.clone().push_weighted(Lengths(&[1, 2]), ids, &[1.0]),
                BatchError::WeightCount {
                    feature: 1,
                    weights: 1,
                    ids: 3,
                },
            ),
        ];
        for (got, want) in cases {
            assert_eq!(got, Err(want), "{want}");
        }
        assert_eq!(
            batch.push(Lengths(&[3, 1]), ids),
            Err(BatchError::LengthSum {
                feature: 1,
                sum: 4,
                ids: 3
            })
        );
        assert_eq!(
            (
                batch.features(),
                batch.ids(),
                batch.shape.length_bytes().len() / 4
            ),
            (1, 1, 2)
        );
        assert_eq!(Batch::new(0).map(|_| ()), Err(BatchError::Bags { bags: 0 }));
        assert_eq!(batch.clear(65_537), Err(BatchError::Bags { bags: 65_537 }));
    }

    #[test]
    fn a_jagged_tensor_is_taken_whole_or_refused() {
        let mut batch = Batch::new(1).expect("1 bag");
        batch
            .fill(2, &[1, 2, 0, 1], &[4u64, 5, 6, 7][..])
            .expect("adds up");
        assert_eq!(
            (batch.features(), batch.shape.start(1), batch.ids()),
            (2, 3, 4)
        );
        let short = batch.fill(2, &[1, 2, 0, 2], &[4u64, 5, 6, 7][..]);
        assert_eq!(
            short,
            Err(BatchError::LengthSum {
                feature: 1,
                sum: 2,
                ids: 1
            })
        );
        let left_over = batch.fill(2, &[1, 2], &[4u64, 5, 6, 7][..]);
        assert_eq!(
            left_over,
            Err(BatchError::LengthSum {
                feature: 0,
                sum: 3,
                ids: 4
            })
        );
        let odd = batch.fill(2, &[1, 2, 1], &[4u64, 5, 6, 7][..]);
        assert_eq!(
            odd,
            Err(BatchError::LengthCount {
                feature: 1,
                given: 1,
                bags: 2
            })
        );
    }

    #[test]
    fn weights_of_features_that_take_none_are_filled_in() {
        let mut batch = Batch::new(1).expect("1 bag");
        batch
            .push(Division::Lengths(&[2]), &[1i64, 2][..])
            .expect("plain");
        batch
            .push_weighted(Division::Lengths(&[1]), &[3i64][..], &[0.5])
            .expect("weighted");
        batch
            .push(Division::Lengths(&[1]), &[4i64][..])
            .expect("plain");
        assert_eq!(batch.weights, [1.0, 1.0, 0.5, 1.0]);
        assert_eq!(batch.shape.id_element(), Element::Bits64);
    }
}
