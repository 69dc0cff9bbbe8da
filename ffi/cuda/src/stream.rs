//! Streams and events: work that a GPU does in order, and marks in it.

use core::ffi::c_void;
use core::ptr;

use crate::context::{Context, Current};
use crate::error::Error;
use crate::memory::{DeviceMemory, Pinned, Words};
use crate::sys::{
    CAPTURE_NONE, EVENT_DEFAULT, EVENT_DISABLE_TIMING, NOT_READY, RawEvent, RawStream,
    STREAM_LEGACY, STREAM_NON_BLOCKING, WAIT_VALUE_FLUSH, WAIT_VALUE_GEQ,
};

/// A stream.
#[derive(Debug)]
pub struct Stream {
    raw: RawStream,
    context: Context,
    owned: bool,
}

// SAFETY: streams may be used by all threads; the driver locks.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream that neither waits for the legacy default stream nor makes it wait.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn new(context: &Context) -> Result<Stream, Error> {
        let current = context.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the driver writes the handle.
        current.check("cuStreamCreate", unsafe {
            (current.functions().cuStreamCreate)(&mut raw, STREAM_NON_BLOCKING)
        })?;
        Ok(Stream {
            raw,
            context: context.clone(),
            owned: true,
        })
    }

    /// The legacy default stream, for which all streams wait that were not made otherwise.
    pub fn legacy(context: &Context) -> Stream {
        Stream {
            raw: ptr::null_mut(),
            context: context.clone(),
            owned: false,
        }
    }

    /// A stream of somebody else's: a `cudaStream_t` or `CUstream`, which are the same.
    ///
    /// # Safety
    /// It must be a stream of this context, or one of CUDA's constants for default streams, and exist for as long as the value.
    pub unsafe fn foreign(context: &Context, raw: *mut c_void) -> Stream {
        Stream {
            raw,
            context: context.clone(),
            owned: false,
        }
    }

    /// Its handle, for others that use CUDA.
    pub fn as_raw(&self) -> *mut c_void {
        self.raw
    }

    /// Its context.
    pub fn context(&self) -> &Context {
        &self.context
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: made by `new` and destroyed once. What it still has to do is done before it is freed.
            self.context.at_end("cuStreamDestroy", |current| unsafe {
                (current.functions().cuStreamDestroy_v2)(self.raw)
            });
        }
    }
}

/// Which stream it is, in its process. Those of streams are different, but where the driver is older than CUDA 12.0: there a new
/// stream may have that of one that was destroyed, and a thread's default stream has that of other threads'.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamId(u64);

/// A mark in a stream.
#[derive(Debug)]
pub struct Event {
    raw: RawEvent,
    context: Context,
}

// SAFETY: events may be used by all threads; the driver locks.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event that was not recorded, which counts as reached.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn new(context: &Context) -> Result<Event, Error> {
        Event::with(context, EVENT_DISABLE_TIMING)
    }

    /// An event that also keeps the time; see [`Current::elapsed_ms`].
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn timed(context: &Context) -> Result<Event, Error> {
        Event::with(context, EVENT_DEFAULT)
    }

    fn with(context: &Context, flags: u32) -> Result<Event, Error> {
        let current = context.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the driver writes the handle.
        current.check("cuEventCreate", unsafe {
            (current.functions().cuEventCreate)(&mut raw, flags)
        })?;
        Ok(Event {
            raw,
            context: context.clone(),
        })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by `with` and destroyed once. Streams that wait for it go on waiting.
        self.context.at_end("cuEventDestroy", |current| unsafe {
            (current.functions().cuEventDestroy_v2)(self.raw)
        });
    }
}

/// Whether a stream that has seen its word makes what other devices wrote visible to what comes after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// No: nothing was written by others, or their writes are ordered for the GPU
    /// ([`Attribute::GPU_DIRECT_RDMA_ORDERING`](crate::Attribute::GPU_DIRECT_RDMA_ORDERING)).
    No,
    /// Yes; the device has to say that it can
    /// ([`Attribute::CAN_FLUSH_REMOTE_WRITES`](crate::Attribute::CAN_FLUSH_REMOTE_WRITES)).
    RemoteWrites,
}

/// Work for streams. None of it waits but what says so.
impl Current<'_> {
    /// Marks what the stream has to do so far.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn record(&self, event: &Event, stream: &Stream) -> Result<(), Error> {
        // SAFETY: both handles live.
        self.check("cuEventRecord", unsafe {
            (self.functions().cuEventRecord)(event.raw, stream.raw)
        })
    }

    /// Lets the stream's later work wait for the event as it was recorded last.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn wait_event(&self, stream: &Stream, event: &Event) -> Result<(), Error> {
        // SAFETY: both handles live.
        self.check("cuStreamWaitEvent", unsafe {
            (self.functions().cuStreamWaitEvent)(stream.raw, event.raw, 0)
        })
    }

    /// Lets the stream's later work wait until a word has reached `value`, counting round: until `(word - value) as i32 >= 0`.
    ///
    /// CUDA knows nothing of what sets the word. Until it is set, calls of other threads can wait for the stream, with the
    /// driver's lock held (`cuMemFree` does). So who sets it must make no call of CUDA before.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Call`].
    ///
    /// # Panics
    /// If there is no such word.
    pub fn wait_word(
        &self,
        stream: &Stream,
        words: &Words,
        word: usize,
        value: u32,
        flush: Flush,
    ) -> Result<(), Error> {
        let flags = match flush {
            Flush::No => WAIT_VALUE_GEQ,
            Flush::RemoteWrites => WAIT_VALUE_GEQ | WAIT_VALUE_FLUSH,
        };
        let address = words.device_address(word);
        let wait = self.functions().cuStreamWaitValue32_v2;
        let wait = wait.ok_or(Error::Missing {
            symbol: "cuStreamWaitValue32_v2",
            what: "no stream can wait for an answer",
        })?;
        // SAFETY: the stream lives. The word is pinned while `words` lives, which waits for the context before it goes.
        self.check("cuStreamWaitValue32", unsafe {
            wait(stream.raw, address, value, flags)
        })
    }

    /// Copies `bytes` from pinned memory to a GPU's, in the stream's order.
    ///
    /// The stream reads the source when it comes to that; what is there by then is what is copied.
    ///
    /// # Errors
    /// [`Error::Call`].
    ///
    /// # Panics
    /// If the range lies outside of one of them.
    pub fn copy_in<T: Send + 'static>(
        &self,
        stream: &Stream,
        (to, to_offset): (&DeviceMemory, u64),
        (from, from_offset): (&Pinned<T>, u64),
        bytes: u64,
    ) -> Result<(), Error> {
        let to = to.place(to_offset, bytes);
        let from = from.place(from_offset, bytes);
        // SAFETY: both ranges were checked. The device only reads the host's memory, so whatever happens to that meanwhile, no
        // memory of Rust's is written.
        self.check("cuMemcpyHtoDAsync", unsafe {
            (self.functions().cuMemcpyHtoDAsync_v2)(to, from.cast(), bytes as usize, stream.raw)
        })
    }

    /// Copies `bytes` from a GPU's memory to a GPU's, in the stream's order.
    ///
    /// # Errors
    /// [`Error::Call`].
    ///
    /// # Panics
    /// If the range lies outside of one of them.
    pub fn copy_between(
        &self,
        stream: &Stream,
        (to, to_offset): (&DeviceMemory, u64),
        (from, from_offset): (&DeviceMemory, u64),
        bytes: u64,
    ) -> Result<(), Error> {
        let to = to.place(to_offset, bytes);
        let from = from.place(from_offset, bytes);
        // SAFETY: both ranges were checked; it is no memory of the host's.
        self.check("cuMemcpyDtoDAsync", unsafe {
            (self.functions().cuMemcpyDtoDAsync_v2)(to, from, bytes as usize, stream.raw)
        })
    }

    /// Waits until the stream has done all that it has to do.
    ///
    /// # Errors
    /// [`Error::Call`]; also for what failed in the stream before.
    pub fn synchronize(&self, stream: &Stream) -> Result<(), Error> {
        // SAFETY: the handle lives.
        self.check("cuStreamSynchronize", unsafe {
            (self.functions().cuStreamSynchronize)(stream.raw)
        })
    }

    /// Whether the stream has done all that it has to do.
    ///
    /// # Errors
    /// [`Error::Call`]; also for what failed in the stream before.
    pub fn is_idle(&self, stream: &Stream) -> Result<bool, Error> {
        // SAFETY: the handle lives.
        let code = unsafe { (self.functions().cuStreamQuery)(stream.raw) };
        match code {
            NOT_READY => Ok(false),
            code => self.check("cuStreamQuery", code).map(|()| true),
        }
    }

    /// Waits until the event is reached.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn wait_until(&self, event: &Event) -> Result<(), Error> {
        // SAFETY: the handle lives.
        self.check("cuEventSynchronize", unsafe {
            (self.functions().cuEventSynchronize)(event.raw)
        })
    }

    /// Whether the event is reached, as it was recorded last.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn is_reached(&self, event: &Event) -> Result<bool, Error> {
        // SAFETY: the handle lives.
        let code = unsafe { (self.functions().cuEventQuery)(event.raw) };
        match code {
            NOT_READY => Ok(false),
            code => self.check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Milliseconds between two timed events that are reached.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn elapsed_ms(&self, from: &Event, to: &Event) -> Result<f32, Error> {
        let mut elapsed = 0.0;
        // SAFETY: the driver writes a float; both handles live.
        self.check("cuEventElapsedTime", unsafe {
            (self.functions().cuEventElapsedTime)(&mut elapsed, from.raw, to.raw)
        })?;
        Ok(elapsed)
    }

    /// Which stream it is, whatever handle it was given by.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn id(&self, stream: &Stream) -> Result<StreamId, Error> {
        let Some(id_of) = self.functions().cuStreamGetId else {
            // Both handles are the legacy default stream's.
            return Ok(StreamId(match stream.raw.addr() {
                0 => STREAM_LEGACY,
                handle => handle as u64,
            }));
        };
        let mut id = 0;
        // SAFETY: the driver writes an unsigned long long; the handle lives.
        self.check("cuStreamGetId", unsafe { id_of(stream.raw, &mut id) })?;
        Ok(StreamId(id))
    }

    /// Refuses a stream that is being captured into a graph. Where the driver can't tell, it is taken not to be.
    ///
    /// # Errors
    /// [`Error::Capturing`]; [`Error::Call`], as for the legacy default stream while another is captured.
    pub fn check_not_capturing(&self, stream: &Stream) -> Result<(), Error> {
        let Some(is_capturing) = self.functions().cuStreamIsCapturing else {
            return Ok(());
        };
        let mut status = CAPTURE_NONE;
        // SAFETY: the driver writes an enum's number; the handle lives.
        self.check("cuStreamIsCapturing", unsafe {
            is_capturing(stream.raw, &mut status)
        })?;
        match status {
            CAPTURE_NONE => Ok(()),
            _ => Err(Error::Capturing),
        }
    }
}
