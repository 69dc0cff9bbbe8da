//! Every pooling with every output, row format and kind of table: answers are the oracle's bytes, and
//! what can't be answered is refused before a row is read.

mod common;

use common::{
    BLOCK_IDS, Batch, Carry, HeapMemory, INLINE, LIMITS, Model, REGION, SOURCE, TARGET, answer,
    assert_bytes, attach, engine, frame, lookup, memory_for, run, statuses,
};
use proptest::prelude::*;

use rowmill_engine::{Conn, Engine, Limits, Turn};
use rowmill_pooling::{Isa, Kernels};
use rowmill_table::{Missing, RowFormat, TableKind, TableSpec};
use rowmill_wire::request::{FLAG_PARTIALS, Header};
use rowmill_wire::status::NOWHERE;
use rowmill_wire::{CompletionKind, Element, Feature, Output, Pooling, Schema, SplitRule, Status};

const WIDE: Carry = Carry {
    ids: Element::Bits64,
    ..REGION
};

fn spec(name: &str, rows: u64, dim: usize, kind: TableKind) -> TableSpec {
    TableSpec {
        name: name.into(),
        rows,
        dim,
        format: RowFormat::F32,
        kind,
    }
}

#[test]
fn every_mode_gives_the_oracles_bytes() {
    let model = Model::every();
    let mut engine = engine(&model, LIMITS);
    for (bags, longest) in [(1, 3), (2, 0), (40, 9), (300, 12)] {
        for slice in [0, 7] {
            let batch = model.batch(u64::from(bags), bags, longest);
            answer(
                &model,
                &mut engine,
                &batch,
                WIDE,
                slice.max(bags.div_ceil(64)),
            );
        }
    }
    let inline = Carry {
        inline: true,
        ..WIDE
    };
    answer(&model, &mut engine, &model.batch(1, 2, 3), inline, 0);
}

#[test]
fn parts_fill_one_block_whatever_their_order() {
    let model = Model::every();
    let batch = model.batch(11, 203, 9);
    let rule = SplitRule {
        lanes: 5,
        min_bags: 8,
    };
    let mut memory = memory_for(&model, 203, vec![]);
    let parts: Vec<(u32, u32)> = rule.split(203).collect();
    for (part, &(first, bags)) in parts.iter().enumerate().rev() {
        let mut worker = Engine::new(LIMITS, Kernels::new(Isa::Scalar));
        attach(&mut worker, &model, Conn(0));
        let mut header = lookup(1, bags);
        (header.part, header.parts, header.first_bag) = (part as u8, 5, first);
        let mut source = vec![];
        let frame = frame(header, &batch.part(&model, first, bags), WIDE, &mut source);
        memory.regions.insert((0, SOURCE), source);
        worker
            .request(0, Conn(0), 0, &frame, &mut memory)
            .expect("the slot is free");
        assert_eq!(
            statuses(&run(&mut worker, &mut memory, &mut 0)),
            [Status::Ok]
        );
    }
    let wanted = model.oracle(&batch);
    assert_bytes(
        &model,
        &memory.regions[&(0, TARGET)][..wanted.len()],
        &wanted,
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_budget_and_slicing_gives_the_oracles_bytes(
        seed: u64, bags in 1u32..90, longest in 0u64..30, slice in 0u32..40, micro_batch_ns in 1u64..200_000,
    ) {
        let slice = if slice > 0 { slice.max(bags.div_ceil(64)) } else { 0 };
        let model = Model::every();
        let mut engine = engine(&model, Limits { micro_batch_ns, ..LIMITS });
        let records = answer(&model, &mut engine, &model.batch(seed, bags, longest), WIDE, slice);
        let slices = if slice == 0 { 1 } else { bags.div_ceil(slice) };
        prop_assert_eq!(records.len() as u32, slices);
        prop_assert_eq!(records.last().map(|r| r.0), Some(CompletionKind::Final));
    }
}

/// The record of the only request, with a target of plenty of bytes.
#[test]
fn a_block_is_cut_at_any_id() {
    let model = Model::new(
        &[spec("t", 400, 36, TableKind::Dense)],
        &[Pooling::None],
        512,
    );
    let limits = Limits {
        micro_batch_ns: 1,
        ..LIMITS
    };
    // An id of 288 bytes divides no budget.
    let batch = model.batch(3, 60, 30);
    assert!(batch.features[0].iter().map(Vec::len).sum::<usize>() > 700);
    let mut engine = engine(&model, limits);
    answer(&model, &mut engine, &batch, REGION, 7);
    answer(&model, &mut engine, &batch, REGION, 0);
}

fn outcome(model: &Model, header: Header, batch: &Batch, carry: Carry) -> (Status, u32, u32) {
    let mut engine = engine(model, LIMITS);
    let mut source = vec![];
    let frame = frame(header, batch, carry, &mut source);
    let mut memory = memory_for(model, header.bags, source);
    engine
        .request(0, Conn(0), 0, &frame, &mut memory)
        .expect("the slot is free");
    let records = run(&mut engine, &mut memory, &mut 0);
    assert_eq!(records.len(), 1, "one final record");
    let record = records[0].1;
    assert_eq!(
        engine.counters().rows > 0,
        record.status == Status::Ok,
        "refused before any row is read"
    );
    (record.status, record.feature, record.index)
}

#[test]
fn a_key_that_a_hashed_table_lacks_is_named() {
    let hashed = |missing| TableKind::Hashed(missing);
    let specs = [
        spec("zero", 300, 8, hashed(Missing::Zero)),
        spec("error", 5000, 8, hashed(Missing::Error)),
    ];
    let poolings = [Pooling::Sum, Pooling::Mean];
    let model = Model::new(&specs, &poolings, 4096);
    let batch = model.batch(2, 2000, 12);
    let ids: usize = batch.features[1].iter().map(Vec::len).sum();
    let keys: Vec<u64> = model.tables.tables()[1].entries().map(|(k, _)| k).collect();
    let lacks = (0..)
        .map(|i: u64| i * 0x9e37_79b9)
        .find(|k| !keys.contains(k));
    let lacks = lacks.expect("5,000 of 2^64 keys");
    assert_eq!(outcome(&model, lookup(1, 2000), &batch, WIDE).0, Status::Ok);
    // At the first id, at borders of chunks and of steps, and at the last one.
    for position in [0, 511, 512, 4095, 4096, 5000, ids - 1] {
        let mut bad = batch.clone();
        let mut at = 0;
        for bag in &mut bad.features[1] {
            if (at..at + bag.len()).contains(&position) {
                bag[position - at] = lacks;
            }
            at += bag.len();
        }
        assert_eq!(
            outcome(&model, lookup(1, 2000), &bad, WIDE),
            (Status::UnknownId, 1, position as u32)
        );
    }
    let inline = |ids| Carry { ids, ..INLINE };
    let few = |key| Batch {
        features: vec![vec![vec![]], vec![vec![keys[0], key]]],
        ..Batch::default()
    };
    let of = |key, carry| outcome(&model, lookup(1, 1), &few(key), carry);
    assert_eq!(of(keys[1], inline(Element::Bits64)).0, Status::Ok);
    assert_eq!(
        of(lacks, inline(Element::Bits64)),
        (Status::UnknownId, 1, 1)
    );
}

#[test]
fn every_number_is_an_id_of_a_hashed_table() {
    let specs = [spec("zero", 30, 4, TableKind::Hashed(Missing::Zero))];
    let model = Model::new(&specs, &[Pooling::Sum], 8);
    let mut engine = engine(&model, LIMITS);
    // Ids of 32 bits are the same as wide ones; the sign bit means nothing.
    for carry in [INLINE, REGION, WIDE] {
        let mut ids = vec![0, 1, u64::from(u32::MAX), 1 << 31];
        if carry.ids == Element::Bits64 {
            ids.extend([u64::MAX, 1 << 63, (1 << 31) - 1]);
        }
        let batch = Batch {
            features: vec![vec![ids.clone(), vec![], ids]],
            ..Batch::default()
        };
        answer(&model, &mut engine, &batch, carry, 0);
    }
}

#[test]
fn what_a_mode_rules_out_has_its_status_and_place() {
    let dense = |name: &str| spec(name, 50, 8, TableKind::Dense);
    let specs = [dense("a"), dense("b"), dense("c")];
    let of = |features: [(Pooling, Output); 3]| Model::of(&specs, &features, 64);
    let with = |pooling, output| {
        of([
            (Pooling::Sum, Output::F32),
            (pooling, output),
            (Pooling::Mean, Output::F32),
        ])
    };
    let is = |model: &Model, want: (Status, u32), change: &dyn Fn(&mut Header, &mut Batch)| {
        let (mut header, mut batch) = (lookup(1, 6), model.batch(3, 6, 4));
        batch.features[1][0] = vec![1, 2];
        if let Some(weights) = &mut batch.weights {
            weights[1][0] = vec![0.5, 2.0];
        }
        change(&mut header, &mut batch);
        let (status, feature, _) = outcome(model, header, &batch, REGION);
        assert_eq!((status, feature), want);
    };
    let partials = |h: &mut Header, _: &mut Batch| h.flags = FLAG_PARTIALS;
    let good = (Status::Ok, NOWHERE);
    let unsupported = (Status::Unsupported, 1);
    is(&with(Pooling::WeightedMean, Output::F32), good, &partials);
    is(&with(Pooling::Max, Output::F32), unsupported, &partials);
    is(&with(Pooling::None, Output::F32), unsupported, &partials);
    is(&with(Pooling::Sum, Output::Bf16), unsupported, &partials);

    let first = |f: usize, id: u32| {
        move |_: &mut Header, b: &mut Batch| {
            b.first_ids = vec![0; 3];
            b.first_ids[f] = id;
        }
    };
    let block = with(Pooling::None, Output::F16);
    let ids = |b: &Batch| b.features[1].iter().map(Vec::len).sum::<usize>() as u32;
    is(&block, good, &|h, b| {
        let last = BLOCK_IDS - ids(b);
        first(1, last)(h, b);
    });
    is(&block, (Status::BlockOverflow, 1), &|h, b| {
        let last = BLOCK_IDS - ids(b) + 1;
        first(1, last)(h, b);
    });
    is(&block, (Status::BlockOverflow, 1), &first(1, u32::MAX));
    is(&block, (Status::Malformed, 2), &first(2, 1));

    let base = |base| move |h: &mut Header, _: &mut Batch| h.target_base = base;
    let misaligned = (Status::TargetMisaligned, NOWHERE);
    let halves = of([
        (Pooling::Sum, Output::F16),
        (Pooling::None, Output::Bf16),
        (Pooling::Max, Output::Bf16),
    ]);
    is(&halves, good, &base(6));
    is(&halves, misaligned, &base(7));
    is(&block, misaligned, &base(6));
}

#[test]
fn a_request_without_a_vector_needs_no_room() {
    let specs = [spec("t", 9, 4, TableKind::Dense)];
    let model = Model::new(&specs, &[Pooling::None], 64);
    let empty = Batch {
        features: vec![vec![vec![]; 40]],
        ..Batch::default()
    };
    let mut engine = engine(&model, LIMITS);
    let mut source = vec![];
    let mut header = lookup(1, 40);
    header.slice_bags = 10;
    let mut send = |base, memory: &mut HeapMemory| {
        header.target_base = base;
        let frame = frame(header, &empty, REGION, &mut source);
        memory.regions.insert((0, SOURCE), source.clone());
        engine
            .request(0, Conn(0), 0, &frame, memory)
            .expect("the slot is free");
        statuses(&run(&mut engine, memory, &mut 0))
    };
    let mut memory = HeapMemory::default();
    memory.regions.insert((0, TARGET), vec![0; 8]);
    assert_eq!(send(8, &mut memory), [Status::Ok; 4]);
    assert_eq!(send(12, &mut memory), [Status::TargetOutOfRegion]);
    memory.regions.remove(&(0, TARGET));
    assert_eq!(send(0, &mut memory), [Status::UnknownRegion]);
}

#[test]
fn outputs_of_two_bytes_and_blocks_are_kept_apart() {
    let specs = [
        spec("a", 9, 16, TableKind::Dense),
        spec("c", 9, 36, TableKind::Dense),
    ];
    let model = Model::new(&specs, &[Pooling::Sum; 2], 10);
    // Vectors of 32 and 72 bytes.
    let half = |table: &str, offset, stride| Feature {
        name: format!("on {table}"),
        table: table.into(),
        pooling: Pooling::Max,
        output: Output::F16,
        max_ids: 0,
        offset,
        stride,
    };
    let block = |table: &str, max_ids, offset, stride| Feature {
        pooling: Pooling::None,
        max_ids,
        ..half(table, offset, stride)
    };
    let bind = |features: Vec<Feature>| {
        let schema = Schema {
            max_batch: 10,
            features,
        };
        rowmill_engine::bind(&schema, &model.tables)
            .map(|_| ())
            .map_err(|(refusal, _)| (refusal.status, refusal.feature))
    };
    let overlap = Err((Status::OverlappingOutputs, 1));
    let misaligned = Err((Status::TargetMisaligned, 0));
    assert_eq!(bind(vec![half("a", 2, 104), half("c", 34, 104)]), Ok(()));
    assert_eq!(bind(vec![half("a", 2, 104), half("c", 32, 104)]), overlap);
    assert_eq!(bind(vec![half("a", 1, 104)]), misaligned);
    assert_eq!(bind(vec![half("a", 0, 33)]), misaligned);
    let short = Err((Status::OverlappingOutputs, 0));
    assert_eq!(bind(vec![half("a", 0, 30)]), short);
    // A block has its max_ids vectors, however many bags there are.
    assert_eq!(
        bind(vec![block("a", 3, 0, 32), half("c", 96, 72)]),
        Ok(()),
        "three vectors, then the matrix"
    );
    assert_eq!(bind(vec![block("a", 4, 0, 32), half("c", 96, 72)]), overlap);
    assert_eq!(
        bind(vec![block("a", 4, 0, 104), half("c", 32, 104)]),
        Ok(())
    );
    assert_eq!(
        bind(vec![
            block("a", 1 << 23, 0, 1 << 40),
            half("c", 1 << 40, 72)
        ]),
        overlap
    );
    let wide = Feature {
        output: Output::F32,
        ..half("a", 2, 104)
    };
    assert_eq!(bind(vec![wide]), misaligned);
}

#[test]
fn ids_are_resolved_a_request_ahead() {
    let specs = [spec("t", 4000, 64, TableKind::Hashed(Missing::Error))];
    let model = Model::new(&specs, &[Pooling::Sum], 4096);
    let limits = Limits {
        micro_batch_ns: 1,
        ..LIMITS
    };
    let mut engine = engine(&model, limits);
    attach(&mut engine, &model, Conn(1));
    let mut memory = memory_for(&model, 1000, vec![]);
    let target = memory.regions[&(0, TARGET)].clone();
    memory.regions.insert((1, TARGET), target);
    let batches = [model.batch(1, 1000, 20), model.batch(2, 20, 20)];
    for (conn, batch) in batches.iter().enumerate() {
        let (conn, mut source) = (conn as u32, vec![]);
        let frame = frame(lookup(conn.into(), batch.bags()), batch, WIDE, &mut source);
        memory.regions.insert((conn, SOURCE), source);
        engine
            .request(0, Conn(conn), 0, &frame, &mut memory)
            .expect("the slot is free");
    }
    memory.reads = Some(Vec::new());
    let mut answered = [false; 2];
    let mut ahead = false;
    while !answered[1] {
        let rows = engine.counters().rows;
        assert!(matches!(engine.turn(0, &mut memory), Turn::Worked { .. }));
        let pooled = engine.counters().rows - rows;
        // A turn that pools rows of the first client reads the ids of the second.
        let reads = memory.reads.replace(Vec::new()).expect("watched");
        ahead |= pooled > 0 && reads == [1];
        while let Some((conn, record)) = engine.poll_completion() {
            assert_eq!(record.status, Status::Ok);
            answered[conn.0 as usize] = true;
        }
    }
    assert!(
        ahead,
        "the second client's ids were read while the first was served"
    );
    run(&mut engine, &mut memory, &mut 0);
    for (conn, batch) in batches.iter().enumerate() {
        let wanted = model.oracle(batch);
        let target = &memory.regions[&(conn as u32, TARGET)];
        assert_bytes(&model, &target[..wanted.len()], &wanted);
    }
}

#[test]
fn a_bad_id_found_ahead_ends_its_own_request_only() {
    let specs = [spec("t", 400, 64, TableKind::Hashed(Missing::Error))];
    let model = Model::new(&specs, &[Pooling::Sum], 4096);
    let limits = Limits {
        micro_batch_ns: 1,
        ..LIMITS
    };
    let mut engine = engine(&model, limits);
    let mut memory = memory_for(&model, 1000, vec![]);
    let good = model.batch(1, 1000, 20);
    let mut bad = model.batch(2, 2, 20);
    bad.features[0][1] = vec![3];
    let position = bad.features[0][0].len() as u32;
    let mut source = vec![];
    let frames = [
        frame(lookup(1, 1000), &good, WIDE, &mut source),
        frame(lookup(2, 2), &bad, WIDE, &mut source),
    ];
    memory.regions.insert((0, SOURCE), source);
    for (slot, frame) in frames.iter().enumerate() {
        engine
            .request(0, Conn(0), slot as u16, frame, &mut memory)
            .expect("the slot is free");
    }
    let records = run(&mut engine, &mut memory, &mut 0);
    let got: Vec<_> = records
        .iter()
        .map(|(_, r)| (r.request, r.status, r.index))
        .collect();
    assert_eq!(
        got,
        [(2, Status::UnknownId, position), (1, Status::Ok, NOWHERE)]
    );
    let wanted = model.oracle(&good);
    assert_bytes(
        &model,
        &memory.regions[&(0, TARGET)][..wanted.len()],
        &wanted,
    );
}
