//! A session that threads share.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rowmill_wire::{Completion, CompletionKind};

use super::*;

type TestHub = Hub<StandIn>;

/// A dataplane that is not there for so long that a wake-up that gets lost shows.
const LONG: Duration = Duration::from_secs(600);

fn hub(credits: u16, backoff: Backoff, options: HubOptions) -> TestHub {
    let mut session = session(2, credits, 1);
    session.options.backoff = backoff;
    Hub::over(session, options).expect("descriptors")
}

fn sleepy() -> Backoff {
    Backoff {
        spins: 0,
        yields: 0,
        sleep: LONG,
    }
}

fn bind(hub: &TestHub) -> BoundSchema {
    let features = [
        ("item", "items", Pooling::Sum, DIM),
        ("user", "users", Pooling::Sum, DIM),
    ];
    let (schema, _) = Schema::side_by_side(64, features);
    hub.bind(schema).expect("bound")
}

/// A bag a feature for each id.
fn ask(ids: &[u32]) -> Batch {
    let mut batch = Batch::new(ids.len()).expect("bags");
    for _ in 0..2 {
        let lengths = vec![1; ids.len()];
        let pushed = batch.push(Division::Lengths(&lengths), ids);
        pushed.expect("a feature");
    }
    batch
}

fn assert_answers(reply: &Reply, schema: &BoundSchema, ids: &[u32]) {
    assert_eq!(reply.outcome, Ok(()));
    let mut vector = [0.0; DIM as usize];
    for (bag, &id) in ids.iter().enumerate() {
        for feature in 0..2 {
            let read = reply
                .lease
                .read_vector(schema, feature, bag as u32, &mut vector);
            read.expect("in the result");
            assert_eq!(vector, [0, 1, 2, 3].map(|d| (id + d) as f32));
        }
    }
}

/// Does something to the port as a dataplane would, and wakes who sleeps.
fn with_port<T>(hub: &TestHub, act: impl FnOnce(&mut StandIn) -> T) -> T {
    let mut inner = hub.shared.lock().expect("open");
    let done = act(&mut inner.session.port);
    hub.shared.ring(&mut inner);
    done
}

/// Answers what has come, some of it at a time and in any order, until it is told to stop.
fn dataplane(hub: &TestHub, stop: &AtomicBool) {
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
            hub.shared.ring(&mut inner);
        }
        drop(inner);
        thread::yield_now();
    }
}

/// A thread that wants answers; the dataplane stops with the last of them, also where one panics.
struct Running<'a> {
    hub: &'a TestHub,
    running: &'a AtomicUsize,
    stop: &'a AtomicBool,
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

/// Waits until the leader sleeps.
fn until_asleep(hub: &TestHub) {
    while !hub.shared.sleeps() {
        thread::yield_now();
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
fn what_is_dropped_comes_back() {
    let hub = hub(2, Backoff::default(), HubOptions::default());
    let schema = bind(&hub);
    let options = RequestOptions::default();
    let submit = || hub.submit(&schema, &ask(&[5]), Place::Pool, &options);
    // Before its answer, and after.
    for answers_first in [false, true] {
        let pending = submit().expect("sent");
        if answers_first {
            with_port(&hub, |port| port.answer_all(Status::Ok));
            assert!(pending.is_done().expect("open"));
        }
        drop(pending);
        assert_eq!(hub.pending().expect("open"), usize::from(!answers_first));
        with_port(&hub, |port| port.answer_all(Status::Ok));
        assert_eq!(hub.pending().expect("open"), 0);
        assert_eq!(hub.held().expect("open"), 0);
    }
    // Only the last clone gives back, from another thread.
    let pending = submit().expect("sent");
    with_port(&hub, |port| port.answer_all(Status::Ok));
    let Reply { lease, .. } = pending.wait(Wait::Poll).expect("answered");
    let other = lease.clone();
    drop(lease);
    assert_eq!(hub.held().expect("open"), 1);
    thread::scope(|scope| scope.spawn(move || drop(other)).join().expect("no panic"));
    assert_eq!(hub.held().expect("open"), 0);
    // A lease outlives its client, and so does its memory.
    let pending = submit().expect("sent");
    with_port(&hub, |port| port.answer_all(Status::Ok));
    let reply = pending.wait(Wait::Poll).expect("answered");
    let schema = schema.clone();
    drop(hub);
    assert_answers(&reply, &schema, &[5]);
}

#[test]
fn held_results_bound_what_can_be_asked_for() {
    let few = HubOptions {
        results: 3,
        ..HubOptions::default()
    };
    // A region of the stand-in has at most 4 MiB; results of 1 MiB fill it.
    let wide = HubOptions {
        pool_region_bytes: 1,
        ..HubOptions::default()
    };
    for (options, bytes, most) in [(few, 32, 3), (wide, 1 << 20, 32)] {
        let hub = hub(8, Backoff::default(), options);
        let (mut schema, _) = Schema::side_by_side(64, [("item", "items", Pooling::Sum, DIM)]);
        schema.features[0].offset = bytes - 4 * u64::from(DIM);
        let schema = hub.bind(schema).expect("bound");
        let mut batch = Batch::new(1).expect("a bag");
        let pushed = batch.push(Division::Lengths(&[1]), &[3u32][..]);
        pushed.expect("a feature");
        let mut held = Vec::new();
        let options = RequestOptions::default();
        let error = loop {
            match hub.submit(&schema, &batch, Place::Pool, &options) {
                Ok(pending) => {
                    with_port(&hub, |port| port.answer_all(Status::Ok));
                    held.push(pending.wait(Wait::Poll).expect("answered").lease);
                }
                Err(error) => break error,
            }
        };
        assert_eq!(held.len(), most);
        assert!(!error.would_block(), "waiting would not help");
        assert!(
            matches!(error, ClientError::ResultsHeld { needed, held } if needed == bytes && held == most),
            "{error}"
        );
        held.pop();
        let pending = hub.submit(&schema, &batch, Place::Pool, &options);
        drop(pending.expect("room again"));
    }
}

#[test]
fn a_place_of_ones_own_is_used_and_given_back() {
    let hub = hub(2, Backoff::default(), HubOptions::default());
    let schema = bind(&hub);
    let region = hub.region(4096).expect("a region");
    let options = RequestOptions::default();
    let submit = |at| hub.submit(&schema, &ask(&[9]), Place::At(region, at), &options);
    let pending = submit(64).expect("sent");
    assert!(matches!(
        submit(80),
        Err(ClientError::TargetInUse { offset: 80, .. })
    ));
    assert!(matches!(submit(4090), Err(ClientError::TargetPlace { .. })));
    assert!(matches!(
        hub.unregister(region),
        Err(ClientError::RegionInUse { targets: 1 })
    ));
    with_port(&hub, |port| port.answer_all(Status::Ok));
    let reply = pending.wait(Wait::Poll).expect("answered");
    assert_answers(&reply, &schema, &[9]);
    assert_eq!(reply.lease.window().len(), 2 * 4 * DIM as usize);
    drop(reply);
    hub.unregister(region).expect("free");
    let gone = ClientError::OtherClient { what: "region" }.to_string();
    assert_eq!(submit(64).expect_err("given up").to_string(), gone);
    assert_eq!(hub.unregister(region).expect_err("twice").to_string(), gone);
}

#[test]
fn what_belongs_to_another_client_is_an_error() {
    let (a, b) = (
        hub(2, Backoff::default(), HubOptions::default()),
        hub(2, Backoff::default(), HubOptions::default()),
    );
    let (of_a, of_b) = (bind(&a), bind(&b));
    let region = b.region(4096).expect("a region");
    let options = RequestOptions::default();
    let is_other = |error: ClientError, what: &str| {
        assert!(
            matches!(error, ClientError::OtherClient { what: w } if w == what),
            "{error}"
        );
    };
    let refused = |schema, place| a.submit(schema, &ask(&[1]), place, &options);
    is_other(refused(&of_b, Place::Pool).expect_err("b's"), "schema");
    let place = Place::At(region, 0);
    is_other(refused(&of_a, place).expect_err("b's"), "region");
    is_other(a.unregister(region).expect_err("b's"), "region");
    assert_eq!(a.held().expect("open"), 0);

    let pending = refused(&of_a, Place::Pool).expect("sent");
    with_port(&a, |port| port.answer_all(Status::Ok));
    let lease = pending.wait(Wait::Poll).expect("answered").lease;
    let mut vector = [0.0; DIM as usize];
    let mut read = |schema, feature, vector_of, len: usize| {
        lease.read_vector(schema, feature, vector_of, &mut vector[..len])
    };
    is_other(read(&of_b, 0, 0, 4).expect_err("b's"), "schema");
    for (feature, number, len) in [(2, 0, 4), (0, 1, 4), (0, u32::MAX, 4), (0, 0, 3)] {
        let error = read(&of_a, feature, number, len).expect_err("not there");
        assert!(matches!(error, ClientError::NotInResult { .. }), "{error}");
    }
    for (offset, len) in [(0, 33), (32, 1), (u64::MAX, 1)] {
        let error = lease.read(offset, &mut vec![0; len]).expect_err("outside");
        assert!(matches!(error, ClientError::NotInResult { limit: 32, .. }));
    }
}

#[test]
fn bad_batches_take_nothing() {
    let hub = hub(2, Backoff::default(), HubOptions::default());
    let schema = bind(&hub);
    let options = RequestOptions::default();
    let mut one = Batch::new(1).expect("a bag");
    one.push(Division::Lengths(&[1]), &[3u32][..]).expect("one");
    let sent = hub.submit(&schema, &one, Place::Pool, &options);
    assert!(matches!(
        sent,
        Err(ClientError::FeatureCount { given: 1, bound: 2 })
    ));
    let large = ask(&[1; 65]);
    let sent = hub.submit(&schema, &large, Place::Pool, &options);
    assert!(matches!(
        sent,
        Err(ClientError::TooLarge {
            given: 65,
            limit: 64,
            ..
        })
    ));
    let view = JaggedView::features(0, &[]);
    let sent = hub.submit(&schema, &view, Place::Pool, &options);
    assert!(matches!(
        sent,
        Err(ClientError::Batch(BatchError::Bags { bags: 0 }))
    ));
    assert_eq!(hub.held().expect("open"), 0);
}

#[test]
fn an_end_of_the_connection_is_told_to_all_that_wait() {
    let hub = hub(8, sleepy(), HubOptions::default());
    let schema = bind(&hub);
    let options = RequestOptions::default();
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..4)
            .map(|id| {
                let pending = hub.submit(&schema, &ask(&[id]), Place::Pool, &options);
                let pending = pending.expect("sent");
                scope.spawn(move || pending.wait(Wait::Block).expect("ended").outcome)
            })
            .collect();
        until_asleep(&hub);
        with_port(&hub, |port| port.closed = true);
        for thread in waiting {
            let outcome = thread.join().expect("no panic");
            assert_eq!(outcome, Err(Failure::Disconnected));
        }
    });
    let sent = hub.submit(&schema, &ask(&[1]), Place::Pool, &options);
    assert!(matches!(sent, Err(ClientError::Closed)));
    assert_eq!(hub.held().expect("open"), 0);
}

#[test]
fn a_record_that_makes_no_sense_stops_all_threads() {
    let hub = hub(8, sleepy(), HubOptions::default());
    let schema = bind(&hub);
    let options = RequestOptions::default();
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..4)
            .map(|id| {
                let pending = hub.submit(&schema, &ask(&[id]), Place::Pool, &options);
                let pending = pending.expect("sent");
                scope.spawn(move || pending.wait(Wait::Block).expect_err("stopped"))
            })
            .collect();
        until_asleep(&hub);
        with_port(&hub, |port| {
            let good = port.announce(0, CompletionKind::Slice, 0);
            port.inject(port.arrived[0].lane, Completion { slot: 99, ..good });
        });
        for thread in waiting {
            let error = thread.join().expect("no panic");
            assert!(matches!(error, ClientError::Stopped { .. }), "{error}");
        }
    });
    let sent = hub.submit(&schema, &ask(&[1]), Place::Pool, &options);
    assert!(matches!(sent, Err(ClientError::Stopped { .. })));
}

#[test]
fn a_request_that_is_cancelled_is_answered() {
    let hub = hub(2, Backoff::default(), HubOptions::default());
    let schema = bind(&hub);
    let options = RequestOptions::default();
    let pending = hub.submit(&schema, &ask(&[1]), Place::Pool, &options);
    let pending = pending.expect("sent");
    pending.cancel().expect("open");
    let cancelled = with_port(&hub, |port| {
        port.answer_all(Status::Cancelled);
        port.cancelled.len()
    });
    assert_eq!(cancelled, 1);
    assert!(pending.is_done().expect("open"));
    pending.cancel().expect("nothing happens any more");
    assert_eq!(with_port(&hub, |port| port.cancelled.len()), 1);
    let reply = pending.wait(Wait::Poll).expect("answered");
    let refusal = Refusal::whole(Status::Cancelled);
    assert_eq!(reply.outcome, Err(Failure::Refused(refusal)));
}

#[test]
fn lookups_allocate_nothing() {
    let hub = hub(4, Backoff::default(), HubOptions::default());
    with_port(&hub, |port| port.echoes = true);
    let schema = bind(&hub);
    let options = RequestOptions::default();
    let batches = [ask(&[1]), ask(&[2; 64])];
    let rounds = |count: usize| {
        for i in 0..count {
            let batch = &batches[i % 2];
            let submit = || hub.submit(&schema, batch, Place::Pool, &options);
            let (first, dropped) = (submit().expect("sent"), submit().expect("sent"));
            drop(dropped);
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
