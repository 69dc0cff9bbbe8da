//! What the control thread and a lane tell each other, in queues that can't overflow.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;
use rowmill_arena::Region;
use rowmill_wire::Status;
use rowmill_wire::limits::MAX_REGIONS;
use rustix::event::epoll;
use rustix::io::Errno;

use super::bell::{Bell, WakeSocket};
use super::dispose::ClientStream;
use super::layout::Layout;
use crate::{ConnId, RegionId, Waker};

/// Messages that a lane can have unread of one connection: its attachment and its end, and each region
/// number's coming and going, since a number is not given again before its going was acknowledged.
const MESSAGES_PER_CONNECTION: usize = 2 + 2 * MAX_REGIONS as usize;

/// Notices that the control thread can have unread of one connection: each region's acknowledgement,
/// that of its end, and the one cut.
const NOTICES_PER_CONNECTION: usize = MAX_REGIONS as usize + 2;

/// What all holders of a connection keep open for as long as they hold it.
///
/// The stream is closed when the last lane and the control thread have let go, so a client that sees
/// it closed knows that nobody can reach its memory any more. Fields are dropped in this order.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) memory: Arc<Region>,
    pub(super) wake: WakeSocket,
    pub(super) _stream: Arc<ClientStream>,
}

/// From the control thread to a lane.
#[derive(Debug)]
pub(super) enum Message {
    Attach {
        conn: ConnId,
        link: Arc<Link>,
        layout: Layout,
    },
    Region {
        conn: ConnId,
        region: RegionId,
        memory: Arc<Region>,
    },
    RegionGone {
        conn: ConnId,
        region: RegionId,
    },
    Detach {
        conn: ConnId,
    },
}

/// From a lane to the control thread.
#[derive(Debug)]
pub(super) enum Notice {
    /// The lane holds nothing of the region any more.
    RegionLetGo { conn: ConnId, region: RegionId },
    /// The lane holds nothing of the connection any more.
    LetGo { conn: ConnId },
    /// The connection has to be cut off.
    Cut {
        conn: ConnId,
        why: Status,
        breach: Option<&'static str>,
    },
}

/// What a lane and the control thread share.
#[derive(Debug)]
pub(super) struct LaneShared {
    pub(super) lane: u16,
    messages: ArrayQueue<Message>,
    // Messages sent so far: the one word that the lane looks at in each poll.
    posted: CachePadded<AtomicUsize>,
    notices: ArrayQueue<Notice>,
    // Watches the lane's bell and the doorbells of its clients.
    pub(super) epoll: OwnedFd,
    bell: Bell,
    control: Arc<Bell>,
    gone: AtomicBool,
}

impl LaneShared {
    pub(super) fn new(
        lane: u16,
        max_connections: u16,
        control: Arc<Bell>,
    ) -> Result<LaneShared, Errno> {
        let most = usize::from(max_connections);
        let shared = LaneShared {
            lane,
            messages: ArrayQueue::new(most * MESSAGES_PER_CONNECTION),
            posted: CachePadded::new(AtomicUsize::new(0)),
            notices: ArrayQueue::new(most * NOTICES_PER_CONNECTION),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            bell: Bell::new()?,
            control,
            gone: AtomicBool::new(false),
        };
        shared.watch(&shared.bell)?;
        Ok(shared)
    }

    /// Lets a bell end the lane's sleep.
    pub(super) fn watch(&self, bell: &Bell) -> Result<(), Errno> {
        // Edge-triggered, so that nobody has to read the eventfd to make it quiet again.
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, bell, epoll::EventData::new_u64(0), edge)
    }

    /// The opposite of `watch`. Closing our copy would not do, since the client has one too.
    pub(super) fn forget(&self, bell: &Bell) {
        // It fails only for a bell that is not watched.
        let _ = epoll::delete(&self.epoll, bell);
    }

    /// Control thread: sends a message and wakes the lane. A lane that is gone gets nothing.
    pub(super) fn post(&self, message: Message) {
        if self.is_gone() {
            return;
        }
        self.messages
            .push(message)
            .expect("the queue holds all messages that all connections can have unread");
        self.posted.fetch_add(1, Ordering::Release);
        self.bell.ring();
        if self.is_gone() {
            // It went meanwhile and may have emptied its queue before this message came.
            self.discard();
        }
    }

    /// Lane: messages sent so far, modulo the size of the counter.
    pub(super) fn posted(&self) -> usize {
        self.posted.load(Ordering::Acquire)
    }

    /// Lane: the next message.
    pub(super) fn take(&self) -> Option<Message> {
        self.messages.pop()
    }

    /// Lane: tells the control thread. One system call, at the end of a connection or region only.
    pub(super) fn notify(&self, notice: Notice) {
        self.notices
            .push(notice)
            .expect("the queue holds all notices that all connections can have unread");
        self.control.ring();
    }

    /// Control thread: the next notice.
    pub(super) fn notice(&self) -> Option<Notice> {
        self.notices.pop()
    }

    /// Lane: says that it holds nothing any more and will never poll again.
    pub(super) fn leave(&self) {
        self.gone.store(true, Ordering::SeqCst);
        self.discard();
        self.control.ring();
    }

    /// Whether the lane has left.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    fn discard(&self) {
        while self.messages.pop().is_some() {}
    }
}

impl Waker for LaneShared {
    fn wake(&self) {
        self.bell.ring();
    }
}

/// A set of lanes, for waiting until each has acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaneSet([u64; 4]);

impl LaneSet {
    /// The lanes that are still there.
    pub(super) fn living(lanes: &[Arc<LaneShared>]) -> LaneSet {
        let mut set = LaneSet([0; 4]);
        for lane in lanes.iter().filter(|lane| !lane.is_gone()) {
            set.0[usize::from(lane.lane) / 64] |= 1 << (lane.lane % 64);
        }
        set
    }

    pub(super) fn remove(&mut self, lane: u16) {
        self.0[usize::from(lane) / 64] &= !(1 << (lane % 64));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }
}

const _: () = assert!(super::layout::MAX_LANES as usize <= 4 * 64);
