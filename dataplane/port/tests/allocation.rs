//! Neither half of a port with real peers allocates once a connection stands.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use rowmill_arena::Strip;
use rowmill_port::conformance::Answers;
use rowmill_port::shm::{ShmClient, ShmConfig, ShmServer};
use rowmill_port::{ClientPort, Event, Idle, RegionId, ServerPort};
use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::status::NOWHERE;
use rowmill_wire::{Completion, CompletionKind, Status};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator; the counter is a constant-initialised
// thread-local without a destructor, which allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn round_trips_allocate_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = format!("shm:{}/a.sock", folder.path().display());
    let (_server, mut lanes) =
        ShmServer::listen(&endpoint, ShmConfig::default(), Arc::new(Answers::new(1))).unwrap();
    let mut client = ShmClient::connect(&endpoint, "counted", 8).unwrap();
    let source = client.register_source(4096).unwrap();
    assert_eq!(source, RegionId(0), "the lowest number");
    let region = client.register(4096).unwrap();
    let lane = &mut lanes[0];
    let mut frame = Box::new([0; SLOT_BYTES]);
    let before = ALLOCATIONS.with(Cell::get);
    for round in 0..1000u64 {
        for slot in 0..8 {
            client.submit(0, slot, &[1; 100]).unwrap();
        }
        client.cancel(0, 3).unwrap();
        while let Some(event) = lane.poll(&mut frame) {
            if let Event::Request { conn, slot, .. } = event {
                lane.read(conn, slot, RegionId(0), 64, &mut frame[..64])
                    .unwrap();
                let strips = [Strip {
                    offset: 0,
                    bytes: 64,
                    stride: 64,
                    count: 1,
                }];
                let staging = lane.stage(conn, region, &strips).unwrap();
                let target = lane.window(conn, region, &staging).unwrap();
                target.write(0, &frame[..64]);
                lane.place(conn, region, staging, &strips).unwrap();
                lane.complete(conn, &done(slot, round));
            }
        }
        lane.idle(Idle::Sleep(Some(Duration::ZERO)));
        client.wait(Some(Duration::ZERO)).unwrap();
        for _ in 0..8 {
            assert_eq!(client.poll(0).unwrap().unwrap().request, round);
        }
        assert!(client.poll(0).unwrap().is_none());
        client.wait(Some(Duration::ZERO)).unwrap();
    }
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0);
}

/// Polls a lane until an event comes.
#[cfg(feature = "rdma")]
fn next(lane: &mut impl ServerPort, frame: &mut [u8; SLOT_BYTES]) -> Event {
    loop {
        if let Some(event) = lane.poll(frame) {
            return event;
        }
        lane.idle(Idle::Yield);
    }
}

#[cfg(feature = "rdma")]
#[test]
fn round_trips_over_rdma_allocate_nothing() {
    use rowmill_port::Extent;
    use rowmill_port::rdma::{RdmaClient, RdmaConfig, RdmaServer};

    let Ok(address) = std::env::var("ROWMILL_RDMA_ADDRESS") else {
        println!("skipped: no RDMA device (make test-rxe)");
        return;
    };
    let config = RdmaConfig {
        insecure: true,
        stage_blocks: 8,
        stage_block_bytes: 64 << 10,
        ..RdmaConfig::default()
    };
    let asked = format!("rdma://{address}:0");
    let (server, mut lanes) =
        RdmaServer::listen(&asked, config, Arc::new(Answers::new(1))).unwrap();
    let mut client = RdmaClient::connect(&server.endpoint(), "counted", 8).unwrap();
    let source = client.register_source(65536).unwrap();
    assert_eq!(source, RegionId(0), "the lowest number");
    let region = client.register(65536).unwrap();
    let lane = &mut lanes[0];
    let mut frame = Box::new([0; SLOT_BYTES]);
    let source = Extent {
        region: RegionId(0),
        offset: 64,
        len: 4000,
    };
    let strips = [Strip {
        offset: 8192,
        bytes: 64,
        stride: 128,
        count: 100,
    }];
    for warm in [true, false] {
        let before = ALLOCATIONS.with(Cell::get);
        for round in 0..200u64 {
            for slot in 0..8 {
                // Inline, and out of a block.
                client
                    .submit(0, slot, &[1; 2000][..100 << (slot % 5)])
                    .unwrap();
            }
            client.cancel(0, 3).unwrap();
            let mut answered = 0;
            while answered < 8 {
                match next(lane, &mut frame) {
                    Event::Request { conn, slot, .. } => {
                        while lane.fetch(conn, slot, &[source]).is_err() {
                            lane.idle(Idle::Yield);
                        }
                        while !matches!(
                            lane.read(conn, slot, RegionId(0), 64, &mut frame[..64]),
                            Ok(())
                        ) {
                            lane.idle(Idle::Yield);
                        }
                        lane.release(conn, slot);
                        let staging = loop {
                            match lane.stage(conn, region, &strips) {
                                Ok(staging) => break staging,
                                Err(_) => lane.idle(Idle::Yield),
                            }
                        };
                        let target = lane.window(conn, region, &staging).unwrap();
                        target.write(0, &frame[..64]);
                        lane.place(conn, region, staging, &strips).unwrap();
                        lane.complete(conn, &done(slot, round));
                        answered += 1;
                    }
                    Event::Attached { .. } | Event::Region { .. } | Event::Cancel { .. } => (),
                    other => panic!("{other:?}"),
                }
            }
            let mut records = 0;
            while records < 8 {
                lane.idle(Idle::Sleep(Some(Duration::ZERO)));
                match client.poll(0).unwrap() {
                    Some(record) => {
                        assert_eq!(record.request, round);
                        records += 1;
                    }
                    None => client.wait(Some(Duration::ZERO)).unwrap(),
                }
            }
        }
        let allocated = ALLOCATIONS.with(Cell::get) - before;
        println!("{allocated} allocations");
        assert!(warm || allocated == 0);
    }
}

fn done(slot: u16, request: u64) -> Completion {
    Completion {
        kind: CompletionKind::Final,
        part: 0,
        status: Status::Ok,
        slot,
        slice: 0,
        request,
        generation: 0,
        delta: 0,
        attempt: 0,
        credits: 1,
        feature: NOWHERE,
        index: NOWHERE,
        service_ns: 0,
        newest: 0,
    }
}
