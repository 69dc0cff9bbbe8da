//! Binding: a schema's names become table numbers, and its outputs are checked once, so that a
//! request needs only its base checked.

use std::sync::Arc;

use rowmill_table::{Resident, RowFormat};
use rowmill_wire::{Feature, Pooling, Refusal, Schema, Status};

use rowmill_pooling::Mode;

/// A feature whose table and place are known to be good.
#[derive(Clone, Copy, Debug)]
pub struct BoundFeature {
    /// The table's number in the generation.
    pub table: usize,
    /// How bags are pooled.
    pub mode: Mode,
    /// Whether each id has a weight.
    pub weighted: bool,
    /// Bytes from the target's base to bag 0's vector.
    pub offset: u64,
    /// Bytes between bags.
    pub stride: u64,
    /// Bytes of a pooled vector.
    pub vector_bytes: u64,
    /// Bytes of a row, for estimates of work.
    pub row_bytes: u64,
    /// Rows of the table.
    pub rows: u32,
}

/// A bound schema.
#[derive(Debug)]
pub struct BoundSchema {
    pub(crate) max_batch: u32,
    pub(crate) weighted: bool,
    pub(crate) features: Vec<BoundFeature>,
    pub(crate) tables: Arc<Resident>,
}

impl BoundSchema {
    /// The features in the schema's order.
    pub fn features(&self) -> &[BoundFeature] {
        &self.features
    }

    /// Whether requests must bring weights.
    pub fn is_weighted(&self) -> bool {
        self.weighted
    }
}

/// Binds a schema to the tables of a generation.
///
/// # Errors
/// The refusal and a sentence with names in it: `UnknownTable`, `TargetMisaligned` for offsets or
/// strides that are no multiple of the element, `OverlappingOutputs`.
pub fn bind(schema: &Schema, tables: &Arc<Resident>) -> Result<BoundSchema, (Refusal, String)> {
    let features: Vec<BoundFeature> = schema
        .features
        .iter()
        .enumerate()
        .map(|(i, f)| bind_feature(i as u32, f, tables))
        .collect::<Result<_, _>>()?;
    for (i, a) in features.iter().enumerate() {
        for (j, b) in features.iter().enumerate().take(i) {
            if overlap(a, b, schema.max_batch) {
                let detail = format!(
                    "features {j} (`{}`) and {i} (`{}`) write the same bytes: offsets {} and {}, strides {} and {}, vectors of {} and {} bytes",
                    schema.features[j].name,
                    schema.features[i].name,
                    b.offset,
                    a.offset,
                    b.stride,
                    a.stride,
                    b.vector_bytes,
                    a.vector_bytes
                );
                return Err((
                    Refusal::feature(Status::OverlappingOutputs, i as u32),
                    detail,
                ));
            }
        }
    }
    let weighted = features.iter().any(|f| f.weighted);
    Ok(BoundSchema {
        max_batch: schema.max_batch,
        weighted,
        features,
        tables: Arc::clone(tables),
    })
}

fn bind_feature(
    i: u32,
    feature: &Feature,
    tables: &Resident,
) -> Result<BoundFeature, (Refusal, String)> {
    let Some(table) = tables
        .tables()
        .iter()
        .position(|t| t.name() == feature.table)
    else {
        let detail = format!("feature `{}` wants table `{}`", feature.name, feature.table);
        return Err((Refusal::feature(Status::UnknownTable, i), detail));
    };
    let resident = &tables.tables()[table];
    let element = feature.output.bytes();
    if !feature.offset.is_multiple_of(element) || !feature.stride.is_multiple_of(element) {
        let detail = format!(
            "feature `{}` has offset {} and stride {}, which must be multiples of {element}",
            feature.name, feature.offset, feature.stride
        );
        return Err((Refusal::feature(Status::TargetMisaligned, i), detail));
    }
    let bound = BoundFeature {
        table,
        mode: match feature.pooling {
            Pooling::Sum | Pooling::WeightedSum => Mode::Sum,
            Pooling::Mean => Mode::Mean,
        },
        weighted: feature.pooling == Pooling::WeightedSum,
        offset: feature.offset,
        stride: feature.stride,
        vector_bytes: resident.dim() as u64 * element,
        row_bytes: resident.stride() as u64,
        rows: resident.row_count(),
    };
    if bound.stride < bound.vector_bytes {
        let detail = format!(
            "feature `{}` has a stride of {} bytes, less than its vectors of {} bytes: its bags would overlap",
            feature.name, bound.stride, bound.vector_bytes
        );
        return Err((Refusal::feature(Status::OverlappingOutputs, i), detail));
    }
    Ok(bound)
}

/// Whether two features write a common byte for some bags below `max_batch`. Features of equal
/// stride may interleave; others must lie apart as a whole (the rule of SPEC.md, which never accepts
/// an overlap and refuses only layouts that nobody writes).
fn overlap(a: &BoundFeature, b: &BoundFeature, max_batch: u32) -> bool {
    let end = |f: &BoundFeature| f.offset + u64::from(max_batch - 1) * f.stride + f.vector_bytes;
    if end(a) <= b.offset || end(b) <= a.offset {
        return false;
    }
    if a.stride != b.stride {
        return true;
    }
    let (low, high) = if a.offset <= b.offset { (a, b) } else { (b, a) };
    let apart = (high.offset - low.offset) % a.stride;
    apart < low.vector_bytes || apart + high.vector_bytes > a.stride
}

/// The pooling crate's name of a row format.
pub(crate) fn pooling_format(format: RowFormat) -> rowmill_pooling::RowFormat {
    match format {
        RowFormat::F32 => rowmill_pooling::RowFormat::F32,
        RowFormat::Int8 => rowmill_pooling::RowFormat::Int8,
    }
}
