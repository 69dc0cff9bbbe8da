//! Cases about frames, regions, slices and cancelling.

use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::{CompletionKind, Status};

use super::{Bench, Harness, Task, fingerprint, pattern};
use crate::{ClientPort, Event, RegionId};

/// The shortest exchange.
pub fn null_round_trip<H: Harness>() {
    let mut bench = Bench::<H>::start(1);
    let mut client = bench.client("null", 4);
    assert!(client.poll(0).expect("open").is_none());
    let record = bench.ask(&mut client, 0, &Task::Echo);
    assert_eq!(
        (record.status, record.slot, record.delta),
        (Status::Ok, 0, 16)
    );
    assert_eq!((record.generation, record.credits), (7, 1));
    assert!(client.poll(0).expect("open").is_none());
}

/// Every length around the powers of two and every eighth of a slot arrives whole.
pub fn frames_of_every_length<H: Harness>() {
    let mut bench = Bench::<H>::start(1);
    let mut client = bench.client("lengths", 4);
    let around = (0..13).flat_map(|bit| [1usize << bit, (1 << bit) + 1, (2 << bit) - 1]);
    let lengths = (1..=80).chain(around).chain([SLOT_BYTES - 1, SLOT_BYTES]);
    for (i, len) in lengths.enumerate() {
        let frame = Task::echo(len, i as u64);
        let slot = (i % 4) as u16;
        client.submit(0, slot, &frame).expect("open");
        let record = bench.record(&mut client, 0);
        assert_eq!((record.slot, record.delta), (slot, len as u64));
        assert_eq!(
            record.request,
            fingerprint(&frame),
            "a frame of {len} bytes"
        );
    }
}

/// All credits of all lanes in use at once, many times over: no frame is mixed with another.
pub fn many_frames_in_flight<H: Harness>() {
    let mut bench = Bench::<H>::start(2);
    let mut client = bench.client("many", 64);
    let credits = client.welcome().credits;
    for round in 0..20u64 {
        let mut sent = Vec::new();
        for lane in 0..2 {
            for slot in 0..credits {
                let len = 1 + (round as usize * 131 + usize::from(slot) * 61) % SLOT_BYTES;
                let frame = Task::echo(len, round << 32 | u64::from(lane) << 16 | u64::from(slot));
                client.submit(lane, slot, &frame).expect("open");
                sent.push((lane, slot, fingerprint(&frame)));
            }
        }
        for (lane, slot, sum) in sent {
            // One worker answers echoes in the order in which they came.
            let record = bench.record(&mut client, lane);
            assert_eq!((record.slot, record.request), (slot, sum));
        }
    }
}

/// Bytes at both ends of a region are read and stored exactly, and their neighbours left alone.
pub fn region_edges<H: Harness>() {
    let mut bench = Bench::<H>::start(1);
    let mut client = bench.client("edges", 4);
    let from = client.register_source(4096).expect("a region");
    let to = register(&mut client, 4096);
    let size = client.memory(from).expect("registered").len();
    let mut source = vec![0; size];
    pattern(1, &mut source);
    client.memory(from).expect("registered").write(0, &source);
    for len in [0, 1, 7, 8, 63, 64, 65, 1000, size] {
        for (offset, to_offset) in [(0, size - len), (size - len, 0)] {
            let blank = vec![0xee; size];
            client.memory(to).expect("registered").write(0, &blank);
            let task = Task::Copy {
                from: from.0,
                offset: offset as u64,
                len: len as u64,
                to: to.0,
                to_offset: to_offset as u64,
            };
            assert_eq!(bench.ask(&mut client, 0, &task).status, Status::Ok);
            let mut stored = vec![0; size];
            client.memory(to).expect("registered").read(0, &mut stored);
            let mut wanted = blank;
            wanted[to_offset..to_offset + len].copy_from_slice(&source[offset..offset + len]);
            assert!(stored == wanted, "{len} bytes to {to_offset}");
        }
    }
}

/// Between vectors that are placed nothing is touched, however near they are.
pub fn holes_are_left_alone<H: Harness>() {
    let mut bench = Bench::<H>::start(1);
    let mut client = bench.client("holes", 4);
    let region = register(&mut client, 1 << 20);
    let size = client.memory(region).expect("registered").len();
    let shapes: [(u32, u32, u32); 6] = [
        (64, 64, 500),
        (64, 65, 500),
        (4, 8, 3000),
        (8192, 8200, 100),
        (100, 4096, 200),
        (48, 48, 1),
    ];
    for (seed, (bytes, stride, count)) in shapes.into_iter().enumerate() {
        let blank = vec![0xee; size];
        client.memory(region).expect("registered").write(0, &blank);
        let task = Task::Stripe {
            region: region.0,
            offset: 13,
            bytes,
            stride,
            count,
            seed: seed as u64,
        };
        let record = bench.ask(&mut client, 0, &task);
        assert_eq!((record.status, record.request), (Status::Ok, seed as u64));
        let mut vectors = vec![0; (bytes * count) as usize];
        pattern(seed as u64, &mut vectors);
        let mut wanted = blank;
        for (i, vector) in vectors.chunks(bytes as usize).enumerate() {
            wanted[13 + i * stride as usize..][..vector.len()].copy_from_slice(vector);
        }
        let mut stored = vec![0; size];
        client
            .memory(region)
            .expect("registered")
            .read(0, &mut stored);
        assert!(stored == wanted, "{bytes} bytes every {stride}");
    }
}

/// Ranges that leave a region, also by overflowing, are refused before a byte is touched.
pub fn region_out_of_bounds<H: Harness>() {
    let mut bench = Bench::<H>::start(1);
    let mut client = bench.client("bounds", 4);
    let region = register(&mut client, 4096);
    let size = client.memory(region).expect("registered").len() as u64;
    let source = client.register_source(4096).expect("a region");
    let outside = [
        (size, 1),
        (size - 1, 2),
        (0, size + 1),
        (u64::MAX, 1),
        (u64::MAX - 7, 8),
        (1, u64::MAX),
        (1 << 63, 1 << 63),
    ];
    for (offset, len) in outside {
        let fill = Task::Fill {
            region: region.0,
            offset,
            len,
            seed: 3,
            slices: 1,
        };
        let read = Task::Copy {
            from: source.0,
            offset,
            len: len.min(8192),
            to: region.0,
            to_offset: 0,
        };
        for task in [fill, read] {
            let record = bench.ask(&mut client, 0, &task);
            assert_eq!(record.status, Status::TargetOutOfRegion, "{task:?}");
        }
    }
    let mut stored = vec![1; size as usize];
    client
        .memory(region)
        .expect("registered")
        .read(0, &mut stored);
    assert!(stored.iter().all(|&b| b == 0));
}

/// Memory that was registered for request data takes no results, and results are not read: no right is given that was not
/// asked for. The connection goes on.
pub fn rights_are_kept<H: Harness>() {
    let mut bench = Bench::<H>::start(1);
    let mut client = bench.client("rights", 4);
    let target = register(&mut client, 4096);
    let source = client.register_source(4096).expect("a region");
    let fill = |region: RegionId| Task::Fill {
        region: region.0,
        offset: 0,
        len: 64,
        seed: 5,
        slices: 1,
    };
    let copy = |from: RegionId, to: RegionId| Task::Copy {
        from: from.0,
        offset: 0,
        len: 64,
        to: to.0,
        to_offset: 0,
    };
    for (task, status) in [
        (fill(source), Status::RegionForbidden),
        (copy(target, target), Status::RegionForbidden),
        (copy(source, source), Status::RegionForbidden),
        (copy(source, target), Status::Ok),
        (fill(target), Status::Ok),
    ] {
        let record = bench.ask(&mut client, 0, &task);
        assert_eq!(record.status, status, "{task:?}");
    }
    let mut stored = vec![1; 4096];
    client
        .memory(source)
        .expect("registered")
        .read(0, &mut stored);
    assert!(stored.iter().all(|&b| b == 0), "the source was written to");
}

/// A region number that was never registered is refused, whatever it is.
pub fn unknown_regions<H: Harness>() {
    let mut bench = Bench::<H>::start(1);
    let mut client = bench.client("unknown", 4);
    let region = register(&mut client, 4096);
    for number in [region.0 + 1, 15, 16, 17, 255, u32::MAX] {
        let task = Task::Fill {
            region: number,
            offset: 0,
            len: 8,
            seed: 0,
            slices: 1,
        };
        let record = bench.ask(&mut client, 0, &task);
        assert_eq!(record.status, Status::UnknownRegion, "region {number}");
    }
}

/// Slices come in order, each after its own bytes, the last as the final record.
pub fn slices_in_order<H: Harness>() {
    const SLICES: u16 = 64;
    const STEP: usize = 256;
    let mut bench = Bench::<H>::start(1);
    let mut client = bench.client("slices", 4);
    let bytes = usize::from(SLICES) * STEP;
    let region = register(&mut client, bytes);
    for seed in 0..5 {
        let mut wanted = vec![0; bytes];
        pattern(seed, &mut wanted);
        let task = Task::Fill {
            region: region.0,
            offset: 0,
            len: bytes as u64,
            seed,
            slices: SLICES,
        };
        client.submit(0, 2, &task.frame()).expect("open");
        for slice in 0..SLICES {
            let record = bench.record(&mut client, 0);
            assert_eq!((record.slice, record.slot), (slice, 2));
            assert_eq!((record.status, record.request), (Status::Ok, seed));
            let kind = match slice + 1 < SLICES {
                true => CompletionKind::Slice,
                false => CompletionKind::Final,
            };
            assert_eq!(record.kind, kind);
            let at = usize::from(slice) * STEP;
            let mut stored = [0; STEP];
            client
                .memory(region)
                .expect("registered")
                .read(at, &mut stored);
            assert!(
                stored == wanted[at..at + STEP],
                "the bytes of slice {slice}"
            );
        }
    }
}

/// A cancel reaches the worker after its request and ends it; one that comes too late does nothing.
pub fn cancel_is_delivered<H: Harness>() {
    let mut bench = Bench::<H>::start(1);
    let mut client = bench.client("cancel", 8);
    for round in 0..20 {
        for slot in [3, 5] {
            client.submit(0, slot, &Task::Hold.frame()).expect("open");
        }
        if round % 2 == 0 {
            bench.harness.run();
        }
        for slot in [5, 3] {
            // Said again and again it is one cancel.
            for _ in 0..100 {
                client.cancel(0, slot).expect("open");
            }
            let record = bench.record(&mut client, 0);
            assert_eq!((record.slot, record.status), (slot, Status::Cancelled));
        }
        // The requests have ended: nothing holds these slots, so nothing can be cancelled.
        client.cancel(0, 3).expect("open");
        // A cancel that crosses the final record: the worker ignores it, and the slot goes on working.
        client.submit(0, 0, &Task::Echo.frame()).expect("open");
        client.cancel(0, 0).expect("open");
        assert_eq!(bench.record(&mut client, 0).status, Status::Ok);
        assert_eq!(bench.ask(&mut client, 0, &Task::Echo).status, Status::Ok);
    }
}

/// Each lane has its own slots and records, and its own worker.
pub fn lanes_are_apart<H: Harness>() {
    let mut bench = Bench::<H>::start(3);
    let mut client = bench.client("lanes", 2);
    for lane in 0..3 {
        let frame = Task::echo(100, u64::from(lane));
        client.submit(lane, 1, &frame).expect("open");
    }
    for lane in [2, 0, 1] {
        let wanted = fingerprint(&Task::echo(100, u64::from(lane)));
        assert_eq!(bench.record(&mut client, lane).request, wanted);
        assert!(client.poll(lane).expect("open").is_none());
    }
    for journal in &bench.journals {
        let requests = journal.count(|e| {
            matches!(
                e,
                super::Entry::Saw(Event::Request {
                    slot: 1,
                    len: 100,
                    ..
                })
            )
        });
        assert_eq!(requests, 1);
    }
}

/// A region whose memory was taken away is reported as lost; other regions and clients go on.
pub fn lost_region<H: Harness>() {
    lost_while::<H>(false);
    lost_while::<H>(true);
}

/// As [`lost_region`], with memory of request data, or of results.
fn lost_while<H: Harness>(reading: bool) {
    let mut bench = Bench::<H>::start(1);
    let mut client = bench.client("lost", 4);
    let mut other = bench.client("other", 4);
    let lost = match reading {
        true => client.register_source(2 << 20).expect("a region"),
        false => register(&mut client, 2 << 20),
    };
    let kept = register(&mut client, 4096);
    let others = register(&mut other, 4096);
    if !bench.harness.lose(&mut client, lost) {
        return;
    }
    let fill = |region: RegionId| Task::Fill {
        region: region.0,
        offset: 0,
        len: 4096,
        seed: 1,
        slices: 1,
    };
    let copy = Task::Copy {
        from: lost.0,
        offset: 0,
        len: 64,
        to: kept.0,
        to_offset: 0,
    };
    let task = if reading { copy } else { fill(lost) };
    assert_eq!(bench.ask(&mut client, 0, &task).status, Status::RegionLost);
    assert_eq!(bench.ask(&mut client, 0, &fill(kept)).status, Status::Ok);
    assert_eq!(bench.ask(&mut other, 0, &fill(others)).status, Status::Ok);
}

fn register<C: ClientPort>(client: &mut C, bytes: usize) -> RegionId {
    let region = client.register(bytes).expect("a region");
    assert!(client.memory(region).expect("registered").len() >= bytes);
    region
}
