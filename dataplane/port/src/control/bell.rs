//! Waking a sleeping thread without ever blocking the one who wakes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// An eventfd that is watched edge-triggered and so never needs to be read.
///
/// A client can hold the other copy of one of these (a lane's doorbell): then only the client writes to
/// it. The server never does, since whoever shares an eventfd could fill it and make it blocking.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> Result<Bell, Errno> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Bell)
    }

    /// Wraps a descriptor that was received.
    pub(crate) fn of(fd: OwnedFd) -> Bell {
        Bell(fd)
    }

    /// Ends the current or next sleep of whoever watches the bell.
    pub(crate) fn ring(&self) {
        // It fails only where 2^64 - 2 rings were not read, and then the bell has rung.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
