//! Control messages with descriptors over a sequenced-packet Unix socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rowmill_wire::limits::MAX_CONTROL_BYTES;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Most descriptors that the kernel passes with one message.
pub(super) const MAX_FDS: usize = 253;

/// A message as it came.
pub(super) struct Received {
    /// Its bytes in the buffer; none at the end of the stream.
    pub(super) len: usize,
    /// The descriptors that came with it. Closing those of a client can take long.
    pub(super) fds: Vec<OwnedFd>,
    /// Whether bytes were cut off, since they were more than fit.
    pub(super) cut: bool,
    /// Whether descriptors were left out: more than were asked for, or more than this process may have.
    pub(super) starved: bool,
}

/// A buffer for one message, one byte longer than the longest, so that too long ones are told apart.
pub(super) fn buffer() -> Vec<u8> {
    vec![0; MAX_CONTROL_BYTES + 1]
}

/// Sends one message.
pub(super) fn send(
    stream: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), Errno> {
    let rights = SendAncillaryMessage::ScmRights(fds);
    let mut space = vec![MaybeUninit::uninit(); rights.size()];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(ancillary.push(rights), "the space has the message's size");
    }
    let flags = flags | SendFlags::NOSIGNAL;
    let sent = sendmsg(stream, &[IoSlice::new(bytes)], &mut ancillary, flags)?;
    assert_eq!(sent, bytes.len(), "a packet is sent whole");
    Ok(())
}

/// Receives one message with at most `most_fds` descriptors; the kernel closes those beyond.
pub(super) fn receive(
    stream: impl AsFd,
    buffer: &mut [u8],
    most_fds: usize,
    flags: RecvFlags,
) -> Result<Received, Errno> {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(most_fds))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let message = recvmsg(
        stream,
        &mut [IoSliceMut::new(buffer)],
        &mut ancillary,
        flags,
    )?;
    let mut fds = Vec::new();
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            fds.extend(received);
        }
    }
    Ok(Received {
        len: message.bytes,
        fds,
        cut: message.flags.contains(ReturnFlags::TRUNC),
        starved: message.flags.contains(ReturnFlags::CTRUNC),
    })
}
