//! What a stream does before and after a lookup. The orders are broken on purpose, too, to show that the tests would find it.

use rowmill_wire::CompletionKind;

use super::*;

/// A stream copies the output elsewhere right after the lookup; whether it got the result.
fn reads_after_the_result(words: &str, stream: impl FnOnce(&Rig) -> Stream) -> bool {
    let rig = Rig::new(words, |_| ());
    let (stream, seen) = (stream(&rig), rig.memory());
    rig.submit(&stream).expect("sent");
    let copied = rig
        .current()
        .copy_between(&stream, (&seen, 0), (rig.output.memory(), 0), BYTES);
    copied.expect("queued");
    thread::sleep(MOMENT);
    rig.answer(Status::Ok);
    rig.gpu.synchronize(&stream).expect("the result is there");
    rig.read(&seen) == all_pooled()
}

#[test]
fn what_comes_after_a_lookup_in_a_stream_finds_its_result() {
    assert!(reads_after_the_result("", Rig::stream));
    assert!(!reads_after_the_result(
        "ignore=cuStreamWaitValue32_v2",
        Rig::stream
    ));
    assert!(!reads_after_the_result(
        "ignore=cuStreamWaitEvent",
        Rig::stream
    ));
}

#[test]
fn so_it_does_in_the_legacy_default_stream() {
    let legacy = |rig: &Rig| Stream::legacy(rig.gpu.context());
    assert!(reads_after_the_result("", legacy));
    assert!(!reads_after_the_result("ignore=cuStreamWaitEvent", legacy));
}

/// A stream takes its time to copy the output elsewhere; the next lookup has the same output. Whether the copy has the first
/// result.
fn reads_before_the_next_result(words: &str) -> bool {
    let rig = Rig::new(words, |_| ());
    let (stream, seen) = (rig.stream(), rig.memory());
    let current = rig.current();
    let before = vec![7; BYTES as usize];
    current
        .write(rig.output.memory(), 0, &before)
        .expect("written");
    current
        .copy_between(&stream, (&seen, 0), (rig.output.memory(), 0), BYTES)
        .expect("queued");
    rig.submit(&stream).expect("sent");
    rig.answer(Status::Ok);
    rig.gpu.synchronize(&stream).expect("the result is there");
    // Where the copies don't wait for the stream, it does not wait for them.
    thread::sleep(MOMENT);
    assert_eq!(rig.read(rig.output.memory()), all_pooled());
    let mut bytes = vec![0; BYTES as usize];
    current.read(&seen, 0, &mut bytes).expect("it can be read");
    bytes == before
}

#[test]
fn what_comes_before_a_lookup_in_a_stream_finds_the_output_as_it_was() {
    let slow = "slow=cuMemcpyDtoDAsync_v2:50000";
    assert!(reads_before_the_next_result(slow));
    assert!(!reads_before_the_next_result(&format!(
        "{slow} ignore=cuStreamWaitEvent"
    )));
}

#[test]
fn slices_are_copied_as_they_come() {
    let rig = Rig::new("", |_| ());
    let stream = rig.stream();
    rig.submit(&stream).expect("sent");
    rig.with_port(|port| {
        for at in 0..2 {
            let (frame, slices) = (port.arrived[at].clone(), port.arrived[at].header.slices());
            assert_eq!((frame.header.slice_bags, slices), (2, 3));
            port.pool(&frame);
        }
        // The copies wait for the parts in turns.
        port.announce(0, CompletionKind::Slice, 0);
        port.announce(1, CompletionKind::Slice, 0);
    });
    let since = Instant::now();
    let expected: Vec<f32> = (0..BAGS)
        .flat_map(|bag| match bag {
            0 | 1 | 5 | 6 => pooled(bag),
            _ => [0.0; 8],
        })
        .collect();
    while rig.read(rig.output.memory()) != expected {
        assert!(
            since.elapsed() < LIMIT,
            "two slices are copied, and no more"
        );
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(MOMENT);
    assert_eq!(rig.read(rig.output.memory()), expected);
    rig.answer(Status::Ok);
    rig.gpu.synchronize(&stream).expect("the result is there");
    assert_eq!(rig.read(rig.output.memory()), all_pooled());
}

#[test]
fn a_result_that_is_late_holds_up_no_other_stream() {
    let rig = Rig::new("", |_| ());
    let [late, other] = [(); 2].map(|()| rig.stream());
    let output = rig.region();
    rig.submit(&late).expect("sent");
    let (to, options) = ((&output, 0), RequestOptions::default());
    let sent = rig
        .gpu
        .submit(&rig.schema, &batch(BAGS), to, &other, &options);
    sent.expect("sent");
    // The two parts of the second request.
    rig.with_port(|port| (0..2).for_each(|_| port.answer(2, Refusal::whole(Status::Ok))));
    rig.gpu.synchronize(&other).expect("its result is there");
    assert_eq!(rig.read(output.memory()), all_pooled());
    assert!(!rig.current().is_idle(&late).expect("an answer"));
    rig.answer(Status::Ok);
    rig.gpu.synchronize(&late).expect("the result is there");
    assert_eq!(rig.read(rig.output.memory()), all_pooled());
}

#[test]
fn results_of_one_stream_come_in_the_order_of_submission() {
    let rig = Rig::new("", |_| ());
    let (stream, seen) = (rig.stream(), rig.memory());
    let read = || {
        let (to, from) = ((&seen, 0), (&**rig.output.memory(), 0));
        let copied = rig.current().copy_between(&stream, to, from, BYTES);
        copied.expect("queued");
    };
    rig.submit(&stream).expect("sent");
    read();
    rig.submit(&stream).expect("sent");
    // The second request is answered first, with something else.
    rig.with_port(|port| (0..2).for_each(|_| port.answer(2, Refusal::whole(Status::Expired))));
    thread::sleep(MOMENT);
    assert!(rig.read(&seen).iter().all(|&value| value == 0.0));
    rig.answer(Status::Ok);
    let outcome = rig.gpu.synchronize(&stream);
    assert!(
        matches!(outcome, Err(ClientError::NoResult(_))),
        "{outcome:?}"
    );
    assert_eq!(rig.read(&seen), all_pooled());
    let values = rig.read(rig.output.memory());
    assert!(values.iter().all(|value| value.is_nan()), "{values:?}");
}

#[test]
fn requests_of_many_streams_each_find_their_results() {
    let rig = Rig::new("delay=0", |options| options.requests = 4);
    let ran = thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let (stream, output) = (rig.stream(), rig.region());
                    let mut done = 0;
                    while done < 50 {
                        let options = RequestOptions::default();
                        let to = (&output, 0);
                        match rig
                            .gpu
                            .submit(&rig.schema, &batch(BAGS), to, &stream, &options)
                        {
                            Ok(()) => {
                                rig.gpu.synchronize(&stream).expect("the result is there");
                                assert_eq!(rig.read(output.memory()), all_pooled());
                                let current = rig.current();
                                current.fill(output.memory(), 0, BYTES, 0).expect("filled");
                                done += 1;
                            }
                            Err(ClientError::ResultsHeld { .. }) => thread::yield_now(),
                            Err(error) => panic!("{error}"),
                        }
                    }
                    done
                })
            })
            .collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            rig.answer(Status::Ok);
            thread::yield_now();
        }
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .sum::<i32>()
    });
    assert_eq!(ran, 150);
}

#[test]
fn who_waits_for_a_stream_takes_its_answers_in() {
    // The hub's thread sleeps until it is woken, which nobody does here.
    let backoff = Backoff {
        spins: 0,
        yields: 0,
        sleep: Duration::from_secs(600),
    };
    let rig = Rig::with(backoff, "", |options| options.poll = LIMIT);
    let stream = rig.stream();
    rig.submit(&stream).expect("sent");
    while !rig.hub.shared.sleeps() {
        thread::yield_now();
    }
    let mut inner = rig.hub.shared.lock().expect("open");
    inner.session.port.answer_all(Status::Ok);
    drop(inner);
    rig.gpu.synchronize(&stream).expect("the result is there");
    assert_eq!(rig.read(rig.output.memory()), all_pooled());
}
