//! Accepting a request: what it says is checked against its schema, the limits and the target's
//! region, its lengths are copied and added up, and inline ids are copied too, since the frame's
//! buffer is used again. Nothing of a table is read here.

use rowmill_pooling::check_ids;
use rowmill_wire::limits::MAX_IDS_PER_BAG;
use rowmill_wire::request::FLAG_PARTIALS;
use rowmill_wire::{Element, Op, Place, Refusal, Request, Segment, Status};

use rowmill_pooling::Mode;
use rowmill_table::ResidentTable;

use crate::bind::{BoundFeature, BoundSchema};
use crate::copy::{CHUNK, SIGN, Source, TOO_LARGE};
use crate::fetch;
use crate::limits::{CHECK_IDS, HASHED_COST, Limits};
use crate::memory::Memory;
use crate::slot::{Check, Slot, Span, Stage, Walk};

/// Checks that need neither a slot nor the client's memory.
pub(crate) fn check_shape(
    request: &Request<'_>,
    schema: &BoundSchema,
    limits: &Limits,
) -> Result<(), Refusal> {
    let header = request.header();
    if request.features() != schema.features.len() {
        return Err(Refusal::whole(Status::UnknownFeature));
    }
    if header.generation != 0 && header.generation != schema.generation() {
        return Err(Refusal::whole(Status::Retry));
    }
    let lengths = u64::from(header.bags) * request.features() as u64;
    let ids: u64 = request.spans().map(|s| u64::from(s.ids)).sum();
    let too_large = header.first_bag + header.bags > schema.max_batch
        || lengths > u64::from(limits.max_lengths)
        || ids > u64::from(limits.max_ids);
    if too_large {
        return Err(Refusal::whole(Status::TooLarge));
    }
    // Ids in the frame are checked in one step, while it is there. Spans that overlap can name them many times.
    let cost = |f: &BoundFeature| if f.hashed { HASHED_COST } else { 1 } as u64;
    let costs = schema.features.iter().zip(request.spans());
    let costs: u64 = costs.map(|(f, span)| cost(f) * u64::from(span.ids)).sum();
    let inline = !matches!(header.ids.place, Place::Region { .. });
    if inline && costs + HASHED_COST as u64 > CHECK_IDS as u64 {
        return Err(Refusal::whole(Status::TooLarge));
    }
    if (header.weights.place != Place::Absent) != schema.weighted {
        return Err(Refusal::whole(Status::WeightsMismatch));
    }
    let partials = header.flags & FLAG_PARTIALS != 0;
    for (i, (f, span)) in schema.features.iter().zip(request.spans()).enumerate() {
        let refused = |status| Err(Refusal::feature(status, i as u32));
        if partials && !f.has_partials() {
            return refused(Status::Unsupported);
        }
        if f.mode != Mode::None && span.first_id != 0 {
            return refused(Status::Malformed);
        }
        if f.mode == Mode::None
            && u64::from(span.first_id) + u64::from(span.ids) > u64::from(f.vectors)
        {
            return refused(Status::BlockOverflow);
        }
    }
    if !header.target_base.is_multiple_of(schema.element_bytes) {
        return Err(Refusal::whole(Status::TargetMisaligned));
    }
    Ok(())
}

/// The bytes of the target's region that the part may write: from the lowest to past the highest; none
/// at the base where there are no vectors.
///
/// # Errors
/// `TargetOutOfRegion` where the addresses don't fit 64 bits.
fn target_extent(request: &Request<'_>, schema: &BoundSchema) -> Result<(u64, u64), Refusal> {
    let header = request.header();
    let (mut low, mut high) = (u64::MAX, 0);
    for (i, (f, span)) in schema.features.iter().zip(request.spans()).enumerate() {
        let (first, count) = match f.mode {
            Mode::None => (span.first_id, span.ids),
            _ => (header.first_bag, header.bags),
        };
        let Some(last) = (first + count).checked_sub(1).filter(|_| count > 0) else {
            continue;
        };
        // By MAX_EXTENT and MAX_BLOCK_IDS only the base can overflow.
        let end = header
            .target_base
            .checked_add(f.offset + u64::from(last) * f.stride + f.vector_bytes);
        let end = end.ok_or(Refusal::feature(Status::TargetOutOfRegion, i as u32))?;
        low = low.min(header.target_base + f.offset + u64::from(first) * f.stride);
        high = high.max(end);
    }
    if low > high {
        return Ok((header.target_base, header.target_base));
    }
    Ok((low, high))
}

/// Fills a free slot with a request whose shape is good. What comes inline is copied, since the frame's
/// buffer is used again; the rest is asked for.
pub(crate) fn fill(
    slot: &mut Slot,
    request: &Request<'_>,
    schema: &BoundSchema,
    memory: &mut impl Memory,
) -> Result<(), Refusal> {
    let header = request.header();
    slot.header = *header;
    slot.check = Check::default();
    slot.walk = Walk::default();
    if header.op == Op::Lookup {
        let (low, high) = target_extent(request, schema)?;
        memory
            .check(slot.conn, header.target_region, low, high - low)
            .map_err(Refusal::whole)?;
    }
    let mut ids_from = 0;
    for (span, from) in slot.spans.iter_mut().zip(request.spans()) {
        *span = Span {
            lengths_at: from.lengths_at,
            segment_at: from.ids_at,
            ids_from,
            ids: from.ids,
            first_id: from.first_id,
            next_id: ids_from,
        };
        ids_from += from.ids;
    }
    let inline = |s: &Segment| !matches!(s.place, Place::Region { .. });
    if inline(&header.ids) != inline(&header.weights) && header.weights.place != Place::Absent {
        // One of them would outlive the frame; clients have no reason to mix.
        return Err(Refusal::whole(Status::Unsupported));
    }
    if inline(&header.lengths) {
        copy_lengths(slot, request.features(), Some(request), memory)?;
    }
    if inline(&header.ids) {
        // At most a frame's worth of ids: one step.
        slot.stage = Stage::Checking;
        check_step(slot, schema, memory, Some(request), CHECK_IDS)?;
        assert!(
            slot.stage == Stage::Pooling,
            "`check_shape` bounds inline ids by what one step checks"
        );
    }
    if inline(&header.lengths) && inline(&header.ids) {
        return Ok(());
    }
    slot.stage = Stage::Asking;
    Ok(())
}

/// Goes on with a request whose data can be read now.
pub(crate) fn arrived(
    slot: &mut Slot,
    schema: &BoundSchema,
    memory: &mut impl Memory,
) -> Result<(), Refusal> {
    if matches!(slot.header.lengths.place, Place::Region { .. }) {
        copy_lengths(slot, schema.features.len(), None, memory)?;
    }
    slot.stage = Stage::Checking;
    if slot.check.feature as usize == schema.features.len() {
        checked(slot, memory);
    }
    Ok(())
}

/// All ids are checked: what was fetched has been copied.
fn checked(slot: &mut Slot, memory: &mut impl Memory) {
    slot.stage = Stage::Pooling;
    fetch::release(slot, memory);
}

fn copy_lengths(
    slot: &mut Slot,
    features: usize,
    request: Option<&Request<'_>>,
    memory: &mut impl Memory,
) -> Result<(), Refusal> {
    let header = slot.header;
    let (bags, element) = (header.bags as usize, header.lengths.element);
    slot.handled += (features * bags) as u64 * 8;
    let source = Source::of(slot, request, &header.lengths)
        .ok_or(Refusal::whole(Status::LengthsMismatch))?;
    for (f, span) in slot.spans[..features].iter().enumerate() {
        let lengths = &mut slot.data.lengths[f * bags..][..bags];
        let first = u64::from(span.lengths_at);
        let refused = |status| Refusal::feature(status, f as u32);
        if element.is_offsets() {
            let mut start = [0];
            source
                .read_u32(element, first, &mut start, memory)
                .map_err(refused)?;
            source
                .read_u32(element, first + 1, lengths, memory)
                .map_err(refused)?;
            offsets_to_lengths(start[0], lengths)
                .map_err(|bag| Refusal::at(Status::LengthsMismatch, f as u32, bag as u32))?;
        } else {
            source
                .read_u32(element, first, lengths, memory)
                .map_err(refused)?;
        }
        let longest = lengths.iter().copied().fold(0, u32::max);
        let sum: u64 = lengths.iter().map(|&l| u64::from(l)).sum();
        if sum != u64::from(span.ids) {
            return Err(refused(Status::LengthsMismatch));
        }
        if longest > MAX_IDS_PER_BAG {
            let bag = lengths.iter().position(|&l| l == longest).unwrap_or(0);
            return Err(Refusal::at(Status::TooLarge, f as u32, bag as u32));
        }
    }
    Ok(())
}

/// Turns offsets (all but the first) into lengths in place; `Err` names the bag where they fall or
/// are too large to be ids' positions (copies of larger values were cut to [`TOO_LARGE`] or more).
fn offsets_to_lengths(start: u32, offsets: &mut [u32]) -> Result<(), usize> {
    let mut before = start;
    for (bag, offset) in offsets.iter_mut().enumerate() {
        if before >= TOO_LARGE || *offset >= TOO_LARGE {
            return Err(bag);
        }
        let length = offset.checked_sub(before).ok_or(bag)?;
        before = *offset;
        *offset = length;
    }
    Ok(())
}

/// Copies up to `most` ids (and their weights), and bounds or resolves each; moves the slot to pooling
/// when all are done. `request` is given while the frame is still there. Returns how many ids were
/// handled, one of a hashed table counted as [`HASHED_COST`].
pub(crate) fn check_step(
    slot: &mut Slot,
    schema: &BoundSchema,
    memory: &mut impl Memory,
    request: Option<&Request<'_>>,
    most: usize,
) -> Result<u64, Refusal> {
    let header = slot.header;
    let ids = Source::of(slot, request, &header.ids);
    let weights = Source::of(slot, request, &header.weights);
    let mut left = most;
    while left >= HASHED_COST && (slot.check.feature as usize) < schema.features.len() {
        let f = slot.check.feature;
        let (span, feature) = (slot.spans[f as usize], &schema.features[f as usize]);
        let cost = if feature.hashed { HASHED_COST } else { 1 };
        let count = (left / cost).min((span.ids - slot.check.done) as usize);
        let at = (span.ids_from + slot.check.done) as usize;
        let first = u64::from(span.segment_at) + u64::from(slot.check.done);
        let refused = |status| Refusal::feature(status, f);
        if count > 0 {
            let ids = ids.ok_or(refused(Status::LengthsMismatch))?;
            let element = header.ids.element;
            let copied = &mut slot.data.ids[at..at + count];
            let checked = if feature.hashed {
                let table = &schema.tables.tables()[feature.table];
                resolve(table, &ids, element, first, copied, memory)
            } else {
                bound(feature.rows, &ids, element, first, copied, memory)
            };
            checked.map_err(|(status, bad)| match bad {
                Some(bad) => Refusal::at(status, f, slot.check.done + bad as u32),
                None => refused(status),
            })?;
            if let (true, Some(weights)) = (feature.weighted, weights) {
                let copied = &mut slot.data.weights[at..at + count];
                weights.read_f32(first, copied, memory).map_err(refused)?;
            }
        }
        left -= count * cost;
        slot.check.done += count as u32;
        if slot.check.done == span.ids {
            slot.check = Check {
                feature: f + 1,
                done: 0,
            };
        }
    }
    if slot.check.feature as usize == schema.features.len() {
        checked(slot, memory);
    }
    slot.handled += (most - left) as u64 * 8;
    Ok((most - left) as u64)
}

/// Why ids are refused, and the position of the one that is to blame.
type BadIds = (Status, Option<usize>);

/// Copies ids of a dense table and checks that all are below its number of rows.
fn bound(
    rows: u32,
    source: &Source<'_>,
    element: Element,
    first: u64,
    out: &mut [u32],
    memory: &mut impl Memory,
) -> Result<(), BadIds> {
    let read = source.read_u32(element, first, out, memory);
    read.map_err(|status| (status, None))?;
    check_ids(out, rows).map_err(|bad| {
        let negative = out[bad] & SIGN != 0;
        let status = if negative {
            Status::IdNegative
        } else {
            Status::IdOutOfRange
        };
        (status, Some(bad))
    })
}

/// Copies ids of a hashed table, of which any number is one, and puts the numbers of their rows in their
/// place.
fn resolve(
    table: &ResidentTable,
    source: &Source<'_>,
    element: Element,
    first: u64,
    out: &mut [u32],
    memory: &mut impl Memory,
) -> Result<(), BadIds> {
    let mut ids = [0u64; CHUNK];
    for (i, rows) in out.chunks_mut(CHUNK).enumerate() {
        let ids = &mut ids[..rows.len()];
        let read = source.read_u64(element, first + (i * CHUNK) as u64, ids, memory);
        read.map_err(|status| (status, None))?;
        let resolved = table.resolve(ids, rows);
        resolved.map_err(|bad| (Status::UnknownId, Some(i * CHUNK + bad)))?;
    }
    Ok(())
}

const _: () = {
    // All ids that a frame holds, each named once, are fewer than one step checks.
    assert!(rowmill_wire::limits::SLOT_BYTES / 4 * HASHED_COST + HASHED_COST <= CHECK_IDS);
    assert!(Element::Bits32 as u8 == 0);
};
