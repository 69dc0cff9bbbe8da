//! The functions, by their names in C. What they mean is said in CUDA's documentation, and who calls them keeps what it asks.

use core::ffi::{CStr, c_char, c_int};
use std::sync::Arc;

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

mod copies;
mod device;
mod events;
mod memory;
mod streams;

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

/// Queues a step, but not in a stream that is being captured.
fn queue(state: &State, stream: &Arc<Stream>, of: &'static str, step: Step) -> c_int {
    if stream.is_capturing() {
        return STREAM_CAPTURE_UNSUPPORTED;
    }
    state.queue(stream, of, step);
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
