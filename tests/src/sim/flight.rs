//! One request part from its delivery to its end, as the ledger knows it: what the worker was given,
//! byte for byte, and so what the answer has to be.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use rowmill_port::RegionId;
use rowmill_wire::request::{FLAG_PARTIALS, Header};
use rowmill_wire::{Completion, FeatureSpan, Op, Place, Request, Segment};

use super::history::Stand;
use super::model::{FeatureModel, SchemaModel};

/// The bytes of a segment as far as the worker has read them.
#[derive(Debug, Default)]
struct Capture {
    region: Option<(u32, u64)>,
    bytes: Vec<u8>,
    reads: Vec<u8>,
}

impl Capture {
    fn new(request: &Request<'_>, segment: &Segment) -> Capture {
        match segment.place {
            Place::Absent => Capture::default(),
            Place::Inline { .. } => {
                let bytes = request.inline(segment).unwrap_or_default().to_vec();
                Capture {
                    region: None,
                    reads: vec![1; bytes.len()],
                    bytes,
                }
            }
            Place::Region { region, offset } => {
                // A hostile length is not worth memory: such a request can't be answered.
                let len = segment.len.min(CAPTURE_MAX) as usize;
                Capture {
                    region: Some((region, offset)),
                    bytes: vec![0; len],
                    reads: vec![0; len],
                }
            }
        }
    }

    fn take(&mut self, region: RegionId, offset: u64, read: &[u8]) {
        let Some((own, start)) = self.region.filter(|&(own, _)| own == region.0) else {
            return;
        };
        debug_assert_eq!(own, region.0);
        let (from, to) = (
            offset.max(start),
            (offset + read.len() as u64).min(start + self.bytes.len() as u64),
        );
        for at in from..to {
            let (to, from) = ((at - start) as usize, (at - offset) as usize);
            self.bytes[to] = read[from];
            self.reads[to] = self.reads[to].saturating_add(1);
        }
    }

    fn elements(&self, segment: &Segment, first: u64, count: u64) -> Option<Vec<u64>> {
        if count == 0 {
            // Wherever they would be: an empty bag's place may lie past what is kept of the segment.
            return Some(Vec::new());
        }
        let width = segment.element.bytes();
        let range = (first * width) as usize..((first + count) * width) as usize;
        let read = self
            .reads
            .get(range.clone())?
            .iter()
            .all(|&reads| reads > 0);
        let word = |b: &[u8]| {
            b.iter()
                .rev()
                .fold(0, |word, &byte| word << 8 | u64::from(byte))
        };
        read.then(|| {
            self.bytes[range]
                .chunks_exact(width as usize)
                .map(word)
                .collect()
        })
    }
}

/// A place in the region instead of in the target.
fn shifted(place: Range<u64>, base: u64) -> Range<u64> {
    place.start.wrapping_add(base)..place.end.wrapping_add(base)
}

/// Most bytes of a segment that are kept.
const CAPTURE_MAX: u64 = 1 << 20;

/// A request part in progress.
#[derive(Debug)]
pub struct Flight {
    /// When the worker took the frame.
    pub received_ns: u64,
    /// What its records have to name: request, attempt, part.
    pub address: (u64, u16, u8),
    /// The header, where the frame can be parsed.
    pub header: Option<Header>,
    /// The schema of a lookup, where it names one.
    pub model: Option<Arc<SchemaModel>>,
    /// That of rows that may be wanted soon.
    wish: Option<Arc<SchemaModel>>,
    /// Slices announced so far.
    pub slices: u32,
    /// The generation that these are of.
    pub generation: Option<u64>,
    /// The client has asked for an early end.
    pub cancelled: bool,
    /// Another request of the same client shares bytes with its target or its sources are not read
    /// the same way twice: no answer can be foretold.
    pub entangled: bool,
    /// Bytes that the lane had worked on when this arrived.
    pub lane_bytes: u64,
    /// Rows of cached tables that had failed by then.
    pub rows_failed: u64,
    /// Whether nothing else of its connection was in progress on the lane.
    pub alone: bool,
    /// How far each generation was by then.
    pub stands: BTreeMap<u64, Stand>,
    spans: Vec<FeatureSpan>,
    captures: [Capture; 3],
}

impl Flight {
    /// The most bytes that work on this request itself can be estimated at: its rows, at most f32, and its
    /// vectors.
    pub fn own_bytes(&self) -> u64 {
        let (Some(header), Some(model)) = (&self.header, &self.model) else {
            return 0;
        };
        let of_feature = |(span, feature): (&FeatureSpan, &FeatureModel)| {
            let vectors = u64::from(span.ids) + u64::from(header.bags);
            u64::from(span.ids) * (4 * feature.dim as u64 + 8) + vectors * feature.vector_bytes()
        };
        self.spans.iter().zip(&model.features).map(of_feature).sum()
    }

    /// Whether it has ids of a table of which this says so.
    pub fn reads_any(&self, tables: &[bool]) -> bool {
        let features = self.model.iter().flat_map(|model| &model.features);
        let mut read = self.spans.iter().zip(features);
        read.any(|(span, feature)| span.ids > 0 && tables[feature.table])
    }

    /// A frame as a worker took it. `schema` finds a bound schema by its number.
    pub fn new(
        at_ns: u64,
        frame: &[u8],
        schema: impl FnOnce(u32) -> Option<Arc<SchemaModel>>,
    ) -> Flight {
        let request = Request::parse(frame).ok();
        let header = request.as_ref().map(|r| *r.header());
        let capture = |segment: fn(&Header) -> &Segment| {
            request
                .as_ref()
                .map_or_else(Capture::default, |r| Capture::new(r, segment(r.header())))
        };
        let spans: Vec<FeatureSpan> = request
            .as_ref()
            .map(|r| r.spans().collect())
            .unwrap_or_default();
        let asks = header.filter(|h| matches!(h.op, Op::Lookup | Op::Prefetch));
        let model = asks
            .and_then(|h| schema(h.schema))
            .filter(|m| m.features.len() == spans.len());
        let (model, wish) = match header {
            Some(header) if header.op == Op::Prefetch => (None, model),
            _ => (model, None),
        };
        Flight {
            received_ns: at_ns,
            address: Request::address(frame),
            header,
            model,
            wish,
            slices: 0,
            generation: None,
            cancelled: false,
            entangled: false,
            lane_bytes: 0,
            rows_failed: 0,
            alone: false,
            stands: BTreeMap::new(),
            spans,
            captures: [
                capture(|h| &h.lengths),
                capture(|h| &h.ids),
                capture(|h| &h.weights),
            ],
        }
    }

    /// When its time is over; `None` without a limit.
    pub fn deadline_ns(&self) -> Option<u64> {
        let us = self.header.filter(|h| h.op != Op::Null)?.remaining_us;
        (us > 0).then(|| self.received_ns + u64::from(us) * 1000)
    }

    /// The worker has read bytes of a region.
    pub fn read(&mut self, region: RegionId, offset: u64, bytes: &[u8]) {
        self.captures
            .iter_mut()
            .for_each(|c| c.take(region, offset, bytes));
    }

    /// Whether a byte of the ids or weights was read twice: what is used might then differ from what was
    /// checked. Frames whose spans share bytes are asked about by nobody.
    pub fn has_read_twice(&self) -> bool {
        self.captures[1..]
            .iter()
            .any(|c| c.reads.iter().any(|&reads| reads > 1))
    }

    /// The region of its target, while it may be written.
    pub fn target(&self) -> Option<RegionId> {
        self.model.as_ref()?;
        self.header.map(|h| RegionId(h.target_region))
    }

    /// From the lowest byte of the target that may be written to past the highest.
    pub fn hull(&self) -> Range<u64> {
        let owned = self.owned(0..u32::MAX);
        let hull = |(low, high): (u64, u64), r: Range<u64>| (low.min(r.start), high.max(r.end));
        let (low, high) = owned.fold((u64::MAX, 0), hull);
        low..high
    }

    /// The bytes of the vectors of some of its bags, counted from 0 within the part, and of all ids of
    /// features that are not pooled.
    pub fn owned(&self, bags: Range<u32>) -> impl Iterator<Item = Range<u64>> + '_ {
        let base = self.header.map_or(0, |h| h.target_base);
        let features = self.model.iter().flat_map(|m| &m.features);
        let rows = features
            .zip(&self.spans)
            .filter(|(f, _)| !f.is_pooled())
            .flat_map(move |(f, span)| {
                // A request with more is refused.
                let end = span.first_id.saturating_add(span.ids).min(f.max_ids);
                (span.first_id..end).map(move |id| shifted(f.place(id), base))
            });
        self.vectors(bags).map(|(.., place)| place).chain(rows)
    }

    /// Feature, bag and place of each vector of a bag.
    fn vectors(&self, bags: Range<u32>) -> impl Iterator<Item = (usize, u32, Range<u64>)> + '_ {
        let header = self.header.unwrap_or(Header::null(0));
        let bags = bags.start..bags.end.min(header.bags);
        let features = self
            .model
            .iter()
            .flat_map(|m| m.features.iter().enumerate());
        features
            .filter(|(_, f)| f.is_pooled())
            .flat_map(move |(i, f)| {
                bags.clone().map(move |bag| {
                    let place = f.place(header.first_bag + bag);
                    (i, bag, shifted(place, header.target_base))
                })
            })
    }

    /// The first of some bags whose vector is not what was asked for, by the tables of a generation with a delta, as a sentence. `stored`
    /// gives the target's bytes. Returns how many vectors are of rows that became others since it came.
    pub fn check(
        &self,
        bags: Range<u32>,
        (generation, delta): (u64, u64),
        mut stored: impl FnMut(Range<u64>) -> Option<Vec<u8>>,
    ) -> Result<u64, String> {
        let mut newer = 0;
        if self.entangled {
            return Ok(newer);
        }
        let (Some(model), Some(header)) = (&self.model, self.header) else {
            return Ok(newer);
        };
        let others = self.generation.into_iter().chain([header.generation]);
        if let Some(other) = others
            .into_iter()
            .find(|&other| other != 0 && other != generation)
        {
            return Err(format!("generation {generation} instead of {other}"));
        }
        let Some(model) = model.of(generation) else {
            return Err(format!("generation {generation}, which there is not"));
        };
        let begun = self.stands.get(&generation).copied().unwrap_or_default();
        let span = model.history().span(generation, begun, delta)?;
        if delta != begun.delta {
            return Err(format!(
                "delta {delta}, when {} was acknowledged as it came",
                begun.delta
            ));
        }
        let unread = |feature: usize, bag: u32| {
            format!("feature {feature}, bag {bag}: announced before its ids were read")
        };
        for (feature, f) in model.features.iter().enumerate() {
            let bags = bags.start..bags.end.min(header.bags);
            for bag in bags.filter(|_| !f.is_pooled()) {
                let bag_ids = self.bag(feature, bag);
                let (start, ids, _) = bag_ids.ok_or_else(|| unread(feature, bag))?;
                let first = self.spans[feature].first_id + start as u32;
                for (vector, id) in (first..).zip(ids) {
                    let place = shifted(f.place(vector), header.target_base);
                    let (bytes, moments) =
                        (stored(place.clone()), model.moments(feature, &[id], &span));
                    let is_right =
                        |&moment: &u64| bytes.is_some() && bytes == model.row(feature, id, moment);
                    let Some(at) = moments.iter().position(is_right) else {
                        let wanted = model.row(feature, id, *span.start());
                        return Err(format!(
                            "feature {feature}, bag {bag}, id {id} at {place:?} is not the row {wanted:?}, nor of later moments of {span:?}"
                        ));
                    };
                    newer += u64::from(at > 0);
                }
            }
        }
        for (feature, bag, place) in self.vectors(bags) {
            let bag_ids = self.bag(feature, bag);
            let (_, ids, weights) = bag_ids.ok_or_else(|| unread(feature, bag))?;
            let partials = header.flags & FLAG_PARTIALS != 0;
            let vector = |moment| model.vector(feature, &ids, weights.as_deref(), partials, moment);
            if vector(*span.start()).is_none() {
                return Err(format!(
                    "feature {feature}, bag {bag}: answered although an id is not in the table: {ids:?}"
                ));
            }
            let (bytes, moments) = (stored(place.clone()), model.moments(feature, &ids, &span));
            let is_right = |&moment: &u64| bytes.is_some() && bytes == vector(moment);
            let at = moments.iter().position(is_right).or_else(|| {
                let of = (&ids[..], weights.as_deref());
                let is_mixed = model.is_mixed(feature, of, partials, &span, bytes.as_deref()?);
                is_mixed.then_some(1)
            });
            let Some(at) = at else {
                return Err(format!(
                    "feature {feature}, bag {bag} (ids {ids:?}) at {place:?} is not what the reference gives at any moment of {span:?}"
                ));
            };
            newer += u64::from(at > 0);
        }
        Ok(newer)
    }

    /// The rows of a bag that a refusal names by one of its ids, in whatever generation, with their table's number: of a feature that is not pooled that
    /// and those behind it. `None` where there is no such bag, as far as is known what the worker has read.
    pub fn rows_at(&self, feature: u32, index: u32) -> Option<Vec<(usize, u32)>> {
        let (model, bags) = (self.model.as_ref()?, self.header?.bags);
        let feature = feature as usize;
        let is_pooled = model.features.get(feature)?.is_pooled();
        let mut all = (0..bags).filter_map(|bag| self.bag_ids(feature, bag));
        let at = |(first, ids): (u64, Vec<u64>)| {
            let at = u64::from(index).checked_sub(first)? as usize;
            (at < ids.len() && (at == 0 || !is_pooled)).then(|| ids[at..].to_vec())
        };
        let ids = all.find_map(at)?;
        let rows = ids.iter().flat_map(|&id| model.rows(feature, id));
        Some(rows.collect())
    }

    /// Whether it says that rows may be wanted soon.
    pub fn is_wish(&self) -> bool {
        self.header.is_some_and(|h| h.op == Op::Prefetch)
    }

    /// That the ids of rows that may be wanted soon were read, and are ids.
    ///
    /// # Errors
    /// What is wrong, as a sentence.
    pub fn check_wish(&self) -> Result<(), String> {
        let (Some(model), Some(header)) = (&self.wish, self.header) else {
            return Err("OK to ids of a schema that is not bound".into());
        };
        if self.entangled {
            return Ok(());
        }
        for (feature, f) in model.features.iter().enumerate() {
            for bag in 0..header.bags {
                let unread = || format!("feature {feature}, bag {bag}: taken before it was read");
                let (_, ids) = self.bag_ids(feature, bag).ok_or_else(unread)?;
                if let Some(id) = ids.iter().find(|&&id| f.row(id).is_none()) {
                    return Err(format!(
                        "feature {feature}, bag {bag}: {id} was taken for an id"
                    ));
                }
            }
        }
        Ok(())
    }

    /// How many ids of the part come before a bag, and the bag's ids and weights, as the worker has read
    /// them.
    fn bag(&self, feature: usize, bag: u32) -> Option<(u64, Vec<u64>, Option<Vec<f32>>)> {
        let (start, ids) = self.bag_ids(feature, bag)?;
        let model = self.model.as_ref()?;
        if !model.features[feature].pooling.is_weighted() {
            return Some((start, ids, None));
        }
        let at = u64::from(self.spans[feature].ids_at) + start;
        let header = self.header?;
        let bits = self.captures[2].elements(&header.weights, at, ids.len() as u64)?;
        let weights = bits.into_iter().map(|bits| f32::from_bits(bits as u32));
        Some((start, ids, Some(weights.collect())))
    }

    fn bag_ids(&self, feature: usize, bag: u32) -> Option<(u64, Vec<u64>)> {
        let (header, span) = (self.header?, self.spans[feature]);
        let lengths = &self.captures[0];
        let first = u64::from(span.lengths_at);
        let (start, end) = if header.lengths.element.is_offsets() {
            let offsets = lengths.elements(&header.lengths, first, u64::from(bag) + 2)?;
            (
                offsets[bag as usize] - offsets[0],
                offsets[bag as usize + 1] - offsets[0],
            )
        } else {
            let before = lengths.elements(&header.lengths, first, u64::from(bag) + 1)?;
            let start = before[..bag as usize].iter().sum::<u64>();
            (start, start + before[bag as usize])
        };
        let at = u64::from(span.ids_at) + start;
        let ids = self.captures[1].elements(&header.ids, at, end - start)?;
        Some((start, ids))
    }

    /// Whether a record names this request, as a sentence where not.
    pub fn addressed_by(&self, record: &Completion) -> Result<(), String> {
        match (record.request, record.attempt, record.part) == self.address {
            true => Ok(()),
            false => Err(format!(
                "a record of {:?} for a request {:?}",
                (record.request, record.attempt, record.part),
                self.address
            )),
        }
    }
}
