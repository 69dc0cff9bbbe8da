//! Events.

use core::ffi::{c_int, c_uint, c_void};

use super::{
    INVALID_CONTEXT, INVALID_HANDLE, NOT_READY, STREAM_CAPTURE_UNSUPPORTED, SUCCESS, answer, queue,
    state,
};
use crate::stream::Step;

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
