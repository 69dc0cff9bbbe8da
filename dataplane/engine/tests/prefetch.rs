//! Rows that may be wanted soon.

mod common;

use common::shelf::{FETCH, Fate, engine_with};
use common::{
    Carry, HeapMemory, LIMITS, Model, REGION, answer, frame, lookup, memory_for, run, statuses,
};
use rowmill_cache::fetch;
use rowmill_cache::figures::Count;
use rowmill_engine::{Conn, Engine};
use rowmill_wire::request::FLAG_PARTIALS;
use rowmill_wire::{Element, Op, Status};

const WIDE: Carry = Carry {
    ids: Element::Bits64,
    ..REGION
};

fn send(
    model: &Model,
    engine: &mut Engine,
    bags: u32,
    change: fn(&mut rowmill_wire::request::Header),
) -> Vec<Status> {
    let mut header = lookup(1, bags);
    (header.op, header.target_region) = (Op::Prefetch, 0);
    change(&mut header);
    let mut source = vec![];
    let frame = frame(header, &model.batch(5, bags, 9), WIDE, &mut source);
    let mut memory: HeapMemory = memory_for(model, bags, source);
    engine
        .request(0, Conn(0), 0, &frame, &mut memory)
        .expect("the slot is free");
    let mut now_ns = 0;
    let records = run(engine, &mut memory, &mut now_ns);
    while engine.cache().held().0 > 0 {
        now_ns += 10_000;
        engine.turn(now_ns, &mut memory);
    }
    statuses(&records)
}

#[test]
fn what_is_told_in_advance_is_there_when_it_is_wanted() {
    let model = Model::every();
    let all = fetch::Limits {
        prefetched: 4096,
        ..FETCH
    };
    let mut engine = engine_with(&model, LIMITS, all, 1, |_| Fate::Comes);
    assert_eq!(send(&model, &mut engine, 3, |_| ()), [Status::Ok]);
    let fetched = engine.cache().fetch_counters().fetched;
    assert!(fetched > 10, "{fetched}");
    assert_eq!(engine.counters().bags, 0, "nothing was pooled");
    // Again: what is there is not fetched again.
    assert_eq!(send(&model, &mut engine, 3, |_| ()), [Status::Ok]);
    let again = engine.cache().fetch_counters().fetched - fetched;
    assert!(again < fetched / 2, "{again} of {fetched}");
    // And it is what the oracle has.
    answer(&model, &mut engine, &model.batch(5, 3, 9), WIDE, 0);
}

#[test]
fn there_is_a_budget_and_rows_that_fail_are_nobodys() {
    let model = Model::every();
    let mut engine = engine_with(&model, LIMITS, FETCH, 1, |_| Fate::Comes);
    assert_eq!(send(&model, &mut engine, 100, |_| ()), [Status::Ok]);
    let tables = 0..model.tables.tables().len();
    let figures: Vec<_> = tables.filter_map(|t| engine.cache().figures(t)).collect();
    let told = |what| figures.iter().map(|table| table.get(what)).sum::<u64>();
    let (hinted, dropped) = (told(Count::Hinted), told(Count::HintsDropped));
    assert!(dropped > 0 && hinted > dropped, "{dropped} of {hinted}");
    let fails = |_| Fate::Fails(rowmill_cache::tier::TierError::Gone);
    let mut engine = engine_with(&model, LIMITS, FETCH, 1, fails);
    assert_eq!(send(&model, &mut engine, 100, |_| ()), [Status::Ok]);
    // Most tables are resident, and have nothing to fetch.
    let mut engine = engine_with(&model, LIMITS, FETCH, 1000, |_| Fate::Comes);
    assert_eq!(send(&model, &mut engine, 100, |_| ()), [Status::Ok]);
}

#[test]
fn it_has_no_target() {
    let model = Model::every();
    let mut engine = engine_with(&model, LIMITS, FETCH, 1, |_| Fate::Comes);
    let cases: [fn(&mut rowmill_wire::request::Header); 4] = [
        |header| header.target_region = 3,
        |header| header.target_base = 64,
        |header| header.slice_bags = 1,
        |header| header.flags = FLAG_PARTIALS,
    ];
    for change in cases {
        assert_eq!(send(&model, &mut engine, 3, change), [Status::Malformed]);
    }
    assert_eq!(engine.cache().fetch_counters().fetched, 0);
}
