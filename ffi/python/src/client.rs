//! Clients: a connection with what is bound and looked up over it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rowmill_client::{
    Backoff, GpuOptions, Hub, HubOptions, MAX_BATCH, MAX_FEATURES, Options, Staging, Wait,
};

use crate::arguments::{self, request_options};
use crate::array::{Array, Dtype};
use crate::batch::{Batch, Division};
use crate::buffer::{Buffer, Buffers, Out};
use crate::control;
use crate::errors::{Class, Fault, Outcome};
use crate::future::{Bell, Future};
use crate::gpu::Gpu;
use crate::request::{self, Patience, Request};
use crate::result::Result;
use crate::schema::{Columns, Feature, Schema, Table, output};

/// A connection to a dataplane. Made by :func:`connect`.
///
/// All threads may use it at the same time, and many requests can be in flight. It is a context manager, which closes it. A child of
/// the process has no part in it, and connects for itself.
#[pyclass(frozen, module = "rowmill", weakref)]
pub(crate) struct Client {
    /// `None` after it was closed. Locked by threads that have the interpreter's lock, and for moments only: so nobody holds it
    /// when the process forks.
    hub: Mutex<Option<Hub>>,
    pub(crate) wait: Wait,
    buffers: Arc<Buffers>,
    url: String,
}

impl Client {
    fn lock(&self) -> MutexGuard<'_, Option<Hub>> {
        self.hub.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The hub, while the client is open.
    pub(crate) fn open(&self) -> Outcome<Hub> {
        let closed = || Fault::new(Class::Closed, "the client was closed; connect again");
        self.lock().clone().ok_or_else(closed)
    }
}

/// Connects to a dataplane.
///
/// Args:
///     url: Where it is: ``shm:/path/to/NAME.sock`` on this host, ``rdma://HOST:PORT`` from another one.
///     name: The client's name in the dataplane's logs and status page, of at most 128 bytes.
///     credits: Requests wanted in flight on each of its workers, at least 1; it may grant fewer.
///     source_bytes: Bytes for the ids, lengths and weights of all requests in flight that are larger than 8 KiB; at most half of the dataplane's ``limits.max_region_bytes`` is taken.
///     pool_bytes: Bytes of a region of memory for results, of which there can be 8; 4 MiB if not given, and more
///         where four results don't fit.
///     wait: ``"block"`` sleeps after some 200 us without an answer; ``"sleep"`` sleeps at once, and leaves
///         its core to a worker that has to share it; ``"poll"`` keeps a core busy for the lowest latency.
///     reply_limit: Seconds to wait for the answer to a call that is no lookup, this one too.
///
/// Returns:
///     Client: A client of its own.
///
/// Raises:
///     ConnectError: Nobody listens there, or no rowmilld of this version; the connection is refused; this machine lacks what
///         it takes, such as an RDMA device; or the URL is none.
///     ReplyTimeout: There is no answer within ``reply_limit``.
///     InputError: An argument is out of its range.
#[pyfunction]
#[pyo3(signature = (url, *, name = "python", credits = 8, source_bytes = 16 << 20, pool_bytes = None, wait = "block", reply_limit = 10.0))]
#[expect(clippy::too_many_arguments, reason = "they are keyword arguments")]
pub(crate) fn connect(
    py: Python<'_>,
    url: &str,
    name: &str,
    credits: i128,
    source_bytes: i128,
    pool_bytes: Option<i128>,
    wait: &str,
    reply_limit: f64,
) -> PyResult<Client> {
    let usual = Backoff::default();
    let at_once = Backoff {
        spins: 0,
        yields: 0,
        ..usual
    };
    let (wait, backoff) = match wait {
        "block" => (Wait::Block, usual),
        "sleep" => (Wait::Block, at_once),
        "poll" => (Wait::Poll, usual),
        other => {
            let text = format!(
                "no way of waiting is called `{other}`; take \"block\", \"sleep\" or \"poll\""
            );
            return Err(Fault::input(text).into());
        }
    };
    arguments::name("name", name)?;
    let options = Options {
        name: name.into(),
        credits: arguments::whole("credits", credits, 1..=u16::MAX)?,
        source_bytes: arguments::whole("source_bytes", source_bytes, 0..=usize::MAX)?,
        reply_limit: arguments::seconds("reply_limit", reply_limit)?,
        backoff,
        interrupt: control::interrupt(),
        ..Options::default()
    };
    let usual = HubOptions::default();
    let pool_bytes = pool_bytes.map(|bytes| arguments::whole("pool_bytes", bytes, 0..=u64::MAX));
    let pool = HubOptions {
        pool_region_bytes: pool_bytes.transpose()?.unwrap_or(usual.pool_region_bytes),
        ..usual
    };
    let endpoint = url.to_owned();
    let hub = control::call(py, &Patience::endless(), move || {
        Hub::connect(&endpoint, options, pool)
    })?;
    Ok(Client {
        hub: Mutex::new(Some(hub.map_err(|error| Fault::of_connecting(error, url))?)),
        wait,
        buffers: Arc::default(),
        url: url.into(),
    })
}

#[pymethods]
impl Client {
    /// The model's tables.
    ///
    /// Raises:
    ///     ReplyTimeout: There is no answer within ``reply_limit``.
    ///     ClosedError: The connection has ended.
    fn tables(&self, py: Python<'_>) -> PyResult<Vec<Table>> {
        let hub = self.open()?;
        let tables = control::call(py, &Patience::endless(), move || hub.tables())?;
        let tables = tables.map_err(|error| Fault::of(error, &[]))?;
        Ok(tables.iter().map(Table::of).collect())
    }

    /// Tells the dataplane the features that batches will have. A client can bind 16 schemas; one that is equal to a bound one is
    /// not counted again.
    ///
    /// Args:
    ///     features: At least one, at most 256; batches are matched with them by name.
    ///     max_batch: Most bags a feature of a batch, from 1 to 65,536.
    ///     output: The type of results: ``"float32"``, ``"float16"`` or ``"bfloat16"``.
    ///
    /// Returns:
    ///     Schema: What :meth:`lookup` and :meth:`submit` want.
    ///
    /// Raises:
    ///     FeatureError: Two features have the same name.
    ///     InputError: The model has no such table, there is no such output, 16 other schemas are bound, or there are too many
    ///         features or bags, or none.
    ///     RefusedError: The dataplane refuses it.
    ///     ReplyTimeout: There is no answer within ``reply_limit``.
    ///     ClosedError: The connection has ended.
    #[pyo3(signature = (features, *, max_batch = 1024, output = "float32"))]
    fn bind(
        &self,
        py: Python<'_>,
        features: Vec<PyRef<'_, Feature>>,
        max_batch: i128,
        output: &str,
    ) -> PyResult<Schema> {
        let hub = self.open()?;
        let max_batch = arguments::whole("max_batch", max_batch, 1..=MAX_BATCH)?;
        if !(1..=MAX_FEATURES).contains(&features.len()) {
            let text = format!(
                "{} features; give from 1 to {MAX_FEATURES}, and bind several schemas for more",
                features.len()
            );
            return Err(Fault::input(text).into());
        }
        let features: Vec<Feature> = features
            .iter()
            .map(|feature| Feature::clone(feature))
            .collect();
        let output = self::output(output)?;
        let asked = hub.clone();
        let tables = control::call(py, &Patience::endless(), move || asked.tables())?;
        let tables = tables.map_err(|error| Fault::of(error, &[]))?;
        let (schema, layout) = Schema::describe(&features, &tables, max_batch, output)?;
        let names: Vec<String> = schema.features.iter().map(|f| f.name.clone()).collect();
        let bound = control::call(py, &Patience::endless(), move || hub.bind(schema))?;
        let bound = bound.map_err(|error| Fault::of(error, &names))?;
        Ok(Schema::of(bound, layout))
    }

    /// Looks a batch up, and waits for the result. Other threads of Python run meanwhile.
    ///
    /// Args:
    ///     schema: Made by :meth:`bind` of this client.
    ///     batch: A :class:`Jagged`; a dict ``{name: (ids, lengths)}`` or ``{name: (ids, lengths, weights)}``; or what has the
    ///         methods of TorchRec's ``KeyedJaggedTensor``. Its arrays are NumPy arrays or torch tensors of one dimension, dense,
    ///         in this machine's memory, or copied there from a GPU's, which waits for the current stream: ids int32, int64, uint32 or uint64, lengths and offsets int32 or int64, weights
    ///         float32.
    ///     weights: A float32 for each id, in the place of the batch's own.
    ///     out: Where the result is to be written: a :class:`Buffer` of this client, or an array or tensor of the schema's output
    ///         type in one, contiguous, of at least ``schema.result_bytes(bags)`` bytes. The result then sees this memory, which
    ///         is the caller's; no other request in flight may have any of it.
    ///     generation: The generation wanted; 0 for the newest.
    ///     deadline: Seconds after which nobody wants the answer, from the dataplane's receipt on; more than 0, or None for no limit.
    ///     timeout: Seconds to wait at most.
    ///
    /// Returns:
    ///     Result: The vectors. Without a request where the batch has no bags.
    ///
    /// Raises:
    ///     InputError: The batch contradicts itself or the schema.
    ///     DtypeError: An array has another type than is wanted.
    ///     FeatureError: Features are missing, or not the schema's.
    ///     IdError: An id is not in its table.
    ///     RefusedError: The dataplane refuses the request for another reason.
    ///     BusyError: The memory for results is held by others.
    ///     WaitTimeout: There was no answer within ``timeout``.
    ///     ReplyTimeout: Memory for the result was asked for, and there was no answer within ``reply_limit``.
    ///     ClosedError: The connection has ended.
    #[pyo3(signature = (schema, batch, *, weights = None, out = None, generation = 0, deadline = None, timeout = None))]
    #[expect(clippy::too_many_arguments, reason = "they are keyword arguments")]
    fn lookup(
        &self,
        py: Python<'_>,
        schema: &Schema,
        batch: &Bound<'_, PyAny>,
        weights: Option<&Bound<'_, PyAny>>,
        out: Option<&Bound<'_, PyAny>>,
        generation: i64,
        deadline: Option<f64>,
        timeout: Option<f64>,
    ) -> PyResult<Result> {
        let hub = self.open()?;
        let batch = Batch::of(schema, batch, weights)?;
        let request = Request {
            out: Out::of(&self.buffers, out, schema, batch.bags)?,
            batch,
            options: request_options(generation, deadline)?,
            before: None,
        };
        request::lookup(py, &hub, self.wait, schema, &request, timeout)
    }

    /// Sends a batch, and does not wait for the result.
    ///
    /// Args:
    ///     schema: Made by :meth:`bind` of this client.
    ///     batch: As :meth:`lookup` takes it. Its arrays can be filled anew when this returns.
    ///     weights: A float32 for each id, in the place of the batch's own.
    ///     out: Where the result is to be written: a :class:`Buffer` of this client, or an array or tensor of the schema's output
    ///         type in one, contiguous, of at least ``schema.result_bytes(bags)`` bytes. The result then sees this memory, which
    ///         is the caller's; no other request in flight may have any of it.
    ///     generation: The generation wanted; 0 for the newest.
    ///     deadline: Seconds after which nobody wants the answer, from the dataplane's receipt on; more than 0, or None for no limit.
    ///
    /// Returns:
    ///     Future: The result to come.
    ///
    /// Raises:
    ///     BusyError: All credits or all memory is in use; take results of earlier requests first.
    ///     InputError, DtypeError, FeatureError, ClosedError: As :meth:`lookup`.
    #[pyo3(signature = (schema, batch, *, weights = None, out = None, generation = 0, deadline = None))]
    fn submit(
        slf: &Bound<'_, Self>,
        schema: &Schema,
        batch: &Bound<'_, PyAny>,
        weights: Option<&Bound<'_, PyAny>>,
        out: Option<&Bound<'_, PyAny>>,
        generation: i64,
        deadline: Option<f64>,
    ) -> PyResult<Future> {
        let hub = slf.get().open()?;
        let batch = Batch::of(schema, batch, weights)?;
        let request = Request {
            out: Out::of(&slf.get().buffers, out, schema, batch.bags)?,
            batch,
            options: request_options(generation, deadline)?,
            before: None,
        };
        let sent = request::submit(slf.py(), &hub, schema, &request)?;
        Ok(Future::new(sent, slf.clone().unbind()))
    }

    /// Says that the rows of a batch may be wanted soon: those that are not in memory are fetched, as far as the dataplane has room for
    /// that. It waits for nothing, and what the dataplane refuses, such as an id that no table has, is not told.
    ///
    /// Args:
    ///     schema: Made by :meth:`bind` of this client.
    ///     batch: As :meth:`lookup` takes it. Its arrays can be filled anew when this returns.
    ///     weights: As :meth:`lookup` takes them; they are not looked at, and where the schema has weights they are wanted all the same.
    ///     deadline: Seconds after which nobody wants the rows, from the dataplane's receipt on; more than 0, or None for no limit.
    ///
    /// Raises:
    ///     BusyError: All credits are in use; take results of earlier requests first, or do without.
    ///     InputError, DtypeError, FeatureError, ClosedError: As :meth:`lookup`.
    #[pyo3(signature = (schema, batch, *, weights = None, deadline = None))]
    fn prefetch(
        &self,
        py: Python<'_>,
        schema: &Schema,
        batch: &Bound<'_, PyAny>,
        weights: Option<&Bound<'_, PyAny>>,
        deadline: Option<f64>,
    ) -> PyResult<()> {
        let hub = self.open()?;
        let batch = Batch::of(schema, batch, weights)?;
        let options = request_options(0, deadline)?;
        request::prefetch(py, &hub, schema, &batch, &options)
    }

    /// :meth:`lookup` of flat arrays by their addresses, for operators that know them.
    ///
    /// Args:
    ///     schema: Made by :meth:`bind` of this client.
    ///     ids: Address, elements and bits (32 or 64) of the ids.
    ///     division: The same of lengths or offsets.
    ///     is_offsets: Whether ``division`` are offsets.
    ///     weights: The address of as many float32 as there are ids; 0 without.
    ///     columns: Which of the batch's columns each feature of the schema takes; its own if not given.
    ///     column_count: Columns of the batch.
    ///     out, generation, deadline, timeout: As :meth:`lookup`.
    ///     before: Where it is a part of a batch: the ids of each feature of the schema that come before it there, so that
    ///         :class:`IdError` counts over the whole batch.
    ///
    /// Returns:
    ///     Result: The vectors.
    ///
    /// Raises:
    ///     InputError: As :meth:`lookup`. What the addresses say is believed.
    #[pyo3(signature = (schema, ids, division, is_offsets, weights, columns, column_count, out = None, generation = 0, deadline = None, timeout = None, before = None))]
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
        out: Option<&Bound<'_, PyAny>>,
        generation: i64,
        deadline: Option<f64>,
        timeout: Option<f64>,
        before: Option<Vec<u64>>,
    ) -> PyResult<Result> {
        let hub = self.open()?;
        let flat = Flat {
            ids,
            division,
            is_offsets,
            weights,
        };
        // SAFETY: the caller holds the tensors during the call, as its documentation says.
        let batch = unsafe { flat.batch(schema, columns, column_count) }?;
        let request = Request {
            out: Out::of(&self.buffers, out, schema, batch.bags)?,
            batch,
            options: request_options(generation, deadline)?,
            before,
        };
        request::lookup(py, &hub, self.wait, schema, &request, timeout)
    }

    /// Makes memory that is registered with the dataplane, for ``out=``. A client can have 7 at a time, or more where its own memory
    /// for results needs fewer; one is given back after it and all that sees it are gone.
    ///
    /// Args:
    ///     nbytes: Its size in bytes, at least 1; the dataplane has a limit (``limits.max_region_bytes``).
    ///
    /// Returns:
    ///     Buffer: Zeros.
    ///
    /// Raises:
    ///     InputError: It is too large.
    ///     RefusedError: The dataplane refuses it, such as for the number of regions.
    ///     ReplyTimeout: There is no answer within ``reply_limit``.
    ///     ClosedError: The connection has ended.
    fn buffer(&self, py: Python<'_>, nbytes: i128) -> PyResult<Buffer> {
        let hub = self.open()?;
        let most = hub.welcome().max_region;
        let nbytes = arguments::whole("nbytes", nbytes, 1..=most)?;
        let buffers = Arc::clone(&self.buffers);
        let buffer = control::call(py, &Patience::endless(), move || buffers.make(&hub, nbytes))?;
        Ok(buffer.map_err(|error| Fault::of(error, &[]))?)
    }

    /// Opens a GPU as a place for results; see :meth:`Gpu.lookup`. It takes a region of this client's 16, a schema, pinned memory, and a thread:
    /// open it once.
    ///
    /// How results come to its memory is found out, and tried with a small transfer: a NIC writes them there, as a dma-buf or through
    /// nvidia-peermem, or they are copied from pinned memory (staging).
    ///
    /// Args:
    ///     ordinal: The GPU's number, as CUDA counts.
    ///     allow_staging: Whether results may be copied from pinned memory; where not, and no NIC can write there, that is an error.
    ///     library: The CUDA driver's library; that which the environment variable ``ROWMILL_CUDA_LIBRARY`` names if not given, or
    ///         else ``libcuda.so.1``.
    ///     staging_bytes: Bytes of pinned memory for results on their way.
    ///     requests: Most results on their way.
    ///     limit: Seconds after which a stream goes on without an answer.
    ///
    /// Returns:
    ///     Gpu: The GPU, with a report of what was tried.
    ///
    /// Raises:
    ///     DeviceError: There is no driver or no such GPU, memory can't be pinned, or staging was ruled out and there is nothing else.
    ///     InputError: The dataplane does not take a region of ``staging_bytes``.
    ///     ClosedError: The connection has ended.
    #[pyo3(signature = (ordinal = 0, *, allow_staging = true, library = None, staging_bytes = 64 << 20, requests = 16, limit = 10.0))]
    #[expect(clippy::too_many_arguments, reason = "they are keyword arguments")]
    fn gpu(
        &self,
        py: Python<'_>,
        ordinal: i32,
        allow_staging: bool,
        library: Option<PathBuf>,
        staging_bytes: u64,
        requests: usize,
        limit: f64,
    ) -> PyResult<Gpu> {
        let usual = GpuOptions::default();
        let options = GpuOptions {
            ordinal,
            library: library.map_or(usual.library, Into::into),
            staging_bytes,
            requests,
            limit: arguments::seconds("limit", limit)?,
            ..usual
        };
        let staging = match allow_staging {
            true => Staging::Allowed,
            false => Staging::Refused,
        };
        Gpu::new(py, &self.open()?, options, staging)
    }

    /// A descriptor for an event loop; see :mod:`rowmill._await`.
    fn _bell(&self, py: Python<'_>) -> PyResult<Bell> {
        let hub = self.open()?;
        let bell = py.detach(|| hub.bell());
        Ok(Bell::of(bell.map_err(|error| Fault::of(error, &[]))?))
    }

    /// Ends the connection. Requests in flight get :class:`ClosedError`; results stay readable, and buffers memory. Twice is
    /// fine.
    fn close(&self, py: Python<'_>) {
        let hub = self.lock().take();
        self.buffers.forget();
        py.detach(|| {
            if let Some(hub) = hub {
                hub.close();
                // Dropped here: its thread is waited for, if it has one.
            }
        });
    }

    /// Whether the connection has ended: by :meth:`close`, or as a call has found out, or in a child of the process. It neither asks
    /// the dataplane nor waits.
    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        let hub = self.lock().clone();
        py.detach(|| hub.is_none_or(|hub| hub.is_closed()))
    }

    /// The newest generation that the dataplane has told of.
    ///
    /// Raises:
    ///     ClosedError: The connection has ended.
    #[getter]
    fn generation(&self, py: Python<'_>) -> PyResult<u64> {
        let hub = self.open()?;
        let generation = py.detach(|| hub.generation());
        Ok(generation.map_err(|error| Fault::of(error, &[]))?)
    }

    /// Counts of now.
    ///
    /// Returns:
    ///     dict[str, int]: ``pending``: requests whose answers were not taken; ``held``: results that are in flight or held.
    ///
    /// Raises:
    ///     ClosedError: The connection has ended.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let hub = self.open()?;
        let counts = py.detach(|| Ok((hub.pending()?, hub.held()?)));
        let (pending, held) = counts.map_err(|error| Fault::of(error, &[]))?;
        let stats = PyDict::new(py);
        stats.set_item("pending", pending)?;
        stats.set_item("held", held)?;
        Ok(stats)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let end = if self.closed(py) { ", closed" } else { "" };
        format!("Client('{}'{end})", self.url)
    }
}

/// A flat jagged tensor by its addresses, as [`Client::_lookup_flat`] takes it.
pub(crate) struct Flat {
    pub(crate) ids: (usize, usize, u8),
    pub(crate) division: (usize, usize, u8),
    pub(crate) is_offsets: bool,
    pub(crate) weights: usize,
}

impl Flat {
    /// The batch, matched with a schema.
    ///
    /// # Safety
    /// The elements must be mapped there as long as the batch is held.
    pub(crate) unsafe fn batch(
        &self,
        schema: &Schema,
        columns: Option<Vec<u32>>,
        column_count: usize,
    ) -> Outcome<Batch> {
        let columns = Columns::given(schema, columns, column_count)?;
        let (ids, division, count) = (self.ids, self.division, self.ids.1);
        // SAFETY: the caller's contract.
        let (ids, division, weights) = unsafe {
            let weights = (self.weights != 0).then(|| flat(self.weights, count, Dtype::F32));
            (
                flat(ids.0, count, whole(ids.2)?)?,
                flat(division.0, division.1, whole(division.2)?)?,
                weights.transpose()?,
            )
        };
        let division = match self.is_offsets {
            true => Division::Offsets(division),
            false => Division::Lengths(division),
        };
        Batch::flat_arrays(division, ids, weights, columns)
    }
}

impl Columns {
    /// Columns by their numbers.
    fn given(schema: &Schema, chosen: Option<Vec<u32>>, of: usize) -> Outcome<Columns> {
        let features = schema.names.len();
        let chosen: Option<Arc<[u32]>> = chosen.map(Into::into);
        let given = chosen.as_ref().map_or(of, |chosen| chosen.len());
        if given != features {
            let text = format!(
                "{given} columns for {features} features; choose one for each feature of the schema"
            );
            return Err(Fault::input(text));
        }
        let outside = chosen
            .iter()
            .flat_map(|c| c.iter())
            .find(|&&at| at as usize >= of);
        if let Some(at) = outside {
            let text = format!("column {at} is not there; the batch has {of} columns");
            return Err(Fault::input(text));
        }
        let names = None;
        Ok(Columns { of, chosen, names })
    }
}

/// # Safety
/// As [`Array::at`].
unsafe fn flat(address: usize, count: usize, dtype: Dtype) -> Outcome<Array> {
    // SAFETY: the caller's contract.
    let array = unsafe { Array::at(address, count, dtype) };
    array.ok_or_else(|| {
        Fault::input(format!(
            "{count} elements at address 0; give a tensor's data_ptr()"
        ))
    })
}

fn whole(bits: u8) -> Outcome<Dtype> {
    match bits {
        32 => Ok(Dtype::I32),
        64 => Ok(Dtype::I64),
        _ => Err(Fault::input(format!(
            "numbers of {bits} bits; give 32 or 64"
        ))),
    }
}
