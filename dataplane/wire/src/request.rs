//! Request frames: a 64-byte header, three segment descriptors, one span for each feature, then
//! inline bytes. See SPEC.md for the layout.

use crate::codec::Reader;
use crate::limits::{MAX_BATCH, MAX_FEATURES, MAX_SLICES, SLOT_BYTES, VERSION};
use crate::status::{Refusal, Status};

/// Bytes of the fixed header.
pub const HEADER_BYTES: usize = 64;
/// Bytes of a segment descriptor.
pub const SEGMENT_BYTES: usize = 24;
/// Bytes of a feature span.
pub const SPAN_BYTES: usize = 16;
/// Bytes of the largest frame without inline data.
pub const BYTES_BEFORE_INLINE_MAX: usize =
    HEADER_BYTES + 3 * SEGMENT_BYTES + MAX_FEATURES * SPAN_BYTES;

/// Flag: write raw f32 sums, without the division of means.
pub const FLAG_PARTIALS: u8 = 1;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// Nothing: a round trip through the whole service, for measuring and for liveness.
    Null = 0,
    /// Look rows up and pool them.
    Lookup = 1,
    /// Have rows of cached tables fetched that are not there, as far as there is room. There is no result: `Ok` says that the ids
    /// were taken.
    Prefetch = 2,
}

/// The type of a segment's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Element {
    /// Lengths or ids as u32; weights as f32.
    Bits32 = 0,
    /// Lengths or ids as u64.
    Bits64 = 1,
    /// Offsets as u32 (lengths segment only): one more than bags, never falling.
    Offsets32 = 2,
    /// Offsets as u64 (lengths segment only).
    Offsets64 = 3,
}

impl Element {
    fn from_code(code: u8) -> Option<Element> {
        [
            Element::Bits32,
            Element::Bits64,
            Element::Offsets32,
            Element::Offsets64,
        ]
        .into_iter()
        .find(|&e| e as u8 == code)
    }

    /// Bytes of an element.
    pub fn bytes(self) -> u64 {
        match self {
            Element::Bits32 | Element::Offsets32 => 4,
            Element::Bits64 | Element::Offsets64 => 8,
        }
    }

    /// Whether the elements are offsets.
    pub fn is_offsets(self) -> bool {
        matches!(self, Element::Offsets32 | Element::Offsets64)
    }
}

/// Where a segment's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// There are none.
    Absent,
    /// In the frame, from its start.
    Inline {
        /// Bytes from the frame's start.
        offset: u32,
    },
    /// In a region of the client.
    Region {
        /// The region's id.
        region: u32,
        /// Bytes from the region's start.
        offset: u64,
    },
}

/// A run of elements that all features share; each feature's span names its own part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where.
    pub place: Place,
    /// Of what type.
    pub element: Element,
    /// How long, in bytes; a multiple of the element's size.
    pub len: u64,
}

impl Segment {
    /// A segment that is not there.
    pub const ABSENT: Segment = Segment {
        place: Place::Absent,
        element: Element::Bits32,
        len: 0,
    };

    /// How many elements it has.
    pub fn elements(&self) -> u64 {
        self.len / self.element.bytes()
    }
}

/// The part of the segments that belongs to one feature, in elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeatureSpan {
    /// First element in the lengths segment; `bags` lengths (or `bags + 1` offsets) follow.
    pub lengths_at: u32,
    /// First element in the ids segment, and in the weights segment.
    pub ids_at: u32,
    /// How many ids.
    pub ids: u32,
    /// How many ids of the feature the parts before this one have, where it is not pooled: where in its
    /// block the vectors of this part begin. 0 for all other features.
    pub first_id: u32,
}

/// A request's header, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What is asked for.
    pub op: Op,
    /// Flags, see [`FLAG_PARTIALS`].
    pub flags: u8,
    /// The client's number of the request.
    pub request: u64,
    /// Which attempt at it this is.
    pub attempt: u16,
    /// Which part, from 0.
    pub part: u8,
    /// Of how many, at least 1.
    pub parts: u8,
    /// The bound schema.
    pub schema: u32,
    /// The generation wanted; 0 for the newest.
    pub generation: u64,
    /// Microseconds from receipt until nobody wants the answer; 0 for no limit.
    pub remaining_us: u32,
    /// Complete every so many bags; 0 for one completion at the end.
    pub slice_bags: u32,
    /// The part's first bag within the request: where its vectors go.
    pub first_bag: u32,
    /// The part's number of bags.
    pub bags: u32,
    /// The region of the target.
    pub target_region: u32,
    /// Where in that region the request's output begins.
    pub target_base: u64,
    /// Lengths or offsets.
    pub lengths: Segment,
    /// Ids.
    pub ids: Segment,
    /// Weights.
    pub weights: Segment,
}

impl Header {
    /// A request for nothing.
    pub fn null(request: u64) -> Header {
        Header {
            op: Op::Null,
            flags: 0,
            request,
            attempt: 0,
            part: 0,
            parts: 1,
            schema: 0,
            generation: 0,
            remaining_us: 0,
            slice_bags: 0,
            first_bag: 0,
            bags: 0,
            target_region: 0,
            target_base: 0,
            lengths: Segment::ABSENT,
            ids: Segment::ABSENT,
            weights: Segment::ABSENT,
        }
    }

    /// How many status records the part causes when all goes well: its slices, at least 1.
    pub fn slices(&self) -> u32 {
        match self.slice_bags {
            0 => 1,
            slice => self.bags.div_ceil(slice).max(1),
        }
    }
}

/// A parsed request over a private copy of its frame.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    header: Header,
    frame: &'a [u8],
    features: usize,
}

impl<'a> Request<'a> {
    /// Checks a frame of exactly the announced length. What it says is consistent after this; what
    /// it asks for has still to be checked against what was granted.
    ///
    /// # Errors
    /// A [`Refusal`] with the status to answer.
    pub fn parse(frame: &'a [u8]) -> Result<Request<'a>, Refusal> {
        let whole = Refusal::whole;
        if frame.len() < HEADER_BYTES + 3 * SEGMENT_BYTES || frame.len() > SLOT_BYTES {
            return Err(whole(Status::Malformed));
        }
        let mut r = Reader::new(frame);
        if r.u16()? != VERSION {
            return Err(whole(Status::UnsupportedVersion));
        }
        let op = match r.u8()? {
            0 => Op::Null,
            1 => Op::Lookup,
            2 => Op::Prefetch,
            _ => return Err(whole(Status::Unsupported)),
        };
        let flags = r.u8()?;
        if flags & !FLAG_PARTIALS != 0 {
            return Err(whole(Status::Unsupported));
        }
        if r.u32()? as usize != frame.len() {
            return Err(whole(Status::Malformed));
        }
        let (request, attempt, part, parts) = (r.u64()?, r.u16()?, r.u8()?, r.u8()?);
        let (schema, generation, remaining_us, slice_bags) =
            (r.u32()?, r.u64()?, r.u32()?, r.u32()?);
        let (first_bag, bags, target_region) = (r.u32()?, r.u32()?, r.u32()?);
        let features = usize::from(r.u16()?);
        r.zeros(2)?;
        let target_base = r.u64()?;
        let (lengths, ids, weights) = (segment(&mut r)?, segment(&mut r)?, segment(&mut r)?);
        let header = Header {
            op,
            flags,
            request,
            attempt,
            part,
            parts,
            schema,
            generation,
            remaining_us,
            slice_bags,
            first_bag,
            bags,
            target_region,
            target_base,
            lengths,
            ids,
            weights,
        };
        if part >= parts || features > MAX_FEATURES {
            return Err(whole(if features > MAX_FEATURES {
                Status::TooLarge
            } else {
                Status::Malformed
            }));
        }
        let request = Request {
            header,
            frame,
            features,
        };
        request.check()?;
        Ok(request)
    }

    /// The request's number, attempt and part of a frame that may be refused otherwise, so that the
    /// refusal can be addressed; zeros where the frame is too short.
    pub fn address(frame: &[u8]) -> (u64, u16, u8) {
        match frame.get(8..19) {
            Some(b) => (
                u64::from_le_bytes(b[0..8].try_into().expect("8 bytes")),
                u16::from_le_bytes([b[8], b[9]]),
                b[10],
            ),
            None => (0, 0, 0),
        }
    }

    fn check(&self) -> Result<(), Refusal> {
        let whole = Refusal::whole;
        let h = &self.header;
        let inline_from = HEADER_BYTES + 3 * SEGMENT_BYTES + self.features * SPAN_BYTES;
        if inline_from > self.frame.len() {
            return Err(whole(Status::Malformed));
        }
        if h.op == Op::Null {
            let absent = [&h.lengths, &h.ids, &h.weights]
                .into_iter()
                .all(|segment| *segment == Segment::ABSENT);
            let bare = self.features == 0 && h.bags == 0 && absent;
            return if bare {
                Ok(())
            } else {
                Err(whole(Status::Malformed))
            };
        }
        if h.bags == 0 || self.features == 0 {
            return Err(whole(Status::Malformed));
        }
        let aims = h.target_region != 0 || h.target_base != 0 || h.slice_bags != 0 || h.flags != 0;
        if h.op == Op::Prefetch && aims {
            return Err(whole(Status::Malformed));
        }
        let last_bag = h
            .first_bag
            .checked_add(h.bags)
            .ok_or(whole(Status::Malformed))?;
        if last_bag > MAX_BATCH || h.slices() > MAX_SLICES {
            return Err(whole(Status::TooLarge));
        }
        for segment in [&h.lengths, &h.ids, &h.weights] {
            check_segment(segment, inline_from, self.frame.len())?;
        }
        if h.ids.element.is_offsets() || h.weights.element != Element::Bits32 {
            return Err(whole(Status::Malformed));
        }
        let per_feature = u64::from(h.bags) + u64::from(h.lengths.element.is_offsets());
        let weighted = h.weights.place != Place::Absent;
        for (i, span) in self.spans().enumerate() {
            let mismatch = Refusal::feature(Status::LengthsMismatch, i as u32);
            let ids_end = u64::from(span.ids_at) + u64::from(span.ids);
            if u64::from(span.lengths_at) + per_feature > h.lengths.elements()
                || ids_end > h.ids.elements()
            {
                return Err(mismatch);
            }
            if weighted && ids_end > h.weights.elements() {
                return Err(Refusal::feature(Status::WeightsMismatch, i as u32));
            }
        }
        Ok(())
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// How many features it has spans for.
    pub fn features(&self) -> usize {
        self.features
    }

    /// The features' spans, in the schema's order.
    pub fn spans(&self) -> impl Iterator<Item = FeatureSpan> + use<'a> {
        let from = HEADER_BYTES + 3 * SEGMENT_BYTES;
        let word =
            |b: &[u8], at: usize| u32::from_le_bytes(b[at..at + 4].try_into().expect("4 bytes"));
        self.frame[from..from + self.features * SPAN_BYTES]
            .chunks_exact(SPAN_BYTES)
            .map(move |b| FeatureSpan {
                lengths_at: word(b, 0),
                ids_at: word(b, 4),
                ids: word(b, 8),
                first_id: word(b, 12),
            })
    }

    /// The bytes of an inline segment; `None` for segments elsewhere, and for one that is not of
    /// this frame and leaves it.
    pub fn inline(&self, segment: &Segment) -> Option<&'a [u8]> {
        match segment.place {
            Place::Inline { offset } => {
                let end = u64::from(offset).checked_add(segment.len)?;
                self.frame
                    .get(usize::try_from(offset).ok()?..usize::try_from(end).ok()?)
            }
            _ => None,
        }
    }
}

fn segment(r: &mut Reader<'_>) -> Result<Segment, Refusal> {
    let malformed = Refusal::whole(Status::Malformed);
    let place = r.u8()?;
    let element = Element::from_code(r.u8()?).ok_or(malformed)?;
    r.zeros(2)?;
    let (region, offset, len) = (r.u32()?, r.u64()?, r.u64()?);
    let place = match place {
        0 if region == 0 && offset == 0 && len == 0 => Place::Absent,
        1 if region == 0 => Place::Inline {
            offset: u32::try_from(offset).map_err(|_| malformed)?,
        },
        2 => Place::Region { region, offset },
        _ => return Err(malformed),
    };
    Ok(Segment {
        place,
        element,
        len,
    })
}

fn check_segment(segment: &Segment, inline_from: usize, frame_len: usize) -> Result<(), Refusal> {
    let malformed = Err(Refusal::whole(Status::Malformed));
    if !segment.len.is_multiple_of(segment.element.bytes()) {
        return malformed;
    }
    match segment.place {
        Place::Absent => Ok(()),
        Place::Inline { offset } => match u64::from(offset).checked_add(segment.len) {
            Some(end) if offset as usize >= inline_from && end <= frame_len as u64 => Ok(()),
            _ => malformed,
        },
        Place::Region { offset, .. } => match offset.checked_add(segment.len) {
            Some(_) => Ok(()),
            None => Err(Refusal::whole(Status::SegmentOutOfRegion)),
        },
    }
}

/// Why a frame could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// More bytes than a slot has.
    #[error(
        "the frame needs {needed} bytes but a slot has {}; put the data in a region",
        SLOT_BYTES
    )]
    TooLong {
        /// Bytes the frame would need.
        needed: usize,
    },
    /// More features than the protocol allows.
    #[error(
        "{features} features are more than the {} that a request may have",
        MAX_FEATURES
    )]
    TooManyFeatures {
        /// Features given.
        features: usize,
    },
}

/// Writes a frame to the start of `out` and returns its length. `inline` follows the spans; inline
/// segments of the header must point into it (see [`inline_offset`]).
///
/// # Errors
/// [`EncodeError`] where it does not fit.
pub fn encode(
    header: &Header,
    spans: &[FeatureSpan],
    inline: &[&[u8]],
    out: &mut [u8; SLOT_BYTES],
) -> Result<usize, EncodeError> {
    let bytes = inline.iter().map(|i| i.len()).sum();
    let len = encode_before(header, spans, bytes, out)?;
    let mut at = len - bytes;
    for piece in inline {
        out[at..at + piece.len()].copy_from_slice(piece);
        at += piece.len();
    }
    Ok(len)
}

/// As [`encode`], for `inline_bytes` that the caller writes afterwards, to the end of the frame.
///
/// # Errors
/// [`EncodeError`] where it does not fit.
pub fn encode_before(
    header: &Header,
    spans: &[FeatureSpan],
    inline_bytes: usize,
    out: &mut [u8; SLOT_BYTES],
) -> Result<usize, EncodeError> {
    if spans.len() > MAX_FEATURES {
        return Err(EncodeError::TooManyFeatures {
            features: spans.len(),
        });
    }
    let len = inline_offset(spans.len()) + inline_bytes;
    if len > SLOT_BYTES {
        return Err(EncodeError::TooLong { needed: len });
    }
    encode_header(header, spans.len() as u16, len as u32, out);
    for (i, segment) in [&header.lengths, &header.ids, &header.weights]
        .into_iter()
        .enumerate()
    {
        encode_segment(
            segment,
            &mut out[HEADER_BYTES + i * SEGMENT_BYTES..][..SEGMENT_BYTES],
        );
    }
    for (span, out) in spans
        .iter()
        .zip(out[HEADER_BYTES + 3 * SEGMENT_BYTES..].chunks_exact_mut(SPAN_BYTES))
    {
        out[0..4].copy_from_slice(&span.lengths_at.to_le_bytes());
        out[4..8].copy_from_slice(&span.ids_at.to_le_bytes());
        out[8..12].copy_from_slice(&span.ids.to_le_bytes());
        out[12..16].copy_from_slice(&span.first_id.to_le_bytes());
    }
    Ok(len)
}

/// Where inline bytes begin in a frame of `features` spans.
pub fn inline_offset(features: usize) -> usize {
    HEADER_BYTES + 3 * SEGMENT_BYTES + features * SPAN_BYTES
}

fn encode_header(h: &Header, features: u16, len: u32, out: &mut [u8; SLOT_BYTES]) {
    out[..HEADER_BYTES].fill(0);
    out[0..2].copy_from_slice(&VERSION.to_le_bytes());
    out[2] = h.op as u8;
    out[3] = h.flags;
    out[4..8].copy_from_slice(&len.to_le_bytes());
    out[8..16].copy_from_slice(&h.request.to_le_bytes());
    out[16..18].copy_from_slice(&h.attempt.to_le_bytes());
    out[18] = h.part;
    out[19] = h.parts;
    out[20..24].copy_from_slice(&h.schema.to_le_bytes());
    out[24..32].copy_from_slice(&h.generation.to_le_bytes());
    out[32..36].copy_from_slice(&h.remaining_us.to_le_bytes());
    out[36..40].copy_from_slice(&h.slice_bags.to_le_bytes());
    out[40..44].copy_from_slice(&h.first_bag.to_le_bytes());
    out[44..48].copy_from_slice(&h.bags.to_le_bytes());
    out[48..52].copy_from_slice(&h.target_region.to_le_bytes());
    out[52..54].copy_from_slice(&features.to_le_bytes());
    out[56..64].copy_from_slice(&h.target_base.to_le_bytes());
}

fn encode_segment(segment: &Segment, out: &mut [u8]) {
    let (place, region, offset) = match segment.place {
        Place::Absent => (0, 0, 0),
        Place::Inline { offset } => (1, 0, u64::from(offset)),
        Place::Region { region, offset } => (2, region, offset),
    };
    out.fill(0);
    out[0] = place;
    out[1] = segment.element as u8;
    out[4..8].copy_from_slice(&u32::to_le_bytes(region));
    out[8..16].copy_from_slice(&offset.to_le_bytes());
    out[16..24].copy_from_slice(&segment.len.to_le_bytes());
}
