//! One micro-batch of one request: pieces (one feature, a run of bags) up to a budget of bytes,
//! pooled by one call of the kernels into staging.
//!
//! A slice is pooled in runs of bags, as many as fit the staging, which are all where that is the target
//! itself; and a run feature after feature, so that the rows of a small table stay in the nearest
//! cache while all of its bags are pooled. A micro-batch ends wherever its budget does, or its run.
//!
//! Bags of cached tables whose rows are not all there are parked, and pooled when they are (`ready.rs`).

use arrayvec::ArrayVec;
use rowmill_arena::{Layout, MAX_STRIPS, Strip};
use rowmill_cache::store::Turn;
use rowmill_pooling::{Bags, Kernels, Mode};
use rowmill_wire::Status;

use crate::bind::{BoundSchema, Column, Panel};
use crate::cached::Cached;
use crate::limits::PIECES;
use crate::memory::{Denied, Memory};
use crate::piece;
use crate::ready;
use crate::slot::{Held, Run, Slot};

/// What a micro-batch did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Made {
    /// Bytes of rows read and results written.
    pub(crate) bytes: u64,
    /// What was done besides, in the bytes that take as long: parking bags, looking for rows to prefetch.
    pub(crate) besides: u64,
    /// Rows read.
    pub(crate) rows: u64,
    /// The slice that is now placed, when it is not the last.
    pub(crate) slice: Option<u32>,
    /// Whether the request is finished.
    pub(crate) finished: bool,
    /// Whether the run can't be placed before its parked bags are pooled, and can't be left to them either.
    pub(crate) held: bool,
    /// Whether all that can be done next waits for rows, or for room to park a bag.
    pub(crate) waits: bool,
}

impl Made {
    /// What it cost, in bytes.
    pub(crate) fn cost(&self) -> u64 {
        self.bytes + self.besides
    }
}

/// What a micro-batch is done with.
pub(crate) struct Work<'w> {
    pub(crate) now_ns: u64,
    /// The number of the request's slot.
    pub(crate) index: u32,
    /// Bytes that it may read and write, about.
    pub(crate) budget: u64,
    pub(crate) kernels: &'w Kernels,
    /// While it lasts, rows stay where they were found.
    pub(crate) turn: Turn<'w>,
    pub(crate) cached: &'w mut Cached,
}

/// Pools the next micro-batch of a request whose ids are checked: bags that were parked and have their rows now, or
/// else what comes next of one run of one panel.
///
/// # Errors
/// [`Denied::Later`] where there is no room now: nothing was done. Statuses end the request.
pub(crate) fn run(
    work: &mut Work<'_>,
    slot: &mut Slot,
    schema: &BoundSchema,
    memory: &mut impl Memory,
) -> Result<Made, Denied> {
    let mut made = Made::default();
    if !slot.ready.is_empty() {
        ready::pool(work, slot, schema, memory, &mut made)?;
    } else if slot.walk.slices < slot.header.slices() && work.cached.has_room(work.index, slot) {
        match walk(work, slot, schema, memory, &mut made) {
            // Without room for another run: what is placed is announced all the same.
            Err(Denied::Later) if is_placed(slot) => {}
            outcome => outcome?,
        }
    }
    announce(slot, &mut made);
    Ok(made)
}

/// Goes on with the slice under way, or begins the next one.
fn walk(
    work: &mut Work<'_>,
    slot: &mut Slot,
    schema: &BoundSchema,
    memory: &mut impl Memory,
    made: &mut Made,
) -> Result<(), Denied> {
    if slot.walk.slice == 0 {
        slot.walk.slice = next_slice(slot);
    }
    if let Some(panel) = next_panel(slot, schema, made) {
        begin_run(slot, schema, panel, memory)?;
        if slot.walk.feature < panel.features.end {
            pool(work, slot, schema, panel, memory, made)?;
        }
        if slot.walk.feature < panel.features.end {
            return Ok(());
        }
        if !is_held(slot) {
            end_run(slot, panel, memory)?;
        } else if !hold_run(slot, memory) {
            made.held = true;
            return Ok(());
        }
    }
    if next_panel(slot, schema, made).is_none() {
        finish_slice(slot);
    }
    Ok(())
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
    walk.run.first = match schema.features[feature as usize].mode {
        Mode::None => span.first_id + (span.next_id - span.ids_from),
        _ => header.first_bag + walk.bag + walk.placed,
    };
    (walk.run.count, walk.feature, walk.done) = (fitting as u32, feature, 0);
    walk.parked = 0;
    let strips = strips(slot, panel, slot.walk.run);
    let staging = memory.stage(slot.conn, slot.header.target_region, &strips)?;
    slot.staging = Some(staging);
    Ok(())
}

/// Places a run whose vectors are all pooled.
fn end_run(slot: &mut Slot, panel: &Panel, memory: &mut impl Memory) -> Result<(), Status> {
    let strips = strips(slot, panel, slot.walk.run);
    if let Some(staging) = slot.staging.take() {
        memory.place(slot.conn, slot.header.target_region, staging, &strips)?;
    }
    slot.walk.placed += slot.walk.run.count;
    Ok(())
}

/// Leaves a run to its parked bags, if there is room to keep it: the last of them that is pooled places it. So the rows that the next runs
/// miss are asked for meanwhile.
fn hold_run(slot: &mut Slot, memory: &mut impl Memory) -> bool {
    let has_room = !slot.held.is_full();
    let kept = (slot.staging).take_if(|staging| has_room && memory.keep(slot.conn, staging));
    let Some(staging) = kept else {
        return false;
    };
    let walk = &mut slot.walk;
    slot.held.push(Held {
        staging,
        slice: walk.slices,
        panel: walk.panel,
        run: walk.run,
        parked: walk.parked,
    });
    walk.placed += walk.run.count;
    true
}

/// What a run fills of the target's region.
pub(crate) fn strips(slot: &Slot, panel: &Panel, run: Run) -> ArrayVec<Strip, MAX_STRIPS> {
    let strip = |column: &Column| Strip {
        offset: slot.header.target_base + column.offset + u64::from(run.first) * column.stride,
        bytes: column.bytes,
        stride: column.stride,
        count: u64::from(run.count),
    };
    panel.columns.iter().map(strip).collect()
}

/// Pools up to a budget of the run into its staging.
fn pool(
    work: &mut Work<'_>,
    slot: &mut Slot,
    schema: &BoundSchema,
    panel: &Panel,
    memory: &mut impl Memory,
    made: &mut Made,
) -> Result<(), Denied> {
    let pieces = piece::next(work, slot, schema, panel, made);
    if pieces.is_empty() {
        return Ok(());
    }
    let jagged: ArrayVec<[u32; 1], PIECES> = pieces.iter().map(|piece| [piece.ids]).collect();
    let staging = slot.staging.as_ref().expect("the run has begun");
    let laid = staging.lay(&strips(slot, panel, slot.walk.run));
    let mut bags: ArrayVec<Bags<'_>, PIECES> = ArrayVec::new();
    for (piece, jagged) in pieces.iter().zip(&jagged) {
        let feature = &schema.features[piece.feature as usize];
        let laid = laid[feature.column];
        bags.push(Bags {
            offset: (laid.at + feature.column_at + u64::from(piece.done) * laid.stride) as usize,
            stride: laid.stride as usize,
            ..piece.bags(slot, schema, jagged, work.cached)
        });
    }
    let target = memory.window(slot.conn, slot.header.target_region, staging)?;
    work.kernels.pool(&bags, &target);
    Ok(())
}

/// How many bags the next slice has; all of them where none are asked for.
fn next_slice(slot: &Slot) -> u32 {
    let left = slot.header.bags - slot.walk.bag;
    match slot.header.slice_bags {
        0 => left,
        slice => slice.min(left),
    }
}

/// Moves on to the next slice, or the end, once all panels of the slice are done.
fn finish_slice(slot: &mut Slot) {
    let walk = &mut slot.walk;
    walk.bag += walk.slice;
    walk.slice = 0;
    walk.panel = 0;
    walk.slices += 1;
}

/// Whether the run has to wait for its parked bags before it is placed: where it is not stored in the target itself, since nothing
/// orders two writes of the same bytes (a device may relax that).
fn is_held(slot: &Slot) -> bool {
    let layout = slot.staging.as_ref().map(|staging| staging.layout);
    slot.walk.parked > 0 && layout == Some(Layout::Packed)
}

/// Announces the next slice, if all of its vectors are placed: in their order, one a micro-batch.
fn announce(slot: &mut Slot, made: &mut Made) {
    let slices = slot.header.slices();
    if is_placed(slot) {
        let slice = slot.walk.announced;
        slot.walk.announced += 1;
        made.finished = slot.walk.announced == slices;
        made.slice = (!made.finished).then_some(slice);
    }
    let stands = slot.walk.slices == slices || made.held || slot.crowded > 0;
    made.waits = stands && slot.ready.is_empty() && !made.finished && !is_placed(slot);
}

/// Whether the slice to be announced next is placed.
fn is_placed(slot: &Slot) -> bool {
    let next = slot.walk.announced;
    next < slot.walk.slices && slot.unplaced[next as usize] == 0
}
