//! Completion queues and the channel that wakes who waits for them.

use core::ffi::c_int;
use core::mem;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::device::Context;
use crate::error::{Call, Error};
use crate::health::Health;
use crate::limits::Limits;
use crate::live;
use crate::status::Status;
use crate::sys;
use crate::work_id::WorkId;

/// Completions that one call takes out at most: enough to make a call cheap, few enough for the cache.
const POLLED: usize = 64;

/// A work completion: what became of a work request.
#[repr(transparent)]
pub struct Completion(sys::ibv_wc);

impl Completion {
    /// What the request was.
    pub fn id(&self) -> WorkId {
        WorkId::from_raw(self.0.wr_id)
    }

    /// How it ended.
    pub fn status(&self) -> Status {
        Status::from_raw(self.0.status)
    }

    /// The number of the queue pair.
    pub fn queue_pair(&self) -> u32 {
        self.0.qp_num
    }

    /// The vendor's code beside a status that is no success.
    pub fn vendor_code(&self) -> u32 {
        self.0.vendor_err
    }

    /// Bytes that a receive got, by SEND or by WRITE with immediate; `None` after failure.
    pub fn bytes(&self) -> Option<u32> {
        self.succeeded().then_some(self.0.byte_len)
    }

    /// The immediate that came with it, in the order of this machine; `None` without one or after failure.
    pub fn immediate(&self) -> Option<u32> {
        let with = self.succeeded() && self.0.wc_flags & sys::ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
        // SAFETY: both variants are a u32, and the flag says which one it is. Verbs have it in network order.
        with.then(|| u32::from_be(unsafe { self.0.imm_data_invalidated_rkey_union.imm_data }))
    }

    /// The failure as an error, for showing; `Ok` after success.
    pub fn result(&self) -> Result<(), Error> {
        match self.status() {
            Status::Success => Ok(()),
            status => Err(Error::Completion {
                status,
                vendor: self.vendor_code(),
                qp: self.queue_pair(),
            }),
        }
    }

    fn succeeded(&self) -> bool {
        self.status() == Status::Success
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} on queue pair {}: {}",
            self.id(),
            self.queue_pair(),
            self.status()
        )
    }
}

/// Tells one completion queue from another, also in events of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CompletionQueueId(u64);

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A completion queue, polled by one thread at a time.
///
/// What a poll returns is to be looked at before the next one:
///
/// ```compile_fail,E0499
/// use rowmill_verbs::{CompletionQueue, Error};
/// fn two(queue: &mut CompletionQueue) -> Result<usize, Error> {
///     let first = queue.poll()?;
///     let second = queue.poll()?;
///     Ok(first.len() + second.len())
/// }
/// ```
/// ```
/// use rowmill_verbs::{CompletionQueue, Error};
/// fn two(queue: &mut CompletionQueue) -> Result<usize, Error> {
///     let first = queue.poll()?.len();
///     let second = queue.poll()?.len();
///     Ok(first + second)
/// }
/// ```
pub struct CompletionQueue {
    handle: CompletionQueueHandle,
    polled: Box<[sys::ibv_wc; POLLED]>,
}

/// A completion queue to whoever makes queue pairs for it, on whatever thread. Cloning it is cheap.
#[derive(Clone)]
pub struct CompletionQueueHandle {
    inner: Arc<Inner>,
}

struct Inner {
    raw: NonNull<sys::ibv_cq>,
    id: CompletionQueueId,
    capacity: u32,
    // Of the capacity, what queue pairs have been promised.
    promised: AtomicU32,
    // Of what is promised, what destroyed queue pairs may have left in the queue.
    stale: AtomicU32,
    health: Arc<Health>,
    // The channel, if any, outlives the queue.
    _channel: Option<CompletionChannel>,
    context: Context,
}

// SAFETY: libibverbs allows calls on one completion queue from any thread at the same time.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl CompletionQueue {
    /// A queue with room for at least `capacity` completions, whose events, once asked for, go to `channel`.
    ///
    /// # Errors
    /// [`Error::Limit`] where the device has no such large ones; a failed call.
    ///
    /// # Panics
    /// If the channel is another device's.
    pub fn new(
        context: &Context,
        capacity: u32,
        channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue, Error> {
        let granted = context.limits().completions;
        Limits::check("completions of a queue", capacity.into(), granted.into())?;
        let asked = c_int::try_from(capacity.max(1)).unwrap_or(c_int::MAX);
        let id = CompletionQueueId(NEXT_ID.fetch_add(1, Ordering::Relaxed));
        let channel_raw = channel.map_or(ptr::null_mut(), |channel| {
            assert_eq!(channel.inner.context.raw(), context.raw(), "one device");
            channel.inner.raw.as_ptr()
        });
        // SAFETY: context and channel are valid; the queue's own word is a number and no pointer.
        let raw = sys::pointer(Call::CreateCq, unsafe {
            let word = ptr::without_provenance_mut(id.0 as usize);
            sys::ibv_create_cq(context.raw(), asked, word, channel_raw, 0)
        })
        .map_err(|error| error.context(format!("{capacity} completions")))?;
        // SAFETY: the queue was just made.
        let granted = u32::try_from(unsafe { raw.as_ref().cqe }).unwrap_or(0);
        live::COMPLETION_QUEUES.made();
        let inner = Arc::new(Inner {
            raw,
            id,
            capacity: granted,
            promised: AtomicU32::new(0),
            stale: AtomicU32::new(0),
            health: context.registry().enter(raw.as_ptr() as u64),
            _channel: channel.cloned(),
            context: context.clone(),
        });
        Limits::check("completions of a queue", capacity.into(), granted.into())?;
        tracing::debug!(asked = capacity, granted, "completion queue");
        // SAFETY: completions are plain numbers, for which zero is valid.
        let polled = Box::new(unsafe { mem::zeroed::<[sys::ibv_wc; POLLED]>() });
        let handle = CompletionQueueHandle { inner };
        Ok(CompletionQueue { handle, polled })
    }

    /// The completions that have come, at most 64; none at all if there are none yet.
    ///
    /// # Errors
    /// A failed call: the queue is broken.
    #[inline]
    pub fn poll(&mut self) -> Result<&[Completion], Error> {
        // Read before the poll: what a queue pair that is destroyed meanwhile has left may not be seen by it.
        let stale = self.handle.inner.stale.load(Ordering::Acquire);
        // SAFETY: the queue is valid and `polled` has room for as many completions as the call is told.
        let found = unsafe {
            let raw = self.handle.raw();
            sys::ibv_poll_cq(raw, POLLED as c_int, self.polled.as_mut_ptr())
        };
        let Ok(found) = usize::try_from(found) else {
            return Err(Error::call(Call::PollCq, io::Error::last_os_error()));
        };
        if stale > 0 && found < POLLED {
            // The queue was empty for a moment, so nothing of them is in it any more.
            self.handle.inner.stale.fetch_sub(stale, Ordering::Relaxed);
            self.handle.release(stale);
        }
        // SAFETY: `Completion` has the layout of `ibv_wc`; the first `found` were just written, and
        // the slice borrows the queue mutably, so that they stay until the next poll.
        Ok(unsafe { core::slice::from_raw_parts(self.polled.as_ptr().cast(), found) })
    }

    /// Asks for one event on the channel with the next completion. Poll once more afterwards, before waiting:
    /// what came in between rings no bell.
    ///
    /// # Errors
    /// A failed call.
    pub fn arm(&mut self) -> Result<(), Error> {
        // SAFETY: the queue is valid.
        sys::check(Call::ReqNotifyCq, unsafe {
            sys::ibv_req_notify_cq(self.handle.raw(), 0)
        })
    }

    /// What makes queue pairs for it.
    pub fn handle(&self) -> &CompletionQueueHandle {
        &self.handle
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt(f)
    }
}

impl CompletionQueueHandle {
    /// Tells it from others, also in events of its channel.
    pub fn id(&self) -> CompletionQueueId {
        self.inner.id
    }

    /// Completions that it can hold.
    pub fn capacity(&self) -> u32 {
        self.inner.capacity
    }

    /// Of these, what is left for queue pairs to come. Each takes as many as it can have requests posted, signalled or
    /// not, since in an error all of them complete; a queue that runs over is lost with all its queue pairs.
    pub fn left(&self) -> u32 {
        self.inner.capacity - self.inner.promised.load(Ordering::Relaxed)
    }

    /// What the device said of it.
    pub fn health(&self) -> &Arc<Health> {
        &self.inner.health
    }

    /// The device.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_cq {
        self.inner.raw.as_ptr()
    }

    /// Sets `count` completions apart.
    pub(crate) fn promise(&self, count: u32) -> Result<(), Error> {
        let room = |promised: u32| {
            promised
                .checked_add(count)
                .filter(|&n| n <= self.capacity())
        };
        let promised = &self.inner.promised;
        match promised.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room) {
            Ok(_) => Ok(()),
            Err(promised) => Err(Error::Limit {
                what: "completions left in a queue",
                asked: count.into(),
                granted: (self.capacity() - promised).into(),
            }),
        }
    }

    /// Gives back what was set apart.
    pub(crate) fn release(&self, count: u32) {
        self.inner.promised.fetch_sub(count, Ordering::Relaxed);
    }

    /// Gives back what was set apart for a queue pair that is destroyed, but for `stale` completions that it may have
    /// left in the queue; these when the queue has been polled until it was empty.
    pub(crate) fn release_but(&self, count: u32, stale: u64) {
        let stale = u32::try_from(stale).unwrap_or(u32::MAX).min(count);
        self.release(count - stale);
        self.inner.stale.fetch_add(stale, Ordering::Release);
    }
}

impl fmt::Debug for CompletionQueueHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, left, capacity) = (self.inner.id.0, self.left(), self.capacity());
        write!(
            f,
            "completion queue {id} ({left} of {capacity} completions left)"
        )
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.context.registry().leave(self.raw.as_ptr() as u64);
        // SAFETY: made in `new`, destroyed here only; queue pairs that use it hold an `Arc` of it. Events that
        // were taken are acknowledged at once, so that nothing is waited for that does not come.
        let answer = unsafe { sys::ibv_destroy_cq(self.raw.as_ptr()) };
        match sys::check(Call::DestroyCq, answer) {
            Ok(()) => live::COMPLETION_QUEUES.gone(),
            Err(error) => tracing::warn!(%error, "a completion queue is left behind"),
        }
    }
}

/// A descriptor that becomes readable when one of its completion queues, having been asked, gets a completion.
/// Cloning it is cheap.
#[derive(Clone)]
pub struct CompletionChannel {
    inner: Arc<Channel>,
}

struct Channel {
    raw: NonNull<sys::ibv_comp_channel>,
    context: Context,
}

// SAFETY: libibverbs allows calls on one channel from any thread at the same time.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl CompletionChannel {
    /// A channel whose calls never block.
    ///
    /// # Errors
    /// A failed call.
    pub fn new(context: &Context) -> Result<CompletionChannel, Error> {
        // SAFETY: the context is open.
        let raw = sys::pointer(Call::CreateCompChannel, unsafe {
            sys::ibv_create_comp_channel(context.raw())
        })?;
        let context = context.clone();
        let inner = Arc::new(Channel { raw, context });
        let channel = CompletionChannel { inner };
        sys::set_nonblocking(channel.as_fd())?;
        Ok(channel)
    }

    /// The completion queue whose event is next; `None` where there is none. The queue asks for no further event of
    /// its own accord.
    ///
    /// # Errors
    /// A failed call.
    pub fn take_event(&self) -> Result<Option<CompletionQueueId>, Error> {
        let (mut queue, mut word) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is valid and both places are. A queue whose event was taken can't be destroyed
        // before the event is acknowledged, which happens at once, so the pointer is good until then.
        let answer = unsafe {
            let answer = sys::ibv_get_cq_event(self.inner.raw.as_ptr(), &mut queue, &mut word);
            if answer == 0 {
                sys::ibv_ack_cq_events(queue, 1);
            }
            answer
        };
        match sys::check(Call::GetCqEvent, answer) {
            Ok(()) => Ok(Some(CompletionQueueId(word.addr() as u64))),
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open while the channel is.
        unsafe { BorrowedFd::borrow_raw(self.inner.raw.as_ref().fd) }
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompletionChannel of {:?}", self.inner.context)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed here only; completion queues that use it hold an `Arc` of it.
        unsafe { sys::ibv_destroy_comp_channel(self.raw.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A completion as a device may leave it: every field that says nothing holds rubbish.
    fn completion(status: u32) -> Completion {
        // SAFETY: completions are plain numbers.
        let mut raw: sys::ibv_wc = unsafe { mem::zeroed() };
        raw.opcode = 32_698;
        raw.byte_len = 0xdead_beef;
        raw.wc_flags = u32::MAX;
        raw.imm_data_invalidated_rkey_union.imm_data = 0x0102_0304u32.to_be();
        raw.status = status;
        raw.qp_num = 17;
        Completion(raw)
    }

    #[test]
    fn nothing_is_believed_of_a_failure_but_what_is_valid() {
        let good = completion(0);
        assert_eq!(good.immediate(), Some(0x0102_0304));
        assert_eq!(good.bytes(), Some(0xdead_beef));
        assert!(good.result().is_ok());
        for status in 1..30 {
            let bad = completion(status);
            assert_eq!((bad.immediate(), bad.bytes()), (None, None));
            assert!(matches!(
                bad.result(),
                Err(Error::Completion { qp: 17, .. })
            ));
        }
    }
}
