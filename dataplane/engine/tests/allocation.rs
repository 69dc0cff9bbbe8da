//! After start-up the engine does not allocate: a counting allocator watches whole requests of every
//! kind, from frame to completion.

mod common;

use common::shelf::{FETCH, Fate, SLOTS, engines_and_shares};
use common::{
    Carry, HeapMemory, INLINE, LIMITS, Model, REGION, SOURCE, TARGET, attach, engine, frame, lookup,
};
use rowmill_cache::OnFailure;
use rowmill_engine::{Conn, Engine, Home, Turn};
use rowmill_wire::Element;

fn turn_to_the_end(engine: &mut Engine, memory: &mut HeapMemory) -> usize {
    let mut records = 0;
    loop {
        let turn = engine.turn(0, memory);
        while engine.poll_completion().is_some() {
            records += 1;
        }
        if turn == Turn::Idle {
            return records;
        }
    }
}

#[test]
fn requests_allocate_nothing() {
    let model = Model::mixed();
    let mut engine = engine(&model, LIMITS);
    let mut source = vec![];
    let mut sliced = lookup(1, 600);
    sliced.slice_bags = 50;
    let frames = [
        frame(lookup(2, 3), &model.batch(1, 3, 4), INLINE, &mut source),
        frame(sliced, &model.batch(2, 600, 20), REGION, &mut source),
        frame(
            lookup(3, 100),
            &model.batch(3, 100, 20),
            REGION,
            &mut source,
        ),
        frame(lookup(4, 50), &model.batch(4, 50, 20), REGION, &mut source),
    ];
    let mut memory = HeapMemory::default();
    memory.regions.insert((0, SOURCE), source);
    memory.regions.insert((0, TARGET), vec![0; 4 << 20]);
    let mut records = 0;
    let counted = allocation_counter::measure(|| {
        for round in 0..3 {
            for (slot, frame) in frames.iter().enumerate() {
                engine
                    .request(round, Conn(0), slot as u16, frame, &mut memory)
                    .expect("free slot");
            }
            // A fifth one is BUSY, a bad one refused, one cancelled.
            engine
                .request(round, Conn(0), 4, &frames[0], &mut memory)
                .expect("free slot");
            engine
                .request(round, Conn(0), 5, &frames[0][..70], &mut memory)
                .expect("free slot");
            engine.cancel(round, Conn(0), 3, &mut memory);
            records += turn_to_the_end(&mut engine, &mut memory);
        }
    });
    assert_eq!(records, 3 * (6 + 11), "finals and slices of all rounds");
    assert_eq!(counted.count_total, 0, "allocations of the engine");
    let seen = allocation_counter::measure(|| drop(std::hint::black_box(vec![1])));
    assert_eq!(seen.count_total, 1, "the counter counts");
}

#[test]
fn no_mode_output_or_hashed_table_allocates() {
    let model = Model::every();
    let mut engine = engine(&model, LIMITS);
    attach(&mut engine, &model, Conn(1));
    let wide = Carry {
        ids: Element::Bits64,
        ..REGION
    };
    let mut source = vec![];
    let mut unknown = model.batch(3, 60, 9);
    // Feature 1 is of a hashed table that answers no missing key.
    unknown.features[1][59] = vec![12345];
    let mut weights = unknown.weights.take().expect("weighted");
    weights[1][59] = vec![1.0];
    unknown.weights = Some(weights);
    let frames = [
        frame(lookup(1, 300), &model.batch(1, 300, 12), wide, &mut source),
        frame(lookup(2, 60), &model.batch(2, 60, 9), wide, &mut source),
        frame(lookup(3, 60), &unknown, wide, &mut source),
    ];
    let mut memory = HeapMemory::default();
    for conn in 0..2 {
        memory.regions.insert((conn, SOURCE), source.clone());
        memory
            .regions
            .insert((conn, TARGET), vec![0; model.target_bytes(300)]);
    }
    let mut records = 0;
    let counted = allocation_counter::measure(|| {
        for (slot, frame) in frames.iter().enumerate() {
            let conn = Conn(slot as u32 % 2);
            engine
                .request(0, conn, slot as u16, frame, &mut memory)
                .expect("free slot");
        }
        records += turn_to_the_end(&mut engine, &mut memory);
    });
    assert_eq!(records, 3);
    assert_eq!(engine.counters().refused, 1);
    assert_eq!(counted.count_total, 0, "allocations of the engine");
}

#[test]
fn workers_with_cached_tables_allocate_nothing() {
    allocate_nothing(SLOTS, 100);
    // Policies of large tables are told later of what is looked up.
    allocate_nothing(1 << 17, 10);
}

/// Two workers with so many slots for rows of each table, who ask each other for more rows than these.
fn allocate_nothing(slots: u32, asked_least: u64) {
    let model = Model::mixed();
    let (mut engines, shares) = engines_and_shares(
        &model,
        LIMITS,
        FETCH,
        1,
        |_| Fate::Comes,
        OnFailure::Error,
        (2, slots),
    );
    let mut source = vec![];
    let frames: Vec<Vec<u8>> = (0..6)
        .map(|seed| {
            let batch = model.batch(seed, 60, 9);
            frame(lookup(seed, 60), &batch, REGION, &mut source)
        })
        .collect();
    let mut memories = [(); 2].map(|()| {
        let mut memory = HeapMemory::default();
        memory.regions.insert((0, SOURCE), source.clone());
        let target = vec![0; model.target_bytes(60)];
        memory.regions.insert((0, TARGET), target);
        memory
    });
    // One for each engine: the first table has memory of its own for some requests, then it is cached again.
    let table = model.tables.tables()[0].clone();
    let resident = [(); 2].map(|()| Home {
        resident: Some(Box::new(table.clone())),
        cached: None,
    });
    let parts = shares.table(0).expect("memory").into_iter();
    let cached = parts.map(|part| Home {
        resident: None,
        cached: Some(part),
    });
    let mut moves = [resident.into(), cached.collect::<Vec<Home>>()].into_iter();
    let mut moved: Vec<Vec<Home>> = Vec::with_capacity(2);
    let (mut records, mut untouched) = (0, 0);
    let counted = allocation_counter::measure(|| {
        for frames in frames.chunks(2) {
            for (slot, frame) in (0..).zip(frames) {
                for (engine, memory) in engines.iter_mut().zip(&mut memories) {
                    let sent = engine.request(0, Conn(0), slot, frame, memory);
                    sent.expect("free slot");
                }
            }
            // While they are in progress.
            for (engine, memory) in engines.iter_mut().zip(&mut memories) {
                engine.turn(0, memory);
                records += core::iter::from_fn(|| engine.poll_completion()).count();
            }
            if let Some(mut homes) = moves.next() {
                for (engine, home) in engines.iter_mut().zip(&mut homes) {
                    engine.place(0, home);
                }
                moved.push(homes);
            }
            // Each goes on only as long as the other does.
            let mut in_progress = true;
            while in_progress {
                in_progress = false;
                for (engine, memory) in engines.iter_mut().zip(&mut memories) {
                    in_progress |= engine.turn(0, memory) != Turn::Idle;
                    untouched = engine.cache().untouched().max(untouched);
                    records += core::iter::from_fn(|| engine.poll_completion()).count();
                }
            }
        }
    });
    assert_eq!(records, 2 * frames.len());
    assert_eq!(untouched > 0, slots > 1 << 16, "{untouched} were put off");
    assert!(moved.len() == 2 && engines[0].cache().is_cached(0));
    for engine in &engines {
        let asked = engine.cache().fetch_counters().asked;
        assert!(
            asked > asked_least,
            "{asked} rows were asked of the other worker"
        );
    }
    assert_eq!(counted.count_total, 0, "allocations of the engines");
}
