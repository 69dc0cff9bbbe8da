//! Two generations: which one a request is answered from, and when one may go.

mod common;

use std::sync::Arc;

use common::{
    HeapMemory, LIMITS, Model, REGION, TARGET, assert_bytes, frame, lookup, memory_for, run,
    statuses,
};
use rowmill_engine::{Conn, Engine, Limits, Side, Turn};
use rowmill_pooling::{Isa, Kernels};
use rowmill_wire::{Completion, Status};

const CONN: Conn = Conn(0);
const BAGS: u32 = 300;

/// An engine that holds generation 4, and 5 beside it, with one connection; and both models.
fn engine() -> (Engine, Model, Model) {
    let model = Model::mixed();
    let (first, second) = (model.generation(4), model.generation(5));
    // Requests take several turns.
    let limits = Limits {
        micro_batch_ns: 1,
        ..LIMITS
    };
    let mut engine = Engine::new(limits, Kernels::new(Isa::detect().isa));
    common::attach(&mut engine, &first, CONN);
    engine.prepare(Side::B, 5);
    engine.bind_also(Side::B, (CONN, 0), &first.bound, &second.bound);
    (engine, first, second)
}

/// Sends a request that names a generation; the memory that its answer comes to.
fn send(engine: &mut Engine, model: &Model, named: u64, slice_bags: u32) -> HeapMemory {
    let batch = model.batch(7, BAGS, 12);
    let mut header = lookup(9, BAGS);
    (header.generation, header.slice_bags) = (named, slice_bags);
    let mut source = vec![];
    let frame = frame(header, &batch, REGION, &mut source);
    let mut memory = memory_for(model, BAGS, source);
    let sent = engine.request(5, CONN, 3, &frame, &mut memory);
    sent.expect("the slot is free");
    memory
}

/// Turns until nothing is left to do.
fn finish(engine: &mut Engine, memory: &mut HeapMemory) -> Vec<(Conn, Completion)> {
    run(engine, memory, &mut 1000)
}

/// That a request that names a generation is answered from `of`, which is not the newest if another one is.
fn is_answered(engine: &mut Engine, named: u64, of: &Model, newest: u64) {
    let mut memory = send(engine, of, named, 0);
    let records = finish(engine, &mut memory);
    is_of(&records, &memory, of);
    assert_eq!(records[0].1.newest, newest);
}

fn is_of(records: &[(Conn, Completion)], memory: &HeapMemory, of: &Model) {
    for (_, record) in records {
        let number = of.tables.generation();
        assert_eq!((record.status, record.generation), (Status::Ok, number));
    }
    let target = &memory.regions[&(0, TARGET)];
    let oracle = of.oracle(&of.batch(7, BAGS, 12));
    assert_bytes(of, &target[..oracle.len()], &oracle);
}

fn is_refused(engine: &mut Engine, model: &Model, named: u64, newest: u64) {
    let mut memory = send(engine, model, named, 0);
    let records = finish(engine, &mut memory);
    assert_eq!(statuses(&records), [Status::Retry]);
    assert_eq!((records[0].1.generation, records[0].1.newest), (0, newest));
}

#[test]
fn requests_get_the_one_that_they_name_or_the_newest() {
    let (mut engine, first, second) = engine();
    is_answered(&mut engine, 0, &first, 4);
    is_answered(&mut engine, 4, &first, 4);
    // It is prepared, so that another worker may have told of it already.
    is_answered(&mut engine, 5, &second, 4);
    is_refused(&mut engine, &first, 6, 4);
    for (side, newest) in [(Side::B, &second), (Side::A, &first), (Side::B, &second)] {
        engine.switch(side);
        let number = newest.tables.generation();
        is_answered(&mut engine, 0, newest, number);
        is_answered(&mut engine, 4, &first, number);
        is_answered(&mut engine, 5, &second, number);
        is_refused(&mut engine, &first, 6, number);
    }
}

#[test]
fn a_request_goes_on_with_the_generation_that_it_began_with() {
    let (mut engine, first, second) = engine();
    let mut memory = send(&mut engine, &first, 0, 16);
    let mut records = vec![];
    // It is switched to and fro between any two turns.
    for turn in 0.. {
        let side = [Side::B, Side::A][turn % 2];
        engine.switch(side);
        if engine.turn(1000, &mut memory) == Turn::Idle {
            break;
        }
        records.extend(std::iter::from_fn(|| engine.poll_completion()));
    }
    assert_eq!(records.len(), 19);
    is_of(&records, &memory, &first);
    engine.switch(Side::B);
    is_answered(&mut engine, 0, &second, 5);
}

#[test]
fn one_that_goes_is_used_to_the_end_by_who_has_begun() {
    let (mut engine, first, second) = engine();
    engine.switch(Side::B);
    let mut memory = send(&mut engine, &first, 4, 0);
    assert!(matches!(
        engine.turn(1000, &mut memory),
        Turn::Worked { .. }
    ));
    let on = |engine: &Engine| Side::ALL.map(|side| engine.in_progress_on(side));
    assert_eq!(on(&engine), [1, 0]);
    engine.close(Side::A);
    let records = finish(&mut engine, &mut memory);
    is_of(&records, &memory, &first);
    assert_eq!(on(&engine), [0, 0]);
    is_refused(&mut engine, &first, 4, 5);
    let held = Arc::strong_count(&first.bound);
    engine.forget(Side::A);
    assert_eq!(Arc::strong_count(&first.bound), held - 1);
    is_answered(&mut engine, 0, &second, 5);
    // Another one comes in its place.
    let third = first.generation(6);
    engine.prepare(Side::A, 6);
    engine.bind_also(Side::A, (CONN, 0), &second.bound, &third.bound);
    is_answered(&mut engine, 6, &third, 5);
    engine.switch(Side::A);
    is_answered(&mut engine, 0, &third, 6);
    is_answered(&mut engine, 5, &second, 6);
}

#[test]
fn a_connection_that_has_another_schema_by_now_keeps_it() {
    let (mut engine, first, second) = engine();
    let mut memory = HeapMemory::default();
    engine.detach(CONN, &mut memory);
    common::attach(&mut engine, &first.generation(4), CONN);
    engine.bind_also(Side::B, (CONN, 0), &first.bound, &second.bound);
    // It has nothing of generation 5: the driver had its schemas bound to 4 alone.
    let mut memory = send(&mut engine, &first, 5, 0);
    let records = finish(&mut engine, &mut memory);
    assert_eq!(statuses(&records), [Status::UnknownSchema]);
}

#[test]
#[should_panic(expected = "nobody uses what is given up")]
fn none_is_given_up_that_is_in_use() {
    let (mut engine, first, _) = engine();
    engine.switch(Side::B);
    send(&mut engine, &first, 4, 0);
    engine.close(Side::A);
    engine.forget(Side::A);
}
