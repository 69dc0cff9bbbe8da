//! Schemas: the features that a client uses, bound once a session.

use crate::codec::{Reader, Writer};
use crate::limits::{MAX_BATCH, MAX_EXTENT, MAX_FEATURES, MAX_NAME};
use crate::status::{Refusal, Status};

/// How a bag's rows become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Pooling {
    /// The sum of the rows.
    Sum = 0,
    /// The sum divided by the bag's length.
    Mean = 1,
    /// The sum of each row times its weight.
    WeightedSum = 2,
}

impl Pooling {
    fn from_code(code: u8) -> Option<Pooling> {
        [Pooling::Sum, Pooling::Mean, Pooling::WeightedSum]
            .into_iter()
            .find(|&p| p as u8 == code)
    }
}

/// The element type of pooled vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Output {
    /// 32-bit floats.
    F32 = 0,
}

impl Output {
    /// Bytes of an element.
    pub fn bytes(self) -> u64 {
        match self {
            Output::F32 => 4,
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
    /// Bytes from the target's base to the vector of bag 0.
    pub offset: u64,
    /// Bytes from one bag's vector to the next.
    pub stride: u64,
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
    pub fn side_by_side<'a>(
        max_batch: u32,
        features: impl IntoIterator<Item = (&'a str, &'a str, Pooling, u32)>,
    ) -> (Schema, u64) {
        let mut offset = 0;
        let mut features: Vec<Feature> = features
            .into_iter()
            .map(|(name, table, pooling, dim)| {
                let at = offset;
                offset += u64::from(dim) * Output::F32.bytes();
                Feature {
                    name: name.into(),
                    table: table.into(),
                    pooling,
                    output: Output::F32,
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
    /// Malformed for no features or a batch of 0; `TooLarge` for more than [`MAX_FEATURES`] or
    /// [`MAX_BATCH`], for a name over [`MAX_NAME`], and for an offset or stride over [`MAX_EXTENT`].
    pub fn check(&self) -> Result<(), Refusal> {
        check_counts(self.max_batch, self.features.len())?;
        for (i, f) in self.features.iter().enumerate() {
            let names = f.name.len().max(f.table.len());
            if names > MAX_NAME || f.offset > MAX_EXTENT || f.stride > MAX_EXTENT {
                return Err(Refusal::feature(Status::TooLarge, i as u32));
            }
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

fn parse_feature(r: &mut Reader<'_>) -> Result<Feature, Refusal> {
    let unsupported = || Refusal::whole(Status::Unsupported);
    let (name, table) = (r.text(MAX_NAME)?, r.text(MAX_NAME)?);
    let pooling = Pooling::from_code(r.u8()?);
    let output = r.u8()?;
    r.zeros(2)?;
    let (offset, stride) = (r.u64()?, r.u64()?);
    let pooling = pooling.ok_or_else(unsupported)?;
    if output != Output::F32 as u8 {
        return Err(unsupported());
    }
    if offset > MAX_EXTENT || stride > MAX_EXTENT {
        return Err(Refusal::whole(Status::TooLarge));
    }
    Ok(Feature {
        name,
        table,
        pooling,
        output: Output::F32,
        offset,
        stride,
    })
}
