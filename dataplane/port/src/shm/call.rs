//! A client's calls on the Unix socket: connecting, a question, its answer.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, connect,
    sockopt::{Timeout, set_socket_timeout},
};

use super::endpoint::{socket_path, stream_socket};
use super::server::system;
use super::stream;
use crate::PortError;
use crate::patience::Patience;
use crate::rest::timespec;

/// The longest single attempt of the kernel's to connect to a server that has no room in its backlog.
const CONNECT: Duration = Duration::from_millis(50);

/// Connects to a server's socket.
pub(super) fn open_stream(endpoint: &str, patience: &mut Patience) -> Result<OwnedFd, PortError> {
    let path = socket_path(endpoint)?;
    let failed = |errno: Errno| PortError::Connect {
        endpoint: endpoint.to_owned(),
        source: errno.into(),
    };
    let stream = stream_socket(SocketFlags::empty()).map_err(|e| system("socket", e))?;
    let address = SocketAddrUnix::new(&path).map_err(failed)?;
    loop {
        let most = patience.next_sleep()?.min(CONNECT);
        set_socket_timeout(&stream, Timeout::Send, Some(most))
            .map_err(|e| system("setting a time limit", e))?;
        match connect(&stream, &address) {
            Ok(()) => return Ok(stream),
            // The backlog is full, and stayed so.
            Err(Errno::AGAIN | Errno::INTR) => (),
            Err(errno) => return Err(failed(errno)),
        }
    }
}

/// Sends a question.
pub(super) fn ask(
    stream: BorrowedFd<'_>,
    question: &[u8],
    fds: &[BorrowedFd<'_>],
    patience: &mut Patience,
) -> Result<(), PortError> {
    loop {
        match stream::send(stream, question, fds, SendFlags::DONTWAIT) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => (),
            Err(Errno::AGAIN) => doze(stream, PollFlags::OUT, patience)?,
            Err(errno) => return Err(lost("sendmsg", errno)),
        }
    }
}

/// Waits for a message, with at most `most_fds` descriptors.
pub(super) fn await_message<'b>(
    stream: BorrowedFd<'_>,
    buffer: &'b mut [u8],
    most_fds: usize,
    patience: &mut Patience,
) -> Result<(&'b [u8], Vec<OwnedFd>), PortError> {
    let (len, fds) = loop {
        match take_message(stream, buffer, most_fds)? {
            Some(message) => break message,
            None => doze(stream, PollFlags::IN, patience)?,
        }
    };
    Ok((&buffer[..len], fds))
}

/// The length and the descriptors of the message that has come, if one has.
pub(super) fn take_message(
    stream: BorrowedFd<'_>,
    buffer: &mut [u8],
    most_fds: usize,
) -> Result<Option<(usize, Vec<OwnedFd>)>, PortError> {
    let received = match stream::receive(stream, buffer, most_fds, RecvFlags::DONTWAIT) {
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(errno) => return Err(lost("recvmsg", errno)),
        Ok(received) => received,
    };
    if received.len == 0 {
        return Err(PortError::Closed);
    }
    if received.cut || received.starved || received.len > buffer.len() {
        let text = "an answer was cut short";
        return Err(PortError::Protocol(text.to_owned()));
    }
    Ok(Some((received.len, received.fds)))
}

fn doze(stream: BorrowedFd<'_>, what: PollFlags, patience: &mut Patience) -> Result<(), PortError> {
    let sleep = patience.next_sleep()?;
    let stream = stream.as_fd();
    match poll(&mut [PollFd::new(&stream, what)], Some(&timespec(sleep))) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(system("poll", errno)),
    }
}

fn lost(call: &'static str, errno: Errno) -> PortError {
    match errno {
        Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => PortError::Closed,
        errno => system(call, errno),
    }
}

/// A server that closes the stream during the handshake is as unreachable as one that is not there.
pub(super) fn named(error: PortError, endpoint: &str) -> PortError {
    match error {
        PortError::Closed => PortError::Connect {
            endpoint: endpoint.to_owned(),
            source: std::io::ErrorKind::ConnectionReset.into(),
        },
        other => other,
    }
}
