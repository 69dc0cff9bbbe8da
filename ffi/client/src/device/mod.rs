//! Results in the memory of a GPU, in the order of its streams.
//!
//! A request is sent by [`Gpu::submit`] for a stream: what the stream is given to do after that finds the result in the GPU's memory,
//! and what it had to do before is done before the result is written. Nobody's thread waits for that: see `requests.rs`.
//! Results come through pinned memory, or are written by a NIC, as `choose.rs` finds out.
//!
//! Streams are released by whoever takes answers in, mostly the hub's own thread, and by a timer (`timer.rs`), neither of which
//! calls CUDA (`watch.rs`).

mod choose;
mod error;
mod failures;
mod options;
mod peer;
mod probe;
mod requests;
mod spans;
mod submit;
mod timer;
mod watch;

use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rowmill_cuda::{Context, Device, DeviceMemory, Driver, Stream};
use rowmill_port::{ClientPort, Process};
use rowmill_wire::limits::MAX_LANES;

pub use self::choose::{GpuRegion, Staging, Way};
pub use self::error::StreamFailure;
pub use self::options::GpuOptions;
pub use self::submit::GpuOutput;

use self::requests::Requests;
use self::timer::Timer;
use self::watch::{Flags, Watch};
use crate::error::ClientError;
use crate::hub::{Hub, InParent};
use crate::ports::AnyPort;
use crate::schema::BoundSchema;

/// A GPU to whose memory a hub's results go. Clones are the same; with the last one its streams are released.
///
/// ```no_run
/// use std::sync::Arc;
/// use rowmill_client::cuda::{DeviceMemory, Stream};
/// use rowmill_client::{Batch, Division, Gpu, GpuOptions, Hub, HubOptions, Options, Pooling, RequestOptions, Schema, Staging};
///
/// let hub = Hub::connect("shm:/run/rowmill/demo.sock", Options::default(), HubOptions::default())?;
/// let (schema, row_bytes) = Schema::side_by_side(256, [("clicked", "items", Pooling::Sum, 128)]);
/// let schema = hub.bind(schema)?;
/// let gpu = Gpu::open(&hub, GpuOptions::default())?;
/// let memory = DeviceMemory::new(gpu.context(), 256 * row_bytes)?;
/// let output = gpu.register(Arc::new(memory), Staging::Allowed)?;
/// println!("{}: {}", output.way(), output.report().join("; "));
/// let stream = Stream::new(gpu.context())?;
///
/// let mut batch = Batch::new(1)?;
/// batch.push(Division::Lengths(&[1]), &[7u32][..])?;
/// gpu.submit(&schema, &batch, (&output, 0), &stream, &RequestOptions::default())?;
/// // Whatever the stream is given to do now finds the result there.
/// gpu.synchronize(&stream)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Failures
/// A stream that waits for a result goes on also where there is none: the request was refused, its time is over, the dataplane is
/// gone. A result that is staged is NaN then, but for slices that had come; where a NIC writes, what was there may be there still. The
/// next [`Gpu::check`], [`Gpu::synchronize`] or [`Gpu::submit`] of that stream fails, and says why; calls for other streams don't.
/// CUDA's own calls that wait for a stream tell nothing of it.
///
/// # Threads and streams
/// All calls may be made by all threads. Results of one stream come in the order of submission; those of others don't wait for them.
/// No call but [`Gpu::synchronize`] waits for the GPU, and [`Gpu::register`] and [`Gpu::close`] for copies of their own; while a
/// stream waits for a result, `cudaFree` and its like of any thread wait, too.
pub struct Gpu<P: ClientPort + Send + 'static = AnyPort> {
    pub(crate) inner: Arc<InParent<Inner<P>>>,
}

impl<P: ClientPort + Send + 'static> Clone for Gpu<P> {
    fn clone(&self) -> Gpu<P> {
        let inner = Arc::clone(&self.inner);
        Gpu { inner }
    }
}

pub(crate) struct Inner<P: ClientPort + Send + 'static> {
    hub: Hub<P>,
    process: Process,
    context: Context,
    options: GpuOptions,
    flags: Arc<Flags>,
    /// Those of all requests, which are released without the lock of `open`: who has that may wait for the driver.
    pub(crate) watches: Vec<Arc<Watch>>,
    closed: AtomicBool,
    /// None once it was closed.
    open: Mutex<Option<Open<P>>>,
    /// Requests that were staged, but for which a NIC could have written.
    staged_instead: AtomicU64,
    /// What memory is tried with; see `probe.rs`.
    probe: Mutex<Option<BoundSchema>>,
}

/// What is there until it is closed.
struct Open<P: ClientPort> {
    timer: Timer,
    requests: Requests<P>,
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
        let region = hub.region(options.staging_bytes.max(1))?;
        let opened = hub.memory(region).and_then(|memory| {
            let lanes = hub.welcome().split.lanes.clamp(1, MAX_LANES);
            let spans = spans::most_spans(lanes, options.pieces);
            Requests::new(&context, region, memory, options.requests.max(1), spans)
        });
        let requests = opened.inspect_err(|_| {
            // It is given up with the connection else.
            let _ = hub.unregister(region);
        })?;
        let watches: Vec<_> = requests.watches().cloned().collect();
        let timer = Timer::start(watches.clone())?;
        let inner = Inner {
            hub: hub.clone(),
            process,
            context,
            flags: Arc::clone(&requests.flags),
            watches,
            closed: AtomicBool::new(false),
            open: Mutex::new(Some(Open { timer, requests })),
            staged_instead: AtomicU64::new(0),
            probe: Mutex::new(None),
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

    /// Makes memory of the GPU a place for results: finds out how they come there, tries that with a small transfer, and reports
    /// what was tried. With a NIC: as a dma-buf, else through nvidia-peermem, else staging. Memory for NICs is best taken once, in
    /// large pieces at multiples of 64 KiB. What it has stays as it is. It takes one schema of the connection's, the first time.
    ///
    /// # Errors
    /// [`ClientError::NoDirectWay`] where staging is refused and there is nothing else; [`ClientError::NoWay`] where that does not
    /// work, too; [`ClientError::Cuda`]; [`ClientError::GpuClosed`]; those of [`Hub::region`].
    pub fn register(
        &self,
        memory: Arc<DeviceMemory>,
        staging: Staging,
    ) -> Result<GpuRegion, ClientError> {
        self.open_inner()?.choose(memory, staging)
    }

    /// Gives a region up that [`Gpu::register`] has made, also after [`Gpu::close`]. It is of no use afterwards.
    ///
    /// # Errors
    /// As [`Hub::unregister`]; it is registered until the connection ends then.
    pub fn unregister(&self, region: &GpuRegion) -> Result<(), ClientError> {
        let inner = self.inner()?;
        let Some(direct) = region.direct else {
            return Ok(());
        };
        if let Some(open) = &mut *inner.lock() {
            // Requests that have ended hold their places until they are given back.
            let current = inner.context.enter()?;
            if let Some(taken) = open.requests.take(&current, None)? {
                open.requests.give(taken.slot);
            }
        }
        inner.hub.take_in()?;
        inner.hub.unregister(direct.region)
    }

    /// Requests whose results were staged although a NIC could have written them, since their streams had things to do before.
    pub fn staged_instead(&self) -> u64 {
        self.inner.staged_instead.load(Ordering::Relaxed)
    }

    /// Whether this stream has gone on without a result since this was asked last. Does not wait.
    ///
    /// Failures are kept apart for 128 streams; those of further ones are told with the first that is asked for.
    /// Where the driver is older than CUDA 12.0, a stream is known by its handle, which CUDA may give again to a new one.
    ///
    /// # Errors
    /// [`ClientError::NoResult`] for the first one; [`ClientError::GpuClosed`], [`ClientError::Forked`], [`ClientError::Cuda`].
    pub fn check(&self, stream: &Stream) -> Result<(), ClientError> {
        self.open_inner()?.check(stream)
    }

    /// Whether any stream has gone on without a result since that was told last. Does not wait.
    ///
    /// # Errors
    /// [`ClientError::NoResult`] for the earliest one, which then was told; [`ClientError::GpuClosed`], [`ClientError::Forked`].
    pub fn check_all(&self) -> Result<(), ClientError> {
        match self.open_inner()?.flags.failures.take_any() {
            Some(why) => Err(ClientError::NoResult(why)),
            None => Ok(()),
        }
    }

    /// Waits until the stream has done all that it has to do, and asks whether it has its results.
    ///
    /// # Errors
    /// As [`Gpu::check`]. Where it is closed meanwhile, results that had not come are [`StreamFailure::Closed`].
    pub fn synchronize(&self, stream: &Stream) -> Result<(), ClientError> {
        self.open_inner()?.synchronize(stream)
    }

    /// Gives it up for all clones: streams go on without the results that they wait for, and later calls are
    /// [`ClientError::GpuClosed`]. What is being copied is waited for; memory that is pinned is given back, but for few words.
    ///
    /// Where a NIC writes, it may write to the outputs of requests in flight until these have ended. Closing twice is closing once; in
    /// a forked child nothing happens.
    pub fn close(&self) {
        if let Ok(inner) = self.inner() {
            inner.close();
        }
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.inner.is_closed()
    }

    fn inner(&self) -> Result<&Inner<P>, ClientError> {
        // The memory of it is the parent's copy: nothing there is changed by asking.
        match self.inner.process.is_this() {
            true => Ok(&self.inner),
            false => Err(ClientError::Forked),
        }
    }

    fn open_inner(&self) -> Result<&Inner<P>, ClientError> {
        let inner = self.inner()?;
        match self.is_closed() {
            true => Err(ClientError::GpuClosed),
            false => Ok(inner),
        }
    }
}

impl<P: ClientPort + Send + 'static> Inner<P> {
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Open<P>>> {
        // A panic between two statements leaves a slot in use, and no more.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, stream: &Stream) -> Result<(), ClientError> {
        let failures = &self.flags.failures;
        if failures.is_empty() {
            return Ok(());
        }
        let stream = self.context.enter()?.id(stream)?;
        match failures.take(stream) {
            Some(why) => Err(ClientError::NoResult(why)),
            None => Ok(()),
        }
    }

    fn synchronize(&self, stream: &Stream) -> Result<(), ClientError> {
        let began = Instant::now();
        while self.flags.is_waited_for() && began.elapsed() < self.options.poll {
            // A client that has stopped has released its streams.
            if self.hub.take_in().is_err() {
                break;
            }
            spin_loop();
        }
        self.context.enter()?.synchronize(stream)?;
        self.check(stream)
    }

    fn close(&self) {
        // Whoever sends a request finds its watch given up from here on, or has it released here.
        self.closed.store(true, Ordering::Release);
        for watch in &self.watches {
            watch.detach();
        }
        let Some(Open {
            timer,
            mut requests,
        }) = self.lock().take()
        else {
            return;
        };
        drop(timer);
        let settled = self.context.enter().map_err(ClientError::from);
        // Where it fails, CUDA waits for the streams itself when it frees what they use.
        let _ = settled.and_then(|current| requests.settle(&current));
        // The dataplane may still write to the region; it is given up with the connection then.
        let region = requests.region();
        requests.forget();
        let _ = self.hub.take_in();
        let _ = self.hub.unregister(region);
    }
}

impl<P: ClientPort + Send + 'static> Drop for Inner<P> {
    fn drop(&mut self) {
        self.close();
    }
}
