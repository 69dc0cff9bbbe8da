//! What the control thread and a lane share.

use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rowmill_wire::limits::MAX_LANES;
use rustix::event::epoll;
use rustix::io::Errno;

use super::{Bell, Letters};
use crate::Waker;

/// What a lane and the control thread share: their [`Letters`], and what the lane sleeps on.
#[derive(Debug)]
pub(crate) struct LaneShared<M, N> {
    pub(crate) lane: u16,
    letters: Letters<M, N>,
    // Watches the lane's bell and what else may wake it.
    pub(crate) epoll: OwnedFd,
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
            letters: Letters::new(messages, notices, Bell::new()?, control),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        };
        shared.watch(shared.bell())?;
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
}

impl<M, N> Deref for LaneShared<M, N> {
    type Target = Letters<M, N>;

    fn deref(&self) -> &Letters<M, N> {
        &self.letters
    }
}

impl<M: Send, N: Send> Waker for LaneShared<M, N> {
    fn wake(&self) {
        self.bell().ring();
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
