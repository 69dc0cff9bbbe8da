//! What comes back: merged parts, refusals, lost connections, slices.

use std::time::Duration;

use rowmill_wire::CompletionKind;

use super::*;
use crate::stand_in::bad_id;

#[test]
fn parts_answered_out_of_order_make_one_answer() {
    let mut s = session(3, 2, 1);
    let schema = bound(&mut s, false);
    let t = target(&mut s, &schema, 10);
    let ticket = s
        .submit(&schema, &batch(10), t, &RequestOptions::default())
        .expect("sent");
    let heads: Vec<_> = s
        .port
        .arrived
        .iter()
        .map(|a| (a.header.part, a.header.first_bag, a.header.bags))
        .collect();
    assert_eq!(heads, [(0, 0, 4), (1, 4, 3), (2, 7, 3)]);
    assert!(
        s.port
            .arrived
            .iter()
            .all(|a| a.inline && a.header.parts == 3 && a.header.generation == 7)
    );
    for _ in 0..2 {
        s.port.answer(1, Refusal::whole(Status::Ok));
        assert!(
            s.poll().expect("open").is_none(),
            "not before all parts have ended"
        );
    }
    s.port.answer(0, Refusal::whole(Status::Ok));
    let answer = s.poll().expect("open").expect("all parts have ended");
    assert_eq!(
        (answer.ticket, answer.outcome, answer.parts),
        (ticket, Ok(()), 3)
    );
    assert_eq!(
        (answer.generation, answer.service_ns, s.pending()),
        (7, 1002, 0)
    );
    assert_eq!(answer.delta, 7, "the earliest of 9, 8 and 7");
    assert_pooled(&s, &schema, &answer.target, 10);
    let mut means = [0.0; 3 * DIM as usize];
    s.read_feature(&answer.target, &schema, 1, 7, &mut means);
    assert_eq!([means[0], means[4], means[8]], [7.0, 8.0, 9.0]);
}

#[test]
fn requests_end_in_any_order_and_wait_leaves_the_others() {
    let mut s = session(1, 4, 1);
    let schema = bound(&mut s, false);
    let region = s.region(1 << 16).expect("region");
    let mut tickets = Vec::new();
    for _ in 0..3 {
        let t = s.target(&region, schema.target_bytes(2)).expect("target");
        tickets.push(
            s.submit(&schema, &batch(2), t, &RequestOptions::default())
                .expect("sent"),
        );
    }
    assert!(
        s.port.arrived.iter().all(|a| a.header.generation == 0),
        "one part: the server's newest"
    );
    s.port.answer_all(Status::Ok);
    let second = s.wait(tickets[1], Wait::Poll).expect("answered");
    assert_eq!(second.ticket, tickets[1]);
    let rest: Vec<_> = std::iter::from_fn(|| s.poll().expect("open"))
        .map(|a| a.ticket)
        .collect();
    assert_eq!(
        rest,
        [tickets[2], tickets[0]],
        "in the order in which they ended"
    );
    assert!(matches!(
        s.wait(tickets[1], Wait::Poll),
        Err(ClientError::UnknownTicket)
    ));
    assert!(matches!(
        s.cancel(tickets[0]),
        Err(ClientError::UnknownTicket)
    ));
}

#[test]
fn the_first_failing_part_decides_and_its_place_is_counted_over_the_batch() {
    let mut s = session(2, 2, 1);
    let schema = bound(&mut s, false);
    let t = target(&mut s, &schema, 4);
    s.submit(&schema, &batch(4), t, &RequestOptions::default())
        .expect("sent");
    // Part 1 holds bags 2 and 3, so its ids of feature 0 begin with the batch' fifth.
    s.port.answer(1, bad_id(0, 3));
    s.port.answer(0, Refusal::whole(Status::Ok));
    let answer = s.poll().expect("open").expect("ended");
    assert_eq!(answer.outcome, Err(Failure::Refused(bad_id(0, 7))));
    s.submit(
        &schema,
        &batch(4),
        answer.target,
        &RequestOptions::default(),
    )
    .expect("sent");
    s.port.answer(1, Refusal::at(Status::LengthsMismatch, 1, 1));
    s.port.answer(0, Refusal::whole(Status::Busy));
    let answer = s.poll().expect("open").expect("ended");
    assert_eq!(
        answer.outcome,
        Err(Failure::Refused(Refusal::whole(Status::Busy))),
        "part 0 comes first"
    );
}

#[test]
fn a_timeout_or_cancel_does_not_free_the_target() {
    let mut s = session(2, 1, 1);
    let schema = bound(&mut s, false);
    let region = s.region(1 << 16).expect("region");
    let t = s
        .target_at(&region, 128, schema.target_bytes(2))
        .expect("free");
    let ticket = s
        .submit(&schema, &batch(2), t, &RequestOptions::default())
        .expect("sent");
    s.port.answer(0, Refusal::whole(Status::Ok));
    let late = s
        .wait_for(ticket, Wait::Block, Duration::from_millis(1))
        .expect("open");
    assert!(late.is_none());
    s.cancel(ticket).expect("asked");
    assert_eq!(s.port.cancelled.len(), 1, "only parts that have not ended");
    let bytes = schema.target_bytes(2);
    assert!(matches!(
        s.target_at(&region, 96, bytes),
        Err(ClientError::TargetInUse { .. })
    ));
    assert!(matches!(
        s.unregister(region),
        Err(ClientError::RegionInUse { targets: 1 })
    ));
    s.port.answer(0, Refusal::whole(Status::Cancelled));
    let answer = s.wait(ticket, Wait::Block).expect("ended");
    assert_eq!(
        answer.outcome,
        Err(Failure::Refused(Refusal::whole(Status::Cancelled)))
    );
    s.release(answer.target);
    let again = s.target_at(&region, 96, bytes).expect("free again");
    s.release(again);
    s.unregister(region).expect("no targets left");
}

#[test]
fn a_lost_connection_gives_every_target_back() {
    let mut s = session(2, 2, 1);
    let schema = bound(&mut s, false);
    let region = s.region(1 << 16).expect("region");
    let mut targets: Vec<_> = (0..3)
        .map(|_| s.target(&region, schema.target_bytes(2)).expect("target"))
        .collect();
    let options = RequestOptions::default();
    let first = s
        .submit(&schema, &batch(2), targets.remove(0), &options)
        .expect("sent");
    s.port.answer_all(Status::Ok);
    let second = s
        .submit(&schema, &batch(2), targets.remove(0), &options)
        .expect("sent");
    s.port.closed = true;
    let answer = s.wait(second, Wait::Block).expect("the end is the outcome");
    assert_eq!(answer.outcome, Err(Failure::Disconnected));
    let answer = s.poll().expect("placed before the end").expect("ended");
    assert_eq!((answer.ticket, answer.outcome), (first, Ok(())));
    assert!(matches!(s.poll(), Err(ClientError::Closed)));
    let unsent = s
        .submit(&schema, &batch(2), targets.remove(0), &options)
        .expect_err("closed");
    assert!(matches!(unsent.error, ClientError::Closed) && unsent.target.is_some());
}

#[test]
fn a_connection_that_breaks_between_two_parts_gives_the_target_back() {
    let mut s = session(2, 2, 1);
    let schema = bound(&mut s, false);
    let t = target(&mut s, &schema, 2);
    s.port.breaks_after = Some(1);
    let unsent = s
        .submit(&schema, &batch(2), t, &RequestOptions::default())
        .expect_err("broken");
    assert!(matches!(unsent.error, ClientError::Closed) && unsent.target.is_some());
    assert_eq!(s.pending(), 0);
    assert!(matches!(s.poll(), Err(ClientError::Closed)));
}

#[test]
fn slices_are_reported_once_and_can_be_read_early() {
    let mut s = session(2, 1, 1);
    let schema = bound(&mut s, false);
    let t = target(&mut s, &schema, 10);
    let options = RequestOptions {
        slice_bags: 2,
        ..Default::default()
    };
    let ticket = s.submit(&schema, &batch(10), t, &options).expect("sent");
    let seen = |s: &mut TestSession| {
        let mut seen = Vec::new();
        s.poll_slices(ticket, |slice| seen.push(slice))
            .expect("open");
        seen
    };
    assert!(seen(&mut s).is_empty());
    s.port.announce(1, CompletionKind::Slice, 0);
    let slices = seen(&mut s);
    assert_eq!(
        slices,
        [Slice {
            ticket,
            part: 1,
            number: 0,
            first_bag: 5,
            bags: 2
        }]
    );
    let mut vector = [1.0; DIM as usize];
    s.read_slice(&slices[0], &schema, 0, 6, &mut vector)
        .expect("in flight");
    s.port.answer_all(Status::Ok);
    let places: Vec<_> = seen(&mut s).iter().map(|s| (s.first_bag, s.bags)).collect();
    assert_eq!(places, [(0, 2), (2, 2), (4, 1), (7, 2), (9, 1)]);
    assert!(seen(&mut s).is_empty());
    let answer = s.wait(ticket, Wait::Poll).expect("ended");
    assert_eq!((answer.slices, answer.outcome), (6, Ok(())));
    assert!(matches!(
        s.read_slice(&slices[0], &schema, 0, 6, &mut vector),
        Err(ClientError::UnknownTicket)
    ));
}

#[test]
fn null_requests_go_round_without_a_target() {
    let mut s = session(2, 1, 1);
    let ticket = s.submit_null(Some(1)).expect("sent");
    assert_eq!(
        (s.port.arrived[0].lane, s.port.arrived[0].header.op),
        (1, rowmill_wire::Op::Null)
    );
    assert!(matches!(s.submit_null(Some(1)), Err(ClientError::NoCredit)));
    s.submit_null(None).expect("the other lane");
    s.port.answer_all(Status::Ok);
    let answer = s.wait(ticket, Wait::Poll).expect("answered");
    assert_eq!((answer.outcome, answer.target.bytes()), (Ok(()), 0));
    s.release(answer.target);
}
