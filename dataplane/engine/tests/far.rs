//! Memory that is far away: data that come later, and staging of which there is little.

mod common;

use common::{
    Batch, HeapMemory, INLINE, LIMITS, Model, REGION, Remote, SOURCE, TARGET, attach, engine,
    frame, lookup, run, statuses,
};
use rowmill_engine::{Conn, Engine, STAGE_BYTES_MIN, Turn};
use rowmill_wire::Status;

const STAGE: usize = STAGE_BYTES_MIN as usize;

/// A memory far away for a few connections, with as many blocks of staging.
fn far(blocks: usize) -> HeapMemory {
    let mut memory = HeapMemory {
        remote: Some(Remote::new(STAGE, blocks)),
        ..HeapMemory::default()
    };
    for conn in 0..3 {
        memory.regions.insert((conn, TARGET), vec![0; 4 << 20]);
    }
    memory
}

fn submit(
    engine: &mut Engine,
    model: &Model,
    memory: &mut HeapMemory,
    conn: u32,
    slot: u16,
    bags: u32,
    us: u32,
) {
    let mut header = lookup(u64::from(conn), bags);
    header.remaining_us = us;
    let batch = model.batch(u64::from(conn), bags, 20);
    let mut source = vec![];
    let frame = frame(header, &batch, REGION, &mut source);
    memory.regions.insert((conn, SOURCE), source);
    engine
        .request(0, Conn(conn), slot, &frame, memory)
        .expect("the slot is free");
}

/// Gives the engine what it asked for.
fn deliver(engine: &mut Engine, memory: &mut HeapMemory) {
    let remote = memory.remote.as_mut().expect("far away");
    for (conn, slot, outcome) in std::mem::take(&mut remote.coming) {
        engine.fetched(0, conn, slot, outcome, memory);
    }
}

type Reach<'a> = &'a dyn Fn(&mut Engine, &mut HeapMemory);

/// Takes a request up to the given state, ends it there, and looks whether all was given back.
fn ends(
    reach: impl Fn(&mut Engine, &mut HeapMemory),
    end: impl Fn(&mut Engine, &mut HeapMemory),
    wanted: &[Status],
) {
    let model = Model::mixed();
    let mut engine = engine(&model, LIMITS);
    let mut memory = far(1);
    submit(&mut engine, &model, &mut memory, 0, 3, 700, 100);
    reach(&mut engine, &mut memory);
    assert_eq!(engine.in_progress(), 1);
    end(&mut engine, &mut memory);
    let records: Vec<_> = std::iter::from_fn(|| engine.poll_completion()).collect();
    assert_eq!(statuses(&records), wanted);
    assert_eq!(engine.in_progress(), 0);
    assert!(memory.remote.as_ref().is_some_and(Remote::is_whole));
    // What comes too late is not for the request that has the slot now.
    deliver(&mut engine, &mut memory);
    engine.fetched(0, Conn(0), 3, Ok(()), &mut memory);
    assert_eq!(engine.turn(0, &mut memory), Turn::Idle);
}

#[test]
fn whatever_ends_a_request_gives_back_its_room_and_data() {
    let asked = |_: &mut Engine, _: &mut HeapMemory| {};
    let fetching = |engine: &mut Engine, memory: &mut HeapMemory| {
        assert_eq!(engine.turn(0, memory), Turn::Blocked);
    };
    let staged = |engine: &mut Engine, memory: &mut HeapMemory| {
        fetching(engine, memory);
        deliver(engine, memory);
        while engine.counters().rows == 0 {
            engine.turn(0, memory);
        }
    };
    let states: [Reach<'_>; 3] = [&asked, &fetching, &staged];
    for reach in states {
        ends(
            reach,
            |e, m| e.cancel(0, Conn(0), 3, m),
            &[Status::Cancelled],
        );
        ends(reach, |e, m| e.detach(Conn(0), m), &[]);
        let gone =
            |region| move |e: &mut Engine, m: &mut HeapMemory| e.region_gone(0, Conn(0), region, m);
        ends(reach, gone(TARGET), &[Status::UnknownRegion]);
        ends(reach, gone(SOURCE), &[Status::UnknownRegion]);
        ends(
            reach,
            |e, m| assert_ne!(e.turn(100_000, m), Turn::Idle),
            &[Status::Expired],
        );
    }
    ends(
        fetching,
        |e, m| e.fetched(0, Conn(0), 3, Err(Status::RegionLost), m),
        &[Status::RegionLost],
    );
}

#[test]
fn requests_that_need_the_same_room_all_end_with_the_oracles_bytes() {
    let model = Model::mixed();
    let mut engine = engine(&model, LIMITS);
    let mut memory = far(1);
    for conn in 0..3 {
        if conn > 0 {
            attach(&mut engine, &model, Conn(conn));
        }
        submit(&mut engine, &model, &mut memory, conn, 0, 700, 0);
    }
    let records = run(&mut engine, &mut memory, &mut 0);
    assert_eq!(statuses(&records), [Status::Ok; 3]);
    for conn in 0..3 {
        let wanted = model.oracle(&model.batch(u64::from(conn), 700, 20));
        let target = &memory.regions[&(conn, TARGET)];
        let same = target.iter().zip(&wanted).all(|(&is, &want)| {
            // Targets begin as zeros, the oracle's as something else, where nothing is written.
            is == want || (is, want) == (0, common::UNTOUCHED)
        });
        assert!(same, "connection {conn}");
    }
}

#[test]
fn one_that_waits_for_data_does_not_hold_up_another() {
    let model = Model::mixed();
    let mut engine = engine(&model, LIMITS);
    attach(&mut engine, &model, Conn(1));
    let mut memory = far(2);
    submit(&mut engine, &model, &mut memory, 0, 0, 700, 0);
    while memory.remote.as_ref().is_some_and(|r| r.coming.is_empty()) {
        assert_eq!(engine.turn(0, &mut memory), Turn::Blocked);
    }
    // The first client's data never come.
    let remote = memory.remote.as_mut().expect("far away");
    assert_eq!(std::mem::take(&mut remote.coming).len(), 1);
    submit(&mut engine, &model, &mut memory, 1, 0, 700, 0);
    let mut records = Vec::new();
    for _ in 0..10_000 {
        deliver(&mut engine, &mut memory);
        engine.turn(0, &mut memory);
        records.extend(std::iter::from_fn(|| engine.poll_completion()));
    }
    let answered: Vec<_> = records.iter().map(|(c, r)| (c.0, r.status)).collect();
    assert_eq!(answered, [(1, Status::Ok)]);
    assert_eq!(engine.turn(0, &mut memory), Turn::Blocked);
}

/// A memory with room for the data of one request, and three connections.
fn one_room(model: &Model) -> (Engine, HeapMemory) {
    let mut engine = engine(model, LIMITS);
    attach(&mut engine, model, Conn(1));
    attach(&mut engine, model, Conn(2));
    let mut memory = far(8);
    let remote = memory.remote.as_mut().expect("far away");
    (remote.steady, remote.most) = (true, 1);
    (engine, memory)
}

#[test]
fn one_that_waits_for_room_is_not_overtaken_by_those_behind_it() {
    let model = Model::mixed();
    let (mut engine, mut memory) = one_room(&model);
    submit(&mut engine, &model, &mut memory, 1, 0, 1, 0);
    submit(&mut engine, &model, &mut memory, 0, 0, 1, 0);
    deliver(&mut engine, &mut memory);
    // The room is free for a moment; whoever takes it must be able to go on.
    engine.cancel(0, Conn(1), 0, &mut memory);
    submit(&mut engine, &model, &mut memory, 0, 1, 1, 0);
    submit(&mut engine, &model, &mut memory, 2, 0, 1, 0);
    let records = run(&mut engine, &mut memory, &mut 0);
    let wanted = [Status::Cancelled, Status::Ok, Status::Ok, Status::Ok];
    assert_eq!(statuses(&records), wanted);
}

#[test]
fn newcomers_do_not_take_the_room_of_one_that_waits() {
    let model = Model::mixed();
    let (mut engine, mut memory) = one_room(&model);
    submit(&mut engine, &model, &mut memory, 0, 0, 20, 0);
    submit(&mut engine, &model, &mut memory, 1, 0, 1, 0);
    let mut idle = false;
    for _ in 0..1000 {
        deliver(&mut engine, &mut memory);
        if std::mem::take(&mut idle) {
            submit(&mut engine, &model, &mut memory, 0, 0, 20, 0);
        }
        engine.turn(0, &mut memory);
        while let Some((conn, _)) = engine.poll_completion() {
            if conn == Conn(1) {
                return;
            }
            idle = true;
        }
    }
    panic!("the one that came second was never served");
}

#[test]
fn nothing_is_not_asked_for() {
    let model = Model::mixed();
    let (mut engine, mut memory) = one_room(&model);
    let batch = Batch {
        features: vec![vec![vec![]]; 3],
        ..Batch::default()
    };
    let mut frame = frame(lookup(9, 1), &batch, INLINE, &mut vec![]);
    // The ids' segment (the second of 24 bytes, behind 64 of header): in region 0, no bytes.
    frame[64 + 24..64 + 48].fill(0);
    frame[64 + 24] = 2;
    memory.regions.insert((0, SOURCE), vec![]);
    engine
        .request(0, Conn(0), 0, &frame, &mut memory)
        .expect("the slot is free");
    let records = run(&mut engine, &mut memory, &mut 0);
    assert_eq!(statuses(&records), [Status::Ok]);
}
