//! Copies and fills.

use core::ffi::{c_int, c_void};
use core::ptr;

use super::INVALID_CONTEXT;
use super::{INVALID_HANDLE, INVALID_VALUE, SUCCESS, queue, state};
use crate::memory::Kind;
use crate::state::State;
use crate::stream::Step;

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
