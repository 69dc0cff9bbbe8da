//! Little room, many cancels, many connections.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rowmill_port::ClientPort;
use rowmill_port::conformance::{Bench, Harness, Setup, Task, patience, pattern};
use rowmill_port::rdma::{Live, RdmaClient, RdmaClientConfig, RdmaConfig, RdmaCounters};
use rowmill_wire::Status;

use super::harness::{Rdma, client_config, has_device, server_config};

/// A server and clients whose devices send nothing inline.
struct NoInline(Rdma);

impl Harness for NoInline {
    type Client = rowmill_port::rdma::RdmaClient;

    fn start(setup: Setup) -> NoInline {
        let config = RdmaConfig {
            inline_bytes: 0,
            ..server_config()
        };
        NoInline(Rdma::start_with(setup, config))
    }

    fn connect(
        &mut self,
        name: &str,
        credits: u16,
    ) -> Result<Self::Client, rowmill_port::PortError> {
        let config = RdmaClientConfig {
            inline_bytes: 0,
            ..client_config(credits)
        };
        RdmaClient::connect_with(&self.0.endpoint, name, config)
    }

    fn run(&mut self) {
        self.0.run();
    }

    fn stop_server(&mut self) {
        self.0.stop_server();
    }
}

#[test]
fn devices_without_inline_do_as_well() {
    if !has_device() {
        return;
    }
    rowmill_port::conformance::data::many_frames_in_flight::<NoInline>();
    rowmill_port::conformance::data::cancel_is_delivered::<NoInline>();
    rowmill_port::conformance::data::slices_in_order::<NoInline>();
    let mut bench = Bench::<NoInline>::start(1);
    let mut client = bench.client("beats", 1);
    let since = Instant::now();
    while since.elapsed() < client_config(1).silent_limit * 2 {
        client
            .wait(Some(Duration::from_millis(50)))
            .expect("a wait");
        assert!(client.poll(0).expect("beats come").is_none());
    }
}

/// A server whose worker has two blocks, one of which can hold fetched data.
struct Narrow(Rdma);

impl Harness for Narrow {
    type Client = rowmill_port::rdma::RdmaClient;

    fn start(setup: Setup) -> Narrow {
        let config = RdmaConfig {
            stage_blocks: 2,
            ..server_config()
        };
        Narrow(Rdma::start_with(setup, config))
    }

    fn connect(
        &mut self,
        name: &str,
        credits: u16,
    ) -> Result<Self::Client, rowmill_port::PortError> {
        self.0.connect(name, credits)
    }

    fn run(&mut self) {
        self.0.run();
    }

    fn stop_server(&mut self) {
        self.0.stop_server();
    }
}

#[test]
fn two_blocks_are_enough() {
    if has_device() {
        rowmill_port::conformance::threads::bytes_before_record::<Narrow>();
        rowmill_port::conformance::data::region_edges::<Narrow>();
        rowmill_port::conformance::data::holes_are_left_alone::<Narrow>();
    }
}

/// Request data and results of many requests at once, more than the blocks hold.
#[test]
fn more_than_the_blocks_hold_is_done_in_turn() {
    if !has_device() {
        return;
    }
    const LEN: usize = 50_000;
    let mut bench = Bench::<Narrow>::start(1);
    let mut client = bench.client("many", 16);
    let from = client.register_source(LEN).expect("a region");
    let to = client.register(16 * LEN).expect("a region");
    let mut source = vec![0; LEN];
    pattern(5, &mut source);
    client.memory(from).expect("registered").write(0, &source);
    for _ in 0..5 {
        for slot in 0..16 {
            let task = Task::Copy {
                from: from.0,
                offset: 0,
                len: LEN as u64,
                to: to.0,
                to_offset: u64::from(slot) * LEN as u64,
            };
            client.submit(0, slot, &task.frame()).expect("open");
        }
        for _ in 0..16 {
            assert_eq!(bench.record(&mut client, 0).status, Status::Ok);
        }
        let mut stored = vec![0; 16 * LEN];
        client.memory(to).expect("registered").read(0, &mut stored);
        assert!(stored.chunks(LEN).all(|copy| copy == source));
    }
}

/// How often a receiver was not ready, as the device counts.
fn not_ready() -> Option<u64> {
    let device = fs::read_dir("/sys/class/infiniband").ok()?.next()?.ok()?;
    let folder = device.path().join("ports/1/hw_counters");
    let count = |name: &str| {
        let text = fs::read_to_string(folder.join(name)).ok()?;
        text.trim().parse::<u64>().ok()
    };
    Some(count("rcvd_rnr_err").unwrap_or(0) + count("send_rnr_err").unwrap_or(0))
}

/// All credits in use, each request cancelled twice, the second time perhaps too late: receives never run out.
#[test]
fn cancels_never_meet_a_receiver_that_is_not_ready() {
    if !has_device() {
        return;
    }
    let before = not_ready();
    let mut bench = Bench::<Rdma>::start(1);
    let mut client = bench.client("cancels", 64);
    for _ in 0..30 {
        for slot in 0..64 {
            client.submit(0, slot, &Task::Hold.frame()).expect("open");
            client.cancel(0, slot).expect("open");
        }
        for _ in 0..64 {
            let record = bench.record(&mut client, 0);
            assert_eq!(record.status, Status::Cancelled);
            // The request has ended: this one comes too late.
            client.cancel(0, record.slot).expect("open");
        }
    }
    assert_eq!(bench.ask(&mut client, 0, &Task::Echo).status, Status::Ok);
    println!("receivers not ready: {:?}", not_ready());
    assert_eq!(not_ready(), before);
}

/// A client's first request comes right behind its attachment: the worker, which others keep busy, takes the latter first.
#[test]
fn first_requests_find_their_seats() {
    if !has_device() {
        return;
    }
    let mut bench = Bench::<Rdma>::start(1);
    let mut busy = bench.client("busy", 16);
    for _ in 0..40 {
        for slot in 0..16 {
            busy.submit(0, slot, &Task::Echo.frame()).expect("open");
        }
        let mut brief = bench.client("brief", 1);
        assert_eq!(bench.ask(&mut brief, 0, &Task::Echo).status, Status::Ok);
        for _ in 0..16 {
            assert_eq!(bench.record(&mut busy, 0).status, Status::Ok);
        }
    }
}

/// Connections come and go in all ways, and leave nothing behind.
#[test]
fn counters_return_to_their_start() {
    if !has_device() {
        return;
    }
    let mut bench = Bench::<Rdma>::start(2);
    let counters = |bench: &Bench<Rdma>| {
        let server = bench.harness.server.as_ref().expect("it runs");
        server.counters()
    };
    let (start, live) = (counters(&bench), Live::now());
    let rounds = 12;
    for round in 0..rounds {
        let mut client = bench.client("cycle", 4);
        let region = client.register(64 << 10).expect("a region");
        let since = Instant::now();
        loop {
            // They are counted just after the answer was sent.
            let now = counters(&bench);
            if (now.sessions, now.queue_pairs, now.regions) == (1, 3, 1) {
                break;
            }
            assert!(since.elapsed() < patience(), "{now:?}");
            thread::sleep(Duration::from_millis(1));
        }
        let task = Task::Fill {
            region: region.0,
            offset: 0,
            len: 64 << 10,
            seed: round,
            slices: 16,
        };
        // Some of them go while results are on their way.
        for slot in 0..4 {
            client
                .submit((round % 2) as u16, slot, &task.frame())
                .expect("open");
        }
        if round % 3 == 0 {
            bench.record(&mut client, (round % 2) as u16);
        }
        drop(client);
        let answers = bench.answers.clone();
        let gone = round as usize + 1;
        bench.until("the end of the connection", || answers.gone().len() == gone);
    }
    let since = Instant::now();
    let mut end = counters(&bench);
    let all_is_back =
        |end: &RdmaCounters| end.blocks_free == start.blocks_free && Live::now() == live;
    while !all_is_back(&end) && since.elapsed() < patience() {
        thread::sleep(Duration::from_millis(1));
        end = counters(&bench);
    }
    assert_eq!(end.accepted, start.accepted + rounds);
    assert_eq!((end.violations, end.refused), (0, 0));
    let now = |c: &RdmaCounters| (c.sessions, c.queue_pairs, c.regions, c.blocks_free);
    assert_eq!(now(&end), now(&start));
    assert_eq!(Live::now(), live, "of the clients as well");
}

/// A client whose requests are all of the longest kind leaves others their turns, for requests that fetch too: between
/// another one's request and its answer no more of its own get done than it had in flight, twice (once where they were taken
/// before that request, once where they waited for room before it).
#[test]
fn large_fetches_leave_others_their_turns() {
    if !has_device() {
        return;
    }
    const CREDITS: u16 = 16;
    const LEN: u64 = 64 << 10;
    let mut bench = Bench::<Rdma>::start(1);
    let mut ends = |name: &str, credits| {
        let mut client = bench.client(name, credits);
        let from = client.register_source(LEN as usize).expect("a region");
        let to = client.register(LEN as usize).expect("a region");
        (client, from.0, to.0)
    };
    let copy = |from, to, len| Task::Copy {
        from,
        offset: 0,
        len,
        to,
        to_offset: 0,
    };
    let (mut greedy, from, to) = ends("greedy", CREDITS);
    let long = copy(from, to, LEN).frame();
    let (mut other, from, to) = ends("other", 1);
    for slot in 0..CREDITS {
        greedy.submit(0, slot, &long).expect("open");
    }
    for (what, small) in [("inline", Task::Echo), ("fetched", copy(from, to, 64))] {
        let small = small.frame();
        let (mut most, mut all) = (0, 0);
        for _ in 0..50 {
            other.submit(0, 0, &small).expect("open");
            let mut before = 0;
            let since = Instant::now();
            loop {
                if let Some(record) = other.poll(0).expect("open") {
                    assert_eq!(record.status, Status::Ok);
                    break;
                }
                while let Some(record) = greedy.poll(0).expect("open") {
                    assert_eq!(record.status, Status::Ok);
                    greedy.submit(0, record.slot, &long).expect("open");
                    before += 1;
                }
                assert!(since.elapsed() < patience(), "an answer beside {before}");
            }
            most = most.max(before);
            all += before;
        }
        println!("{what}: at most {most} of the greedy client's before an answer, {all} before 50");
        assert!(most <= 2 * u32::from(CREDITS), "{what}: {most}");
    }
}
