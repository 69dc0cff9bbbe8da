//! Who waits for whose answer.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

/// Answers what has come, some of it at a time and in any order, until it is told to stop.
pub(super) fn dataplane(hub: &TestHub, stop: &AtomicBool) {
    let mut random = fastrand::Rng::with_seed(7);
    while !stop.load(Ordering::Relaxed) {
        let mut inner = hub.shared.lock().expect("open");
        let port = &mut inner.session.port;
        let some = random.usize(0..=port.arrived.len());
        for _ in 0..some {
            let at = random.usize(0..port.arrived.len());
            port.answer(at, Refusal::whole(Status::Ok));
        }
        if some > 0 {
            hub.shared.rouse(&mut inner);
        }
        drop(inner);
        thread::yield_now();
    }
}

/// A thread that wants answers; the dataplane stops with the last of them, also where one panics.
pub(super) struct Running<'a> {
    pub(super) hub: &'a TestHub,
    pub(super) running: &'a AtomicUsize,
    pub(super) stop: &'a AtomicBool,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.running.fetch_sub(1, Ordering::Relaxed) == 1 {
            // What nobody waits for is answered, too.
            while self.hub.pending().is_ok_and(|requests| requests > 0) {
                thread::yield_now();
            }
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

fn lookups_of_many_threads(credits: u16, backoff: Backoff) {
    const THREADS: u32 = 8;
    const LOOKUPS: u32 = 2000;
    let hub = hub(credits, backoff, HubOptions::default());
    let schema = bind(&hub);
    let stop = AtomicBool::new(false);
    let running = AtomicUsize::new(THREADS as usize);
    thread::scope(|scope| {
        scope.spawn(|| dataplane(&hub, &stop));
        for number in 0..THREADS {
            let (hub, schema, stop, running) = (&hub, &schema, &stop, &running);
            scope.spawn(move || {
                let _running = Running { hub, running, stop };
                let mut random = fastrand::Rng::with_seed(number.into());
                let (options, mut kept) = (RequestOptions::default(), None);
                for round in 0..LOOKUPS {
                    let id = number << 16 | round;
                    let ids = &[id, id + 1, id + 2][..random.usize(1..=3)];
                    let batch = ask(ids);
                    let how = match random.u8(..) {
                        0..4 => Wait::Poll,
                        _ => Wait::Block,
                    };
                    if random.u8(..) < 16 {
                        // Nobody waits for this one.
                        match hub.submit(schema, &batch, Place::Pool, &options) {
                            Err(error) if error.would_block() => (),
                            sent => drop(sent.expect("sent")),
                        }
                    }
                    let since = Instant::now();
                    let reply = hub.lookup(schema, &batch, Place::Pool, &options, how);
                    let reply = reply.expect("answered");
                    assert!(since.elapsed() < LONG / 2, "a lost wake-up");
                    assert_answers(&reply, schema, ids);
                    // Held over a few rounds, and given back by whichever round it is.
                    if random.u8(..) < 64 {
                        kept = Some((reply.lease.clone(), ids.to_vec()));
                    }
                    if let Some((lease, ids)) = &kept {
                        let mut first = [0.0; DIM as usize];
                        let read = lease.read_vector(schema, 0, 0, &mut first);
                        read.expect("in the result");
                        assert_eq!(first[0], ids[0] as f32, "a held result stays as it is");
                    }
                }
            });
        }
    });
    assert_eq!(hub.held().expect("open"), 0, "everything was given back");
}

#[test]
fn threads_that_poll_get_their_own_answers() {
    lookups_of_many_threads(8, Backoff::default());
}

#[test]
fn threads_that_sleep_get_their_own_answers() {
    lookups_of_many_threads(8, sleepy());
}

#[test]
fn threads_that_sleep_for_room_get_it() {
    lookups_of_many_threads(1, sleepy());
}

#[test]
fn others_submit_while_the_leader_sleeps() {
    let hub = hub(4, sleepy(), HubOptions::default());
    let schema = bind(&hub);
    let options = RequestOptions::default();
    let submit = |id: u32| hub.submit(&schema, &ask(&[id]), Place::Pool, &options);
    let first = submit(1).expect("sent");
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| first.wait(Wait::Block).expect("answered"));
        until_asleep(&hub);
        let mut second = submit(2).expect("sent");
        assert!(hub.shared.sleeps(), "it was left asleep");
        // Taken by this thread, the answer to its request does not wake the sleeper.
        let mut inner = hub.shared.lock().expect("open");
        inner.session.port.answer(1, Refusal::whole(Status::Ok));
        drop(inner);
        let none = Duration::ZERO;
        let reply = second.wait_for(Wait::Poll, none).expect("open");
        assert_answers(&reply.expect("answered"), &schema, &[2]);
        assert!(hub.shared.sleeps(), "it was left asleep");
        // The sleeper's own does.
        let mut inner = hub.shared.lock().expect("open");
        inner.session.port.answer(0, Refusal::whole(Status::Ok));
        drop(inner);
        let mut third = submit(3).expect("sent");
        assert!(third.wait_for(Wait::Poll, none).expect("open").is_none());
        assert_answers(&sleeper.join().expect("no panic"), &schema, &[1]);
    });
}

#[test]
fn a_leader_that_leaves_wakes_the_next() {
    let hub = hub(4, sleepy(), HubOptions::default());
    let schema = bind(&hub);
    let options = RequestOptions::default();
    let submit = |id: u32| hub.submit(&schema, &ask(&[id]), Place::Pool, &options);
    let (mut first, second) = (submit(1).expect("sent"), submit(2).expect("sent"));
    thread::scope(|scope| {
        let leader = scope.spawn(move || {
            let limit = Duration::from_millis(50);
            first.wait_for(Wait::Block, limit).expect("open").is_none()
        });
        while !hub.shared.sleeps() && !leader.is_finished() {
            thread::yield_now();
        }
        let follower = scope.spawn(|| second.wait(Wait::Block).expect("answered"));
        assert!(leader.join().expect("no panic"), "its time was over");
        until_asleep(&hub);
        with_port(&hub, |port| port.answer_all(Status::Ok));
        assert_answers(&follower.join().expect("no panic"), &schema, &[2]);
    });
    // The first one's was dropped on the way.
    assert_eq!(hub.pending().expect("open"), 0);
    assert_eq!(hub.held().expect("open"), 0);
}

#[test]
fn lookups_allocate_nothing() {
    let hub = hub(4, Backoff::default(), HubOptions::default());
    with_port(&hub, |port| port.echoes = true);
    let schema = bind(&hub);
    let options = RequestOptions::default();
    let batches = [ask(&[1]), ask(&[2; 64])];
    let bell = hub.bell().expect("a bell");
    let mut tokens = Vec::new();
    let mut rounds = |count: usize| {
        for i in 0..count {
            let batch = &batches[i % 2];
            let submit = || hub.submit(&schema, batch, Place::Pool, &options);
            let (first, dropped) = (submit().expect("sent"), submit().expect("sent"));
            dropped.ring(&bell, i as u64).expect("sent");
            drop(dropped);
            tokens.clear();
            bell.heard(&mut tokens);
            let reply = first.wait(Wait::Block).expect("answered");
            let other = reply.lease.clone();
            drop(reply);
            let reply = hub.lookup(&schema, batch, Place::Pool, &options, Wait::Block);
            drop((reply.expect("answered"), other));
        }
    };
    rounds(32);
    let measured = allocation_counter::measure(|| rounds(200));
    assert_eq!(measured.count_total, 0, "{measured:?}");
}
