//! Answers in a GPU's memory, in the order of its streams.

use core::ffi::{c_char, c_int, c_void};
use core::ptr;
use core::time::Duration;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::rowmill_client::cuda::{DeviceMemory, Stream};
use ::rowmill_client::{ClientError, GpuOptions, GpuOutput, GpuRegion, Staging};

use crate::abi::{
    ROWMILL_NO_STAGING, rowmill_batch, rowmill_client, rowmill_gpu, rowmill_gpu_options,
    rowmill_request, rowmill_schema,
};
use crate::client::Client;
use crate::error::Error;
use crate::guard::guard;
use crate::handles::{self, find, remove};
use crate::input::{place, read, text};
use crate::requests;
use crate::schema::Schema;

/// A GPU, and the caller's memory of it that is registered.
pub(crate) struct Gpu {
    gpu: ::rowmill_client::Gpu,
    staging: Staging,
    report: String,
    registered: Mutex<Vec<Arc<GpuRegion>>>,
}

/// The client's options for the caller's.
///
/// # Safety
/// The library is NULL or ends with a 0.
unsafe fn options(given: &rowmill_gpu_options) -> Result<(GpuOptions, Staging), Error> {
    let mut options = GpuOptions {
        ordinal: given.ordinal,
        ..GpuOptions::default()
    };
    let staging = match given.flags {
        0 => Staging::Allowed,
        ROWMILL_NO_STAGING => Staging::Refused,
        other => {
            return Err(Error::invalid(format!(
                "options.flags is {other:#x}; give ROWMILL_NO_STAGING or 0"
            )));
        }
    };
    if !given.library.is_null() {
        // SAFETY: as this function's.
        let library = unsafe { text(given.library, "options.library") }?;
        options.library = OsStr::from_bytes(library.as_bytes()).into();
    }
    if given.requests > 0 {
        options.requests = given.requests as usize;
    }
    if given.staging_bytes > 0 {
        options.staging_bytes = given.staging_bytes;
    }
    if given.limit_us > 0 {
        options.limit = Duration::from_micros(given.limit_us);
    }
    Ok((options, staging))
}

impl Gpu {
    fn open(client: &Client, options: GpuOptions, staging: Staging) -> Result<Gpu, Error> {
        let gpu = ::rowmill_client::Gpu::open(&client.hub, options)?;
        let (_, report) = gpu.find_way(staging)?;
        Ok(Gpu {
            gpu,
            staging,
            report: report.join("\n"),
            registered: Mutex::default(),
        })
    }

    fn registered(&self) -> MutexGuard<'_, Vec<Arc<GpuRegion>>> {
        // It is changed in single steps.
        self.registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The registered memory that a range lies in, and where.
    fn place(&self, address: u64, bytes: u64) -> Option<(Arc<GpuRegion>, u64)> {
        let registered = self.registered();
        let mut found = registered.iter();
        found.find_map(|one| Some((Arc::clone(one), one.offset_of(address, bytes)?)))
    }

    /// # Safety
    /// The memory stays allocated until it is unregistered, or the GPU closed.
    unsafe fn register(&self, address: u64, bytes: u64) -> Result<(), Error> {
        // SAFETY: the caller's contract.
        let memory = unsafe { DeviceMemory::foreign(self.gpu.context(), address, bytes) };
        let memory = memory.map_err(ClientError::from)?;
        let region = self.gpu.register(Arc::new(memory), self.staging)?;
        self.registered().push(Arc::new(region));
        Ok(())
    }

    fn unregister(&self, address: u64) -> Result<(), Error> {
        let mut registered = self.registered();
        let found = registered
            .iter()
            .position(|one| one.memory().address() == address);
        let found = found.ok_or_else(|| unknown(address))?;
        let region = Arc::into_inner(registered.swap_remove(found));
        drop(registered);
        match region {
            Some(region) => Ok(self.gpu.unregister(&region)?),
            // Another thread sends a request there at this moment.
            None => Err(Error::invalid(
                "the memory is in use by a call of another thread; it stays registered until the GPU is closed",
            )),
        }
    }
}

/// Opens a GPU as a place for answers of this client, and finds out how they come there: a NIC writes them, or they are copied from
/// pinned memory (staging); rowmill_gpu_report() tells. It takes a region of the client's 16, pinned memory and a thread: open it once.
/// `options` may be NULL. ROWMILL_DEVICE: there is no driver or no such GPU, or staging was ruled out and there is nothing else.
/// Close it with rowmill_gpu_close(), before its CUDA context is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_gpu_open(
    client: *const rowmill_client,
    options: *const rowmill_gpu_options,
    gpu: *mut *mut rowmill_gpu,
) -> c_int {
    guard(|| {
        // SAFETY: the header's rules, here and below.
        let out = unsafe { place(gpu, "gpu") }?;
        out.write(ptr::null_mut());
        let client = find::<Client, _>(client)?;
        let (options, staging) = match options.is_null() {
            true => (GpuOptions::default(), Staging::Allowed),
            // SAFETY: see above.
            false => unsafe { self::options(&read(options, "options")?) }?,
        };
        let opened = Gpu::open(&client, options, staging)?;
        out.write(handles::add(Arc::new(opened))?);
        Ok(())
    })
}

/// Closes a GPU. Streams that wait for answers go on without them; what is being copied is waited for. NULL is taken, and nothing done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_gpu_close(gpu: *mut rowmill_gpu) -> c_int {
    guard(|| {
        if !gpu.is_null() {
            // Calls of other threads may still hold it.
            remove::<Gpu, _>(gpu)?.gpu.close();
        }
        Ok(())
    })
}

/// Tells how answers come to the GPU's memory: the GPU and the driver's library, then what was tried, in order, and what came of
/// it, in UTF-8, a line each. Writes as many of its bytes as have room, and a 0 behind them where `room` is not 0; tells in
/// `bytes`, which may be NULL, how many the whole text has with its 0. With a `room` of 0 `report` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_gpu_report(
    gpu: *const rowmill_gpu,
    report: *mut c_char,
    room: usize,
    bytes: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: the header's rules.
        unsafe { tell(&find::<Gpu, _>(gpu)?.report, report, room, bytes) }
    })
}

/// As rowmill_gpu_report(), of memory that was registered with rowmill_gpu_register() at this address: what was tried for it, and
/// what came of it. ROWMILL_INVALID: none was registered there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_gpu_region_report(
    gpu: *const rowmill_gpu,
    device_memory: *const c_void,
    report: *mut c_char,
    room: usize,
    bytes: *mut usize,
) -> c_int {
    guard(|| {
        let gpu = find::<Gpu, _>(gpu)?;
        let address = device_memory.addr() as u64;
        let registered = gpu.registered();
        let region = registered
            .iter()
            .find(|one| one.memory().address() == address);
        let region = region.ok_or_else(|| unknown(address))?;
        // SAFETY: the header's rules.
        unsafe { tell(&region.report().join("\n"), report, room, bytes) }
    })
}

/// Tells how many answers were copied from pinned memory although a NIC could have written them, since their streams had work before
/// that may use the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_gpu_staged_instead(
    gpu: *const rowmill_gpu,
    count: *mut u64,
) -> c_int {
    guard(|| {
        let gpu = find::<Gpu, _>(gpu)?;
        // SAFETY: the header's rules.
        let out = unsafe { place(count, "count") }?;
        out.write(gpu.gpu.staged_instead());
        Ok(())
    })
}

/// Writes as much of a text as has room, and how long it is.
///
/// # Safety
/// `to` is NULL or has `room` writable bytes; `bytes` is NULL or a place.
unsafe fn tell(text: &str, to: *mut c_char, room: usize, bytes: *mut usize) -> Result<(), Error> {
    let whole = text.as_bytes();
    if room > 0 {
        // SAFETY: as this function's.
        unsafe { place(to, "report") }?;
        let part = whole.len().min(room - 1);
        // SAFETY: there is room for `room` bytes, which is more than `part`.
        unsafe {
            ptr::copy_nonoverlapping(whole.as_ptr().cast(), to, part);
            to.add(part).write(0);
        }
    }
    if !bytes.is_null() {
        // SAFETY: as this function's.
        unsafe { place(bytes, "bytes") }?.write(whole.len() + 1);
    }
    Ok(())
}

fn unknown(address: u64) -> Error {
    Error::invalid(format!(
        "no memory was registered at {address:#x}; give the address that it was registered with"
    ))
}

/// Registers memory of the GPU for answers, so that a NIC can write to it where there is one that can: answers to requests whose memory
/// lies in it come that way, and to other memory by copies. What it holds stays as it is. Memory for NICs is best taken once, in
/// large pieces at multiples of 64 KiB. It has to stay allocated until rowmill_gpu_unregister() or rowmill_gpu_close().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_gpu_register(
    gpu: *const rowmill_gpu,
    device_memory: *mut c_void,
    bytes: u64,
) -> c_int {
    guard(|| {
        let gpu = find::<Gpu, _>(gpu)?;
        // SAFETY: the header's rules.
        unsafe { gpu.register(device_memory.addr() as u64, bytes) }
    })
}

/// Gives memory up that was registered at this address. ROWMILL_INVALID: a request is in flight that is answered there; it stays
/// registered until the GPU is closed then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_gpu_unregister(
    gpu: *const rowmill_gpu,
    device_memory: *mut c_void,
) -> c_int {
    guard(|| find::<Gpu, _>(gpu)?.unregister(device_memory.addr() as u64))
}

/// Sends a request of the GPU's client whose answer is to lie in the GPU's memory, for a stream: between what the stream has to do before
/// and what it is given to do after. Returns when that is queued; there is no ticket, and nothing to wait for.
///
/// `device_memory` is a CUdeviceptr, or what cudaMalloc() gave, of at least rowmill_answer_bytes() `bytes`; it has to stay allocated
/// until the stream has come to the answer. `stream` is a CUstream or cudaStream_t of this GPU, which is believed; NULL is the legacy
/// default stream. `request` may be NULL.
///
/// A stream goes on also where there is no answer: the request was refused, its time is over, the dataplane is gone. There are
/// NaNs in its place then, and the next call of this or of rowmill_gpu_synchronize() for that stream, or of rowmill_gpu_check(), returns
/// ROWMILL_DEVICE; the request of that call is not sent. CUDA's own calls that wait for a stream tell nothing of it.
///
/// ROWMILL_AGAIN: too many answers are on their way; or a NIC is to write the answer, staging was ruled out, and the stream has work
/// before that may use the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_submit_on_stream(
    gpu: *const rowmill_gpu,
    schema: *const rowmill_schema,
    batch: *const rowmill_batch,
    device_memory: *mut c_void,
    bytes: u64,
    stream: *mut c_void,
    request: *const rowmill_request,
) -> c_int {
    guard(|| {
        let gpu = find::<Gpu, _>(gpu)?;
        let schema = find::<Schema, _>(schema)?;
        // SAFETY: the header's rules, here and below.
        let batch = unsafe { read(batch, "batch") }?;
        let (options, wait) = match request.is_null() {
            true => Default::default(),
            // SAFETY: see above.
            false => requests::options(&unsafe { read(request, "request") }?)?,
        };
        if !wait.is_zero() {
            return Err(Error::invalid(
                "request.wait_us is set, but a request for a stream waits for nothing; set it to 0 and try again when told ROWMILL_AGAIN",
            ));
        }
        // SAFETY: see above. The arrays are not used when the call has returned.
        let arrays = unsafe { requests::Arrays::of(&batch) }?;
        let address = device_memory.addr() as u64;
        if let Some(needed) = schema.answer_bytes(batch.bags)
            && needed > bytes
        {
            return Err(ClientError::TargetTooSmall { needed, bytes }.into());
        }
        // SAFETY: see above.
        let stream = unsafe { Stream::foreign(gpu.gpu.context(), stream) };
        let submit = |to: GpuOutput<'_>| {
            let view = arrays.view();
            gpu.gpu.submit(&schema.bound, &view, to, &stream, &options)
        };
        match gpu.place(address, bytes) {
            Some((region, offset)) => Ok(submit((&*region, offset).into())?),
            None if gpu.staging == Staging::Refused => Err(Error::invalid(
                "the memory is not registered, so that no NIC can write there, and staging was ruled out; register it with \
                 rowmill_gpu_register(), or open the GPU without ROWMILL_NO_STAGING",
            )),
            None => {
                // SAFETY: see above: what is queued when the call has returned uses the address only.
                let memory = unsafe { DeviceMemory::foreign(gpu.gpu.context(), address, bytes) };
                let memory = memory.map_err(ClientError::from)?;
                Ok(submit((&GpuRegion::staged(Arc::new(memory)), 0).into())?)
            }
        }
    })
}

/// Asks whether any stream has gone on without its answer since that was told last: ROWMILL_DEVICE then, and rowmill_error_text() has
/// the reason of the earliest one. Does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_gpu_check(gpu: *const rowmill_gpu) -> c_int {
    guard(|| Ok(find::<Gpu, _>(gpu)?.gpu.check_all()?))
}

/// Waits until a stream has done all that it has to do, and asks whether it has its answers: ROWMILL_DEVICE where not. Another thread's
/// rowmill_gpu_close() ends the wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_gpu_synchronize(
    gpu: *const rowmill_gpu,
    stream: *mut c_void,
) -> c_int {
    guard(|| {
        let gpu = find::<Gpu, _>(gpu)?;
        // SAFETY: the header's rules.
        let stream = unsafe { Stream::foreign(gpu.gpu.context(), stream) };
        Ok(gpu.gpu.synchronize(&stream)?)
    })
}
