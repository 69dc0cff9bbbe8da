//! What can go wrong: one enum for the crate, with the failed function and the driver's answer kept.

use core::ffi::{CStr, c_char};
use core::ptr;

use crate::sys::{Code, Functions, SUCCESS};

/// Why something of CUDA failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The driver's library can't be opened.
    #[error(
        "the CUDA driver `{library}` can't be opened: {source}; it comes with NVIDIA's driver for the GPU"
    )]
    Library {
        /// Its name or path.
        library: String,
        /// What the dynamic linker says.
        source: libloading::Error,
    },
    /// The library lacks functions that nothing works without.
    #[error(
        "`{library}` is no CUDA driver, or one that is too old (11.7 is needed): it lacks {}", missing.join(", ")
    )]
    Symbols {
        /// Its name or path.
        library: String,
        /// The functions' names.
        missing: Vec<&'static str>,
    },
    /// The library lacks the one function that this needs.
    #[error("the CUDA driver lacks {symbol}, without which {what}; install a later one")]
    Missing {
        /// The function's name.
        symbol: &'static str,
        /// What can't be done.
        what: &'static str,
    },
    /// There is no such device.
    #[error(
        "there is no GPU {ordinal}: the driver knows {count} (CUDA_VISIBLE_DEVICES hides some)"
    )]
    NoDevice {
        /// What was asked for.
        ordinal: i32,
        /// How many there are.
        count: i32,
    },
    /// A function failed.
    #[error("{call} failed: {name} ({code}), {text}")]
    Call {
        /// The function.
        call: &'static str,
        /// `CUresult`.
        code: i32,
        /// Its name, as `CUDA_ERROR_NO_DEVICE`.
        name: String,
        /// What the driver says to it.
        text: String,
    },
    /// An address is not of memory of a GPU.
    #[error("{bytes} bytes at {address:#x} are no memory of GPU {ordinal}: {reason}")]
    NotDeviceMemory {
        /// The first byte.
        address: u64,
        /// How many.
        bytes: u64,
        /// The GPU.
        ordinal: i32,
        /// What they are, and what to do.
        reason: String,
    },
    /// Nothing would be pinned or allocated, which CUDA refuses.
    #[error("memory of 0 bytes: give at least one")]
    Empty,
    /// The stream is being captured into a graph.
    #[error(
        "the stream is being captured into a CUDA graph, which can't hold a lookup; end the capture first"
    )]
    Capturing,
}

impl Error {
    /// The `CUresult`, where a function failed.
    pub fn code(&self) -> Option<i32> {
        match self {
            Error::Call { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// The outcome of a function's call.
pub(crate) fn check(functions: &Functions, call: &'static str, code: Code) -> Result<(), Error> {
    if code == SUCCESS {
        return Ok(());
    }
    let said = |describe: unsafe extern "C" fn(Code, *mut *const c_char) -> Code| {
        let mut text = ptr::null();
        // SAFETY: the driver writes a pointer; `text` outlives the call.
        let known = unsafe { describe(code, &mut text) } == SUCCESS && !text.is_null();
        let text = known.then(|| {
            // SAFETY: where the code is known it points to a static string that ends in a zero.
            let text = unsafe { CStr::from_ptr(text) };
            text.to_string_lossy().into_owned()
        });
        text.unwrap_or_else(|| "unknown to the driver".into())
    };
    Err(Error::Call {
        call,
        code,
        name: said(functions.cuGetErrorName),
        text: said(functions.cuGetErrorString),
    })
}
