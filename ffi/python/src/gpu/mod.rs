//! Results in a GPU's memory, in the order of its streams.

mod memory;
mod stream;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use rowmill_client::cuda::DeviceMemory;
use rowmill_client::{
    self as client, GpuOptions, GpuOutput, GpuRegion, Hub, RequestOptions, Staging,
};

pub(crate) use self::memory::GpuMemory;

use self::memory::Registered;
use self::stream::{extent, foreign_stream, handle};
use crate::arguments::{self, request_options};
use crate::array;
use crate::batch::Batch;
use crate::buffer;
use crate::client::Flat;
use crate::control;
use crate::errors::{Class, Fault, Outcome};
use crate::request::{self, Patience};
use crate::schema::Schema;

/// Seconds to wait for room for an operator's result.
const FLAT_TIMEOUT_S: f64 = 10.0;

/// Between two attempts to find room for a result.
const PAUSE: Duration = Duration::from_micros(50);

/// What is there while it is open.
struct Open {
    gpu: client::Gpu,
    /// Each is given up with the first one that is registered after it is gone.
    registered: Vec<Arc<Registered>>,
    /// Memory that could not be given up, to which requests may still be written.
    kept: Vec<Registered>,
}

/// Where a result is to lie, and for which stream.
struct To {
    /// Address and bytes of memory of the GPU.
    extent: (u64, u64),
    /// The stream's handle.
    stream: usize,
}

/// A GPU to whose memory results go, in the order of its streams. Made by :meth:`Client.gpu`.
///
/// All threads may use it. It keeps the client's connection until it is closed or gone.
#[pyclass(frozen, module = "rowmill", weakref)]
pub(crate) struct Gpu {
    /// `None` after it was closed. Locked by threads that have the interpreter's lock, and for moments only.
    open: Mutex<Option<Open>>,
    ordinal: i32,
    staging: Staging,
    way: String,
    report: Vec<String>,
    /// What it counted until it was closed.
    staged_instead: AtomicU64,
}

impl Gpu {
    /// Opens a GPU, and finds out how results come there.
    pub(crate) fn new(
        py: Python<'_>,
        hub: &Hub,
        options: GpuOptions,
        staging: Staging,
    ) -> PyResult<Gpu> {
        let ordinal = options.ordinal;
        let hub = hub.clone();
        let opened = control::call(py, &Patience::endless(), move || {
            let gpu = client::Gpu::open(&hub, options)?;
            let (way, report) = gpu.find_way(staging)?;
            Ok((gpu, way, report))
        })?;
        let (gpu, way, report) = opened.map_err(|error| Fault::of(error, &[]))?;
        let open = Open {
            gpu,
            registered: Vec::new(),
            kept: Vec::new(),
        };
        Ok(Gpu {
            open: Mutex::new(Some(open)),
            ordinal,
            staging,
            way: way.to_string(),
            report,
            staged_instead: AtomicU64::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gpu(&self) -> Outcome<client::Gpu> {
        let gpu = self.lock().as_ref().map(|open| open.gpu.clone());
        gpu.ok_or_else(|| Fault::new(Class::Closed, "the GPU was closed; open it again"))
    }

    /// The registered memory that a range lies in, and where.
    fn registered(&self, address: u64, bytes: u64) -> Option<(Arc<Registered>, u64)> {
        let open = self.lock();
        let mut found = open.iter().flat_map(|open| &open.registered);
        found.find_map(|one| Some((Arc::clone(one), one.region.offset_of(address, bytes)?)))
    }

    /// Sends a request whose result is to lie at `out`, once there is room for it.
    fn send(
        &self,
        py: Python<'_>,
        schema: &Schema,
        batch: &Batch,
        to: &To,
        options: &RequestOptions,
        timeout: f64,
    ) -> PyResult<()> {
        let gpu = self.gpu()?;
        if batch.bags == 0 {
            return checked(&gpu, to.stream);
        }
        let needed = schema.result_bytes(u32::try_from(batch.bags).unwrap_or(u32::MAX));
        let To {
            extent: (address, bytes),
            stream,
        } = *to;
        if bytes < needed {
            return Err(buffer::too_small(bytes, batch.bags, needed).into());
        }
        let limit = arguments::seconds("timeout", timeout)?;
        let until = Instant::now().checked_add(limit);
        let registered = self.registered(address, needed);
        if registered.is_none() && self.staging == Staging::Refused {
            let text = "out does not lie in registered memory, so that no NIC can write there, and staging was ruled out; give memory \
                        of Gpu.register(), or open the GPU with allow_staging=True";
            return Err(Fault::input(text).into());
        }
        let once = || {
            // SAFETY: the caller gives a stream of this GPU, as the documentation says.
            let stream = unsafe { foreign_stream(&gpu, stream) };
            let submit = |to: GpuOutput<'_>| {
                batch.with_view(|view| gpu.submit(&schema.bound, view, to, &stream, options))
            };
            match &registered {
                Some((registered, offset)) => submit((&registered.region, *offset).into()),
                None => {
                    // SAFETY: the caller keeps it allocated until the stream has come to the result, as the documentation says;
                    // what is queued by then uses the address only.
                    let memory = unsafe { DeviceMemory::foreign(gpu.context(), address, needed) }?;
                    submit((&GpuRegion::staged(Arc::new(memory)), 0).into())
                }
            }
        };
        loop {
            let error = match py.detach(once) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let is_full =
                error.would_block() || matches!(error, client::ClientError::ResultsHeld { .. });
            if !is_full || until.is_some_and(|until| Instant::now() >= until) {
                return Err(request::of_batch(error, schema, batch).into());
            }
            py.check_signals()?;
            py.detach(|| std::thread::sleep(PAUSE));
        }
    }

    /// Closes it with the interpreter's lock given to others: what streams have to do may need that.
    fn end(&self, py: Python<'_>) {
        let Some(open) = self.lock().take() else {
            return;
        };
        let count = open.gpu.staged_instead();
        self.staged_instead.store(count, Ordering::Relaxed);
        py.detach(|| open.end());
    }
}

/// Asks for the failure of a stream by its handle.
fn checked(gpu: &client::Gpu, stream: usize) -> PyResult<()> {
    // SAFETY: the caller gives a stream of this GPU, as the documentation says.
    let stream = unsafe { foreign_stream(gpu, stream) };
    Ok(gpu.check(&stream).map_err(|error| Fault::of(error, &[]))?)
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // Without an interpreter there is none whose lock others may want.
        let _ = Python::try_attach(|py| self.end(py));
    }
}

#[pymethods]
impl Gpu {
    /// Sends a batch whose result is to lie in the GPU's memory, for a stream: between what the stream has to do before and what it is
    /// given to do after. Returns when that is queued, and does not wait for the result.
    ///
    /// A stream goes on also where there is no result: the request was refused, its time is over, the dataplane is gone. There are
    /// NaNs in its place then, and the next :meth:`lookup`, :meth:`check` or :meth:`synchronize` of that stream raises. CUDA's and torch's own calls
    /// that wait for a stream tell nothing of it.
    ///
    /// Args:
    ///     schema: Made by :meth:`Client.bind` of the same client.
    ///     batch: As :meth:`Client.lookup` takes it, in this machine's memory. Its arrays can be filled anew when this returns.
    ///     out: Where the result is to be written: a tensor on the GPU, contiguous, of the schema's output type, or ``(address,
    ///         bytes)`` of memory there; of at least ``schema.result_bytes(bags)`` bytes. Where all features are pooled, that is
    ///         a matrix of ``[bags, schema.width]``. It has to stay allocated until the stream has come to the result: a tensor
    ///         that torch has made for another stream needs ``record_stream``.
    ///     stream: A ``torch.cuda.Stream``, or the handle of a CUDA stream, which is believed; torch's current stream of this GPU if
    ///         not given, or the legacy default stream without torch.
    ///     weights: A float32 for each id, in the place of the batch's own.
    ///     generation: The generation wanted; 0 for the newest.
    ///     deadline: Seconds after which nobody wants the answer, from the dataplane's receipt on; more than 0, or None for no limit.
    ///     timeout: Seconds to wait at most while too many results are on their way.
    ///
    /// Raises:
    ///     DeviceError: The stream has gone on without the result of an earlier lookup; nothing was sent then. Or a call to the GPU's
    ///         driver has failed, also since the stream is being captured into a graph.
    ///     BusyError: Too many results are still on their way after ``timeout``; or the stream has work before that may use ``out``,
    ///         which a NIC is to write, and staging was ruled out.
    ///     InputError: The batch contradicts itself or the schema; ``out`` is no memory of this GPU, or too small.
    ///     DtypeError: An array, ``out`` or ``stream`` has another type than is wanted.
    ///     FeatureError: Features are missing, or not the schema's.
    ///     ClosedError: The connection has ended, or the GPU was closed.
    #[pyo3(signature = (schema, batch, *, out, stream = None, weights = None, generation = 0, deadline = None, timeout = 10.0))]
    #[expect(clippy::too_many_arguments, reason = "they are keyword arguments")]
    fn lookup(
        &self,
        py: Python<'_>,
        schema: &Schema,
        batch: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
        weights: Option<&Bound<'_, PyAny>>,
        generation: i64,
        deadline: Option<f64>,
        timeout: f64,
    ) -> PyResult<()> {
        let batch = Batch::of(schema, batch, weights)?;
        let to = To {
            extent: extent(out, schema)?,
            stream: handle(py, stream, self.ordinal)?,
        };
        let options = request_options(generation, deadline)?;
        self.send(py, schema, &batch, &to, &options, timeout)
    }

    /// :meth:`lookup` of flat arrays by their addresses, for operators that know them.
    ///
    /// Args:
    ///     schema, ids, division, is_offsets, weights, columns, column_count: As :meth:`Client._lookup_flat`.
    ///     out: Address and bytes of memory of the GPU.
    ///     stream: The handle of a CUDA stream.
    ///
    /// Raises:
    ///     Error: As :meth:`lookup`. What the addresses say is believed.
    #[expect(clippy::too_many_arguments, reason = "an inner call of few types")]
    fn _lookup_flat(
        &self,
        py: Python<'_>,
        schema: &Schema,
        ids: (usize, usize, u8),
        division: (usize, usize, u8),
        is_offsets: bool,
        weights: usize,
        columns: Option<Vec<u32>>,
        column_count: usize,
        out: (u64, u64),
        stream: usize,
    ) -> PyResult<()> {
        let flat = Flat {
            ids,
            division,
            is_offsets,
            weights,
        };
        // SAFETY: the caller holds the tensors during the call, as its documentation says.
        let batch = unsafe { flat.batch(schema, columns, column_count) }?;
        let options = RequestOptions::default();
        let to = To {
            extent: out,
            stream,
        };
        self.send(py, schema, &batch, &to, &options, FLAT_TIMEOUT_S)
    }

    /// Registers memory of the GPU for results, so that a NIC can write to it where there is one that can: results of lookups whose
    /// ``out`` lies in it come that way. Other memory gets its results by copies from pinned memory.
    ///
    /// Memory for NICs is best taken once, in large pieces at multiples of 64 KiB. What it holds stays as it is.
    ///
    /// Args:
    ///     memory: A tensor on the GPU, contiguous; or ``(address, bytes)`` of memory that stays allocated until the GPU is closed.
    ///         The tensor is kept.
    ///
    /// Returns:
    ///     GpuMemory: To be held for as long as it is to be registered.
    ///
    /// Raises:
    ///     DeviceError: No NIC can write there, and staging was ruled out; or a call to the GPU's driver has failed.
    ///     InputError: It is no memory of this GPU.
    ///     RefusedError: The dataplane refuses it, such as for the number of regions.
    ///     ClosedError: The connection has ended, or the GPU was closed.
    fn register(&self, py: Python<'_>, memory: &Bound<'_, PyAny>) -> PyResult<GpuMemory> {
        let gpu = self.gpu()?;
        let (address, bytes) = match memory.extract::<(u64, u64)>() {
            Ok(extent) => extent,
            Err(_) => {
                let memory = array::Memory::of(memory)?.dense("memory")?;
                (memory.address as u64, memory.bytes as u64)
            }
        };
        self.give_up_unused(py, &gpu)?;
        let region = py.detach(|| {
            // SAFETY: a tensor is kept with the region; other memory stays allocated, as the documentation says.
            let memory = unsafe { DeviceMemory::foreign(gpu.context(), address, bytes) }?;
            gpu.register(Arc::new(memory), self.staging)
        });
        let registered = Arc::new(Registered {
            region: region.map_err(|error| Fault::of(error, &[]))?,
            _owner: memory.clone().unbind(),
        });
        self.keep(py, &gpu, &registered);
        Ok(GpuMemory { registered })
    }

    /// Asks whether a stream has gone on without a result since this was asked last. Does not wait.
    ///
    /// Args:
    ///     stream: As :meth:`lookup` takes it.
    ///
    /// Raises:
    ///     DeviceError: It has, with the reason of the first time.
    ///     ClosedError: The GPU was closed.
    #[pyo3(signature = (stream = None))]
    fn check(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        checked(&self.gpu()?, handle(py, stream, self.ordinal)?)
    }

    /// Asks whether any stream has gone on without a result since that was told last. Does not wait.
    ///
    /// Raises:
    ///     DeviceError: One has, with the reason of the earliest one, which then was told.
    ///     ClosedError: The GPU was closed.
    fn check_all(&self) -> PyResult<()> {
        let checked = self.gpu()?.check_all();
        Ok(checked.map_err(|error| Fault::of(error, &[]))?)
    }

    /// Waits until a stream has done all that it has to do, and asks whether it has its results. Other threads of Python run meanwhile;
    /// signals don't end it.
    ///
    /// Args:
    ///     stream: As :meth:`lookup` takes it.
    ///
    /// Raises:
    ///     DeviceError: It has gone on without its result, or CUDA fails.
    ///     ClosedError: The GPU was closed.
    #[pyo3(signature = (stream = None))]
    fn synchronize(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let gpu = self.gpu()?;
        let handle = handle(py, stream, self.ordinal)?;
        let done = py.detach(|| {
            // SAFETY: the caller gives a stream of this GPU, as the documentation says.
            let stream = unsafe { foreign_stream(&gpu, handle) };
            gpu.synchronize(&stream)
        });
        Ok(done.map_err(|error| Fault::of(error, &[]))?)
    }

    /// How results come to memory of this GPU: ``"dma-buf"`` or ``"nvidia-peermem"`` where a NIC writes to what is registered,
    /// ``"staging"`` where they are copied from pinned memory.
    #[getter]
    fn way(&self) -> &str {
        &self.way
    }

    /// The GPU and the driver's library, and then what was tried, in order, and what came of it: a line each.
    #[getter]
    fn report(&self) -> Vec<String> {
        self.report.clone()
    }

    /// Lookups whose results were staged although a NIC could have written them, since their streams had things to do before.
    #[getter]
    fn staged_instead(&self) -> u64 {
        match &*self.lock() {
            Some(open) => open.gpu.staged_instead(),
            None => self.staged_instead.load(Ordering::Relaxed),
        }
    }

    /// The GPU's number, as CUDA counts.
    #[getter]
    fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// Gives it up. Streams that wait for results go on without them, also where other threads wait for these in
    /// :meth:`synchronize`, which raises; later calls raise :class:`ClosedError`. Twice is fine.
    fn close(&self, py: Python<'_>) {
        self.end(py);
    }

    /// Whether :meth:`close` was called.
    #[getter]
    fn closed(&self) -> bool {
        self.lock().is_none()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.end(py);
    }

    fn __repr__(&self) -> String {
        let end = if self.closed() { ", closed" } else { "" };
        format!("Gpu({}, {}{end})", self.ordinal, self.way)
    }
}
