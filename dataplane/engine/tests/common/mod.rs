//! A driver for engines in tests: client memory on the heap, frames built from plain batches, and
//! the scalar oracle's answer for them.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::HashMap;
use std::sync::Arc;

use rowmill_arena::{HugePages, Window};
use rowmill_engine::{BoundSchema, Conn, Engine, Limits, Memory, Turn, bind};
use rowmill_pooling::{Bags, Isa, Kernels, Rows, scalar};
use rowmill_table::{Resident, RowFormat, TableSpec};
use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::request::{self, Header};
use rowmill_wire::{Completion, Element, FeatureSpan, Op, Place, Pooling, Schema, Segment, Status};

/// Stands in for a port's registered memory: a heap buffer for each (connection, region).
#[derive(Default)]
pub(crate) struct HeapMemory {
    pub(crate) regions: HashMap<(u32, u32), Vec<u8>>,
    pub(crate) lost: Vec<(u32, u32)>,
}

impl HeapMemory {
    fn range(
        &self,
        conn: Conn,
        region: u32,
        offset: u64,
        len: u64,
        outside: Status,
    ) -> Result<(), Status> {
        let bytes = self
            .regions
            .get(&(conn.0, region))
            .ok_or(Status::UnknownRegion)?;
        match offset.checked_add(len) {
            Some(end) if end <= bytes.len() as u64 => Ok(()),
            _ => Err(outside),
        }
    }
}

impl Memory for HeapMemory {
    fn read(&mut self, conn: Conn, region: u32, offset: u64, out: &mut [u8]) -> Result<(), Status> {
        self.range(
            conn,
            region,
            offset,
            out.len() as u64,
            Status::SegmentOutOfRegion,
        )?;
        if self.is_lost(conn, region) {
            return Err(Status::RegionLost);
        }
        let bytes = &self.regions[&(conn.0, region)];
        out.copy_from_slice(&bytes[offset as usize..][..out.len()]);
        Ok(())
    }

    fn target(
        &mut self,
        conn: Conn,
        region: u32,
        offset: u64,
        len: u64,
    ) -> Result<Window<'_>, Status> {
        self.range(conn, region, offset, len, Status::TargetOutOfRegion)?;
        let bytes = self
            .regions
            .get_mut(&(conn.0, region))
            .ok_or(Status::UnknownRegion)?;
        Ok(Window::over(&mut bytes[offset as usize..][..len as usize]))
    }

    fn is_lost(&self, conn: Conn, region: u32) -> bool {
        self.lost.contains(&(conn.0, region))
    }
}

/// Jagged ids of one request: for each feature its bags.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) features: Vec<Vec<Vec<u64>>>,
    pub(crate) weights: Option<Vec<Vec<Vec<f32>>>>,
}

impl Batch {
    pub(crate) fn bags(&self) -> u32 {
        self.features[0].len() as u32
    }

    /// The bags `first..first + bags` of every feature.
    pub(crate) fn part(&self, first: u32, bags: u32) -> Batch {
        let range = first as usize..(first + bags) as usize;
        Batch {
            features: self
                .features
                .iter()
                .map(|f| f[range.clone()].to_vec())
                .collect(),
            weights: self
                .weights
                .as_ref()
                .map(|w| w.iter().map(|f| f[range.clone()].to_vec()).collect()),
        }
    }
}

/// How a frame carries its segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Carry {
    pub(crate) inline: bool,
    pub(crate) lengths: Element,
    pub(crate) ids: Element,
}

pub(crate) const INLINE: Carry = Carry {
    inline: true,
    lengths: Element::Bits32,
    ids: Element::Bits32,
};
pub(crate) const REGION: Carry = Carry {
    inline: false,
    lengths: Element::Bits32,
    ids: Element::Bits32,
};

/// The region of sources and the region of targets in tests.
pub(crate) const SOURCE: u32 = 0;
pub(crate) const TARGET: u32 = 1;

/// A header with everything but the segments set.
pub(crate) fn lookup(request: u64, bags: u32) -> Header {
    Header {
        op: Op::Lookup,
        bags,
        target_region: TARGET,
        ..Header::null(request)
    }
}

/// Builds the frame of a batch; segments that are not inline are put into `source`.
pub(crate) fn frame(
    mut header: Header,
    batch: &Batch,
    carry: Carry,
    source: &mut Vec<u8>,
) -> Vec<u8> {
    let (mut lengths, mut ids, mut weights, mut spans) = (vec![], vec![], vec![], vec![]);
    let put = |out: &mut Vec<u8>, value: u64, element: Element| {
        out.extend_from_slice(&value.to_le_bytes()[..element.bytes() as usize]);
    };
    for (f, bags) in batch.features.iter().enumerate() {
        let lengths_at = lengths.len() as u64 / carry.lengths.bytes();
        let ids_at = ids.len() as u64 / carry.ids.bytes();
        let mut offset = 7;
        if carry.lengths.is_offsets() {
            put(&mut lengths, offset, carry.lengths);
        }
        for (b, bag) in bags.iter().enumerate() {
            offset += bag.len() as u64;
            let value = if carry.lengths.is_offsets() {
                offset
            } else {
                bag.len() as u64
            };
            put(&mut lengths, value, carry.lengths);
            bag.iter().for_each(|&id| put(&mut ids, id, carry.ids));
            if let Some(w) = &batch.weights {
                w[f][b].iter().for_each(|w| weights.extend(w.to_le_bytes()));
            }
        }
        let count = bags.iter().map(Vec::len).sum::<usize>() as u32;
        spans.push(FeatureSpan {
            lengths_at: lengths_at as u32,
            ids_at: ids_at as u32,
            ids: count,
        });
    }
    let mut inline: Vec<u8> = Vec::new();
    let mut place = |bytes: Vec<u8>, element: Element| {
        let len = bytes.len() as u64;
        let place = if carry.inline {
            let offset = (request::inline_offset(spans.len()) + inline.len()) as u32;
            inline.extend(bytes);
            Place::Inline { offset }
        } else {
            let offset = source.len() as u64;
            source.extend(bytes);
            Place::Region {
                region: SOURCE,
                offset,
            }
        };
        Segment {
            place,
            element,
            len,
        }
    };
    header.lengths = place(lengths, carry.lengths);
    header.ids = place(ids, carry.ids);
    if batch.weights.is_some() {
        header.weights = place(weights, Element::Bits32);
    }
    let mut out = Box::new([0; SLOT_BYTES]);
    let len = request::encode(&header, &spans, &[&inline], &mut out).expect("the frame fits");
    out[..len].to_vec()
}

/// Tables, a schema over them, and its row length in bytes.
pub(crate) struct Model {
    pub(crate) tables: Arc<Resident>,
    pub(crate) schema: Schema,
    pub(crate) row_bytes: u64,
    pub(crate) bound: Arc<BoundSchema>,
}

impl Model {
    pub(crate) fn new(specs: &[TableSpec], poolings: &[Pooling], max_batch: u32) -> Model {
        let tables =
            Resident::in_memory(specs, 7, HugePages::Off, &|_, _, _| {}).expect("small tables fit");
        let tables = Arc::new(tables);
        let features = specs
            .iter()
            .zip(poolings)
            .map(|(s, &p)| (s.name.as_str(), s.name.as_str(), p, s.dim as u32));
        let (schema, row_bytes) = Schema::side_by_side(max_batch, features);
        let bound = Arc::new(bind(&schema, &tables).expect("a good schema"));
        Model {
            tables,
            schema,
            row_bytes,
            bound,
        }
    }

    /// Three features of different dims, formats and poolings.
    pub(crate) fn mixed() -> Model {
        let spec = |name: &str, rows, dim, format| TableSpec {
            name: name.into(),
            rows,
            dim,
            format,
        };
        let specs = [
            spec("a", 1000, 16, RowFormat::F32),
            spec("b", 50, 128, RowFormat::Int8),
            spec("c", 3000, 36, RowFormat::F32),
        ];
        Model::new(&specs, &[Pooling::Sum, Pooling::Mean, Pooling::Sum], 4096)
    }

    /// A seeded batch with empty bags and repeated ids.
    pub(crate) fn batch(&self, seed: u64, bags: u32, longest: u64) -> Batch {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let features = self.tables.tables().iter().map(|t| {
            let rows = u64::from(t.row_count());
            let mut bag = || (0..next() % (longest + 1)).map(|_| next() % rows).collect();
            (0..bags).map(|_| bag()).collect()
        });
        Batch {
            features: features.collect(),
            weights: None,
        }
    }

    /// What the scalar reference gives for a batch, in the schema's layout.
    pub(crate) fn oracle(&self, batch: &Batch) -> Vec<u8> {
        let row_bytes = self.row_bytes as usize;
        let mut out = vec![0f32; batch.bags() as usize * row_bytes / 4];
        for (f, bags) in batch.features.iter().enumerate() {
            let (feature, table) = (&self.bound.features()[f], &self.tables.tables()[f]);
            let format = match table.format() {
                RowFormat::F32 => rowmill_pooling::RowFormat::F32,
                RowFormat::Int8 => rowmill_pooling::RowFormat::Int8,
            };
            let rows = Rows::new(
                table.bytes(),
                table.stride(),
                table.row_count(),
                table.dim(),
                format,
            );
            let ids: Vec<u32> = bags.iter().flatten().map(|&id| id as u32).collect();
            let lengths: Vec<u32> = bags.iter().map(|b| b.len() as u32).collect();
            let weights: Option<Vec<f32>> = batch
                .weights
                .as_ref()
                .filter(|_| feature.weighted)
                .map(|w| w[f].iter().flatten().copied().collect());
            let bags = Bags {
                rows: rows.expect("consistent"),
                ids: &ids,
                lengths: &lengths,
                weights: weights.as_deref(),
                mode: feature.mode,
                offset: feature.offset as usize,
                stride: feature.stride as usize,
            };
            scalar::pool(&[bags], &mut out);
        }
        out.iter().flat_map(|x| x.to_le_bytes()).collect()
    }
}

pub(crate) const LIMITS: Limits = Limits {
    connections: 8,
    slots: 4,
    credits: 8,
    max_ids: 1 << 16,
    max_lengths: 1 << 14,
    micro_batch_ns: 50_000,
};

/// An engine with connection 0 attached and the model bound as schema 0, as widely as this machine's
/// kernels allow.
pub(crate) fn engine(model: &Model, limits: Limits) -> Engine {
    let mut engine = Engine::new(limits, Kernels::new(Isa::detect().isa));
    attach(&mut engine, model, Conn(0));
    engine
}

pub(crate) fn attach(engine: &mut Engine, model: &Model, conn: Conn) {
    engine.attach(conn);
    engine.bind(conn, 0, Arc::clone(&model.bound));
}

/// Turns until nothing is left to do; the fake clock advances 10 us a turn.
pub(crate) fn run(
    engine: &mut Engine,
    memory: &mut HeapMemory,
    now_ns: &mut u64,
) -> Vec<(Conn, Completion)> {
    let mut out = Vec::new();
    loop {
        let turn = engine.turn(*now_ns, memory);
        out.extend(std::iter::from_fn(|| engine.poll_completion()));
        *now_ns += 10_000;
        if turn == Turn::Idle {
            return out;
        }
    }
}

/// The records' statuses.
pub(crate) fn statuses(records: &[(Conn, Completion)]) -> Vec<Status> {
    records.iter().map(|(_, c)| c.status).collect()
}
