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
mod peer;
mod probe;
mod requests;
mod spans;

mod timer;
mod watch;

use core::hint::spin_loop;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rowmill_cuda::{Context, Current, Device, DeviceMemory, Driver, LIBRARY, Stream};
use rowmill_port::{ClientPort, Process};
use rowmill_wire::SplitRule;
use rowmill_wire::limits::{MAX_LANES, MAX_SLICES};

pub use self::choose::{GpuRegion, Staging, Way};
pub use self::error::StreamFailure;

use self::choose::{Direct, PEER_MEMORY};
use self::requests::{Requests, Taken};
use self::spans::Span;
use self::timer::Timer;
use self::watch::Flags;
use crate::error::ClientError;
use crate::hub::{Hub, Ids, InParent, Place};
use crate::options::RequestOptions;
use crate::ports::AnyPort;
use crate::schema::BoundSchema;
use crate::session::within;

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
    /// In about how many pieces a result is copied, while the dataplane's workers go on; at least one for each of them. The
    /// default is 16: queueing one takes a few microseconds.
    pub pieces: u32,
    /// Fewest bytes of a piece, about. The default of 64 KiB takes some 3 us on a PCIe 4.0 link, as long as it takes to begin a copy.
    pub piece_bytes: u64,
    /// After how long a stream goes on without an answer. The default is 10 s.
    pub limit: Duration,
    /// How long [`Gpu::synchronize`] takes answers in itself, which spares the hub's thread to be woken for them, before it sleeps
    /// in the driver. The default is 1 ms.
    pub poll: Duration,
    /// Files any of which is there where nvidia-peermem is loaded. The default are those that its versions make.
    pub peer_memory_files: Vec<PathBuf>,
}

impl Default for GpuOptions {
    fn default() -> GpuOptions {
        GpuOptions {
            library: std::env::var_os(LIBRARY_VARIABLE).unwrap_or_else(|| LIBRARY.into()),
            ordinal: 0,
            staging_bytes: 64 << 20,
            requests: 16,
            pieces: 16,
            piece_bytes: 64 << 10,
            limit: Duration::from_secs(10),
            poll: Duration::from_millis(1),
            peer_memory_files: PEER_MEMORY.iter().map(PathBuf::from).collect(),
        }
    }
}

/// Where a result is to lie.
#[derive(Clone, Copy, Debug)]
pub struct GpuOutput<'a> {
    /// In which memory.
    pub region: &'a GpuRegion,
    /// From which byte on.
    pub offset: u64,
    /// That nothing uses the range any more which streams were given to do before, as the caller knows. Otherwise a NIC can't write
    /// there before the stream is idle, since NICs don't wait for streams.
    pub is_free: bool,
}

impl<'a> From<(&'a GpuRegion, u64)> for GpuOutput<'a> {
    /// Of which it is not known that it is free.
    fn from((region, offset): (&'a GpuRegion, u64)) -> GpuOutput<'a> {
        GpuOutput {
            region,
            offset,
            is_free: false,
        }
    }
}

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
/// next [`Gpu::check`], [`Gpu::synchronize`] or [`Gpu::submit`] fails. CUDA's own calls that wait for a stream tell nothing of it.
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
    requests: Mutex<Requests<P>>,
    /// Requests that were staged, but for which a NIC could have written.
    staged_instead: AtomicU64,
    /// What memory is tried with; see `probe.rs`.
    probe: Mutex<Option<BoundSchema>>,
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
            requests: Mutex::new(staging),
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
    /// large pieces at multiples of 64 KiB. What it has stays as it is.
    ///
    /// # Errors
    /// [`ClientError::NoDirectWay`] where staging is refused and there is nothing else; [`ClientError::Cuda`]; those of
    /// [`Hub::region`], [`Hub::bind`].
    pub fn register(
        &self,
        memory: Arc<DeviceMemory>,
        staging: Staging,
    ) -> Result<GpuRegion, ClientError> {
        self.inner()?.choose(memory, staging)
    }

    /// Gives a region up that [`Gpu::register`] has made.
    ///
    /// # Errors
    /// As [`Hub::unregister`]; it is registered until the connection ends then.
    pub fn unregister(&self, region: GpuRegion) -> Result<(), ClientError> {
        let inner = self.inner()?;
        let Some(direct) = region.direct else {
            return Ok(());
        };
        // Requests that have ended hold their places until they are given back.
        let current = inner.context.enter()?;
        let mut requests = inner.requests();
        if let Some(taken) = requests.take(&current, None)? {
            requests.give(taken.slot);
        }
        inner.hub.take_in()?;
        inner.hub.unregister(direct.region)
    }

    /// Sends a request whose result is to lie in a GPU's memory: for the stream, between what it has to do before and what it is given
    /// to do after. Returns when that is queued.
    ///
    /// The output must stay allocated until the stream has come to the result. It is not to be written to meanwhile, and what is read
    /// of it in other streams is not waited for. Where a NIC writes there and the stream has things to do, which may use it, the
    /// result is staged, or refused, as the region was registered; see [`GpuOutput::is_free`].
    ///
    /// How finely a result is sliced that is staged is chosen here. Where vectors don't lie in rows, one bag's behind the other's, it
    /// is copied in one piece, and so is what lies between the vectors.
    ///
    /// # Errors
    /// Those of [`Gpu::check`], of the requests before. [`ClientError::ResultsHeld`] where too many results are on their way;
    /// [`ClientError::TooLarge`] where one takes more than all staging; [`ClientError::OutputInUse`];
    /// [`ClientError::TargetTooSmall`], [`ClientError::TargetMisaligned`]; those of [`Hub::submit`].
    /// [`ClientError::Cuda`] where the stream is being captured, or CUDA fails; the request may have been sent then, and the
    /// stream not wait for it.
    pub fn submit<'a, 'b>(
        &self,
        schema: &BoundSchema,
        ids: impl Into<Ids<'a>>,
        to: impl Into<GpuOutput<'b>>,
        stream: &Stream,
        options: &RequestOptions,
    ) -> Result<(), ClientError> {
        let inner = self.inner()?;
        self.check()?;
        let (ids, to) = (ids.into(), to.into());
        inner.hub.check(schema, ids)?;
        let needed = schema.target_bytes(ids.bags() as u32);
        let (memory, offset) = (to.region.memory(), to.offset);
        let (bytes, element) = (memory.len().saturating_sub(offset), schema.element_bytes());
        if needed > bytes {
            return Err(ClientError::TargetTooSmall { needed, bytes });
        }
        if !(memory.address() + offset).is_multiple_of(element) {
            return Err(ClientError::TargetMisaligned { offset, element });
        }
        let current = inner.context.enter()?;
        current.check_not_capturing(stream)?;
        if let Some(direct) = to.region.direct {
            if to.is_free || current.is_idle(stream)? {
                return inner.send_direct(schema, ids, (direct, offset), stream, options);
            }
            if !to.region.may_stage() {
                return Err(ClientError::OutputInUse);
            }
            inner.staged_instead.fetch_add(1, Ordering::Relaxed);
        }
        inner.send_staged(schema, ids, (memory, offset), stream, options)
    }

    /// Requests whose results were staged although a NIC could have written them, since their streams had things to do before.
    pub fn staged_instead(&self) -> u64 {
        self.inner.staged_instead.load(Ordering::Relaxed)
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
        let began = Instant::now();
        while inner.flags.is_waited_for() && began.elapsed() < inner.options.poll {
            // A client that has stopped has released its streams.
            if inner.hub.take_in().is_err() {
                break;
            }
            spin_loop();
        }
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
    fn requests(&self) -> MutexGuard<'_, Requests<P>> {
        // A panic between two statements leaves a slot in use, and no more.
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(
        &self,
        requests: &mut Requests<P>,
        current: &Current<'_>,
        needed: u64,
        staged: bool,
    ) -> Result<Taken, ClientError> {
        let taken = requests.take(current, staged.then_some(needed))?;
        let held = requests.taken();
        let taken = taken.ok_or(ClientError::ResultsHeld { needed, held })?;
        if requests.dropped {
            let taken_in = self.hub.take_in();
            taken_in.inspect_err(|_| requests.give(taken.slot))?;
            requests.dropped = false;
        }
        Ok(taken)
    }

    /// Sends a request whose result is staged, and queues its copies.
    fn send_staged(
        &self,
        schema: &BoundSchema,
        ids: Ids<'_>,
        to: (&DeviceMemory, u64),
        stream: &Stream,
        options: &RequestOptions,
    ) -> Result<(), ClientError> {
        let bags = ids.bags() as u32;
        let needed = schema.target_bytes(bags);
        let (most, advice) = (
            self.options.staging_bytes,
            "open the GPU with more staging_bytes",
        );
        within("bytes of a result that is staged", needed, most, advice)?;
        let current = self.context.enter()?;
        let mut requests = self.requests();
        let taken = self.take(&mut requests, &current, needed, true)?;
        let place = Place::At(requests.region(), taken.place.expect("it is staged"));
        let welcome = self.hub.welcome();
        let lanes = welcome.split.lanes.min(MAX_LANES);
        let rule = SplitRule {
            lanes,
            ..welcome.split
        };
        let row = spans::row_bytes(schema);
        let (pieces, least) = (self.options.pieces, self.options.piece_bytes);
        let most = MAX_SLICES.min(welcome.completions);
        let slice_bags = spans::slice_bags(row, bags, rule, pieces, most, least);
        let options = RequestOptions {
            slice_bags,
            ..*options
        };
        self.send(
            &mut requests,
            taken.slot,
            schema,
            ids,
            place,
            &options,
            |out| {
                spans::spans(row, bags, needed, rule, slice_bags, out);
            },
        )?;
        requests.queue(&current, taken.slot, to, stream)
    }

    /// Sends a request whose result a NIC writes, and lets the stream wait for its end.
    fn send_direct(
        &self,
        schema: &BoundSchema,
        ids: Ids<'_>,
        (direct, offset): (Direct, u64),
        stream: &Stream,
        options: &RequestOptions,
    ) -> Result<(), ClientError> {
        let bags = ids.bags() as u32;
        let needed = schema.target_bytes(bags);
        let current = self.context.enter()?;
        let mut requests = self.requests();
        let taken = self.take(&mut requests, &current, needed, false)?;
        let place = Place::At(direct.region, offset);
        self.send(
            &mut requests,
            taken.slot,
            schema,
            ids,
            place,
            options,
            |out| {
                spans::spans(None, bags, needed, self.hub.welcome().split, 0, out);
            },
        )?;
        requests.queue_direct(&current, taken.slot, stream, direct.flush)
    }

    /// Sends a request in a slot, with the pieces that `fill` gives; the slot is given back where it can't be sent.
    #[expect(clippy::too_many_arguments, reason = "a request's parts")]
    fn send(
        &self,
        requests: &mut Requests<P>,
        slot: usize,
        schema: &BoundSchema,
        ids: Ids<'_>,
        place: Place,
        options: &RequestOptions,
        fill: impl FnOnce(&mut Vec<Span>),
    ) -> Result<(), ClientError> {
        let (watch, serial) = requests.begin(slot, fill);
        match self.hub.submit_watched(schema, ids, place, options, watch) {
            Ok(pending) => requests.keep(slot, pending),
            Err(error) => {
                requests.give(slot);
                return Err(error);
            }
        }
        let own = options.remaining.map(|remaining| remaining + GRACE);
        let limit = own.unwrap_or(self.options.limit).min(self.options.limit);
        self.timer.limit(slot, serial, limit);
        Ok(())
    }
}

impl<P: ClientPort + Send + 'static> Drop for Inner<P> {
    fn drop(&mut self) {
        let requests = self.requests.get_mut();
        let requests = requests.unwrap_or_else(PoisonError::into_inner);
        for watch in requests.watches() {
            watch.detach();
        }
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
