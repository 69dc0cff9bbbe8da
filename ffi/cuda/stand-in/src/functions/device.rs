//! Devices, contexts, and what errors are called.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr;

use super::{
    HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_CONTEXT, INVALID_DEVICE,
    INVALID_HANDLE, INVALID_VALUE, NO_DEVICE, NOT_READY, NOT_SUPPORTED, OUT_OF_MEMORY,
    STREAM_CAPTURE_INVALIDATED, STREAM_CAPTURE_UNSUPPORTED, SUCCESS, answer, state,
};

/// `CUDA 13.0`, as driver 580 says.
const VERSION: c_int = 13_000;

/// The one context's handle.
const CONTEXT: usize = 0x10;

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
