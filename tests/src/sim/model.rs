//! What requests mean, told a second time: schemas with their tables, made-up batches, and the
//! scalar reference's vector of any bag.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use rowmill_engine::rows;
use rowmill_pooling::{Mode, Rows, scalar};
use rowmill_table::{Missing, Resident, ResidentTable, TableKind};
use rowmill_wire::{Feature, Output, Pooling, Schema};

use super::crowd::Crowd;
use super::history::{History, Moment};
use super::shelf::Lacks;

/// What rows are, as nobody tells but the oracle.
#[derive(Clone, Debug)]
pub struct Truth {
    /// All generations that there may be, as they are at first.
    pub generations: Vec<Arc<Resident>>,
    /// Rows that are others by now.
    pub history: History,
    /// Rows that are taken for zeros.
    pub(super) lacks: Lacks,
    /// Tables that may be cached, and become resident while rows of them are fetched.
    pub(super) listed: Vec<bool>,
    /// Rows that most ids are of.
    pub(super) crowd: Crowd,
    /// Vectors whose rows may be of more mixtures of moments than are tried.
    pub(super) untold: Arc<AtomicU64>,
}

/// One feature of a schema with its table.
#[derive(Clone, Debug)]
pub struct FeatureModel {
    /// The table's number.
    pub table: usize,
    /// Elements of a vector.
    pub dim: usize,
    /// Rows of the table that ids name.
    pub rows: u32,
    /// What ids are.
    pub kind: TableKind,
    /// The keys of a hashed table and their rows, by the table's own list and not its index.
    keys: BTreeMap<u64, u32>,
    crowd: Crowd,
    /// How bags are pooled.
    pub pooling: Pooling,
    /// The type of elements.
    pub output: Output,
    /// Ids that its block holds, where it is not pooled.
    pub max_ids: u32,
    /// Bytes from the base to the first vector.
    pub offset: u64,
    /// Bytes between vectors.
    pub stride: u64,
}

impl FeatureModel {
    /// Bytes of a vector.
    pub fn vector_bytes(&self) -> u64 {
        self.output.bytes() * self.dim as u64
    }

    /// Whether a bag has one vector; else each id has.
    pub fn is_pooled(&self) -> bool {
        self.pooling != Pooling::None
    }

    /// The bytes of a vector, that of a bag or of an id, counted from the target's base.
    pub fn place(&self, vector: u32) -> core::ops::Range<u64> {
        let start = self.offset + u64::from(vector) * self.stride;
        start..start + self.vector_bytes()
    }

    /// The row that an id leads to.
    pub(super) fn row(&self, id: u64) -> Option<u32> {
        match self.kind {
            TableKind::Dense => u32::try_from(id).ok().filter(|&id| id < self.rows),
            TableKind::Hashed(missing) => {
                let extra = (missing != Missing::Error).then_some(self.rows);
                self.keys.get(&id).copied().or(extra)
            }
        }
    }

    /// The other way round.
    fn id(&self, row: u32) -> Option<u64> {
        match self.kind {
            TableKind::Dense => Some(row.into()),
            TableKind::Hashed(_) => {
                let mut keys = self.keys.iter();
                keys.find(|(_, of)| **of == row).map(|(&key, _)| key)
            }
        }
    }

    fn has_partials(&self) -> bool {
        !matches!(self.pooling, Pooling::Max | Pooling::None) && self.output == Output::F32
    }

    /// Draws an id that has to be answered.
    fn draw_id(&self, rng: &mut Rng) -> u64 {
        let of_crowd = self.crowd.draw(self.table, rng);
        if let Some(id) = of_crowd.and_then(|row| self.id(row)) {
            return id;
        }
        let key = |n: usize| *self.keys.keys().nth(n).expect("as many keys as rows");
        match self.kind {
            TableKind::Dense => rng.u64(0..self.rows.into()),
            TableKind::Hashed(missing) if missing != Missing::Error && rng.u8(0..4) == 0 => {
                rng.u64(..)
            }
            TableKind::Hashed(_) => key(rng.usize(0..self.rows as usize)),
        }
    }

    /// An id that has to be refused. `None` where there is none.
    pub fn bad_id(&self, rng: &mut Rng) -> Option<u64> {
        match self.kind {
            TableKind::Dense => Some(self.rows.into()),
            TableKind::Hashed(Missing::Error) => {
                core::iter::repeat_with(|| rng.u64(..)).find(|id| !self.keys.contains_key(id))
            }
            TableKind::Hashed(_) => None,
        }
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
    lacks: Lacks,
    listed: Vec<bool>,
    untold: Arc<AtomicU64>,
    history: History,
    /// The same of other generations.
    others: Vec<SchemaModel>,
}

impl SchemaModel {
    /// Looks the tables up, of all generations that there may be.
    ///
    /// # Panics
    /// If there is none of a name: the service must have refused that.
    pub(super) fn new(schema: &Schema, truth: &Truth) -> SchemaModel {
        let (first, others) = truth.generations.split_first().expect("a generation");
        let others = others
            .iter()
            .map(|tables| SchemaModel::of_one(schema, tables, truth));
        SchemaModel {
            others: others.collect(),
            ..SchemaModel::of_one(schema, first, truth)
        }
    }

    /// Of a generation, if there is one of that number.
    pub(super) fn of(&self, generation: u64) -> Option<&SchemaModel> {
        let mut all = core::iter::once(self).chain(&self.others);
        all.find(|model| model.tables.generation() == generation)
    }

    fn of_one(schema: &Schema, tables: &Arc<Resident>, truth: &Truth) -> SchemaModel {
        let feature = |f: &Feature| {
            let position = tables.tables().iter().position(|t| t.name() == f.table);
            let table = position.expect("bound schemas name tables that there are");
            let resident = &tables.tables()[table];
            FeatureModel {
                table,
                dim: resident.dim(),
                rows: resident.lookup_count(),
                kind: resident.kind(),
                keys: resident.entries().collect(),
                crowd: truth.crowd.clone(),
                pooling: f.pooling,
                output: f.output,
                max_ids: f.max_ids,
                offset: f.offset,
                stride: f.stride,
            }
        };
        SchemaModel {
            schema: schema.clone(),
            features: schema.features.iter().map(feature).collect(),
            tables: Arc::clone(tables),
            lacks: truth.lacks.clone(),
            listed: truth.listed.clone(),
            untold: Arc::clone(&truth.untold),
            history: truth.history.clone(),
            others: Vec::new(),
        }
    }

    /// The rows that an id of a feature leads to, in whatever generation, with their table's number.
    pub(super) fn rows(&self, feature: usize, id: u64) -> impl Iterator<Item = (usize, u32)> {
        let all = core::iter::once(self).chain(&self.others);
        all.filter_map(move |model| {
            let f = &model.features[feature];
            Some((f.table, f.row(id)?))
        })
    }

    /// Whether a request may be refused for a row of a feature.
    pub(super) fn may_fail(&self, feature: u32) -> bool {
        let feature = self.features.get(feature as usize);
        feature.is_some_and(|feature| self.lacks.may_fail(feature.table))
    }

    /// Whether requests bring weights.
    pub fn is_weighted(&self) -> bool {
        self.features.iter().any(|f| f.pooling.is_weighted())
    }

    /// Whether raw sums can be asked for.
    pub fn has_partials(&self) -> bool {
        self.features.iter().all(FeatureModel::has_partials)
    }

    /// Whether ids have to be of 64 bits.
    pub fn is_wide(&self) -> bool {
        let hashed = |f: &FeatureModel| f.kind != TableKind::Dense;
        self.features.iter().any(hashed)
    }

    /// Bytes of a target for `bags` bags.
    pub fn target_bytes(&self, bags: u32) -> u64 {
        self.features
            .iter()
            .map(|f| {
                f.place(if f.is_pooled() { bags } else { f.max_ids } - 1)
                    .end
            })
            .max()
            .unwrap_or(0)
    }

    fn table(&self, feature: usize) -> &ResidentTable {
        &self.tables.tables()[self.features[feature].table]
    }

    /// The generation's book of what its rows were.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The generation and table of a feature.
    fn place(&self, feature: usize) -> (u64, usize) {
        (self.tables.generation(), self.features[feature].table)
    }

    /// The moments of a span of which rows of these ids may be, as far as they differ.
    pub fn moments(
        &self,
        feature: usize,
        ids: &[u64],
        span: &RangeInclusive<Moment>,
    ) -> BTreeSet<Moment> {
        let f = &self.features[feature];
        let rows: Vec<u32> = ids.iter().filter_map(|&id| f.row(id)).collect();
        self.history.moments(self.place(feature), &rows, span)
    }

    /// The bytes of the vector of an id of a feature that is not pooled, at a moment. `None` as for a bag.
    pub fn row(&self, feature: usize, id: u64, moment: Moment) -> Option<Vec<u8>> {
        let f = &self.features[feature];
        let mut vector = vec![0.0; f.dim];
        let row = f.row(id)?;
        self.with_rows(feature, &[row], &|_| moment, |rows, ids| {
            scalar::row(rows, ids[0], &mut vector);
        });
        Some(stored(&vector, f.output))
    }

    /// Gives these rows of a feature's table as each is at its moment, and the numbers that they have there.
    fn with_rows(
        &self,
        feature: usize,
        ids: &[u32],
        moment: &dyn Fn(u32) -> Moment,
        take: impl FnOnce(&Rows<'_>, &[u32]),
    ) {
        let (table, (_, number)) = (self.table(feature), self.place(feature));
        let (own, stride) = (rows(table), table.stride());
        let other = |row: u32| {
            // One that a delta changed is not read from where it can't be.
            let lacking = || self.lacks.row(number, row).then(|| vec![0; stride]);
            let now = self.history.row(self.place(feature), row, moment(row));
            now.or_else(lacking)
        };
        let others: Vec<Option<Vec<u8>>> = ids.iter().map(|&row| other(row)).collect();
        if others.iter().all(Option::is_none) {
            return take(&own, ids);
        }
        let at_first = |row: u32| table.bytes()[row as usize * stride..][..stride].to_vec();
        let copies = ids.iter().zip(others);
        let copies = copies.flat_map(|(&row, other)| other.unwrap_or_else(|| at_first(row)));
        let (copies, count) = (copies.collect::<Vec<u8>>(), ids.len() as u32);
        let copies = Rows::new(&copies, stride, count, own.dim(), own.format());
        let numbers: Vec<u32> = (0..count).collect();
        take(&copies.expect("the same shape"), &numbers);
    }

    /// The bytes of one bag's vector by the scalar reference, at a moment. `None` where an id is not in the table
    /// or partials are asked for that there are none of: for which there must be no answer.
    pub fn vector(
        &self,
        feature: usize,
        ids: &[u64],
        weights: Option<&[f32]>,
        partials: bool,
        moment: Moment,
    ) -> Option<Vec<u8>> {
        self.vector_of(feature, ids, weights, partials, &|_| moment)
    }

    /// The same of rows that are each of a moment of its own.
    fn vector_of(
        &self,
        feature: usize,
        ids: &[u64],
        weights: Option<&[f32]>,
        partials: bool,
        moment: &dyn Fn(u32) -> Moment,
    ) -> Option<Vec<u8>> {
        let f = &self.features[feature];
        if partials && !self.has_partials() {
            return None;
        }
        let ids: Vec<u32> = ids.iter().map(|&id| f.row(id)).collect::<Option<_>>()?;
        let mode = match f.pooling {
            Pooling::Sum | Pooling::WeightedSum => Mode::Sum,
            Pooling::Mean | Pooling::WeightedMean if partials => Mode::Sum,
            Pooling::Mean | Pooling::WeightedMean => Mode::Mean,
            Pooling::Max => Mode::Max,
            Pooling::None => return None,
        };
        let weights = weights.filter(|_| f.pooling.is_weighted());
        let mut vector = vec![0.0; f.dim];
        self.with_rows(feature, &ids, moment, |rows, ids| {
            scalar::bag(rows, ids, weights, mode, &mut vector);
        });
        Some(stored(&vector, f.output))
    }
}

/// Ways to mix moments of a bag's rows that are tried: more than there are, but of long bags.
const MIXTURES: usize = 100_000;

impl SchemaModel {
    /// Whether a bag's vector has these bytes though its rows are not all of one moment of a span: those that a bag waits for may come from the table
    /// that has become resident meanwhile. Where there are too many ways it is counted, and let pass.
    pub fn is_mixed(
        &self,
        feature: usize,
        (ids, weights): (&[u64], Option<&[f32]>),
        partials: bool,
        span: &RangeInclusive<Moment>,
        bytes: &[u8],
    ) -> bool {
        let (f, place) = (&self.features[feature], self.place(feature));
        if !self.listed[f.table] {
            return false;
        }
        let rows: BTreeSet<u32> = ids.iter().filter_map(|&id| f.row(id)).collect();
        let versions = rows.into_iter().map(|row| {
            let moments = self.history.moments(place, &[row], span);
            (row, Vec::from_iter(moments))
        });
        let changed: Vec<(u32, Vec<Moment>)> = versions.filter(|(_, of)| of.len() > 1).collect();
        let all = changed.iter().map(|(_, of)| of.len());
        let all = all.fold(1_usize, usize::saturating_mul);
        if all > MIXTURES {
            self.untold.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        (0..all).any(|mixture| {
            let mut left = mixture;
            let chosen = changed.iter().map(|(row, of)| {
                let moment = of[left % of.len()];
                left /= of.len();
                (*row, moment)
            });
            let chosen: BTreeMap<u32, Moment> = chosen.collect();
            let moment = |row: u32| chosen.get(&row).copied().unwrap_or(*span.start());
            let vector = self.vector_of(feature, ids, weights, partials, &moment);
            vector.is_some_and(|vector| vector == bytes)
        })
    }
}

fn stored(vector: &[f32], output: Output) -> Vec<u8> {
    let output = match output {
        Output::F32 => rowmill_pooling::Output::F32,
        Output::F16 => rowmill_pooling::Output::F16,
        Output::Bf16 => rowmill_pooling::Output::Bf16,
    };
    let mut bytes = vec![0; vector.len() * output.bytes()];
    for (&x, place) in vector.iter().zip(bytes.chunks_exact_mut(output.bytes())) {
        scalar::store(x, output, place);
    }
    bytes
}

/// Draws a schema that has to be accepted: features side by side with gaps, or one after another.
pub fn draw_schema(rng: &mut Rng, tables: &Resident) -> Schema {
    let max_batch = rng.u32(1..=48);
    let (weights, outputs) = (rng.u8(0..3), rng.bool());
    let blocks = rng.bool();
    let mut features: Vec<Feature> = (0..rng.usize(1..=6))
        .map(|i| draw_feature(rng, tables, i, weights, outputs))
        .collect();
    let first = 4 * rng.u64(0..4);
    let mut offset = first;
    let pooled = |f: &&mut Feature| f.pooling != Pooling::None;
    for f in features.iter_mut().filter(pooled) {
        let element = f.output.bytes();
        f.offset = offset.next_multiple_of(element);
        f.stride += element * rng.u64(0..4);
        let vectors = if blocks { max_batch } else { 1 };
        offset = f.offset + u64::from(vectors) * f.stride;
    }
    if !blocks {
        let row = (offset - first).next_multiple_of(4);
        features
            .iter_mut()
            .filter(pooled)
            .for_each(|f| f.stride = row);
        offset = first + u64::from(max_batch) * row;
    }
    for f in features.iter_mut().filter(|f| f.pooling == Pooling::None) {
        let element = f.output.bytes();
        f.max_ids = rng.u32(1..=max_batch * 6);
        f.offset = offset.next_multiple_of(element);
        f.stride += element * rng.u64(0..4);
        offset = f.offset + u64::from(f.max_ids) * f.stride;
    }
    Schema {
        max_batch,
        features,
    }
}

/// A feature without a place. `weights`: all have some (0), some have (1), none has.
fn draw_feature(rng: &mut Rng, tables: &Resident, i: usize, weights: u8, outputs: bool) -> Feature {
    let table = &tables.tables()[rng.usize(0..tables.tables().len())];
    let plain = [Pooling::Sum, Pooling::Mean, Pooling::Max, Pooling::None][rng.usize(0..4)];
    let weighted = [Pooling::WeightedSum, Pooling::WeightedMean][rng.usize(0..2)];
    let pooling = match (weights, rng.bool()) {
        (0, _) | (1, true) => weighted,
        _ => plain,
    };
    let output = Output::ALL[if outputs { rng.usize(0..3) } else { 0 }];
    let name = format!("feature-{i}");
    Feature {
        pooling,
        ..Feature::block(&name, table.name(), output, table.dim() as u32, 0, 0)
    }
}

/// Breaks a schema so that it has to be refused.
pub fn break_schema(rng: &mut Rng, schema: &mut Schema) {
    let f = rng.usize(0..schema.features.len());
    match rng.u8(0..4) {
        0 => schema.features[f].table = "no such table".into(),
        1 => schema.features[f].offset += 1,
        2 => schema.features[f].stride = 0,
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
    /// Of each feature that is not pooled, the ids in the parts before.
    pub first_ids: Vec<u32>,
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
            let mut lengths: Vec<u32> = (0..bags).map(|_| length(rng)).collect();
            if !f.is_pooled() {
                // No more than the block holds.
                let mut left = f.max_ids;
                for length in &mut lengths {
                    *length = left.min(*length);
                    left -= *length;
                }
            }
            work.first_ids.push(0);
            let count = lengths.iter().sum::<u32>() as usize;
            work.ids.push((0..count).map(|_| f.draw_id(rng)).collect());
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

    /// How many vectors a feature has.
    pub fn vectors(&self, model: &SchemaModel, feature: usize) -> u32 {
        match model.features[feature].is_pooled() {
            true => self.bags,
            false => self.ids[feature].len() as u32,
        }
    }

    /// Whether the target may hold these bytes for a vector, of a bag or of an id, whose rows are of one of these moments.
    pub fn is_right(
        &self,
        model: &SchemaModel,
        (feature, vector): (usize, u32),
        partials: bool,
        span: &RangeInclusive<Moment>,
        bytes: &[u8],
    ) -> bool {
        if !model.features[feature].is_pooled() {
            let id = self.ids[feature][vector as usize];
            let moments = model.moments(feature, &[id], span);
            return moments.into_iter().any(|moment| {
                let row = model.row(feature, id, moment);
                bytes == row.expect("drawn ids are in the table")
            });
        }
        let bag = vector as usize;
        let lengths = &self.lengths[feature];
        let from = lengths[..bag].iter().sum::<u32>() as usize;
        let range = from..from + lengths[bag] as usize;
        let weights = &self.weights[feature][range.clone()];
        let ids = &self.ids[feature][range];
        let moments = model.moments(feature, ids, span);
        let is_of_one = moments.into_iter().any(|moment| {
            let vector = model.vector(feature, ids, Some(weights), partials, moment);
            bytes == vector.expect("drawn ids are in the table")
        });
        is_of_one || model.is_mixed(feature, (ids, Some(weights)), partials, span, bytes)
    }
}
