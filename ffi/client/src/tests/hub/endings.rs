//! Requests and connections that end before their time.

use rowmill_wire::{Completion, CompletionKind};

use super::bells::listen;
use super::*;

#[test]
fn an_end_of_the_connection_is_told_to_all_that_wait() {
    let hub = hub(8, sleepy(), HubOptions::default());
    let schema = bind(&hub);
    let options = RequestOptions::default();
    let bell = hub.bell().expect("a bell");
    let belled = hub.submit(&schema, &ask(&[9]), Place::Pool, &options);
    let mut belled = belled.expect("sent");
    belled.ring(&bell, 9).expect("in flight");
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
    assert_eq!(listen(&bell, 1), [9]);
    let reply = belled.try_take().expect("ended").expect("rung");
    assert_eq!(reply.outcome, Err(Failure::Disconnected));
    assert!(hub.is_closed());
    drop(reply);
    let sent = hub.submit(&schema, &ask(&[1]), Place::Pool, &options);
    assert!(matches!(sent, Err(ClientError::Closed)));
    assert_eq!(hub.held().expect("open"), 0);
}

#[test]
fn a_record_that_makes_no_sense_stops_all_threads() {
    let hub = hub(8, sleepy(), HubOptions::default());
    let schema = bind(&hub);
    let options = RequestOptions::default();
    let bell = hub.bell().expect("a bell");
    let belled = hub.submit(&schema, &ask(&[9]), Place::Pool, &options);
    let mut belled = belled.expect("sent");
    belled.ring(&bell, 9).expect("in flight");
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
    assert_eq!(listen(&bell, 1), [9]);
    let error = belled.try_take().expect_err("it has no answer");
    assert!(matches!(error, ClientError::Stopped { .. }), "{error}");
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
fn closing_is_told_to_all_that_wait() {
    let hub = hub(1, sleepy(), HubOptions::default());
    let schema = bind(&hub);
    let options = RequestOptions::default();
    let submit = |id: u32| hub.submit(&schema, &ask(&[id]), Place::Pool, &options);
    // One has been answered before; the others fill both lanes, and two wait for room.
    let answered = submit(7).expect("sent");
    with_port(&hub, |port| port.answer_all(Status::Ok));
    assert!(answered.is_done().expect("open"));
    let belled = submit(1).expect("sent");
    let bell = hub.bell().expect("a bell");
    belled.ring(&bell, 5).expect("in flight");
    thread::scope(|scope| {
        let pending = submit(2).expect("sent");
        let waits = scope.spawn(move || pending.wait(Wait::Block).expect("ended").outcome);
        let room = || {
            let (hub, schema) = (&hub, &schema);
            let look_up = move || {
                let batch = ask(&[3]);
                hub.lookup(schema, &batch, Place::Pool, &options, Wait::Block)
            };
            scope.spawn(look_up)
        };
        let rooms = [room(), room(), room()];
        until_asleep(&hub);
        hub.close();
        assert_eq!(waits.join().expect("told"), Err(Failure::Disconnected));
        for thread in rooms {
            match thread.join().expect("told") {
                Ok(reply) => assert_eq!(reply.outcome, Err(Failure::Disconnected)),
                Err(error) => assert!(matches!(error, ClientError::Closed), "{error}"),
            }
        }
    });
    assert_eq!(listen(&bell, 1), [5]);
    let reply = belled.wait(Wait::Block).expect("ended");
    assert_eq!(reply.outcome, Err(Failure::Disconnected));
    assert!(hub.is_closed());
    hub.close();

    let is_closed = |error: ClientError| assert!(matches!(error, ClientError::Closed), "{error}");
    is_closed(submit(1).expect_err("closed"));
    is_closed(hub.tables().expect_err("closed"));
    is_closed(hub.region(4096).expect_err("closed"));
    is_closed(hub.bell().expect_err("closed"));
    // What had come before is there.
    let reply = answered.wait(Wait::Block).expect("answered");
    assert_answers(&reply, &schema, &[7]);
    drop(hub);
    assert_answers(&reply, &schema, &[7]);
}

#[test]
fn a_request_is_cancelled_while_a_thread_waits_for_it() {
    let hub = hub(8, sleepy(), HubOptions::default());
    let schema = bind(&hub);
    let options = RequestOptions::default();
    let submit = || hub.submit(&schema, &ask(&[5]), Place::Pool, &options);
    let pending = submit().expect("sent");
    let canceller = pending.canceller().expect("open");
    thread::scope(|scope| {
        let waits = scope.spawn(move || pending.wait(Wait::Block).expect("answered").outcome);
        until_asleep(&hub);
        canceller.cancel().expect("open");
        let cancelled = with_port(&hub, |port| {
            port.answer_all(Status::Cancelled);
            port.cancelled.len()
        });
        assert_eq!(cancelled, 1);
        assert!(waits.join().expect("no panic").is_err());
    });
    // The next request has its place, and is not meant.
    let next = submit().expect("sent");
    canceller.cancel().expect("nothing happens");
    assert_eq!(with_port(&hub, |port| port.cancelled.len()), 1);
    with_port(&hub, |port| port.answer_all(Status::Ok));
    let reply = next.wait(Wait::Poll).expect("answered");
    assert_answers(&reply, &schema, &[5]);
}

#[test]
fn the_first_of_many_that_is_answered_is_found() {
    let of = hub(8, Backoff::default(), HubOptions::default());
    let other = hub(8, Backoff::default(), HubOptions::default());
    let (schema, options) = (bind(&of), RequestOptions::default());
    let submit = |id| of.submit(&schema, &ask(&[id]), Place::Pool, &options);
    let mut sent: Vec<_> = (0..4).map(|id| submit(id).expect("sent")).collect();
    assert_eq!(of.first_done(&sent).expect("open"), None);
    let second = 1;
    with_port(&of, |port| port.answer(second, Refusal::whole(Status::Ok)));
    assert_eq!(of.first_done(&sent).expect("open"), Some(second));
    assert!(matches!(
        other.first_done(&sent),
        Err(ClientError::OtherClient { what: "request" })
    ));
    let reply = sent[second].try_take().expect("open").expect("found");
    assert_answers(&reply, &schema, &[1]);
    assert_eq!(of.first_done(&sent).expect("open"), None, "taken");
    with_port(&of, |port| port.answer_all(Status::Ok));
    assert_eq!(of.first_done(&sent).expect("open"), Some(0));
}
