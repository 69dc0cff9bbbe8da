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

/// Bags of the first feature's rows.
fn bags_of(rows: impl Iterator<Item = u64>) -> Vec<Vec<u64>> {
    let rows: Vec<u64> = rows.collect();
    rows.chunks(BAG as usize).map(<[u64]>::to_vec).collect()
}

/// Looks up bags of the first feature's rows. Returns how many rows were fetched for that.
fn look_up(model: &Model, engine: &mut Engine, rows: impl Iterator<Item = u64>) -> u64 {
    let bags = bags_of(rows);
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

/// A request that looks up new rows, while another one waits for its turns that will look up rows which are there: how many rows were
/// fetched.
fn look_up_beside(
    model: &Model,
    engine: &mut Engine,
    new: impl Iterator<Item = u64>,
    waiting: impl Iterator<Item = u64>,
) -> u64 {
    let new = bags_of(new);
    // Many bags of tables that are resident come first: the other one is through before these are.
    let first = 3900;
    let last = bags_of(waiting);
    let of_new = vec![vec![]; new.len()];
    let before = [vec![vec![]; first], last].concat();
    let of_other = [
        vec![vec![0; BAG as usize]; first],
        vec![vec![]; before.len() - first],
    ]
    .concat();
    let batches = [
        Batch {
            features: vec![new, of_new.clone(), of_new],
            ..Batch::default()
        },
        Batch {
            features: vec![before, of_other.clone(), of_other],
            ..Batch::default()
        },
    ];
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
            let mut engine = engine_with(&model, limits, FETCH, 3, |_| Fate::Comes);
            attach(&mut engine, &model, Conn(1));
            let wanted = || first..first + LAST;
            look_up(&model, &mut engine, wanted());
            let held = LAST - look_up(&model, &mut engine, wanted());
            assert!(held > LAST / 2, "{held} of {LAST} were there");
            let others = (0..new).map(|row| (first + 400 + row) % 1000);
            if waits {
                let all = look_up_beside(&model, &mut engine, others, wanted());
                again += all - new - (LAST - held);
            } else {
                look_up(&model, &mut engine, others);
                gone += look_up(&model, &mut engine, wanted()) - (LAST - held);
            }
        }
    }
    assert_eq!(again, 0, "rows had to be fetched again");
    assert!(gone > LAST, "{gone} rows go where nobody waits for them");
}
