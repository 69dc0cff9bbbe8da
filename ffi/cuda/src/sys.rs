//! The names of the CUDA driver API that the crate uses: types, numbers and functions, as `cuda.h` of CUDA 11.8 to 13.0 has
//! them. Where that header leads a name to a later version of the function, this is the name with the version.
//!
//! Nothing of CUDA is linked: the functions are looked up in a library that is opened at run time.
#![expect(non_snake_case, reason = "the names in C")]

use core::ffi::{c_char, c_int, c_uint, c_void};

use libloading::Library;

/// `CUresult`.
pub(crate) type Code = c_int;
/// `CUdevice`.
pub(crate) type RawDevice = c_int;
/// `CUcontext`.
pub(crate) type RawContext = *mut c_void;
/// `CUstream`.
pub(crate) type RawStream = *mut c_void;
/// `CUevent`.
pub(crate) type RawEvent = *mut c_void;
/// `CUdeviceptr`.
pub(crate) type Address = u64;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const INVALID_VALUE: Code = 1;
pub(crate) const NOT_READY: Code = 600;
pub(crate) const NOT_SUPPORTED: Code = 801;

/// `CU_STREAM_NON_BLOCKING`: the stream does not wait for the legacy default stream, nor that for it.
pub(crate) const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_STREAM_LEGACY`: the legacy default stream, which NULL is, too.
pub(crate) const STREAM_LEGACY: u64 = 1;
/// `CU_EVENT_DISABLE_TIMING`.
pub(crate) const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_EVENT_DEFAULT`.
pub(crate) const EVENT_DEFAULT: c_uint = 0;
/// `CU_MEMHOSTREGISTER_PORTABLE`, `CU_MEMHOSTALLOC_PORTABLE`: pinned for all contexts.
pub(crate) const HOST_PORTABLE: c_uint = 1;
/// `CU_MEMHOSTALLOC_DEVICEMAP`.
pub(crate) const HOST_DEVICEMAP: c_uint = 2;
/// `CU_STREAM_WAIT_VALUE_GEQ`: until `(int32_t)(*addr - value) >= 0`.
pub(crate) const WAIT_VALUE_GEQ: c_uint = 0;
/// `CU_STREAM_WAIT_VALUE_FLUSH`: then flush what other devices wrote.
pub(crate) const WAIT_VALUE_FLUSH: c_uint = 1 << 30;
/// `CU_STREAM_CAPTURE_STATUS_NONE`.
pub(crate) const CAPTURE_NONE: c_int = 0;

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`: a `CUmemorytype`, an `unsigned int`.
pub(crate) const POINTER_MEMORY_TYPE: c_int = 2;
/// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`: an `unsigned int`.
pub(crate) const POINTER_SYNC_MEMOPS: c_int = 6;
/// `CU_POINTER_ATTRIBUTE_IS_MANAGED`: an `unsigned int`.
pub(crate) const POINTER_IS_MANAGED: c_int = 8;
/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`: an `int`.
pub(crate) const POINTER_DEVICE_ORDINAL: c_int = 9;
/// `CU_MEMORYTYPE_HOST`.
pub(crate) const MEMORY_HOST: c_uint = 1;
/// `CU_MEMORYTYPE_DEVICE`.
pub(crate) const MEMORY_DEVICE: c_uint = 2;

/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
pub(crate) const HANDLE_DMA_BUF_FD: c_int = 1;
/// `CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE`.
pub(crate) const DMA_BUF_MAPPING_TYPE_PCIE: u64 = 1;

/// Declares the table of functions, and how to look them up.
macro_rules! functions {
    (
        required { $($required:ident($($argument:ty),*);)* }
        optional { $($optional:ident($($optional_argument:ty),*);)* }
    ) => {
        /// The functions, by their names in C; all return a `CUresult`.
        pub(crate) struct Functions {
            $(pub(crate) $required: unsafe extern "C" fn($($argument),*) -> Code,)*
            $(pub(crate) $optional: Option<unsafe extern "C" fn($($optional_argument),*) -> Code>,)*
        }

        impl Functions {
            /// Looks all of them up. `Err` has the names of those that are missing and that nothing works without; with the
            /// table come the names of the others that are missing.
            pub(crate) fn load(
                library: &Library,
                hidden: &[&str],
            ) -> Result<(Functions, Vec<&'static str>), Vec<&'static str>> {
                let mut missing = Vec::new();
                $(
                    let name = stringify!($required);
                    // SAFETY: the driver's function of this name has this signature in every version that has the name.
                    let $required = unsafe {
                        library.get::<unsafe extern "C" fn($($argument),*) -> Code>(name.as_bytes())
                    };
                    let $required = $required.ok().filter(|_| !hidden.contains(&name)).map(|f| *f);
                    if $required.is_none() {
                        missing.push(name);
                    }
                )*
                let ($(Some($required),)*) = ($($required,)*) else {
                    return Err(missing);
                };
                $(
                    let name = stringify!($optional);
                    // SAFETY: as above.
                    let $optional = unsafe {
                        library.get::<unsafe extern "C" fn($($optional_argument),*) -> Code>(name.as_bytes())
                    };
                    let $optional = $optional.ok().filter(|_| !hidden.contains(&name)).map(|f| *f);
                    if $optional.is_none() {
                        missing.push(name);
                    }
                )*
                Ok((Functions { $($required,)* $($optional,)* }, missing))
            }
        }
    };
}

functions! {
    required {
        cuInit(c_uint);
        cuDriverGetVersion(*mut c_int);
        cuGetErrorName(Code, *mut *const c_char);
        cuGetErrorString(Code, *mut *const c_char);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGet(*mut RawDevice, c_int);
        cuDeviceGetName(*mut c_char, c_int, RawDevice);
        cuDeviceGetAttribute(*mut c_int, c_int, RawDevice);
        cuDevicePrimaryCtxRetain(*mut RawContext, RawDevice);
        cuDevicePrimaryCtxRelease_v2(RawDevice);
        cuCtxPushCurrent_v2(RawContext);
        cuCtxPopCurrent_v2(*mut RawContext);
        cuMemAlloc_v2(*mut Address, usize);
        cuMemFree_v2(Address);
        cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        cuMemFreeHost(*mut c_void);
        cuMemHostRegister_v2(*mut c_void, usize, c_uint);
        cuMemHostUnregister(*mut c_void);
        cuMemHostGetDevicePointer_v2(*mut Address, *mut c_void, c_uint);
        cuMemcpyHtoD_v2(Address, *const c_void, usize);
        cuMemcpyDtoH_v2(*mut c_void, Address, usize);
        cuMemcpyHtoDAsync_v2(Address, *const c_void, usize, RawStream);
        cuMemcpyDtoDAsync_v2(Address, Address, usize, RawStream);
        cuMemsetD8_v2(Address, u8, usize);
        cuPointerGetAttribute(*mut c_void, c_int, Address);
        cuStreamCreate(*mut RawStream, c_uint);
        cuStreamDestroy_v2(RawStream);
        cuStreamSynchronize(RawStream);
        cuStreamQuery(RawStream);
        cuStreamWaitEvent(RawStream, RawEvent, c_uint);
        cuEventCreate(*mut RawEvent, c_uint);
        cuEventDestroy_v2(RawEvent);
        cuEventRecord(RawEvent, RawStream);
        cuEventQuery(RawEvent);
        cuEventSynchronize(RawEvent);
        cuEventElapsedTime(*mut f32, RawEvent, RawEvent);
    }
    optional {
        cuStreamWaitValue32_v2(RawStream, Address, u32, c_uint);
        cuStreamIsCapturing(RawStream, *mut c_int);
        cuStreamGetId(RawStream, *mut u64);
        cuPointerSetAttribute(*const c_void, c_int, Address);
        cuMemGetHandleForAddressRange(*mut c_void, Address, usize, c_int, u64);
    }
}
