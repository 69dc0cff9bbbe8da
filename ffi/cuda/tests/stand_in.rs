//! The layer over the stand-in for libcuda: errors, order, what may and may not wait.

use std::ffi::OsStr;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use cuda_stand_in::StandIn;
use rowmill_cuda::{Context, DeviceMemory, Driver, Error, Event, Flush, Pinned, Stream, Words};

/// Long enough that what does not wait has happened.
const MOMENT: Duration = Duration::from_millis(200);

fn context(stand_in: &StandIn) -> Context {
    let driver = Driver::open(stand_in.path().as_os_str()).expect("the stand-in opens");
    Context::primary(driver.device(0).expect("a device")).expect("its context")
}

fn pinned(context: &Context, mut bytes: Vec<u8>) -> Pinned<Vec<u8>> {
    let start = NonNull::new(bytes.as_mut_ptr()).expect("not null");
    let len = bytes.len();
    Pinned::new(context, bytes, start, len).expect("it can be pinned")
}

fn read(context: &Context, memory: &DeviceMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len() as usize];
    let current = context.enter().expect("a context");
    current.read(memory, 0, &mut bytes).expect("it can be read");
    bytes
}

#[test]
fn a_library_that_is_absent_or_no_driver_is_named() {
    let absent = Driver::open(OsStr::new("libcuda-not-there.so.1")).expect_err("it is not there");
    let text = absent.to_string();
    assert!(matches!(absent, Error::Library { .. }), "{text}");
    assert!(text.contains("libcuda-not-there.so.1"), "{text}");

    let other = Driver::open(OsStr::new("libc.so.6")).expect_err("it is no driver");
    let text = other.to_string();
    assert!(
        text.contains("libc.so.6") && text.contains("cuInit"),
        "{text}"
    );
    let Error::Symbols { missing, .. } = other else {
        panic!("{text}");
    };
    assert!(missing.contains(&"cuMemHostRegister_v2"), "{missing:?}");
}

#[test]
fn without_a_device_the_driver_says_so() {
    let stand_in = StandIn::new("no-device");
    let error = Driver::open(stand_in.path().as_os_str()).expect_err("there is no device");
    assert_eq!(error.code(), Some(100));
    let text = error.to_string();
    assert!(
        text.starts_with("cuInit failed: CUDA_ERROR_NO_DEVICE (100)"),
        "{text}"
    );
}

#[test]
fn devices_have_names_and_attributes() {
    let stand_in = StandIn::new("ordering=100");
    let driver = Driver::open(stand_in.path().as_os_str()).expect("the stand-in opens");
    assert_eq!(driver.missing(), [""; 0]);
    assert_eq!(driver.version().expect("a version"), 13_000);
    let device = driver.device(0).expect("a device");
    assert_eq!(device.name().expect("a name"), "rowmill's stand-in, no GPU");
    let ordering = device.attribute(rowmill_cuda::Attribute::GPU_DIRECT_RDMA_ORDERING);
    assert_eq!(ordering.expect("it is known"), 100);
    let error = driver.device(1).expect_err("there is one");
    assert!(
        matches!(
            error,
            Error::NoDevice {
                ordinal: 1,
                count: 1
            }
        ),
        "{error}"
    );
}

#[test]
fn a_stream_waits_for_a_word_and_copies_what_is_there_then() {
    let context = context(&StandIn::new(""));
    let memory = DeviceMemory::new(&context, 64).expect("memory");
    let words = Words::new(&context, 4).expect("words");
    let bytes = vec![1; 64];
    let from = pinned(&context, bytes);
    let (stream, event) = (
        Stream::new(&context).expect("a stream"),
        Event::new(&context).expect("an event"),
    );
    let current = context.enter().expect("a context");
    // Words count round: 5 is behind u32::MAX - 5.
    words.word(2).store(u32::MAX - 5, Ordering::Release);
    current
        .wait_word(&stream, &words, 2, 5, Flush::No)
        .expect("it waits");
    current
        .copy_in(&stream, (&memory, 16), (&from, 0), 8)
        .expect("it copies");
    current.record(&event, &stream).expect("it is recorded");
    thread::sleep(MOMENT);
    assert!(!current.is_reached(&event).expect("an answer"));
    assert!(!current.is_idle(&stream).expect("an answer"));
    assert_eq!(read(&context, &memory), [0; 64]);
    words.word(2).store(6, Ordering::Release);
    current.wait_until(&event).expect("it is reached");
    current.synchronize(&stream).expect("it is done");
    assert!(current.is_idle(&stream).expect("an answer"));
    assert!(current.is_reached(&event).expect("an answer"));
    let bytes = read(&context, &memory);
    assert_eq!(bytes[16..24], [1; 8]);
    assert_eq!(bytes.iter().filter(|&&byte| byte == 1).count(), 8);
}

#[test]
fn streams_wait_for_events_of_others_and_for_the_legacy_stream_only_where_they_should() {
    let context = context(&StandIn::new(""));
    let words = Words::new(&context, 1).expect("words");
    let (one, other) = (
        Stream::new(&context).expect("one"),
        Stream::new(&context).expect("other"),
    );
    let legacy = Stream::legacy(&context);
    let [first, second, third] = [(); 3].map(|()| Event::new(&context).expect("an event"));
    let current = context.enter().expect("a context");
    current
        .wait_word(&one, &words, 0, 1, Flush::No)
        .expect("it waits");
    current.record(&first, &one).expect("recorded");
    // The legacy stream does not wait for a stream that is non-blocking.
    current.record(&second, &legacy).expect("recorded");
    current.wait_until(&second).expect("reached");
    current.wait_event(&other, &first).expect("it waits");
    current.wait_event(&legacy, &first).expect("it waits");
    current.record(&second, &other).expect("recorded");
    current.record(&third, &legacy).expect("recorded");
    thread::sleep(MOMENT);
    assert!(!current.is_reached(&second).expect("an answer"));
    assert!(!current.is_reached(&third).expect("an answer"));
    words.word(0).store(1, Ordering::Release);
    current.synchronize(&other).expect("done");
    current.synchronize(&legacy).expect("done");
    assert!(current.is_reached(&second).expect("an answer"));
    assert!(current.is_reached(&third).expect("an answer"));
}

#[test]
fn only_memory_of_the_gpu_is_taken_for_it() {
    let stand_in = StandIn::new("");
    let context = context(&stand_in);
    let memory = DeviceMemory::new(&context, 4096).expect("memory");
    // SAFETY: `memory` outlives what is made here.
    let foreign = |address, bytes| unsafe { DeviceMemory::foreign(&context, address, bytes) };
    let part = foreign(memory.address() + 64, 4032).expect("it is the GPU's");
    assert_eq!((part.address(), part.len()), (memory.address() + 64, 4032));
    let error = foreign(memory.address() + 64, 4033).expect_err("it leaves the allocation");
    assert!(matches!(error, Error::NotDeviceMemory { .. }), "{error}");
    let host = pinned(&context, vec![0; 64]);
    let at = host.owner().as_ptr() as u64;
    for (address, bytes) in [(at, 64), (0, 1), (u64::MAX, 2)] {
        let error = foreign(address, bytes).expect_err("it is not the GPU's");
        let text = error.to_string();
        assert!(text.contains("are no memory of GPU 0"), "{text}");
    }
    assert!(matches!(foreign(memory.address(), 0), Err(Error::Empty)));
    stand_in.set("managed");
    let error = foreign(memory.address(), 64)
        .expect_err("it is managed")
        .to_string();
    assert!(
        error.contains("managed memory; allocate with cudaMalloc"),
        "{error}"
    );
}

#[test]
fn what_can_not_be_pinned_is_an_error_and_leaves_nothing_behind() {
    let stand_in = StandIn::new("");
    let context = context(&stand_in);
    let mut bytes = vec![0u8; 8192];
    let start = NonNull::new(bytes.as_mut_ptr()).expect("not null");
    let pin = |len| Pinned::new(&context, (), start, len);
    assert!(matches!(pin(0), Err(Error::Empty)));
    assert!(matches!(Words::new(&context, 0), Err(Error::Empty)));
    assert!(matches!(DeviceMemory::new(&context, 0), Err(Error::Empty)));
    stand_in.set("fail=cuMemHostRegister_v2:304");
    let error = pin(4096).expect_err("it fails");
    let text = error.to_string();
    assert!(
        text.starts_with("cuMemHostRegister failed: CUDA_ERROR_OPERATING_SYSTEM (304)"),
        "{text}"
    );
    stand_in.set("");
    let held = pin(4096).expect("the next one does not");
    assert_eq!(pin(4096).expect_err("it is pinned").code(), Some(712));
    drop(held);
    drop(pin(4096).expect("it is not any more"));
}

#[test]
fn a_stream_that_is_captured_is_refused() {
    let stand_in = StandIn::new("");
    let context = context(&stand_in);
    let stream = Stream::new(&context).expect("a stream");
    let current = context.enter().expect("a context");
    current
        .check_not_capturing(&stream)
        .expect("it is not captured");
    assert!(stand_in.capture(stream.as_raw(), true));
    let error = current.check_not_capturing(&stream);
    assert!(matches!(error, Err(Error::Capturing)), "{error:?}");
    assert!(stand_in.capture(stream.as_raw(), false));
    current
        .check_not_capturing(&stream)
        .expect("it is not captured");
}

#[test]
fn streams_are_told_apart_whatever_handle_they_are_given_by() {
    let stand_in = StandIn::new("");
    let context = context(&stand_in);
    let [one, two] = [(); 2].map(|()| Stream::new(&context).expect("a stream"));
    let legacy = Stream::legacy(&context);
    // SAFETY: the first one's handle lives as long, the second is `CU_STREAM_LEGACY`.
    let [again, named] = unsafe {
        let named = core::ptr::without_provenance_mut(1);
        [one.as_raw(), named].map(|raw| Stream::foreign(&context, raw))
    };
    let current = context.enter().expect("a context");
    let id = |stream| current.id(stream).expect("it has one");
    assert_eq!((id(&one), id(&legacy)), (id(&again), id(&named)));
    assert!(id(&one) != id(&two) && id(&two) != id(&legacy) && id(&legacy) != id(&one));
    stand_in.set("fail=cuStreamGetId:400");
    assert_eq!(current.id(&one).expect_err("it fails").code(), Some(400));
}

#[test]
fn memory_is_exported_where_the_device_can() {
    let stand_in = StandIn::new("");
    let context = context(&stand_in);
    let memory = DeviceMemory::new(&context, 8192).expect("memory");
    // SAFETY: `memory` outlives it.
    let part = unsafe { DeviceMemory::foreign(&context, memory.address() + 4196, 100) };
    let part = part.expect("it is the GPU's");
    let current = context.enter().expect("a context");
    current.synchronize_copies(&part).expect("it can be set");
    let exported = current.export(&part, 4096).expect("it can be exported");
    assert_eq!(exported.expect("the device can").offset, 100);
    stand_in.set("no-dmabuf");
    assert!(current.export(&part, 4096).expect("no error").is_none());
    stand_in.set("fail=cuMemGetHandleForAddressRange:801");
    assert_eq!(
        current.export(&part, 4096).expect_err("it fails").code(),
        Some(801)
    );
}

/// A thread frees memory while a stream waits for a word: the driver holds its lock until the stream goes on.
fn free_beside_a_waiting_stream(
    set_the_word: impl FnOnce(&Context, &Words) + Send + 'static,
) -> bool {
    let context = context(&StandIn::new(""));
    let words = std::sync::Arc::new(Words::new(&context, 1).expect("words"));
    let memory = DeviceMemory::new(&context, 64).expect("memory");
    let stream = Stream::new(&context).expect("a stream");
    let current = context.enter().expect("a context");
    current
        .wait_word(&stream, &words, 0, 1, Flush::No)
        .expect("it waits");
    let free = thread::spawn(move || drop(memory));
    thread::sleep(MOMENT);
    assert!(!free.is_finished(), "it waits for the stream");
    let (done, is_done) = channel();
    let progress = thread::spawn({
        let (context, words) = (context.clone(), std::sync::Arc::clone(&words));
        move || {
            set_the_word(&context, &words);
            let _ = done.send(());
        }
    });
    let hangs = is_done.recv_timeout(MOMENT * 5) == Err(RecvTimeoutError::Timeout);
    // The watchdog: whatever hangs goes on now.
    words.word(0).store(1, Ordering::Release);
    progress.join().expect("it ends");
    free.join().expect("it ends");
    current.synchronize(&stream).expect("it ends");
    hangs
}

#[test]
fn who_sets_the_word_must_not_call_cuda_before() {
    let copies_first = |context: &Context, words: &Words| {
        let other = Event::new(context).expect("an event");
        words.word(0).store(1, Ordering::Release);
        drop(other);
    };
    assert!(
        free_beside_a_waiting_stream(copies_first),
        "the driver's lock is held"
    );
    let only_stores = |_: &Context, words: &Words| words.word(0).store(1, Ordering::Release);
    assert!(
        !free_beside_a_waiting_stream(only_stores),
        "a store needs no lock"
    );
}

#[test]
fn calls_are_counted_by_thread() {
    let stand_in = StandIn::new("");
    let context = context(&stand_in);
    let number = || {
        let link = std::fs::read_link("/proc/thread-self").expect("procfs");
        let number = link
            .file_name()
            .and_then(|name| name.to_str()?.parse().ok());
        number.expect("a number")
    };
    let before = stand_in.calls(number());
    drop(context.enter().expect("a context"));
    assert_eq!(stand_in.calls(number()), before + 2);
    let other = thread::spawn(number).join().expect("it ends");
    assert_eq!(stand_in.calls(other), 0);
}
