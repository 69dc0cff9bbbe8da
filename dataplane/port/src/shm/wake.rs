//! How workers wake a client that sleeps, so that it can never block them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair,
};

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

    /// Takes the wake-ups that have come, and says whether there were any; the bound is above what 251 lanes can send for
    /// one sleep.
    pub(super) fn drain(&self) -> bool {
        let next = || recv(&self.0, &mut [0; 1], RecvFlags::DONTWAIT);
        let taken = (0..256).take_while(|_| matches!(next(), Ok((1.., _))));
        taken.count() > 0
    }
}

impl AsFd for WakeSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
