//! Accepting a request: what it says is checked against its schema, the limits and the target's
//! region, its lengths are copied and added up, and inline ids are copied too, since the frame's
//! buffer is used again. Nothing of a table is read here.

use rowmill_pooling::check_ids;
use rowmill_wire::limits::MAX_IDS_PER_BAG;
use rowmill_wire::request::Header;
use rowmill_wire::{Element, Place, Refusal, Request, Segment, Status};

use crate::bind::BoundSchema;
use crate::copy::{SIGN, Source, TOO_LARGE};
use crate::limits::{CHECK_IDS, Limits};
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
    if header.generation != 0 && header.generation != schema.tables.generation() {
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
    if (header.weights.place != Place::Absent) != schema.weighted {
        return Err(Refusal::whole(Status::WeightsMismatch));
    }
    if !header.target_base.is_multiple_of(4) {
        return Err(Refusal::whole(Status::TargetMisaligned));
    }
    Ok(())
}

/// The bytes of the target's region that the part may write: from the lowest to past the highest.
///
/// # Errors
/// `TargetOutOfRegion` where the addresses don't fit 64 bits.
pub(crate) fn target_extent(header: &Header, schema: &BoundSchema) -> Result<(u64, u64), Refusal> {
    let (first, last) = (
        u64::from(header.first_bag),
        u64::from(header.first_bag + header.bags - 1),
    );
    let (mut low, mut high) = (u64::MAX, 0);
    for (i, f) in schema.features.iter().enumerate() {
        // Offsets and strides are at most MAX_EXTENT, so that only the base can overflow.
        let end = header
            .target_base
            .checked_add(f.offset + last * f.stride + f.vector_bytes);
        let end = end.ok_or(Refusal::feature(Status::TargetOutOfRegion, i as u32))?;
        low = low.min(header.target_base + f.offset + first * f.stride);
        high = high.max(end);
    }
    Ok((low, high))
}

/// Fills a free slot with a request whose shape is good.
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
    let (low, high) = target_extent(header, schema)?;
    memory
        .target(slot.conn, header.target_region, low, high - low)
        .map_err(Refusal::whole)?;
    let mut ids_from = 0;
    for (span, from) in slot.spans.iter_mut().zip(request.spans()) {
        *span = Span {
            segment_at: from.ids_at,
            ids_from,
            ids: from.ids,
            next_id: ids_from,
        };
        ids_from += from.ids;
    }
    copy_lengths(slot, request, memory)?;
    slot.stage = Stage::Checking;
    let inline = |s: &Segment| !matches!(s.place, Place::Region { .. });
    if inline(&header.ids) && inline(&header.weights) {
        // At most a frame's worth of ids: one step.
        check_step(slot, schema, memory, Some(request))?;
        assert!(
            slot.stage == Stage::Pooling,
            "inline ids are fewer than one step checks"
        );
    } else if inline(&header.ids) != inline(&header.weights)
        && header.weights.place != Place::Absent
    {
        // One of them would outlive the frame; clients have no reason to mix.
        return Err(Refusal::whole(Status::Unsupported));
    }
    Ok(())
}

fn copy_lengths(
    slot: &mut Slot,
    request: &Request<'_>,
    memory: &mut impl Memory,
) -> Result<(), Refusal> {
    let header = &slot.header;
    let (bags, element) = (header.bags as usize, header.lengths.element);
    let source =
        Source::of(request, &header.lengths).ok_or(Refusal::whole(Status::LengthsMismatch))?;
    for (f, span) in request.spans().enumerate() {
        let lengths = &mut slot.data.lengths[f * bags..][..bags];
        let first = u64::from(span.lengths_at);
        let refused = |status| Refusal::feature(status, f as u32);
        if element.is_offsets() {
            let mut start = [0];
            source
                .read_u32(slot.conn, element, first, &mut start, memory)
                .map_err(refused)?;
            source
                .read_u32(slot.conn, element, first + 1, lengths, memory)
                .map_err(refused)?;
            offsets_to_lengths(start[0], lengths)
                .map_err(|bag| Refusal::at(Status::LengthsMismatch, f as u32, bag as u32))?;
        } else {
            source
                .read_u32(slot.conn, element, first, lengths, memory)
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

/// Copies and bounds up to [`CHECK_IDS`] ids (and their weights); moves the slot to pooling when all
/// are done. `request` is given while the frame is still there. Returns how many ids were handled.
pub(crate) fn check_step(
    slot: &mut Slot,
    schema: &BoundSchema,
    memory: &mut impl Memory,
    request: Option<&Request<'_>>,
) -> Result<u64, Refusal> {
    let header = slot.header;
    let source = |segment: &Segment| match (segment.place, request) {
        (Place::Region { region, offset }, _) => Some(Source::Region { region, offset }),
        (_, Some(request)) => Source::of(request, segment),
        (_, None) => None,
    };
    let (ids, weights) = (source(&header.ids), source(&header.weights));
    let mut left = CHECK_IDS;
    while left > 0 && (slot.check.feature as usize) < schema.features.len() {
        let f = slot.check.feature;
        let (span, feature) = (slot.spans[f as usize], &schema.features[f as usize]);
        let count = left.min((span.ids - slot.check.done) as usize);
        let at = (span.ids_from + slot.check.done) as usize;
        let first = u64::from(span.segment_at) + u64::from(slot.check.done);
        let refused = |status| Refusal::feature(status, f);
        if count > 0 {
            let ids = ids.ok_or(refused(Status::LengthsMismatch))?;
            let copied = &mut slot.data.ids[at..at + count];
            ids.read_u32(slot.conn, header.ids.element, first, copied, memory)
                .map_err(refused)?;
            if let Err(bad) = check_ids(copied, feature.rows) {
                let negative = copied[bad] & SIGN != 0;
                let status = if negative {
                    Status::IdNegative
                } else {
                    Status::IdOutOfRange
                };
                return Err(Refusal::at(status, f, slot.check.done + bad as u32));
            }
            if let (true, Some(weights)) = (feature.weighted, weights) {
                let copied = &mut slot.data.weights[at..at + count];
                weights
                    .read_f32(slot.conn, first, copied, memory)
                    .map_err(refused)?;
            }
        }
        left -= count;
        slot.check.done += count as u32;
        if slot.check.done == span.ids {
            slot.check = Check {
                feature: f + 1,
                done: 0,
            };
        }
    }
    if slot.check.feature as usize == schema.features.len() {
        slot.stage = Stage::Pooling;
    }
    Ok((CHECK_IDS - left) as u64)
}

const _: () = {
    // Inline ids are handled in one step.
    assert!(rowmill_wire::limits::SLOT_BYTES / 4 < CHECK_IDS);
    assert!(Element::Bits32 as u8 == 0);
};
