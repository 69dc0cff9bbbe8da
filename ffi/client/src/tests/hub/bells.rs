//! Bells, and the thread that rings them.

use std::sync::atomic::{AtomicBool, AtomicUsize};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::threads::{Running, dataplane};
use super::*;

/// Whether the bell's descriptor can be read within a time.
fn is_readable(bell: &Bell<StandIn>, within: Duration) -> bool {
    let mut fds = [PollFd::new(bell, PollFlags::IN)];
    let limit = Timespec::try_from(within).expect("some seconds");
    poll(&mut fds, Some(&limit)).expect("polled") > 0
}

/// Waits for so many tokens, as an event loop does.
pub(super) fn listen(bell: &Bell<StandIn>, count: usize) -> Vec<u64> {
    let mut tokens = Vec::new();
    while tokens.len() < count {
        assert!(is_readable(bell, LONG / 2), "a lost wake-up");
        bell.heard(&mut tokens);
    }
    tokens
}

fn submit(hub: &TestHub, schema: &BoundSchema, id: u32) -> Pending<StandIn> {
    let options = RequestOptions::default();
    let sent = hub.submit(schema, &ask(&[id]), Place::Pool, &options);
    sent.expect("sent")
}

/// Waits until the thread that looks for answers has nothing to do.
pub(super) fn until_parked(hub: &TestHub) {
    while !hub.shared.lock().expect("open").is_parked() {
        thread::yield_now();
    }
}

#[test]
fn a_bell_is_rung_for_every_answer() {
    let hub = hub(4, sleepy(), HubOptions::default());
    let schema = bind(&hub);
    let bell = hub.bell().expect("a bell");
    let mut requests: Vec<_> = (0..4).map(|id| submit(&hub, &schema, id)).collect();
    for (request, token) in requests.iter().zip(10..) {
        request.ring(&bell, token).expect("in flight");
    }
    until_asleep(&hub);
    assert!(!is_readable(&bell, Duration::ZERO));
    with_port(&hub, |port| port.answer(2, Refusal::whole(Status::Ok)));
    assert_eq!(listen(&bell, 1), [12]);
    assert!(!is_readable(&bell, Duration::ZERO), "it was heard");
    let reply = requests[2].try_take().expect("open").expect("answered");
    assert_answers(&reply, &schema, &[2]);
    assert!(requests[0].try_take().expect("open").is_none());
    assert!(matches!(
        requests[2].try_take(),
        Err(ClientError::UnknownTicket)
    ));
    assert!(matches!(
        requests[2].ring(&bell, 0),
        Err(ClientError::UnknownTicket)
    ));
    with_port(&hub, |port| port.answer_all(Status::Ok));
    let mut tokens = listen(&bell, 3);
    tokens.sort_unstable();
    assert_eq!(tokens, [10, 11, 13]);
    // Whoever rings late is told at once.
    requests[0].ring(&bell, 20).expect("answered");
    assert!(is_readable(&bell, Duration::ZERO));
    assert_eq!(listen(&bell, 1), [20]);
}

#[test]
fn many_loops_and_waiting_threads_lose_no_wake_up() {
    const ROUNDS: u32 = 10_000;
    const IN_FLIGHT: usize = 3;
    let hub = hub(8, sleepy(), HubOptions::default());
    let schema = bind(&hub);
    let (stop, running) = (AtomicBool::new(false), AtomicUsize::new(4));
    let (hub, schema, stop, running) = (&hub, &schema, &stop, &running);
    thread::scope(|scope| {
        scope.spawn(|| dataplane(hub, stop));
        for number in 0..2 {
            // Two event loops, which never wait but for their bells.
            scope.spawn(move || {
                let _running = Running { hub, running, stop };
                let mut random = fastrand::Rng::with_seed(number);
                let bell = hub.bell().expect("a bell");
                let mut requests = Vec::new();
                let (mut tokens, mut asked) = (Vec::new(), 0);
                while asked < ROUNDS || !requests.is_empty() {
                    while asked < ROUNDS && requests.len() < IN_FLIGHT {
                        let request = submit(hub, schema, asked);
                        if random.u8(..) < 128 {
                            thread::yield_now();
                        }
                        request.ring(&bell, asked.into()).expect("sent");
                        asked += 1;
                        match random.u8(..) {
                            0..8 => drop(request),
                            _ => requests.push((u64::from(asked - 1), request)),
                        }
                    }
                    tokens.clear();
                    if !requests.is_empty() {
                        assert!(is_readable(&bell, LONG / 2), "a lost wake-up");
                        bell.heard(&mut tokens);
                    }
                    // Tokens of what was dropped after its answer are among them.
                    requests.retain_mut(|(token, request)| {
                        let rung = tokens.contains(token);
                        if rung {
                            let reply = request.try_take().expect("open");
                            let ids = [u32::try_from(*token).expect("an id")];
                            assert_answers(&reply.expect("it was rung"), schema, &ids);
                        }
                        !rung
                    });
                }
            });
            // Two threads that wait in person, now and then: who leads changes all the time.
            scope.spawn(move || {
                let _running = Running { hub, running, stop };
                let mut random = fastrand::Rng::with_seed(number + 2);
                for id in 0..ROUNDS {
                    let mut pending = submit(hub, schema, id);
                    let (limit, since) = (random.u64(0..300), Instant::now());
                    let how = match random.u8(..) {
                        0..16 => Wait::Poll,
                        _ => Wait::Block,
                    };
                    let reply = match pending.wait_for(how, Duration::from_micros(limit)) {
                        Ok(None) => pending.wait(Wait::Block),
                        outcome => outcome.map(|reply| reply.expect("some")),
                    };
                    assert_answers(&reply.expect("open"), schema, &[id]);
                    assert!(since.elapsed() < LONG / 2, "a lost wake-up");
                    (0..random.u8(..4)).for_each(|_| thread::yield_now());
                }
            });
        }
    });
    assert_eq!(hub.held().expect("open"), 0, "everything was given back");
    until_parked(hub);
}

#[test]
fn threads_that_wait_in_person_take_the_lead() {
    let hub = hub(4, sleepy(), HubOptions::default());
    let schema = bind(&hub);
    let bell = hub.bell().expect("a bell");
    let belled = submit(&hub, &schema, 1);
    belled.ring(&bell, 1).expect("in flight");
    until_asleep(&hub);
    let waits = submit(&hub, &schema, 2);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| waits.wait(Wait::Block).expect("answered"));
        // The other one has got up, and follows.
        while !hub.shared.lock().expect("open").is_led_in_person() {
            thread::yield_now();
        }
        // The waiter rings for the other's, and sleeps on.
        with_port(&hub, |port| port.answer(0, Refusal::whole(Status::Ok)));
        assert_eq!(listen(&bell, 1), [1]);
        assert!(!waiter.is_finished());
        with_port(&hub, |port| port.answer_all(Status::Ok));
        assert_answers(&waiter.join().expect("no panic"), &schema, &[2]);
    });
    // Whoever leaves passes the lead back.
    let again = submit(&hub, &schema, 3);
    again.ring(&bell, 3).expect("in flight");
    let mut waits = submit(&hub, &schema, 4);
    let short = Duration::from_millis(1);
    let waited = waits.wait_for(Wait::Block, short).expect("open");
    assert!(waited.is_none());
    until_asleep(&hub);
    with_port(&hub, |port| port.answer(0, Refusal::whole(Status::Ok)));
    assert_eq!(listen(&bell, 1), [3]);
    drop((belled, again));
}

#[test]
fn bells_and_what_they_owe_are_bounded() {
    let first = hub(1, Backoff::default(), HubOptions::default());
    let other = hub(1, Backoff::default(), HubOptions::default());
    let schema = bind(&first);
    let mut bells: Vec<_> = (0..16).map(|_| first.bell().expect("few")).collect();
    let clone = bells[3].clone();
    let error = first.bell().expect_err("too many");
    assert!(
        matches!(
            error,
            ClientError::TooLarge {
                given: 17,
                limit: 16,
                ..
            }
        ),
        "{error}"
    );
    bells.remove(3);
    assert!(first.bell().is_err(), "a clone is left of it");
    drop(clone);
    let bell = first.bell().expect("room for one");

    let request = submit(&first, &schema, 1);
    let error = request.ring(&other.bell().expect("a bell"), 0);
    let other_bell = ClientError::OtherClient { what: "bell" }.to_string();
    assert_eq!(error.expect_err("the other's").to_string(), other_bell);
    // A bell that is given again and again is owed once.
    for token in 0..100 {
        request.ring(&bell, token).expect("in flight");
    }
    with_port(&first, |port| port.answer_all(Status::Ok));
    assert_eq!(listen(&bell, 1), [99]);
    // Twice as many as the two lanes can have requests, of which half are to be taken.
    let owed = (0..).find(|&token| request.ring(&bell, token).is_err());
    assert_eq!(owed, Some(8));
    let error = request.ring(&bell, 8).expect_err("too many");
    assert!(
        matches!(
            error,
            ClientError::TooLarge {
                given: 9,
                limit: 8,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(listen(&bell, 8), [0, 1, 2, 3, 4, 5, 6, 7]);
    request.ring(&bell, 8).expect("heard");
}

#[test]
fn what_is_dropped_is_not_rung_for() {
    let hub = hub(4, sleepy(), HubOptions::default());
    let schema = bind(&hub);
    let (bell, dropped) = (hub.bell().expect("a bell"), hub.bell().expect("a bell"));
    // The bell.
    let request = submit(&hub, &schema, 1);
    request.ring(&dropped, 1).expect("in flight");
    let weak = std::sync::Arc::downgrade(&dropped.chime);
    drop(dropped);
    assert_eq!(weak.strong_count(), 0, "its descriptor is closed");
    with_port(&hub, |port| port.answer_all(Status::Ok));
    until_parked(&hub);
    let reply = request.wait(Wait::Block).expect("answered");
    assert_answers(&reply, &schema, &[1]);
    // The request.
    let (request, other) = (submit(&hub, &schema, 2), submit(&hub, &schema, 3));
    request.ring(&bell, 2).expect("in flight");
    other.ring(&bell, 3).expect("in flight");
    drop(request);
    assert_eq!(hub.pending().expect("open"), 2);
    with_port(&hub, |port| port.answer_all(Status::Ok));
    assert_eq!(listen(&bell, 1), [3]);
    until_parked(&hub);
    assert!(!is_readable(&bell, Duration::ZERO));
    // The client, with a request in flight.
    let request = submit(&hub, &schema, 4);
    request.ring(&bell, 4).expect("in flight");
    until_asleep(&hub);
    drop((other, reply, hub));
    drop(request);
    let mut tokens = Vec::new();
    bell.heard(&mut tokens);
    assert_eq!(tokens, [0; 0]);
}

#[test]
fn a_panic_with_the_lock_held_is_told() {
    let hub = hub(4, Backoff::default(), HubOptions::default());
    let schema = bind(&hub);
    let bell = hub.bell().expect("a bell");
    let request = submit(&hub, &schema, 1);
    request.ring(&bell, 1).expect("in flight");
    thread::scope(|scope| {
        let waits = submit(&hub, &schema, 2);
        let waits = scope.spawn(|| waits.wait(Wait::Block).expect_err("stopped"));
        let panics = scope.spawn(|| with_port(&hub, |_| panic!("planned")));
        panics.join().expect_err("it panics");
        let error = waits.join().expect("no panic");
        assert!(error.to_string().contains("panicked"), "{error}");
    });
    assert_eq!(listen(&bell, 1), [1]);
    assert!(matches!(
        request.ring(&bell, 1),
        Err(ClientError::Stopped { .. })
    ));
    hub.close();
    assert!(hub.is_closed());
}

/// System calls by which this thread has read so far; None where the kernel does not count.
fn reads() -> Option<u64> {
    let counts = std::fs::read_to_string("/proc/thread-self/io").ok()?;
    let reads = counts.lines().find_map(|line| line.strip_prefix("syscr: "));
    reads?.parse().ok()
}

#[test]
fn who_listens_to_a_bell_that_is_not_rung_makes_no_system_call() {
    let hub = hub(4, sleepy(), HubOptions::default());
    let schema = bind(&hub);
    let bell = hub.bell().expect("a bell");
    let request = submit(&hub, &schema, 1);
    request.ring(&bell, 7).expect("in flight");
    until_asleep(&hub);
    with_port(&hub, |port| port.answer_all(Status::Ok));
    assert_eq!(listen(&bell, 1), [7]);
    let Some(before) = reads() else {
        println!("skipped: the kernel does not count system calls (CONFIG_TASK_IO_ACCOUNTING)");
        return;
    };
    // What is counted in between is what counting itself takes.
    let counting = reads().expect("counted before") - before;
    let mut tokens = Vec::new();
    (0..1000).for_each(|_| bell.heard(&mut tokens));
    let between = reads().expect("counted before") - before;
    assert_eq!((between, tokens.len()), (2 * counting, 0));
}
