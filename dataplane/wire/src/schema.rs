//! Schemas: the features that a client uses, bound once a session.

use crate::codec::{Reader, Writer};
use crate::limits::{MAX_BATCH, MAX_BLOCK_IDS, MAX_EXTENT, MAX_FEATURES, MAX_NAME};
use crate::status::{Refusal, Status};

/// What becomes of a bag's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Pooling {
    /// The sum of the rows.
    Sum = 0,
    /// The sum divided by the bag's length.
    Mean = 1,
    /// The sum of each row times its weight.
    WeightedSum = 2,
    /// The weighted sum divided by the sum of the weights.
    WeightedMean = 3,
    /// The greatest value of each dimension.
    Max = 4,
    /// The rows themselves, one for each id, in a block of their own.
    None = 5,
}

impl Pooling {
    /// All of them, in the order of their codes.
    pub const ALL: [Pooling; 6] = [
        Pooling::Sum,
        Pooling::Mean,
        Pooling::WeightedSum,
        Pooling::WeightedMean,
        Pooling::Max,
        Pooling::None,
    ];

    fn from_code(code: u8) -> Option<Pooling> {
        Pooling::ALL.into_iter().find(|&p| p as u8 == code)
    }

    /// Whether each id has a weight.
    pub fn is_weighted(self) -> bool {
        matches!(self, Pooling::WeightedSum | Pooling::WeightedMean)
    }
}

/// The element type of vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Output {
    /// 32-bit floats.
    F32 = 0,
    /// IEEE 754 binary16.
    F16 = 1,
    /// bfloat16.
    Bf16 = 2,
}

impl Output {
    /// All of them, in the order of their codes.
    pub const ALL: [Output; 3] = [Output::F32, Output::F16, Output::Bf16];

    fn from_code(code: u8) -> Option<Output> {
        Output::ALL.into_iter().find(|&o| o as u8 == code)
    }

    /// Bytes of an element.
    pub fn bytes(self) -> u64 {
        match self {
            Output::F32 => 4,
            Output::F16 | Output::Bf16 => 2,
        }
    }
}

/// One feature of a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// The client's name for it, for messages.
    pub name: String,
    /// The table that its ids are looked up in.
    pub table: String,
    /// How its bags are pooled.
    pub pooling: Pooling,
    /// The type of its vectors.
    pub output: Output,
    /// Most ids that a request has for it over all parts, where it is not pooled: the vectors that its
    /// block holds, from 1 to [`MAX_BLOCK_IDS`]. 0 for all others.
    pub max_ids: u32,
    /// Bytes from the target's base to the vector of bag 0, or of the first id where it is not pooled.
    pub offset: u64,
    /// Bytes from one vector to the next.
    pub stride: u64,
}

impl Feature {
    /// A feature that is not pooled: a block of `max_ids` vectors of `dim` elements, one after another,
    /// from `offset` on.
    pub fn block(
        name: &str,
        table: &str,
        output: Output,
        dim: u32,
        max_ids: u32,
        offset: u64,
    ) -> Feature {
        Feature {
            name: name.into(),
            table: table.into(),
            pooling: Pooling::None,
            output,
            max_ids,
            offset,
            stride: u64::from(dim) * output.bytes(),
        }
    }

    /// How many vectors it has at most in a schema of that batch: one a bag, or one an id where it is
    /// not pooled.
    pub fn max_vectors(&self, max_batch: u32) -> u32 {
        match self.pooling {
            Pooling::None => self.max_ids,
            _ => max_batch,
        }
    }
}

/// A schema: its features in the order in which requests list them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    /// The largest batch (bags a feature, over all parts) that requests will have.
    pub max_batch: u32,
    /// At least one, at most [`MAX_FEATURES`].
    pub features: Vec<Feature>,
}

impl Schema {
    /// A schema with all features side by side in one matrix `[B, sum of dims]` of f32: each entry
    /// is (feature, table, pooling, dim). Returns the schema and the matrix' row length in bytes.
    ///
    /// # Panics
    /// As [`Schema::side_by_side_as`].
    pub fn side_by_side<'a>(
        max_batch: u32,
        features: impl IntoIterator<Item = (&'a str, &'a str, Pooling, u32)>,
    ) -> (Schema, u64) {
        Schema::side_by_side_as(Output::F32, max_batch, features)
    }

    /// The same with elements of another type.
    ///
    /// # Panics
    /// If a feature is not pooled: it has no column in a matrix of bags (see [`Feature::block`]).
    pub fn side_by_side_as<'a>(
        output: Output,
        max_batch: u32,
        features: impl IntoIterator<Item = (&'a str, &'a str, Pooling, u32)>,
    ) -> (Schema, u64) {
        let mut offset = 0;
        let mut features: Vec<Feature> = features
            .into_iter()
            .map(|(name, table, pooling, dim)| {
                assert_ne!(
                    pooling,
                    Pooling::None,
                    "feature `{name}` has no vector a bag"
                );
                let at = offset;
                offset += u64::from(dim) * output.bytes();
                Feature {
                    name: name.into(),
                    table: table.into(),
                    pooling,
                    output,
                    max_ids: 0,
                    offset: at,
                    stride: 0,
                }
            })
            .collect();
        for feature in &mut features {
            feature.stride = offset;
        }
        (
            Schema {
                max_batch,
                features,
            },
            offset,
        )
    }

    /// Checks what can be checked without the server's tables: the bounds that every server keeps.
    /// A schema that passes can be encoded.
    ///
    /// # Errors
    /// Malformed for no features or a batch of 0, and for a `max_ids` that is 0 where a feature is not
    /// pooled or something else where it is; `TooLarge` for more than [`MAX_FEATURES`],
    /// [`MAX_BATCH`] or [`MAX_BLOCK_IDS`], for a name over [`MAX_NAME`], and for an offset or stride over
    /// [`MAX_EXTENT`].
    pub fn check(&self) -> Result<(), Refusal> {
        check_counts(self.max_batch, self.features.len())?;
        for (i, f) in self.features.iter().enumerate() {
            if f.name.len().max(f.table.len()) > MAX_NAME {
                return Err(Refusal::feature(Status::TooLarge, i as u32));
            }
            check_place(f).map_err(|status| Refusal::feature(status, i as u32))?;
        }
        Ok(())
    }

    pub(crate) fn encode_to(&self, w: &mut Writer) {
        w.u32(self.max_batch);
        w.u32(self.features.len() as u32);
        for f in &self.features {
            w.name(&f.name);
            w.name(&f.table);
            w.u8(f.pooling as u8);
            w.u8(f.output as u8);
            w.zeros(2);
            w.u32(f.max_ids);
            w.u64(f.offset);
            w.u64(f.stride);
        }
    }

    pub(crate) fn parse_from(r: &mut Reader<'_>) -> Result<Schema, Refusal> {
        let max_batch = r.u32()?;
        let count = r.u32()? as usize;
        check_counts(max_batch, count)?;
        let mut features = Vec::with_capacity(count);
        for i in 0..count as u32 {
            let feature = parse_feature(r).map_err(|refusal| Refusal {
                feature: i,
                ..refusal
            })?;
            features.push(feature);
        }
        Ok(Schema {
            max_batch,
            features,
        })
    }
}

fn check_counts(max_batch: u32, features: usize) -> Result<(), Refusal> {
    if max_batch == 0 || features == 0 {
        return Err(Refusal::whole(Status::Malformed));
    }
    if max_batch > MAX_BATCH || features > MAX_FEATURES {
        return Err(Refusal::whole(Status::TooLarge));
    }
    Ok(())
}

/// Whether `max_ids`, offset and stride are what the pooling asks for and below their bounds.
fn check_place(feature: &Feature) -> Result<(), Status> {
    if (feature.pooling == Pooling::None) != (feature.max_ids > 0) {
        return Err(Status::Malformed);
    }
    if feature.max_ids > MAX_BLOCK_IDS || feature.offset > MAX_EXTENT || feature.stride > MAX_EXTENT
    {
        return Err(Status::TooLarge);
    }
    Ok(())
}

fn parse_feature(r: &mut Reader<'_>) -> Result<Feature, Refusal> {
    let unsupported = || Refusal::whole(Status::Unsupported);
    let (name, table) = (r.text(MAX_NAME)?, r.text(MAX_NAME)?);
    let (pooling, output) = (Pooling::from_code(r.u8()?), Output::from_code(r.u8()?));
    r.zeros(2)?;
    let (max_ids, offset, stride) = (r.u32()?, r.u64()?, r.u64()?);
    let feature = Feature {
        name,
        table,
        pooling: pooling.ok_or_else(unsupported)?,
        output: output.ok_or_else(unsupported)?,
        max_ids,
        offset,
        stride,
    };
    check_place(&feature).map_err(Refusal::whole)?;
    Ok(feature)
}
