//! DLPack: tensors that other libraries see without a copy, or with one where they want it (`__dlpack__` of the array API standard
//! 2023.12). The structures are those of `dlpack.h`, version 1.0, and of 0.8, which has no version field.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use rowmill_client::Output;

use crate::memory::{Export, Lent};

/// `kDLCPU`, and the number of the only such device.
pub(crate) const CPU: (i32, i32) = (1, 0);

#[repr(C)]
struct Device {
    kind: i32,
    number: i32,
}

#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

impl DataType {
    fn of(output: Output) -> DataType {
        // kDLFloat is 2, kDLBfloat 4.
        let (code, bits) = match output {
            Output::F32 => (2, 32),
            Output::F16 => (2, 16),
            Output::Bf16 => (4, 16),
        };
        DataType {
            code,
            bits,
            lanes: 1,
        }
    }
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Plain {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Plain)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

trait Head: Sized {
    const NAME: &'static CStr;

    /// The head of a tensor that has no shape yet.
    fn new(tensor: Tensor, is_copied: bool) -> Self;

    fn tensor(&mut self) -> &mut Tensor;
}

impl Head for Plain {
    const NAME: &'static CStr = c"dltensor";

    fn new(tensor: Tensor, _is_copied: bool) -> Plain {
        Plain {
            tensor,
            context: std::ptr::null_mut(),
            deleter: Some(delete::<Plain>),
        }
    }

    fn tensor(&mut self) -> &mut Tensor {
        &mut self.tensor
    }
}

impl Head for Versioned {
    const NAME: &'static CStr = c"dltensor_versioned";

    fn new(tensor: Tensor, is_copied: bool) -> Versioned {
        Versioned {
            major: 1,
            minor: 0,
            context: std::ptr::null_mut(),
            deleter: Some(delete::<Versioned>),
            flags: if is_copied { IS_COPIED } else { 0 },
            tensor,
        }
    }

    fn tensor(&mut self) -> &mut Tensor {
        &mut self.tensor
    }
}

/// `DLPACK_FLAG_BITMASK_IS_COPIED`.
const IS_COPIED: u64 = 1 << 1;

/// What keeps a tensor's memory.
enum Keeper {
    /// The result that sees it, if it has elements.
    Lent { _export: Option<Export> },
    /// Memory of the tensor's own, in whole elements of any type.
    Copy { _elements: Box<[u64]> },
}

/// A tensor that is to be given away.
struct Given {
    address: usize,
    shape: [isize; 2],
    strides: [isize; 2],
    output: Output,
    keeper: Keeper,
}

impl Given {
    fn lent(lent: Lent) -> Given {
        Given {
            address: lent.address,
            shape: lent.shape,
            strides: lent.strides,
            output: lent.output,
            keeper: Keeper::Lent {
                _export: lent.export,
            },
        }
    }

    /// A copy of what is lent, row after row.
    fn copied(lent: &Lent) -> Given {
        let [rows, columns] = lent.shape.map(isize::cast_unsigned);
        let row_bytes = columns * lent.output.bytes() as usize;
        let stride_bytes = lent.strides[0].cast_unsigned() * lent.output.bytes() as usize;
        let mut elements = vec![0u64; (rows * row_bytes).div_ceil(8)].into_boxed_slice();
        let start = elements.as_mut_ptr().cast::<u8>();
        for row in 0..rows {
            // SAFETY: so many bytes of each row are mapped while `lent` is there, and the elements have room for all rows, one
            // after another; they are new, so that both don't overlap. What others write to the source meanwhile a copy of bytes
            // stands.
            unsafe {
                let from = (lent.address + row * stride_bytes) as *const u8;
                std::ptr::copy_nonoverlapping(from, start.add(row * row_bytes), row_bytes);
            }
        }
        Given {
            address: start.addr(),
            shape: lent.shape,
            strides: [lent.shape[1], 1],
            output: lent.output,
            keeper: Keeper::Copy {
                _elements: elements,
            },
        }
    }
}

/// What a capsule points to: the structure, and behind it what that points to and what keeps the memory.
#[repr(C)]
struct Managed<H> {
    head: H,
    shape: [i64; 2],
    strides: [i64; 2],
    _keeper: Keeper,
}

/// The consumer is done. Called by any thread, perhaps without the interpreter's lock or after its end.
///
/// # Safety
/// `head` is that of a `Managed<H>` that was made by [`capsule_of`], and nobody uses it any more.
unsafe extern "C" fn delete<H>(head: *mut H) {
    // SAFETY: the caller's contract; the head is the first field, so its address is the whole's, which came from a Box.
    drop(unsafe { Box::from_raw(head.cast::<Managed<H>>()) });
}

/// The destructor of a capsule: deletes what nobody has consumed. Who consumes it gives it another name.
///
/// # Safety
/// Called by the interpreter, for a capsule of [`capsule_of`].
unsafe extern "C" fn drop_capsule<H: Head>(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule is alive, and the interpreter's lock is held. Neither call raises where the name is the right one.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, H::NAME.as_ptr()) == 1 {
            let head = ffi::PyCapsule_GetPointer(capsule, H::NAME.as_ptr());
            delete::<H>(head.cast());
        }
    }
}

fn capsule_of<H: Head>(py: Python<'_>, given: Given) -> PyResult<Bound<'_, PyCapsule>> {
    let [kind, number] = [CPU.0, CPU.1];
    let tensor = Tensor {
        data: given.address as *mut c_void,
        device: Device { kind, number },
        ndim: 2,
        dtype: DataType::of(given.output),
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let managed = Box::new(Managed {
        head: H::new(tensor, matches!(given.keeper, Keeper::Copy { .. })),
        shape: given.shape.map(|extent| extent as i64),
        strides: given.strides.map(|stride| stride as i64),
        _keeper: given.keeper,
    });
    let managed = Box::into_raw(managed);
    // SAFETY: it was made above, and nobody else knows it yet. Its fields stay where they are until it is deleted.
    let head = unsafe {
        (*managed).head.tensor().shape = (&raw mut (*managed).shape).cast();
        (*managed).head.tensor().strides = (&raw mut (*managed).strides).cast();
        NonNull::new_unchecked(managed).cast()
    };
    // SAFETY: the pointer is to a `Managed<H>`, as the destructor wants it, and what it points to lives until then.
    let capsule = unsafe {
        PyCapsule::new_with_pointer_and_destructor(py, head, H::NAME, Some(drop_capsule::<H>))
    };
    // SAFETY: without a capsule nobody knows it.
    capsule.inspect_err(|_| unsafe { delete(managed.cast::<H>()) })
}

/// A capsule without a version field, which all consumers know.
pub(crate) fn plain_capsule(py: Python<'_>, lent: Lent) -> PyResult<Bound<'_, PyCapsule>> {
    capsule_of::<Plain>(py, Given::lent(lent))
}

/// What a consumer asks of `__dlpack__`.
pub(crate) struct Wish<'py> {
    pub(crate) stream: Option<Bound<'py, PyAny>>,
    pub(crate) max_version: Option<(u32, u32)>,
    pub(crate) device: Option<(i32, i32)>,
    pub(crate) copy: Option<bool>,
}

impl Wish<'_> {
    /// The capsule that is wished for.
    pub(crate) fn capsule(
        self,
        py: Python<'_>,
        lend: impl FnOnce() -> PyResult<Lent>,
    ) -> PyResult<Bound<'_, PyCapsule>> {
        if self.device.is_some_and(|device| device != CPU) {
            let text = "a result lies in this machine's memory; import it there, then copy it to the device";
            return Err(PyBufferError::new_err(text));
        }
        if self.stream.is_some() {
            let text = "memory of this machine has no streams; import it without one";
            return Err(PyBufferError::new_err(text));
        }
        let lent = lend()?;
        let given = match self.copy {
            Some(true) => Given::copied(&lent),
            _ => Given::lent(lent),
        };
        match self.max_version {
            Some((major, _)) if major >= 1 => capsule_of::<Versioned>(py, given),
            _ => capsule_of::<Plain>(py, given),
        }
    }
}
