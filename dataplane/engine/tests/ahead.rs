//! Rows that a request in hand will look up are not evicted for those that it looks up before.

mod common;

use common::shelf::{FETCH, Fate, SLOTS, engine_with};
use common::{Batch, INLINE, LIMITS, Model, frame, lookup, memory_for, run, statuses};
use rowmill_engine::{Conn, Engine};
use rowmill_wire::Status;

/// Rows that are looked up last, a bag.
const LAST: u64 = SLOTS as u64 / 2;
const BAG: u64 = 8;

/// Looks up bags of the first feature's rows. Returns how many rows were fetched for that.
fn look_up(model: &Model, engine: &mut Engine, rows: impl Iterator<Item = u64>) -> u64 {
    let rows: Vec<u64> = rows.collect();
    let bags: Vec<Vec<u64>> = rows.chunks(BAG as usize).map(<[u64]>::to_vec).collect();
    let none = vec![vec![]; bags.len()];
    let batch = Batch {
        features: vec![bags, none.clone(), none],
        ..Batch::default()
    };
    let mut source = vec![];
    let frame = frame(lookup(1, batch.bags()), &batch, INLINE, &mut source);
    let mut memory = memory_for(model, batch.bags(), source);
    let before = engine.cache().fetch_counters().fetched;
    engine
        .request(0, Conn(0), 0, &frame, &mut memory)
        .expect("the slot is free");
    let records = run(engine, &mut memory, &mut 0);
    assert_eq!(statuses(&records), [Status::Ok]);
    engine.cache().fetch_counters().fetched - before
}

#[test]
fn rows_that_are_known_to_be_wanted_stay() {
    let model = Model::mixed();
    // More than are looked up at a time, so that the last ones still are ahead when others come.
    let new = 512;
    let mut again = 0;
    for first in (100..400).step_by(50) {
        let mut engine = engine_with(&model, LIMITS, FETCH, 3, |_| Fate::Comes);
        let wanted = || first..first + LAST;
        look_up(&model, &mut engine, wanted());
        // All that a set has room for.
        let held = LAST - look_up(&model, &mut engine, wanted());
        let others = (0..new).map(|row| (first + 400 + row) % 1000);
        let all = look_up(&model, &mut engine, others.chain(wanted()));
        assert!(held > LAST / 2, "{held} of {LAST} were there");
        again += all - new - (LAST - held);
    }
    assert_eq!(again, 0, "rows had to be fetched again");
}
