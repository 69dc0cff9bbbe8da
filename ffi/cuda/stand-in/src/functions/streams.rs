//! Streams.

use core::ffi::{c_int, c_uint, c_void};
use core::ptr;

use super::{
    INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_READY, STREAM_CAPTURE_INVALIDATED,
    STREAM_CAPTURE_UNSUPPORTED, SUCCESS, answer, queue, state,
};
use crate::stream::Step;

/// `CU_STREAM_WAIT_VALUE_FLUSH`: there is nothing to flush here.
const WAIT_VALUE_FLUSH: c_uint = 1 << 30;

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
