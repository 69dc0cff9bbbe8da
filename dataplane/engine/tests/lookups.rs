//! Answers: whatever the frame's form, the micro-batches and the split, the bytes are the oracle's.

mod common;

use common::{
    Batch, Carry, HeapMemory, INLINE, LIMITS, Model, REGION, SOURCE, TARGET, UNTOUCHED, answer,
    attach, engine, frame, lookup, memory_for, run,
};
use proptest::prelude::*;

use rowmill_engine::{Conn, Engine, Limits};
use rowmill_table::{RowFormat, TableSpec};
use rowmill_wire::request::FLAG_PARTIALS;
use rowmill_wire::{CompletionKind, Element, Pooling, SplitRule, Status};

#[test]
fn every_form_of_frame_gives_the_oracles_bytes() {
    let model = Model::mixed();
    let mut engine = engine(&model, LIMITS);
    for lengths in [
        Element::Bits32,
        Element::Bits64,
        Element::Offsets32,
        Element::Offsets64,
    ] {
        for ids in [Element::Bits32, Element::Bits64] {
            for (inline, bags) in [(true, 20), (false, 20), (false, 700)] {
                let carry = Carry {
                    inline,
                    lengths,
                    ids,
                };
                let batch = model.batch(u64::from(bags) + 1, bags, 12);
                assert_eq!(
                    answer(&model, &mut engine, &batch, carry, 0),
                    [(CompletionKind::Final, 0)]
                );
            }
        }
    }
}

#[test]
fn slices_complete_in_order_and_the_last_is_final() {
    let model = Model::mixed();
    let mut engine = engine(&model, LIMITS);
    let kinds = answer(&model, &mut engine, &model.batch(3, 100, 10), REGION, 32);
    let slice = CompletionKind::Slice;
    assert_eq!(
        kinds,
        [
            (slice, 0),
            (slice, 1),
            (slice, 2),
            (CompletionKind::Final, 3)
        ]
    );
    let kinds = answer(&model, &mut engine, &model.batch(4, 64, 10), REGION, 32);
    assert_eq!(
        kinds,
        [(slice, 0), (CompletionKind::Final, 1)],
        "no empty slice at the end"
    );
}

#[test]
fn a_slice_is_placed_when_it_is_announced() {
    let model = Model::mixed();
    let mut engine = engine(&model, LIMITS);
    let batch = model.batch(5, 100, 40);
    let mut header = lookup(1, 100);
    header.slice_bags = 25;
    let mut source = vec![];
    let frame = frame(header, &batch, REGION, &mut source);
    let mut memory = memory_for(&model, 100, source);
    engine
        .request(0, Conn(0), 0, &frame, &mut memory)
        .expect("the slot is free");
    let wanted = model.oracle(&batch);
    let mut seen = 0;
    while seen < 4 {
        engine.turn(0, &mut memory);
        while let Some((_, record)) = engine.poll_completion() {
            seen += 1;
            let end = 25 * seen * model.row_bytes as usize;
            assert_eq!(usize::from(record.slice), seen - 1);
            assert_eq!(
                memory.regions[&(0, TARGET)][..end],
                wanted[..end],
                "slice {}",
                record.slice
            );
        }
    }
}

#[test]
fn weights_and_partials() {
    let spec = |name: &str, dim| TableSpec {
        name: name.into(),
        rows: 99,
        dim,
        format: RowFormat::F32,
        kind: rowmill_table::TableKind::Dense,
    };
    let poolings = [Pooling::WeightedSum, Pooling::Mean];
    let model = Model::new(&[spec("w", 20), spec("m", 8)], &poolings, 64);
    let batch = model.batch(8, 30, 5);
    let mut weighted = engine(&model, LIMITS);
    answer(&model, &mut weighted, &batch, REGION, 0);
    answer(&model, &mut weighted, &batch.part(&model, 0, 5), INLINE, 0);

    // With the partials flag the mean's division is left out: the same bytes as a sum's.
    let sums = Model::new(
        &[spec("w", 20), spec("m", 8)],
        &[Pooling::WeightedSum, Pooling::Sum],
        64,
    );
    let mut header = lookup(1, 30);
    header.flags = FLAG_PARTIALS;
    let mut source = vec![];
    let frame = frame(header, &batch, REGION, &mut source);
    let mut memory = memory_for(&model, 30, source);
    weighted
        .request(0, Conn(0), 0, &frame, &mut memory)
        .expect("the slot is free");
    run(&mut weighted, &mut memory, &mut 0);
    let wanted = sums.oracle(&batch);
    assert_eq!(memory.regions[&(0, TARGET)][..wanted.len()], wanted);
}

#[test]
fn parts_on_four_workers_give_the_bytes_of_one() {
    let model = Model::mixed();
    let batch = model.batch(11, 203, 9);
    let rule = SplitRule {
        lanes: 4,
        min_bags: 8,
    };
    let mut memory = memory_for(&model, 203, vec![]);
    for (part, (first, bags)) in rule.split(203).enumerate() {
        let mut worker = Engine::new(
            LIMITS,
            rowmill_pooling::Kernels::new(rowmill_pooling::Isa::Scalar),
        );
        attach(&mut worker, &model, Conn(0));
        let mut header = lookup(1, bags);
        (header.part, header.parts, header.first_bag) = (part as u8, 4, first);
        let mut source = vec![];
        let frame = frame(
            header,
            &batch.part(&model, first, bags),
            REGION,
            &mut source,
        );
        memory.regions.insert((0, SOURCE), source);
        worker
            .request(0, Conn(0), 0, &frame, &mut memory)
            .expect("the slot is free");
        let records = run(&mut worker, &mut memory, &mut 0);
        assert_eq!(
            (records.len(), records[0].1.part, records[0].1.status),
            (1, part as u8, Status::Ok)
        );
    }
    let wanted = model.oracle(&batch);
    assert_eq!(memory.regions[&(0, TARGET)][..wanted.len()], wanted);
}

#[test]
fn one_engine_serves_several_clients_at_once() {
    let model = Model::mixed();
    let mut engine = engine(&model, LIMITS);
    let mut memory = HeapMemory::default();
    let batches: Vec<Batch> = (0..4).map(|c| model.batch(c, 50 + c as u32, 20)).collect();
    for (c, batch) in batches.iter().enumerate() {
        if c > 0 {
            attach(&mut engine, &model, Conn(c as u32));
        }
        let mut source = vec![];
        let frame = frame(lookup(c as u64, batch.bags()), batch, REGION, &mut source);
        memory.regions.insert((c as u32, SOURCE), source);
        memory.regions.insert(
            (c as u32, TARGET),
            vec![UNTOUCHED; model.target_bytes(batch.bags())],
        );
        engine
            .request(0, Conn(c as u32), 0, &frame, &mut memory)
            .expect("the slot is free");
    }
    let records = run(&mut engine, &mut memory, &mut 0);
    assert_eq!(records.len(), 4);
    for (c, batch) in batches.iter().enumerate() {
        assert_eq!(
            memory.regions[&(c as u32, TARGET)],
            model.oracle(batch),
            "client {c}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_budget_and_slicing_gives_the_oracles_bytes(
        seed: u64, bags in 1u32..120, longest in 0u64..60, slice in 0u32..40, micro_batch_ns in 1u64..200_000,
    ) {
        let slice = if slice > 0 { slice.max(bags.div_ceil(64)) } else { 0 };
        let model = Model::mixed();
        let mut engine = engine(&model, Limits { micro_batch_ns, ..LIMITS });
        let batch = model.batch(seed, bags, longest);
        let records = answer(&model, &mut engine, &batch, REGION, slice);
        let slices = if slice == 0 { 1 } else { bags.div_ceil(slice) };
        prop_assert_eq!(records.len() as u32, slices);
    }
}

#[test]
fn a_bag_longer_than_any_budget_is_one_micro_batch() {
    let spec = TableSpec {
        name: "t".into(),
        rows: 4000,
        dim: 2048,
        format: RowFormat::F32,
        kind: rowmill_table::TableKind::Dense,
    };
    let model = Model::new(&[spec], &[Pooling::Sum], 8);
    let mut engine = engine(&model, LIMITS);
    let batch = Batch {
        features: vec![vec![(0..8192).map(|i| i % 4000).collect(), vec![1]]],
        ..Batch::default()
    };
    answer(&model, &mut engine, &batch, REGION, 0);
    assert!(
        engine.counters().micro_batches >= 2,
        "the second bag is not in the first one's micro-batch"
    );
}
