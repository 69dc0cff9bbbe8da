//! A worker's steps on a scripted port, and the sessions that bind schemas on it.

mod support;

use rowmill_arena::{Staging, Strip};
use rowmill_engine::{Conn, Denied, Memory};
use rowmill_port::{ConnId, Event, Service};
use rowmill_rowmilld::mailbox::Orders;
use rowmill_rowmilld::worker::PortMemory;
use rowmill_wire::limits::MAX_SCHEMAS;
use rowmill_wire::{Completion, Pooling, Schema, Status};
use support::*;

fn attached() -> Bench {
    let mut bench = Bench::new();
    bench.worker.port().attach(CONN);
    bench.settle();
    bench
}

/// Why a schema is not bound.
fn refusal(bench: &Bench, schema: Schema) -> (Status, String) {
    let outcome = bench.sessions.bind(CONN, schema);
    let (refusal, detail) = outcome.err().expect("a refusal");
    (refusal.status, detail)
}

fn statuses(records: &[Completion]) -> Vec<(u64, Status)> {
    records
        .iter()
        .map(|record| (record.request, record.status))
        .collect()
}

#[test]
fn a_lookup_is_answered_with_the_sum_of_its_rows() {
    let mut bench = attached();
    let schema = bench.bind(CONN);
    let ids = [3, 99, 3, 0];
    bench
        .worker
        .port()
        .request(0, lookup(41, schema, REGION, &ids));
    bench.settle();
    assert_eq!(statuses(&bench.records()), [(41, Status::Ok)]);
    let expected = expected(&bench.tables, &ids);
    assert_eq!(bench.worker.port().memory[..expected.len()], expected);
    assert_eq!(
        bench.figures.counters()[..2],
        [1, 1],
        "requests and completed"
    );
    assert_eq!(bench.figures.times.read().0.iter().sum::<u64>(), 1);
}

#[test]
fn a_schema_that_comes_before_its_connection_waits_for_it() {
    let mut bench = Bench::new();
    let mut pending = bench.sessions.bind(CONN, schema()).unwrap();
    bench.settle();
    assert!(!pending.is_known());
    bench.worker.port().attach(CONN);
    bench.worker.port().request(0, null(1));
    bench.settle();
    assert!(pending.is_known());
}

#[test]
fn a_schema_that_waits_for_its_connection_holds_up_no_others() {
    let mut bench = Bench::new();
    bench.worker.port().attach(OTHER);
    let waiting = bench.sessions.bind(CONN, schema()).unwrap();
    bench.settle();
    assert_eq!(bench.bind(OTHER), 0);
    // It is given up, and another one sent.
    drop(waiting);
    let mut again = bench.sessions.bind(CONN, schema()).unwrap();
    bench.settle();
    assert_eq!(bench.bind(OTHER), 1);
    assert!(!again.is_known());
    bench.worker.port().attach(CONN);
    bench.settle();
    assert!(again.is_known());
    let port = bench.worker.port();
    port.request(0, lookup(1, 0, REGION, &[1]));
    port.request(1, lookup(2, again.number(), REGION, &[1]));
    bench.settle();
    assert_eq!(
        statuses(&bench.records()),
        [(1, Status::UnknownSchema), (2, Status::Ok)]
    );
}

#[test]
fn a_schema_that_comes_after_its_connection_is_not_the_next_ones() {
    let mut bench = attached();
    bench.worker.port().event(Event::Detached { conn: CONN });
    bench.settle();
    let late = bench.sessions.bind(CONN, schema()).unwrap();
    bench.settle();
    drop(late);
    bench.sessions.gone(CONN);
    bench.worker.port().attach(CONN);
    bench.worker.port().request(0, lookup(1, 0, REGION, &[1]));
    bench.settle();
    assert_eq!(statuses(&bench.records()), [(1, Status::UnknownSchema)]);
    assert_eq!(bench.bind(CONN), 0);
}

#[test]
fn a_schema_that_finds_no_room_is_sent_later() {
    let mut bench = attached();
    bench.worker.port().attach(OTHER);
    bench.settle();
    let mut first: Vec<_> = (0..MAX_SCHEMAS)
        .map(|_| bench.sessions.bind(CONN, schema()).unwrap())
        .collect();
    let mut late = bench.sessions.bind(OTHER, schema()).unwrap();
    bench.settle();
    assert!(first.iter_mut().all(|pending| pending.is_known()));
    assert!(!late.is_known(), "the worker's mailbox was full");
    bench.settle();
    assert!(late.is_known());
}

#[test]
fn an_abandoned_schema_is_left() {
    let mut bench = attached();
    let pending = bench.sessions.bind(CONN, schema()).unwrap();
    let number = pending.number();
    drop(pending);
    bench.settle();
    bench
        .worker
        .port()
        .request(0, lookup(1, number, REGION, &[1]));
    bench.settle();
    assert_eq!(statuses(&bench.records()), [(1, Status::UnknownSchema)]);
    assert_eq!(bench.bind(CONN), number + 1, "its number is not used again");
}

#[test]
fn schemas_are_bounded_and_end_with_their_connection() {
    let mut bench = attached();
    for number in 0..MAX_SCHEMAS {
        assert_eq!(bench.bind(CONN), number);
    }
    assert_eq!(refusal(&bench, schema()).0, Status::LimitReached);
    bench.worker.port().event(Event::Detached { conn: CONN });
    bench.settle();
    bench.sessions.gone(CONN);
    bench.worker.port().attach(CONN);
    bench.settle();
    assert_eq!(bench.bind(CONN), 0);
}

#[test]
fn schemas_are_refused_with_what_is_wrong() {
    let bench = attached();
    let (missing, _) = Schema::side_by_side(8, [("f", "none", Pooling::Sum, 16)]);
    let (status, detail) = refusal(&bench, missing);
    assert_eq!(status, Status::UnknownTable);
    assert!(detail.contains("`none`"), "{detail}");
    bench.sessions.drain();
    assert_eq!(refusal(&bench, schema()).0, Status::Draining);
    assert_eq!(
        bench.sessions.welcome("late").unwrap_err().0.status,
        Status::Draining
    );
}

#[test]
fn what_clients_are_told() {
    let bench = Bench::new();
    let welcome = bench.sessions.welcome("c").unwrap();
    assert_eq!(
        (welcome.split.lanes, welcome.max_ids, welcome.model.as_str()),
        (1, 1024, "m")
    );
    let tables = bench.sessions.tables();
    assert_eq!(
        (
            tables[0].name.as_str(),
            tables[0].rows,
            tables[0].dim,
            tables[0].format
        ),
        ("t", 100, 16, 0)
    );
}

#[test]
fn a_slot_used_twice_cuts_the_connection_off() {
    let mut bench = attached();
    let schema = bench.bind(CONN);
    for number in 0..2 {
        bench
            .worker
            .port()
            .request(5, lookup(number, schema, REGION, &[1]));
    }
    bench.settle();
    assert_eq!(bench.worker.port().closed, [(CONN, Status::Malformed)]);
}

#[test]
fn a_poll_is_bounded_whatever_waits() {
    let mut bench = attached();
    for number in 0..100 {
        bench.worker.port().request(number as u16 % 8, null(number));
    }
    let stepped = bench.worker.step(1);
    assert!((1..=32).contains(&stepped.events), "{stepped:?}");
    assert_eq!(bench.worker.port().waiting(), 100 - stepped.events as usize);
    bench.settle();
    assert_eq!(bench.records().len(), 100);
}

#[test]
fn regions_given_up_and_cancels_end_requests() {
    let mut bench = attached();
    let number = bench.bind(CONN);
    let port = bench.worker.port();
    port.request(0, lookup(1, number, REGION, &[1]));
    port.event(Event::Cancel {
        conn: CONN,
        slot: 0,
    });
    port.event(Event::Cancel {
        conn: CONN,
        slot: 7,
    });
    port.request(1, lookup(2, number, REGION, &[1]));
    port.event(Event::RegionGone {
        conn: CONN,
        region: REGION,
    });
    bench.settle();
    assert_eq!(
        statuses(&bench.records()),
        [(1, Status::Cancelled), (2, Status::UnknownRegion)]
    );
}

#[test]
fn draining_finishes_what_is_in_progress_and_refuses_the_rest() {
    let mut bench = attached();
    let number = bench.bind(CONN);
    let frame = lookup(1, number, REGION, &[1; 900]);
    bench.worker.port().request(0, frame.clone());
    bench.worker.step(1);
    bench.mailbox.order(Orders::Drain);
    bench
        .worker
        .port()
        .request(1, lookup(2, number, REGION, &[1]));
    bench.settle();
    let mut outcomes = statuses(&bench.records());
    outcomes.sort();
    assert_eq!(outcomes, [(1, Status::Ok), (2, Status::Draining)]);
    assert!(bench.figures.is_drained());
}

#[test]
fn region_errors_become_the_engines_statuses() {
    let mut port = ScriptedPort::new();
    let mut memory = PortMemory::new(&mut port);
    let conn = Conn(ConnId(0).0);
    let cases = [
        (REGION.0, 0, Status::Ok, Status::Ok),
        (
            REGION.0,
            4090,
            Status::SegmentOutOfRegion,
            Status::TargetOutOfRegion,
        ),
        (
            REGION.0,
            u64::MAX,
            Status::SegmentOutOfRegion,
            Status::TargetOutOfRegion,
        ),
        (LOST.0, 0, Status::RegionLost, Status::RegionLost),
        (9, 0, Status::UnknownRegion, Status::UnknownRegion),
    ];
    for (region, offset, read, target) in cases {
        let outcome = memory.read(conn, 0, region, offset, &mut [0; 8]);
        assert_eq!(
            outcome.err().unwrap_or(Status::Ok),
            read,
            "reading region {region} at {offset}"
        );
        let outcome = memory.check(conn, region, offset, 8);
        let strip = Strip {
            offset,
            bytes: 8,
            stride: 8,
            count: 1,
        };
        assert_eq!(
            outcome.err().unwrap_or(Status::Ok),
            target,
            "storing to region {region} at {offset}"
        );
        match memory.stage(conn, region, &[strip]) {
            Ok(staging) => {
                assert_eq!(memory.window(conn, region, &staging).unwrap().len(), 8);
                memory.unstage(conn, region, staging);
            }
            Err(denied) => assert_eq!(denied, Denied::Refused(target)),
        }
    }
    let nowhere = Staging::in_place(&[Strip {
        offset: 0,
        bytes: 8,
        stride: 8,
        count: 1,
    }]);
    let placed = memory.place(conn, LOST.0, nowhere.unwrap(), &[]);
    assert_eq!(placed, Err(Status::RegionLost));
}
