//! A client's calls on the Unix socket: connecting, a question, its answer.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rowmill_wire::control::Control;
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, connect,
    sockopt::{Timeout, set_socket_timeout},
};

use super::endpoint::{socket_path, stream_socket};
use super::server::system;
use super::stream;
use crate::PortError;

/// Connects to a server's socket, on which no call takes longer than `limit`.
pub(super) fn open_stream(endpoint: &str, limit: Duration) -> Result<OwnedFd, PortError> {
    let path = socket_path(endpoint)?;
    let failed = |errno: Errno| PortError::Connect {
        endpoint: endpoint.to_owned(),
        source: errno.into(),
    };
    let stream = stream_socket(SocketFlags::empty()).map_err(|e| system("socket", e))?;
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&stream, direction, Some(limit))
            .map_err(|e| system("setting a time limit", e))?;
    }
    let address = SocketAddrUnix::new(&path).map_err(failed)?;
    connect(&stream, &address).map_err(failed)?;
    Ok(stream)
}

/// Sends a question and receives its answer, with at most `most_fds` descriptors.
pub(super) fn exchange(
    stream: BorrowedFd<'_>,
    buffer: &mut [u8],
    sequence: u32,
    question: &Control,
    fds: &[BorrowedFd<'_>],
    most_fds: usize,
) -> Result<(Control, Vec<OwnedFd>), PortError> {
    let lost = |call: &'static str, errno: Errno| match errno {
        Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => PortError::Closed,
        Errno::AGAIN => PortError::Protocol("the server did not answer in time".to_owned()),
        errno => system(call, errno),
    };
    stream::send(stream, &question.encode(sequence), fds, SendFlags::empty())
        .map_err(|e| lost("sendmsg", e))?;
    let received = loop {
        match stream::receive(stream, buffer, most_fds, RecvFlags::empty()) {
            Err(Errno::INTR) => (),
            Err(e) => return Err(lost("recvmsg", e)),
            Ok(received) => break received,
        }
    };
    if received.len == 0 {
        return Err(PortError::Closed);
    }
    let bytes = buffer
        .get(..received.len)
        .filter(|_| !received.cut && !received.starved);
    let bytes = bytes.ok_or_else(|| PortError::Protocol("an answer was cut short".to_owned()))?;
    let (answered, answer) = Control::parse(bytes).map_err(|refusal| {
        PortError::Protocol(format!("an answer is not understood: {refusal}"))
    })?;
    match answer {
        Control::Refused { refusal, detail } => Err(PortError::Refused { refusal, detail }),
        _ if answered != sequence => Err(PortError::Protocol(format!(
            "the answer to question {answered} came for question {sequence}"
        ))),
        answer => Ok((answer, received.fds)),
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
