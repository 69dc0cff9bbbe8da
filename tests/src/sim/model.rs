//! What requests mean, told a second time: schemas with their tables, made-up batches, and the
//! scalar reference's vector of any bag.

use std::sync::Arc;

use fastrand::Rng;
use rowmill_pooling::{Mode, RowFormat as PoolingFormat, Rows, scalar};
use rowmill_table::{Resident, ResidentTable, RowFormat};
use rowmill_wire::{Feature, Output, Pooling, Schema};

/// One feature of a schema with its table.
#[derive(Clone, Debug)]
pub struct FeatureModel {
    /// The table's number.
    pub table: usize,
    /// Elements of a vector.
    pub dim: usize,
    /// Rows of the table.
    pub rows: u32,
    /// How bags are pooled.
    pub pooling: Pooling,
    /// Bytes from the base to bag 0's vector.
    pub offset: u64,
    /// Bytes between bags.
    pub stride: u64,
}

impl FeatureModel {
    /// Bytes of a vector.
    pub fn vector_bytes(&self) -> u64 {
        4 * self.dim as u64
    }

    /// The bytes of a bag's vector, counted from the target's base.
    pub fn place(&self, bag: u32) -> core::ops::Range<u64> {
        let start = self.offset + u64::from(bag) * self.stride;
        start..start + self.vector_bytes()
    }
}

/// A schema that the service has bound.
#[derive(Clone, Debug)]
pub struct SchemaModel {
    /// As the client sent it.
    pub schema: Schema,
    /// Its features with their tables.
    pub features: Vec<FeatureModel>,
    tables: Arc<Resident>,
}

impl SchemaModel {
    /// Looks the tables up.
    ///
    /// # Panics
    /// If there is none of a name: the service must have refused that.
    pub fn new(schema: &Schema, tables: &Arc<Resident>) -> SchemaModel {
        let feature = |f: &Feature| {
            let position = tables.tables().iter().position(|t| t.name() == f.table);
            let table = position.expect("bound schemas name tables that there are");
            let resident = &tables.tables()[table];
            FeatureModel {
                table,
                dim: resident.dim(),
                rows: resident.row_count(),
                pooling: f.pooling,
                offset: f.offset,
                stride: f.stride,
            }
        };
        SchemaModel {
            schema: schema.clone(),
            features: schema.features.iter().map(feature).collect(),
            tables: Arc::clone(tables),
        }
    }

    /// Whether requests bring weights.
    pub fn is_weighted(&self) -> bool {
        self.features
            .iter()
            .any(|f| f.pooling == Pooling::WeightedSum)
    }

    /// Bytes of a target for `bags` bags.
    pub fn target_bytes(&self, bags: u32) -> u64 {
        self.features
            .iter()
            .map(|f| f.place(bags - 1).end)
            .max()
            .unwrap_or(0)
    }

    /// The bytes of one bag's vector by the scalar reference. `None` where an id is not in the table,
    /// for which there must be no answer.
    pub fn vector(
        &self,
        feature: usize,
        ids: &[u64],
        weights: Option<&[f32]>,
        partials: bool,
    ) -> Option<Vec<u8>> {
        let f = &self.features[feature];
        let rows = rows(&self.tables.tables()[f.table]);
        let fits = |&id: &u64| u32::try_from(id).ok().filter(|&id| id < f.rows);
        let ids: Vec<u32> = ids.iter().map(fits).collect::<Option<_>>()?;
        let (mode, weights) = match f.pooling {
            Pooling::Sum => (Mode::Sum, None),
            Pooling::Mean if partials => (Mode::Sum, None),
            Pooling::Mean => (Mode::Mean, None),
            Pooling::WeightedSum => (Mode::Sum, weights),
        };
        let mut vector = vec![0.0; f.dim];
        scalar::bag(&rows, &ids, weights, mode, &mut vector);
        Some(vector.iter().flat_map(|x| x.to_le_bytes()).collect())
    }
}

fn rows(table: &ResidentTable) -> Rows<'_> {
    let format = match table.format() {
        RowFormat::F32 => PoolingFormat::F32,
        RowFormat::Int8 => PoolingFormat::Int8,
    };
    Rows::new(
        table.bytes(),
        table.stride(),
        table.row_count(),
        table.dim(),
        format,
    )
    .expect("resident tables are sound")
}

/// Draws a schema that has to be accepted: features side by side with gaps, or one after another.
pub fn draw_schema(rng: &mut Rng, tables: &Resident) -> Schema {
    let max_batch = rng.u32(1..=48);
    let weights = rng.u8(0..3);
    let blocks = rng.bool();
    let (mut offset, mut features) = (4 * rng.u64(0..4), Vec::new());
    for i in 0..rng.usize(1..=6) {
        let table = &tables.tables()[rng.usize(0..tables.tables().len())];
        let pooling = match (weights, rng.u8(0..3)) {
            (0, _) | (1, 0) => Pooling::WeightedSum,
            (_, 1) => Pooling::Mean,
            _ => Pooling::Sum,
        };
        let bytes = 4 * table.dim() as u64;
        let gap = 4 * rng.u64(0..4);
        features.push(Feature {
            name: format!("feature-{i}"),
            table: table.name().into(),
            pooling,
            output: Output::F32,
            offset,
            stride: bytes + gap,
        });
        offset += if blocks {
            u64::from(max_batch) * (bytes + gap)
        } else {
            bytes + gap
        };
    }
    if !blocks {
        let first = features[0].offset;
        features.iter_mut().for_each(|f| f.stride = offset - first);
    }
    Schema {
        max_batch,
        features,
    }
}

/// Breaks a schema so that it has to be refused.
pub fn break_schema(rng: &mut Rng, schema: &mut Schema) {
    let f = rng.usize(0..schema.features.len());
    match rng.u8(0..4) {
        0 => schema.features[f].table = "no such table".into(),
        1 => schema.features[f].offset += 2,
        2 => schema.features[f].stride = 4 * u64::from(schema.max_batch == 1),
        _ => {
            let mut twin = schema.features[f].clone();
            twin.offset += 4;
            schema.features.push(twin);
        }
    }
    if schema.max_batch == 1 {
        // A stride says nothing about a single bag, so that only the table is sure to be wrong.
        schema.features[f].table = "no such table".into();
    }
}

/// A batch of jagged ids: features one after another.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// Bags a feature.
    pub bags: u32,
    /// Of each feature, the length of each bag.
    pub lengths: Vec<Vec<u32>>,
    /// Of each feature, the ids of all bags.
    pub ids: Vec<Vec<u64>>,
    /// Of each feature, a weight for each id.
    pub weights: Vec<Vec<f32>>,
}

impl Work {
    /// Draws a batch that fits the schema, with about `ids_per_bag` ids in a bag, many bags empty.
    pub fn draw(rng: &mut Rng, model: &SchemaModel, bags: u32, ids_per_bag: u32) -> Work {
        let mut work = Work {
            bags,
            ..Work::default()
        };
        for f in &model.features {
            let length = |rng: &mut Rng| {
                if rng.u8(0..4) == 0 {
                    0
                } else {
                    rng.u32(0..=2 * ids_per_bag)
                }
            };
            let lengths: Vec<u32> = (0..bags).map(|_| length(rng)).collect();
            let count = lengths.iter().sum::<u32>() as usize;
            work.ids
                .push((0..count).map(|_| rng.u64(0..f.rows.into())).collect());
            work.weights
                .push((0..count).map(|_| rng.f32() * 4.0 - 2.0).collect());
            work.lengths.push(lengths);
        }
        work
    }

    /// How many ids all features have.
    pub fn count(&self) -> usize {
        self.ids.iter().map(Vec::len).sum()
    }

    /// The bytes that the target has to hold for a bag.
    pub fn expected(
        &self,
        model: &SchemaModel,
        feature: usize,
        bag: u32,
        partials: bool,
    ) -> Vec<u8> {
        let lengths = &self.lengths[feature];
        let from = lengths[..bag as usize].iter().sum::<u32>() as usize;
        let range = from..from + lengths[bag as usize] as usize;
        let weights = &self.weights[feature][range.clone()];
        model
            .vector(feature, &self.ids[feature][range], Some(weights), partials)
            .expect("drawn ids are in the table")
    }
}
