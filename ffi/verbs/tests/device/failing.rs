//! What fails gives everything back and says why.

use std::time::{Duration, Instant};

use rowmill_verbs::{
    CmEventKind, DeviceWatch, Kind, Local, Operation, Piece, Remote, Signal, State, Status, Trouble,
};

use crate::pair::{BLOCK, Pair, device, next_event};

#[test]
fn a_failed_queue_pair_gives_every_block_back() {
    let Some(context) = device() else { return };
    let mut pair = Pair::with(
        &context,
        crate::pair::CAPACITY,
        &crate::pair::parameters(),
        0,
    );
    let free = pair.client.slab.free();
    let key = pair.client.key;
    for note in 100..105 {
        let block = pair.client.block(0);
        pair.client.qp.receive(block, key, note).expect("a receive");
    }
    pair.client.qp.fail().expect("failed");
    pair.client.qp.fail().expect("the second time does nothing");
    // What is posted to a failed queue pair is flushed like what was posted before.
    let blocks: Vec<_> = (0..16).map(|n| pair.client.block(n)).collect();
    let remote = pair.server.shared.remote();
    let mut batch = pair.client.qp.batch();
    for (n, block) in blocks.into_iter().enumerate() {
        let local = Local {
            block,
            key,
            pieces: &[Piece::from(0..BLOCK)],
            note: n as u32,
        };
        batch
            .post(Operation::Write(remote), local, Signal::No)
            .expect("room");
    }
    batch.ring().expect("posted");
    let began = Instant::now();
    let mut done = pair.client.drain();
    while pair.client.qp.blocks_in_flight() > 0 && began.elapsed() < Duration::from_secs(5) {
        done.extend(pair.client.try_next());
    }
    println!(
        "drained after {:?} with {} completions",
        began.elapsed(),
        done.len()
    );
    assert!(
        done.iter().all(|done| done.status == Status::Flushed),
        "{done:?}"
    );
    assert!(done.iter().any(|done| done.kind == Some(Kind::Beacon)));
    let mut notes: Vec<u32> = done.iter().flat_map(|done| done.notes()).collect();
    notes.sort();
    let expected: Vec<u32> = (0..16).chain(100..105).collect();
    assert_eq!(notes, expected);
    drop(done);
    assert_eq!(pair.client.slab.free(), free);
}

#[test]
fn destroying_gives_back_what_has_not_completed() {
    let Some(context) = device() else { return };
    let mut pair = Pair::with(
        &context,
        crate::pair::CAPACITY,
        &crate::pair::parameters(),
        0,
    );
    let free = pair.client.slab.free();
    let (key, remote) = (pair.client.key, pair.server.shared.remote());
    let (one, other, third) = (
        pair.client.block(1),
        pair.client.block(2),
        pair.client.block(3),
    );
    pair.client.qp.receive(one, key, 1).expect("a receive");
    let mut batch = pair.client.qp.batch();
    let local = Local {
        block: other,
        key,
        pieces: &[Piece::from(0..BLOCK)],
        note: 2,
    };
    batch
        .post(Operation::Write(remote), local, Signal::No)
        .expect("room");
    batch.open(third, key, 3);
    batch
        .post_open(Operation::Write(remote), &[Piece::from(0..8)], Signal::No)
        .expect("room");
    batch.ring().expect("posted");
    let slab = pair.client.slab.clone();
    let left = pair.client.completions.handle().left();
    let remains = pair.client.qp.destroy().expect("destroyed");
    let notes: Vec<u32> = remains.map(|(_, note)| note).collect();
    assert_eq!(notes, [2, 3, 1]);
    assert_eq!(slab.free(), free);
    // Of two sends and a receive there may be completions in the queue, until it has been emptied.
    let handle = pair.client.completions.handle().clone();
    assert_eq!(handle.left(), left + 32 + 1 + 16 - 3);
    while !pair.client.completions.poll().expect("a poll").is_empty() {}
    assert_eq!(handle.left(), left + 32 + 1 + 16);
}

#[test]
fn dropping_gives_back_to_the_slab() {
    let Some(context) = device() else { return };
    let mut pair = Pair::with(
        &context,
        crate::pair::CAPACITY,
        &crate::pair::parameters(),
        0,
    );
    let (slab, key) = (pair.client.slab.clone(), pair.client.key);
    let free = slab.free();
    let block = pair.client.block(1);
    pair.client.qp.receive(block, key, 1).expect("a receive");
    assert_eq!(slab.free(), free - 1);
    drop(pair);
    assert_eq!(slab.free(), free);
}

#[test]
fn a_wrong_key_is_refused_by_the_peer() {
    let Some(context) = device() else { return };
    let watch = DeviceWatch::start(&context).expect("a watch");
    let mut pair = Pair::new(&context);
    let (block, key) = (pair.client.block(1), pair.client.key);
    let good = pair.server.shared.remote();
    let wrong = Remote {
        key: good.key ^ 0x55,
        ..good
    };
    let mut batch = pair.client.qp.batch();
    let local = Local {
        block,
        key,
        pieces: &[Piece::from(0..64)],
        note: 9,
    };
    batch
        .post(Operation::Write(wrong), local, Signal::No)
        .expect("room");
    batch.ring().expect("posted");
    let done = pair.client.next();
    assert_eq!((done.status, done.notes()), (Status::RemoteAccess, vec![9]));
    let mut byte = [0];
    pair.server.shared.copy_out(0, &mut byte);
    assert_eq!(byte, [0]);
    // The device has moved this side's queue pair to the error state by itself.
    let state = pair.client.qp.query().expect("attributes").state;
    assert_eq!(state, State::Error);
    pair.client.qp.fail().expect("failed");
    pair.client.drain();
    println!(
        "events {:?}; health of the target {:?}",
        watch.counts(),
        pair.server.qp.health()
    );
    println!(
        "access trouble noted: {}",
        pair.server.qp.health().had(Trouble::Access)
    );
}

#[test]
fn a_peer_that_is_gone_is_noticed() {
    let Some(context) = device() else { return };
    let mut pair = Pair::new(&context);
    let remote = pair.server.shared.remote();
    // The target's queue pair is destroyed behind the connection manager's back: no packet is answered.
    drop(pair.server.qp.destroy().expect("destroyed"));
    let began = Instant::now();
    let mut batch = pair.client.qp.batch();
    batch
        .post_inline(Operation::Write(remote), &[1], Signal::No)
        .expect("room");
    batch.ring().expect("posted");
    let done = pair.client.next();
    let waited = began.elapsed();
    println!("retries exceeded after {waited:?}");
    assert_eq!(done.status, Status::RetriesExceeded);
    assert!(waited < Duration::from_secs(10), "{waited:?}");
}

#[test]
fn a_receiver_that_is_not_ready_is_waited_for_a_bounded_time() {
    let Some(context) = device() else { return };
    let mut pair = Pair::with(
        &context,
        crate::pair::CAPACITY,
        &crate::pair::parameters(),
        0,
    );
    let remote = pair.server.shared.remote();
    let began = Instant::now();
    let mut batch = pair.client.qp.batch();
    let to = Operation::WriteImmediate(remote, 1);
    batch.post_inline(to, &[1], Signal::Yes).expect("room");
    batch.ring().expect("posted");
    let done = pair.client.next();
    println!("RNR retries exceeded after {:?}", began.elapsed());
    assert_eq!(done.status, Status::RnrRetriesExceeded);
}

#[test]
fn disconnecting_is_told_to_the_peer_and_flushes() {
    let Some(context) = device() else { return };
    let mut pair = Pair::new(&context);
    pair.client.qp.fail().expect("failed");
    pair.client_connection.disconnect().expect("disconnected");
    let ended = pair.server_connection.token();
    loop {
        let event = next_event(&pair.channel);
        if event.id == ended {
            assert!(matches!(event.kind, CmEventKind::Disconnected), "{event:?}");
            break;
        }
    }
    pair.server.qp.fail().expect("failed");
    pair.server_connection.disconnect().expect("disconnected");
    pair.server_connection.disconnect().expect("twice is fine");
    pair.client.drain();
    let done = pair.server.drain();
    let receives = done.iter().filter(|done| done.kind == Some(Kind::Receive));
    assert_eq!(receives.count(), 16, "every receive is flushed");
}

#[test]
fn a_completion_of_a_former_queue_pair_is_foreign() {
    let Some(context) = device() else { return };
    let mut first = Pair::new(&context);
    first.client.qp.fail().expect("failed");
    std::thread::sleep(Duration::from_millis(20));
    // Completions of the failed queue pair are shown to another one.
    let mut second = Pair::new(&context);
    let polled = first.client.completions.poll().expect("a poll");
    assert!(!polled.is_empty());
    for completion in polled {
        assert!(second.client.qp.retire(completion).is_err());
        assert!(second.server.qp.retire(completion).is_err());
        assert!(first.client.qp.retire(completion).is_ok());
        assert!(first.client.qp.retire(completion).is_err(), "once only");
    }
}
