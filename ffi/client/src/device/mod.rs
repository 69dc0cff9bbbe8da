//! Results in the memory of a GPU, in the order of its streams.
//!
//! A request is sent by [`Gpu::submit`] for a stream: what the stream is given to do after that finds the result in the GPU's memory,
//! and what it had to do before is done before the result is written. Nobody's thread waits for that: see `staging.rs`.
//! Streams are released by whoever takes answers in, mostly the hub's own thread, and by a timer (`timer.rs`), neither of which
//! calls CUDA (`watch.rs`).

mod error;
mod spans;
mod staging;
mod timer;
mod watch;

use core::time::Duration;
use std::ffi::OsString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rowmill_cuda::{Context, Device, DeviceMemory, Driver, LIBRARY, Stream};
use rowmill_port::{ClientPort, Process};
use rowmill_wire::SplitRule;
use rowmill_wire::limits::{MAX_LANES, MAX_SLICES};

pub use self::error::StreamFailure;

use self::staging::Staging;
use self::timer::Timer;
use self::watch::Flags;
use crate::error::ClientError;
use crate::hub::{Hub, Ids, InParent, Place};
use crate::options::RequestOptions;
use crate::ports::AnyPort;
use crate::schema::BoundSchema;

/// The environment variable that names another library than [`LIBRARY`] for the CUDA driver.
const LIBRARY_VARIABLE: &str = "ROWMILL_CUDA_LIBRARY";

/// How much longer than a request's own limit a stream waits, since the dataplane answers then.
const GRACE: Duration = Duration::from_millis(100);

/// Choices for a [`Gpu`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuOptions {
    /// The CUDA driver's library: a name that the dynamic linker finds, or a path. The default is the environment variable
    /// `ROWMILL_CUDA_LIBRARY`, or else `libcuda.so.1`.
    pub library: OsString,
    /// The GPU's number, as CUDA counts.
    pub ordinal: i32,
    /// Bytes of pinned memory for results on their way to the GPU. The default of 64 MiB holds 18 queries of 256 samples of
    /// the DLRM-v2 shape.
    pub staging_bytes: u64,
    /// Most requests whose results are on their way. The default is 16.
    pub requests: usize,
    /// In about how many slices the results of a worker are copied, while it goes on with the next; at most 64. The default is 8.
    pub slices: u32,
    /// Fewest bytes of a slice, about. The default of 64 KiB takes some 3 us on a PCIe 4.0 link, as long as it takes to begin a copy.
    pub slice_bytes: u64,
    /// After how long a stream goes on without an answer. The default is 10 s.
    pub limit: Duration,
}

impl Default for GpuOptions {
    fn default() -> GpuOptions {
        GpuOptions {
            library: std::env::var_os(LIBRARY_VARIABLE).unwrap_or_else(|| LIBRARY.into()),
            ordinal: 0,
            staging_bytes: 64 << 20,
            requests: 16,
            slices: 8,
            slice_bytes: 64 << 10,
            limit: Duration::from_secs(10),
        }
    }
}

/// A GPU to whose memory a hub's results go. Clones are the same; with the last one its streams are released.
///
/// ```no_run
/// use std::sync::Arc;
/// use rowmill_client::cuda::{DeviceMemory, Stream};
/// use rowmill_client::{Batch, Division, Gpu, GpuOptions, Hub, HubOptions, Options, Pooling, RequestOptions, Schema};
///
/// let hub = Hub::connect("shm:/run/rowmill/demo.sock", Options::default(), HubOptions::default())?;
/// let (schema, row_bytes) = Schema::side_by_side(256, [("clicked", "items", Pooling::Sum, 128)]);
/// let schema = hub.bind(schema)?;
/// let gpu = Gpu::open(&hub, GpuOptions::default())?;
/// let output = DeviceMemory::new(gpu.context(), 256 * row_bytes)?;
/// let stream = Stream::new(gpu.context())?;
///
/// let mut batch = Batch::new(1)?;
/// batch.push(Division::Lengths(&[1]), &[7u32][..])?;
/// gpu.submit(&schema, &batch, (&output, 0), &stream, &RequestOptions::default())?;
/// // Whatever the stream is given to do now finds the result in `output`.
/// gpu.synchronize(&stream)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Failures
/// A stream that waits for a result goes on also where there is none: the request was refused, its time is over, the dataplane is
/// gone. The result is NaN then, but for slices that had come, and the next [`Gpu::check`], [`Gpu::synchronize`] or
/// [`Gpu::submit`] fails. CUDA's own calls that wait for a stream tell nothing of it.
///
/// # Threads and streams
/// All calls may be made by all threads. Results are copied in the order of submission, whatever stream they are for, so that one
/// that is late holds up those behind it. No call but [`Gpu::synchronize`] waits for the GPU; while a stream waits for a result,
/// `cudaFree` and its like of any thread wait, too.
pub struct Gpu<P: ClientPort + Send + 'static = AnyPort> {
    inner: Arc<InParent<Inner<P>>>,
}

impl<P: ClientPort + Send + 'static> Clone for Gpu<P> {
    fn clone(&self) -> Gpu<P> {
        let inner = Arc::clone(&self.inner);
        Gpu { inner }
    }
}

struct Inner<P: ClientPort + Send + 'static> {
    hub: Hub<P>,
    process: Process,
    context: Context,
    options: GpuOptions,
    flags: Arc<Flags>,
    timer: Timer,
    staging: Mutex<Staging<P>>,
}

impl<P: ClientPort + Send + 'static> Gpu<P> {
    /// Opens the GPU, and takes and pins memory of the hub's for results on their way.
    ///
    /// # Errors
    /// [`ClientError::Cuda`] where there is no driver or no GPU, or where memory can't be pinned; as [`Hub::region`].
    pub fn open(hub: &Hub<P>, options: GpuOptions) -> Result<Gpu<P>, ClientError> {
        let process = Process::this()?;
        let device = Driver::open(&options.library)?.device(options.ordinal)?;
        let context = Context::primary(device)?;
        let region = hub.region(options.staging_bytes)?;
        let opened = hub.memory(region).and_then(|memory| {
            let lanes = hub.welcome().split.lanes.clamp(1, MAX_LANES);
            let (requests, slices) = (options.requests.max(1), options.slices);
            Staging::new(&context, region, memory, requests, lanes, slices)
        });
        let staging = opened.inspect_err(|_| {
            // It is given up with the connection else.
            let _ = hub.unregister(region);
        })?;
        let timer = Timer::start(staging.watches().cloned().collect())?;
        let inner = Inner {
            hub: hub.clone(),
            process,
            context,
            flags: Arc::clone(&staging.flags),
            timer,
            staging: Mutex::new(staging),
            options,
        };
        Ok(Gpu {
            inner: Arc::new(InParent::new(process, inner)),
        })
    }

    /// The GPU.
    pub fn device(&self) -> Device {
        self.inner.context.device()
    }

    /// The GPU's primary context, which the CUDA runtime and PyTorch use too.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The hub whose results go there.
    pub fn hub(&self) -> &Hub<P> {
        &self.inner.hub
    }

    /// Sends a request whose result is to lie in a GPU's memory, from byte `to.1` of `to.0` on: for the stream, between what it has
    /// to do before and what it is given to do after. Returns when that is queued.
    ///
    /// The output must stay allocated until the stream has come to the result. It is not to be written to meanwhile, and what is read
    /// of it in other streams is not waited for.
    ///
    /// How finely it is sliced is chosen here. Where vectors don't lie in rows, one bag's behind the other's, the result is
    /// copied in one piece, and so is what lies between the vectors.
    ///
    /// # Errors
    /// Those of [`Gpu::check`], of the requests before. [`ClientError::ResultsHeld`] where too many results are on their way;
    /// [`ClientError::TargetTooSmall`], [`ClientError::TargetMisaligned`]; those of [`Hub::submit`]. [`ClientError::Cuda`] where
    /// the stream is being captured, or CUDA fails; the request may have been sent then, and the stream not wait for it.
    pub fn submit<'a>(
        &self,
        schema: &BoundSchema,
        ids: impl Into<Ids<'a>>,
        to: (&DeviceMemory, u64),
        stream: &Stream,
        options: &RequestOptions,
    ) -> Result<(), ClientError> {
        let inner = self.inner()?;
        self.check()?;
        let ids = ids.into();
        inner.hub.check(schema, ids)?;
        let bags = ids.bags() as u32;
        let needed = schema.target_bytes(bags);
        let (memory, offset) = to;
        let (bytes, element) = (memory.len().saturating_sub(offset), schema.element_bytes());
        if needed > bytes {
            return Err(ClientError::TargetTooSmall { needed, bytes });
        }
        if !(memory.address() + offset).is_multiple_of(element) {
            return Err(ClientError::TargetMisaligned { offset, element });
        }
        let current = inner.context.enter()?;
        current.check_not_capturing(stream)?;

        let mut staging = inner.staging();
        let Some((slot, place)) = staging.take(&current, needed)? else {
            let held = staging.taken();
            return Err(ClientError::ResultsHeld { needed, held });
        };
        let split = inner.hub.welcome().split;
        let lanes = split.lanes.min(MAX_LANES);
        let rule = SplitRule { lanes, ..split };
        let row = spans::row_bytes(schema);
        let slices = inner.options.slices.min(inner.hub.welcome().completions);
        let least = inner.options.slice_bytes;
        let slice_bags = spans::slice_bags(row, bags, rule, slices.min(MAX_SLICES), least);
        let (watch, serial) = staging.begin(slot, |out| {
            spans::spans(row, bags, needed, rule, slice_bags, out);
        });
        let options = RequestOptions {
            slice_bags,
            ..*options
        };
        let place = Place::At(staging.region(), place);
        let sent = inner
            .hub
            .submit_watched(schema, ids, place, &options, watch);
        match sent {
            Ok(pending) => staging.keep(slot, pending),
            Err(error) => {
                staging.give(slot);
                return Err(error);
            }
        }
        let own = options.remaining.map(|remaining| remaining + GRACE);
        let limit = own.unwrap_or(inner.options.limit).min(inner.options.limit);
        inner.timer.limit(slot, serial, limit);
        staging.queue(&current, slot, to, stream)
    }

    /// Whether a stream has gone on without its result since this was asked last.
    ///
    /// # Errors
    /// [`ClientError::NoResult`] for the first one; [`ClientError::Forked`].
    pub fn check(&self) -> Result<(), ClientError> {
        match self.inner()?.flags.take_failure() {
            Some(why) => Err(ClientError::NoResult(why)),
            None => Ok(()),
        }
    }

    /// Waits until the stream has done all that it has to do, and asks whether it has its results.
    ///
    /// # Errors
    /// As [`Gpu::check`]; [`ClientError::Cuda`].
    pub fn synchronize(&self, stream: &Stream) -> Result<(), ClientError> {
        let inner = self.inner()?;
        inner.context.enter()?.synchronize(stream)?;
        self.check()
    }

    fn inner(&self) -> Result<&Inner<P>, ClientError> {
        // The memory of it is the parent's copy: nothing there is changed by asking.
        match self.inner.process.is_this() {
            true => Ok(&self.inner),
            false => Err(ClientError::Forked),
        }
    }
}

impl<P: ClientPort + Send + 'static> Inner<P> {
    fn staging(&self) -> MutexGuard<'_, Staging<P>> {
        // A panic between two statements leaves a slot in use, and no more.
        self.staging.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: ClientPort + Send + 'static> Drop for Inner<P> {
    fn drop(&mut self) {
        let staging = self.staging.get_mut();
        let staging = staging.unwrap_or_else(PoisonError::into_inner);
        for watch in staging.watches() {
            watch.detach();
        }
        let settled = self.context.enter().map_err(ClientError::from);
        // Where it fails, CUDA waits for the streams itself when it frees what they use.
        let _ = settled.and_then(|current| staging.settle(&current));
        // The dataplane may still write to the region; it is given up with the connection then.
        let region = staging.region();
        staging.forget();
        let _ = self.hub.unregister(region);
    }
}
