//! Which generation parts name, as the dataplane switches to another and back.

use super::*;

#[test]
fn parts_name_the_generation_that_was_last_told_to_be_the_newest() {
    let mut s = session(2, 4, 1);
    let schema = bound(&mut s, false);
    let mut t = target(&mut s, &schema, 2);
    // It was 7 at connect. After 9 it is 8 again, as after a rollback.
    for (named, newest) in [(7, 9), (9, 8), (8, 8)] {
        assert_eq!(s.generation(), named);
        s.submit(&schema, &batch(2), t, &RequestOptions::default())
            .expect("sent");
        let generations: Vec<u64> = (s.port.arrived.iter())
            .map(|a| a.header.generation)
            .collect();
        assert_eq!(generations, [named; 2]);
        s.port.newest = newest;
        s.port.answer_all(Status::Ok);
        t = s.poll().expect("open").expect("answered").target;
        assert_eq!(s.generation(), newest);
    }
}

#[test]
fn a_lookup_whose_generation_has_gone_is_sent_again_with_the_newest() {
    let mut s = session(2, 4, 1);
    s.port.echoes = true;
    let schema = bound(&mut s, false);
    let t = target(&mut s, &schema, 2);
    s.port.newest = 9;
    let default = RequestOptions::default();
    let answer = s.lookup(&schema, &batch(2), t, &default, Wait::Block);
    let Answer {
        outcome,
        generation,
        target: t,
        ..
    } = answer.expect("answered");
    assert_eq!((outcome, generation), (Ok(()), 9));
    // Who names one means it.
    let named = RequestOptions {
        generation: 7,
        ..default
    };
    let answer = s.lookup(&schema, &batch(2), t, &named, Wait::Block);
    let refused = Err(Failure::Refused(Refusal::whole(Status::Retry)));
    assert_eq!(answer.expect("answered").outcome, refused);
}

#[test]
fn so_is_a_lookup_of_a_client_that_threads_share() {
    let mut s = session(2, 4, 1);
    s.port.echoes = true;
    s.port.newest = 9;
    let hub = Hub::over(s, HubOptions::default()).expect("descriptors");
    let features = [("a", "items", Pooling::Sum, DIM)];
    let (schema, _) = Schema::side_by_side(64, features);
    let schema = hub.bind(schema).expect("bound");
    let mut ids = Batch::new(2).expect("bags");
    ids.push(Division::Lengths(&[1, 1]), &[1u32, 2][..])
        .expect("a feature");
    let look_up = |generation| {
        let options = RequestOptions {
            generation,
            ..RequestOptions::default()
        };
        let reply = hub.lookup(&schema, &ids, Place::Pool, &options, Wait::Block);
        let reply = reply.expect("answered");
        (reply.outcome, reply.generation)
    };
    assert_eq!(look_up(0), (Ok(()), 9));
    let refused = Err(Failure::Refused(Refusal::whole(Status::Retry)));
    assert_eq!(look_up(7).0, refused);
}

#[test]
fn a_dataplane_that_says_nothing_of_the_newest_changes_nothing() {
    let mut s = session(1, 4, 1);
    let schema = bound(&mut s, false);
    let t = target(&mut s, &schema, 1);
    s.submit(&schema, &batch(1), t, &RequestOptions::default())
        .expect("sent");
    s.port.newest = 0;
    s.port.answer(0, Refusal::whole(Status::Draining));
    let answer = s.poll().expect("open").expect("answered");
    s.release(answer.target);
    assert_eq!(s.generation(), 7);
}
