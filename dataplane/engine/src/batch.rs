//! One micro-batch of one request: pieces (one feature, a run of bags) up to a budget of bytes,
//! pooled by one call of the kernels into staging.
//!
//! A slice is pooled in runs of bags, as many as fit the staging, which are all where that is the target
//! itself; and a run feature after feature, so that the rows of a small table stay in the nearest
//! cache while all of its bags are pooled. A micro-batch ends wherever its budget does, or its run.

use arrayvec::ArrayVec;
use rowmill_arena::{MAX_STRIPS, Strip};
use rowmill_pooling::{Bags, Kernels, Mode};
use rowmill_wire::Status;
use rowmill_wire::request::FLAG_PARTIALS;

use crate::bind::{BoundSchema, Column, Panel};
use crate::limits::PIECES;
use crate::memory::{Denied, Memory};
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

/// Pools the next micro-batch of a request whose ids are checked: of one run of one panel.
///
/// # Errors
/// [`Denied::Later`] where there is no staging now: nothing was done. Statuses end the request.
pub(crate) fn run(
    slot: &mut Slot,
    schema: &BoundSchema,
    budget: u64,
    kernels: &Kernels,
    memory: &mut impl Memory,
) -> Result<Made, Denied> {
    let mut made = Made::default();
    if slot.walk.slice == 0 {
        slot.walk.slice = next_slice(slot);
    }
    if let Some(panel) = next_panel(slot, schema, &mut made) {
        begin_run(slot, schema, panel, memory)?;
        let pooled = pool(slot, schema, panel, budget, kernels, memory)?;
        made.bytes += pooled.bytes;
        made.rows += pooled.rows;
        if slot.walk.feature == panel.features.end {
            end_run(slot, panel, memory)?;
        }
    }
    if next_panel(slot, schema, &mut made).is_none() {
        finish_slice(slot, &mut made);
    }
    Ok(made)
}

/// The panel of which the slice has vectors left.
fn next_panel<'s>(slot: &mut Slot, schema: &'s BoundSchema, made: &mut Made) -> Option<&'s Panel> {
    loop {
        let panel = schema.panels.get(slot.walk.panel as usize)?;
        if slot.walk.vectors == 0 {
            slot.walk.vectors = vectors(slot, schema, panel, made);
        }
        if slot.walk.placed < slot.walk.vectors {
            return Some(panel);
        }
        let walk = &mut slot.walk;
        (walk.panel, walk.vectors, walk.placed) = (walk.panel + 1, 0, 0);
    }
}

/// How many vectors each feature of a panel has in the slice.
fn vectors(slot: &Slot, schema: &BoundSchema, panel: &Panel, made: &mut Made) -> u32 {
    let f = panel.features.start as usize;
    match schema.features[f].mode {
        Mode::None => {
            let from = f * slot.header.bags as usize + slot.walk.bag as usize;
            let lengths = &slot.data.lengths[from..from + slot.walk.slice as usize];
            made.bytes += 4 * lengths.len() as u64;
            lengths.iter().sum()
        }
        _ => slot.walk.slice,
    }
}

/// Takes staging for the next run, unless one is under way.
fn begin_run(
    slot: &mut Slot,
    schema: &BoundSchema,
    panel: &Panel,
    memory: &mut impl Memory,
) -> Result<(), Denied> {
    if slot.staging.is_some() {
        return Ok(());
    }
    let (walk, header) = (&mut slot.walk, &slot.header);
    let left = walk.vectors - walk.placed;
    let fitting = (memory.stage_bytes() / panel.bytes).clamp(1, u64::from(left));
    let feature = panel.features.start;
    let span = &slot.spans[feature as usize];
    walk.first = match schema.features[feature as usize].mode {
        Mode::None => span.first_id + (span.next_id - span.ids_from),
        _ => header.first_bag + walk.bag + walk.placed,
    };
    (walk.run, walk.feature, walk.done) = (fitting as u32, feature, 0);
    let strips = strips(slot, panel);
    let staging = memory.stage(slot.conn, slot.header.target_region, &strips)?;
    slot.staging = Some(staging);
    Ok(())
}

/// Places a run whose vectors are all pooled.
fn end_run(slot: &mut Slot, panel: &Panel, memory: &mut impl Memory) -> Result<(), Status> {
    let strips = strips(slot, panel);
    if let Some(staging) = slot.staging.take() {
        memory.place(slot.conn, slot.header.target_region, staging, &strips)?;
    }
    slot.walk.placed += slot.walk.run;
    Ok(())
}

/// What the run fills of the target's region.
fn strips(slot: &Slot, panel: &Panel) -> ArrayVec<Strip, MAX_STRIPS> {
    let strip = |column: &Column| Strip {
        offset: slot.header.target_base
            + column.offset
            + u64::from(slot.walk.first) * column.stride,
        bytes: column.bytes,
        stride: column.stride,
        count: u64::from(slot.walk.run),
    };
    panel.columns.iter().map(strip).collect()
}

/// Pools up to a budget of the run into its staging.
fn pool(
    slot: &mut Slot,
    schema: &BoundSchema,
    panel: &Panel,
    budget: u64,
    kernels: &Kernels,
    memory: &mut impl Memory,
) -> Result<Made, Status> {
    let staging = slot.staging.as_ref().expect("the run has begun");
    let laid = staging.lay(&strips(slot, panel));
    let mut made = Made::default();
    let mut walk = slot.walk;
    let jagged = [fitting_ids(schema, &walk, budget)];
    let mut nexts: ArrayVec<(u32, u32), PIECES> = ArrayVec::new();
    let mut pieces: ArrayVec<Bags<'_>, PIECES> = ArrayVec::new();
    while made.bytes < budget && walk.feature < panel.features.end && !pieces.is_full() {
        let feature = &schema.features[walk.feature as usize];
        let laid = laid[feature.column];
        let next = next_piece(slot, schema, &jagged, &walk, budget - made.bytes);
        nexts.push((walk.feature, next.next_id));
        pieces.push(Bags {
            offset: (laid.at + feature.column_at + u64::from(walk.done) * laid.stride) as usize,
            stride: laid.stride as usize,
            ..next.bags
        });
        made.bytes += next.bytes;
        made.rows += next.bags.ids.len() as u64;
        walk.done += next.bags.vectors() as u32;
        if walk.done == walk.run {
            walk.done = 0;
            walk.feature += 1;
        }
        if feature.mode == Mode::None {
            break; // What `jagged` holds is used up, and so is the budget but for less than an id.
        }
    }
    let target = memory.window(slot.conn, slot.header.target_region, staging)?;
    kernels.pool(&pieces, &target);
    drop(pieces);
    for (feature, next_id) in nexts {
        slot.spans[feature as usize].next_id = next_id;
    }
    slot.walk = walk;
    Ok(made)
}

/// How many bags the next slice has; all of them where none are asked for.
fn next_slice(slot: &Slot) -> u32 {
    let left = slot.header.bags - slot.walk.bag;
    match slot.header.slice_bags {
        0 => left,
        slice => slice.min(left),
    }
}

/// How many ids of the run of a feature that is not pooled are for a budget, at least one.
fn fitting_ids(schema: &BoundSchema, walk: &Walk, budget: u64) -> u32 {
    let feature = &schema.features[walk.feature as usize];
    let fitting = budget / (feature.row_bytes + feature.vector_bytes.max(64));
    fitting.clamp(1, u64::from(walk.run - walk.done)) as u32
}

/// Vectors of one feature, with no place yet.
struct Next<'s> {
    bags: Bags<'s>,
    /// The id behind them, in the slot's.
    next_id: u32,
    /// Estimated bytes to read and write.
    bytes: u64,
}

/// The next bags of the current feature in the run, at least one, cut where `budget` is used up. One that
/// is not pooled has as many ids as `jagged` says, whatever their bags.
fn next_piece<'s>(
    slot: &'s Slot,
    schema: &'s BoundSchema,
    jagged: &'s [u32; 1],
    walk: &Walk,
    budget: u64,
) -> Next<'s> {
    let header = &slot.header;
    let f = walk.feature as usize;
    let (feature, span) = (&schema.features[f], &slot.spans[f]);
    let lengths = if feature.mode == Mode::None {
        &jagged[..]
    } else {
        let from = f * header.bags as usize + (walk.bag + walk.placed + walk.done) as usize;
        &slot.data.lengths[from..from + (walk.run - walk.done) as usize]
    };
    let (mut bags, mut ids, mut bytes) = (0, 0, 0);
    for &length in lengths {
        bags += 1;
        ids += length as usize;
        // However short a vector is, storing or sending it touches a line.
        let vector_bytes = feature.vector_bytes.max(64);
        bytes += u64::from(length) * feature.row_bytes
            + match feature.mode {
                Mode::None => u64::from(length) * vector_bytes,
                _ => vector_bytes,
            };
        if bytes >= budget {
            break;
        }
    }
    let id = span.next_id as usize;
    let partials = header.flags & FLAG_PARTIALS != 0;
    let bags = Bags {
        rows: rows(&schema.tables.tables()[feature.table]),
        ids: &slot.data.ids[id..id + ids],
        lengths: &lengths[..bags],
        weights: feature.weighted.then(|| &slot.data.weights[id..id + ids]),
        mode: if partials { Mode::Sum } else { feature.mode },
        output: feature.output,
        offset: 0,
        stride: 0,
    };
    Next {
        bags,
        next_id: (id + ids) as u32,
        bytes,
    }
}

/// Moves on to the next slice, or the end, once all panels of the slice are done.
fn finish_slice(slot: &mut Slot, made: &mut Made) {
    let walk = &mut slot.walk;
    walk.bag += walk.slice;
    walk.slice = 0;
    walk.panel = 0;
    if walk.bag == slot.header.bags {
        made.finished = true;
    } else {
        made.slice = Some(walk.slices);
        walk.slices += 1;
    }
}
