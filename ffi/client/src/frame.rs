//! From a batch to frames: the split into parts, and each part's frame.
//!
//! Where every part fits into a frame with its data, all data is inline, cut out of the batch for
//! each part. Otherwise the whole batch goes to the source region once, and the spans of each part's
//! frame name its own piece of the shared segments; there, ids of 64 bits become 32 where all of them
//! fit. All buffers are kept for the next request.

use std::ops::Range;

use rowmill_arena::Window;
use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::request::{Header, encode, encode_before, inline_offset};
use rowmill_wire::{Element, FeatureSpan, Place, Segment, SplitRule};

use crate::narrow;
use crate::schema::BoundSchema;
use crate::shape::{Content, Field, Shape, Sink};

/// How many requests are sent in 64 bits after one whose ids needed them: where ids are keys of that size, a
/// try that fails late costs about as much as the copy, and so a sixty-fourth of it.
const KEPT_WIDE: u32 = 63;

/// Where the data of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carriage {
    Inline,
    /// In the source region: its number, and where the request's range begins.
    Region {
        region: u32,
        offset: u64,
    },
}

/// One part of the split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) first_bag: u32,
    pub(crate) bags: u32,
    /// Over all features.
    pub(crate) ids: u64,
}

/// The split of one batch at a time, and the buffers for writing its frames.
pub(crate) struct Plan {
    pub(crate) pieces: Vec<Piece>,
    /// For each part and feature: how many ids of the feature come before the part; one more row of
    /// them for the end.
    ids_before: Vec<u32>,
    weighted: bool,
    /// How ids are in the source region.
    id_element: Element,
    /// Requests whose ids are written in 64 bits without a try to have them in 32.
    kept_wide: u32,
    /// Whether each feature is not pooled, so that its spans say where in its block a part begins.
    blocks: Vec<bool>,
    frame: Box<[u8; SLOT_BYTES]>,
    spans: Vec<FeatureSpan>,
}

impl Plan {
    pub(crate) fn new() -> Plan {
        Plan {
            pieces: Vec::new(),
            ids_before: Vec::new(),
            weighted: false,
            id_element: Element::Bits32,
            kept_wide: 0,
            blocks: Vec::new(),
            frame: Box::new([0; SLOT_BYTES]),
            spans: Vec::new(),
        }
    }

    /// Splits a batch that has the schema's features.
    pub(crate) fn split(&mut self, batch: &Shape, rule: SplitRule, schema: &BoundSchema) {
        let features = batch.features();
        self.weighted = schema.any_weighted();
        self.blocks.clear();
        self.blocks
            .extend((0..features).map(|f| !schema.is_pooled(f)));
        self.pieces.clear();
        self.ids_before.clear();
        self.ids_before.resize(features, 0);
        for (first_bag, bags) in rule.split(batch.bags()) {
            let row = self.ids_before.len() - features;
            let mut total = 0;
            for f in 0..features {
                let ids = if bags == batch.bags() {
                    batch.start(f + 1) - batch.start(f)
                } else {
                    batch.lengths_of(f, first_bag, bags).iter().sum()
                };
                total += u64::from(ids);
                self.ids_before.push(self.ids_before[row + f] + ids);
            }
            self.pieces.push(Piece {
                first_bag,
                bags,
                ids: total,
            });
        }
    }

    /// For each part and feature, how many ids come before; empty for one part, where none do.
    pub(crate) fn ids_before(&self) -> &[u32] {
        match self.pieces.len() {
            0 | 1 => &[],
            parts => &self.ids_before[..self.ids_before.len() / (parts + 1) * parts],
        }
    }

    /// How many ids of the feature the parts before have, where that is asked for.
    fn first_id(&self, batch: &Shape, part: usize, feature: usize) -> u32 {
        match self.blocks[feature] {
            true => self.ids_before[part * batch.features() + feature],
            false => 0,
        }
    }

    fn id_range(&self, batch: &Shape, part: usize, feature: usize) -> (u32, u32) {
        let at = part * batch.features() + feature;
        let start = batch.start(feature);
        (
            start + self.ids_before[at],
            start + self.ids_before[at + batch.features()],
        )
    }

    /// Whether each part fits into a frame together with its data.
    pub(crate) fn fits_inline(&self, batch: &Shape) -> bool {
        let id_bytes = batch.id_element().bytes() + if self.weighted { 4 } else { 0 };
        self.pieces.iter().all(|p| {
            let data = batch.features() as u64 * u64::from(p.bags) * 4 + p.ids * id_bytes;
            inline_offset(batch.features()) as u64 + data <= SLOT_BYTES as u64
        })
    }

    /// Bytes that the whole batch takes in the source region, at most.
    pub(crate) fn source_bytes(&self, batch: &Shape) -> u64 {
        let [_, _, end] = self.source_places(batch);
        end
    }

    /// Where ids and weights begin in the request's source range, and where it ends. Lengths begin
    /// at 0, ids at a multiple of 8.
    fn source_places(&self, batch: &Shape) -> [u64; 3] {
        let ids = (batch.length_bytes().len() as u64).next_multiple_of(8);
        let weights = ids + batch.ids() as u64 * batch.id_element().bytes();
        let end = weights
            + if self.weighted {
                batch.ids() as u64 * 4
            } else {
                0
            };
        [ids, weights, end]
    }

    /// Copies the batch to its range of the source region.
    pub(crate) fn write_source(&mut self, batch: &impl Content, range: Window<'_>) {
        let shape = batch.shape();
        let [ids, weights, _] = self.source_places(shape);
        let mut out = Sink::Source(range);
        self.id_element = shape.id_element();
        if shape.is_wide() {
            if self.kept_wide > 0 {
                self.kept_wide -= 1;
            } else if narrow::copy_ids(batch, &mut out, ids as usize) {
                self.id_element = Element::Bits32;
                out.put(0, shape.length_bytes());
                if self.weighted {
                    let all = 0..shape.ids() as u32;
                    batch.copy(Field::Weights, all, &mut out, weights as usize);
                }
                return;
            } else {
                self.kept_wide = KEPT_WIDE;
            }
        }
        write_all(
            batch,
            self.weighted,
            ids as usize,
            weights as usize,
            &mut out,
        );
    }

    /// The frame of a part. `header` has all but what the part and its data determine.
    pub(crate) fn frame(
        &mut self,
        batch: &impl Content,
        part: usize,
        carriage: Carriage,
        mut header: Header,
    ) -> &[u8] {
        let (piece, shape) = (self.pieces[part], batch.shape());
        header.part = part as u8;
        header.parts = self.pieces.len() as u8;
        header.first_bag = piece.first_bag;
        header.bags = piece.bags;
        let inline = match carriage {
            Carriage::Inline => self.name_inline(shape, part, &mut header),
            Carriage::Region { region, offset } => {
                self.name_region(shape, part, region, offset, &mut header);
                0
            }
        };
        let written = encode_before(&header, &self.spans, inline, &mut self.frame);
        let len = written.expect("the plan checked that the frame fits");
        if inline > 0 {
            self.write_inline(batch, part, &header, len - inline..len);
        }
        &self.frame[..len]
    }

    /// The frame of a request for nothing.
    pub(crate) fn null_frame(&mut self, header: &Header) -> &[u8] {
        let len = encode(header, &[], &[], &mut self.frame).expect("a bare header fits");
        &self.frame[..len]
    }

    /// Names the part's data as inline segments; how many bytes they have.
    fn name_inline(&mut self, batch: &Shape, part: usize, header: &mut Header) -> usize {
        let piece = self.pieces[part];
        let features = batch.features();
        self.spans.clear();
        let mut before = 0;
        for f in 0..features {
            let (from, to) = self.id_range(batch, part, f);
            self.spans.push(FeatureSpan {
                lengths_at: f as u32 * piece.bags,
                ids_at: before,
                ids: to - from,
                first_id: self.first_id(batch, part, f),
            });
            before += to - from;
        }
        let base = inline_offset(features) as u64;
        let segment = |element: Element, from: u64, count: u64| Segment {
            place: Place::Inline {
                offset: (base + from) as u32,
            },
            element,
            len: count * element.bytes(),
        };
        header.lengths = segment(Element::Bits32, 0, features as u64 * u64::from(piece.bags));
        let ids_at = header.lengths.len;
        header.ids = segment(batch.id_element(), ids_at, piece.ids);
        if self.weighted {
            header.weights = segment(Element::Bits32, ids_at + header.ids.len, piece.ids);
        }
        (ids_at + header.ids.len + header.weights.len) as usize
    }

    /// Writes the part's lengths, ids and weights one after another to these bytes of the frame.
    fn write_inline(
        &mut self,
        batch: &impl Content,
        part: usize,
        header: &Header,
        bytes: Range<usize>,
    ) {
        let (piece, shape) = (self.pieces[part], batch.shape());
        let ids_at = header.lengths.len as usize;
        let weights_at = ids_at + header.ids.len as usize;
        let mut out = Sink::Frame(&mut self.frame[bytes]);
        if self.pieces.len() == 1 {
            return write_all(batch, self.weighted, ids_at, weights_at, &mut out);
        }
        let id_bytes = shape.id_element().bytes() as usize;
        for (f, span) in self.spans.iter().enumerate() {
            let lengths = shape.lengths_of(f, piece.first_bag, piece.bags);
            out.put(span.lengths_at as usize * 4, bytemuck::cast_slice(lengths));
            let first = shape.start(f) + self.ids_before[part * shape.features() + f];
            let (ids, at) = (first..first + span.ids, span.ids_at as usize);
            batch.copy(Field::Ids, ids.clone(), &mut out, ids_at + at * id_bytes);
            if self.weighted {
                batch.copy(Field::Weights, ids, &mut out, weights_at + at * 4);
            }
        }
    }

    fn name_region(
        &mut self,
        batch: &Shape,
        part: usize,
        region: u32,
        offset: u64,
        header: &mut Header,
    ) {
        let piece = self.pieces[part];
        self.spans.clear();
        for f in 0..batch.features() {
            let (from, to) = self.id_range(batch, part, f);
            let lengths_at = f as u32 * batch.bags() + piece.first_bag;
            self.spans.push(FeatureSpan {
                lengths_at,
                ids_at: from,
                ids: to - from,
                first_id: self.first_id(batch, part, f),
            });
        }
        let [ids, weights, end] = self.source_places(batch);
        let segment = |element: Element, from: u64, len: u64| Segment {
            place: Place::Region {
                region,
                offset: offset + from,
            },
            element,
            len,
        };
        let id_bytes = batch.ids() as u64 * self.id_element.bytes();
        header.lengths = segment(Element::Bits32, 0, batch.length_bytes().len() as u64);
        header.ids = segment(self.id_element, ids, id_bytes);
        if self.weighted {
            header.weights = segment(Element::Bits32, weights, end - weights);
        }
    }
}

/// Writes all of a batch: its lengths to the start of `out`, ids and weights to these bytes.
fn write_all(
    batch: &impl Content,
    weighted: bool,
    ids_at: usize,
    weights_at: usize,
    out: &mut Sink<'_>,
) {
    let shape = batch.shape();
    let all = 0..shape.ids() as u32;
    out.put(0, shape.length_bytes());
    batch.copy(Field::Ids, all.clone(), out, ids_at);
    if weighted {
        batch.copy(Field::Weights, all, out, weights_at);
    }
}
