//! Sides that are configured differently, and clients that come at a bad moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rowmill_port::conformance::{Answers, Bench, Harness, Setup, Task, patience, pattern};
use rowmill_port::rdma::{
    ConnectionParameters, PathMtu, RdmaClient, RdmaConfig, RdmaLane, RdmaServer,
};
use rowmill_port::{Backoff, ClientPort, Event, Idle, Lost, PortError, ServerPort};
use rowmill_wire::Status;
use rowmill_wire::limits::SLOT_BYTES;

use super::harness::{Rdma, address, client_config, has_device, server_config};

/// A server whose packets have at most 512 bytes.
struct SmallPackets(Rdma);

/// A client whose packets have.
struct SmallPacketsOfClient(Rdma);

fn listen(config: RdmaConfig) -> (RdmaServer, RdmaLane) {
    let asked = format!("rdma://{}:0", address().expect("a device"));
    let service = Arc::new(Answers::new(config.lanes));
    let (server, mut lanes) = RdmaServer::listen(&asked, config, service).expect("a server");
    (server, lanes.remove(0))
}

fn small(config: &mut ConnectionParameters) {
    config.path_mtu = Some(PathMtu::Bytes512);
}

impl Harness for SmallPackets {
    type Client = RdmaClient;

    fn start(setup: Setup) -> SmallPackets {
        let mut config = server_config();
        small(&mut config.connection);
        SmallPackets(Rdma::start_with(setup, config))
    }

    fn connect(&mut self, name: &str, credits: u16) -> Result<RdmaClient, PortError> {
        self.0.connect(name, credits)
    }

    fn run(&mut self) {
        self.0.run();
    }

    fn stop_server(&mut self) {
        self.0.stop_server();
    }
}

impl Harness for SmallPacketsOfClient {
    type Client = RdmaClient;

    fn start(setup: Setup) -> SmallPacketsOfClient {
        SmallPacketsOfClient(Rdma::start_with(setup, server_config()))
    }

    fn connect(&mut self, name: &str, credits: u16) -> Result<RdmaClient, PortError> {
        let mut config = client_config(credits);
        small(&mut config.connection);
        RdmaClient::connect_with(&self.0.endpoint, name, config)
    }

    fn run(&mut self) {
        self.0.run();
    }

    fn stop_server(&mut self) {
        self.0.stop_server();
    }
}

/// Frames and results of many packets, and request data that are read.
fn messages_of_many_packets<H: Harness<Client = RdmaClient>>() {
    const LEN: usize = 10_000;
    let mut bench = Bench::<H>::start(1);
    let mut client = bench.client("one", 2);
    assert_eq!(bench.ask(&mut client, 0, &Task::Echo).status, Status::Ok);
    let frame = Task::echo(5000, 7);
    client.submit(0, 0, &frame).expect("open");
    assert_eq!(bench.record(&mut client, 0).status, Status::Ok);
    let region = client.register(LEN).expect("a region");
    let fill = Task::Fill {
        region: region.0,
        offset: 0,
        len: LEN as u64,
        seed: 3,
        slices: 1,
    };
    assert_eq!(bench.ask(&mut client, 0, &fill).status, Status::Ok);
    let (mut stored, mut wanted) = (vec![0; LEN], vec![0; LEN]);
    client.memory(region).expect("its own").read(0, &mut stored);
    pattern(3, &mut wanted);
    assert!(stored == wanted);
    let source = client.register_source(LEN).expect("a region");
    let copy = Task::Copy {
        from: source.0,
        offset: 0,
        len: 4096,
        to: region.0,
        to_offset: 0,
    };
    assert_eq!(bench.ask(&mut client, 0, &copy).status, Status::Ok);
}

#[test]
fn packets_are_as_small_as_the_server_wants() {
    if has_device() {
        messages_of_many_packets::<SmallPackets>();
    }
}

#[test]
fn packets_are_as_small_as_the_client_wants() {
    if has_device() {
        messages_of_many_packets::<SmallPacketsOfClient>();
    }
}

/// As many clients as the device's completion queues have room for: one that leaves makes room at once, though its worker has
/// gone to sleep.
#[test]
fn who_leaves_makes_room_at_once() {
    if !has_device() {
        return;
    }
    // 15 times 68 completions: of 1023 that a queue has 3 are left.
    let config = RdmaConfig {
        max_connections: 15,
        credits: 1,
        ..server_config()
    };
    let (server, mut lane) = listen(config);
    let (waker, stop) = (lane.waker(), Arc::new(AtomicBool::new(false)));
    let stopped = stop.clone();
    let worker = thread::spawn(move || {
        let mut frame = [0; SLOT_BYTES];
        while !stopped.load(Ordering::SeqCst) {
            while lane.poll(&mut frame).is_some() {}
            lane.idle(Idle::Sleep(None));
        }
    });
    let connect = || RdmaClient::connect_with(&server.endpoint(), "one", client_config(1));
    let crowd: Result<Vec<_>, _> = (0..14).map(|_| connect()).collect();
    let mut outcome = crowd.as_ref().map(|_| ()).map_err(ToString::to_string);
    for _ in 0..4 {
        outcome = outcome.and(connect().map(drop).map_err(|error| error.to_string()));
        let since = Instant::now();
        while server.counters().sessions > 14 {
            assert!(since.elapsed() < patience(), "it has gone");
            thread::sleep(Duration::from_millis(1));
        }
    }
    stop.store(true, Ordering::SeqCst);
    waker.wake();
    worker.join().expect("no panic");
    outcome.expect("each finds room");
}

/// Nobody polls the queue, so that there is no room for another lane: the client is told that.
#[test]
fn who_finds_no_room_is_told_so() {
    if !has_device() {
        return;
    }
    let config = RdmaConfig {
        max_connections: 15,
        credits: 1,
        ..server_config()
    };
    let (server, mut lane) = listen(config);
    let connect = || RdmaClient::connect_with(&server.endpoint(), "one", client_config(1));
    let crowd: Result<Vec<_>, _> = (0..14).map(|_| connect()).collect();
    let _crowd = crowd.expect("room");
    drop(connect().expect("room"));
    let (mut frame, since) = ([0; SLOT_BYTES], Instant::now());
    while !matches!(lane.poll(&mut frame), Some(Event::Detached { .. })) {
        assert!(since.elapsed() < patience(), "it ends");
        thread::yield_now();
    }
    lane.poll(&mut frame); // It has let go.
    while server.counters().sessions > 14 {
        assert!(since.elapsed() < patience(), "it has gone");
        thread::sleep(Duration::from_millis(1));
    }
    match connect() {
        Ok(_) => println!("this device's queues have more room than was asked for"),
        Err(PortError::Lost {
            what: Lost::CutOff(Status::LimitReached),
        }) => (),
        Err(other) => panic!("{other}"),
    }
}

/// Who is not fast enough to open its lanes is told something that connecting again helps against.
#[test]
fn who_is_too_slow_may_try_again() {
    if !has_device() {
        return;
    }
    let mut seen = Vec::new();
    for limit in [1, 2, 3, 5, 8, 12, 18, 27, 40, 60, 90, 130, 200, 300, 450] {
        let config = RdmaConfig {
            lanes: 4,
            handshake_limit: Duration::from_millis(limit),
            ..server_config()
        };
        let (server, _lane) = listen(config);
        for _ in 0..4 {
            match RdmaClient::connect_with(&server.endpoint(), "slow", client_config(1)) {
                Ok(_) => println!("{limit} ms: connected"),
                Err(error) => {
                    println!("{limit} ms: {error}");
                    seen.push((limit, Backoff::helps(&error), error.to_string()));
                }
            }
        }
    }
    let finals: Vec<_> = seen.iter().filter(|(_, helps, _)| !helps).collect();
    assert!(finals.is_empty(), "{finals:?}");
}
