//! Memory: allocated, pinned, and what an address is.

use core::ffi::{c_int, c_uint, c_void};

use super::{
    HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_CONTEXT, INVALID_VALUE,
    NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS, answer, state,
};
use crate::memory::Kind;

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
