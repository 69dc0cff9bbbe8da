//! Runs of a request that are kept in blocks until their rows come, while the next ones begin.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::shelf::{FETCH, Fate, engine_with};
use common::{
    Batch, HeapMemory, INLINE, LIMITS, Model, Remote, UNTOUCHED, WIDE, answer, attach, frame,
    lookup, memory_for, run, run_until_nothing_is_held, send, statuses, until_blocked,
};
use rowmill_cache::fetch;
use rowmill_cache::tier::Wanted;
use rowmill_engine::{Conn, Engine, Limits, STAGE_BYTES_MIN};
use rowmill_wire::{CompletionKind, Status};

#[test]
fn all_rows_of_a_request_are_asked_for_before_it_waits_where_its_runs_have_room() {
    let model = Model::every();
    let fetch = fetch::Limits {
        staged: 1 << 14,
        bags: 1 << 12,
        ..FETCH
    };
    let bags = 40;
    let asked = |remote: Option<Remote>| {
        let mut engine = engine_with(&model, LIMITS, fetch, 2, |_| Fate::Never);
        let mut memory = memory_for(&model, bags, vec![]);
        memory.remote = remote;
        send(&model, &mut engine, &mut memory, 0, bags, 0);
        // Far away its data come after the first.
        for _ in 0..2 {
            until_blocked(&mut engine, &mut memory);
            let remote = memory.remote.as_mut();
            let coming = remote.map(|remote| std::mem::take(&mut remote.coming));
            for (conn, slot, outcome) in coming.into_iter().flatten() {
                engine.fetched(0, conn, slot, outcome, &mut memory);
            }
        }
        let (on_the_way, _) = engine.cache().held();
        let parked = engine.cache().fetch_counters().parked;
        engine.cancel(0, Conn(0), 0, &mut memory);
        assert!(memory.remote.is_none_or(|remote| remote.is_whole()));
        (on_the_way, parked)
    };
    let remote = |blocks| Some(Remote::new(STAGE_BYTES_MIN as usize, blocks));
    let all = asked(None);
    assert_eq!(asked(remote(32)), all, "rows on their way, and bags");
    // Of two blocks a request that waits keeps one and no more.
    let (rows, parked) = asked(remote(2));
    assert!(
        rows < all.0 && parked < all.1,
        "{rows} rows of {parked} bags, and {all:?}"
    );
}

/// A request of ten slices over a memory far away with so many blocks, in which all that can be done before rows come is done.
fn waiting(
    model: &Model,
    bags: u32,
    blocks: usize,
    fate: fn(Wanted) -> Fate,
) -> (Engine, HeapMemory) {
    let fetch = fetch::Limits {
        staged: 1 << 15,
        bags: 1 << 14,
        ..FETCH
    };
    let mut engine = engine_with(model, LIMITS, fetch, 2, fate);
    let mut memory = memory_for(model, bags, vec![]);
    let mut remote = Remote::new(STAGE_BYTES_MIN as usize, blocks);
    remote.steady = true;
    memory.remote = Some(remote);
    let mut header = lookup(0, bags);
    header.slice_bags = bags / 10;
    let mut source = vec![];
    let frame = frame(header, &model.batch(5, bags, 9), WIDE, &mut source);
    memory.regions.insert((0, common::SOURCE), source);
    let taken = engine.request(0, Conn(0), 0, &frame, &mut memory);
    taken.expect("the slot is free");
    for _ in 0..2 {
        until_blocked(&mut engine, &mut memory);
        let remote = memory.remote.as_mut().expect("far away");
        for (conn, slot, outcome) in std::mem::take(&mut remote.coming) {
            engine.fetched(0, conn, slot, outcome, &mut memory);
        }
    }
    (engine, memory)
}

#[test]
fn eight_runs_of_a_request_are_held_beside_the_one_under_way() {
    let model = Model::every();
    let (mut engine, mut memory) = waiting(&model, 100, 64, |_| Fate::Never);
    let taken = memory.remote.as_ref().map(Remote::taken);
    assert_eq!(taken, Some(9));
    engine.cancel(0, Conn(0), 0, &mut memory);
    assert!(memory.remote.is_some_and(|remote| remote.is_whole()));
}

#[test]
fn a_held_run_that_can_not_be_placed_ends_its_request_and_gives_all_back() {
    static COME: AtomicBool = AtomicBool::new(false);
    let model = Model::every();
    let fate = |_| match COME.load(Ordering::Relaxed) {
        true => Fate::Comes,
        false => Fate::Never,
    };
    let (mut engine, mut memory) = waiting(&model, 100, 64, fate);
    COME.store(true, Ordering::Relaxed);
    // The target is gone when the first of them is placed, and there again for all that follows.
    let target = memory.regions.remove(&(0, common::TARGET));
    let taken = |memory: &HeapMemory| memory.remote.as_ref().map(Remote::taken);
    while taken(&memory) == Some(9) {
        engine.turn(0, &mut memory);
    }
    let target = target.expect("a target");
    memory.regions.insert((0, common::TARGET), target);
    let records = run(&mut engine, &mut memory, &mut 0);
    assert_eq!(statuses(&records), [Status::UnknownRegion]);
    run_until_nothing_is_held(&mut engine, &mut memory);
    assert_eq!(taken(&memory), Some(0));
    answer(&model, &mut engine, &model.batch(6, 40, 9), WIDE, 0);
}

#[test]
fn slices_that_are_placed_are_announced_though_there_is_no_room_for_the_next() {
    static LATE: AtomicU64 = AtomicU64::new(0);
    let model = Model::mixed();
    let fetch = fetch::Limits {
        staged: 1000,
        bags: 1000,
        ..FETCH
    };
    let fate = |wanted: Wanted| match LATE.load(Ordering::Relaxed) == u64::from(wanted.row) {
        true => Fate::Never,
        false => Fate::Comes,
    };
    // A row of the first slice that the second one does not want.
    let batch = model.batch(5, 30, 9);
    let bags_of = |slice: usize| {
        let features = batch.features.iter();
        features.flat_map(move |bags| bags[10 * slice..10 * (slice + 1)].iter().flatten())
    };
    let late = bags_of(0).find(|&row| bags_of(1).all(|other| other != row));
    LATE.store(*late.expect("a row"), Ordering::Relaxed);
    let mut engine = engine_with(&model, LIMITS, fetch, 1, fate);
    let mut header = lookup(0, 30);
    header.slice_bags = 10;
    let mut source = vec![];
    let frame = frame(header, &batch, INLINE, &mut source);
    let mut memory = memory_for(&model, 30, source);
    let mut remote = Remote::new(STAGE_BYTES_MIN as usize, 32);
    remote.steady = true;
    memory.remote = Some(remote);
    engine
        .request(0, Conn(0), 0, &frame, &mut memory)
        .expect("the slot is free");
    let mut records = vec![];
    for turn in 0..4000 {
        let remote = memory.remote.as_mut().expect("far away");
        // The first two have a block each.
        if remote.taken() >= 2 {
            remote.take_all();
        }
        if turn == 2000 {
            LATE.store(u64::MAX, Ordering::Relaxed);
        }
        engine.turn(0, &mut memory);
        records.extend(std::iter::from_fn(|| engine.poll_completion()));
        assert!(turn >= 2000 || records.is_empty(), "{records:?}");
    }
    let slices: Vec<_> = records.iter().map(|(_, r)| (r.kind, r.slice)).collect();
    // The third one has no staging.
    let placed = [0, 1].map(|slice| (CompletionKind::Slice, slice));
    assert_eq!(slices, placed);
}

/// Sends a batch in a slot of a connection, with a target of its own, and lets the engine do what it can.
fn try_to_answer(
    model: &Model,
    (engine, memory): (&mut Engine, &mut HeapMemory),
    (conn, slot): (u32, u16),
    batch: &Batch,
) {
    let target = 100 + u32::from(slot);
    let mut header = lookup(u64::from(slot), batch.bags());
    header.target_region = target;
    let mut source = memory
        .regions
        .remove(&(conn, common::SOURCE))
        .unwrap_or_default();
    let frame = frame(header, batch, WIDE, &mut source);
    memory.regions.insert((conn, common::SOURCE), source);
    let bytes = vec![UNTOUCHED; model.target_bytes(batch.bags())];
    memory.regions.insert((conn, target), bytes);
    let taken = engine.request(1, Conn(conn), slot, &frame, memory);
    taken.expect("the slot is free");
    for _ in 0..3000 {
        let remote = memory.remote.as_mut().expect("far away");
        for (conn, slot, outcome) in std::mem::take(&mut remote.coming) {
            engine.fetched(1, conn, slot, outcome, memory);
        }
        engine.turn(1, memory);
    }
}

#[test]
fn a_request_without_misses_is_answered_while_runs_of_many_others_are_held() {
    let model = Model::mixed();
    let fetch = fetch::Limits {
        staged: 1 << 16,
        bags: 1 << 15,
        ..FETCH
    };
    let limits = Limits {
        slots: 33,
        connections: 40,
        credits: 32,
        ..LIMITS
    };
    // Requests that wait, by connection; and of which connection the other one is.
    let cases: [(&[u16], u32, usize); 8] = [
        (&[7], 0, 32),
        (&[8], 0, 32),
        (&[5, 7], 1, 32),
        (&[7, 5], 1, 32),
        (&[7, 7, 7], 2, 32),
        (&[1; 18], 18, 32),
        (&[4], 0, 16),
        (&[3], 0, 8),
    ];
    for (waiting, of, blocks) in cases {
        let mut engine = engine_with(&model, limits, fetch, 2, |_| Fate::Never);
        for conn in 1..limits.connections {
            attach(&mut engine, &model, Conn(conn));
        }
        let mut remote = Remote::new(STAGE_BYTES_MIN as usize, blocks);
        remote.steady = true;
        let mut memory = HeapMemory {
            remote: Some(remote),
            ..HeapMemory::default()
        };
        for (conn, &requests) in (0..).zip(waiting) {
            for slot in 0..requests {
                let batch = model.batch(u64::from(slot), 900, 5);
                try_to_answer(&model, (&mut engine, &mut memory), (conn, slot), &batch);
            }
        }
        let taken = memory.remote.as_ref().map_or(0, Remote::taken);
        assert!(
            taken > waiting.iter().sum::<u16>() as usize,
            "runs are held"
        );
        assert!(engine.poll_completion().is_none());
        let mut batch = model.batch(99, 10, 5);
        for of_a_file in [0, 2] {
            batch.features[of_a_file] = vec![vec![]; 10];
        }
        try_to_answer(&model, (&mut engine, &mut memory), (of, 31), &batch);
        let done = engine
            .poll_completion()
            .map(|(conn, record)| (conn, record.request, record.status));
        let expected = (Conn(of), 31, Status::Ok);
        assert_eq!(
            done,
            Some(expected),
            "{waiting:?} wait, {taken} of {blocks} blocks"
        );
    }
}
