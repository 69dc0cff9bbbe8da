//! Hundreds of connections, nearly all of them idle.

use std::sync::atomic::Ordering;
use std::time::Instant;

use rowmill_port::conformance::{Bench, Harness, Setup, Task, pattern};
use rowmill_port::rdma::RdmaClient;
use rowmill_port::{ClientPort, PortError, RegionId};
use rowmill_wire::Status;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::harness::{Rdma, client_config, has_device, server_config};

/// Connections that have nothing to do, beside one that has.
const IDLE: u16 = 255;
/// Requests by which the cost of one is measured.
const REQUESTS: u64 = 200;
const LEN: usize = 10_000;

/// A server that takes hundreds of clients.
struct Crowd(Rdma);

impl Harness for Crowd {
    type Client = RdmaClient;

    fn start(setup: Setup) -> Crowd {
        let setup = Setup {
            max_connections: IDLE + 1,
            credits: 2,
            ..setup
        };
        Crowd(Rdma::start_with(setup, server_config()))
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

/// Serves requests of one client and compares what they bring; how often the worker looked at any connection for that.
fn looks_for_requests(bench: &mut Bench<Crowd>, client: &mut RdmaClient, region: RegionId) -> u64 {
    let looks = bench.harness.0.looks[0].clone();
    let before = looks.load(Ordering::Relaxed);
    for number in 0..REQUESTS {
        let task = Task::Fill {
            region: region.0,
            offset: 0,
            len: LEN as u64,
            seed: number,
            slices: 1,
        };
        assert_eq!(bench.ask(client, 0, &task).status, Status::Ok);
        if number % 20 == 0 {
            let (mut stored, mut wanted) = (vec![0; LEN], vec![0; LEN]);
            client.memory(region).expect("its own").read(0, &mut stored);
            pattern(number, &mut wanted);
            assert!(stored == wanted, "request {number}");
        }
    }
    looks.load(Ordering::Relaxed) - before
}

/// A worker looks at connections that have something to do, and at no others: with hundreds of idle ones a request costs it
/// as many looks as with none. (The table of connections can not be gone through without being counted.)
#[test]
fn idle_connections_cost_a_poll_nothing() {
    if !has_device() {
        return;
    }
    // Each client has descriptors of its own.
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).expect("the limit that is allowed");
    let mut bench = Bench::<Crowd>::start(1);
    let counters = |bench: &Bench<Crowd>| {
        let server = bench.harness.0.server.as_ref().expect("it runs");
        server.counters()
    };
    let mut active = bench.client("active", 2);
    let region = active.register(LEN).expect("a region");
    let alone = looks_for_requests(&mut bench, &mut active, region);
    let start = counters(&bench);
    let since = Instant::now();
    let mut crowd: Vec<RdmaClient> = Vec::new();
    for _ in 0..IDLE {
        let mut client = bench.client("idle", 2);
        assert_eq!(bench.ask(&mut client, 0, &Task::Echo).status, Status::Ok);
        crowd.push(client);
    }
    println!("{IDLE} clients connected in {:?}", since.elapsed());
    let among = looks_for_requests(&mut bench, &mut active, region);
    println!(
        "looks at connections for {REQUESTS} requests: {alone} alone, {among} beside {IDLE} idle clients"
    );
    // How completions fall together varies a little; one look at each idle connection for each request would be 255 more.
    assert!(among <= alone + 2 * REQUESTS, "{among} instead of {alone}");
    // One more is refused, with a reason.
    match bench.harness.connect("one more", 2) {
        Err(PortError::Refused { refusal, .. }) => {
            assert_eq!(refusal.status, Status::LimitReached);
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("there is no room"),
    }
    // All of them are still served.
    for client in &mut crowd {
        assert_eq!(bench.ask(client, 0, &Task::Echo).status, Status::Ok);
    }
    drop(crowd);
    let answers = bench.answers.clone();
    bench.until("the end of the crowd", || {
        answers.gone().len() == usize::from(IDLE)
    });
    assert_eq!(bench.ask(&mut active, 0, &Task::Echo).status, Status::Ok);
    let end = counters(&bench);
    let now = |c: &rowmill_port::rdma::RdmaCounters| (c.queue_pairs, c.regions, c.blocks_free);
    assert_eq!(now(&end), now(&start));
}
