//! Cached tables: a bag waits for the rows that it lacks and for no others, and gives the oracle's bytes.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};

use common::shelf::{FETCH, Fate, SLOTS, engine_that, engine_with, engines_and_shares};
use common::{
    HeapMemory, LIMITS, Model, Remote, WIDE, answer, frame, lookup, memory_for, run,
    run_until_nothing_is_held, send, statuses, until_blocked,
};
use proptest::prelude::*;
use rowmill_cache::figures::Count;
use rowmill_cache::tier::{TierError, Wanted};
use rowmill_cache::{OnFailure, fetch};
use rowmill_engine::{Conn, Engine, Home, Limits, STAGE_BYTES_MIN, Turn};
use rowmill_wire::{CompletionKind, Status};

fn engine(model: &Model, limits: Limits, step: usize) -> Engine {
    engine_with(model, limits, FETCH, step, |_| Fate::Comes)
}

#[test]
fn every_mode_gives_the_oracles_bytes() {
    let model = Model::every();
    for step in [1, 2] {
        let mut engine = engine(&model, LIMITS, step);
        for (bags, longest) in [(1, 3), (2, 0), (40, 9), (100, 12)] {
            for slice in [0, 7] {
                let batch = model.batch(u64::from(bags), bags, longest);
                answer(&model, &mut engine, &batch, WIDE, slice);
            }
        }
        assert_eq!(engine.cache().held(), (0, 0));
        let fetches = engine.cache().fetch_counters();
        assert!(fetches.joined > 0 && fetches.refused > 0, "{fetches:?}");
        assert_eq!(fetches.fetched, fetches.arrived);
        let tables = 0..model.tables.tables().len();
        let figures: Vec<_> = tables.filter_map(|t| engine.cache().figures(t)).collect();
        let all = |what| figures.iter().map(|table| table.get(what)).sum::<u64>();
        assert!(all(Count::Hits) > 0 && all(Count::Evicted) > 0);
        if step == 1 {
            assert_eq!(engine.counters().rows, all(Count::Lookups));
        }
        assert_eq!(all(Count::ParksRefused), fetches.refused);
        let kept_or_not = all(Count::Admitted) + all(Count::Refused) + all(Count::Crowded);
        assert_eq!(kept_or_not, fetches.fetched);
        assert_eq!(all(Count::Arrived), fetches.arrived);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_budget_slicing_and_room_gives_the_oracles_bytes(
        seed: u64, bags in 1u32..60, longest in 0u64..30, slice in 0u32..40, micro_batch_ns in 1u64..200_000,
        staged in 30u32..200, parked in 1u32..40, step in 1usize..4,
    ) {
        let slice = if slice > 0 { slice.max(bags.div_ceil(64)) } else { 0 };
        let model = Model::every();
        let limits = Limits { micro_batch_ns, ..LIMITS };
        let fetch = fetch::Limits { staged, longest: 30, bags: parked, ..FETCH };
        let mut engine = engine_with(&model, limits, fetch, step, |_| Fate::Comes);
        let records = answer(&model, &mut engine, &model.batch(seed, bags, longest), WIDE, slice);
        let slices = if slice == 0 { 1 } else { bags.div_ceil(slice) };
        prop_assert_eq!(records.len() as u32, slices);
        prop_assert_eq!(records.last().map(|r| r.0), Some(CompletionKind::Final));
        let numbers: Vec<u32> = records.iter().map(|r| u32::from(r.1)).collect();
        prop_assert_eq!(numbers, (0..slices).collect::<Vec<_>>());
        prop_assert_eq!(engine.cache().held(), (0, 0));
    }
}

#[test]
fn a_row_that_fails_ends_its_request_and_no_other() {
    let model = Model::mixed();
    // Of the second table nothing can be read.
    let fate = |wanted: Wanted| match wanted.table {
        1 => Fate::Fails(TierError::Gone),
        _ => Fate::Comes,
    };
    let mut engine = engine_with(&model, LIMITS, FETCH, 1, fate);
    let mut memory = memory_for(&model, 40, vec![]);
    send(&model, &mut engine, &mut memory, 0, 40, 0);
    let records = run(&mut engine, &mut memory, &mut 0);
    assert_eq!(statuses(&records), [Status::RowUnavailable]);
    assert_eq!(records[0].1.feature, 1);
    run_until_nothing_is_held(&mut engine, &mut memory);
    // A request without bags of that table is answered.
    let mut batch = model.batch(6, 40, 9);
    batch.features[1] = vec![vec![]; 40];
    answer(&model, &mut engine, &batch, WIDE, 0);
}

#[test]
fn where_a_row_fails_the_table_may_say_that_it_is_zeros() {
    let model = Model::every();
    // A part of each table, which fails at once; or all of them, in time.
    let part = |wanted: Wanted| match wanted.row % 5 {
        1 | 2 => Fate::Fails(TierError::Gone),
        _ => Fate::Comes,
    };
    let answer_to = OnFailure::DefaultRow;
    let mut some = engine_that(&model, LIMITS, FETCH, 1, part, answer_to);
    gives_without(&model, &mut some, |row| matches!(row % 5, 1 | 2));
    let fetches = *some.cache().fetch_counters();
    assert!(fetches.failed > 100 && fetches.late == 0, "{fetches:?}");
    let budget_ns = 200_000;
    let fetch = fetch::Limits { budget_ns, ..FETCH };
    let mut none = engine_that(&model, LIMITS, fetch, 1, |_| Fate::Never, answer_to);
    gives_without(&model, &mut none, |_| true);
    let none = |t| {
        none.cache()
            .figures(t)
            .map_or(0, |table| table.get(Count::Admitted))
    };
    let tables = 0..model.tables.tables().len();
    assert_eq!(tables.map(none).sum::<u64>(), 0);
}

/// Sends a batch, and compares the answer with the oracle's where some rows are zeros.
fn gives_without(model: &Model, engine: &mut Engine, lacks: fn(u32) -> bool) {
    let batch = model.batch(8, 40, 9);
    let mut source = vec![];
    let frame = frame(lookup(9, 40), &batch, WIDE, &mut source);
    let mut memory = memory_for(model, 40, source);
    engine
        .request(0, Conn(0), 0, &frame, &mut memory)
        .expect("the slot is free");
    let records = run(engine, &mut memory, &mut 0);
    assert_eq!(statuses(&records), [Status::Ok]);
    let wanted = model.oracle_without(&batch, lacks);
    let target = &memory.regions[&(0, common::TARGET)];
    common::assert_bytes(model, &target[..wanted.len()], &wanted);
    assert_eq!(engine.counters().row_unavailable, 0);
}

#[test]
fn a_row_that_never_comes_is_given_up_in_time() {
    let model = Model::mixed();
    let fetch = fetch::Limits {
        budget_ns: 200_000,
        ..FETCH
    };
    let mut engine = engine_with(&model, LIMITS, fetch, 1, |_| Fate::Never);
    let mut memory = memory_for(&model, 4, vec![]);
    send(&model, &mut engine, &mut memory, 0, 4, 0);
    let mut now_ns = 0;
    let records = run(&mut engine, &mut memory, &mut now_ns);
    assert_eq!(statuses(&records), [Status::RowUnavailable]);
    assert!((200_000..300_000).contains(&now_ns), "ended at {now_ns} ns");
    run_until_nothing_is_held(&mut engine, &mut memory);
}

#[test]
fn rows_wait_for_their_turn_as_long_as_others_come() {
    let model = Model::mixed();
    let fetch = fetch::Limits {
        budget_ns: 100_000,
        staged: 1000,
        bags: 1000,
        ..FETCH
    };
    let mut engine = engine_with(&model, LIMITS, fetch, 1, |_| Fate::Comes);
    let mut memory = memory_for(&model, 40, vec![]);
    send(&model, &mut engine, &mut memory, 0, 40, 0);
    let mut records = vec![];
    let mut now_ns = 0;
    while records.is_empty() {
        engine.turn(now_ns, &mut memory);
        records.extend(std::iter::from_fn(|| engine.poll_completion()));
        now_ns += 1000;
    }
    assert_eq!(statuses(&records), [Status::Ok]);
    assert!(
        now_ns > 2 * fetch.budget_ns,
        "the last have waited for longer, {now_ns} ns"
    );
}

#[test]
fn who_does_not_wait_any_more_gives_everything_back() {
    let model = Model::mixed();
    for how in 0..4 {
        let fetch = fetch::Limits {
            budget_ns: 2_000_000,
            staged: 1000,
            bags: 1000,
            ..FETCH
        };
        let mut engine = engine_with(&model, LIMITS, fetch, 1, |_| Fate::Never);
        let mut memory = memory_for(&model, 40, vec![]);
        memory.remote = Some(Remote::new(STAGE_BYTES_MIN as usize, 2));
        send(
            &model,
            &mut engine,
            &mut memory,
            0,
            40,
            if how == 0 { 100 } else { 0 },
        );
        let mut ended = vec![];
        for turn in 0..90 {
            let coming = memory
                .remote
                .as_mut()
                .map(|r| std::mem::take(&mut r.coming));
            for (conn, slot, outcome) in coming.into_iter().flatten() {
                engine.fetched(turn, conn, slot, outcome, &mut memory);
            }
            engine.turn(turn, &mut memory);
        }
        assert_eq!(engine.turn(95, &mut memory), Turn::Blocked);
        assert!(
            engine.cache().held().1 > 100,
            "all of its rows are waited for"
        );
        match how {
            0 => _ = engine.turn(200_000, &mut memory),
            1 => engine.cancel(50, Conn(0), 0, &mut memory),
            2 => engine.region_gone(50, Conn(0), common::TARGET, &mut memory),
            _ => engine.detach(Conn(0), &mut memory),
        }
        ended.extend(std::iter::from_fn(|| engine.poll_completion()));
        let wanted = [Status::Expired, Status::Cancelled, Status::UnknownRegion];
        assert_eq!(statuses(&ended), wanted.get(how..=how).unwrap_or_default());
        assert!(memory.remote.as_ref().is_some_and(Remote::is_whole));
        // What is still being read is given up in its time, some a turn.
        (3..30).for_each(|ms| _ = engine.turn(ms * 1_000_000, &mut memory));
        assert_eq!(engine.cache().held(), (0, 0));
    }
}

#[test]
fn rows_that_nobody_waits_for_any_more_are_taken_without_another_request() {
    let model = Model::mixed();
    let mut engine = engine_with(&model, LIMITS, FETCH, 3, |_| Fate::Comes);
    let mut memory = memory_for(&model, 4, vec![]);
    send(&model, &mut engine, &mut memory, 0, 4, 0);
    engine.turn(0, &mut memory);
    engine.cancel(0, Conn(0), 0, &mut memory);
    let on_the_way = engine.cache().held().0;
    assert!(on_the_way > 0, "rows were asked for");
    let mut turns = 0;
    // A driver sleeps when it hears that there is nothing to do.
    while engine.turn(turns, &mut memory) != Turn::Idle {
        _ = engine.poll_completion();
        turns += 1;
        assert!(turns < 100_000, "{:?} rows are held", engine.cache().held());
    }
    assert_eq!(engine.cache().held(), (0, 0));
    let figures = engine.cache().figures(0).expect("a cached table");
    assert_eq!(figures.get(Count::Arrived), on_the_way as u64);
    assert!(figures.get(Count::Admitted) > 0);
}

/// A request of number 9 that wants no row of the first table, with its ids in the client's memory.
fn without_misses(model: &Model, memory: &mut HeapMemory) -> Vec<u8> {
    let mut batch = model.batch(6, 4, 9);
    batch.features[0] = vec![vec![]; 4];
    let mut source = vec![];
    let frame = frame(lookup(9, 4), &batch, WIDE, &mut source);
    memory.regions.insert((0, common::SOURCE), source);
    frame
}

#[test]
fn requests_without_misses_go_on() {
    let model = Model::mixed();
    let mut engine = engine_with(&model, LIMITS, FETCH, 3, |_| Fate::Never);
    let mut memory = memory_for(&model, 4, vec![]);
    send(&model, &mut engine, &mut memory, 0, 4, 0);
    while engine.turn(0, &mut memory) != Turn::Blocked {}
    let frame = without_misses(&model, &mut memory);
    engine
        .request(0, Conn(0), 1, &frame, &mut memory)
        .expect("the slot is free");
    let (_, record) = loop {
        if let Some(answer) = engine.poll_completion() {
            break answer;
        }
        assert_ne!(engine.turn(0, &mut memory), Turn::Blocked, "it is answered");
    };
    assert_eq!((record.request, record.status), (9, Status::Ok));
    assert_eq!(engine.in_progress(), 1, "the other waits on");
}

#[test]
fn hits_of_a_large_table_are_touched_when_their_answer_has_gone() {
    let model = Model::mixed();
    // The first table alone, whose meta words are more than stay in a core's cache.
    let (step, fate, room) = (model.tables.tables().len(), |_| Fate::Comes, (1, 1 << 17));
    let (mut engines, _) =
        engines_and_shares(&model, LIMITS, FETCH, step, fate, OnFailure::Error, room);
    let mut engine = engines.remove(0);
    let mut memory = memory_for(&model, 4, vec![]);
    let mut answered = |engine: &mut Engine| {
        send(&model, engine, &mut memory, 0, 4, 0);
        while engine.poll_completion().is_none() {
            assert_ne!(engine.turn(0, &mut memory), Turn::Idle, "it is answered");
        }
    };
    answered(&mut engine);
    let fetched = engine.cache().fetch_counters().fetched;
    assert!(fetched > 0);
    answered(&mut engine);
    assert!(engine.cache().untouched() > 0);
    // A driver sleeps.
    assert!(engine.rest());
    assert_eq!(engine.cache().untouched(), 0);
    answered(&mut engine);
    assert!(engine.cache().untouched() > 0);
    engine.turn(0, &mut HeapMemory::default());
    assert_eq!(engine.cache().untouched(), 0);
    assert_eq!(engine.cache().fetch_counters().fetched, fetched, "all hit");
}

#[test]
fn requests_that_can_go_on_come_before_rows_and_rows_get_their_turn() {
    static POLLS: AtomicU64 = AtomicU64::new(0);
    let fate = |_| {
        POLLS.fetch_add(1, Ordering::Relaxed);
        Fate::Never
    };
    let model = Model::mixed();
    let mut engine = engine_with(&model, LIMITS, FETCH, 3, fate);
    let mut memory = memory_for(&model, 4, vec![]);
    send(&model, &mut engine, &mut memory, 0, 4, 0);
    while engine.turn(0, &mut memory) != Turn::Blocked {}
    // One after another, without end, that miss nothing.
    let frame = without_misses(&model, &mut memory);
    let mut answer = |now_ns| {
        let sent = engine.request(now_ns, Conn(0), 1, &frame, &mut memory);
        sent.expect("the slot is free");
        while engine.poll_completion().is_none() {
            engine.turn(now_ns, &mut memory);
        }
    };
    let polls = POLLS.load(Ordering::Relaxed);
    (0..100).for_each(|_| answer(0));
    assert_eq!(POLLS.load(Ordering::Relaxed), polls, "no time has passed");
    (1..100).for_each(|n| answer(n * 2 * LIMITS.micro_batch_ns));
    assert!(POLLS.load(Ordering::Relaxed) > polls, "it is time for rows");
}

/// Makes a table resident.
fn make_resident(model: &Model, engine: &mut Engine, table: usize) {
    let mut home = Home {
        resident: Some(Box::new(model.tables.tables()[table].clone())),
        cached: None,
    };
    engine.place(table, &mut home);
}

#[test]
fn what_waits_for_rows_is_answered_when_their_table_is_resident() {
    let model = Model::every();
    let mut engine = engine_with(&model, LIMITS, FETCH, 1, |_| Fate::Never);
    let batch = model.batch(5, 40, 9);
    let mut source = vec![];
    let frames = [0, 1].map(|slot| frame(lookup(slot, 40), &batch, WIDE, &mut source));
    let mut memory = memory_for(&model, 40, source);
    for (slot, frame) in frames.iter().enumerate() {
        engine
            .request(0, Conn(0), slot as u16, frame, &mut memory)
            .expect("the slot is free");
    }
    until_blocked(&mut engine, &mut memory);
    assert!(engine.cache().held().1 > 10, "rows are waited for");
    assert!(engine.cache().fetch_counters().refused > 0, "so is room");
    let tables = 0..model.tables.tables().len();
    // Between any two of them others still wait.
    for table in tables.clone() {
        assert_eq!(engine.in_progress(), 2);
        make_resident(&model, &mut engine, table);
        (0..1000).for_each(|_| _ = engine.turn(0, &mut memory));
    }
    let ended = std::iter::from_fn(|| engine.poll_completion()).collect::<Vec<_>>();
    assert_eq!(statuses(&ended), [Status::Ok; 2]);
    let wanted = model.oracle(&batch);
    let target = &memory.regions[&(0, common::TARGET)];
    common::assert_bytes(&model, &target[..wanted.len()], &wanted);
    assert_eq!(engine.cache().held(), (0, 0));
    for figures in tables.filter_map(|table| engine.cache().figures(table)) {
        let [fetched, unneeded] = [Count::Fetched, Count::Unneeded].map(|what| figures.get(what));
        assert_eq!(fetched, unneeded, "none came");
    }
}

#[test]
fn who_waits_for_room_needs_none_when_the_table_is_resident() {
    let model = Model::mixed();
    let mut engine = engine_with(&model, LIMITS, FETCH, 1, |_| Fate::Never);
    let mut memory = memory_for(&model, 40, vec![]);
    // One takes all room for rows of the first table. The other wants some of the second.
    let mut source = vec![];
    let frames = [0, 1].map(|wanted| {
        let mut batch = model.batch(5, 40, 9);
        for feature in (0..batch.features.len()).filter(|&feature| feature != wanted) {
            batch.features[feature] = vec![vec![]; 40];
        }
        frame(lookup(wanted as u64, 40), &batch, WIDE, &mut source)
    });
    memory.regions.insert((0, common::SOURCE), source);
    for (slot, frame) in frames.iter().enumerate() {
        engine
            .request(0, Conn(0), slot as u16, frame, &mut memory)
            .expect("the slot is free");
        until_blocked(&mut engine, &mut memory);
    }
    let refused = engine.cache().figures(1).expect("a cached table");
    assert!(refused.get(Count::ParksRefused) > 0);
    make_resident(&model, &mut engine, 1);
    (0..1000).for_each(|_| _ = engine.turn(0, &mut memory));
    let (_, record) = engine.poll_completion().expect("an answer");
    assert_eq!((record.request, record.status), (1, Status::Ok));
    assert_eq!(engine.in_progress(), 1, "the other waits on");
}

#[test]
fn tables_that_change_their_place_give_the_oracles_bytes() {
    let model = Model::every();
    let (mut engines, shares) = engines_and_shares(
        &model,
        LIMITS,
        FETCH,
        1,
        |_| Fate::Comes,
        OnFailure::Error,
        (1, SLOTS),
    );
    let engine = &mut engines[0];
    let count = model.tables.tables().len();
    for round in 0..12 {
        let batch = model.batch(round, 40, 9);
        answer(&model, engine, &batch, WIDE, 7);
        for table in (0..count).filter(|table| (table + round as usize).is_multiple_of(3)) {
            let mut home = Home::default();
            let is_cached = engine.cache().is_cached(table);
            if is_cached {
                home.resident = Some(Box::new(model.tables.tables()[table].clone()));
            } else {
                home.cached = shares.table(table).expect("memory").pop();
            }
            engine.place(table, &mut home);
            assert_eq!(engine.cache().is_cached(table), !is_cached);
            assert_eq!(
                (home.resident.is_some(), home.cached.is_some()),
                (!is_cached, is_cached)
            );
        }
    }
}
