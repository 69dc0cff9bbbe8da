//! After start-up a worker's steps take no memory, whatever the clients send.

mod support;

use rowmill_engine::Side;
use rowmill_port::Event;
use rowmill_rowmilld::turnover::Stage;
use rowmill_wire::Status;
use support::*;

#[test]
fn steps_take_no_memory() {
    let mut bench = Bench::new();
    bench.worker.port().attach(CONN);
    bench.settle();
    let number = bench.bind(CONN);
    for round in 0..3 {
        let port = bench.worker.port();
        port.request(0, lookup(0, number, REGION, &[1, 2, 3]));
        port.request(1, lookup(1, number, REGION, &[7; 1000]));
        port.request(2, lookup(2, number, LOST, &[1]));
        port.request(3, lookup(3, number, REGION, &[ROWS]));
        port.request(4, lookup(4, number + 1, REGION, &[1]));
        port.request(5, null(5));
        port.request(6, vec![0xff; 100]);
        for slot in 2..8 {
            port.request(slot, lookup(10, number, REGION, &[5; 900]));
        }
        port.event(Event::Cancel {
            conn: CONN,
            slot: 0,
        });
        port.completions.clear();
        let taken = allocation_counter::measure(|| bench.settle());
        assert_eq!(
            taken.count_total, 0,
            "allocations in round {round}: {taken:?}"
        );
        let statuses: Vec<Status> = bench
            .worker
            .port()
            .completions
            .iter()
            .map(|r| r.status)
            .collect();
        for status in [
            Status::Ok,
            Status::Busy,
            Status::Cancelled,
            Status::RegionLost,
            Status::Malformed,
        ] {
            assert!(statuses.contains(&status), "{status} is among {statuses:?}");
        }
    }
}

#[test]
fn generations_are_changed_without_memory() {
    let mut bench = Bench::new();
    bench.worker.port().attach(CONN);
    bench.settle();
    let number = bench.bind(CONN);
    let second = generation(2, DIM);
    let prepared = bench.sessions.prepare(Side::B, &second).unwrap();
    let stages = [
        (Side::B, Stage::Prepare(2)),
        (Side::B, Stage::Bind(prepared.also.into())),
        (Side::B, Stage::Switch),
        (Side::A, Stage::Switch),
        (Side::B, Stage::Release),
    ];
    for (side, stage) in stages {
        let port = bench.worker.port();
        port.request(0, lookup(1, number, REGION, &[7; 1000]));
        port.completions.clear();
        let told = bench.tell(side, stage);
        let taken = allocation_counter::measure(|| bench.settle());
        assert_eq!((taken.count_total, taken.count_current), (0, 0), "{told:?}");
        assert!(told.is_done());
        assert_eq!(bench.worker.port().completions[0].status, Status::Ok);
    }
}

#[test]
fn the_counter_counts() {
    let taken = allocation_counter::measure(|| drop(std::hint::black_box(vec![1])));
    assert_eq!(taken.count_total, 1);
}
