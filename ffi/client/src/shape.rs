//! The shape of a request's data, checked, and how its numbers are copied to where the dataplane reads them.

use std::ops::Range;

use rowmill_arena::{ReadWindow, Window};
use rowmill_wire::Element;
use rowmill_wire::limits::{MAX_BATCH, MAX_FEATURES, MAX_IDS_PER_BAG};

use crate::error::BatchError;

/// How many ids each bag of each feature has: a private copy, all of it checked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shape {
    bags: u32,
    wide: bool,
    /// Lengths, features one after another: `features * bags`.
    lengths: Vec<u32>,
    /// First id of each feature, and the end of the last.
    starts: Vec<u32>,
    weighted: Vec<bool>,
}

/// The ids that are there for a feature.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ids {
    /// Whether all of them are the feature's; else it takes the first ones.
    pub(crate) exactly: bool,
    pub(crate) count: usize,
    /// Whether they have 64 bits.
    pub(crate) wide: bool,
}

/// How a feature's ids are divided into bags, as the caller says.
pub(crate) trait Divide {
    /// Of how many bags it says that.
    fn given(&self) -> usize;

    /// Calls `take` with the length of each.
    fn each(
        &self,
        feature: usize,
        take: impl FnMut(u64) -> Result<(), BatchError>,
    ) -> Result<(), BatchError>;
}

impl Shape {
    /// Removes all features and sets the number of bags, keeping the buffers. Stays as it was on errors.
    pub(crate) fn begin(&mut self, bags: usize) -> Result<(), BatchError> {
        if bags == 0 || bags > MAX_BATCH as usize {
            return Err(BatchError::Bags { bags });
        }
        self.bags = bags as u32;
        self.wide = false;
        self.lengths.clear();
        self.weighted.clear();
        self.starts.clear();
        self.starts.push(0);
        Ok(())
    }

    /// Adds the next feature, of which the protocol takes no more than its limit, with as many weights as said. Gives the
    /// number of its ids. Stays as it was on errors.
    pub(crate) fn add(
        &mut self,
        division: &impl Divide,
        ids: Ids,
        weights: Option<usize>,
    ) -> Result<usize, BatchError> {
        if self.features() == MAX_FEATURES {
            return Err(BatchError::TooManyFeatures);
        }
        self.add_any(division, ids, weights)
    }

    /// As [`Shape::add`], without the limit.
    pub(crate) fn add_any(
        &mut self,
        division: &impl Divide,
        ids: Ids,
        weights: Option<usize>,
    ) -> Result<usize, BatchError> {
        let feature = self.features();
        if self.ids() > 0 && ids.count > 0 && ids.wide != self.wide {
            return Err(BatchError::MixedWidths { feature });
        }
        if let Some(weights) = weights
            && weights != ids.count
        {
            return Err(BatchError::WeightCount {
                feature,
                weights,
                ids: ids.count,
            });
        }
        let before = self.lengths.len();
        let taken = self.divide(division, ids).and_then(|taken| {
            let end = u32::try_from(self.ids() + taken);
            Ok((taken, end.map_err(|_| BatchError::TooManyIds { feature })?))
        });
        let (taken, end) = taken.inspect_err(|_| self.lengths.truncate(before))?;
        self.starts.push(end);
        self.weighted.push(weights.is_some());
        if taken > 0 {
            self.wide = ids.wide;
        }
        Ok(taken)
    }

    fn divide(&mut self, division: &impl Divide, ids: Ids) -> Result<usize, BatchError> {
        let (feature, bags, given) = (self.features(), self.bags, division.given());
        if given != bags as usize {
            return Err(BatchError::LengthCount {
                feature,
                given,
                bags,
            });
        }
        let (mut sum, mut bag) = (0, 0);
        division.each(feature, |length| {
            if length > u64::from(MAX_IDS_PER_BAG) {
                return Err(BatchError::LongBag {
                    feature,
                    bag,
                    length,
                });
            }
            bag += 1;
            sum += length as usize; // At most 65,536 times 8,192.
            self.lengths.push(length as u32);
            Ok(())
        })?;
        match sum == ids.count || (sum < ids.count && !ids.exactly) {
            true => Ok(sum),
            false => Err(BatchError::LengthSum {
                feature,
                sum: sum as u64,
                ids: ids.count,
            }),
        }
    }

    /// Adds a feature of another shape with the same number of bags.
    pub(crate) fn add_from(&mut self, other: &Shape, column: usize) -> Result<(), BatchError> {
        let feature = self.features();
        if feature == MAX_FEATURES {
            return Err(BatchError::TooManyFeatures);
        }
        let taken = other.start(column + 1) - other.start(column);
        let end = (self.ids() as u32).checked_add(taken);
        self.starts
            .push(end.ok_or(BatchError::TooManyIds { feature })?);
        self.lengths
            .extend_from_slice(other.lengths_of(column, 0, self.bags));
        self.weighted.push(other.weighted[column]);
        if taken > 0 {
            self.wide = other.wide;
        }
        Ok(())
    }

    /// Refuses ids that are left over when all features have theirs.
    pub(crate) fn all_taken(&self, taken: usize, ids: usize) -> Result<(), BatchError> {
        let feature = self.features().saturating_sub(1);
        match taken == ids {
            true => Ok(()),
            false => Err(BatchError::LengthSum {
                feature,
                sum: taken as u64,
                ids,
            }),
        }
    }

    /// Says which features have weights.
    pub(crate) fn set_weighted(&mut self, has_weights: impl Fn(usize) -> bool) {
        for (feature, weighted) in self.weighted.iter_mut().enumerate() {
            *weighted = has_weights(feature);
        }
    }

    /// Bags a feature.
    pub(crate) fn bags(&self) -> u32 {
        self.bags
    }

    /// How many features.
    pub(crate) fn features(&self) -> usize {
        self.weighted.len()
    }

    /// Ids of all features.
    pub(crate) fn ids(&self) -> usize {
        self.starts.last().map_or(0, |&end| end as usize)
    }

    /// Whether any feature has weights.
    pub(crate) fn any_weighted(&self) -> bool {
        self.weighted.contains(&true)
    }

    /// Whether the feature has weights.
    pub(crate) fn is_weighted(&self, feature: usize) -> bool {
        self.weighted[feature]
    }

    /// The feature's first id among all ids.
    pub(crate) fn start(&self, feature: usize) -> u32 {
        self.starts[feature]
    }

    pub(crate) fn lengths_of(&self, feature: usize, first: u32, bags: u32) -> &[u32] {
        &self.lengths[feature * self.bags as usize + first as usize..][..bags as usize]
    }

    /// Whether the ids have 64 bits.
    pub(crate) fn is_wide(&self) -> bool {
        self.wide
    }

    pub(crate) fn id_element(&self) -> Element {
        if self.wide {
            Element::Bits64
        } else {
            Element::Bits32
        }
    }

    pub(crate) fn length_bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.lengths)
    }
}

/// A request's data: its shape, and numbers that are sent as they are.
pub(crate) trait Content {
    fn shape(&self) -> &Shape;

    /// Copies a field of these ids, counted over all features, to byte `at` of `out`.
    fn copy(&self, field: Field, ids: Range<u32>, out: &mut Sink<'_>, at: usize);
}

/// What an id comes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    /// The id.
    Ids,
    /// Its weight; those of features that take none are not read.
    Weights,
}

/// Where the dataplane reads a request's data.
pub(crate) enum Sink<'s> {
    /// The end of a frame that is not sent yet.
    Frame(&'s mut [u8]),
    /// A range of the source region.
    Source(Window<'s>),
}

impl Sink<'_> {
    /// Copies private memory to byte `at`.
    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) {
        match self {
            Sink::Frame(frame) => frame[at..at + bytes.len()].copy_from_slice(bytes),
            Sink::Source(window) => window.write(at, bytes),
        }
    }

    /// Copies memory that others may write to byte `at`.
    pub(crate) fn put_from(&mut self, at: usize, from: ReadWindow<'_>) {
        match self {
            Sink::Frame(frame) => from.read(0, &mut frame[at..at + from.len()]),
            Sink::Source(window) => from.copy_to(window, at),
        }
    }
}

// Numbers are sent as they lie in memory, and the wire is little-endian.
const _: () = assert!(cfg!(target_endian = "little"));
