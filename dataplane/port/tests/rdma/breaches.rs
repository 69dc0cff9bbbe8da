//! Clients of bare verbs that break the protocol in ways that an honest one can't, against a lane that the test itself
//! drives. Each harms itself and nobody else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rowmill_arena::Strip;
use rowmill_port::conformance::{Answers, patience};
use rowmill_port::rdma::{RdmaConfig, RdmaLane, RdmaServer};
use rowmill_port::{ConnId, Event, Extent, Fetch, PortError, RegionId, ServerPort};
use rowmill_verbs::{Context, Selector};
use rowmill_wire::control::Control;
use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::status::NOWHERE;
use rowmill_wire::{Completion, CompletionKind, Immediate, Pooling, Schema, Status};

use super::bare::Bare;
use super::harness::{address, has_device, server_config};

const ONE: ConnId = ConnId(0);
const TWO: ConnId = ConnId(1);

fn listen(config: RdmaConfig) -> Result<(RdmaServer, RdmaLane), PortError> {
    listen_with(config, Arc::new(Answers::new(1)))
}

fn listen_with(
    config: RdmaConfig,
    answers: Arc<Answers>,
) -> Result<(RdmaServer, RdmaLane), PortError> {
    let asked = format!("rdma://{}:0", address().expect("a device"));
    let (server, mut lanes) = RdmaServer::listen(&asked, config, answers)?;
    Ok((server, lanes.remove(0)))
}

fn answer() -> Completion {
    Completion {
        kind: CompletionKind::Final,
        part: 0,
        status: Status::Ok,
        slot: 0,
        slice: 0,
        request: 1,
        generation: 7,
        delta: 0,
        attempt: 0,
        credits: 1,
        feature: NOWHERE,
        index: NOWHERE,
        service_ns: 0,
        newest: 0,
    }
}

/// Polls until an event is the one that is waited for.
fn until(lane: &mut RdmaLane, wanted: impl Fn(&Event) -> bool) -> Event {
    let (mut frame, since) = ([0; SLOT_BYTES], Instant::now());
    loop {
        assert!(since.elapsed() < patience(), "an event");
        match lane.poll(&mut frame) {
            Some(event) if wanted(&event) => return event,
            _ => std::thread::yield_now(),
        }
    }
}

/// Polls for a while.
fn turn(lane: &mut RdmaLane, time: Duration) {
    let (mut frame, since) = ([0; SLOT_BYTES], Instant::now());
    while since.elapsed() < time {
        lane.poll(&mut frame);
        std::thread::yield_now();
    }
}

fn detached(of: ConnId) -> impl Fn(&Event) -> bool {
    move |event| matches!(event, Event::Detached { conn } if *conn == of)
}

fn region_of(of: ConnId) -> impl Fn(&Event) -> bool {
    move |event| matches!(event, Event::Region { conn, .. } if *conn == of)
}

/// All blocks are back, and nothing of a client is left.
fn all_is_back(server: &RdmaServer, lane: &mut RdmaLane, blocks: u64) {
    let since = Instant::now();
    loop {
        turn(lane, Duration::from_millis(10));
        let now = server.counters();
        if (now.sessions, now.queue_pairs, now.regions, now.blocks_free) == (0, 0, 0, blocks) {
            return;
        }
        assert!(since.elapsed() < patience(), "{now:?}");
    }
}

/// The client asks in its one slot again and again, and takes no answers.
#[test]
fn a_slot_used_again_before_its_answer_ends_the_connection() {
    if !has_device() {
        return;
    }
    let (server, mut lane) = listen(server_config()).expect("a server");
    let blocks = server.counters().blocks_free;
    let mut bare = Bare::connect(&server.endpoint(), 1, 16).expect("a lane");
    until(&mut lane, |e| matches!(e, Event::Attached { .. }));
    let (mut frame, since) = ([0; SLOT_BYTES], Instant::now());
    let mut open = true;
    'asking: loop {
        open = open && bare.ask();
        for _ in 0..100 {
            match lane.poll(&mut frame) {
                Some(Event::Request { conn, .. }) => lane.complete(conn, &answer()),
                Some(Event::Detached { .. }) => break 'asking,
                _ => (),
            }
        }
        assert!(since.elapsed() < patience(), "it is cut off");
    }
    assert_eq!(server.counters().violations, 1);
    all_is_back(&server, &mut lane, blocks);
}

#[test]
fn a_request_cancelled_twice_ends_the_connection() {
    if !has_device() {
        return;
    }
    let (server, mut lane) = listen(server_config()).expect("a server");
    let mut bare = Bare::connect(&server.endpoint(), 2, 16).expect("a lane");
    bare.lane.receive_empty(64).expect("room");
    assert!(bare.ask());
    until(&mut lane, |e| matches!(e, Event::Request { .. }));
    let cancel = Immediate::Cancel { slot: 0 };
    assert!(bare.announce(cancel));
    until(&mut lane, |e| matches!(e, Event::Cancel { .. }));
    lane.complete(ONE, &answer());
    // The answer is on its way before the slot is used again.
    assert!(lane.poll(&mut [0; SLOT_BYTES]).is_none());
    assert!(bare.ask());
    until(&mut lane, |e| matches!(e, Event::Request { .. }));
    assert_eq!(server.counters().violations, 0, "once a request is right");
    assert!(bare.announce(cancel) && bare.announce(cancel));
    until(&mut lane, detached(ONE));
    assert_eq!(server.counters().violations, 1);
}

#[test]
fn asking_again_before_a_schema_is_bound_ends_the_connection() {
    if !has_device() {
        return;
    }
    let answers = Arc::new(Answers::new(1));
    let (server, mut lane) = listen_with(server_config(), answers.clone()).expect("a server");
    let blocks = server.counters().blocks_free;
    let mut bare = Bare::connect(&server.endpoint(), 1, 16).expect("a lane");
    until(&mut lane, |e| matches!(e, Event::Attached { .. }));
    let feature = ("f", Answers::HELD, Pooling::Sum, 4);
    bare.tell(&Control::Bind(Schema::side_by_side(8, [feature]).0));
    bare.tell(&Control::ListTables { first: 0 });
    until(&mut lane, detached(ONE));
    assert_eq!((answers.held_ever(), answers.held()), (1, 0));
    assert_eq!(server.counters().violations, 1);
    all_is_back(&server, &mut lane, blocks);
}

/// A READ that may not begin would hold its blocks for ever.
#[test]
fn a_lane_that_answers_no_reads_is_refused() {
    if !has_device() {
        return;
    }
    let (server, _lane) = listen(server_config()).expect("a server");
    let refused = Bare::connect(&server.endpoint(), 4, 0).err();
    println!("{refused:?}");
    assert!(refused.is_some());
    assert_eq!(server.counters().refused, 1);
}

/// It breaks the control stream, and so ends in order, while READs into a block are half posted and results wait behind.
#[test]
fn an_end_with_half_a_fetch_posted_harms_nobody() {
    if !has_device() {
        return;
    }
    let (server, mut lane) = listen(server_config()).expect("a server");
    let blocks = server.counters().blocks_free;
    let mut bare = Bare::connect(&server.endpoint(), 4, 16).expect("a lane");
    let region = bare.register(None);
    assert!(bare.ask());
    until(&mut lane, |e| matches!(e, Event::Request { .. }));
    // There is no receive for it: everything behind it waits.
    lane.complete(ONE, &answer());
    let extents: Vec<_> = (0..200)
        .map(|i| Extent {
            region,
            offset: 128 * i,
            len: 64,
        })
        .collect();
    assert_eq!(lane.fetch(ONE, 0, &extents), Ok(Fetch::Coming));
    let strip = [Strip {
        offset: 0,
        bytes: 64,
        stride: 64,
        count: 1,
    }];
    let staging = lane.stage(ONE, region, &strip).expect("room");
    lane.place(ONE, region, staging, &strip).expect("queued");
    lane.complete(ONE, &answer());
    assert!(lane.poll(&mut [0; SLOT_BYTES]).is_none());
    bare.say(&[1, 2, 3]);
    until(&mut lane, detached(ONE));
    lane.release(ONE, 0); // As the engine does.
    lane.poll(&mut [0; SLOT_BYTES]);
    bare.lane.receive_empty(100).expect("room");
    all_is_back(&server, &mut lane, blocks);
}

/// As before; and another client is given the pull whose READs the one that parts had still to post.
#[test]
fn a_client_that_parts_takes_nothing_of_anothers_fetch() {
    if !has_device() {
        return;
    }
    let (server, mut lane) = listen(server_config()).expect("a server");
    let mut one = Bare::connect(&server.endpoint(), 4, 16).expect("a lane");
    let region = one.register(None);
    let mut two = Bare::connect(&server.endpoint(), 4, 16).expect("a lane");
    let other = two.register(None);
    until(&mut lane, region_of(TWO));
    // Both send queues are full of records behind one that finds no receive.
    for _ in 0..70 {
        lane.complete(ONE, &answer());
        lane.complete(TWO, &answer());
    }
    let extent = |region, offset| Extent {
        region,
        offset,
        len: 64,
    };
    assert!(lane.poll(&mut [0; SLOT_BYTES]).is_none());
    let asked = lane.fetch(ONE, 0, &[extent(region, 0)]);
    assert_eq!(asked, Ok(Fetch::Coming));
    assert!(lane.poll(&mut [0; SLOT_BYTES]).is_none());
    one.say(&[1, 2, 3]);
    until(&mut lane, detached(ONE));
    lane.release(ONE, 0);
    lane.poll(&mut [0; SLOT_BYTES]);
    let asked = lane.fetch(TWO, 0, &[extent(other, 1000)]);
    assert_eq!(asked, Ok(Fetch::Coming));
    one.lane.receive_empty(100).expect("room");
    turn(&mut lane, Duration::from_millis(300));
    two.lane.receive_empty(100).expect("room");
    until(&mut lane, |e| {
        matches!(
            e,
            Event::Fetched {
                conn: TWO,
                outcome: Ok(()),
                ..
            }
        )
    });
    let mut bytes = [0; 64];
    lane.read(TWO, 0, other, 1000, &mut bytes)
        .expect("it was fetched");
    for (i, byte) in bytes.iter().enumerate() {
        assert_eq!(usize::from(*byte), (1000 + i) % 251);
    }
}

/// READs that fail bring nothing; least of all what another client had in the block.
#[test]
fn a_failed_fetch_is_never_told_as_data() {
    if !has_device() {
        return;
    }
    let (server, mut lane) = listen(server_config()).expect("a server");
    let mut one = Bare::connect(&server.endpoint(), 4, 16).expect("a lane");
    let region: RegionId = one.register(Some(0x1234_5678));
    until(&mut lane, region_of(ONE));
    let extent = Extent {
        region,
        offset: 0,
        len: 64,
    };
    assert_eq!(lane.fetch(ONE, 0, &[extent]), Ok(Fetch::Coming));
    let ended = |e: &Event| matches!(e, Event::Fetched { .. } | Event::Detached { .. });
    let event = until(&mut lane, ended);
    assert_eq!(event, Event::Detached { conn: ONE });
    assert!(lane.read(ONE, 0, region, 0, &mut [0; 8]).is_err());
}

/// WRITEs are not cut to the device's messages; so blocks have to be no longer.
#[test]
fn blocks_longer_than_the_devices_messages_are_refused_at_start() {
    if !has_device() {
        return;
    }
    let here = address().and_then(|a| a.parse().ok()).expect("an address");
    let context = Context::open(&Selector::Address(here)).expect("a device");
    const LARGEST: usize = 32 << 20;
    let config = RdmaConfig {
        stage_blocks: 2,
        stage_block_bytes: LARGEST,
        ..server_config()
    };
    let outcome = listen(config).map(|_| ());
    if context.limits().message_bytes as usize >= LARGEST {
        return outcome.expect("this device has room for it");
    }
    let text = outcome.expect_err("too long").to_string();
    assert!(text.contains("stage_block_bytes"), "{text}");
}
