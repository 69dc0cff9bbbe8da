//! Work that is posted and never completes, where the device does not say so: the server's own limit.

use std::thread;
use std::time::{Duration, Instant};

use rowmill_port::conformance::{Bench, Harness, Setup, Task};
use rowmill_port::rdma::{AckTimeout, ConnectionParameters, RdmaClient, RdmaConfig};
use rowmill_port::{ClientPort, PortError};
use rowmill_wire::Status;

use super::ends::{bound, end_of, fill};
use super::harness::{Rdma, client_config, connection, has_device, server_config, slowness};

/// How long a server of these tests waits for what it has posted.
fn limit() -> Duration {
    Duration::from_millis(500) * slowness()
}

/// A server whose device goes on trying for quarters of an hour.
struct Patient(Rdma);

impl Harness for Patient {
    type Client = RdmaClient;

    fn start(setup: Setup) -> Patient {
        let config = RdmaConfig {
            connection: ConnectionParameters {
                ack_timeout: AckTimeout::new(25).expect("in range"),
                ..connection()
            },
            overdue_limit: Some(limit()),
            ..server_config()
        };
        Patient(Rdma::start_with(setup, config))
    }

    fn connect(&mut self, name: &str, credits: u16) -> Result<RdmaClient, PortError> {
        RdmaClient::connect_with(&self.0.endpoint, name, client_config(credits))
    }

    fn run(&mut self) {
        self.0.run();
    }

    fn stop_server(&mut self) {
        self.0.stop_server();
    }
}

/// A client whose lane dies without a word, while the worker has `task` of its to do.
fn dies_silently(task: impl Fn(&mut RdmaClient) -> Task) {
    let mut bench = Bench::<Patient>::start(1);
    let counters = |bench: &Bench<Patient>| {
        let server = bench.harness.0.server.as_ref().expect("it runs");
        server.counters()
    };
    let mut innocent = bench.client("innocent", 4);
    assert_eq!(bench.ask(&mut innocent, 0, &Task::Echo).status, Status::Ok);
    let beside = Task::Fill {
        region: innocent.register(4096).expect("a region").0,
        offset: 0,
        len: 4096,
        seed: 1,
        slices: 1,
    };
    let since = Instant::now();
    while counters(&bench).regions != 1 {
        assert!(since.elapsed() < bound(), "the region is counted");
        thread::sleep(Duration::from_millis(1));
    }
    let start = counters(&bench);
    let mut client = bench.client("dies", 4);
    let task = task(&mut client);
    assert_eq!(bench.ask(&mut client, 0, &Task::Echo).status, Status::Ok);
    // The worker takes notice after the first request; the second one waits until the lane is dead.
    bench.journals[0].pause(true);
    client.submit(0, 0, &Task::Echo.frame()).expect("open");
    thread::sleep(Duration::from_millis(50) * slowness());
    for slot in 1..4 {
        client.submit(0, slot, &task.frame()).expect("open");
    }
    thread::sleep(Duration::from_millis(50) * slowness());
    client.raw_fail(0).expect("a lane");
    bench.journals[0].pause(false);
    let since = Instant::now();
    let now = |bench: &Bench<Patient>| {
        let now = counters(bench);
        (now.sessions, now.queue_pairs, now.regions, now.blocks_free)
    };
    let before = (
        start.sessions,
        start.queue_pairs,
        start.regions,
        start.blocks_free,
    );
    let mut answers = 0;
    while now(&bench) != before {
        assert!(
            since.elapsed() < limit() + bound(),
            "{:?}",
            counters(&bench)
        );
        // In its turn, whatever the other one holds.
        assert_eq!(bench.ask(&mut innocent, 0, &beside).status, Status::Ok);
        answers += 1;
    }
    println!(
        "given up after {:?}, beside {answers} answers",
        since.elapsed()
    );
    assert!(answers > 0, "nobody was served beside it");
    assert_eq!(counters(&bench).lost, start.lost + 1);
    let (error, _) = end_of(&mut client, bound());
    assert!(matches!(error, PortError::Lost { .. }), "{error}");
    assert_eq!(bench.ask(&mut innocent, 0, &Task::Echo).status, Status::Ok);
}

#[test]
fn writes_that_never_complete_end_the_connection() {
    if has_device() {
        dies_silently(|client| fill(client.register(1 << 18).expect("a region"), 1 << 18));
    }
}

#[test]
fn reads_that_never_complete_end_the_connection() {
    if has_device() {
        dies_silently(|client| {
            let (from, to) = (client.register_source(1 << 16), client.register(1 << 16));
            Task::Copy {
                from: from.expect("a region").0,
                offset: 0,
                len: 1 << 16,
                to: to.expect("a region").0,
                to_offset: 0,
            }
        });
    }
}

/// Requests that take longer than the limit are not overdue work: nothing is on its way while they wait.
#[test]
fn slow_requests_are_not_overdue() {
    if !has_device() {
        return;
    }
    let mut bench = Bench::<Patient>::start(1);
    let mut client = bench.client("slow", 4);
    client.submit(0, 0, &Task::Hold.frame()).expect("open");
    let since = Instant::now();
    while since.elapsed() < 3 * limit() {
        assert!(client.poll(0).expect("open").is_none());
        thread::sleep(Duration::from_millis(5));
    }
    client.cancel(0, 0).expect("open");
    assert_eq!(bench.record(&mut client, 0).status, Status::Cancelled);
}
