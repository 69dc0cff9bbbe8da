//! Streams that wait for a result that does not come.

use std::sync::mpsc::channel;

use super::*;

fn is_missing(values: &[f32]) -> bool {
    values.iter().all(|value| value.is_nan())
}

/// The failure that a stream was released with.
fn failure(outcome: Result<(), ClientError>) -> StreamFailure {
    match outcome {
        Err(ClientError::NoResult(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_dataplane_that_goes_releases_its_streams() {
    let rig = Rig::new("", |_| ());
    let stream = rig.stream();
    rig.submit(&stream).expect("sent");
    thread::sleep(MOMENT);
    rig.with_port(|port| port.closed = true);
    let why = failure(rig.gpu.synchronize(&stream));
    assert_eq!(why, StreamFailure::Request(Failure::Disconnected));
    assert!(is_missing(&rig.read(rig.output.memory())));
    rig.gpu.synchronize(&stream).expect("it was told");
    let error = rig.submit(&stream).expect_err("there is no dataplane");
    assert!(error.is_end(), "{error}");
}

#[test]
fn a_refusal_releases_the_stream_and_is_told_by_the_next_submission() {
    let rig = Rig::new("", |_| ());
    let (stream, event) = (
        rig.stream(),
        Event::new(rig.gpu.context()).expect("an event"),
    );
    rig.submit(&stream).expect("sent");
    rig.current().record(&event, &stream).expect("recorded");
    rig.with_port(|port| {
        // Of the first part the result is there.
        port.answer(1, Refusal::whole(Status::Expired));
        port.answer(0, Refusal::whole(Status::Ok));
    });
    rig.until_reached(&event);
    let why = failure(rig.submit(&stream));
    assert_eq!(
        why,
        StreamFailure::Request(Failure::Refused(Refusal::whole(Status::Expired)))
    );
    let values = rig.read(rig.output.memory());
    assert_eq!(values[..40], all_pooled()[..40]);
    assert!(is_missing(&values[40..]));
    rig.submit(&stream).expect("it was told");
    rig.answer(Status::Ok);
    rig.gpu.synchronize(&stream).expect("the result is there");
    assert_eq!(rig.read(rig.output.memory()), all_pooled());
}

#[test]
fn a_failure_is_told_to_its_own_stream_alone() {
    let rig = Rig::new("", |_| ());
    let [failed, other] = [(); 2].map(|()| rig.stream());
    rig.submit(&failed).expect("sent");
    rig.with_port(|port| (0..2).for_each(|_| port.answer(0, Refusal::whole(Status::Expired))));
    let current = rig.current();
    current.synchronize(&failed).expect("it goes on");
    rig.gpu.check(&other).expect("nothing of its own failed");
    rig.submit(&other).expect("sent");
    rig.answer(Status::Ok);
    rig.gpu.synchronize(&other).expect("its result is there");
    let expired = StreamFailure::Request(Failure::Refused(Refusal::whole(Status::Expired)));
    assert_eq!(failure(rig.submit(&failed)), expired);
    rig.gpu.check(&failed).expect("it was told");
    rig.gpu.check_all().expect("it was told");
}

#[test]
fn failures_are_told_once_in_the_order_in_which_they_came() {
    let rig = Rig::new("", |_| ());
    let statuses = [Status::Expired, Status::Busy, Status::Internal];
    let streams = statuses.map(|status| {
        let stream = rig.stream();
        // Of one stream the first failure counts.
        rig.submit(&stream).expect("sent");
        rig.submit(&stream).expect("sent");
        for status in [status, status, Status::IdOutOfRange, Status::IdOutOfRange] {
            rig.with_port(|port| port.answer(0, Refusal::whole(status)));
        }
        rig.current().synchronize(&stream).expect("it goes on");
        stream
    });
    let of = |status| StreamFailure::Request(Failure::Refused(Refusal::whole(status)));
    assert_eq!(failure(rig.gpu.check(&streams[1])), of(Status::Busy));
    assert_eq!(failure(rig.gpu.check_all()), of(Status::Expired));
    rig.gpu.check(&streams[0]).expect("it was told");
    assert_eq!(failure(rig.gpu.check_all()), of(Status::Internal));
    rig.gpu.check_all().expect("all were told");
}

#[test]
fn a_stream_goes_on_after_its_limit_and_the_staging_stays_the_dataplanes() {
    let limit = Duration::from_millis(50);
    let rig = Rig::new("", |options| {
        options.limit = limit;
        options.requests = 1;
    });
    let stream = rig.stream();
    rig.submit(&stream).expect("sent");
    assert_eq!(
        failure(rig.gpu.synchronize(&stream)),
        StreamFailure::TimedOut(limit)
    );
    assert!(is_missing(&rig.read(rig.output.memory())));
    let error = rig
        .submit(&stream)
        .expect_err("the dataplane may write still");
    assert!(
        matches!(error, ClientError::ResultsHeld { held: 1, .. }),
        "{error}"
    );
    rig.answer(Status::Ok);
    let since = Instant::now();
    while rig.submit(&stream).is_err() {
        assert!(since.elapsed() < LIMIT, "it is given back with the answer");
    }
    rig.answer(Status::Ok);
    rig.gpu.synchronize(&stream).expect("the result is there");
    assert_eq!(rig.read(rig.output.memory()), all_pooled());
}

#[test]
fn a_requests_own_limit_counts_where_it_is_shorter() {
    let rig = Rig::new("", |_| ());
    let stream = rig.stream();
    let options = RequestOptions {
        remaining: Some(Duration::from_millis(20)),
        ..RequestOptions::default()
    };
    let sent = rig.gpu.submit(
        &rig.schema,
        &batch(BAGS),
        (&rig.output, 0),
        &stream,
        &options,
    );
    sent.expect("sent");
    let why = failure(rig.gpu.synchronize(&stream));
    assert_eq!(why, StreamFailure::TimedOut(Duration::from_millis(120)));
}

#[test]
fn a_gpu_that_is_given_up_releases_its_streams() {
    let rig = Rig::new("", |_| ());
    let Rig {
        no_gpu,
        hub,
        schema,
        gpu,
        output,
    } = rig;
    let stream = Stream::new(gpu.context()).expect("a stream");
    let sent = gpu.submit(
        &schema,
        &batch(BAGS),
        (&output, 0),
        &stream,
        &RequestOptions::default(),
    );
    sent.expect("sent");
    let context = gpu.context().clone();
    drop(gpu);
    let current = context.enter().expect("a context");
    current.synchronize(&stream).expect("it goes on");
    let mut bytes = vec![0; BYTES as usize];
    current
        .read(output.memory(), 0, &mut bytes)
        .expect("it can be read");
    assert!(bytes.iter().all(|&byte| byte == 0xff));
    // The answer still comes, and finds nobody.
    let mut inner = hub.shared.lock().expect("open");
    inner.session.port.answer_all(Status::Ok);
    drop(inner);
    assert_eq!(hub.pending().expect("open"), 0);
    drop((current, no_gpu));
}

#[test]
fn closing_releases_streams_that_other_threads_wait_for() {
    let rig = Rig::new("", |_| ());
    let stream = rig.stream();
    rig.submit(&stream).expect("sent");
    thread::scope(|scope| {
        let other = rig.gpu.clone();
        let waiting = scope.spawn(|| {
            let other = other;
            other.synchronize(&stream)
        });
        thread::sleep(MOMENT);
        assert!(!waiting.is_finished(), "there is no answer yet");
        rig.gpu.close();
        let outcome = waiting.join().expect("no panic");
        assert_eq!(failure(outcome), StreamFailure::Closed);
    });
    assert!(is_missing(&rig.read(rig.output.memory())));
    rig.gpu.close();
    let memory = Arc::new(rig.memory());
    let outcomes = [
        rig.submit(&stream),
        rig.gpu.check(&stream),
        rig.gpu.check_all(),
        rig.gpu.synchronize(&stream),
        rig.gpu.register(memory, Staging::Allowed).map(|_| ()),
    ];
    for outcome in outcomes {
        assert!(
            matches!(outcome, Err(ClientError::GpuClosed)),
            "{outcome:?}"
        );
    }
    assert!(rig.gpu.is_closed());
    rig.answer(Status::Ok);
    assert_eq!(rig.hub.pending().expect("open"), 0);
}

#[test]
fn a_request_that_meets_the_close_is_not_sent() {
    let rig = Rig::new("", |_| ());
    // As after the submission has found it open.
    rig.gpu
        .inner
        .watches
        .iter()
        .for_each(|watch| watch.detach());
    let error = rig
        .submit(&rig.stream())
        .expect_err("nobody would release it");
    assert!(matches!(error, ClientError::GpuClosed), "{error}");
    assert_eq!(rig.with_port(|port| port.arrived.len()), 0);
}

/// Threads of this process by the beginnings of their names, as the kernel has them.
fn threads(name: &str) -> Vec<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("procfs");
    let tasks = tasks.filter_map(|task| {
        let path = task.ok()?.path();
        let comm = std::fs::read_to_string(path.join("comm")).ok()?;
        let number = path.file_name()?.to_str()?.parse().ok()?;
        comm.trim().starts_with(name).then_some(number)
    });
    tasks.collect()
}

#[test]
fn memory_that_is_freed_beside_a_waiting_stream_hinders_nobody() {
    let rig = Rig::new("", |options| options.limit = LIMIT);
    let (stream, other) = (rig.stream(), rig.stream());
    let memory = rig.memory();
    rig.submit(&stream).expect("sent");
    let (done, is_done) = channel();
    thread::scope(|scope| {
        // It holds the driver's lock until the stream goes on.
        let freed = done.clone();
        scope.spawn(move || {
            drop(memory);
            let _ = freed.send("freed");
        });
        thread::sleep(MOMENT);
        // So does this hang in its first call of CUDA, or in a later one, with what locks it holds.
        let rig = &rig;
        scope.spawn(move || {
            let sent = rig.submit(&other);
            let _ = done.send("submitted");
            sent.expect("sent");
        });
        thread::sleep(MOMENT);
        assert!(is_done.try_recv().is_err(), "both wait for the stream");
        rig.answer(Status::Ok);
        for _ in 0..2 {
            is_done
                .recv_timeout(LIMIT / 2)
                .expect("nobody waits for ever");
        }
    });
    rig.answer(Status::Ok);
    rig.gpu.synchronize(&stream).expect("the result is there");
    let calls = |name| -> Vec<u64> {
        let found = threads(name);
        assert!(!found.is_empty(), "there is a thread {name}");
        found
            .into_iter()
            .map(|thread| rig.no_gpu.calls(thread))
            .collect()
    };
    assert!(calls("rowmill-progres").iter().all(|&calls| calls == 0));
    assert!(calls("rowmill-streams").iter().all(|&calls| calls == 0));
}
