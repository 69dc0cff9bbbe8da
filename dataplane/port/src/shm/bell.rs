//! Ways to wake a sleeping thread that never block the one who wakes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair,
};

/// An eventfd that is watched edge-triggered and so never needs to be read.
///
/// A client can hold the other copy of one of these (a lane's doorbell): then only the client writes to
/// it. The server never does, since whoever shares an eventfd could fill it and make it blocking.
#[derive(Debug)]
pub(super) struct Bell(OwnedFd);

impl Bell {
    pub(super) fn new() -> Result<Bell, Errno> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Bell)
    }

    /// Wraps a descriptor that was received.
    pub(super) fn of(fd: OwnedFd) -> Bell {
        Bell(fd)
    }

    /// Ends the current or next sleep of whoever watches the bell.
    pub(super) fn ring(&self) {
        // It fails only where 2^64 - 2 rings were not read, and then the bell has rung.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// One end of a socket pair by which the workers wake a client.
///
/// Not an eventfd, because its counter and its flags are shared with the client, which could fill the
/// one and clear O_NONBLOCK among the other, and so hold up a worker for ever. A socket's ends have flags
/// of their own, and a send with MSG_DONTWAIT takes no lock that a peer can hold.
#[derive(Debug)]
pub(super) struct WakeSocket(OwnedFd);

impl WakeSocket {
    /// The worker's end and the client's.
    pub(super) fn pair() -> Result<(WakeSocket, OwnedFd), Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        // The client can send nothing, so nothing of its lies unread here when the worker's end is closed.
        shutdown(&ours, Shutdown::Read)?;
        Ok((WakeSocket(ours), theirs))
    }

    /// The client's end, received.
    pub(super) fn of(fd: OwnedFd) -> WakeSocket {
        WakeSocket(fd)
    }

    /// Wakes the client. Where it has wake-ups unread, or is gone, nothing is lost.
    pub(super) fn wake(&self) {
        let _ = send(&self.0, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Takes the wake-ups that have come; the bound is above what 251 lanes can send for one sleep.
    pub(super) fn drain(&self) {
        for _ in 0..256 {
            match recv(&self.0, &mut [0; 1], RecvFlags::DONTWAIT) {
                Ok((1.., _)) => (),
                _ => return,
            }
        }
    }
}

impl AsFd for WakeSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
