//! Bytes arrive, in all the ways that there are.

use rowmill_verbs::{BATCH, Full, Kind, Local, Operation, Piece, Remote, Signal, Status};

use crate::pair::{BLOCK, Pair, device};

/// A place in the other end's memory.
fn at(remote: Remote, offset: usize) -> Remote {
    Remote {
        address: remote.address + offset as u64,
        ..remote
    }
}

fn bytes_at(end: &crate::pair::End, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    end.shared.copy_out(offset, &mut bytes);
    bytes
}

#[test]
fn write_immediate_and_read() {
    let Some(context) = device() else { return };
    let mut pair = Pair::new(&context);
    let remote = pair.server.shared.remote();
    let (block, key) = (pair.client.block(7), pair.client.key);
    let free = pair.client.slab.free();

    // WRITE of two pieces of a block, which follow one another at the target.
    let mut batch = pair.client.qp.batch();
    let pieces = &[Piece::from(0..1000), Piece::from(3000..BLOCK)];
    let local = Local {
        block,
        key,
        pieces,
        note: 41,
    };
    let to = Operation::Write(at(remote, 5));
    batch.post(to, local, Signal::Yes).expect("room");
    assert_eq!(batch.ring().expect("posted"), 1);
    let done = pair.client.next();
    assert_eq!(
        (done.status, done.kind),
        (Status::Success, Some(Kind::Send))
    );
    assert_eq!(done.notes(), [41]);
    drop(done);
    assert_eq!(pair.client.slab.free(), free + 1);

    // WRITE with immediate: the receive completes after the bytes of both WRITEs are there.
    let mut batch = pair.client.qp.batch();
    let to = Operation::WriteImmediate(at(remote, 8192), 0x0102_0304);
    batch.post_inline(to, &[9; 64], Signal::No).expect("room");
    batch.ring().expect("posted");
    let got = pair.server.next();
    assert_eq!(
        (got.status, got.kind),
        (Status::Success, Some(Kind::Receive))
    );
    assert_eq!((got.immediate, got.bytes), (Some(0x0102_0304), Some(64)));
    let expected = [vec![0; 5], vec![7; 1000 + BLOCK - 3000], vec![0; 1]].concat();
    assert_eq!(bytes_at(&pair.server, 0, expected.len()), expected);
    assert_eq!(
        bytes_at(&pair.server, 8192, 65),
        [vec![9; 64], vec![0]].concat()
    );

    // READ of what the server has.
    pair.server.shared.copy_in(20_000, &[3; 100]);
    let block = pair.client.block(0);
    let mut batch = pair.client.qp.batch();
    let local = Local {
        block,
        key,
        pieces: &[Piece::from(10..110)],
        note: 42,
    };
    let from = Operation::Read(at(remote, 20_000));
    batch.post(from, local, Signal::Yes).expect("room");
    batch.ring().expect("posted");
    let done = pair.client.next();
    assert_eq!((done.status, done.notes()), (Status::Success, vec![42]));
    let block = &done.blocks[0].0;
    assert_eq!(block.as_slice()[..10], [0; 10]);
    assert_eq!(block.as_slice()[10..110], [3; 100]);
    assert_eq!(block.as_slice()[110..], [0; BLOCK - 110]);
    println!("data in order: {}", pair.client.qp.data_in_order());
}

#[test]
fn send_into_a_block() {
    let Some(context) = device() else { return };
    let mut pair = Pair::with(
        &context,
        crate::pair::CAPACITY,
        &crate::pair::parameters(),
        0,
    );
    for note in 0..3 {
        let (block, key) = (pair.server.block(0), pair.server.key);
        pair.server.qp.receive(block, key, note).expect("a receive");
    }
    assert_eq!(pair.server.qp.blocks_in_flight(), 3);
    for note in 0..3u32 {
        let (block, key) = (pair.client.block(note as u8 + 1), pair.client.key);
        let mut batch = pair.client.qp.batch();
        let local = Local {
            block,
            key,
            pieces: &[Piece::from(0..100)],
            note,
        };
        batch
            .post(Operation::Send, local, Signal::Yes)
            .expect("room");
        batch.ring().expect("posted");
        assert_eq!(pair.client.next().notes(), [note]);
        let got = pair.server.next();
        assert_eq!((got.bytes, got.immediate), (Some(100), None));
        assert_eq!(got.notes(), [note]);
        assert_eq!(got.blocks[0].0.as_slice()[..100], [note as u8 + 1; 100]);
    }
}

#[test]
fn one_doorbell_for_a_list_and_blocks_come_back_in_order() {
    let Some(context) = device() else { return };
    let mut pair = Pair::new(&context);
    let remote = pair.server.shared.remote();
    let key = pair.client.key;
    let blocks: Vec<_> = (0..BATCH as u8).map(|n| pair.client.block(n + 1)).collect();
    let doorbells = pair.client.qp.doorbells();
    let mut batch = pair.client.qp.batch();
    for (n, block) in blocks.into_iter().enumerate() {
        let local = Local {
            block,
            key,
            pieces: &[Piece::from(0..BLOCK)],
            note: n as u32,
        };
        // Unsignalled but for the last: its completion brings all of them back.
        let signal = if n + 1 == BATCH {
            Signal::Yes
        } else {
            Signal::No
        };
        let to = Operation::Write(at(remote, n * BLOCK));
        batch.post(to, local, signal).expect("room");
    }
    assert_eq!(batch.room(), 0);
    let full = batch.post_inline(Operation::Write(remote), &[], Signal::No);
    assert!(matches!(full, Err(Full(()))));
    assert_eq!(batch.ring().expect("posted"), BATCH);
    assert_eq!(pair.client.qp.doorbells(), doorbells + 1);
    assert_eq!(pair.client.qp.blocks_in_flight(), BATCH);
    let done = pair.client.next();
    assert_eq!(done.notes(), (0..BATCH as u32).collect::<Vec<_>>());
    for n in 0..BATCH {
        let expected = vec![n as u8 + 1; BLOCK];
        assert_eq!(bytes_at(&pair.server, n * BLOCK, BLOCK), expected);
    }
}

#[test]
fn one_block_for_many_writes() {
    let Some(context) = device() else { return };
    let mut pair = Pair::new(&context);
    let remote = pair.server.shared.remote();
    let key = pair.client.key;
    let mut block = pair.client.block(0);
    for (n, part) in block.as_mut_slice().chunks_mut(256).enumerate() {
        part.fill(n as u8 + 1);
    }
    let free = pair.client.slab.free();
    // Strips with holes between them, in two lists.
    for list in 0..2 {
        let mut batch = pair.client.qp.batch();
        if list == 0 {
            let block = std::mem::replace(&mut block, pair.client.slab.take().expect("a block"));
            batch.open(block, key, 77);
        }
        for n in list * 8..list * 8 + 8 {
            let to = Operation::Write(at(remote, n * 1000));
            let piece = Piece::from(n * 256..n * 256 + 256);
            batch.post_open(to, &[piece], Signal::Yes).expect("room");
        }
        if list == 1 {
            assert!(batch.close().is_none(), "requests are under way");
        }
        batch.ring().expect("posted");
    }
    let notes: Vec<u32> = (0..16).flat_map(|_| pair.client.next().notes()).collect();
    assert_eq!(notes, [77]);
    drop(block);
    assert_eq!(pair.client.slab.free(), free + 1);
    for n in 0..16 {
        let expected = [vec![n as u8 + 1; 256], vec![0; 744]].concat();
        assert_eq!(
            bytes_at(&pair.server, n * 1000, 1000),
            expected,
            "strip {n}"
        );
    }

    // A block that is closed when all is done comes back at once.
    let block = pair.client.block(5);
    let mut batch = pair.client.qp.batch();
    batch.open(block, key, 78);
    let to = Operation::Write(remote);
    batch
        .post_open(to, &[Piece::from(0..8)], Signal::Yes)
        .expect("room");
    batch.ring().expect("posted");
    assert!(pair.client.next().blocks.is_empty());
    let mut batch = pair.client.qp.batch();
    assert!(matches!(batch.close(), Some((_, 78))));
}

#[test]
fn a_list_that_is_not_rung_posts_nothing() {
    let Some(context) = device() else { return };
    let mut pair = Pair::new(&context);
    let remote = pair.server.shared.remote();
    let (key, free) = (pair.client.key, pair.client.slab.free());
    let (one, other) = (pair.client.block(1), pair.client.block(2));
    let mut batch = pair.client.qp.batch();
    let local = Local {
        block: one,
        key,
        pieces: &[Piece::from(0..8)],
        note: 1,
    };
    batch
        .post(Operation::Write(remote), local, Signal::Yes)
        .expect("room");
    batch.open(other, key, 2);
    let to = Operation::Write(at(remote, 100));
    batch
        .post_open(to, &[Piece::from(0..8)], Signal::Yes)
        .expect("room");
    drop(batch);
    assert_eq!(
        pair.client.slab.free(),
        free - 1,
        "the open one is still out"
    );
    assert_eq!(pair.client.qp.sends_outstanding(), 0);
    assert!(matches!(pair.client.qp.batch().close(), Some((_, 2))));
    assert_eq!(pair.client.slab.free(), free);
    let mut batch = pair.client.qp.batch();
    let to = Operation::WriteImmediate(at(remote, 200), 1);
    batch.post_inline(to, &[1], Signal::Yes).expect("room");
    batch.ring().expect("posted");
    assert_eq!(pair.client.next().status, Status::Success);
    assert_eq!(pair.server.next().immediate, Some(1));
    assert_eq!(bytes_at(&pair.server, 0, 108), [0; 108]);
}

#[test]
fn the_send_queue_is_bounded_and_signals_itself() {
    let Some(context) = device() else { return };
    let mut pair = Pair::new(&context);
    let remote = pair.server.shared.remote();
    // Nobody asks for a signal, and still the queue never stays full.
    let mut posted = 0u32;
    for list in 0..300 {
        let mut batch = pair.client.qp.batch();
        for _ in 0..(list % 17).min(batch.room()) {
            let to = Operation::Write(remote);
            let bytes = posted.to_le_bytes();
            batch.post_inline(to, &bytes, Signal::No).expect("room");
            posted += 1;
        }
        batch.ring().expect("posted");
        if pair.client.qp.batch().room() == 0 {
            assert_eq!(pair.client.next().status, Status::Success);
        }
    }
    assert!(pair.client.qp.sends_outstanding() <= 32);
    let mut batch = pair.client.qp.batch();
    if batch.room() > 0 {
        let to = Operation::Write(at(remote, 8));
        batch.post_inline(to, &[1], Signal::Yes).expect("room");
    }
    batch.ring().expect("posted");
    while pair.client.qp.sends_outstanding() > 0 {
        pair.client.next();
    }
    assert_eq!(bytes_at(&pair.server, 0, 4), (posted - 1).to_le_bytes());
}
