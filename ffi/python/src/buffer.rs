//! Registered memory of the caller's choice, to which results are written.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::ffi;
use pyo3::prelude::*;
use rowmill_client::{ClientError, Hub, Output, Place, Region, RegionMemory, Window};

use crate::array;
use crate::errors::{Class, Fault, Outcome};
use crate::schema::{Schema, output_name};

/// A region, and its memory.
pub(crate) struct Registered {
    region: Region,
    memory: RegionMemory,
}

impl Registered {
    pub(crate) fn window(&self) -> Window<'_> {
        self.memory.window()
    }

    /// Where an address lies in it.
    fn offset_of(&self, address: usize) -> Option<usize> {
        let window = self.window();
        let offset = address.checked_sub(window.as_ptr().addr())?;
        (offset < window.len()).then_some(offset)
    }
}

/// The regions of a client's buffers. A region is given up with the first buffer that is made after its own is gone.
#[derive(Default)]
pub(crate) struct Buffers(Mutex<Vec<Arc<Registered>>>);

impl Buffers {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Registered>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a region. Asks the dataplane.
    pub(crate) fn make(&self, hub: &Hub, bytes: u64) -> Result<Buffer, ClientError> {
        self.give_up_unused(hub)?;
        let region = hub.region(bytes)?;
        let memory = hub.memory(region)?;
        let registered = Arc::new(Registered { region, memory });
        self.lock().push(Arc::clone(&registered));
        Ok(Buffer { registered })
    }

    /// Lets go of all, with the connection's end.
    pub(crate) fn forget(&self) {
        self.lock().clear();
    }

    fn give_up_unused(&self, hub: &Hub) -> Result<(), ClientError> {
        // Nobody can find one here whose address nobody has.
        let unused = |one: &mut Arc<Registered>| Arc::strong_count(one) == 1;
        let unused: Vec<_> = self.lock().extract_if(.., unused).collect();
        let mut unused = unused.into_iter();
        let mut outcome = Ok(());
        for one in unused.by_ref() {
            match hub.unregister(one.region) {
                Ok(()) => (),
                // A request that was given up still writes to it.
                Err(ClientError::RegionInUse { .. }) => self.lock().push(one),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        // The next one comes to those that are left.
        self.lock().extend(unused);
        outcome
    }

    fn at(&self, address: usize) -> Option<(Arc<Registered>, usize)> {
        let all = self.lock();
        let mut found = all
            .iter()
            .filter_map(|one| Some((one, one.offset_of(address)?)));
        found.next().map(|(one, offset)| (Arc::clone(one), offset))
    }
}

/// Memory that is registered with the dataplane, which can write results to it. Made by :meth:`Client.buffer`.
///
/// It is seen by the buffer protocol, as bytes: ``numpy.frombuffer(buffer, numpy.float32)``,
/// ``torch.frombuffer(buffer, dtype=torch.float32)``. It and what sees it, whole or in part, can be given as ``out=`` of lookups;
/// while such a request is in flight its bytes are the dataplane's, and reading them tells nothing.
#[pyclass(frozen, module = "rowmill", weakref)]
pub(crate) struct Buffer {
    registered: Arc<Registered>,
}

#[pymethods]
impl Buffer {
    /// Its size in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.registered.window().len()
    }

    fn __len__(&self) -> usize {
        self.nbytes()
    }

    /// # Safety
    /// Called by the interpreter.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let window = slf.get().registered.window();
        let (address, bytes) = (window.as_ptr(), window.len().cast_signed());
        // SAFETY: the interpreter's view, to be filled; it holds the buffer, and with it the memory.
        let outcome =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), address.cast(), bytes, 0, flags) };
        match outcome {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }

    fn __repr__(&self) -> String {
        format!("Buffer({} bytes)", self.nbytes())
    }
}

/// A place of the caller's for a result, with what keeps its memory.
pub(crate) struct Out {
    pub(crate) place: Place,
    pub(crate) memory: Option<(Arc<Registered>, usize)>,
}

impl Out {
    /// Somewhere in the pool.
    pub(crate) fn pool() -> Out {
        Out {
            place: Place::Pool,
            memory: None,
        }
    }

    /// What `out=` says.
    pub(crate) fn of(
        buffers: &Buffers,
        out: Option<&Bound<'_, PyAny>>,
        schema: &Schema,
        bags: usize,
    ) -> Outcome<Out> {
        let Some(out) = out else {
            return Ok(Out::pool());
        };
        let (address, bytes) = extent(out, schema.layout.output)?;
        let needed = schema.result_bytes(u32::try_from(bags).unwrap_or(u32::MAX));
        if (bytes as u64) < needed {
            return Err(too_small(bytes as u64, bags, needed));
        }
        let Some((registered, offset)) = buffers.at(address) else {
            let text = "out does not lie in a buffer of this client; make it of Client.buffer()";
            return Err(Fault::input(text));
        };
        Ok(Out {
            place: Place::At(registered.region, offset as u64),
            memory: Some((registered, offset)),
        })
    }
}

/// A place that the result of a batch has no room in.
pub(crate) fn too_small(bytes: u64, bags: usize, needed: u64) -> Fault {
    Fault::input(format!(
        "out has {bytes} bytes, but the result of {bags} bags takes {needed}; give as many (Schema.result_bytes)"
    ))
}

/// Address and bytes of a buffer, or of an array or tensor of the results' type.
fn extent(out: &Bound<'_, PyAny>, output: Output) -> Outcome<(usize, usize)> {
    if let Ok(buffer) = out.cast::<Buffer>() {
        let window = buffer.get().registered.window();
        return Ok((window.as_ptr().addr(), window.len()));
    }
    let memory = typed(out, output)?;
    Ok((memory.address, memory.bytes))
}

/// The memory of an array or tensor of the results' type.
pub(crate) fn typed(out: &Bound<'_, PyAny>, output: Output) -> Outcome<array::Memory> {
    let wanted = output_name(output);
    let memory = array::Memory::of(out)?;
    if memory.dtype != wanted {
        let text = format!(
            "out has dtype {}, but results of the schema are {wanted}",
            memory.dtype
        );
        return Err(Fault::new(Class::Dtype, text));
    }
    memory.dense("out")
}
