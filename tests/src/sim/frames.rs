//! Request frames made by hand: every form that the protocol allows, and requests that are wrong in
//! one way, with the status that they have to get.

use fastrand::Rng;
use rowmill_table::TableKind;
use rowmill_wire::control::Welcome;
use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::request::{FLAG_PARTIALS, Header, encode, inline_offset};
use rowmill_wire::{Element, FeatureSpan, Op, Place, Segment, Status};

use super::model::{SchemaModel, Work};

/// Where a request's own bytes are in the client's regions.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// The region of ids, lengths and weights.
    pub source: u32,
    /// Where this request's part of it begins.
    pub source_at: u64,
    /// The region of results.
    pub target: u32,
    /// Where this request's part of it begins.
    pub target_at: u64,
}

/// A frame, and what goes with it.
pub struct Made {
    /// The frame's bytes.
    pub frame: Vec<u8>,
    /// What has to be written to the source region first, at `Room::source_at`.
    pub source: Vec<u8>,
    /// The status that a wrong request has to get.
    pub refused: Option<Status>,
    /// Whether it has a limit of time.
    pub limited: bool,
}

/// Most ids of a drawn request: with their weights 24,000 bytes, which leaves 8 KiB of [`ROOM_BYTES`]
/// for lengths.
const IDS_MAX: u32 = 2000;

/// Bytes of the source region that a request needs at most.
pub const ROOM_BYTES: u64 = 32 << 10;

fn push(to: &mut Vec<u8>, value: u64, wide: bool) {
    match wide {
        true => to.extend(value.to_le_bytes()),
        false => to.extend((value as u32).to_le_bytes()),
    }
}

/// Draws a request part for a schema. With `wrong`, it is often wrong in one way.
pub fn draw(
    rng: &mut Rng,
    model: &SchemaModel,
    schema: u32,
    request: u64,
    room: Room,
    welcome: &Welcome,
    wrong: bool,
) -> Made {
    let most = model.schema.max_batch;
    let lengths_most = welcome.max_lengths / model.features.len() as u32;
    let bags = rng.u32(1..=most.min(lengths_most));
    let ids_per_bag = [0, 1, 4, 16][rng.usize(0..4)];
    let mut work = Work::draw(rng, model, bags, ids_per_bag);
    while work.count() as u32 > welcome.max_ids.min(IDS_MAX) {
        work = Work::draw(rng, model, bags.min(4), 0);
    }
    let bags = work.bags;
    let (mut header, mut spans) = (Header::null(request), Vec::new());
    header.op = Op::Lookup;
    header.flags = if rng.bool() && model.has_partials() {
        FLAG_PARTIALS
    } else {
        0
    };
    for (f, first) in work.first_ids.iter_mut().enumerate() {
        let (f, ids) = (&model.features[f], work.ids[f].len() as u32);
        *first = rng.u32(0..=f.max_ids.saturating_sub(ids));
    }
    header.attempt = rng.u16(..);
    header.parts = rng.u8(1..=4);
    header.part = rng.u8(0..header.parts);
    header.schema = schema;
    header.bags = bags;
    header.first_bag = rng.u32(0..=most - bags);
    header.slice_bags = if rng.bool() { rng.u32(0..=bags) } else { 0 };
    header.remaining_us = if rng.u8(0..4) == 0 {
        rng.u32(1..300)
    } else {
        0
    };
    (header.target_region, header.target_base) = (room.target, room.target_at);
    let mut refused = if wrong && rng.bool() {
        spoil(rng, model, &mut header, &mut work)
    } else {
        None
    };
    if refused.is_none() && rng.u8(0..8) == 0 {
        header.op = Op::Prefetch;
        (header.flags, header.slice_bags) = (0, 0);
        (header.target_region, header.target_base) = (0, 0);
    }
    let (offsets, wide_lengths) = (rng.bool(), rng.bool());
    let wide_ids = model.is_wide() || rng.bool();
    let (mut lengths, mut ids, mut weights) = (Vec::new(), Vec::new(), Vec::new());
    let (mut lengths_at, mut ids_at, mut sum) = (0, 0, u64::from(rng.u32(0..3)));
    for (f, own) in work.lengths.iter().enumerate() {
        spans.push(FeatureSpan {
            lengths_at,
            ids_at,
            ids: work.ids[f].len() as u32,
            first_id: work.first_ids[f],
        });
        if offsets {
            push(&mut lengths, sum, wide_lengths);
            lengths_at += 1;
        }
        for &length in own {
            sum += u64::from(length);
            push(
                &mut lengths,
                if offsets { sum } else { length.into() },
                wide_lengths,
            );
        }
        work.ids[f]
            .iter()
            .for_each(|&id| push(&mut ids, id, wide_ids));
        work.weights[f]
            .iter()
            .for_each(|w| weights.extend(w.to_le_bytes()));
        lengths_at += own.len() as u32;
        ids_at += work.ids[f].len() as u32;
    }
    if refused == Some(Status::UnknownFeature) {
        spans.pop();
        if spans.is_empty() {
            refused = Some(Status::Malformed);
        }
    }
    if !model.is_weighted() {
        weights.clear();
    }
    if refused == Some(Status::WeightsMismatch) {
        weights = if model.is_weighted() {
            Vec::new()
        } else {
            vec![0; 4 * ids_at as usize]
        };
    }
    let weighted = model.is_weighted() != (refused == Some(Status::WeightsMismatch));
    let total = lengths.len() + ids.len() + weights.len();
    let inline = inline_offset(spans.len()) + total <= SLOT_BYTES && rng.bool();
    debug_assert!(total as u64 <= ROOM_BYTES, "drawn requests fit their room");
    let segment = |at: usize, len: usize, element| Segment {
        place: match inline {
            true => Place::Inline {
                offset: (inline_offset(spans.len()) + at) as u32,
            },
            false => Place::Region {
                region: room.source,
                offset: room.source_at + at as u64,
            },
        },
        element,
        len: len as u64,
    };
    let lengths_element = match (offsets, wide_lengths) {
        (false, false) => Element::Bits32,
        (false, true) => Element::Bits64,
        (true, false) => Element::Offsets32,
        (true, true) => Element::Offsets64,
    };
    let ids_element = if wide_ids {
        Element::Bits64
    } else {
        Element::Bits32
    };
    header.lengths = segment(0, lengths.len(), lengths_element);
    header.ids = segment(lengths.len(), ids.len(), ids_element);
    header.weights = match weighted {
        true => segment(lengths.len() + ids.len(), weights.len(), Element::Bits32),
        false => Segment::ABSENT,
    };
    let mut frame = [0; SLOT_BYTES];
    let data: [&[u8]; 3] = if inline {
        [&lengths, &ids, &weights]
    } else {
        [&[], &[], &[]]
    };
    let len = encode(&header, &spans, &data, &mut frame).expect("drawn frames fit");
    let source = if inline {
        Vec::new()
    } else {
        [lengths, ids, weights].concat()
    };
    Made {
        frame: frame[..len].to_vec(),
        source,
        refused,
        limited: header.remaining_us > 0,
    }
}

/// Makes one thing wrong, and gives the status for it.
fn spoil(
    rng: &mut Rng,
    model: &SchemaModel,
    header: &mut Header,
    work: &mut Work,
) -> Option<Status> {
    let f = rng.usize(0..work.ids.len());
    match rng.u8(0..14) {
        0 => header.schema = 15,
        1 => header.target_region = 14,
        2 => header.target_base += 1,
        3 => header.target_base = 1 << 40,
        4 => header.target_base = u64::MAX - 3,
        5 => header.generation = 77,
        6 => header.first_bag = model.schema.max_batch,
        7 => return Some(Status::UnknownFeature),
        8 => return Some(Status::WeightsMismatch),
        9 if !work.ids[f].is_empty() => {
            let at = rng.usize(0..work.ids[f].len());
            work.ids[f][at] = model.features[f].bad_id(rng)?;
            return Some(match model.features[f].kind {
                TableKind::Dense => Status::IdOutOfRange,
                TableKind::Hashed(_) => Status::UnknownId,
            });
        }
        10 => {
            let bag = rng.usize(0..work.lengths[f].len());
            work.lengths[f][bag] += 1;
            return Some(Status::LengthsMismatch);
        }
        11 if !model.has_partials() => {
            header.flags = FLAG_PARTIALS;
            return Some(Status::Unsupported);
        }
        12 if model.features[f].is_pooled() => {
            work.first_ids[f] = 1;
            return Some(Status::Malformed);
        }
        13 if !model.features[f].is_pooled() => {
            let ids = work.ids[f].len() as u32;
            work.first_ids[f] = model.features[f].max_ids - ids + 1;
            return Some(Status::BlockOverflow);
        }
        _ => return None,
    }
    [
        (header.schema == 15, Status::UnknownSchema),
        (header.target_region == 14, Status::UnknownRegion),
        (
            !header.target_base.is_multiple_of(2),
            Status::TargetMisaligned,
        ),
        (header.generation == 77, Status::Retry),
        (header.first_bag == model.schema.max_batch, Status::TooLarge),
    ]
    .into_iter()
    .find_map(|(so, status)| so.then_some(status))
    .or(Some(Status::TargetOutOfRegion))
}
