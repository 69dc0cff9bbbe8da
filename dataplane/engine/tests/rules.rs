//! Refusals, limits, deadlines, cancelling, fairness: the engine's rules, one test each.

mod common;

use common::{
    HeapMemory, INLINE, LIMITS, Model, REGION, SOURCE, TARGET, attach, engine, frame, lookup, run,
    statuses,
};
use rowmill_engine::{Conn, Engine, Limits, ProtocolError, Turn};
use rowmill_table::{RowFormat, TableKind, TableSpec};
use rowmill_wire::request::Header;
use rowmill_wire::status::NOWHERE;
use rowmill_wire::{
    CompletionKind, Element, Feature, FeatureSpan, Op, Output, Place, Pooling, Schema, Segment,
    Status,
};

/// A memory with a source of these bytes and a large target for connections 0 to 3.
fn memory(source: &[u8]) -> HeapMemory {
    let mut memory = HeapMemory::default();
    for conn in 0..4 {
        memory.regions.insert((conn, SOURCE), source.to_vec());
        memory.regions.insert((conn, TARGET), vec![0; 1 << 20]);
    }
    memory
}

/// Sends one changed request and returns the status, feature and index of its only record.
fn outcome(
    model: &Model,
    change: impl Fn(&mut Header, &mut common::Batch, &mut Vec<u8>),
) -> (Status, u32, u32) {
    let mut engine = engine(model, LIMITS);
    let mut header = lookup(77, 10);
    header.attempt = 3;
    let mut batch = model.batch(1, 10, 6);
    let mut source = vec![];
    change(&mut header, &mut batch, &mut source);
    let frame = frame(header, &batch, REGION, &mut source);
    let mut memory = memory(&source);
    engine
        .request(0, Conn(0), 0, &frame, &mut memory)
        .expect("the slot is free");
    let records = run(&mut engine, &mut memory, &mut 0);
    assert_eq!(records.len(), 1, "one final record");
    let record = records[0].1;
    assert_eq!((record.request, record.attempt, record.credits), (77, 3, 1));
    assert_eq!(
        engine.counters().rows > 0,
        record.status == Status::Ok,
        "refused before any row is read"
    );
    assert_eq!(engine.in_progress(), 0);
    (record.status, record.feature, record.index)
}

#[test]
fn each_fault_has_its_status_and_place() {
    let model = Model::mixed();
    let is = |want: (Status, u32, u32),
              change: &dyn Fn(&mut Header, &mut common::Batch, &mut Vec<u8>)| {
        assert_eq!(outcome(&model, change), want);
    };
    let whole = |status| (status, NOWHERE, NOWHERE);
    is(whole(Status::Ok), &|_, _, _| {});
    is(whole(Status::UnknownSchema), &|h, _, _| h.schema = 1);
    is(whole(Status::UnknownSchema), &|h, _, _| h.schema = u32::MAX);
    is(whole(Status::UnknownFeature), &|_, b, _| {
        b.features.pop();
    });
    is(whole(Status::Retry), &|h, _, _| h.generation = 12);
    is(whole(Status::TooLarge), &|h, _, _| h.first_bag = 4090);
    is(whole(Status::TargetMisaligned), &|h, _, _| {
        h.target_base = 6
    });
    is(whole(Status::UnknownRegion), &|h, _, _| h.target_region = 9);
    is(whole(Status::TargetOutOfRegion), &|h, _, _| {
        h.target_base = 1 << 20
    });
    is(whole(Status::TargetOutOfRegion), &|h, _, _| {
        h.target_base = (1 << 20) - 4
    });
    is((Status::TargetOutOfRegion, 0, NOWHERE), &|h, _, _| {
        h.target_base = u64::MAX - 3
    });
    is((Status::IdOutOfRange, 1, 0), &|_, b, _| {
        b.features[1][0] = vec![50]
    });
    is((Status::IdNegative, 1, 2), &|_, b, _| {
        b.features[1][0] = vec![49, 1, 0x8000_0000];
    });
    is(whole(Status::WeightsMismatch), &|_, b, _| {
        let weights = b
            .features
            .iter()
            .map(|f| f.iter().map(|bag| vec![1.0; bag.len()]).collect());
        b.weights = Some(weights.collect());
    });
    is((Status::TooLarge, 2, 4), &|_, b, _| {
        b.features[2][4] = vec![1; 8193]
    });
}

#[test]
fn what_a_source_says_is_checked_after_it_was_copied() {
    let model = Model::mixed();
    let refused = |damage: &dyn Fn(&mut HeapMemory)| {
        let mut engine = engine(&model, LIMITS);
        let mut source = vec![];
        let frame = frame(lookup(1, 10), &model.batch(1, 10, 6), REGION, &mut source);
        let mut memory = memory(&source);
        damage(&mut memory);
        engine
            .request(0, Conn(0), 0, &frame, &mut memory)
            .expect("the slot is free");
        let records = run(&mut engine, &mut memory, &mut 0);
        (records[0].1.status, records[0].1.feature)
    };
    // The frame was fine when it was submitted; the lengths in the region no longer add up.
    let changed = |m: &mut HeapMemory| m.regions.get_mut(&(0, SOURCE)).expect("source")[0] ^= 1;
    assert_eq!(refused(&changed), (Status::LengthsMismatch, 0));
    let truncated = |m: &mut HeapMemory| {
        m.regions
            .get_mut(&(0, SOURCE))
            .expect("source")
            .truncate(40)
    };
    assert_eq!(refused(&truncated), (Status::SegmentOutOfRegion, 1));
    let lost = |m: &mut HeapMemory| m.lost.push((0, SOURCE));
    assert_eq!(refused(&lost), (Status::RegionLost, 0));
    let target_lost = |m: &mut HeapMemory| m.lost.push((0, TARGET));
    assert_eq!(refused(&target_lost), (Status::RegionLost, NOWHERE));
}

#[test]
fn offsets_beyond_31_bits_are_refused_even_where_no_ids_lie_between() {
    let model = Model::mixed();
    for start in [1u64 << 31, (1 << 31) - 1, 1 << 40, u64::MAX - 5] {
        let mut engine = engine(&model, LIMITS);
        let empty = common::Batch {
            features: vec![vec![vec![]; 2]; 3],
            ..common::Batch::default()
        };
        let carry = common::Carry {
            lengths: rowmill_wire::Element::Offsets64,
            ..REGION
        };
        let mut source = vec![];
        let frame = frame(lookup(1, 2), &empty, carry, &mut source);
        for offset in source.chunks_exact_mut(8).skip(3).take(3) {
            offset.copy_from_slice(&start.to_le_bytes());
        }
        let mut memory = memory(&source);
        engine
            .request(0, Conn(0), 0, &frame, &mut memory)
            .expect("the slot is free");
        let records = run(&mut engine, &mut memory, &mut 0);
        assert_eq!(
            (records[0].1.status, records[0].1.feature),
            (Status::LengthsMismatch, 1),
            "offsets of {start}"
        );
    }
}

#[test]
fn a_request_beyond_the_limits_is_too_large() {
    let model = Model::mixed();
    for limits in [
        Limits {
            max_ids: 10,
            ..LIMITS
        },
        Limits {
            max_lengths: 29,
            ..LIMITS
        },
    ] {
        let mut engine = engine(&model, limits);
        let mut source = vec![];
        let frame = frame(lookup(1, 10), &model.batch(1, 10, 6), REGION, &mut source);
        let mut memory = memory(&source);
        engine
            .request(0, Conn(0), 0, &frame, &mut memory)
            .expect("the slot is free");
        assert_eq!(
            statuses(&run(&mut engine, &mut memory, &mut 0)),
            [Status::TooLarge]
        );
    }
}

#[test]
fn malformed_frames_are_answered_and_addressed() {
    let model = Model::mixed();
    let mut engine = engine(&model, LIMITS);
    let mut memory = memory(&[]);
    let mut good = frame(lookup(5, 2), &model.batch(1, 2, 2), INLINE, &mut vec![]);
    good[4] ^= 1;
    engine
        .request(0, Conn(0), 0, &good, &mut memory)
        .expect("the slot is free");
    engine
        .request(0, Conn(0), 1, &[], &mut memory)
        .expect("the slot is free");
    let records = run(&mut engine, &mut memory, &mut 0);
    assert_eq!(statuses(&records), [Status::Malformed, Status::Malformed]);
    assert_eq!(
        (records[0].1.request, records[0].1.slot, records[1].1.slot),
        (5, 0, 1)
    );
}

/// Submits requests of `bags` bags to the given slots of a connection.
fn submit(
    engine: &mut Engine,
    model: &Model,
    memory: &mut HeapMemory,
    conn: u32,
    slots: &[u16],
    bags: u32,
    us: u32,
) {
    for &slot in slots {
        let mut header = lookup(u64::from(slot), bags);
        header.remaining_us = us;
        let source = memory.regions.entry((conn, SOURCE)).or_default();
        let frame = frame(
            header,
            &model.batch(u64::from(slot), bags, 20),
            REGION,
            source,
        );
        memory.regions.insert((conn, TARGET), vec![0; 4 << 20]);
        engine
            .request(0, Conn(conn), slot, &frame, memory)
            .expect("the slot is free");
    }
}

#[test]
fn busy_when_all_slots_are_taken_and_only_then() {
    let model = Model::mixed();
    let mut engine = engine(&model, LIMITS);
    let mut memory = memory(&[]);
    submit(&mut engine, &model, &mut memory, 0, &[0, 1, 2, 3], 50, 0);
    assert_eq!(engine.poll_completion(), None, "four slots, four requests");
    submit(&mut engine, &model, &mut memory, 0, &[4], 50, 0);
    let (_, record) = engine.poll_completion().expect("an answer without a turn");
    assert_eq!(
        (record.status, record.slot, record.credits),
        (Status::Busy, 4, 1)
    );
    engine.cancel(0, Conn(0), 2, &mut memory);
    assert_eq!(
        engine.poll_completion().map(|(_, r)| (r.status, r.slot)),
        Some((Status::Cancelled, 2))
    );
    submit(&mut engine, &model, &mut memory, 0, &[4], 50, 0);
    assert_eq!(
        engine.poll_completion(),
        None,
        "the cancelled request's slot is free"
    );
    assert_eq!(engine.counters().busy, 1);
}

#[test]
fn a_slot_used_again_too_early_cuts_the_client_off() {
    let model = Model::mixed();
    let mut engine = engine(&model, LIMITS);
    let mut memory = memory(&[]);
    submit(&mut engine, &model, &mut memory, 0, &[6], 50, 0);
    let again = engine.request(0, Conn(0), 6, &[0; 200], &mut memory);
    assert_eq!(again, Err(ProtocolError { slot: 6 }));
    engine.detach(Conn(0), &mut memory);
    assert_eq!(
        (engine.turn(0, &mut memory), engine.in_progress()),
        (Turn::Idle, 0)
    );
    assert_eq!(
        engine.poll_completion(),
        None,
        "a detached client gets no record"
    );
    // What became of all requests is counted.
    let counters = engine.counters();
    assert_eq!((counters.requests, counters.gone), (1, 1));
}

#[test]
fn past_its_deadline_a_request_ends_and_costs_nothing_more() {
    let model = Model::mixed();
    let mut engine = engine(&model, LIMITS);
    let mut memory = memory(&[]);
    submit(&mut engine, &model, &mut memory, 0, &[0], 700, 100);
    submit(&mut engine, &model, &mut memory, 0, &[1], 5, 0);
    assert!(matches!(
        engine.turn(99_999, &mut memory),
        Turn::Worked { .. }
    ));
    assert_eq!(engine.poll_completion(), None);
    let rows = engine.counters().rows;
    engine.turn(100_000, &mut memory);
    let (_, record) = engine.poll_completion().expect("expired at 100 us");
    assert_eq!(
        (record.status, record.slot, record.service_ns),
        (Status::Expired, 0, 100_000)
    );
    let rest = run(&mut engine, &mut memory, &mut 100_001);
    let small: u64 = model
        .batch(1, 5, 20)
        .features
        .iter()
        .flatten()
        .map(|b| b.len() as u64)
        .sum();
    assert_eq!(
        engine.counters().rows,
        rows + small,
        "no row of the expired request after its deadline"
    );
    assert_eq!(
        statuses(&rest),
        [Status::Ok],
        "the small one is not touched"
    );
}

#[test]
fn a_region_that_is_given_up_ends_its_requests_only() {
    let model = Model::mixed();
    let mut engine = engine(&model, LIMITS);
    attach(&mut engine, &model, Conn(1));
    let mut memory = memory(&[]);
    submit(&mut engine, &model, &mut memory, 0, &[0], 700, 0);
    submit(&mut engine, &model, &mut memory, 1, &[0], 7, 0);
    engine.turn(0, &mut memory);
    engine.region_gone(1, Conn(0), TARGET, &mut memory);
    let records: Vec<_> = std::iter::from_fn(|| engine.poll_completion()).collect();
    assert_eq!(statuses(&records), [Status::UnknownRegion]);
    memory.regions.remove(&(0, TARGET));
    let records = run(&mut engine, &mut memory, &mut 0);
    assert_eq!(
        records
            .iter()
            .map(|(c, r)| (c.0, r.status))
            .collect::<Vec<_>>(),
        [(1, Status::Ok)]
    );
}

#[test]
fn a_single_sample_waits_at_most_two_micro_batches_of_a_large_query() {
    let model = Model::mixed();
    let limits = Limits {
        max_ids: 1 << 18,
        ..LIMITS
    };
    let mut engine = engine(&model, limits);
    attach(&mut engine, &model, Conn(1));
    let mut memory = memory(&[]);
    submit(&mut engine, &model, &mut memory, 0, &[0, 1], 4000, 0);
    for round in 0..10 {
        engine.turn(0, &mut memory);
        submit(&mut engine, &model, &mut memory, 1, &[0], 1, 0);
        let (before, micro_batch) = (engine.counters().bytes, engine.micro_batch_bytes());
        loop {
            engine.turn(0, &mut memory);
            if std::iter::from_fn(|| engine.poll_completion()).any(|(conn, _)| conn == Conn(1)) {
                break;
            }
        }
        let waited = engine.counters().bytes - before;
        assert!(
            waited <= 2 * micro_batch,
            "round {round}: {waited} bytes of others' work"
        );
    }
    assert!(engine.in_progress() > 0, "the large query was still there");
}

#[test]
fn a_client_whose_requests_are_refused_late_does_not_starve_others() {
    let model = Model::mixed();
    let mut engine = engine(&model, LIMITS);
    attach(&mut engine, &model, Conn(1));
    let mut memory = memory(&[]);
    // Only the last id is bad, so that all others are copied and checked before.
    let mut bad = model.batch(3, 900, 20);
    bad.features[2][899] = vec![1, 2, u64::from(u32::MAX >> 1) - 1];
    let mut source = vec![];
    let hostile = frame(lookup(1, 900), &bad, REGION, &mut source);
    let start = source.len();
    let innocent = frame(lookup(2, 1), &model.batch(4, 1, 5), REGION, &mut source);
    assert!(start < source.len());
    for conn in 0..2 {
        memory.regions.insert((conn, SOURCE), source.clone());
        memory.regions.insert((conn, TARGET), vec![0; 1 << 20]);
    }
    let mut answers = [0; 2];
    let mut waiting = [0u32; 2];
    for _ in 0..200 {
        while waiting[0] < 3 {
            let slot = (0..8).find(|&slot| {
                engine
                    .request(0, Conn(0), slot, &hostile, &mut memory)
                    .is_ok()
            });
            assert!(slot.is_some(), "a free slot");
            waiting[0] += 1;
        }
        if waiting[1] == 0 {
            engine
                .request(0, Conn(1), 0, &innocent, &mut memory)
                .expect("the slot is free");
            waiting[1] = 1;
        }
        engine.turn(0, &mut memory);
        while let Some((conn, record)) = engine.poll_completion() {
            let wanted = [Status::IdOutOfRange, Status::Ok][conn.0 as usize];
            assert_eq!(record.status, wanted);
            answers[conn.0 as usize] += 1;
            waiting[conn.0 as usize] -= 1;
        }
    }
    assert!(answers[1] >= 50, "{answers:?} answers in 200 turns");
}

#[test]
fn ids_at_the_end_of_a_segment_of_four_billion_overflow_nothing() {
    let model = Model::mixed();
    let limits = Limits {
        max_ids: 1 << 17,
        ..LIMITS
    };
    let mut engine = engine(&model, limits);
    let segment = |region, len| Segment {
        place: Place::Region { region, offset: 0 },
        element: Element::Bits32,
        len,
    };
    let mut header = lookup(1, 5);
    header.lengths = segment(0, 1 << 10);
    header.ids = segment(7, 1 << 36);
    // More than one step of checking, across the 2^32nd id.
    let span = FeatureSpan {
        lengths_at: 0,
        ids_at: u32::MAX - 2,
        ids: 40_000,
        first_id: 0,
    };
    let mut out = Box::new([0; rowmill_wire::limits::SLOT_BYTES]);
    let len = rowmill_wire::request::encode(&header, &[span; 3], &[], &mut out).expect("fits");
    // Stands for regions of more than 16 GiB: lengths of 8,000 in region 0, zeros in others.
    let mut memory = memory(&[]);
    memory.sparse = Some(|region, out| {
        let value = if region == 0 { 8000u32 } else { 0 };
        for word in out.chunks_exact_mut(4) {
            word.copy_from_slice(&value.to_le_bytes());
        }
    });
    engine
        .request(0, Conn(0), 0, &out[..len], &mut memory)
        .expect("the slot is free");
    let record = (0..1000).find_map(|_| {
        engine.turn(0, &mut memory);
        engine.poll_completion()
    });
    assert_eq!(record.map(|(_, r)| r.status), Some(Status::Ok));
}

#[test]
fn draining_refuses_new_requests_and_finishes_the_others() {
    let model = Model::mixed();
    let mut engine = engine(&model, LIMITS);
    let mut memory = memory(&[]);
    submit(&mut engine, &model, &mut memory, 0, &[0], 20, 0);
    engine.drain();
    submit(&mut engine, &model, &mut memory, 0, &[1], 20, 0);
    assert_eq!(
        statuses(&run(&mut engine, &mut memory, &mut 0)),
        [Status::Draining, Status::Ok]
    );
}

#[test]
fn a_null_request_is_answered_at_once() {
    let model = Model::mixed();
    let mut engine = engine(&model, LIMITS);
    let mut out = Box::new([0; rowmill_wire::limits::SLOT_BYTES]);
    let len = rowmill_wire::request::encode(&Header::null(4), &[], &[], &mut out).expect("fits");
    engine
        .request(0, Conn(0), 0, &out[..len], &mut HeapMemory::default())
        .expect("the slot is free");
    assert_eq!(
        engine.poll_completion().map(|(_, r)| (r.status, r.request)),
        Some((Status::Ok, 4))
    );
    assert_eq!(Header::null(0).op, Op::Null);
}

#[test]
fn schemas_that_cannot_work_are_refused_when_bound() {
    let model = Model::mixed();
    let feature = |table: &str, offset, stride| Feature {
        name: format!("on {table}"),
        table: table.into(),
        pooling: Pooling::Sum,
        output: Output::F32,
        max_ids: 0,
        offset,
        stride,
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
    // Table `a` has vectors of 64 bytes, `c` of 144.
    assert_eq!(
        bind(vec![feature("a", 0, 64), feature("c", 640, 144)]),
        Ok(()),
        "one block after another"
    );
    assert_eq!(
        bind(vec![feature("a", 0, 208), feature("c", 64, 208)]),
        Ok(()),
        "side by side"
    );
    assert_eq!(
        bind(vec![feature("a", 208, 208), feature("c", 64, 208)]),
        Ok(()),
        "side by side, a row later"
    );
    assert_eq!(
        bind(vec![feature("z", 0, 64)]),
        Err((Status::UnknownTable, 0))
    );
    assert_eq!(
        bind(vec![feature("a", 2, 64)]),
        Err((Status::TargetMisaligned, 0))
    );
    assert_eq!(
        bind(vec![feature("a", 0, 66)]),
        Err((Status::TargetMisaligned, 0))
    );
    assert_eq!(
        bind(vec![feature("a", 0, 60)]),
        Err((Status::OverlappingOutputs, 0)),
        "bags overlap"
    );
    assert_eq!(
        bind(vec![feature("a", 0, 208), feature("c", 60, 208)]),
        Err((Status::OverlappingOutputs, 1))
    );
    assert_eq!(
        bind(vec![feature("a", 0, 204), feature("c", 64, 204)]),
        Err((Status::OverlappingOutputs, 1))
    );
    assert_eq!(
        bind(vec![feature("a", 0, 64), feature("c", 636, 144)]),
        Err((Status::OverlappingOutputs, 1))
    );
    assert_eq!(
        bind(vec![feature("a", 0, 64), feature("a", 0, 64)]),
        Err((Status::OverlappingOutputs, 1))
    );
}

/// A model of tables of four dimensions, a feature each.
fn small(features: usize, pooling: Pooling) -> Model {
    let spec = |i| TableSpec {
        name: format!("t{i}"),
        rows: 10,
        dim: 4,
        format: RowFormat::F32,
        kind: TableKind::Dense,
    };
    let specs: Vec<TableSpec> = (0..features).map(spec).collect();
    Model::new(&specs, &vec![pooling; features], 64)
}

#[test]
fn spans_that_share_inline_ids_are_bounded_by_what_one_step_checks() {
    for (features, wanted) in [(18, Status::Ok), (19, Status::TooLarge)] {
        let model = small(features, Pooling::Sum);
        let mut engine = engine(&model, LIMITS);
        let mut memory = memory(&[]);
        let ids = 1800u32;
        let mut inline = ids.to_le_bytes().to_vec();
        inline.extend((0..ids).flat_map(|_| 1u32.to_le_bytes()));
        let at = rowmill_wire::request::inline_offset(features) as u32;
        let segment = |offset, len| Segment {
            place: Place::Inline { offset },
            element: Element::Bits32,
            len,
        };
        let mut header = lookup(1, 1);
        header.lengths = segment(at, 4);
        header.ids = segment(at + 4, u64::from(ids) * 4);
        let span = FeatureSpan {
            lengths_at: 0,
            ids_at: 0,
            ids,
            first_id: 0,
        };
        let mut out = Box::new([0; rowmill_wire::limits::SLOT_BYTES]);
        let spans = vec![span; features];
        let len = rowmill_wire::request::encode(&header, &spans, &[&inline], &mut out);
        let frame = &out[..len.expect("the frame fits")];
        engine
            .request(0, Conn(0), 0, frame, &mut memory)
            .expect("the slot is free");
        let records = run(&mut engine, &mut memory, &mut 0);
        assert_eq!(statuses(&records), [wanted], "{features} features");
    }
}

#[test]
fn slices_without_a_row_do_not_starve_others() {
    for pooling in [Pooling::None, Pooling::Sum] {
        let model = small(1, pooling);
        let mut engine = engine(&model, LIMITS);
        attach(&mut engine, &model, Conn(1));
        let mut memory = memory(&[]);
        let empty = |engine: &mut Engine, memory: &mut HeapMemory, slot| {
            let batch = common::Batch {
                features: vec![vec![vec![]; 64]],
                ..common::Batch::default()
            };
            let mut header = lookup(1, 64);
            header.slice_bags = 1;
            let frame = frame(header, &batch, INLINE, &mut vec![]);
            let sent = engine.request(0, Conn(0), slot, &frame, memory);
            sent.expect("the slot is free");
        };
        empty(&mut engine, &mut memory, 0);
        empty(&mut engine, &mut memory, 1);
        let batch = common::Batch {
            features: vec![vec![vec![1]]],
            ..common::Batch::default()
        };
        let frame = frame(lookup(2, 1), &batch, INLINE, &mut vec![]);
        engine
            .request(0, Conn(1), 0, &frame, &mut memory)
            .expect("the slot is free");
        let mut turns = 0;
        let mut served = false;
        while !served {
            engine.turn(0, &mut memory);
            turns += 1;
            while let Some((conn, record)) = engine.poll_completion() {
                served |= conn == Conn(1);
                if conn == Conn(0) && record.kind == CompletionKind::Final {
                    empty(&mut engine, &mut memory, record.slot);
                }
            }
            // A quantum of 500 KB at 4 KiB a turn.
            assert!(turns <= 130, "{pooling:?}: not served after {turns} turns");
        }
    }
}
