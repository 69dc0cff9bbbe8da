//! The buffer protocol, by which NumPy and memoryview see memory without a copy.

use std::ffi::{CStr, c_int};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use rowmill_client::Output;

use crate::memory::{Export, Lent};

/// What a view's fields point to, and what keeps its memory.
struct Behind {
    shape: [isize; 2],
    /// In bytes.
    strides: [isize; 2],
    _export: Option<Export>,
}

/// Fills a view of a matrix.
///
/// # Safety
/// `view` is the interpreter's, to be filled for `owner`.
pub(crate) unsafe fn fill(
    owner: Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
    contiguous: bool,
    lent: impl FnOnce() -> PyResult<Lent>,
) -> PyResult<()> {
    if view.is_null() {
        return Err(PyBufferError::new_err("there is no view to fill"));
    }
    // SAFETY: the caller's contract. As the protocol wants it, whatever fails from here on.
    unsafe { (*view).obj = std::ptr::null_mut() };
    let wants = |what: c_int| flags & what == what;
    // Each of the kinds of contiguity implies strides.
    let wants_contiguous = [
        ffi::PyBUF_C_CONTIGUOUS,
        ffi::PyBUF_F_CONTIGUOUS,
        ffi::PyBUF_ANY_CONTIGUOUS,
    ];
    let wants_contiguous = wants_contiguous.into_iter().any(wants);
    if !contiguous && (wants_contiguous || !wants(ffi::PyBUF_STRIDES)) {
        let text = "the vectors are a column of a matrix; take a view with strides, such as numpy.asarray()";
        return Err(PyBufferError::new_err(text));
    }
    if contiguous && wants(ffi::PyBUF_F_CONTIGUOUS) && !wants(ffi::PyBUF_ANY_CONTIGUOUS) {
        let text = "results are stored row by row; take a view in C order";
        return Err(PyBufferError::new_err(text));
    }
    let lent = lent()?;
    let format: &'static CStr = match lent.output {
        Output::F32 => c"f",
        Output::F16 => c"e",
        Output::Bf16 => {
            let text = "the buffer protocol has no bfloat16; call .torch(), or bind the schema with output=\"float32\"";
            return Err(PyBufferError::new_err(text));
        }
    };
    let bytes = lent.output.bytes().cast_signed() as isize;
    let behind = Box::new(Behind {
        shape: lent.shape,
        strides: lent.strides.map(|stride| stride * bytes),
        _export: lent.export,
    });
    let behind = Box::into_raw(behind);
    // SAFETY: the caller's contract; what the view points to stays until it is released.
    unsafe {
        (*view).buf = lent.address as *mut _;
        (*view).len = lent.shape[0] * lent.shape[1] * bytes;
        (*view).readonly = 0;
        (*view).itemsize = bytes;
        (*view).format = match wants(ffi::PyBUF_FORMAT) {
            true => format.as_ptr().cast_mut(),
            false => std::ptr::null_mut(),
        };
        // Without a shape it is a run of bytes, such as hashlib wants it.
        (*view).ndim = if wants(ffi::PyBUF_ND) { 2 } else { 1 };
        (*view).shape = match wants(ffi::PyBUF_ND) {
            true => (&raw mut (*behind).shape).cast(),
            false => std::ptr::null_mut(),
        };
        (*view).strides = match wants(ffi::PyBUF_STRIDES) {
            true => (&raw mut (*behind).strides).cast(),
            false => std::ptr::null_mut(),
        };
        (*view).suboffsets = std::ptr::null_mut();
        (*view).internal = behind.cast();
        (*view).obj = owner.into_ptr();
    }
    Ok(())
}

/// Ends a view.
///
/// # Safety
/// `view` was filled by [`fill`].
pub(crate) unsafe fn release(view: *mut ffi::Py_buffer) {
    // SAFETY: the caller's contract.
    drop(unsafe { Box::from_raw((*view).internal.cast::<Behind>()) });
}
