//! Arrays and tensors of the caller's, as addresses: nothing is copied or converted here.

use std::ffi::CStr;
use std::ptr::NonNull;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use pyo3::{ffi, intern};
use rowmill_client::{Numbers, ReadWindow};

use crate::errors::{Class, Fault, Outcome};
use crate::once;

/// The type of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dtype {
    I32,
    I64,
    U32,
    U64,
    F32,
}

impl Dtype {
    /// Bytes of an element.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Dtype::I32 | Dtype::U32 | Dtype::F32 => 4,
            Dtype::I64 | Dtype::U64 => 8,
        }
    }

    /// That of a format of the struct module, in native order.
    fn of_format(format: &CStr) -> Option<Dtype> {
        let format = format.to_bytes();
        let native = if cfg!(target_endian = "little") {
            b'<'
        } else {
            b'>'
        };
        let code = match format {
            [code] => *code,
            // Sizes of `=` and `<` are the standard's: a long has 4 bytes.
            [b'=', b'l'] => b'i',
            [b'=', b'L'] => b'I',
            [b'@' | b'=', code] => *code,
            [order, code] if *order == native => match code {
                b'l' => b'i',
                b'L' => b'I',
                code => *code,
            },
            _ => return None,
        };
        let long = size_of::<std::ffi::c_long>();
        Some(match code {
            b'i' => Dtype::I32,
            b'I' => Dtype::U32,
            b'l' if long == 8 => Dtype::I64,
            b'L' if long == 8 => Dtype::U64,
            b'l' => Dtype::I32,
            b'L' => Dtype::U32,
            b'q' => Dtype::I64,
            b'Q' => Dtype::U64,
            b'f' => Dtype::F32,
            _ => return None,
        })
    }
}

/// What an array is for, with the types that it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Ids,
    Lengths,
    Offsets,
    Weights,
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Role::Ids => "ids",
            Role::Lengths => "lengths",
            Role::Offsets => "offsets",
            Role::Weights => "weights",
        }
    }

    fn takes(self, dtype: Dtype) -> bool {
        match self {
            Role::Ids => dtype != Dtype::F32,
            Role::Lengths | Role::Offsets => matches!(dtype, Dtype::I32 | Dtype::I64),
            Role::Weights => dtype == Dtype::F32,
        }
    }

    fn wanted(self) -> &'static str {
        match self {
            Role::Ids => "int32, int64, uint32 or uint64",
            Role::Lengths | Role::Offsets => "int32 or int64",
            Role::Weights => "float32",
        }
    }

    fn wrong_dtype(self, given: &str) -> Fault {
        let text = format!(
            "{} have dtype {given}, but {} is wanted; convert them, since nothing is converted silently",
            self.name(),
            self.wanted()
        );
        Fault::new(Class::Dtype, text)
    }
}

/// What keeps the memory of an array.
enum Keeper {
    /// The buffer protocol's export.
    Buffer { _export: PyUntypedBuffer },
    /// A tensor.
    Object { _tensor: Py<PyAny> },
    /// The caller of an unsafe function.
    Caller,
}

/// A dense array of one dimension in memory that stays mapped while it is held. Others may write to it meanwhile.
pub(crate) struct Array {
    /// Not null, also of an array without elements.
    address: NonZeroAddress,
    count: usize,
    dtype: Dtype,
    _keeper: Keeper,
}

/// An address as a number, so that other threads may be told of it.
#[derive(Clone, Copy)]
struct NonZeroAddress(usize);

impl NonZeroAddress {
    /// Of `bytes` bytes; where there are none, any address will do.
    fn new(address: usize, bytes: usize) -> Option<NonZeroAddress> {
        match (address, bytes) {
            (_, 0) => Some(NonZeroAddress(1)),
            (0, _) => None,
            (address, _) => Some(NonZeroAddress(address)),
        }
    }
}

impl Array {
    /// The caller's array or tensor, if it is dense, in this machine's memory, of one dimension, and of a type for its role.
    pub(crate) fn of(object: &Bound<'_, PyAny>, role: Role) -> Outcome<Array> {
        // SAFETY: the object is alive, and the GIL is held.
        if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 1 {
            return Array::of_buffer(object, role);
        }
        match object.getattr(intern!(object.py(), "data_ptr")) {
            Ok(_) => Array::of_tensor(object, role),
            Err(error) if error.is_instance_of::<PyAttributeError>(object.py()) => {
                Err(neither(&format!("the array of {}", role.name()), object))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn of_buffer(object: &Bound<'_, PyAny>, role: Role) -> Outcome<Array> {
        // Such as one without dimensions.
        let buffer = PyUntypedBuffer::get(object).map_err(|error| {
            let text = format!(
                "{} can't be read ({error}); give a dense array of one dimension",
                role.name()
            );
            Fault::input(text)
        })?;
        let dtype = Dtype::of_format(buffer.format());
        let dtype = dtype.filter(|dtype| role.takes(*dtype) && dtype.bytes() == buffer.item_size());
        let Some(dtype) = dtype else {
            let named = object.getattr(intern!(object.py(), "dtype"));
            let given = match named.and_then(|dtype| dtype.str()) {
                Ok(name) => name.to_string(),
                Err(_) => format!("{:?}", buffer.format()),
            };
            return Err(role.wrong_dtype(&given));
        };
        not_masked(role.name(), object)?;
        check_dims(role, buffer.dimensions())?;
        if !buffer.is_c_contiguous() {
            let advice = "call numpy.ascontiguousarray() on them";
            return Err(not_contiguous(role, advice));
        }
        let count = buffer.item_count();
        let address = NonZeroAddress::new(buffer.buf_ptr().addr(), count);
        Ok(Array {
            address: address.ok_or_else(|| without_memory(role))?,
            count,
            dtype,
            _keeper: Keeper::Buffer { _export: buffer },
        })
    }

    fn of_tensor(tensor: &Bound<'_, PyAny>, role: Role) -> Outcome<Array> {
        let py = tensor.py();
        let given = tensor.getattr(intern!(py, "dtype"))?;
        let dtypes = TorchDtypes::get(py)?;
        let Some(dtype) = dtypes.known(&given).filter(|dtype| role.takes(*dtype)) else {
            return Err(role.wrong_dtype(&given.str()?.to_string()));
        };
        let device = tensor.getattr(intern!(py, "device"))?;
        let device = device.getattr(intern!(py, "type"))?;
        let is_on_gpu = device.eq(intern!(py, "cuda"))?;
        if !is_on_gpu && device.ne(intern!(py, "cpu"))? {
            let text = format!(
                "{} are on the device {device}, but are read from this machine's memory or a GPU's; call .cpu() on them",
                role.name()
            );
            return Err(Fault::input(text));
        }
        let dims: usize = tensor.call_method0(intern!(py, "dim"))?.extract()?;
        check_dims(role, dims)?;
        // Waits for the current stream, which may have to write them yet.
        let copied = is_on_gpu.then(|| tensor.call_method0(intern!(py, "cpu")));
        let copied = copied.transpose()?;
        let tensor = copied.as_ref().unwrap_or(tensor);
        not_negated(role.name(), tensor)?;
        // A sparse tensor has neither.
        let dense = tensor.call_method0(intern!(py, "is_contiguous"));
        let dense = dense.and_then(|dense| dense.is_truthy());
        let address = tensor.call_method0(intern!(py, "data_ptr"));
        let (Ok(dense), Ok(address)) = (dense, address) else {
            return Err(not_contiguous(
                role,
                "call .to_dense().contiguous() on them",
            ));
        };
        if !dense {
            return Err(not_contiguous(role, "call .contiguous() on them"));
        }
        let count: usize = tensor.call_method0(intern!(py, "numel"))?.extract()?;
        let address = NonZeroAddress::new(address.extract()?, count);
        Ok(Array {
            address: address.ok_or_else(|| without_memory(role))?,
            count,
            dtype,
            _keeper: Keeper::Object {
                _tensor: tensor.clone().unbind(),
            },
        })
    }

    /// An array of the caller's by its address.
    ///
    /// # Safety
    /// `count` elements must be mapped there as long as the array is held.
    pub(crate) unsafe fn at(address: usize, count: usize, dtype: Dtype) -> Option<Array> {
        Some(Array {
            address: NonZeroAddress::new(address, count)?,
            count,
            dtype,
            _keeper: Keeper::Caller,
        })
    }

    /// How many elements it has.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Its bytes.
    pub(crate) fn window(&self) -> ReadWindow<'_> {
        let start = NonNull::new(self.address.0 as *mut u8).expect("no array is at 0");
        // SAFETY: the keeper keeps so many bytes mapped for as long as `self` is borrowed: an export of the buffer protocol
        // by its rules, a tensor by the reference to it, else as the caller of `at` has promised. No Rust reference to them is
        // made anywhere, and what others write to them meanwhile a window stands.
        unsafe { ReadWindow::from_raw(start, self.count * self.dtype.bytes()) }
    }

    /// Its elements, where they are whole numbers.
    pub(crate) fn numbers(&self) -> Numbers<'_> {
        match self.dtype.bytes() {
            4 => Numbers::bits32(self.window()),
            _ => Numbers::bits64(self.window()),
        }
    }

    /// The sum of some of its elements, and the difference of two of them, as signed numbers, where they are at least 0.
    pub(crate) fn sum(&self, from: usize, count: usize) -> u64 {
        let each = (from..from + count).map(|at| self.number(at).max(0).cast_unsigned());
        each.fold(0, u64::saturating_add)
    }

    /// One of its elements, which are signed whole numbers.
    pub(crate) fn number(&self, at: usize) -> i64 {
        let width = self.dtype.bytes();
        let mut bytes = [0u8; 8];
        self.window().read(at * width, &mut bytes[..width]);
        match width {
            4 => i64::from(i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
            _ => i64::from_ne_bytes(bytes),
        }
    }
}

/// The memory of an array or tensor of any type.
pub(crate) struct Memory {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    /// The type's name, without that of its library.
    pub(crate) dtype: String,
    pub(crate) contiguous: bool,
    pub(crate) writable: bool,
}

impl Memory {
    /// That of an array with the buffer protocol, or of a torch tensor on the CPU.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> Outcome<Memory> {
        let py = object.py();
        let dtype = object.getattr(intern!(py, "dtype"));
        let dtype = dtype
            .map_err(|_| neither("out", object))?
            .str()?
            .to_string();
        let dtype = dtype.rsplit('.').next().unwrap_or_default().to_string();
        // SAFETY: the object is alive, and the GIL is held.
        if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 1 {
            not_masked("out", object)?;
            let buffer = PyUntypedBuffer::get(object)?;
            return Ok(Memory {
                address: buffer.buf_ptr().addr(),
                bytes: buffer.len_bytes(),
                dtype,
                contiguous: buffer.is_c_contiguous(),
                writable: !buffer.readonly(),
            });
        }
        let address = object.call_method0(intern!(py, "data_ptr"));
        let bytes = object.getattr(intern!(py, "nbytes"));
        let contiguous = object.call_method0(intern!(py, "is_contiguous"));
        let (Ok(address), Ok(bytes), Ok(contiguous)) = (address, bytes, contiguous) else {
            return Err(neither("out", object));
        };
        not_negated("out", object)?;
        Ok(Memory {
            address: address.extract()?,
            bytes: bytes.extract()?,
            dtype,
            contiguous: contiguous.is_truthy()?,
            writable: true,
        })
    }
}

impl Memory {
    /// The same, if results can be written there.
    pub(crate) fn dense(self, what: &str) -> Outcome<Memory> {
        if self.contiguous && self.writable {
            return Ok(self);
        }
        let text =
            format!("{what} is not contiguous, or can't be written to; give one that is and can");
        Err(Fault::input(text))
    }
}

/// What is no array.
fn neither(what: &str, given: &Bound<'_, PyAny>) -> Fault {
    let given = given.get_type().name();
    let given = given.map_or_else(|_| "?".into(), |name| name.to_string());
    let text = format!("{what} is of type {given}; give a NumPy array or a torch tensor");
    Fault::new(Class::Dtype, text)
}

fn check_dims(role: Role, dims: usize) -> Outcome<()> {
    if dims == 1 {
        return Ok(());
    }
    let text = format!(
        "{} have {dims} dimensions, but 1 is wanted; call .reshape(-1) on them",
        role.name()
    );
    Err(Fault::input(text))
}

/// Refuses NumPy's masked arrays, whose memory does not tell which elements are masked.
fn not_masked(what: &str, array: &Bound<'_, PyAny>) -> Outcome<()> {
    if array.getattr_opt(intern!(array.py(), "mask"))?.is_none() {
        return Ok(());
    }
    let text = format!(
        "{what} are a masked array, and masks are not looked at; leave masked elements out with .compressed(), or give them a value with .filled()"
    );
    Err(Fault::input(text))
}

/// Refuses tensors with torch's negative bit, whose elements have the other sign in memory.
fn not_negated(what: &str, tensor: &Bound<'_, PyAny>) -> Outcome<()> {
    // Other libraries' tensors have no such bit.
    let Some(is_negated) = tensor.getattr_opt(intern!(tensor.py(), "is_neg"))? else {
        return Ok(());
    };
    if !is_negated.call0()?.is_truthy()? {
        return Ok(());
    }
    let text = format!(
        "{what} are a view that torch negates when it reads it, of memory with the other sign; call .resolve_neg() on them"
    );
    Err(Fault::input(text))
}

fn not_contiguous(role: Role, advice: &str) -> Fault {
    Fault::input(format!("{} are not contiguous; {advice}", role.name()))
}

fn without_memory(role: Role) -> Fault {
    let text = format!("{} have no memory; give a tensor that has", role.name());
    Fault::input(text)
}

/// torch's types, which are one object each.
struct TorchDtypes(Py<PyTuple>);

impl TorchDtypes {
    const KNOWN: [(&str, Dtype); 5] = [
        ("int64", Dtype::I64),
        ("int32", Dtype::I32),
        ("float32", Dtype::F32),
        ("uint32", Dtype::U32),
        ("uint64", Dtype::U64),
    ];

    fn get(py: Python<'_>) -> PyResult<&TorchDtypes> {
        static KEPT: PyOnceLock<TorchDtypes> = PyOnceLock::new();
        once::kept(py, &KEPT, || {
            let torch = py.import("torch")?;
            // Old versions have no unsigned ones.
            let known = TorchDtypes::KNOWN.map(|(name, _)| torch.getattr(name).ok());
            Ok(TorchDtypes(PyTuple::new(py, known)?.unbind()))
        })
    }

    fn known(&self, given: &Bound<'_, PyAny>) -> Option<Dtype> {
        let known = self.0.bind_borrowed(given.py());
        let at = known.iter_borrowed().position(|one| one.is(given))?;
        Some(TorchDtypes::KNOWN[at].1)
    }
}
