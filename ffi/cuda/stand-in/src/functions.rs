//! The functions, by their names in C. What they mean is said in CUDA's documentation, and who calls them keeps what it asks.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr;
use std::sync::Arc;

use crate::memory::Kind;
use crate::state::{State, state};
use crate::stream::{Step, Stream};

const SUCCESS: c_int = 0;
const INVALID_VALUE: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
const NO_DEVICE: c_int = 100;
const INVALID_DEVICE: c_int = 101;
const INVALID_CONTEXT: c_int = 201;
const INVALID_HANDLE: c_int = 400;
const NOT_READY: c_int = 600;
const HOST_MEMORY_ALREADY_REGISTERED: c_int = 712;
const HOST_MEMORY_NOT_REGISTERED: c_int = 713;
const NOT_SUPPORTED: c_int = 801;
const STREAM_CAPTURE_UNSUPPORTED: c_int = 900;
const STREAM_CAPTURE_INVALIDATED: c_int = 901;

/// `CU_STREAM_WAIT_VALUE_FLUSH`: there is nothing to flush here.
const WAIT_VALUE_FLUSH: c_uint = 1 << 30;

/// `CUDA 13.0`, as driver 580 says.
const VERSION: c_int = 13_000;

/// The one context's handle.
const CONTEXT: usize = 0x10;

/// Enters a call: counted, with a current context, and the library's lock where it takes that. `$name` is the function.
macro_rules! call {
    ($name:literal) => {{
        let state = state();
        state.count();
        if let Some(outcome) = state.options().outcome($name) {
            return outcome;
        }
        state
    }};
    ($name:literal, current) => {{
        let state = call!($name);
        if !state.has_context() {
            return INVALID_CONTEXT;
        }
        state
    }};
}

/// What `$option` holds, or the function fails with `$code`.
macro_rules! some {
    ($option:expr, $code:expr) => {
        match $option {
            Some(value) => value,
            None => return $code,
        }
    };
}

/// Writes an answer.
///
/// # Safety
/// `to` is null or writable.
unsafe fn answer<T>(to: *mut T, value: T) -> c_int {
    if to.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's contract; callers may leave it unaligned where they say `void *`.
    unsafe { to.write_unaligned(value) };
    SUCCESS
}

/// Calls since the start of the thread with this number in the kernel.
#[unsafe(no_mangle)]
unsafe extern "C" fn rowmill_stand_in_calls(thread: u64) -> u64 {
    state().calls(thread)
}

/// Sets the options anew.
#[unsafe(no_mangle)]
unsafe extern "C" fn rowmill_stand_in_options(words: *const c_char) {
    // SAFETY: the caller gives a string that ends in a zero.
    let words = unsafe { CStr::from_ptr(words) };
    state().set_options(&words.to_string_lossy());
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuInit(_flags: c_uint) -> c_int {
    let state = call!("cuInit");
    match state.options().device {
        true => SUCCESS,
        false => NO_DEVICE,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: as CUDA asks.
    unsafe { answer(version, VERSION) }
}

fn describe(code: c_int) -> Option<(&'static CStr, &'static CStr)> {
    Some(match code {
        SUCCESS => (c"CUDA_SUCCESS", c"no error"),
        INVALID_VALUE => (c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
        OUT_OF_MEMORY => (c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
        NO_DEVICE => (
            c"CUDA_ERROR_NO_DEVICE",
            c"no CUDA-capable device is detected",
        ),
        INVALID_DEVICE => (c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
        INVALID_CONTEXT => (c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
        304 => (
            c"CUDA_ERROR_OPERATING_SYSTEM",
            c"OS call failed or operation not supported on this OS",
        ),
        INVALID_HANDLE => (c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
        NOT_READY => (c"CUDA_ERROR_NOT_READY", c"device not ready"),
        HOST_MEMORY_ALREADY_REGISTERED => (
            c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
            c"part or all of the requested memory range is already mapped",
        ),
        HOST_MEMORY_NOT_REGISTERED => (
            c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
            c"pointer does not correspond to a registered memory region",
        ),
        NOT_SUPPORTED => (c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
        STREAM_CAPTURE_UNSUPPORTED => (
            c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
            c"operation not permitted when stream is capturing",
        ),
        STREAM_CAPTURE_INVALIDATED => (
            c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
            c"operation failed due to a previous error during capture",
        ),
        _ => return None,
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(code: c_int, name: *mut *const c_char) -> c_int {
    let (text, _) = some!(describe(code), INVALID_VALUE);
    // SAFETY: as CUDA asks.
    unsafe { answer(name, text.as_ptr()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(code: c_int, said: *mut *const c_char) -> c_int {
    let (_, text) = some!(describe(code), INVALID_VALUE);
    // SAFETY: as CUDA asks.
    unsafe { answer(said, text.as_ptr()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    let _ = call!("cuDeviceGetCount");
    // SAFETY: as CUDA asks.
    unsafe { answer(count, 1) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    let _ = call!("cuDeviceGet");
    match ordinal {
        // SAFETY: as CUDA asks.
        0 => unsafe { answer(device, 0) },
        _ => INVALID_DEVICE,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, room: c_int, device: c_int) -> c_int {
    let _ = call!("cuDeviceGetName");
    let text = c"rowmill's stand-in, no GPU".to_bytes_with_nul();
    if device != 0 || room < text.len() as c_int {
        return INVALID_VALUE;
    }
    // SAFETY: there is room for it.
    unsafe { ptr::copy_nonoverlapping(text.as_ptr(), name.cast(), text.len()) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, which: c_int, device: c_int) -> c_int {
    let state = call!("cuDeviceGetAttribute");
    if device != 0 {
        return INVALID_DEVICE;
    }
    let options = state.options();
    let found = match which {
        75 => 9,
        76 => 0,
        92..=94 => 0,
        98 => options.flush.into(),
        99 | 110 | 116 | 122 | 123 => 1,
        117 => 1,
        118 => options.ordering,
        124 => options.dmabuf.into(),
        _ => return INVALID_VALUE,
    };
    // SAFETY: as CUDA asks.
    unsafe { answer(value, found) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) -> c_int {
    let _ = call!("cuDevicePrimaryCtxRetain");
    if device != 0 {
        return INVALID_DEVICE;
    }
    // SAFETY: as CUDA asks.
    unsafe { answer(context, CONTEXT as *mut c_void) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> c_int {
    let _ = call!("cuDevicePrimaryCtxRelease_v2");
    match device {
        0 => SUCCESS,
        _ => INVALID_DEVICE,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxPushCurrent_v2(context: *mut c_void) -> c_int {
    let state = call!("cuCtxPushCurrent_v2");
    if context as usize != CONTEXT {
        return INVALID_CONTEXT;
    }
    state.push_context();
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut *mut c_void) -> c_int {
    let state = call!("cuCtxPopCurrent_v2");
    if !state.pop_context() {
        return INVALID_CONTEXT;
    }
    // SAFETY: as CUDA asks.
    unsafe { answer(context, CONTEXT as *mut c_void) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> c_int {
    let state = call!("cuMemAlloc_v2", current);
    if bytes == 0 {
        return INVALID_VALUE;
    }
    let _library = state.library();
    let start = some!(state.memory().allocate(bytes, Kind::Device), OUT_OF_MEMORY);
    // SAFETY: as CUDA asks.
    unsafe { answer(address, start) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemFree_v2(address: u64) -> c_int {
    let state = call!("cuMemFree_v2", current);
    let _library = state.library();
    state.wait_for_all();
    match state.memory().free(address, Kind::Device) {
        true => SUCCESS,
        false => INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostAlloc(at: *mut *mut c_void, bytes: usize, _flags: c_uint) -> c_int {
    let state = call!("cuMemHostAlloc", current);
    if bytes == 0 {
        return INVALID_VALUE;
    }
    let _library = state.library();
    let start = some!(state.memory().allocate(bytes, Kind::Host), OUT_OF_MEMORY);
    // SAFETY: as CUDA asks.
    unsafe { answer(at, start as *mut c_void) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemFreeHost(at: *mut c_void) -> c_int {
    let state = call!("cuMemFreeHost", current);
    let _library = state.library();
    state.wait_for_all();
    match state.memory().free(at as u64, Kind::Host) {
        true => SUCCESS,
        false => INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostRegister_v2(at: *mut c_void, bytes: usize, _flags: c_uint) -> c_int {
    let state = call!("cuMemHostRegister_v2", current);
    if bytes == 0 || at.is_null() {
        return INVALID_VALUE;
    }
    let _library = state.library();
    match state.memory().register(at, bytes) {
        true => SUCCESS,
        false => HOST_MEMORY_ALREADY_REGISTERED,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostUnregister(at: *mut c_void) -> c_int {
    let state = call!("cuMemHostUnregister", current);
    let _library = state.library();
    state.wait_for_all();
    match state.memory().unregister(at) {
        true => SUCCESS,
        false => HOST_MEMORY_NOT_REGISTERED,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    address: *mut u64,
    at: *mut c_void,
    _flags: c_uint,
) -> c_int {
    let state = call!("cuMemHostGetDevicePointer_v2", current);
    let range = some!(state.memory().around(at as u64), INVALID_VALUE);
    if range.kind == Kind::Device {
        return INVALID_VALUE;
    }
    // SAFETY: as CUDA asks.
    unsafe { answer(address, at as u64) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> c_int {
    let state = call!("cuMemcpyHtoD_v2", current);
    copy_now(state, "cuMemcpyHtoD_v2", to, from as u64, bytes, to)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> c_int {
    let state = call!("cuMemcpyDtoH_v2", current);
    copy_now(state, "cuMemcpyDtoH_v2", to as u64, from, bytes, from)
}

/// A blocking copy, in the legacy default stream; the caller answers for the host's side.
fn copy_now(
    state: &State,
    of: &'static str,
    to: u64,
    from: u64,
    bytes: usize,
    device: u64,
) -> c_int {
    let legacy = some!(state.stream(0), INVALID_HANDLE);
    {
        let _library = state.library();
        if !state.memory().is_device(device, bytes) {
            return INVALID_VALUE;
        }
        state.queue(&legacy, of, Step::Copy { to, from, bytes });
    }
    legacy.wait(legacy.queued());
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: *const c_void,
    bytes: usize,
    stream: *mut c_void,
) -> c_int {
    let state = call!("cuMemcpyHtoDAsync_v2", current);
    let stream = some!(state.stream(stream as usize), INVALID_HANDLE);
    let from = from as u64;
    let _library = state.library();
    let pinned = state
        .memory()
        .around(from)
        .is_some_and(|range| range.kind != Kind::Device);
    if !pinned || !state.memory().is_device(to, bytes) {
        return INVALID_VALUE;
    }
    queue(
        state,
        &stream,
        "cuMemcpyHtoDAsync_v2",
        Step::Copy { to, from, bytes },
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
    to: u64,
    from: u64,
    bytes: usize,
    stream: *mut c_void,
) -> c_int {
    let state = call!("cuMemcpyDtoDAsync_v2", current);
    let stream = some!(state.stream(stream as usize), INVALID_HANDLE);
    let _library = state.library();
    let known = {
        let memory = state.memory();
        memory.is_device(from, bytes) && memory.is_device(to, bytes)
    };
    if !known {
        return INVALID_VALUE;
    }
    queue(
        state,
        &stream,
        "cuMemcpyDtoDAsync_v2",
        Step::Copy { to, from, bytes },
    )
}

/// Queues a step, but not in a stream that is being captured.
fn queue(state: &State, stream: &Arc<Stream>, of: &'static str, step: Step) -> c_int {
    if stream.is_capturing() {
        return STREAM_CAPTURE_UNSUPPORTED;
    }
    state.queue(stream, of, step);
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemsetD8_v2(to: u64, value: u8, bytes: usize) -> c_int {
    let state = call!("cuMemsetD8_v2", current);
    let _library = state.library();
    if !state.memory().is_device(to, bytes) {
        return INVALID_VALUE;
    }
    // SAFETY: the range was checked, and can't be freed while the lock is held.
    unsafe { ptr::write_bytes(to as *mut u8, value, bytes) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerGetAttribute(
    value: *mut c_void,
    which: c_int,
    address: u64,
) -> c_int {
    let state = call!("cuPointerGetAttribute", current);
    let range = some!(state.memory().around(address), INVALID_VALUE);
    let found: u32 = match which {
        2 if range.kind == Kind::Device => 2,
        2 => 1,
        8 => (range.kind == Kind::Device && state.options().managed).into(),
        9 => 0,
        _ => return INVALID_VALUE,
    };
    // SAFETY: as CUDA asks; these attributes have 4 bytes.
    unsafe { answer(value.cast(), found) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerSetAttribute(
    value: *const c_void,
    which: c_int,
    address: u64,
) -> c_int {
    let state = call!("cuPointerSetAttribute", current);
    match which {
        6 if !value.is_null() && state.memory().is_device(address, 1) => SUCCESS,
        _ => INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetHandleForAddressRange(
    handle: *mut c_void,
    address: u64,
    bytes: usize,
    kind: c_int,
    flags: u64,
) -> c_int {
    let state = call!("cuMemGetHandleForAddressRange", current);
    if !state.options().dmabuf || kind != 1 || flags != 0 {
        return NOT_SUPPORTED;
    }
    // Of the pages around a range the driver has the whole.
    let aligned = address.is_multiple_of(4096) && bytes.is_multiple_of(4096);
    if !aligned || !state.memory().is_device(address, 1) {
        return INVALID_VALUE;
    }
    // No dma-buf can be made without a device: an empty file, which a NIC refuses.
    let Ok(file) = std::fs::File::open("/dev/null") else {
        return NOT_SUPPORTED;
    };
    use std::os::fd::IntoRawFd;
    // SAFETY: as CUDA asks: an int for this kind of handle.
    unsafe { answer(handle.cast(), file.into_raw_fd()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(stream: *mut *mut c_void, flags: c_uint) -> c_int {
    let state = call!("cuStreamCreate", current);
    let _library = state.library();
    let number = state.new_stream(flags & 1 != 0);
    // SAFETY: as CUDA asks.
    unsafe { answer(stream, number as *mut c_void) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamDestroy_v2(stream: *mut c_void) -> c_int {
    let state = call!("cuStreamDestroy_v2", current);
    let _library = state.library();
    some!(state.take_stream(stream as usize), INVALID_HANDLE).close();
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamSynchronize(stream: *mut c_void) -> c_int {
    let state = call!("cuStreamSynchronize", current);
    let stream = some!(state.stream(stream as usize), INVALID_HANDLE);
    if stream.is_capturing() {
        return STREAM_CAPTURE_UNSUPPORTED;
    }
    stream.wait(stream.queued());
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamQuery(stream: *mut c_void) -> c_int {
    let state = call!("cuStreamQuery", current);
    let stream = some!(state.stream(stream as usize), INVALID_HANDLE);
    let _library = state.library();
    match stream.is_idle() {
        true => SUCCESS,
        false => NOT_READY,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamWaitEvent(
    stream: *mut c_void,
    event: *mut c_void,
    _flags: c_uint,
) -> c_int {
    let state = call!("cuStreamWaitEvent", current);
    let stream = some!(state.stream(stream as usize), INVALID_HANDLE);
    let event = some!(state.event(event as usize), INVALID_HANDLE);
    let _library = state.library();
    let serial = event.recorded();
    queue(
        state,
        &stream,
        "cuStreamWaitEvent",
        Step::WaitEvent { event, serial },
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamWaitValue32_v2(
    stream: *mut c_void,
    address: u64,
    value: u32,
    flags: c_uint,
) -> c_int {
    let state = call!("cuStreamWaitValue32_v2", current);
    let stream = some!(state.stream(stream as usize), INVALID_HANDLE);
    let _library = state.library();
    if flags & !WAIT_VALUE_FLUSH != 0
        || !address.is_multiple_of(4)
        || state.memory().around(address).is_none()
    {
        return INVALID_VALUE;
    }
    queue(
        state,
        &stream,
        "cuStreamWaitValue32_v2",
        Step::WaitWord { address, value },
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamGetId(stream: *mut c_void, id: *mut u64) -> c_int {
    let state = call!("cuStreamGetId", current);
    let handle = stream as usize;
    some!(state.stream(handle), INVALID_HANDLE);
    // Handles are not given again. Both of the legacy default stream are below those.
    // SAFETY: as CUDA asks.
    unsafe { answer(id, handle.max(1) as u64) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamIsCapturing(stream: *mut c_void, status: *mut c_int) -> c_int {
    let state = call!("cuStreamIsCapturing", current);
    let stream = some!(state.stream(stream as usize), INVALID_HANDLE);
    // SAFETY: as CUDA asks.
    unsafe { answer(status, stream.is_capturing().into()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamBeginCapture_v2(stream: *mut c_void, _mode: c_int) -> c_int {
    let state = call!("cuStreamBeginCapture_v2", current);
    // The legacy default stream can't be captured.
    if (stream as usize) < 2 {
        return STREAM_CAPTURE_UNSUPPORTED;
    }
    some!(state.stream(stream as usize), INVALID_HANDLE).capture(true);
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamEndCapture(stream: *mut c_void, graph: *mut *mut c_void) -> c_int {
    let state = call!("cuStreamEndCapture", current);
    let stream = some!(state.stream(stream as usize), INVALID_HANDLE);
    if !stream.is_capturing() {
        return STREAM_CAPTURE_INVALIDATED;
    }
    stream.capture(false);
    // SAFETY: as CUDA asks.
    unsafe { answer(graph, ptr::null_mut()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut *mut c_void, _flags: c_uint) -> c_int {
    let state = call!("cuEventCreate", current);
    let _library = state.library();
    // SAFETY: as CUDA asks.
    unsafe { answer(event, state.new_event() as *mut c_void) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventDestroy_v2(event: *mut c_void) -> c_int {
    let state = call!("cuEventDestroy_v2", current);
    let _library = state.library();
    match state.take_event(event as usize) {
        Some(_) => SUCCESS,
        None => INVALID_HANDLE,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventRecord(event: *mut c_void, stream: *mut c_void) -> c_int {
    let state = call!("cuEventRecord", current);
    let stream = some!(state.stream(stream as usize), INVALID_HANDLE);
    let event = some!(state.event(event as usize), INVALID_HANDLE);
    let _library = state.library();
    if stream.is_capturing() {
        return STREAM_CAPTURE_UNSUPPORTED;
    }
    let serial = event.record();
    queue(
        state,
        &stream,
        "cuEventRecord",
        Step::Reach { event, serial },
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventQuery(event: *mut c_void) -> c_int {
    let state = call!("cuEventQuery", current);
    let event = some!(state.event(event as usize), INVALID_HANDLE);
    let _library = state.library();
    match event.is_reached() {
        true => SUCCESS,
        false => NOT_READY,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventSynchronize(event: *mut c_void) -> c_int {
    let state = call!("cuEventSynchronize", current);
    let event = some!(state.event(event as usize), INVALID_HANDLE);
    event.wait(event.recorded());
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventElapsedTime(ms: *mut f32, from: *mut c_void, to: *mut c_void) -> c_int {
    let state = call!("cuEventElapsedTime", current);
    let from = some!(state.event(from as usize), INVALID_HANDLE);
    let to = some!(state.event(to as usize), INVALID_HANDLE);
    let (Some(from), Some(to)) = (from.at(), to.at()) else {
        return NOT_READY;
    };
    // SAFETY: as CUDA asks.
    unsafe { answer(ms, (to - from).as_secs_f32() * 1e3) }
}
