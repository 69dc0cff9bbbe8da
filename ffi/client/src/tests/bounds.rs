//! What is refused, bounded and waited for.

use std::time::Duration;

use rowmill_wire::{Completion, CompletionKind};

use super::*;

#[test]
fn credits_completions_and_source_space_bound_what_is_in_flight() {
    let mut s = session(1, 3, 1);
    let schema = bound(&mut s, false);
    let region = s.region(1 << 20).expect("region");
    let submit = |s: &mut TestSession, bags: u32, slice_bags: u32| {
        let t = s
            .target(&region, schema.target_bytes(bags))
            .expect("target");
        let options = RequestOptions {
            slice_bags,
            ..Default::default()
        };
        let sent = s.submit(&schema, &batch(bags), t, &options);
        sent.map_err(|unsent| {
            s.release(unsent.target.expect("given back"));
            unsent.error
        })
    };
    for _ in 0..3 {
        submit(&mut s, 1, 0).expect("a credit each");
    }
    assert!(matches!(submit(&mut s, 1, 0), Err(ClientError::NoCredit)));
    s.port.answer_all(Status::Busy);
    s.poll()
        .expect("open")
        .expect("busy")
        .outcome
        .expect_err("busy");
    // 64 records of the completion queue: 40 and then not 40 more.
    submit(&mut s, 80, 2).expect("40 records");
    assert!(matches!(submit(&mut s, 80, 2), Err(ClientError::NoCredit)));
    s.port.answer_all(Status::Ok);
    while s.poll().expect("open").is_some() {}
    // 20 bytes a bag: 1 MiB of source space holds 52,428 bags.
    for _ in 0..3 {
        submit(&mut s, 4096, 0).expect("fits");
    }
    assert_eq!(s.port.arrived.len(), 3);
    assert!(s.port.arrived.iter().all(|a| !a.inline));
    assert!(matches!(
        submit(&mut s, 4097, 0),
        Err(ClientError::TooLarge {
            given: 4097,
            limit: 4096,
            ..
        })
    ));
    assert!(matches!(
        submit(&mut s, 4096, 1),
        Err(ClientError::TooLarge {
            what: "slices of a part",
            ..
        })
    ));
}

#[test]
fn ids_leave_half_of_what_regions_may_have_to_results() {
    let s = Session::over(StandIn::new(2, 4, 1), Options::default()).expect("connects");
    let most = s.port.welcome().max_region;
    assert!((Options::default().source_bytes as u64) > most);
    assert!(matches!(s.source, Some((_, bytes, _)) if bytes == most / 2));
}

#[test]
fn source_space_comes_back_with_the_last_part() {
    let options = Options {
        source_bytes: 100_000,
        ..Options::default()
    };
    let mut s = Session::over(StandIn::new(2, 4, 1), options).expect("connects");
    let schema = bound(&mut s, false);
    let region = s.region(1 << 20).expect("region");
    let (batch, options) = (batch(4000), RequestOptions::default());
    let t = s
        .target(&region, schema.target_bytes(4000))
        .expect("target");
    s.submit(&schema, &batch, t, &options)
        .expect("80,000 bytes");
    let t = s
        .target(&region, schema.target_bytes(4000))
        .expect("target");
    s.port.answer(0, Refusal::whole(Status::Ok));
    assert!(s.poll().expect("open").is_none());
    let unsent = s
        .submit(&schema, &batch, t, &options)
        .expect_err("one part is still being read");
    assert!(matches!(unsent.error, ClientError::NoSourceSpace) && unsent.error.would_block());
    s.port.answer(0, Refusal::whole(Status::Ok));
    let first = s.poll().expect("open").expect("ended");
    assert_pooled(&s, &schema, &first.target, 4000);
    s.submit(
        &schema,
        &batch,
        unsent.target.expect("given back"),
        &options,
    )
    .expect("space again");
}

#[test]
fn what_can_be_known_here_is_refused_here() {
    let mut s = session(1, 1, 1);
    let schema = bound(&mut s, true);
    let region = s.region(1 << 12).expect("region");
    let mut t = Some(s.target(&region, 40).expect("target"));
    let mut refused = |s: &mut TestSession, batch: &Batch| {
        let unsent = s.submit(
            &schema,
            batch,
            t.take().expect("back"),
            &RequestOptions::default(),
        );
        let unsent = unsent.expect_err("refused");
        t = unsent.target;
        unsent.error
    };
    let mut b = batch(2);
    assert!(
        matches!(refused(&mut s, &b), ClientError::Weights { wanted: true, feature } if feature == "user")
    );
    b.push(Division::Lengths(&[0, 0]), &[0u32; 0][..])
        .expect("empty bags");
    assert!(matches!(
        refused(&mut s, &b),
        ClientError::FeatureCount { given: 3, bound: 2 }
    ));
    b.clear(2).expect("2 bags");
    b.push(Division::Lengths(&[1, 0]), &[3u32][..])
        .expect("item");
    b.push_weighted(Division::Lengths(&[0, 1]), &[3u32][..], &[0.25])
        .expect("user");
    assert!(matches!(
        refused(&mut s, &b),
        ClientError::TargetTooSmall {
            needed: 64,
            bytes: 40
        }
    ));
    assert_eq!(s.port.arrived.len(), 0);
    assert!(matches!(
        s.target(&region, 8192),
        Err(ClientError::RegionFull { needed: 8192 })
    ));
    for (offset, bytes) in [(1, 4), (4096, 4), (0, 0), (u64::MAX - 3, 8)] {
        assert!(matches!(
            s.target_at(&region, offset, bytes),
            Err(ClientError::TargetPlace { .. })
        ));
    }
    assert!(matches!(
        s.region(1 << 30),
        Err(ClientError::TooLarge { .. })
    ));
}

#[test]
fn blocks_and_small_elements_are_checked_and_read() {
    let mut s = session(3, 1, 1);
    let (mut schema, row) = Schema::side_by_side_as(
        Output::F16,
        8,
        [
            ("item", "items", Pooling::Sum, DIM),
            ("user", "users", Pooling::Max, DIM),
        ],
    );
    assert_eq!(row, 4 * u64::from(DIM));
    schema.features[1] = Feature::block("user", "users", Output::Bf16, DIM, 6, 8 * row);
    schema.features[0].stride = u64::from(DIM) * 2;
    let schema = s.bind(schema).expect("bound");
    assert_eq!(schema.vector_bytes(1), 2 * u64::from(DIM));
    assert_eq!(
        (schema.target_bytes(1), schema.target_bytes(8)),
        (8 * row + 6 * 8, 8 * row + 6 * 8),
        "a block is there as a whole"
    );
    let region = s.region(1 << 12).expect("region");
    let mut b = Batch::new(5).expect("5 bags");
    b.push(Division::Lengths(&[1; 5]), &[1u32, 2, 3, 4, 5][..])
        .expect("item");
    b.push(
        Division::Lengths(&[1, 2, 0, 0, 3]),
        &[7u32, 8, 9, 1, 1, 2][..],
    )
    .expect("user");
    let t = s.target_at(&region, 6, 200).expect("even");
    let t = s
        .submit(&schema, &b, t, &RequestOptions::default())
        .expect("3 parts");
    let first: Vec<Vec<u32>> = s.port.arrived.iter().map(|a| a.first_ids.clone()).collect();
    assert_eq!(first, [[0, 0], [0, 3], [0, 3]], "only of the block");
    s.port.answer_all(Status::Ok);
    let answer = s.poll().expect("open").expect("ended");
    assert_eq!((answer.ticket, answer.outcome), (t, Ok(())));
    let mut vector = [0.0; DIM as usize];
    for (i, id) in [7, 8, 9, 1, 1, 2].into_iter().enumerate() {
        s.read_vector(&answer.target, &schema, 1, i as u32, &mut vector);
        assert_eq!(vector, [0, 1, 2, 3].map(|d| (id + d) as f32), "id {i}");
    }
    let mut vectors = [0.0; 2 * DIM as usize];
    s.read_feature(&answer.target, &schema, 0, 3, &mut vectors);
    assert_eq!(vectors, [4.0, 5.0, 6.0, 7.0, 5.0, 6.0, 7.0, 8.0]);

    b.clear(1).expect("1 bag");
    b.push(Division::Lengths(&[0]), &[0u32; 0][..])
        .expect("none");
    b.push(Division::Lengths(&[7]), &[1u32; 7][..])
        .expect("seven");
    let refused = s.submit(&schema, &b, answer.target, &RequestOptions::default());
    let unsent = refused.expect_err("one more than the block holds");
    assert!(
        matches!(
            unsent.error,
            ClientError::TooLarge {
                given: 7,
                limit: 6,
                ..
            }
        ),
        "{unsent}"
    );
}

#[test]
fn a_target_between_two_elements_is_refused() {
    let mut s = session(1, 1, 1);
    let schema = bound(&mut s, false);
    let region = s.region(1 << 12).expect("region");
    let t = s.target_at(&region, 6, 200).expect("even");
    let unsent = s
        .submit(&schema, &batch(1), t, &RequestOptions::default())
        .expect_err("f32 at a multiple of 2");
    assert!(
        matches!(
            unsent.error,
            ClientError::TargetMisaligned {
                offset: 6,
                element: 4
            }
        ),
        "{unsent}"
    );
}

#[test]
fn records_that_fit_no_request_are_protocol_errors() {
    let mut s = session(1, 2, 1);
    let schema = bound(&mut s, false);
    let t = target(&mut s, &schema, 1);
    s.submit(&schema, &batch(1), t, &RequestOptions::default())
        .expect("sent");
    let good = s.port.announce(0, CompletionKind::Slice, 0);
    s.poll().expect("a slice").ok_or(()).expect_err("not ended");
    let bad = [
        Completion {
            slot: 1 - good.slot,
            ..good
        },
        Completion { slot: 9, ..good },
        Completion {
            request: good.request + 1,
            ..good
        },
        Completion { part: 1, ..good },
        Completion { attempt: 1, ..good },
        Completion { slice: 4, ..good },
    ];
    for record in bad {
        s.port.inject(0, record);
        assert!(
            matches!(s.poll(), Err(ClientError::Port(PortError::Protocol(_)))),
            "{record:?}"
        );
    }
    s.port.answer_all(Status::Ok);
    assert!(
        s.poll().expect("open").is_some(),
        "the request itself is unharmed"
    );
}
#[test]
fn lookups_wait_for_slots_and_busy_ones_are_repeated() {
    let mut s = session(1, 1, 1);
    s.options.backoff = Backoff {
        spins: 2,
        yields: 2,
        sleep: Duration::from_millis(1),
    };
    let schema = bound(&mut s, false);
    let region = s.region(1 << 16).expect("region");
    let (first, t) = (
        s.target(&region, 64).expect("target"),
        s.target(&region, 64).expect("target"),
    );
    s.port.answers_in_wait = Some(Status::Ok);
    let pending = s
        .submit(&schema, &batch(2), first, &RequestOptions::default())
        .expect("sent");
    let answer = s
        .lookup(
            &schema,
            &batch(2),
            t,
            &RequestOptions::default(),
            Wait::Block,
        )
        .expect("answered");
    assert_eq!(answer.outcome, Ok(()));
    assert_pooled(&s, &schema, &answer.target, 2);
    let first = s.wait(pending, Wait::Block).expect("answered");
    s.release(first.target);
    s.port.answers_in_wait = Some(Status::Busy);
    let retry = Retry {
        attempts: 3,
        first_pause: Duration::from_micros(10),
        ..Default::default()
    };
    let options = RequestOptions {
        attempt: 5,
        ..Default::default()
    };
    let busy = s.lookup_retrying(
        &schema,
        &batch(2),
        answer.target,
        &options,
        Wait::Block,
        &retry,
    );
    let busy = busy.expect("answered");
    assert_eq!(
        (busy.outcome, busy.attempt),
        (Err(Failure::Refused(Refusal::whole(Status::Busy))), 7)
    );
}

#[test]
fn the_steady_path_allocates_nothing() {
    let mut s = session(2, 4, 1);
    s.port.echoes = true;
    let schema = bound(&mut s, false);
    let region = s.region(1 << 18).expect("region");
    let mut idle: Vec<Target> = Vec::with_capacity(4);
    (0..4).for_each(|_| {
        idle.push(
            s.target(&region, schema.target_bytes(2000))
                .expect("target"),
        )
    });
    let (small, large) = (batch(2), batch(2000));
    let mut out = [0.0f32; 64];
    let mut rounds = |s: &mut TestSession, idle: &mut Vec<Target>, count: usize| {
        for i in 0..count {
            let b = if i % 2 == 0 { &small } else { &large };
            while let Some(target) = idle.pop() {
                let _ = s
                    .submit(&schema, b, target, &RequestOptions::default())
                    .expect("sent");
            }
            while let Some(answer) = s.poll().expect("open") {
                s.read_f32s(&answer.target, 0, &mut out);
                idle.push(answer.target);
            }
        }
    };
    rounds(&mut s, &mut idle, 32);
    let measured = allocation_counter::measure(|| rounds(&mut s, &mut idle, 200));
    assert_eq!(measured.count_total, 0, "{measured:?}");
}

#[test]
fn a_schema_that_is_bound_again_is_the_same_one() {
    let mut s = session(1, 1, 1);
    let schema = |at: usize| {
        let name = format!("feature {at}");
        Schema::side_by_side(8, [(&*name, "items", Pooling::Sum, DIM)]).0
    };
    let bound: Vec<_> = (0..16)
        .map(|at| s.bind(schema(at)).expect("one of 16"))
        .collect();
    assert_eq!(s.port.bound(), 16);
    for (at, first) in bound.iter().enumerate() {
        assert_eq!(s.bind(schema(at)).expect("bound before").id, first.id);
    }
    assert_eq!(s.port.bound(), 16, "the dataplane was not asked again");
    let error = s.bind(schema(16)).expect_err("one too many");
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
    s.close();
    assert!(matches!(s.bind(schema(0)), Err(ClientError::Closed)));
}
