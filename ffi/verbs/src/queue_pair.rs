//! Queue pairs of reliable connections.

use core::ffi::c_int;
use core::mem;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, Ordering};
use std::fmt;
use std::sync::Arc;

use crate::attributes::{Attributes, Capacity, State};
use crate::completion::{Completion, CompletionQueueHandle};
use crate::create::create;
use crate::device::Context;
use crate::domain::ProtectionDomain;
use crate::error::{Call, Error};
use crate::health::Health;
use crate::limits::Limits;
use crate::list::{PostList, ReceiveList};
use crate::live;
use crate::post::{Batch, Open};
use crate::queue::{Queue, Remains, Retired};
use crate::slab::{Block, SlabRegistration};
use crate::sys;
use crate::work_id::{Kind, WorkId};

/// A slab's registration that a queue pair holds, to name in what is posted to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalKey {
    pub(crate) index: u16,
    pub(crate) epoch: u16,
}

/// A completion that is not this queue pair's: of another, or of a former one of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreign;

/// A queue pair of a reliable connection. It belongs to one thread at a time and can be moved to another.
///
/// Blocks that are posted are moved into it, together with a note of type `T`, and come back by
/// [`retire`](QueuePair::retire) when the device is done with them, or when the queue pair is destroyed. So
/// nobody can write to what the device reads:
///
/// ```compile_fail,E0382
/// use rowmill_verbs::*;
/// fn send(qp: &mut QueuePair<u8>, key: LocalKey, mut block: Block, to: Remote) {
///     let mut batch = qp.batch();
///     let local = Local { block, key, pieces: &[Piece::from(0..64)], note: 7 };
///     let posted = batch.post(Operation::Write(to), local, Signal::Yes);
///     block.as_mut_slice()[0] = 1;
/// }
/// ```
/// ```
/// use rowmill_verbs::*;
/// fn send(qp: &mut QueuePair<u8>, key: LocalKey, mut block: Block, to: Remote) {
///     let mut batch = qp.batch();
///     block.as_mut_slice()[0] = 1;
///     let local = Local { block, key, pieces: &[Piece::from(0..64)], note: 7 };
///     let posted = batch.post(Operation::Write(to), local, Signal::Yes);
/// }
/// ```
///
/// Nor post it twice:
///
/// ```compile_fail,E0382
/// use rowmill_verbs::*;
/// fn send(batch: &mut Batch<'_, u8>, key: LocalKey, block: Block, to: Remote) {
///     let first = Local { block, key, pieces: &[Piece::from(0..64)], note: 1 };
///     let second = Local { block, key, pieces: &[Piece::from(0..64)], note: 2 };
/// }
/// ```
/// ```
/// use rowmill_verbs::*;
/// fn send(batch: &mut Batch<'_, u8>, key: LocalKey, one: Block, other: Block, to: Remote) {
///     let first = Local { block: one, key, pieces: &[Piece::from(0..64)], note: 1 };
///     let second = Local { block: other, key, pieces: &[Piece::from(0..64)], note: 2 };
/// }
/// ```
///
/// Threads can't share it:
///
/// ```compile_fail,E0277
/// fn needs_sync<T: Sync>(_: &T) {}
/// fn share(qp: &rowmill_verbs::QueuePair<u8>) {
///     needs_sync(qp)
/// }
/// ```
/// ```
/// fn needs_send<T: Send>(_: &T) {}
/// fn share(qp: &rowmill_verbs::QueuePair<u8>) {
///     needs_send(qp)
/// }
/// ```
///
/// One batch is open at a time:
///
/// ```compile_fail,E0499
/// fn two(qp: &mut rowmill_verbs::QueuePair<u8>) -> usize {
///     let first = qp.batch();
///     let second = qp.batch();
///     first.room() + second.room()
/// }
/// ```
/// ```
/// fn two(qp: &mut rowmill_verbs::QueuePair<u8>) -> usize {
///     let first = qp.batch().room();
///     let second = qp.batch().room();
///     first + second
/// }
/// ```
pub struct QueuePair<T> {
    raw: NonNull<sys::ibv_qp>,
    destroyed: bool,
    number: u32,
    state: State,
    pub(crate) epoch: u16,
    pub(crate) connection: u16,
    capacity: Capacity,
    pub(crate) inline_bytes: usize,
    pub(crate) message_bytes: usize,
    pub(crate) sends: Queue<T>,
    pub(crate) receives: Queue<T>,
    // The block that WRITEs are being cut from.
    pub(crate) open: Option<Open<T>>,
    pub(crate) since_signal: u32,
    pub(crate) signal_every: u32,
    beacon: Beacon,
    pub(crate) doorbells: u64,
    pub(crate) list: PostList,
    pub(crate) receive_list: ReceiveList,
    health: Arc<Health>,
    // What it uses outlives it.
    pub(crate) held: Vec<SlabRegistration>,
    domain: ProtectionDomain,
    send_completions: CompletionQueueHandle,
    receive_completions: CompletionQueueHandle,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Beacon {
    Unposted,
    /// Behind the requests below this number.
    Posted(u64),
    Seen,
}

// SAFETY: libibverbs allows calls on a queue pair from any thread; the raw pointers of the lists lead to the
// lists' own memory on the heap. The rest can be sent if the notes can.
unsafe impl<T: Send> Send for QueuePair<T> {}

/// Tells a queue pair from former ones of the same number: 65,536 of them would have to come and go while a
/// completion lies in its queue for a stale one to be taken for good.
static NEXT_EPOCH: AtomicU16 = AtomicU16::new(0);

impl<T> QueuePair<T> {
    /// A queue pair in the state [`State::Reset`], with `connection` in the ids of all its completions.
    ///
    /// It takes room in both completion queues for all that it can have posted.
    ///
    /// # Errors
    /// [`Error::Limit`] where device or completion queues have no room for it; a failed call.
    ///
    /// # Panics
    /// If domain and completion queues are not of one device, or no piece is asked for.
    pub fn new(
        domain: &ProtectionDomain,
        send_completions: &CompletionQueueHandle,
        receive_completions: &CompletionQueueHandle,
        capacity: Capacity,
        connection: u16,
    ) -> Result<QueuePair<T>, Error> {
        let context = domain.context();
        for queue in [send_completions, receive_completions] {
            assert_eq!(queue.context().raw(), context.raw(), "one device");
        }
        assert!(capacity.pieces > 0, "requests of at least one piece");
        let limits = context.limits();
        let queue = u64::from(limits.work_requests);
        // One more than is asked for is the beacon's.
        Limits::check(
            "sends of a queue pair",
            u64::from(capacity.sends) + 1,
            queue,
        )?;
        Limits::check("receives of a queue pair", capacity.receives.into(), queue)?;
        Limits::check(
            "pieces of a request",
            capacity.pieces.into(),
            limits.pieces.into(),
        )?;
        let promises = [
            (send_completions, capacity.sends + 1),
            (receive_completions, capacity.receives),
        ];
        promises[0].0.promise(promises[0].1)?;
        if let Err(error) = promises[1].0.promise(promises[1].1) {
            promises[0].0.release(promises[0].1);
            return Err(error);
        }
        let made = create(domain, send_completions, receive_completions, capacity);
        let (raw, granted) = made.inspect_err(|_| {
            promises
                .iter()
                .for_each(|(queue, count)| queue.release(*count));
        })?;
        // SAFETY: the queue pair was just made.
        let number = unsafe { raw.as_ref().qp_num };
        // What was granted is said; what is used is what was asked for, but for inline, where less may be granted.
        let inline_bytes = granted.max_inline_data.min(capacity.inline_bytes) as usize;
        tracing::debug!(
            number,
            connection,
            ?capacity,
            sends = granted.max_send_wr,
            receives = granted.max_recv_wr,
            pieces = granted.max_send_sge,
            inline = granted.max_inline_data,
            "queue pair"
        );
        live::QUEUE_PAIRS.made();
        Ok(QueuePair {
            raw,
            destroyed: false,
            number,
            state: State::Reset,
            epoch: NEXT_EPOCH.fetch_add(1, Ordering::Relaxed),
            connection,
            capacity,
            inline_bytes,
            message_bytes: limits.message_bytes as usize,
            sends: Queue::new(capacity.sends),
            receives: Queue::new(capacity.receives),
            open: None,
            since_signal: 0,
            signal_every: (capacity.sends / 2).clamp(1, 64),
            beacon: Beacon::Unposted,
            doorbells: 0,
            list: PostList::new(capacity.pieces as usize, inline_bytes),
            receive_list: ReceiveList::new(),
            health: context.registry().enter(raw.as_ptr() as u64),
            held: Vec::new(),
            domain: domain.clone(),
            send_completions: send_completions.clone(),
            receive_completions: receive_completions.clone(),
        })
    }

    /// Its number, unique on the device while it lives.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// What whoever made it calls it.
    pub fn connection(&self) -> u16 {
        self.connection
    }

    /// The state that this side has brought it to.
    pub fn state(&self) -> State {
        self.state
    }

    /// What it can hold.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Bytes that can be posted inline, as granted.
    pub fn inline_bytes(&self) -> usize {
        self.inline_bytes
    }

    /// The protection domain.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// The device.
    pub fn context(&self) -> &Context {
        self.domain.context()
    }

    /// What the device said of it beside completions.
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// Calls of `ibv_post_send` so far: doorbells rung.
    pub fn doorbells(&self) -> u64 {
        self.doorbells
    }

    /// Sends that are not known to be done.
    pub fn sends_outstanding(&self) -> u64 {
        self.sends.outstanding()
    }

    /// Receives that wait for a message.
    pub fn receives_outstanding(&self) -> u64 {
        self.receives.outstanding()
    }

    /// Blocks that it owns now.
    pub fn blocks_in_flight(&self) -> usize {
        self.sends.flight.len() + self.receives.flight.len() + usize::from(self.open.is_some())
    }

    /// Lets requests name blocks of a slab. The registration is held until the queue pair is destroyed.
    ///
    /// # Panics
    /// If it is of another protection domain.
    pub fn hold(&mut self, registration: &SlabRegistration) -> LocalKey {
        assert_eq!(registration.domain(), &self.domain, "one protection domain");
        let index = u16::try_from(self.held.len()).expect("a few slabs");
        self.held.push(registration.clone());
        let epoch = self.epoch;
        LocalKey { index, epoch }
    }

    /// Begins a list of requests that are posted with one doorbell.
    pub fn batch(&mut self) -> Batch<'_, T> {
        Batch::new(self)
    }

    /// The key of the slab's registration that the device knows.
    pub(crate) fn local_key(&self, key: LocalKey, block: &Block) -> u32 {
        assert_eq!(key.epoch, self.epoch, "a key of this queue pair");
        let held = &self.held[usize::from(key.index)];
        assert!(held.covers(block), "a key of the block's slab");
        held.local_key()
    }

    /// Takes note of a completion, and gives back the blocks that the device is done with: of all requests
    /// up to the one that completed, signalled or not.
    ///
    /// # Errors
    /// [`Foreign`] if it is not of a request of this queue pair that is not known to be done: to be counted and dropped.
    pub fn retire(&mut self, completion: &Completion) -> Result<Retired<'_, T>, Foreign> {
        let id = completion.id();
        let mine = id.epoch() == self.epoch
            && id.connection() == self.connection
            && completion.queue_pair() == self.number;
        if !mine {
            return Err(Foreign);
        }
        let queue = match id.kind() {
            Some(Kind::Send) => &mut self.sends,
            Some(Kind::Receive) => &mut self.receives,
            Some(Kind::Beacon) => {
                let Beacon::Posted(before) = self.beacon else {
                    return Err(Foreign);
                };
                self.beacon = Beacon::Seen;
                self.sends.done = self.sends.done.max(before);
                return Ok(self.sends.retired());
            }
            None => return Err(Foreign),
        };
        let sequence = id.sequence(queue.next);
        if sequence < queue.done || sequence >= queue.next {
            return Err(Foreign);
        }
        queue.done = sequence + 1;
        Ok(queue.retired())
    }

    /// Moves it to the error state, in which everything that is posted completes as flushed, and posts a last
    /// request behind all others, by whose completion [`is_drained`](QueuePair::is_drained) knows the end. Does
    /// nothing the second time.
    ///
    /// # Errors
    /// A failed call: destroy it then, nothing will drain.
    pub fn fail(&mut self) -> Result<(), Error> {
        if self.state != State::Error {
            // SAFETY: attributes are plain numbers, for which zero is valid.
            let mut attr: sys::ibv_qp_attr = unsafe { mem::zeroed() };
            attr.qp_state = sys::ibv_qp_state::IBV_QPS_ERR;
            let mask = sys::ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int;
            let connected = self.state == State::ReadyToSend;
            self.modify(&mut attr, mask)?;
            if connected {
                self.post_beacon()?;
            } else {
                // Nothing can have been posted to a send queue that was never ready.
                self.beacon = Beacon::Seen;
            }
        }
        Ok(())
    }

    fn post_beacon(&mut self) -> Result<(), Error> {
        let id = WorkId::new(Kind::Beacon, self.epoch, self.connection, 0);
        // SAFETY: the queue pair is valid and in the error state; the request names no memory.
        unsafe { self.list.post_beacon(self.raw.as_ptr(), id) }?;
        self.beacon = Beacon::Posted(self.sends.next);
        Ok(())
    }

    /// Whether all that was posted has completed after [`fail`](QueuePair::fail). Some devices complete no
    /// receives of a failed queue pair: wait for a bounded time, then destroy it.
    pub fn is_drained(&self) -> bool {
        self.sends_are_drained() && self.receives.outstanding() == 0
    }

    /// Whether all sends have completed after [`fail`](QueuePair::fail).
    pub fn sends_are_drained(&self) -> bool {
        self.beacon == Beacon::Seen && self.sends.outstanding() == 0
    }

    /// Asks the device what its attributes are.
    ///
    /// # Errors
    /// A failed call.
    pub fn query(&self) -> Result<Attributes, Error> {
        // SAFETY: the queue pair is valid.
        unsafe { Attributes::query(self.raw.as_ptr()) }
    }

    /// Whether the device promises that the bytes of one WRITE are placed in order, so that the last ones may be
    /// polled in memory (by a CPU, without relaxed ordering). Most don't; ask when it is ready to send.
    pub fn data_in_order(&self) -> bool {
        // SAFETY: the queue pair is valid.
        let answer = unsafe {
            let write = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
            sys::ibv_query_qp_data_in_order(self.raw.as_ptr(), write, 0)
        };
        answer == 1
    }

    /// Changes attributes, and the state if the mask says so.
    pub(crate) fn modify(&mut self, attr: &mut sys::ibv_qp_attr, mask: c_int) -> Result<(), Error> {
        // SAFETY: the queue pair and the attributes are valid.
        sys::check(Call::ModifyQp, unsafe {
            sys::ibv_modify_qp(self.raw.as_ptr(), attr, mask)
        })
        .map_err(|error| {
            let to = State::from_raw(attr.qp_state);
            error.context(format!(
                "queue pair {} from {:?} to {to:?}",
                self.number, self.state
            ))
        })?;
        if mask & sys::ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int != 0 {
            self.state = State::from_raw(attr.qp_state);
        }
        Ok(())
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_qp {
        self.raw.as_ptr()
    }

    /// Posts the first `count` requests of the list; how many were taken, and what became of the rest.
    pub(crate) fn post_list(&mut self, count: usize) -> (usize, Result<(), Error>) {
        let ready = matches!(self.state, State::ReadyToSend | State::Error);
        assert!(ready, "requests are posted to a connected queue pair");
        self.doorbells += 1;
        // SAFETY: the queue pair is valid. What the requests name is owned by the flight, or by the list itself.
        unsafe { self.list.post(self.raw.as_ptr(), count) }
    }

    /// Destroys it. From then on the device touches nothing of it, and all blocks come back.
    ///
    /// Completions that it has in its queues may still be polled there; [`retire`](QueuePair::retire) of no
    /// other queue pair takes them. Their room is free again when the queues have been polled until they were empty.
    ///
    /// # Errors
    /// A failed call, with the queue pair, which may be tried again.
    #[expect(
        clippy::result_large_err,
        reason = "the queue pair itself is given back"
    )]
    pub fn destroy(mut self) -> Result<Remains<T>, (Error, QueuePair<T>)> {
        match self.destroy_raw() {
            Ok(()) => Ok(Remains {
                sends: mem::take(&mut self.sends.flight),
                open: self.open.take().map(|open| (open.block, open.note)),
                receives: mem::take(&mut self.receives.flight),
            }),
            Err(error) => Err((error, self)),
        }
    }

    fn destroy_raw(&mut self) -> Result<(), Error> {
        let object = self.raw.as_ptr() as u64;
        self.context().registry().leave(object);
        // SAFETY: made in `new`; after success `destroyed` is set, and nobody uses the pointer.
        let answer = unsafe { sys::ibv_destroy_qp(self.raw.as_ptr()) };
        if let Err(error) = sys::check(Call::DestroyQp, answer) {
            self.context().registry().enter_again(object, &self.health);
            return Err(error);
        }
        self.destroyed = true;
        live::QUEUE_PAIRS.gone();
        let beacon = u64::from(matches!(self.beacon, Beacon::Posted(_)));
        let left = self.sends.outstanding() + beacon;
        self.send_completions
            .release_but(self.capacity.sends + 1, left);
        self.receive_completions
            .release_but(self.capacity.receives, self.receives.outstanding());
        Ok(())
    }
}

impl<T> fmt::Debug for QueuePair<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "QueuePair({} of connection {}, {:?}, {} sends, {} receives, {} blocks)",
            self.number,
            self.connection,
            self.state,
            self.sends.outstanding(),
            self.receives.outstanding(),
            self.blocks_in_flight()
        )
    }
}

impl<T> Drop for QueuePair<T> {
    fn drop(&mut self) {
        if self.destroyed {
            return;
        }
        if let Err(error) = self.destroy_raw() {
            // The device may access the blocks still, so they are never given back.
            mem::forget(mem::take(&mut self.sends.flight));
            mem::forget(mem::take(&mut self.receives.flight));
            mem::forget(self.open.take());
            mem::forget(mem::take(&mut self.held));
            tracing::error!(%error, number = self.number, "a queue pair is left behind, its blocks are leaked");
        }
    }
}
