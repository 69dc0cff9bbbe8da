//! A driver for engines in tests: client memory on the heap, frames built from plain batches, and
//! the scalar oracle's answer for them.
#![allow(dead_code, reason = "each test binary uses its own part")]

mod memory;
pub(crate) mod shelf;

use std::collections::HashMap;
use std::sync::Arc;

use rowmill_arena::HugePages;
use rowmill_engine::{BoundSchema, Conn, Engine, Limits, STAGE_BYTES_MIN, Turn, bind};
use rowmill_pooling::{Bags, Isa, Kernels, Mode, Rows, scalar};
use rowmill_table::{Missing, Resident, ResidentTable, RowFormat, TableKind, TableSpec};
use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::request::{self, Header};
use rowmill_wire::{
    Completion, CompletionKind, Element, Feature, FeatureSpan, Op, Output, Place, Pooling, Schema,
    Segment, Status,
};

pub(crate) use memory::{HeapMemory, Remote};

/// Jagged ids of one request: for each feature its bags.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    pub(crate) features: Vec<Vec<Vec<u64>>>,
    pub(crate) weights: Option<Vec<Vec<Vec<f32>>>>,
    /// Of features that are not pooled, the ids in the parts before; empty where all are 0.
    pub(crate) first_ids: Vec<u32>,
}

impl Batch {
    pub(crate) fn bags(&self) -> u32 {
        self.features[0].len() as u32
    }

    /// The bags `first..first + bags` of every feature of a model.
    pub(crate) fn part(&self, model: &Model, first: u32, bags: u32) -> Batch {
        let before = |bags: &[Vec<u64>]| bags[..first as usize].iter().map(Vec::len).sum::<usize>();
        let features = self.features.iter().zip(model.bound.features());
        let first_ids = features.map(|(bags, f)| match f.mode {
            Mode::None => before(bags) as u32,
            _ => 0,
        });
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
            first_ids: first_ids.collect(),
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
            first_id: batch.first_ids.get(f).copied().unwrap_or(0),
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

/// Tables, and a schema over them: blocks of what is not pooled, then the matrix of all others.
pub(crate) struct Model {
    pub(crate) tables: Arc<Resident>,
    pub(crate) schema: Schema,
    /// Bytes of the blocks.
    pub(crate) block_bytes: u64,
    /// Bytes of a row of the matrix.
    pub(crate) row_bytes: u64,
    pub(crate) bound: Arc<BoundSchema>,
}

/// Most ids of a block in tests.
pub(crate) const BLOCK_IDS: u32 = 6000;

impl Model {
    pub(crate) fn new(specs: &[TableSpec], poolings: &[Pooling], max_batch: u32) -> Model {
        let features: Vec<_> = poolings.iter().map(|&p| (p, Output::F32)).collect();
        Model::of(specs, &features, max_batch)
    }

    /// A model of a feature a table. Offsets and strides are as unaligned as elements allow.
    pub(crate) fn of(specs: &[TableSpec], features: &[(Pooling, Output)], max_batch: u32) -> Model {
        let tables =
            Resident::in_memory(specs, 7, HugePages::Off, &|_, _, _| {}).expect("small tables fit");
        let tables = Arc::new(tables);
        let mut next = 0;
        let mut place = |bytes: u64, element: u64| {
            let at = u64::next_multiple_of(next, element);
            next = at + bytes;
            at
        };
        let mut placed: Vec<Feature> = specs
            .iter()
            .zip(features)
            .map(|(s, &(pooling, output))| Feature {
                pooling,
                ..Feature::block(&s.name, &s.name, output, s.dim as u32, BLOCK_IDS, 0)
            })
            .collect();
        let blocks = |f: &&mut Feature| f.pooling == Pooling::None;
        for f in placed.iter_mut().filter(blocks) {
            let (vector, element) = (f.stride, f.output.bytes());
            f.stride += 2 * element;
            f.offset = place(u64::from(BLOCK_IDS - 1) * f.stride + vector, element);
        }
        let block_bytes = place(0, 4);
        for f in placed.iter_mut().filter(|f| f.pooling != Pooling::None) {
            f.offset = place(f.stride, f.output.bytes());
            f.max_ids = 0;
        }
        let row_bytes = place(0, 4) - block_bytes;
        for f in placed.iter_mut().filter(|f| f.pooling != Pooling::None) {
            f.stride = row_bytes;
        }
        let schema = Schema {
            max_batch,
            features: placed,
        };
        let bound = Arc::new(bind(&schema, &tables).expect("a good schema"));
        Model {
            tables,
            schema,
            block_bytes,
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
            kind: TableKind::Dense,
        };
        let specs = [
            spec("a", 1000, 16, RowFormat::F32),
            spec("b", 50, 128, RowFormat::Int8),
            spec("c", 3000, 36, RowFormat::F32),
        ];
        Model::new(&specs, &[Pooling::Sum, Pooling::Mean, Pooling::Sum], 4096)
    }

    /// The same tables with other rows, as a generation of that number.
    pub(crate) fn generation(&self, number: u64) -> Model {
        let spec = |t: &ResidentTable| TableSpec {
            name: t.name().into(),
            rows: t.lookup_count().into(),
            dim: t.dim(),
            format: t.format(),
            kind: t.kind(),
        };
        let specs: Vec<TableSpec> = self.tables.tables().iter().map(spec).collect();
        let tables = Resident::in_memory(&specs, number, HugePages::Off, &|_, _, _| {});
        let tables = Arc::new(tables.expect("small tables fit").with_generation(number));
        Model {
            schema: self.schema.clone(),
            bound: Arc::new(bind(&self.schema, &tables).expect("a good schema")),
            tables,
            ..*self
        }
    }

    /// Every pooling with every type of output, and among them every row format and kind of table.
    pub(crate) fn every() -> Model {
        let kinds = [
            TableKind::Dense,
            TableKind::Hashed(Missing::Error),
            TableKind::Hashed(Missing::Zero),
            TableKind::Hashed(Missing::Default),
        ];
        let all = Pooling::ALL
            .iter()
            .flat_map(|&p| Output::ALL.map(|o| (p, o)));
        let features: Vec<(Pooling, Output)> = all.collect();
        let spec = |i: usize| TableSpec {
            name: format!("t{i}"),
            rows: [400, 33, 1][i % 3],
            dim: [4, 12, 36, 64, 128][i % 5],
            // Each pooling meets three formats, and each format all poolings but for parity.
            format: RowFormat::ALL[(i + i / 6) % 6],
            kind: kinds[(i + i / 4) % 4],
        };
        let specs: Vec<TableSpec> = (0..features.len()).map(spec).collect();
        Model::of(&specs, &features, 512)
    }

    /// Bytes of a target for `bags` bags.
    pub(crate) fn target_bytes(&self, bags: u32) -> usize {
        (self.block_bytes + u64::from(bags) * self.row_bytes) as usize
    }

    /// A seeded batch with empty bags and repeated ids, with weights where the model takes some.
    pub(crate) fn batch(&self, seed: u64, bags: u32, longest: u64) -> Batch {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let features = self.tables.tables().iter().map(|t| {
            let names = names(t);
            let mut bag = || {
                let ids = 0..next() % (longest + 1);
                ids.map(|_| names[next() as usize % names.len()]).collect()
            };
            (0..bags).map(|_| bag()).collect()
        });
        let features: Vec<Vec<Vec<u64>>> = features.collect();
        let weight = |i: usize| (i as f32 - 3.0) / 7.0;
        let weights = |bags: &Vec<Vec<u64>>| {
            let bags = bags.iter().map(|b| (0..b.len()).map(weight).collect());
            bags.collect()
        };
        Batch {
            weights: (self.bound.is_weighted()).then(|| features.iter().map(weights).collect()),
            features,
            first_ids: Vec::new(),
        }
    }

    /// What the scalar reference gives for a batch, in the schema's layout.
    pub(crate) fn oracle(&self, batch: &Batch) -> Vec<u8> {
        self.oracle_without(batch, |_| false)
    }

    /// The same where rows of which `lacks` says so, by their numbers, are zeros.
    pub(crate) fn oracle_without(&self, batch: &Batch, lacks: impl Fn(u32) -> bool) -> Vec<u8> {
        let mut out = vec![UNTOUCHED; self.target_bytes(batch.bags())];
        for (f, bags) in batch.features.iter().enumerate() {
            let (feature, table) = (&self.bound.features()[f], &self.tables.tables()[f]);
            let ids: Vec<u32> = bags.iter().flatten().map(row_of(table)).collect();
            let lengths: Vec<u32> = bags.iter().map(|b| b.len() as u32).collect();
            let weights: Option<Vec<f32>> = batch
                .weights
                .as_ref()
                .filter(|_| feature.weighted)
                .map(|w| w[f].iter().flatten().copied().collect());
            let mut rows = table.bytes().to_vec();
            let numbered = (0..).zip(rows.chunks_mut(table.stride()));
            let lacking = numbered.filter(|&(row, _)| lacks(row));
            lacking.for_each(|(_, row)| row.fill(0));
            let of_table = rowmill_engine::rows(table);
            let (count, format) = (of_table.count(), of_table.format());
            let bags = Bags {
                rows: Rows::new(&rows, table.stride(), count, table.dim(), format)
                    .expect("as the table's"),
                ids: &ids,
                lengths: &lengths,
                weights: weights.as_deref(),
                mode: feature.mode,
                output: feature.output,
                offset: feature.offset as usize,
                stride: feature.stride as usize,
            };
            scalar::pool(&[bags], &mut out);
        }
        out
    }
}

/// What targets hold where nothing was written.
pub(crate) const UNTOUCHED: u8 = 0xaa;

/// Ids of a table for drawing from: all of them, and with each some that it lacks and answers.
fn names(table: &ResidentTable) -> Vec<u64> {
    let mut keys: Vec<u64> = table.entries().map(|(key, _)| key).collect();
    keys.sort_unstable();
    match table.kind() {
        TableKind::Dense => (0..table.lookup_count().into()).collect(),
        TableKind::Hashed(Missing::Error) => keys,
        TableKind::Hashed(_) => keys.iter().flat_map(|&key| [key, key ^ 0x55]).collect(),
    }
}

/// The row of an id, found without the index.
fn row_of(table: &ResidentTable) -> impl Fn(&u64) -> u32 {
    let rows: HashMap<u64, u32> = table.entries().collect();
    let (kind, missing) = (table.kind(), table.lookup_count());
    move |id| match kind {
        TableKind::Dense => *id as u32,
        TableKind::Hashed(_) => rows.get(id).copied().unwrap_or(missing),
    }
}

/// Bytes before and after the target that must stay as they were.
const GUARD: usize = 64;

pub(crate) fn memory_for(model: &Model, bags: u32, source: Vec<u8>) -> HeapMemory {
    let mut memory = HeapMemory::default();
    memory.regions.insert((0, SOURCE), source);
    let target = vec![UNTOUCHED; model.target_bytes(bags) + 2 * GUARD];
    memory.regions.insert((0, TARGET), target);
    memory
}

/// Sends a batch and compares the answer and the bytes around it, with memory at hand and with memory far
/// away; the records' kinds and slices.
pub(crate) fn answer(
    model: &Model,
    engine: &mut Engine,
    batch: &Batch,
    carry: Carry,
    slice_bags: u32,
) -> Vec<(CompletionKind, u16)> {
    let near = answer_from(model, engine, batch, carry, slice_bags, None);
    // With room for a run or two, and for more that wait for rows.
    for blocks in [2, 32] {
        let remote = Remote::new(STAGE_BYTES_MIN as usize, blocks);
        let far = answer_from(model, engine, batch, carry, slice_bags, Some(remote));
        assert_eq!(near, far, "the same records wherever memory is");
    }
    near
}

fn answer_from(
    model: &Model,
    engine: &mut Engine,
    batch: &Batch,
    carry: Carry,
    slice_bags: u32,
    remote: Option<Remote>,
) -> Vec<(CompletionKind, u16)> {
    let mut header = lookup(9, batch.bags());
    header.target_base = GUARD as u64;
    header.slice_bags = slice_bags;
    let mut source = vec![0; 3];
    let frame = frame(header, batch, carry, &mut source);
    let mut memory = memory_for(model, batch.bags(), source);
    memory.remote = remote;
    let mut now_ns = 5;
    engine
        .request(now_ns, Conn(0), 3, &frame, &mut memory)
        .expect("the slot is free");
    let records = run(engine, &mut memory, &mut now_ns);
    for (conn, record) in &records {
        assert_eq!(
            (*conn, record.request, record.slot, record.status),
            (Conn(0), 9, 3, Status::Ok),
            "{record:?}"
        );
    }
    let target = &memory.regions[&(0, TARGET)];
    let (before, rest) = target.split_at(GUARD);
    let (result, after) = rest.split_at(rest.len() - GUARD);
    assert_bytes(model, result, &model.oracle(batch));
    assert!(
        before.iter().chain(after).all(|&b| b == UNTOUCHED),
        "bytes around the target"
    );
    assert_eq!(engine.in_progress(), 0);
    assert!(memory.remote.is_none_or(|remote| remote.is_whole()));
    records.iter().map(|(_, r)| (r.kind, r.slice)).collect()
}

/// Panics with the place where the first byte differs.
pub(crate) fn assert_bytes(model: &Model, result: &[u8], wanted: &[u8]) {
    assert_eq!(result.len(), wanted.len(), "bytes of the target");
    if let Some(at) = (0..wanted.len()).find(|&i| result[i] != wanted[i]) {
        let features = model.bound.features().iter().enumerate();
        let below = features.filter(|(_, f)| f.offset as usize <= at);
        let nearest = below.max_by_key(|(_, f)| f.offset);
        panic!("byte {at} differs from the oracle's; nearest below it is {nearest:?}");
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
        let coming = memory.remote.as_mut();
        for (conn, slot, outcome) in coming.map_or(vec![], |r| std::mem::take(&mut r.coming)) {
            engine.fetched(*now_ns, conn, slot, outcome, memory);
        }
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

/// Data in the client's memory, with ids of 64 bits.
pub(crate) const WIDE: Carry = Carry {
    ids: Element::Bits64,
    ..REGION
};

/// Sends a batch in a slot.
pub(crate) fn send(
    model: &Model,
    engine: &mut Engine,
    memory: &mut HeapMemory,
    slot: u16,
    bags: u32,
    remaining_us: u32,
) {
    let mut header = lookup(u64::from(slot), bags);
    header.remaining_us = remaining_us;
    let mut source = vec![];
    let frame = frame(header, &model.batch(5, bags, 9), WIDE, &mut source);
    memory.regions.insert((0, SOURCE), source);
    engine
        .request(0, Conn(0), slot, &frame, memory)
        .expect("the slot is free");
}

/// Turns until nothing can be done before rows come.
pub(crate) fn until_blocked(engine: &mut Engine, memory: &mut HeapMemory) {
    for _ in 0..10_000 {
        if engine.turn(0, memory) == Turn::Blocked {
            return;
        }
    }
    panic!("it never waits: {:?}", engine.counters());
}

/// Turns until no row is held for anybody.
pub(crate) fn run_until_nothing_is_held(engine: &mut Engine, memory: &mut HeapMemory) {
    for turn in 0..1000 {
        engine.turn(1_000_000 + turn, memory);
        if engine.cache().held() == (0, 0) {
            return;
        }
    }
    panic!("{:?} rows are held", engine.cache().held());
}
