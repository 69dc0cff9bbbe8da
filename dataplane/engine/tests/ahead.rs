//! Rows that a request in hand will look up are not evicted for those that it looks up before, or that others do.

mod common;

use common::shelf::{FETCH, Fate, SLOTS, engine_with};
use common::{
    Batch, INLINE, LIMITS, Model, REGION, SOURCE, TARGET, attach, frame, lookup, memory_for, run,
    statuses,
};
use rowmill_engine::{Conn, Engine, Limits};
use rowmill_wire::Status;

/// Rows that are looked up last, a bag.
const LAST: u64 = SLOTS as u64 / 2;
const BAG: u64 = 8;
/// Bags of a request that looks up many rows.
const BESIDE: usize = 4000;

/// Bags of rows.
fn bags_of(rows: impl Iterator<Item = u64>) -> Vec<Vec<u64>> {
    let rows: Vec<u64> = rows.collect();
    rows.chunks(BAG as usize).map(<[u64]>::to_vec).collect()
}

/// Looks up bags of a feature's rows. Returns how many rows were fetched for that.
fn look_up(
    model: &Model,
    engine: &mut Engine,
    feature: usize,
    rows: impl Iterator<Item = u64>,
) -> u64 {
    let bags = bags_of(rows);
    let mut features = vec![vec![vec![]; bags.len()]; 3];
    features[feature] = bags;
    let batch = Batch {
        features,
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
        look_up(&model, &mut engine, 0, wanted());
        // All that a set has room for.
        let held = LAST - look_up(&model, &mut engine, 0, wanted());
        let others = (0..new).map(|row| (first + 400 + row) % 1000);
        let all = look_up(&model, &mut engine, 0, others.chain(wanted()));
        assert!(held > LAST / 2, "{held} of {LAST} were there");
        again += all - new - (LAST - held);
    }
    assert_eq!(again, 0, "rows had to be fetched again");
}

/// A request that looks up new rows, while another one waits for its turns that will look up rows which are there: how many rows were
/// fetched.
fn look_up_beside(
    model: &Model,
    engine: &mut Engine,
    new: impl Iterator<Item = u64>,
    waiting: impl Iterator<Item = u64>,
) -> u64 {
    let (new, last) = (bags_of(new), bags_of(waiting));
    // It looks up features in their order, and many rows of a table that is resident before: the other one is through by then.
    let beside = vec![vec![0; 2 * BAG as usize]; BESIDE];
    let none = [new.len(), BESIDE].map(|bags| vec![vec![]; bags]);
    let last = [last.clone(), none[1][last.len()..].to_vec()].concat();
    let batches = [
        [none[0].clone(), none[0].clone(), new],
        [none[1].clone(), beside, last],
    ];
    let batches = batches.map(|features| Batch {
        features: features.into(),
        ..Batch::default()
    });
    let fetched = engine.cache().fetch_counters().fetched;
    let mut memory = memory_for(model, batches[1].bags(), vec![]);
    let target = memory.regions[&(0, TARGET)].clone();
    memory.regions.insert((1, TARGET), target);
    for (conn, batch) in (0..).zip(&batches) {
        let mut source = vec![];
        let frame = frame(lookup(1, batch.bags()), batch, REGION, &mut source);
        memory.regions.insert((conn, SOURCE), source);
        engine
            .request(0, Conn(conn), 0, &frame, &mut memory)
            .expect("the slot is free");
    }
    let records = run(engine, &mut memory, &mut 0);
    assert_eq!(statuses(&records), [Status::Ok, Status::Ok]);
    assert_eq!(records[1].0, Conn(1), "who waits is answered last");
    engine.cache().fetch_counters().fetched - fetched
}

#[test]
fn rows_that_a_waiting_request_wants_stay() {
    let model = Model::mixed();
    let new = 80;
    let (mut gone, mut again) = (0, 0);
    for first in (100..400).step_by(50) {
        for waits in [false, true] {
            let limits = Limits {
                micro_batch_ns: 1_000,
                ..LIMITS
            };
            let mut engine = engine_with(&model, limits, FETCH, 2, |_| Fate::Comes);
            attach(&mut engine, &model, Conn(1));
            let wanted = || first..first + LAST;
            look_up(&model, &mut engine, 2, wanted());
            let held = LAST - look_up(&model, &mut engine, 2, wanted());
            assert!(held > LAST / 2, "{held} of {LAST} were there");
            let others = (0..new).map(|row| (first + 400 + row) % 1000);
            if waits {
                let all = look_up_beside(&model, &mut engine, others, wanted());
                again += all - new - (LAST - held);
            } else {
                look_up(&model, &mut engine, 2, others);
                gone += look_up(&model, &mut engine, 2, wanted()) - (LAST - held);
            }
        }
    }
    assert_eq!(again, 0, "rows had to be fetched again");
    assert!(gone > LAST, "{gone} rows go where nobody waits for them");
}
