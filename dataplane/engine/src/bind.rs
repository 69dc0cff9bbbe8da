//! Binding: a schema's names become table numbers, and its outputs are checked once, so that a
//! request needs only its base checked.

use core::ops::Range;
use std::sync::Arc;

use arrayvec::ArrayVec;
use rowmill_arena::MAX_STRIPS;
use rowmill_pooling::{Mode, Output};
use rowmill_table::{Resident, TableKind};
use rowmill_wire::{Feature, Pooling, Refusal, Schema, Status};

use crate::memory::STAGE_BYTES_MIN;

/// A feature whose table and place are known to be good.
#[derive(Clone, Copy, Debug)]
pub struct BoundFeature {
    /// The table's number in the generation.
    pub table: usize,
    /// Whether its ids are keys of a hashed table, to be resolved to rows.
    pub hashed: bool,
    /// How bags are pooled.
    pub mode: Mode,
    /// How elements of vectors are stored.
    pub output: Output,
    /// Whether each id has a weight.
    pub weighted: bool,
    /// Bytes from the target's base to the first vector.
    pub offset: u64,
    /// Bytes between vectors.
    pub stride: u64,
    /// Bytes of a vector.
    pub vector_bytes: u64,
    /// Vectors that there can be: bags of the largest batch, or ids where it is not pooled.
    pub vectors: u32,
    /// Bytes of a row, for estimates of work.
    pub row_bytes: u64,
    /// Rows that ids can name.
    pub rows: u32,
    /// The column of its panel that its vectors are part of, and the byte of that at which they start.
    pub(crate) column: usize,
    pub(crate) column_at: u64,
}

/// Features whose vectors touch and have the same stride: together they are one strip of the target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) stride: u64,
}

/// Consecutive features that are staged together: pooled ones of which a vector each fits the least staging,
/// or one that is not pooled.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    pub(crate) features: Range<u32>,
    pub(crate) columns: ArrayVec<Column, MAX_STRIPS>,
    /// Of one vector of each feature.
    pub(crate) bytes: u64,
}

impl BoundFeature {
    /// Whether raw sums can be written in place of its vectors: of a maximum an empty bag would have to
    /// be told from zeros, and f32 sums don't fit the place of smaller elements.
    pub(crate) fn has_partials(&self) -> bool {
        matches!(self.mode, Mode::Sum | Mode::Mean) && self.output == Output::F32
    }
}

/// A bound schema.
#[derive(Debug)]
pub struct BoundSchema {
    pub(crate) max_batch: u32,
    pub(crate) weighted: bool,
    /// Bytes of the largest element: bases of targets are multiples of it.
    pub(crate) element_bytes: u64,
    pub(crate) features: Vec<BoundFeature>,
    pub(crate) panels: Vec<Panel>,
    pub(crate) tables: Arc<Resident>,
}

impl BoundSchema {
    /// The features in the schema's order.
    pub fn features(&self) -> &[BoundFeature] {
        &self.features
    }

    /// The number of the generation that it is bound to.
    pub fn generation(&self) -> u64 {
        self.tables.generation()
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
    let mut features: Vec<BoundFeature> = schema
        .features
        .iter()
        .enumerate()
        .map(|(i, f)| bind_feature(i as u32, f, schema.max_batch, tables))
        .collect::<Result<_, _>>()?;
    for (i, a) in features.iter().enumerate() {
        for (j, b) in features.iter().enumerate().take(i) {
            if overlap(a, b) {
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
    let element_bytes = schema.features.iter().map(|f| f.output.bytes()).max();
    let panels = panels(&mut features);
    Ok(BoundSchema {
        max_batch: schema.max_batch,
        weighted: features.iter().any(|f| f.weighted),
        element_bytes: element_bytes.unwrap_or(1),
        features,
        panels,
        tables: Arc::clone(tables),
    })
}

/// Cuts the features into panels, and tells each its column.
fn panels(features: &mut [BoundFeature]) -> Vec<Panel> {
    let mut panels: Vec<Panel> = Vec::new();
    let mut open = false;
    for (feature, i) in features.iter_mut().zip(0..) {
        let jagged = feature.mode == Mode::None;
        let fits = |panel: &Panel| {
            panel.bytes + feature.vector_bytes <= STAGE_BYTES_MIN
                && (!panel.columns.is_full() || touches(panel.columns.last(), feature))
        };
        if jagged || !open || !panels.last().is_some_and(fits) {
            panels.push(Panel {
                features: i..i,
                columns: ArrayVec::new(),
                bytes: 0,
            });
        }
        open = !jagged;
        let panel = panels.last_mut().expect("one was pushed");
        if !touches(panel.columns.last(), feature) {
            panel.columns.push(Column {
                offset: feature.offset,
                bytes: 0,
                stride: feature.stride,
            });
        }
        feature.column = panel.columns.len() - 1;
        let column = &mut panel.columns[feature.column];
        feature.column_at = column.bytes;
        column.bytes += feature.vector_bytes;
        panel.bytes += feature.vector_bytes;
        panel.features.end = i + 1;
    }
    panels
}

/// Whether a feature's vectors begin where those of a column end.
fn touches(column: Option<&Column>, feature: &BoundFeature) -> bool {
    column.is_some_and(|column| {
        column.stride == feature.stride
            && column.offset + column.bytes == feature.offset
            && column.bytes + feature.vector_bytes <= column.stride
    })
}

fn bind_feature(
    i: u32,
    feature: &Feature,
    max_batch: u32,
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
            "feature `{}` has offset {} and stride {}, which must be multiples of the {element} bytes of an element",
            feature.name, feature.offset, feature.stride
        );
        return Err((Refusal::feature(Status::TargetMisaligned, i), detail));
    }
    let bound = BoundFeature {
        table,
        hashed: match resident.kind() {
            TableKind::Dense => false,
            TableKind::Hashed(_) => true,
        },
        mode: match feature.pooling {
            Pooling::Sum | Pooling::WeightedSum => Mode::Sum,
            Pooling::Mean | Pooling::WeightedMean => Mode::Mean,
            Pooling::Max => Mode::Max,
            Pooling::None => Mode::None,
        },
        output: match feature.output {
            rowmill_wire::Output::F32 => Output::F32,
            rowmill_wire::Output::F16 => Output::F16,
            rowmill_wire::Output::Bf16 => Output::Bf16,
        },
        weighted: feature.pooling.is_weighted(),
        offset: feature.offset,
        stride: feature.stride,
        vector_bytes: resident.dim() as u64 * element,
        vectors: feature.max_vectors(max_batch),
        row_bytes: resident.stride() as u64,
        rows: resident.lookup_count(),
        column: 0,
        column_at: 0,
    };
    if bound.stride < bound.vector_bytes {
        let detail = format!(
            "feature `{}` has a stride of {} bytes, less than its vectors of {} bytes: they would overlap",
            feature.name, bound.stride, bound.vector_bytes
        );
        return Err((Refusal::feature(Status::OverlappingOutputs, i), detail));
    }
    Ok(bound)
}

/// Whether two features write a common byte for some of their vectors. Features of equal
/// stride may interleave; others must lie apart as a whole (the rule of SPEC.md, which never accepts
/// an overlap and refuses only layouts that nobody writes).
fn overlap(a: &BoundFeature, b: &BoundFeature) -> bool {
    // Below 2^64 by the bounds of the protocol: see MAX_EXTENT and MAX_BLOCK_IDS.
    let end = |f: &BoundFeature| f.offset + u64::from(f.vectors - 1) * f.stride + f.vector_bytes;
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
