//! Processes that die or stop: what the other side says of it, how soon, and that nothing is written afterwards.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rowmill_port::conformance::{Bench, Harness, Task, pattern};
use rowmill_port::rdma::{RdmaClient, RdmaClientConfig};
use rowmill_port::{ClientPort, Lost, PortError, RegionId};
use rowmill_wire::Status;
use rustix::process::{Pid, Signal, kill_process};

use super::harness::{Rdma, client_config, has_device, slowness};

/// What a process of these tests is: nothing but in those that are started for it.
#[test]
fn another_process() {
    match std::env::var("ROWMILL_RDMA_ROLE").as_deref() {
        Ok("server") => {
            let bench = Bench::<Rdma>::start(1);
            println!("\nendpoint {}", bench.harness.endpoint);
            loop {
                thread::park();
            }
        }
        Ok("exporter") => super::remote::export(),
        Ok(endpoint) => {
            let mut client =
                RdmaClient::connect_with(endpoint, "brief", client_config(4)).expect("a client");
            let region = client.register(1 << 20).expect("a region");
            println!("\nendpoint {endpoint}");
            loop {
                for slot in 0..4 {
                    client
                        .submit(0, slot, &fill(region, 1 << 18).frame())
                        .expect("open");
                }
                let mut left = 4 * 16;
                while left > 0 {
                    left -= i32::from(client.poll(0).expect("open").is_some());
                }
            }
        }
        Err(_) => (),
    }
}

pub(super) fn fill(region: RegionId, len: u64) -> Task {
    Task::Fill {
        region: region.0,
        offset: 0,
        len,
        seed: 1,
        slices: 16,
    }
}

/// A process that is killed when the test ends.
struct Other(Child);

impl Other {
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.0.id() as i32).expect("a process");
        kill_process(pid, signal).expect("a signal");
    }

    fn kill(mut self) {
        self.0.kill().expect("a signal");
        self.0.wait().expect("it has ended");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill(); // It may have ended.
        let _ = self.0.wait();
    }
}

/// Starts a process; the endpoint that it says.
fn start(role: &str) -> (Other, String) {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program)
        .args(["--exact", "ends::another_process", "--nocapture"])
        .env("ROWMILL_RDMA_ROLE", role)
        .stdout(Stdio::piped())
        .spawn()
        .map(Other)
        .expect("a process");
    let output = child.0.stdout.take().expect("piped");
    for line in BufReader::new(output).lines() {
        let line = line.expect("a line");
        if let Some(endpoint) = line.strip_prefix("endpoint ") {
            return (child, endpoint.to_owned());
        }
    }
    panic!("the process has ended");
}

/// A client of another process's server, with a region.
pub(super) fn client_of(endpoint: &str) -> (RdmaClient, RegionId) {
    let mut client =
        RdmaClient::connect_with(endpoint, "survivor", client_config(4)).expect("a client");
    let region = client.register(1 << 20).expect("a region");
    (client, region)
}

/// Polls until the connection has ended.
pub(super) fn end_of(client: &mut RdmaClient, bound: Duration) -> (PortError, Duration) {
    let since = Instant::now();
    loop {
        match client.poll(0) {
            Err(error) => return (error, since.elapsed()),
            Ok(_) => client
                .wait(Some(Duration::from_millis(10)))
                .expect("a wait"),
        }
        assert!(since.elapsed() < bound, "the end of the connection");
    }
}

/// Two seconds, as many times longer as the machine is slow.
pub(super) fn bound() -> Duration {
    Duration::from_secs(2) * slowness().max(1)
}

#[test]
fn a_server_that_is_killed_is_lost() {
    if !has_device() {
        return;
    }
    let (server, endpoint) = start("server");
    let (mut client, region) = client_of(&endpoint);
    client
        .submit(0, 0, &fill(region, 1 << 20).frame())
        .expect("open");
    server.kill();
    let (error, took) = end_of(&mut client, bound());
    println!("{error} after {took:?}");
    assert!(matches!(error, PortError::Lost { .. }), "{error}");
    assert!(client.memory(region).is_some(), "its memory is still there");
    assert!(matches!(
        client.submit(0, 1, &[0]),
        Err(PortError::Lost { .. })
    ));
}

/// A server that stops goes on acknowledging. Once the client has given it up nothing is written any more, also after the
/// server has gone on.
#[test]
fn a_server_that_stops_is_fenced() {
    if !has_device() {
        return;
    }
    let (server, endpoint) = start("server");
    let (mut client, region) = client_of(&endpoint);
    for slot in 0..4 {
        client
            .submit(0, slot, &fill(region, 1 << 20).frame())
            .expect("open");
    }
    server.signal(Signal::STOP);
    let limit = client_config(4).silent_limit;
    let (error, took) = end_of(&mut client, limit + bound());
    println!("{error} after {took:?}");
    match error {
        PortError::Lost { what } => assert_eq!(what, Lost::PeerSilent),
        other => panic!("{other}"),
    }
    let mut bytes = vec![0; 1 << 20];
    pattern(99, &mut bytes);
    client.memory(region).expect("its own").write(0, &bytes);
    server.signal(Signal::CONT);
    thread::sleep(Duration::from_secs(2));
    let mut now = vec![0; 1 << 20];
    client.memory(region).expect("its own").read(0, &mut now);
    assert!(now == bytes, "nothing was written after the end");
    // Another connection, with the same memory in other hands.
    let (mut again, region) = client_of(&endpoint);
    again.submit(0, 0, &Task::Echo.frame()).expect("open");
    while again.poll(0).expect("open").is_none() {}
    assert!(again.memory(region).is_some());
    server.kill();
}

/// A worker that hangs, in a process that lives: its clients give it up too.
#[test]
fn a_worker_that_hangs_is_noticed() {
    if !has_device() {
        return;
    }
    let mut bench = Bench::<Rdma>::start(2);
    let mut client = bench.client("waits", 4);
    thread::sleep(Duration::from_millis(600));
    assert_eq!(bench.ask(&mut client, 1, &Task::Echo).status, Status::Ok);
    bench.journals[1].pause(true);
    // It takes notice at its next turn; then it neither polls nor sleeps.
    client.submit(1, 0, &Task::Echo.frame()).expect("open");
    client.submit(1, 1, &Task::Echo.frame()).expect("open");
    let limit = client_config(4).silent_limit;
    let (error, took) = end_of(&mut client, limit + bound());
    println!("{error} after {took:?}");
    match error {
        PortError::Lost { what } => assert_eq!(what, Lost::PeerSilent),
        other => panic!("{other}"),
    }
    bench.journals[1].pause(false);
    let mut again = bench.client("again", 4);
    assert_eq!(bench.ask(&mut again, 1, &Task::Echo).status, Status::Ok);
}

/// A server that is stopped answers no request to connect, and its host does not refuse it either.
#[test]
fn connecting_has_a_deadline() {
    if !has_device() {
        return;
    }
    let (server, endpoint) = start("server");
    server.signal(Signal::STOP);
    let since = Instant::now();
    let config = RdmaClientConfig {
        connect_limit: Duration::from_millis(500),
        ..client_config(4)
    };
    match RdmaClient::connect_with(&endpoint, "early", config) {
        Err(error @ PortError::Connect { .. }) => println!("{error} after {:?}", since.elapsed()),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("a stopped server lets nobody in"),
    }
    assert!(since.elapsed() < bound());
    // It lets in who comes later.
    server.signal(Signal::CONT);
    let (mut client, _) = client_of(&endpoint);
    client.submit(0, 0, &Task::Echo.frame()).expect("open");
    while client.poll(0).expect("open").is_none() {}
    server.kill();
}

#[test]
fn a_client_that_is_killed_leaves_nothing() {
    if !has_device() {
        return;
    }
    let mut bench = Bench::<Rdma>::start(1);
    let start_of = bench.harness.server.as_ref().expect("it runs").counters();
    let mut innocent = bench.harness.connect("innocent", 4).expect("a client");
    for round in 1..=2 {
        let (child, _) = start(&bench.harness.endpoint.clone());
        assert_eq!(bench.ask(&mut innocent, 0, &Task::Echo).status, Status::Ok);
        child.kill();
        let since = Instant::now();
        let answers = bench.answers.clone();
        bench.until("the end of the connection", || {
            answers.gone().len() == round
        });
        println!("gone after {:?}", since.elapsed());
        assert!(since.elapsed() < bound());
        assert_eq!(bench.ask(&mut innocent, 0, &Task::Echo).status, Status::Ok);
    }
    let now = bench.harness.server.as_ref().expect("it runs").counters();
    assert_eq!((now.sessions, now.queue_pairs, now.regions), (1, 2, 0));
    assert_eq!(now.blocks_free, start_of.blocks_free);
}
