//! One micro-batch of one request: pieces (one feature, a run of bags) up to a budget of bytes,
//! pooled by one call of the kernels straight into the target.
//!
//! A slice is pooled feature after feature, so that the rows of a small table stay in the nearest
//! cache while all of its bags are pooled; a micro-batch ends wherever its budget does.

use arrayvec::ArrayVec;
use rowmill_pooling::{Bags, Kernels, Mode};
use rowmill_wire::request::FLAG_PARTIALS;
use rowmill_wire::{Refusal, Status};

use crate::bind::BoundSchema;
use crate::limits::PIECES;
use crate::memory::Memory;
use crate::rows::rows;
use crate::slot::{Slot, Walk};

/// What a micro-batch did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Made {
    /// Bytes of rows read and results written.
    pub(crate) bytes: u64,
    /// Rows read.
    pub(crate) rows: u64,
    /// The slice that is now placed, when it is not the last.
    pub(crate) slice: Option<u32>,
    /// Whether the request is finished.
    pub(crate) finished: bool,
}

/// Pools the next micro-batch of a request whose ids are checked.
pub(crate) fn run(
    slot: &mut Slot,
    schema: &BoundSchema,
    budget: u64,
    kernels: &Kernels,
    memory: &mut impl Memory,
) -> Result<Made, Refusal> {
    let mut made = Made::default();
    if slot.walk.slice == 0 {
        slot.walk.slice = next_slice(slot);
    }
    let mut walk = slot.walk;
    let mut nexts: ArrayVec<(u32, u32), PIECES> = ArrayVec::new();
    let mut pieces: ArrayVec<Bags<'_>, PIECES> = ArrayVec::new();
    while made.bytes < budget
        && (walk.feature as usize) < schema.features.len()
        && !pieces.is_full()
    {
        let feature = walk.feature;
        let (piece, next_id) = next_piece(slot, schema, &mut walk, budget - made.bytes, &mut made);
        // Empty bags that are not pooled give nothing.
        if piece.vectors() > 0 {
            nexts.push((feature, next_id));
            pieces.push(piece);
        }
        if walk.done == walk.slice {
            walk.done = 0;
            walk.feature += 1;
        }
    }
    let region = slot.header.target_region;
    if !pieces.is_empty() {
        let low = pieces.iter().map(|p| p.offset).min().unwrap_or(0);
        let high = pieces.iter().map(end_of).max().unwrap_or(0);
        for piece in &mut pieces {
            piece.offset -= low;
        }
        let target = memory
            .target(slot.conn, region, low as u64, (high - low) as u64)
            .map_err(Refusal::whole)?;
        kernels.pool(&pieces, &target);
    }
    drop(pieces);
    if memory.is_lost(slot.conn, region) {
        return Err(Refusal::whole(Status::RegionLost));
    }
    for (feature, next_id) in nexts {
        slot.spans[feature as usize].next_id = next_id;
    }
    slot.walk = walk;
    finish_slice(slot, schema.features.len() as u32, &mut made);
    Ok(made)
}

fn end_of(piece: &Bags<'_>) -> usize {
    piece
        .target_end()
        .expect("target extents were checked when the request was accepted")
}

/// How many bags the next slice has; all of them where none are asked for.
fn next_slice(slot: &Slot) -> u32 {
    let left = slot.header.bags - slot.walk.bag;
    match slot.header.slice_bags {
        0 => left,
        slice => slice.min(left),
    }
}

/// The next run of bags of the current feature, at least one bag, cut where `budget` is used up.
fn next_piece<'s>(
    slot: &'s Slot,
    schema: &'s BoundSchema,
    walk: &mut Walk,
    budget: u64,
    made: &mut Made,
) -> (Bags<'s>, u32) {
    let header = &slot.header;
    let f = walk.feature as usize;
    let (feature, span) = (&schema.features[f], &slot.spans[f]);
    let from = f * header.bags as usize + (walk.bag + walk.done) as usize;
    let waiting = &slot.data.lengths[from..from + (walk.slice - walk.done) as usize];
    let (mut bags, mut ids, mut bytes) = (0, 0, 0);
    for &length in waiting {
        bags += 1;
        ids += length as usize;
        bytes += match feature.mode {
            // An empty bag costs no more than reading its length.
            Mode::None => u64::from(length) * (feature.row_bytes + feature.vector_bytes) + 4,
            _ => u64::from(length) * feature.row_bytes + feature.vector_bytes,
        };
        if bytes >= budget {
            break;
        }
    }
    let table = &schema.tables.tables()[feature.table];
    let id = span.next_id as usize;
    let first = u64::from(match feature.mode {
        Mode::None => span.first_id + (span.next_id - span.ids_from),
        _ => header.first_bag + walk.bag + walk.done,
    });
    let partials = header.flags & FLAG_PARTIALS != 0;
    let piece = Bags {
        rows: rows(table),
        ids: &slot.data.ids[id..id + ids],
        lengths: &waiting[..bags],
        weights: feature.weighted.then(|| &slot.data.weights[id..id + ids]),
        mode: if partials { Mode::Sum } else { feature.mode },
        output: feature.output,
        offset: (header.target_base + feature.offset + first * feature.stride) as usize,
        stride: feature.stride as usize,
    };
    walk.done += bags as u32;
    made.bytes += bytes;
    made.rows += ids as u64;
    (piece, (id + ids) as u32)
}

/// Moves on to the next slice, or the end, where all features of the slice are done.
fn finish_slice(slot: &mut Slot, features: u32, made: &mut Made) {
    let walk = &mut slot.walk;
    if walk.feature < features {
        return;
    }
    walk.bag += walk.slice;
    walk.slice = 0;
    walk.feature = 0;
    if walk.bag == slot.header.bags {
        made.finished = true;
    } else {
        made.slice = Some(walk.slices);
        walk.slices += 1;
    }
}
