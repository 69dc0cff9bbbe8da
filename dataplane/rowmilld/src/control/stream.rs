//! A connection to a control plane: a socket on which everything has to happen until a moment, plainly or inside TLS.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rowmill_trust::{Secured, connect, explain};

use super::http::AskError;
use crate::config::{ControlAddress, Credentials};

/// A connection comes about in so long, or not at all.
const CONNECT: Duration = Duration::from_secs(3);

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A socket on which nothing takes longer than until then, however little comes at a time.
#[derive(Debug)]
pub(super) struct Timed {
    socket: Socket,
    until: Instant,
}

/// See the module's text.
#[derive(Debug)]
pub(super) enum Stream {
    Plain(Timed),
    Secured(Box<Secured<Timed>>),
}

impl Stream {
    /// Connects. The files of credentials are read each time, so that they can be replaced.
    pub(super) fn connect(
        address: &ControlAddress,
        credentials: &Credentials,
        until: Instant,
    ) -> Result<Stream, AskError> {
        let failed = |source| AskError::Connect {
            address: address.to_string(),
            source,
        };
        let tcp = |host: &str, port: u16| {
            let addresses = (host, port).to_socket_addrs()?;
            let none = Err(io::Error::other("its name leads to no address"));
            addresses.fold(none, |outcome, address| {
                outcome.or_else(|_: io::Error| {
                    let stream = TcpStream::connect_timeout(&address, CONNECT)?;
                    stream.set_nodelay(true)?;
                    Ok(Socket::Tcp(stream))
                })
            })
        };
        let (host, socket) = match address {
            ControlAddress::Off => unreachable!("nobody is asked"),
            ControlAddress::Unix(path) => ("", UnixStream::connect(path).map(Socket::Unix)),
            ControlAddress::Tcp { host, port, .. } => {
                let bare = host.trim_start_matches('[').trim_end_matches(']');
                (bare, tcp(bare, *port))
            }
        };
        let socket = Timed {
            socket: socket.map_err(failed)?,
            until,
        };
        let Some(files) = &credentials.tls else {
            return Ok(Stream::Plain(socket));
        };
        let stream = connect(&files.read()?, host, socket);
        let stream = stream.map_err(|error| match (explain(&error), error.kind()) {
            (Some(why), _) => AskError::Untrusted(address.to_string(), why),
            (None, ErrorKind::WouldBlock | ErrorKind::TimedOut) => AskError::Late(
                address.to_string(),
                "has not ended the handshake of TLS in time".into(),
            ),
            (None, _) => AskError::Ended(address.to_string(), error),
        });
        Ok(Stream::Secured(Box::new(stream?)))
    }

    /// From now on everything has to happen until then.
    pub(super) fn set_until(&mut self, until: Instant) {
        match self {
            Stream::Plain(stream) => stream.until = until,
            Stream::Secured(stream) => stream.get_mut().until = until,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.read(bytes),
            Stream::Secured(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.write(bytes),
            Stream::Secured(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.flush(),
            Stream::Secured(stream) => stream.flush(),
        }
    }
}

impl Timed {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.checked_duration_since(Instant::now());
        let left = left.filter(|left| !left.is_zero());
        left.map(Some).ok_or_else(|| ErrorKind::TimedOut.into())
    }
}

impl Read for Timed {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.left()?;
        match &mut self.socket {
            Socket::Tcp(stream) => {
                stream.set_read_timeout(left)?;
                stream.read(bytes)
            }
            Socket::Unix(stream) => {
                stream.set_read_timeout(left)?;
                stream.read(bytes)
            }
        }
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.left()?;
        match &mut self.socket {
            Socket::Tcp(stream) => {
                stream.set_write_timeout(left)?;
                stream.write(bytes)
            }
            Socket::Unix(stream) => {
                stream.set_write_timeout(left)?;
                stream.write(bytes)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
