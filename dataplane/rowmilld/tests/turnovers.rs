//! A worker that is told of generations, and the sessions that bind schemas to them.

mod support;

use std::sync::Arc;

use rowmill_engine::Side;
use rowmill_port::Service;
use rowmill_rowmilld::turnover::Stage;
use rowmill_table::Resident;
use rowmill_wire::Status;
use support::*;

const IDS: [u32; 3] = [3, 99, 3];

/// Asks for some rows: the status, and of which generation they are.
fn ask(bench: &mut Bench, schema: u32) -> (Status, u64) {
    let frame = lookup(1, schema, REGION, &IDS);
    bench.worker.port().request(0, frame);
    bench.settle();
    let records = bench.records();
    (records[0].status, records[0].generation)
}

fn is_of(bench: &mut Bench, schema: u32, tables: &Resident) {
    assert_eq!(ask(bench, schema), (Status::Ok, tables.generation()));
    let expected = expected(tables, &IDS);
    assert_eq!(bench.worker.port().memory[..expected.len()], expected);
}

#[test]
fn what_was_bound_before_and_what_is_bound_later_is_bound_to_both() {
    let mut bench = Bench::new();
    bench.worker.port().attach(CONN);
    bench.settle();
    let (first, second) = (Arc::clone(&bench.tables), generation(2, DIM));
    let before = bench.bind(CONN);
    bench.hold(Side::B, &second);
    let later = bench.bind(CONN);
    for schema in [before, later] {
        is_of(&mut bench, schema, &first);
    }
    let told = bench.tell(Side::B, Stage::Switch);
    for schema in [before, later] {
        is_of(&mut bench, schema, &second);
    }
    assert!(told.is_done());
    assert_eq!(bench.sessions.welcome("c").unwrap().generation, 1);
    bench.sessions.switch(Side::B);
    assert_eq!(bench.sessions.welcome("c").unwrap().generation, 2);
    // And back.
    let _told = bench.tell(Side::A, Stage::Switch);
    is_of(&mut bench, before, &first);
}

#[test]
fn a_generation_that_goes_is_kept_by_nobody() {
    let mut bench = Bench::new();
    bench.worker.port().attach(CONN);
    bench.settle();
    let before = bench.bind(CONN);
    let first = Arc::downgrade(&bench.tables);
    let second = generation(2, DIM);
    bench.hold(Side::B, &second);
    let later = bench.bind(CONN);
    let told = bench.tell(Side::B, Stage::Switch);
    bench.settle();
    bench.sessions.switch(Side::B);
    drop(told);
    // One is on its way when new ones are not bound to it any more.
    let mut pending = bench.sessions.bind(CONN, schema()).unwrap();
    let withdrawn = bench.sessions.withdraw(Side::A);
    assert!(!withdrawn.is_settled());
    bench.settle();
    assert!(withdrawn.is_settled() && pending.is_known());
    drop((withdrawn, pending));
    let last = bench.bind(CONN);
    let told = bench.tell(Side::A, Stage::Release);
    bench.settle();
    assert!(told.is_done());
    drop(told);
    bench.sessions.release(Side::A);
    bench.tables = Arc::clone(&second);
    assert_eq!(first.strong_count(), 0);
    for schema in [before, later, last] {
        is_of(&mut bench, schema, &second);
    }
    // Its side is free for another.
    let third = generation(3, DIM);
    bench.hold(Side::A, &third);
    let _told = bench.tell(Side::A, Stage::Switch);
    for schema in [before, later, last] {
        is_of(&mut bench, schema, &third);
    }
}

#[test]
fn a_generation_that_clients_cannot_use_is_not_prepared() {
    let mut bench = Bench::new();
    bench.worker.port().attach(CONN);
    bench.settle();
    bench.bind(CONN);
    let why = |tables: &Arc<Resident>| {
        bench
            .sessions
            .prepare(Side::B, tables)
            .err()
            .expect("refused")
    };
    let wide = why(&generation(2, 2 * DIM));
    assert!(
        wide.contains("table t has dim 32 in generation 2 and 16 in generation 1"),
        "{wide}"
    );
    let spec = rowmill_table::TableSpec {
        name: "u".into(),
        rows: 5,
        dim: DIM,
        format: rowmill_table::RowFormat::F32,
        kind: rowmill_table::TableKind::Dense,
    };
    let other = Resident::in_memory(
        &[spec],
        1,
        rowmill_arena::HugePages::Off,
        &rowmill_table::silent,
    );
    let other = Arc::new(other.unwrap().with_generation(2));
    let lacks = why(&other);
    assert!(lacks.contains("feature `f` wants table `t`"), "{lacks}");
    // Without anybody who has bound it there is nothing to be missed, and later ones are told.
    bench.sessions.gone(CONN);
    drop(
        bench
            .sessions
            .prepare(Side::B, &other)
            .expect("nobody wants t"),
    );
    let refused = bench.sessions.bind(OTHER, schema()).err().expect("refused");
    assert_eq!(refused.0.status, Status::UnknownTable);
    assert!(
        refused
            .1
            .starts_with("in generation 2, which is held, too: "),
        "{}",
        refused.1
    );
}
