//! Where results lie, and who holds them.

use super::*;

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
fn a_region_s_memory_is_where_results_lie_and_outlives_the_client() {
    let hub = hub(2, Backoff::default(), HubOptions::default());
    let schema = bind(&hub);
    let region = hub.region(4096).expect("made");
    let memory = hub.memory(region).expect("known");
    let options = RequestOptions::default();
    let pending = hub.submit(&schema, &ask(&[5]), Place::At(region, 64), &options);
    let pending = pending.expect("sent");
    with_port(&hub, |port| port.answer_all(Status::Ok));
    let reply = pending.wait(Wait::Poll).expect("answered");
    assert_eq!(
        reply.lease.window().as_ptr().addr(),
        memory.window().as_ptr().addr() + 64
    );
    drop(reply);
    hub.unregister(region).expect("not in use");
    assert!(matches!(
        hub.memory(region),
        Err(ClientError::OtherClient { what: "region" })
    ));
    drop(hub);
    let mut vector = [0u8; 4];
    memory.window().read(64, &mut vector);
    assert_eq!(f32::from_ne_bytes(vector), 5.0);
}

/// Fills the pool with regions of small results, keeps `kept` of these, and asks for large ones.
#[test]
fn free_regions_make_way_for_larger_results() {
    for (most_regions, kept) in [(usize::MAX, 0), (usize::MAX, 1), (5, 1)] {
        let small = HubOptions {
            pool_region_bytes: 4096,
            ..HubOptions::default()
        };
        let hub = hub(4, Backoff::default(), small);
        with_port(&hub, |port| port.most_regions = most_regions);
        let schema = bind(&hub);
        let (mut large, _) = Schema::side_by_side(64, [("item", "items", Pooling::Sum, DIM)]);
        large.features[0].offset = 1 << 16;
        let large = hub.bind(large).expect("bound");
        let options = RequestOptions::default();
        let lookup = |schema: &BoundSchema, batch: &Batch| {
            let pending = hub.submit(schema, batch, Place::Pool, &options)?;
            with_port(&hub, |port| port.answer_all(Status::Ok));
            pending.wait(Wait::Poll)
        };
        let mut one = Batch::new(1).expect("a bag");
        one.push(Division::Lengths(&[1]), &[3u32][..]).expect("one");
        // Each region has room for 64 of them.
        let mut held = Vec::new();
        let full = loop {
            match lookup(&schema, &ask(&[5])) {
                Ok(reply) => held.push(reply),
                Err(error) => break error,
            }
        };
        assert!(matches!(full, ClientError::ResultsHeld { .. }), "{full}");
        // Nothing is free yet.
        let error = lookup(&large, &one).expect_err("no room");
        assert!(matches!(error, ClientError::ResultsHeld { .. }), "{error}");
        held.truncate(kept);
        let mut replies = Vec::new();
        for _ in 0..8 {
            replies.push(lookup(&large, &one).expect("room is made"));
        }
        held.iter()
            .for_each(|reply| assert_answers(reply, &schema, &[5]));
        let mut vector = [0.0; DIM as usize];
        for reply in &replies {
            let read = reply.lease.read_vector(&large, 0, 0, &mut vector);
            read.expect("in the result");
            assert_eq!(vector, [3.0, 4.0, 5.0, 6.0]);
        }
        // And the other way round.
        drop(replies);
        assert_answers(&lookup(&schema, &ask(&[7])).expect("room"), &schema, &[7]);
        assert_eq!(hub.held().expect("open"), kept);
    }
}

#[test]
fn a_result_that_no_region_can_hold_is_said_to_be_too_large() {
    let hub = hub(2, Backoff::default(), HubOptions::default());
    let schema = bind(&hub);
    let (mut large, _) = Schema::side_by_side(64, [("item", "items", Pooling::Sum, DIM)]);
    // A region of the stand-in has at most 4 MiB.
    large.features[0].offset = 1 << 22;
    let large = hub.bind(large).expect("bound");
    let options = RequestOptions::default();
    let mut one = Batch::new(1).expect("a bag");
    one.push(Division::Lengths(&[1]), &[3u32][..]).expect("one");
    for _ in 0..2 {
        let error = hub.submit(&large, &one, Place::Pool, &options);
        assert!(matches!(error, Err(ClientError::TooLarge { .. })));
        // Also where the pool has regions for others.
        let pending = hub.submit(&schema, &ask(&[5]), Place::Pool, &options);
        drop(pending.expect("sent"));
    }
}
