//! Memory that a NIC writes to: what is tried, and requests whose results come that way.

use super::*;
use crate::stand_in::Nic;

/// A rig whose dataplane has a NIC, and answers while memory is registered.
struct Direct {
    rig: Rig,
    memory: Arc<DeviceMemory>,
}

impl Direct {
    fn new(words: &str, nic: Nic, module: bool) -> Direct {
        let rig = Rig::new(words, |options| {
            let file = if module {
                "/dev/null"
            } else {
                "/dev/not-there"
            };
            options.peer_memory_files = vec![file.into()];
        });
        rig.with_port(|port| port.nic = nic);
        // Some bytes beside the result, since the pattern of the small transfer takes some.
        let memory = DeviceMemory::new(rig.gpu.context(), 1 << 12).expect("memory");
        // As f32 no NaNs, which are equal to nothing.
        let before: Vec<u8> = (0..1 << 12).map(|byte| (byte % 64) as u8).collect();
        rig.current().write(&memory, 0, &before).expect("written");
        let memory = Arc::new(memory);
        Direct { rig, memory }
    }

    /// Registers the memory, while the dataplane answers.
    fn register(&self, staging: Staging) -> Result<GpuRegion, ClientError> {
        self.rig.register(Arc::clone(&self.memory), staging)
    }

    /// The ways that were tried, and what came of them, but for the first line, which is of the GPU.
    fn tried(&self, staging: Staging) -> (Option<Way>, Vec<String>) {
        let (way, report) = match self.register(staging) {
            Ok(region) => (Some(region.way()), region.report().join("; ")),
            Err(ClientError::NoDirectWay { report } | ClientError::NoWay { report }) => {
                (None, report)
            }
            Err(error) => panic!("{error}"),
        };
        let mut lines = report.split("; ").map(str::to_owned);
        let gpu = lines.next().expect("a line");
        assert!(
            gpu.starts_with("GPU 0: rowmill's stand-in, no GPU, driver /"),
            "{gpu}"
        );
        (way, lines.collect())
    }
}

const UNSUPPORTED: &str = "a device's memory is not supported here";
const THROUGH: &str = "a small transfer has come through";

#[test]
fn the_first_way_that_works_is_taken_and_the_others_are_reported() {
    let staged =
        "staging: a small transfer has come through, and results are copied from pinned memory";
    let no_module = "nvidia-peermem: the kernel module is not loaded (modprobe nvidia-peermem)";
    let lines = |lines: &[&str]| {
        lines
            .iter()
            .map(|&line| line.to_owned())
            .collect::<Vec<_>>()
    };
    let no_dma_buf = format!("dma-buf: {UNSUPPORTED}");
    let cases = [
        (
            "",
            Nic::All,
            true,
            Some(Way::DmaBuf),
            lines(&[&format!("dma-buf: {THROUGH}")]),
        ),
        (
            "no-dmabuf",
            Nic::All,
            true,
            Some(Way::PeerMemory),
            lines(&[
                "dma-buf: the GPU exports none (attribute 124 is 0)",
                &format!("nvidia-peermem: {THROUGH}"),
            ]),
        ),
        (
            "",
            Nic::Peer,
            true,
            Some(Way::PeerMemory),
            lines(&[&no_dma_buf, &format!("nvidia-peermem: {THROUGH}")]),
        ),
        (
            "",
            Nic::Peer,
            false,
            Some(Way::Staging),
            lines(&[&no_dma_buf, no_module, staged]),
        ),
        (
            "",
            Nic::None,
            false,
            Some(Way::Staging),
            lines(&[&no_dma_buf, no_module, staged]),
        ),
        (
            "ordering=0 no-flush",
            Nic::All,
            true,
            Some(Way::Staging),
            lines(&[
                "dma-buf, nvidia-peermem: the GPU neither orders what a NIC writes (attribute 118 is 0) nor flushes it in a stream \
                 (attribute 98 is 0)",
                staged,
            ]),
        ),
    ];
    for (words, nic, module, way, report) in cases {
        let direct = Direct::new(words, nic, module);
        assert_eq!(
            direct.tried(Staging::Allowed),
            (way, report.clone()),
            "{words} {nic:?}"
        );
        let refused = direct.tried(Staging::Refused);
        match way {
            Some(Way::Staging) => {
                let tried = report[..report.len() - 1].to_vec();
                assert_eq!(refused, (None, tried), "{words} {nic:?}");
            }
            way => assert_eq!(refused, (way, report), "{words} {nic:?}"),
        }
    }
}

#[test]
fn memory_is_as_before_once_it_is_registered_and_given_up() {
    let direct = Direct::new("", Nic::All, true);
    let before = direct.rig.read(&direct.memory);
    let region = direct.register(Staging::Refused).expect("it is registered");
    assert_eq!(direct.rig.read(&direct.memory), before);
    direct
        .rig
        .gpu
        .unregister(&region)
        .expect("nothing is in flight");
    drop(region);
    assert_eq!(Arc::strong_count(&direct.memory), 1, "nobody keeps it");
}

#[test]
fn a_registration_that_leads_nowhere_is_found_out() {
    let direct = Direct::new("", Nic::Dead, true);
    let before = direct.rig.read(&direct.memory);
    let (way, report) = direct.tried(Staging::Refused);
    let found =
        "registered, but a small transfer did not come through: byte 64 is 0xa5 instead of 0x00";
    assert_eq!(way, None);
    assert_eq!(
        report,
        [
            format!("dma-buf: {found}"),
            format!("nvidia-peermem: {found}")
        ]
    );
    assert_eq!(direct.rig.read(&direct.memory), before);
    assert_eq!(Arc::strong_count(&direct.memory), 1, "nobody keeps it");
}

#[test]
fn staging_that_leads_nowhere_is_found_out() {
    let fails = "cuMemcpyHtoDAsync failed: unknown to the driver (999)";
    let no_answer =
        "a small transfer failed: the dataplane has not answered within 200ms; is it stopped?";
    let found = |byte: &str| {
        format!("a small transfer did not come through: byte 64 is {byte} instead of 0x00")
    };
    let cases = [
        ("corrupt=cuMemcpyHtoDAsync_v2", found("0x01")),
        ("ignore=cuMemcpyHtoDAsync_v2", found("0xa5")),
        ("fail=cuMemcpyHtoDAsync_v2:999", fails.into()),
    ];
    for (words, why) in cases {
        let direct = Direct::new("", Nic::None, false);
        let before = direct.rig.read(&direct.memory);
        direct.rig.no_gpu.set(words);
        let (way, report) = direct.tried(Staging::Allowed);
        let last = report.last().expect("staging");
        assert_eq!(way, None, "{words}");
        assert!(
            last.starts_with(&format!("staging: {why}")),
            "{words}: {report:?}"
        );
        assert_eq!(report.len(), 3, "{words}: {report:?}");
        direct.rig.no_gpu.set("");
        assert_eq!(direct.rig.read(&direct.memory), before, "{words}");
        direct
            .register(Staging::Allowed)
            .expect("all is well again");
    }
    // A dataplane that says that it has, and has not.
    let direct = Direct::new("", Nic::None, false);
    direct.rig.with_port(|port| port.echoes = true);
    let (way, report) = direct.tried(Staging::Allowed);
    assert_eq!(
        (way, &report[2]),
        (None, &format!("staging: {}", found("0xa5")))
    );
    // One that says nothing.
    let rig = Rig::new("", |options| options.limit = Duration::from_millis(200));
    let memory = Arc::new(rig.memory());
    let error = rig
        .gpu
        .register(memory, Staging::Allowed)
        .expect_err("no answer");
    let text = error.to_string();
    assert!(
        matches!(error, ClientError::NoWay { .. }) && text.contains(no_answer),
        "{text}"
    );
}

#[test]
fn memory_for_which_no_result_is_small_enough_is_refused() {
    let rig = Rig::new("", |_| ());
    let memory = |bytes| Arc::new(DeviceMemory::new(rig.gpu.context(), bytes).expect("memory"));
    let error = rig
        .register(memory(6), Staging::Allowed)
        .expect_err("too small");
    let text = error.to_string();
    assert!(
        text.contains("6 bytes are less than a vector of 8 to try it with"),
        "{text}"
    );
    rig.register(memory(8), Staging::Allowed)
        .expect("it has room for one of f16");
}

#[test]
fn the_connections_end_is_told_as_such_while_memory_is_tried() {
    for nic in [Nic::None, Nic::All] {
        let direct = Direct::new("", nic, true);
        let (rig, memory) = (&direct.rig, Arc::clone(&direct.memory));
        let outcome = thread::scope(|scope| {
            let registering = scope.spawn(|| rig.gpu.register(memory, Staging::Allowed));
            while !registering.is_finished() {
                rig.with_port(|port| port.closed = !port.arrived.is_empty());
                thread::yield_now();
            }
            registering.join().expect("no panic")
        });
        let error = outcome.expect_err("there is no dataplane");
        assert!(error.is_end(), "{nic:?}: {error}");
    }
}

/// A request for a region that a NIC writes, and what a stream that comes after it finds there.
fn result(direct: &Direct, region: &GpuRegion, is_free: bool, stream: &Stream) -> Vec<f32> {
    let rig = &direct.rig;
    let to = GpuOutput {
        region,
        offset: 512,
        is_free,
    };
    let seen = rig.memory();
    let sent = rig.gpu.submit(
        &rig.schema,
        &batch(BAGS),
        to,
        stream,
        &RequestOptions::default(),
    );
    sent.expect("sent");
    let copied = rig
        .current()
        .copy_between(stream, (&seen, 0), (region.memory(), 512), BYTES);
    copied.expect("queued");
    thread::sleep(MOMENT);
    rig.answer(Status::Ok);
    rig.gpu.synchronize(stream).expect("the result is there");
    rig.read(&seen)
}

#[test]
fn streams_wait_for_what_a_nic_writes() {
    for words in ["", "ordering=0"] {
        let direct = Direct::new(words, Nic::All, true);
        let region = direct.register(Staging::Refused).expect("it is registered");
        let stream = direct.rig.stream();
        for _ in 0..3 {
            assert_eq!(result(&direct, &region, false, &stream), all_pooled());
        }
        assert_eq!(direct.rig.gpu.staged_instead(), 0);
        direct.rig.no_gpu.set("ignore=cuStreamWaitValue32_v2");
        direct
            .rig
            .current()
            .fill(region.memory(), 512, BYTES, 0)
            .expect("filled");
        assert_ne!(result(&direct, &region, false, &stream), all_pooled());
    }
}

#[test]
fn an_output_that_its_stream_may_use_is_written_by_no_nic() {
    let direct = Direct::new("slow=cuMemcpyDtoDAsync_v2:50000", Nic::All, true);
    let (allowed, refused) = (
        direct.register(Staging::Allowed),
        direct.register(Staging::Refused),
    );
    let (allowed, refused) = (allowed.expect("registered"), refused.expect("registered"));
    let (stream, rig) = (direct.rig.stream(), &direct.rig);
    let (before, seen) = (rig.read(&direct.memory), rig.memory());
    let read = |region: &GpuRegion| {
        let from = (&**region.memory(), 512);
        rig.current()
            .copy_between(&stream, (&seen, 0), from, BYTES)
            .expect("queued");
    };
    read(&refused);
    let sent = rig.gpu.submit(
        &rig.schema,
        &batch(BAGS),
        (&refused, 512),
        &stream,
        &RequestOptions::default(),
    );
    assert!(matches!(sent, Err(ClientError::OutputInUse)), "{sent:?}");
    let sent = rig.gpu.submit(
        &rig.schema,
        &batch(BAGS),
        (&allowed, 512),
        &stream,
        &RequestOptions::default(),
    );
    sent.expect("it is staged");
    rig.answer(Status::Ok);
    rig.gpu.synchronize(&stream).expect("the result is there");
    assert_eq!(rig.gpu.staged_instead(), 1);
    assert_eq!(rig.read(&seen), before[128..208]);
    assert_eq!(rig.read(&direct.memory)[128..208], all_pooled());
    // The caller knows better.
    read(&refused);
    assert_eq!(result(&direct, &refused, true, &stream), all_pooled());
}

#[test]
fn a_dataplane_that_goes_releases_streams_that_wait_for_its_nic() {
    let direct = Direct::new("", Nic::All, true);
    let region = direct.register(Staging::Refused).expect("it is registered");
    let (stream, rig) = (direct.rig.stream(), &direct.rig);
    let sent = rig.gpu.submit(
        &rig.schema,
        &batch(BAGS),
        (&region, 0),
        &stream,
        &RequestOptions::default(),
    );
    sent.expect("sent");
    rig.with_port(|port| port.closed = true);
    let outcome = rig.gpu.synchronize(&stream);
    let gone = StreamFailure::Request(Failure::Disconnected);
    assert!(
        matches!(outcome, Err(ClientError::NoResult(why)) if why == gone),
        "{outcome:?}"
    );
}

#[test]
fn memory_that_is_not_registered_is_staged() {
    let rig = Rig::new("", |_| ());
    let memory = Arc::new(rig.memory());
    let region = GpuRegion::staged(Arc::clone(&memory));
    assert_eq!((region.way(), region.report().len()), (Way::Staging, 0));
    let (start, bytes) = (memory.address(), memory.len());
    assert_eq!(region.offset_of(start, bytes), Some(0));
    assert_eq!(region.offset_of(start + 8, bytes - 8), Some(8));
    for (address, bytes) in [(start - 1, 1), (start + 8, bytes - 7), (start, u64::MAX)] {
        assert_eq!(region.offset_of(address, bytes), None);
    }
    let stream = rig.stream();
    let options = RequestOptions::default();
    let sent = rig
        .gpu
        .submit(&rig.schema, &batch(BAGS), (&region, 0), &stream, &options);
    sent.expect("there is room");
    rig.answer(Status::Ok);
    rig.gpu.synchronize(&stream).expect("it was answered");
}

#[test]
fn a_way_is_found_before_there_is_memory() {
    let rig = Rig::new("", |_| ());
    let found = answering(&rig.hub, || rig.gpu.find_way(Staging::Allowed));
    let (way, report) = found.expect("staging");
    assert_eq!(way, Way::Staging);
    assert_eq!(report, rig.output.report());
    let error = rig.gpu.find_way(Staging::Refused).expect_err("no NIC");
    assert!(matches!(error, ClientError::NoDirectWay { .. }), "{error}");
}
