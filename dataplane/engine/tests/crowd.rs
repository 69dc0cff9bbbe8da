//! Cached tables where there is little room: for bags that wait for rows, and for results on their way.

mod common;

use common::shelf::{FETCH, Fate, engine_with};
use common::{
    Batch, HeapMemory, INLINE, LIMITS, Model, Remote, attach, frame, lookup, memory_for, statuses,
};
use rowmill_cache::fetch;
use rowmill_cache::tier::Wanted;
use rowmill_engine::{Conn, Engine, Limits, STAGE_BYTES_MIN, Turn};
use rowmill_wire::{Completion, Status};

/// No request here takes so many turns.
const TURNS: u64 = 100_000;

/// Bags of the first feature, none of the others.
fn of_first(bags: Vec<Vec<u64>>) -> Batch {
    let none = vec![vec![]; bags.len()];
    Batch {
        features: vec![bags, none.clone(), none],
        ..Batch::default()
    }
}

fn submit(engine: &mut Engine, memory: &mut HeapMemory, conn: u32, slot: u16, batch: &Batch) {
    let header = lookup(u64::from(slot), batch.bags());
    let frame = frame(header, batch, INLINE, &mut vec![]);
    engine
        .request(0, Conn(conn), slot, &frame, memory)
        .expect("the slot is free");
}

/// One turn, and what was answered.
fn turn(engine: &mut Engine, memory: &mut HeapMemory, now_ns: u64) -> Vec<(Conn, Completion)> {
    engine.turn(now_ns, memory);
    std::iter::from_fn(|| engine.poll_completion()).collect()
}

#[test]
fn one_that_waits_for_staging_does_not_stand_before_its_connections_other_that_has_it() {
    let model = Model::mixed();
    let mut engine = engine_with(&model, LIMITS, FETCH, 3, |_| Fate::Comes);
    let mut memory = memory_for(&model, 8, vec![]);
    let mut remote = Remote::new(STAGE_BYTES_MIN as usize, 1);
    remote.steady = true;
    memory.remote = Some(remote);
    // This one has the only block while it waits for rows.
    submit(
        &mut engine,
        &mut memory,
        0,
        0,
        &of_first(vec![vec![1, 2]; 8]),
    );
    let mut resident = of_first(vec![vec![]; 8]);
    resident.features[1] = vec![vec![3]; 8];
    submit(&mut engine, &mut memory, 0, 1, &resident);
    let mut records = vec![];
    for now_ns in 0..TURNS {
        records.extend(turn(&mut engine, &mut memory, now_ns));
        if records.len() == 2 {
            assert_eq!(statuses(&records), [Status::Ok; 2]);
            return;
        }
    }
    panic!("of two requests were answered {records:?}");
}

#[test]
fn a_bag_that_needs_much_room_is_not_overtaken_for_ever() {
    let model = Model::mixed();
    let mut engine = engine_with(&model, LIMITS, FETCH, 1, |_| Fate::Comes);
    attach(&mut engine, &model, Conn(1));
    let mut memory = memory_for(&model, 8, vec![]);
    let target = memory.regions[&(0, common::TARGET)].clone();
    memory.regions.insert((1, common::TARGET), target);
    // Always other rows, so that all are missed.
    let mut row = 0;
    let mut small = || {
        let bag = |_| {
            row += 2;
            vec![row % 1000, (row + 1) % 1000]
        };
        of_first((0..4).map(bag).collect())
    };
    for slot in 0..3 {
        submit(&mut engine, &mut memory, 0, slot, &small());
    }
    turn(&mut engine, &mut memory, 0);
    assert!(engine.cache().held().1 > 0, "some bags wait");
    let large = of_first(vec![(500..500 + u64::from(FETCH.staged)).collect()]);
    submit(&mut engine, &mut memory, 1, 3, &large);
    let mut others = 0;
    for now_ns in 0..TURNS {
        for (conn, record) in turn(&mut engine, &mut memory, now_ns) {
            assert_eq!(record.status, Status::Ok);
            if conn == Conn(1) {
                assert!(others < 6, "{others} others were answered before");
                return;
            }
            others += 1;
            submit(&mut engine, &mut memory, 0, record.slot, &small());
        }
    }
    panic!("{others} others were answered, and it was not");
}

#[test]
fn one_that_ends_while_it_waits_for_room_lets_the_next_go_on() {
    let model = Model::mixed();
    let fetch = fetch::Limits {
        budget_ns: 1_000_000,
        ..FETCH
    };
    let fate = |wanted: Wanted| match wanted.row {
        0..100 => Fate::Never,
        _ => Fate::Comes,
    };
    let mut engine = engine_with(&model, LIMITS, fetch, 1, fate);
    let mut memory = memory_for(&model, 1, vec![]);
    for (slot, rows) in [(0, 0..60), (1, 100..160), (2, 200..230)] {
        let batch = of_first(vec![rows.collect()]);
        submit(&mut engine, &mut memory, 0, slot, &batch);
        while engine.turn(0, &mut memory) != Turn::Blocked {}
    }
    let (fetched, staged) = (
        engine.cache().fetch_counters().fetched,
        engine.cache().held().1,
    );
    assert_eq!((fetched, staged), (60, 60), "two wait for room");
    engine.cancel(1, Conn(0), 1, &mut memory);
    engine.cancel(1, Conn(0), 0, &mut memory);
    let mut records = vec![];
    for turns in 0..TURNS {
        records.extend(turn(&mut engine, &mut memory, 100 * turns));
        if records.len() == 3 {
            let wanted = [Status::Cancelled, Status::Cancelled, Status::Ok];
            assert_eq!(statuses(&records), wanted);
            return;
        }
    }
    panic!("of three requests were answered {records:?}");
}

#[test]
fn while_a_bag_waits_the_others_of_its_run_are_pooled() {
    let model = Model::mixed();
    let mut engine = engine_with(&model, LIMITS, FETCH, 3, |_| Fate::Never);
    let mut memory = memory_for(&model, 8, vec![]);
    let mut remote = Remote::new(STAGE_BYTES_MIN as usize, 1);
    remote.steady = true;
    memory.remote = Some(remote);
    let mut first = vec![vec![]; 8];
    first[0] = vec![1];
    let mut batch = of_first(first);
    batch.features[1] = vec![vec![3, 4, 5]; 8];
    batch.features[2] = vec![vec![7]; 8];
    submit(&mut engine, &mut memory, 0, 0, &batch);
    while engine.turn(0, &mut memory) != Turn::Blocked {}
    assert_eq!(engine.counters().rows, 8 * 3 + 8, "all but the one row");
    let target = &memory.regions[&(0, common::TARGET)];
    let placed = target.iter().any(|&byte| byte != common::UNTOUCHED);
    assert!(!placed, "the run is placed as a whole");
}

#[test]
fn who_needs_little_does_not_wait_for_those_who_need_much() {
    let model = Model::mixed();
    let limits = Limits {
        max_ids: 256,
        ..LIMITS
    };
    let fetch = fetch::Limits {
        staged: 2 * 256,
        ..FETCH
    };
    let mut engine = engine_with(&model, limits, fetch, 1, |_| Fate::Comes);
    for conn in 1..4 {
        attach(&mut engine, &model, Conn(conn));
    }
    let mut memory = memory_for(&model, 1, vec![]);
    let target = memory.regions[&(0, common::TARGET)].clone();
    for conn in 0..3 {
        memory
            .regions
            .insert((conn, common::TARGET), target.clone());
        let rows = u64::from(conn) * 256..u64::from(conn + 1) * 256;
        submit(
            &mut engine,
            &mut memory,
            conn,
            0,
            &of_first(vec![rows.collect()]),
        );
    }
    // Some rows of the first come before anybody wants little.
    (0..20).for_each(|now_ns| _ = turn(&mut engine, &mut memory, now_ns));
    let before = engine.cache().fetch_counters().arrived;
    memory.regions.insert((3, common::TARGET), target);
    let small: Vec<u64> = (900..908).collect();
    submit(&mut engine, &mut memory, 3, 0, &of_first(vec![small]));
    for now_ns in 20..TURNS {
        let Some((conn, record)) = turn(&mut engine, &mut memory, now_ns).pop() else {
            continue;
        };
        assert_eq!(
            (conn, record.status),
            (Conn(3), Status::Ok),
            "it is the first"
        );
        let others = engine.cache().fetch_counters().arrived - before;
        // One of each other for each of its own, and those that the tier had already.
        assert!(others <= 4 * 8 + 2 * 5, "{others} rows came before");
        return;
    }
    panic!("nothing was answered");
}
