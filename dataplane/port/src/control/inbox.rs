//! What the control thread and a lane tell each other, in queues that can't overflow.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;
use rowmill_wire::limits::MAX_LANES;
use rustix::event::epoll;
use rustix::io::Errno;

use super::Bell;
use crate::Waker;

/// What a lane and the control thread share.
#[derive(Debug)]
pub(crate) struct LaneShared<M, N> {
    pub(crate) lane: u16,
    messages: ArrayQueue<M>,
    // Messages sent so far: the one word that the lane looks at in each poll.
    posted: CachePadded<AtomicUsize>,
    notices: ArrayQueue<N>,
    // Watches the lane's bell and what else may wake it.
    pub(crate) epoll: OwnedFd,
    bell: Bell,
    control: Arc<Bell>,
    gone: AtomicBool,
}

impl<M, N> LaneShared<M, N> {
    /// For at most so many messages to the lane, and notices from it, that are not read.
    pub(crate) fn new(
        lane: u16,
        messages: usize,
        notices: usize,
        control: Arc<Bell>,
    ) -> Result<LaneShared<M, N>, Errno> {
        let shared = LaneShared {
            lane,
            messages: ArrayQueue::new(messages),
            posted: CachePadded::new(AtomicUsize::new(0)),
            notices: ArrayQueue::new(notices),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            bell: Bell::new()?,
            control,
            gone: AtomicBool::new(false),
        };
        shared.watch(&shared.bell)?;
        Ok(shared)
    }

    /// Lets a descriptor end the lane's sleep when it becomes readable.
    pub(crate) fn watch(&self, bell: impl AsFd) -> Result<(), Errno> {
        // Edge-triggered, so that nobody has to read an eventfd to make it quiet again.
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, bell, epoll::EventData::new_u64(0), edge)
    }

    /// The opposite of `watch`. Closing our copy would not do where a client has one too.
    pub(crate) fn forget(&self, bell: impl AsFd) {
        // It fails only for a bell that is not watched.
        let _ = epoll::delete(&self.epoll, bell);
    }

    /// Control thread: sends a message and wakes the lane. A lane that is gone gets nothing.
    pub(crate) fn post(&self, message: M) {
        if self.is_gone() {
            return;
        }
        let pushed = self.messages.push(message);
        assert!(
            pushed.is_ok(),
            "the queue holds all messages that all connections can have unread"
        );
        self.posted.fetch_add(1, Ordering::Release);
        self.bell.ring();
        if self.is_gone() {
            // It went meanwhile and may have emptied its queue before this message came.
            self.discard();
        }
    }

    /// Lane: messages sent so far, modulo the size of the counter.
    pub(crate) fn posted(&self) -> usize {
        self.posted.load(Ordering::Acquire)
    }

    /// Lane: the next message.
    pub(crate) fn take(&self) -> Option<M> {
        self.messages.pop()
    }

    /// Lane: tells the control thread. One system call, at the end of a connection or region only.
    pub(crate) fn notify(&self, notice: N) {
        let pushed = self.notices.push(notice);
        assert!(
            pushed.is_ok(),
            "the queue holds all notices that all connections can have unread"
        );
        self.control.ring();
    }

    /// Control thread: the next notice.
    pub(crate) fn notice(&self) -> Option<N> {
        self.notices.pop()
    }

    /// Lane: says that it holds nothing any more and will never poll again.
    pub(crate) fn leave(&self) {
        self.gone.store(true, Ordering::SeqCst);
        self.discard();
        self.control.ring();
    }

    /// Whether the lane has left.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    fn discard(&self) {
        while self.messages.pop().is_some() {}
    }
}

impl<M: Send, N: Send> Waker for LaneShared<M, N> {
    fn wake(&self) {
        self.bell.ring();
    }
}

/// A set of lanes, for waiting until each has acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaneSet([u64; 4]);

impl LaneSet {
    /// The lanes that are still there.
    pub(crate) fn living<M, N>(lanes: &[Arc<LaneShared<M, N>>]) -> LaneSet {
        let mut set = LaneSet([0; 4]);
        for lane in lanes.iter().filter(|lane| !lane.is_gone()) {
            set.0[usize::from(lane.lane) / 64] |= 1 << (lane.lane % 64);
        }
        set
    }

    pub(crate) fn remove(&mut self, lane: u16) {
        self.0[usize::from(lane) / 64] &= !(1 << (lane % 64));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }
}

const _: () = assert!(MAX_LANES as usize <= 4 * 64);
