//! After start-up the engine does not allocate: a counting allocator watches whole requests of every
//! kind, from frame to completion.

mod common;

use common::{HeapMemory, INLINE, LIMITS, Model, REGION, SOURCE, TARGET, engine, frame, lookup};
use rowmill_engine::{Conn, Engine, Turn};

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
            engine.cancel(round, Conn(0), 3);
            records += turn_to_the_end(&mut engine, &mut memory);
        }
    });
    assert_eq!(records, 3 * (6 + 11), "finals and slices of all rounds");
    assert_eq!(counted.count_total, 0, "allocations of the engine");
    let seen = allocation_counter::measure(|| drop(std::hint::black_box(vec![1])));
    assert_eq!(seen.count_total, 1, "the counter counts");
}
