//! A dataplane on another machine, and a link that fails. The lab's scenario `pair-port` starts the dataplane, says by
//! `ROWMILL_RDMA_ENDPOINT` where it is, and by `ROWMILL_LAB_NETDEV` which link may be made to fail.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rowmill_port::Backoff;
use rowmill_port::conformance::{Task, patience, pattern};
use rowmill_port::rdma::RdmaClient;
use rowmill_port::rdma::remote::ReaderPhase;
use rowmill_port::{ClientPort, PortError};
use rowmill_wire::Status;

use super::ends::{bound, client_of, end_of, fill};
use super::harness::{client_config, connection};
use super::remote::Reading;

/// Where the other machine's dataplane is; says so where there is none.
fn endpoint() -> Option<String> {
    let found = std::env::var("ROWMILL_RDMA_ENDPOINT").ok();
    if found.is_none() {
        println!("skipped: no other machine (make test-rxe FILTER=pair-port)");
    }
    found
}

/// Loses all that this machine sends, or nothing any more. (Taking the network device down would do more on soft-RoCE:
/// its queue pair for connecting fails with the first message that can't be sent, and stays so.)
fn lose(all: bool) {
    let device = std::env::var("ROWMILL_LAB_NETDEV").expect("the link that may fail");
    let mut tc = Command::new("tc");
    match all {
        true => tc.args([
            "qdisc", "replace", "dev", &device, "root", "netem", "loss", "100%",
        ]),
        false => tc.args(["qdisc", "del", "dev", &device, "root"]),
    };
    assert!(tc.status().expect("the command tc").success());
}

/// Asks for nothing and waits for the answer.
fn echo(client: &mut RdmaClient) {
    client.submit(0, 3, &Task::Echo.frame()).expect("open");
    let since = Instant::now();
    loop {
        if let Some(record) = client.poll(0).expect("open") {
            assert_eq!(record.status, Status::Ok);
            return;
        }
        assert!(since.elapsed() < patience(), "a record");
    }
}

/// Connects as often as it takes; how long that was, and how many attempts.
fn connect(endpoint: &str) -> (RdmaClient, Duration, u32) {
    let (since, mut backoff) = (Instant::now(), Backoff::default());
    for attempt in 1.. {
        match RdmaClient::connect_with(endpoint, "again", client_config(4)) {
            Ok(client) => return (client, since.elapsed(), attempt),
            Err(error) => {
                println!("attempt {attempt} after {:?}: {error}", since.elapsed());
                assert!(Backoff::helps(&error), "{error}");
            }
        }
        assert!(since.elapsed() < patience(), "a connection");
        thread::sleep(backoff.delay(Instant::now()));
    }
    unreachable!("attempts are counted for a long time")
}

#[test]
fn a_link_that_fails_is_noticed_and_fenced() {
    let Some(endpoint) = endpoint() else { return };
    let (mut client, region) = client_of(&endpoint);
    echo(&mut client);
    for slot in 0..3 {
        client
            .submit(0, slot, &fill(region, 1 << 20).frame())
            .expect("open");
    }
    lose(true);
    let limit = client_config(4).silent_limit + connection().overdue();
    let (error, took) = end_of(&mut client, limit + bound());
    println!("{error} after {took:?}");
    assert!(matches!(error, PortError::Lost { .. }), "{error}");
    let mut bytes = vec![0; 1 << 20];
    pattern(7, &mut bytes);
    client.memory(region).expect("its own").write(0, &bytes);
    // What the dataplane sends still comes here, until it has given up.
    thread::sleep(connection().overdue() / 2);
    lose(false);
    let (mut again, took, attempts) = connect(&endpoint);
    println!("connected again after {took:?}, {attempts} attempts");
    echo(&mut again);
    thread::sleep(Duration::from_secs(1));
    let mut now = vec![0; 1 << 20];
    client.memory(region).expect("its own").read(0, &mut now);
    assert!(now == bytes, "nothing was written after the end");
}

/// Runs until its machine is reset.
#[test]
fn a_session_that_is_cut() {
    let Some(endpoint) = endpoint() else { return };
    let Ok(mark) = std::env::var("ROWMILL_RDMA_MARK") else {
        println!("skipped: nobody resets this machine");
        return;
    };
    let (mut client, region) = client_of(&endpoint);
    echo(&mut client);
    std::fs::write(mark, "connected").expect("a file for the scenario");
    loop {
        client
            .submit(0, 0, &fill(region, 1 << 20).frame())
            .expect("open");
        let mut left = 16;
        while left > 0 {
            left -= i32::from(client.poll(0).expect("open").is_some());
        }
    }
}

/// After a restart of this machine the dataplane may take a new connection for the old one.
#[test]
fn a_machine_that_was_reset_connects_again() {
    let Some(endpoint) = endpoint() else { return };
    let (mut client, took, attempts) = connect(&endpoint);
    println!("connected after {took:?}, {attempts} attempts");
    assert!(took < bound() * 5);
    echo(&mut client);
}

#[test]
fn a_server_that_is_killed_far_away_is_lost() {
    let Some(endpoint) = endpoint() else { return };
    let Ok(mark) = std::env::var("ROWMILL_RDMA_MARK") else {
        println!("skipped: nobody kills the dataplane");
        return;
    };
    let (mut client, _) = client_of(&endpoint);
    echo(&mut client);
    std::fs::write(mark, "kill it").expect("a file for the scenario");
    let (error, took) = end_of(&mut client, patience());
    println!("{error} after {took:?} from the order to kill it");
    assert!(matches!(error, PortError::Lost { .. }), "{error}");
}

/// Reads rows until that ends; why, as the reader says, and how long it took.
fn read_to_the_end(reading: &mut Reading) -> (String, Duration) {
    let since = Instant::now();
    while reading.read(0, 1, 64).0 {
        assert!(since.elapsed() < patience(), "READs succeed from nobody");
    }
    let took = since.elapsed();
    let state = reading.wait_for("lost", |state| state.phase == ReaderPhase::Apart);
    (state.why, took)
}

/// READs are on their way when the link fails; none brings a wrong row, and rows come again when it is back.
#[test]
fn an_exporter_out_of_reach_is_noticed_amid_reads() {
    let Some(endpoint) = endpoint() else { return };
    let mut reading = Reading::far(&endpoint);
    reading.is_connected();
    assert!(reading.read(0, 1, 500).0);
    lose(true);
    let (why, took) = read_to_the_end(&mut reading);
    println!("{why} after {took:?} without a link");
    lose(false);
    let since = Instant::now();
    let state = reading.is_connected();
    println!("connected again after {:?}", since.elapsed());
    assert_eq!((state.connected, state.lost), (2, 1), "{state:?}");
    assert!(reading.read(0, 1, 500).0 && reading.read(1, 1, 500).0);
}

#[test]
fn an_exporter_that_is_killed_amid_reads_is_noticed() {
    let Some(endpoint) = endpoint() else { return };
    let Ok(mark) = std::env::var("ROWMILL_RDMA_MARK") else {
        println!("skipped: nobody kills the exporter");
        return;
    };
    let mut reading = Reading::far(&endpoint);
    reading.is_connected();
    assert!(reading.read(0, 1, 500).0);
    std::fs::write(mark, "kill it").expect("a file for the scenario");
    let (why, took) = read_to_the_end(&mut reading);
    println!("{why} after {took:?} from the order to kill it");
    let lanes_are_gone = !reading.read(1, 1, 64).0;
    assert!(lanes_are_gone, "another worker reads on");
}
