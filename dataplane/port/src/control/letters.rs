//! Messages between the control thread and a lane, and how each wakes the other.

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use super::Bell;
use crate::sync::{ArrayQueue, AtomicBool, AtomicUsize, Ordering, fence};

/// The queues between the control thread and one lane.
#[derive(Debug)]
pub(crate) struct Letters<M, N> {
    messages: ArrayQueue<M>,
    // Messages sent so far: the one word that the lane looks at in each poll.
    posted: CachePadded<AtomicUsize>,
    notices: ArrayQueue<N>,
    bell: Bell,
    control: Arc<Bell>,
    gone: AtomicBool,
}

impl<M, N> Letters<M, N> {
    /// For at most so many messages to the lane, and notices from it, that are not read. `bell` ends the lane's sleep,
    /// `control` the control thread's.
    pub(crate) fn new(
        messages: usize,
        notices: usize,
        bell: Bell,
        control: Arc<Bell>,
    ) -> Letters<M, N> {
        Letters {
            messages: ArrayQueue::new(messages),
            posted: CachePadded::new(AtomicUsize::new(0)),
            notices: ArrayQueue::new(notices),
            bell,
            control,
            gone: AtomicBool::new(false),
        }
    }

    /// What ends the lane's sleep.
    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
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
        // With the one of `leave`: either this sees that the lane has gone, or the lane has seen the message.
        fence(Ordering::SeqCst);
        if self.is_gone() {
            // It may have emptied its queue before this message came.
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
        self.gone.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        self.discard();
        self.control.ring();
    }

    /// Whether the lane has left.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    fn discard(&self) {
        while self.messages.pop().is_some() {}
    }
}
