//! Where results are to lie, and for which stream, as Python says it.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rowmill_client as client;
use rowmill_client::cuda::Stream;

use crate::buffer;
use crate::errors::{Class, Fault, Outcome};
use crate::schema::Schema;

/// A stream of the caller's by its handle.
///
/// # Safety
/// It must be one of this GPU, or one of CUDA's constants for default streams, and exist as long as the value.
pub(super) unsafe fn foreign_stream(gpu: &client::Gpu, handle: usize) -> Stream {
    // SAFETY: the caller's contract.
    unsafe { Stream::foreign(gpu.context(), std::ptr::without_provenance_mut(handle)) }
}

/// Address and bytes of memory of a GPU: of `(address, bytes)`, or of a tensor of the results' type.
pub(super) fn extent(out: &Bound<'_, PyAny>, schema: &Schema) -> Outcome<(u64, u64)> {
    if let Ok(extent) = out.extract::<(u64, u64)>() {
        return Ok(extent);
    }
    let memory = buffer::typed(out, schema.layout.output)?;
    Ok((memory.address as u64, memory.bytes as u64))
}

/// The handle of a stream: a number, that of a `torch.cuda.Stream`, or that of the current one of torch.
pub(super) fn handle(
    py: Python<'_>,
    stream: Option<&Bound<'_, PyAny>>,
    ordinal: i32,
) -> Outcome<usize> {
    let Some(stream) = stream else {
        return current(py, ordinal);
    };
    if let Ok(handle) = stream.extract::<usize>() {
        return Ok(handle);
    }
    let handle = stream.getattr(intern!(py, "cuda_stream"));
    let Some(handle) = handle.ok().and_then(|handle| handle.extract().ok()) else {
        let text = format!(
            "stream is of type {}; give a torch.cuda.Stream, the handle of a CUDA stream, or None for torch's current one",
            stream.get_type().name()?
        );
        return Err(Fault::new(Class::Dtype, text));
    };
    if let Ok(index) = stream.getattr(intern!(py, "device_index"))
        && index.ne(ordinal)?
    {
        let text = format!("stream is one of GPU {index}; give one of GPU {ordinal}");
        return Err(Fault::input(text));
    }
    Ok(handle)
}

/// That of torch's current stream; the legacy default stream where torch was not imported or has not used CUDA yet, when it is its
/// current one.
fn current(py: Python<'_>, ordinal: i32) -> Outcome<usize> {
    let modules = py
        .import(intern!(py, "sys"))?
        .getattr(intern!(py, "modules"))?;
    let Some(torch) = modules
        .cast::<PyDict>()
        .map_err(PyErr::from)?
        .get_item(intern!(py, "torch"))?
    else {
        return Ok(0);
    };
    let cuda = torch.getattr(intern!(py, "cuda"))?;
    if !cuda
        .call_method0(intern!(py, "is_initialized"))?
        .is_truthy()?
    {
        return Ok(0);
    }
    let stream = cuda.call_method1(intern!(py, "current_stream"), (ordinal,))?;
    Ok(stream.getattr(intern!(py, "cuda_stream"))?.extract()?)
}
