//! What clients ask for, and what they are to be answered.

use std::collections::HashMap;

use rand::RngExt;
use rand::rngs::StdRng;
use rowmill_client::{Batch, Division, Feature, Output, Pooling, Schema};
use rowmill_pooling::{Mode, scalar};
use rowmill_table::{Missing, Resident, ResidentTable, TableKind};

use super::MAX_BATCH;

/// What a request asked for, kept until its answer comes.
pub(crate) struct Asked {
    features: Vec<(Vec<u32>, Vec<u64>, Vec<f32>)>,
    bags: u32,
}

/// The ids of each feature's table to draw from, some of them missing where that is answered.
pub(crate) fn names(tables: &Resident) -> Vec<Vec<u64>> {
    let of = |f: &Feature| {
        let table = tables.table(&f.table).expect("a table of the model");
        let keys = || table.entries().map(|(key, _)| key);
        match table.kind() {
            TableKind::Dense => (0..table.lookup_count().into()).collect(),
            TableKind::Hashed(Missing::Error) => keys().collect(),
            TableKind::Hashed(_) => keys().flat_map(|key| [key, key ^ 5]).collect(),
        }
    };
    schema().features.iter().map(of).collect()
}

impl Asked {
    pub(crate) fn draw(rng: &mut StdRng, names: &[Vec<u64>]) -> Asked {
        let bags = if rng.random_bool(0.3) {
            1
        } else {
            rng.random_range(1..=MAX_BATCH)
        };
        let mut feature = |names: &Vec<u64>| {
            let lengths: Vec<u32> = (0..bags).map(|_| rng.random_range(0..12)).collect();
            let count = lengths.iter().sum::<u32>();
            let mut id = || names[rng.random_range(0..names.len())];
            let ids = (0..count).map(|_| id()).collect();
            let weights = (0..count).map(|_| rng.random_range(-2.0..2.0)).collect();
            (lengths, ids, weights)
        };
        Asked {
            features: names.iter().map(&mut feature).collect(),
            bags,
        }
    }

    pub(crate) fn fill(&self, batch: &mut Batch) {
        batch
            .clear(self.bags as usize)
            .expect("a batch within bounds");
        for ((lengths, ids, weights), feature) in self.features.iter().zip(schema().features) {
            let outcome = match feature.pooling.is_weighted() {
                true => batch.push_weighted(Division::Lengths(lengths), &ids[..], weights),
                false => batch.push(Division::Lengths(lengths), &ids[..]),
            };
            outcome.expect("a sound feature");
        }
    }

    /// Where in the target each vector lies, and its bytes.
    pub(crate) fn oracle(&self, tables: &Resident) -> Vec<(u64, Vec<u8>)> {
        let mut vectors = Vec::new();
        for ((lengths, ids, weights), feature) in self.features.iter().zip(schema().features) {
            let table = tables.table(&feature.table).expect("a table of the model");
            let ids: Vec<u32> = ids.iter().map(row_of(table)).collect();
            let rows = rowmill_engine::rows(table);
            let mut vector = vec![0.0; table.dim()];
            let mut put = |i: usize, vector: &[f32]| {
                let output = stored(feature.output);
                let mut bytes = vec![0; vector.len() * output.bytes()];
                for (&x, place) in vector.iter().zip(bytes.chunks_exact_mut(output.bytes())) {
                    scalar::store(x, output, place);
                }
                vectors.push((feature.offset + i as u64 * feature.stride, bytes));
            };
            let mode = match feature.pooling {
                Pooling::Sum | Pooling::WeightedSum => Mode::Sum,
                Pooling::Mean | Pooling::WeightedMean => Mode::Mean,
                Pooling::Max => Mode::Max,
                Pooling::None => {
                    for (i, &id) in ids.iter().enumerate() {
                        scalar::row(&rows, id, &mut vector);
                        put(i, &vector);
                    }
                    continue;
                }
            };
            let mut from = 0;
            for (bag, &length) in lengths.iter().enumerate() {
                let range = from..from + length as usize;
                from = range.end;
                let weighted = feature.pooling.is_weighted();
                let weights = weighted.then(|| &weights[range.clone()]);
                scalar::bag(&rows, &ids[range], weights, mode, &mut vector);
                put(bag, &vector);
            }
        }
        vectors
    }
}

/// The row of an id, by the table's own list of keys.
fn row_of(table: &ResidentTable) -> impl Fn(&u64) -> u32 {
    let rows: HashMap<u64, u32> = table.entries().collect();
    let (kind, missing) = (table.kind(), table.lookup_count());
    move |id| match kind {
        TableKind::Dense => *id as u32,
        TableKind::Hashed(_) => rows.get(id).copied().unwrap_or(missing),
    }
}

fn stored(output: Output) -> rowmill_pooling::Output {
    match output {
        Output::F32 => rowmill_pooling::Output::F32,
        Output::F16 => rowmill_pooling::Output::F16,
        Output::Bf16 => rowmill_pooling::Output::Bf16,
    }
}

/// Every pooling and every output; blocks of rows behind the matrix of what is pooled.
pub(crate) fn schema() -> Schema {
    let pooled = [
        ("u", "users", Pooling::Sum, Output::F32, 64),
        ("i", "items", Pooling::Mean, Output::F16, 36),
        ("t", "tags", Pooling::WeightedSum, Output::F32, 128),
        ("r", "urls", Pooling::Max, Output::Bf16, 32),
        ("w", "words", Pooling::Mean, Output::F32, 20),
        ("p", "places", Pooling::WeightedMean, Output::F16, 12),
    ];
    let blocks = [
        ("v", "urls", Pooling::None, Output::F16, 32),
        ("x", "users", Pooling::None, Output::F32, 64),
    ];
    let all = pooled.into_iter().chain(blocks);
    let mut features: Vec<Feature> = all
        .map(|(name, table, pooling, output, dim)| Feature {
            pooling,
            ..Feature::block(name, table, output, dim, MAX_BATCH * 12, 0)
        })
        .collect();
    let (matrix, blocks) = features.split_at_mut(pooled.len());
    let row_bytes = matrix.iter().map(|f| f.stride).sum::<u64>();
    let mut offset = 0;
    for f in matrix {
        (f.offset, f.max_ids) = (offset, 0);
        offset += f.stride;
        f.stride = row_bytes;
    }
    offset = u64::from(MAX_BATCH) * row_bytes;
    for f in blocks {
        f.offset = offset;
        offset += u64::from(f.max_ids) * f.stride;
    }
    Schema {
        max_batch: MAX_BATCH,
        features,
    }
}
