//! From a batch to frames: the split into parts, and each part's frame.
//!
//! Where every part fits into a frame with its data, all data is inline, cut out of the batch for
//! each part. Otherwise the whole batch goes to the source region once, and the spans of each part's
//! frame name its own piece of the shared segments. All buffers are kept for the next request.

use rowmill_arena::Window;
use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::request::{Header, encode, inline_offset};
use rowmill_wire::{Element, FeatureSpan, Place, Segment, SplitRule};

use crate::batch::Batch;
use crate::schema::BoundSchema;

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
    /// Whether each feature is not pooled, so that its spans say where in its block a part begins.
    blocks: Vec<bool>,
    frame: Box<[u8; SLOT_BYTES]>,
    spans: Vec<FeatureSpan>,
    inline: Vec<u8>,
}

impl Plan {
    pub(crate) fn new() -> Plan {
        Plan {
            pieces: Vec::new(),
            ids_before: Vec::new(),
            weighted: false,
            blocks: Vec::new(),
            frame: Box::new([0; SLOT_BYTES]),
            spans: Vec::new(),
            inline: Vec::with_capacity(SLOT_BYTES),
        }
    }

    /// Splits a batch that has the schema's features.
    pub(crate) fn split(&mut self, batch: &Batch, rule: SplitRule, schema: &BoundSchema) {
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
    fn first_id(&self, batch: &Batch, part: usize, feature: usize) -> u32 {
        match self.blocks[feature] {
            true => self.ids_before[part * batch.features() + feature],
            false => 0,
        }
    }

    fn id_range(&self, batch: &Batch, part: usize, feature: usize) -> (u32, u32) {
        let at = part * batch.features() + feature;
        let start = batch.start(feature);
        (
            start + self.ids_before[at],
            start + self.ids_before[at + batch.features()],
        )
    }

    /// Whether each part fits into a frame together with its data.
    pub(crate) fn fits_inline(&self, batch: &Batch) -> bool {
        let id_bytes = batch.id_element().bytes() + if self.weighted { 4 } else { 0 };
        self.pieces.iter().all(|p| {
            let data = batch.features() as u64 * u64::from(p.bags) * 4 + p.ids * id_bytes;
            inline_offset(batch.features()) as u64 + data <= SLOT_BYTES as u64
        })
    }

    /// Bytes that the whole batch takes in the source region.
    pub(crate) fn source_bytes(&self, batch: &Batch) -> u64 {
        let [_, _, end] = self.source_places(batch);
        end
    }

    /// Where ids and weights begin in the request's source range, and where it ends. Lengths begin
    /// at 0, ids at a multiple of 8.
    fn source_places(&self, batch: &Batch) -> [u64; 3] {
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
    pub(crate) fn write_source(&self, batch: &Batch, range: &Window<'_>) {
        let [ids, weights, _] = self.source_places(batch);
        for (at, bytes) in [0, ids, weights].into_iter().zip(self.all_bytes(batch)) {
            range.write(at as usize, bytes);
        }
    }

    /// The frame of a part. `header` has all but what the part and its data determine.
    pub(crate) fn frame(
        &mut self,
        batch: &Batch,
        part: usize,
        carriage: Carriage,
        mut header: Header,
    ) -> &[u8] {
        let piece = self.pieces[part];
        header.part = part as u8;
        header.parts = self.pieces.len() as u8;
        header.first_bag = piece.first_bag;
        header.bags = piece.bags;
        match carriage {
            Carriage::Inline => self.cut_inline(batch, part, &mut header),
            Carriage::Region { region, offset } => {
                self.name_region(batch, part, region, offset, &mut header)
            }
        }
        let whole = carriage == Carriage::Inline && self.pieces.len() == 1;
        let data = if whole {
            self.all_bytes(batch)
        } else {
            [&self.inline[..], &[], &[]]
        };
        let written = encode(&header, &self.spans, &data, &mut self.frame);
        let len = written.expect("the plan checked that the frame fits");
        &self.frame[..len]
    }

    /// The frame of a request for nothing.
    pub(crate) fn null_frame(&mut self, header: &Header) -> &[u8] {
        let len = encode(header, &[], &[], &mut self.frame).expect("a bare header fits");
        &self.frame[..len]
    }

    /// The batch' lengths, ids, and weights where they are sent.
    fn all_bytes<'a>(&self, batch: &'a Batch) -> [&'a [u8]; 3] {
        let all = batch.ids() as u32;
        let weights = if self.weighted {
            batch.weight_bytes(0, all)
        } else {
            &[]
        };
        [batch.length_bytes(), batch.id_bytes(0, all), weights]
    }

    /// Names the part's data as inline segments, and cuts it out of the batch unless it is all of it.
    fn cut_inline(&mut self, batch: &Batch, part: usize, header: &mut Header) {
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
        if self.pieces.len() > 1 {
            self.cut(batch, part);
        }
    }

    /// Puts the part's lengths, ids and weights one after another.
    fn cut(&mut self, batch: &Batch, part: usize) {
        let piece = self.pieces[part];
        self.inline.clear();
        for f in 0..batch.features() {
            let lengths = batch.lengths_of(f, piece.first_bag, piece.bags);
            self.inline.extend_from_slice(bytemuck::cast_slice(lengths));
        }
        for f in 0..batch.features() {
            let (from, to) = self.id_range(batch, part, f);
            self.inline.extend_from_slice(batch.id_bytes(from, to));
        }
        if self.weighted {
            for f in 0..batch.features() {
                let (from, to) = self.id_range(batch, part, f);
                self.inline.extend_from_slice(batch.weight_bytes(from, to));
            }
        }
    }

    fn name_region(
        &mut self,
        batch: &Batch,
        part: usize,
        region: u32,
        offset: u64,
        header: &mut Header,
    ) {
        let piece = self.pieces[part];
        self.spans.clear();
        self.inline.clear();
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
        header.lengths = segment(Element::Bits32, 0, batch.length_bytes().len() as u64);
        header.ids = segment(batch.id_element(), ids, weights - ids);
        if self.weighted {
            header.weights = segment(Element::Bits32, weights, end - weights);
        }
    }
}
