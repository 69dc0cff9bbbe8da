//! Clients that do what the suite's violations can't express, and requests to connect that make no sense.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rowmill_port::conformance::{Bench, Task, patience};
use rowmill_port::rdma::private_data::{Asked, parse_refusal};
use rowmill_port::rdma::{RdmaClient, RdmaConfig, RdmaServer};
use rowmill_port::{ClientPort, PortError};
use rowmill_verbs::{
    Capacity, CmEvent, CmEventKind, CompletionQueue, Context, EventChannel, Parameters,
    ProtectionDomain, QueuePair, RequestData, Resolution, Resolving, Selector,
};
use rowmill_wire::{Immediate, Status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::harness::{Rdma, address, has_device, server_config, slowness};

/// Runs a breach on lane 0 of a client: it is cut off, and one beside it is not.
fn cut_off(breach: impl Fn(&mut RdmaClient)) {
    let mut bench = Bench::<Rdma>::start(2);
    let mut honest = bench.client("honest", 4);
    let region = honest.register(4096).expect("a region");
    let mut hostile = bench.client("hostile", 4);
    breach(&mut hostile);
    for lane in 0..2 {
        bench.closed(&mut hostile, lane);
    }
    let answers = bench.answers.clone();
    bench.until("the end of the connection", || answers.gone().len() == 1);
    let fill = Task::Fill {
        region: region.0,
        offset: 0,
        len: 4096,
        seed: 3,
        slices: 1,
    };
    for lane in 0..2 {
        assert_eq!(bench.ask(&mut honest, lane, &fill).status, Status::Ok);
    }
    let server = bench.harness.server.as_ref().expect("it runs");
    assert_eq!(server.counters().violations, 1);
}

#[test]
fn messages_on_a_lane_are_a_breach() {
    if has_device() {
        cut_off(|client| client.raw_send(0, &[]).expect("open"));
        cut_off(|client| client.raw_send(0, &[7; 100]).expect("open"));
    }
}

#[test]
fn lengths_that_are_not_those_announced_are_a_breach() {
    if has_device() {
        let request = Immediate::Request { slot: 0, len: 16 }.encode();
        cut_off(|client| client.raw_write(0, request, &[0; 15]).expect("open"));
        let cancel = Immediate::Cancel { slot: 0 }.encode();
        cut_off(|client| client.raw_write(0, cancel, &[0; 1]).expect("open"));
    }
}

/// A client registers memory that it has not got: the device refuses the results, and nobody else notices.
#[test]
fn wrong_keys_cost_the_liar_its_connection() {
    if !has_device() {
        return;
    }
    cut_off(|client| {
        let region = client.raw_register(4096, 0x7000_0000_0000, 0x1234_5678);
        let fill = Task::Fill {
            region: region.expect("a number").0,
            offset: 0,
            len: 64,
            seed: 1,
            slices: 1,
        };
        client.submit(0, 0, &fill.frame()).expect("open");
    });
    cut_off(|client| {
        let from = client.raw_register(4096, 0x7000_0000_0000, 0x1234_5678);
        let to = client.register(4096).expect("a region");
        let copy = Task::Copy {
            from: from.expect("a number").0,
            offset: 0,
            len: 64,
            to: to.0,
            to_offset: 0,
        };
        client.submit(0, 0, &copy.frame()).expect("open");
    });
}

#[test]
fn impossible_regions_are_refused() {
    if !has_device() {
        return;
    }
    let mut bench = Bench::<Rdma>::start(1);
    let mut client = bench.client("regions", 1);
    for (bytes, address) in [(0, 4096), (4096, u64::MAX - 10), (1 << 40, 0)] {
        match client.raw_register(bytes, address, 1) {
            Err(PortError::Refused { refusal, .. }) => {
                assert_eq!(refusal.status, Status::RegionRefused);
            }
            other => panic!("refused, not {other:?}"),
        }
    }
    assert_eq!(bench.ask(&mut client, 0, &Task::Echo).status, Status::Ok);
}

pub(crate) fn next_event(channel: &EventChannel) -> CmEvent {
    let since = Instant::now();
    loop {
        if let Some(event) = channel.take_event().expect("an open channel") {
            return event;
        }
        assert!(since.elapsed() < patience(), "an event");
        let mut fds = [PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN)];
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: 100_000_000,
        };
        let _ = poll(&mut fds, Some(&limit));
    }
}

/// Asks to connect with these private data, and gives the events that come of it until one says that it is over.
fn connect_raw(endpoint: &str, data: &[u8]) -> Vec<CmEvent> {
    let to = endpoint
        .strip_prefix("rdma://")
        .and_then(|to| to.parse().ok())
        .expect("an address");
    let context = Context::open(&Selector::Address(
        address().expect("a device").parse().expect("an address"),
    ))
    .expect("the device");
    let channel = EventChannel::new().expect("a channel");
    let parameters = Parameters::default();
    let second = Duration::from_secs(1);
    let mut resolving = Resolving::start(&channel, None, to, second * slowness(), &parameters)
        .expect("resolving begins");
    let mut way = loop {
        match resolving.advance(&next_event(&channel)).expect("a step") {
            Resolution::Waiting(further) => resolving = further,
            Resolution::Ready(way) => break way,
        }
    };
    let domain = ProtectionDomain::new(&context).expect("a domain");
    let queue = CompletionQueue::new(&context, 64, None).expect("a queue");
    let capacity = Capacity {
        sends: 4,
        receives: 4,
        pieces: 1,
        inline_bytes: 0,
    };
    let mut qp: QueuePair<()> =
        QueuePair::new(&domain, queue.handle(), queue.handle(), capacity, 1).expect("a queue pair");
    way.initialise(&mut qp, &parameters).expect("INIT");
    let data = RequestData::new(data).expect("few bytes");
    let connecting = way.connect(&mut qp, &parameters, &data).expect("it begins");
    let first = next_event(&channel);
    if !matches!(first.kind, CmEventKind::ConnectResponse) {
        return vec![first];
    }
    let connection = connecting.establish(&first, &mut qp, &parameters);
    let _connection = connection.expect("a connection");
    vec![first, next_event(&channel)]
}

fn listen() -> (RdmaServer, Vec<rowmill_port::rdma::RdmaLane>) {
    let config = RdmaConfig {
        handshake_limit: Duration::from_millis(500),
        ..server_config()
    };
    let asked = format!("rdma://{}:0", address().expect("a device"));
    let service = std::sync::Arc::new(rowmill_port::conformance::Answers::new(1));
    RdmaServer::listen(&asked, config, service).expect("a server")
}

#[test]
fn requests_to_connect_are_checked() {
    if !has_device() {
        return;
    }
    let (server, _lanes) = listen();
    let mut other = Asked::Control { path_mtu: None }.encode();
    other[0] += 1;
    let lane = Asked::Lane {
        session: [7; 16],
        lane: 0,
    };
    let cases: [(&[u8], Status); 4] = [
        // Without any the transport gives zeros.
        (&[], Status::UnsupportedVersion),
        (&[9; 56], Status::UnsupportedVersion),
        (&other, Status::UnsupportedVersion),
        (&lane.encode(), Status::Malformed),
    ];
    for (data, wanted) in cases {
        let events = connect_raw(&server.endpoint(), data);
        assert!(
            matches!(events[0].kind, CmEventKind::Rejected),
            "{events:?}"
        );
        let refusal = parse_refusal(events[0].private_data.as_slice());
        let (status, text) = refusal.expect("a word");
        println!("{status}: {text}");
        assert_eq!(status, wanted);
    }
    assert_eq!(server.counters().refused, 4);
    assert_eq!(server.counters().queue_pairs, 0);
}

#[test]
fn who_says_nothing_is_cut_off() {
    if !has_device() {
        return;
    }
    let (server, _lanes) = listen();
    let since = Instant::now();
    let events = connect_raw(
        &server.endpoint(),
        &Asked::Control { path_mtu: None }.encode(),
    );
    assert!(
        matches!(events[1].kind, CmEventKind::Disconnected),
        "{events:?}"
    );
    println!("cut off after {:?}", since.elapsed());
    let since = Instant::now();
    while server.counters().sessions > 0 {
        assert!(since.elapsed() < patience());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn it_has_to_be_said_that_anybody_may_connect() {
    let config = RdmaConfig::default();
    let service = std::sync::Arc::new(rowmill_port::conformance::Answers::new(1));
    match RdmaServer::listen("rdma://127.0.0.1:0", config, service) {
        Err(error @ PortError::Listen { .. }) => {
            assert!(error.to_string().contains("insecure = true"), "{error}");
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it listens"),
    }
}
