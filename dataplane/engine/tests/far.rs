//! Memory that is far away: data that come later, and staging of which there is little.

mod common;

use common::{
    HeapMemory, LIMITS, Model, REGION, Remote, SOURCE, TARGET, attach, engine, frame, lookup, run,
    statuses,
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
    us: u32,
) {
    let mut header = lookup(u64::from(conn), 700);
    header.remaining_us = us;
    let batch = model.batch(u64::from(conn), 700, 20);
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
    submit(&mut engine, &model, &mut memory, 0, 3, 100);
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
        submit(&mut engine, &model, &mut memory, conn, 0, 0);
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
    submit(&mut engine, &model, &mut memory, 0, 0, 0);
    assert_eq!(engine.turn(0, &mut memory), Turn::Blocked);
    // The first client's data never come.
    let remote = memory.remote.as_mut().expect("far away");
    assert_eq!(std::mem::take(&mut remote.coming).len(), 1);
    submit(&mut engine, &model, &mut memory, 1, 0, 0);
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
