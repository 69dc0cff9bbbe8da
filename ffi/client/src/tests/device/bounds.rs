//! What is refused, and that it leaves nothing behind.

use super::*;

fn assert_works(rig: &Rig) {
    let stream = rig.stream();
    rig.submit(&stream).expect("sent");
    rig.answer(Status::Ok);
    rig.gpu.synchronize(&stream).expect("the result is there");
    assert_eq!(rig.read(rig.output.memory()), all_pooled());
}

#[test]
fn a_stream_that_is_captured_is_refused_before_anything_is_sent() {
    let rig = Rig::new("", |_| ());
    let stream = rig.stream();
    let current = rig.current();
    assert!(rig.no_gpu.capture(stream.as_raw(), true));
    let error = rig.submit(&stream).expect_err("it is captured");
    assert!(
        matches!(error, ClientError::Cuda(cuda::Error::Capturing)),
        "{error}"
    );
    assert!(rig.no_gpu.capture(stream.as_raw(), false));
    drop(current);
    assert_eq!(rig.with_port(|port| port.arrived.len()), 0);
    assert_works(&rig);
}

#[test]
fn outputs_that_the_result_does_not_fit_are_refused() {
    let rig = Rig::new("", |_| ());
    let stream = rig.stream();
    let options = RequestOptions::default();
    let submit = |bags, at| {
        let to = (&rig.output, at);
        rig.gpu
            .submit(&rig.schema, &batch(bags), to, &stream, &options)
    };
    let error = submit(BAGS, 4).expect_err("it ends too late");
    assert!(
        matches!(
            error,
            ClientError::TargetTooSmall {
                needed: BYTES,
                bytes: 316
            }
        ),
        "{error}"
    );
    let error = submit(1, u64::MAX).expect_err("it begins too late");
    assert!(
        matches!(error, ClientError::TargetTooSmall { bytes: 0, .. }),
        "{error}"
    );
    let error = submit(1, 2).expect_err("between two elements");
    assert!(
        matches!(
            error,
            ClientError::AddressMisaligned { address, element: 4 }
                if address == rig.output.memory().address() + 2
        ),
        "{error}"
    );
    let other = Rig::new("", |_| ());
    let sent = other.gpu.submit(
        &rig.schema,
        &batch(1),
        (&other.output, 0),
        &stream,
        &options,
    );
    let error = sent.expect_err("another client's schema");
    assert!(
        matches!(error, ClientError::OtherClient { what: "schema" }),
        "{error}"
    );
    assert_works(&rig);
}

#[test]
fn results_on_their_way_are_bounded_in_number_and_bytes() {
    for (requests, bytes) in [(2, 1 << 16), (16, 2 * BYTES)] {
        let rig = Rig::new("", |options| {
            options.requests = requests;
            options.staging_bytes = bytes;
        });
        let stream = rig.stream();
        rig.submit(&stream).expect("sent");
        rig.submit(&stream).expect("sent");
        let error = rig.submit(&stream).expect_err("there is no room");
        let full = matches!(
            error,
            ClientError::ResultsHeld {
                needed: BYTES,
                held: 2
            }
        );
        assert!(full, "{error}");
        rig.answer(Status::Ok);
        rig.gpu.synchronize(&stream).expect("the results are there");
        assert_works(&rig);
    }
}

#[test]
fn without_a_driver_a_gpu_or_leave_to_pin_there_is_no_gpu() {
    let mut session = session(2, 8, 1);
    let schema = bound(&mut session, false);
    let hub = Hub::over(session, HubOptions::default()).expect("descriptors");
    let regions = |hub: &Hub<StandIn>| hub.shared.lock().expect("open").pool.regions();
    let open = |options| {
        Gpu::open(&hub, options)
            .map(|_| ())
            .expect_err("there is none")
            .to_string()
    };
    let no_gpu = NoGpu::new("no-device");
    let absent = GpuOptions {
        library: "libcuda-not-there.so.1".into(),
        ..options(&no_gpu)
    };
    assert!(open(absent).contains("`libcuda-not-there.so.1` can't be opened"));
    assert!(open(options(&no_gpu)).contains("CUDA_ERROR_NO_DEVICE"));
    let no_gpu = NoGpu::new("fail=cuMemHostRegister_v2:304");
    let other = GpuOptions {
        ordinal: 3,
        ..options(&no_gpu)
    };
    assert!(open(other).contains("there is no GPU 3: the driver knows 1"));
    assert!(open(options(&no_gpu)).contains("CUDA_ERROR_OPERATING_SYSTEM"));
    assert_eq!(regions(&hub), 0, "what was registered is given up");
    assert_eq!(schema.features(), 2);
}

#[test]
fn a_call_that_fails_in_the_midst_leaves_room_for_the_next_one() {
    for call in [
        "cuEventRecord",
        "cuStreamWaitEvent",
        "cuStreamWaitValue32_v2",
        "cuMemcpyHtoDAsync_v2",
    ] {
        let rig = Rig::new("", |options| options.requests = 1);
        let stream = rig.stream();
        rig.no_gpu.set(&format!("fail={call}:999"));
        let error = rig.submit(&stream).expect_err("it fails");
        assert!(matches!(error, ClientError::Cuda(_)), "{call}: {error}");
        rig.no_gpu.set("");
        rig.answer(Status::Ok);
        let since = Instant::now();
        while rig.with_port(|port| !port.arrived.is_empty()) || rig.hub.pending().expect("open") > 1
        {
            assert!(since.elapsed() < LIMIT, "{call}: it is answered");
        }
        rig.gpu.synchronize(&stream).expect("nothing is missing");
        assert_works(&rig);
    }
}

#[test]
fn a_result_that_is_larger_than_all_staging_is_refused_with_what_to_do() {
    let rig = Rig::new("", |options| options.staging_bytes = BYTES - 64);
    let error = rig.submit(&rig.stream()).expect_err("it never fits");
    let text = error.to_string();
    assert!(
        text.ends_with("is more than the limit of 256; open the GPU with more staging_bytes"),
        "{text}"
    );
}

#[test]
fn what_a_refused_request_gave_back_is_there_for_the_next_one() {
    let rig = Rig::new("", |options| options.staging_bytes = 2 * BYTES);
    let (stream, options) = (rig.stream(), RequestOptions::default());
    let large = DeviceMemory::new(rig.gpu.context(), 2 * BYTES).expect("memory");
    let large = rig.register(Arc::new(large), Staging::Allowed);
    let large = large.expect("it is staged");
    rig.submit(&stream).expect("sent");
    rig.submit(&stream).expect("sent");
    // The first request's two parts.
    rig.with_port(|port| (0..2).for_each(|_| port.answer(0, Refusal::whole(Status::Ok))));
    let since = Instant::now();
    let twice = batch(2 * BAGS);
    let refused = |held: usize| loop {
        let sent = rig
            .gpu
            .submit(&rig.schema, &twice, (&large, 0), &stream, &options);
        match sent.expect_err("there is no room in one piece") {
            ClientError::ResultsHeld { held: found, .. } if found == held => break,
            ClientError::ResultsHeld { .. } => assert!(since.elapsed() < LIMIT, "it is copied"),
            error => panic!("{error}"),
        }
    };
    refused(1);
    rig.submit(&stream).expect("the first one's place is free");
    rig.answer(Status::Ok);
    rig.gpu.synchronize(&stream).expect("the results are there");
}

#[test]
fn requests_allocate_nothing_once_they_have_been_made() {
    let rig = Rig::new("delay=0", |_| ());
    rig.with_port(|port| port.echoes = true);
    let (stream, asked) = (rig.stream(), batch(BAGS));
    let rounds = |rounds: u32| {
        for _ in 0..rounds {
            let (to, options) = ((&rig.output, 0), RequestOptions::default());
            let sent = rig.gpu.submit(&rig.schema, &asked, to, &stream, &options);
            sent.expect("sent");
            rig.gpu.synchronize(&stream).expect("answered");
        }
    };
    rounds(20);
    let measured = allocation_counter::measure(|| rounds(200));
    assert_eq!(measured.count_total, 0, "{measured:?}");
}
