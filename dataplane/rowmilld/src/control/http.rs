//! Asking a control plane: HTTP/1.1 on a blocking socket, with a limit of time and of length on everything.
//!
//! (ureq, which the command `rowmill` has, speaks to Unix sockets by interfaces that it calls unversioned; and what is needed here, bodies
//! of a known length on a connection that is kept, is little beside httparse, which is here already.)

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::config::ControlAddress;

/// A connection comes about in so long, or not at all.
const CONNECT: Duration = Duration::from_secs(3);
/// Longest head of an answer, and most headers of one.
const HEAD_BYTES: usize = 16 << 10;
const HEADERS: usize = 64;
/// Longest body: a policy with 2 million pinned rows.
const BODY_BYTES: usize = 16 << 20;
/// What is read at a time.
const CHUNK: usize = 16 << 10;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// Nobody is there.
    #[error("cannot connect to {address}: {source}; is rowmill-control running there?")]
    Connect { address: String, source: io::Error },
    /// It takes too long.
    #[error("{0} has not answered within {1:?}")]
    Late(String, Duration),
    /// The connection broke.
    #[error("the connection to {0} ended: {1}")]
    Ended(String, io::Error),
    /// It is no control plane.
    #[error("{0} does not answer like rowmill-control: {1}")]
    Strange(String, &'static str),
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The HTTP status.
    pub(crate) code: u16,
    /// The content.
    pub(crate) body: Vec<u8>,
    /// The connection that it came by: another number for each.
    pub(crate) connection: u64,
}

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body<'a> {
    /// Nothing: `GET`.
    None,
    /// So many bytes of a kind: `POST`.
    Of(&'a str, &'a [u8]),
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn time_out(&self, left: Duration) -> io::Result<()> {
        let left = Some(left);
        match self {
            Stream::Tcp(stream) => {
                stream.set_read_timeout(left)?;
                stream.set_write_timeout(left)
            }
            Stream::Unix(stream) => {
                stream.set_read_timeout(left)?;
                stream.set_write_timeout(left)
            }
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(bytes),
            Stream::Unix(stream) => stream.read(bytes),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }
}

/// One connection at a time.
#[derive(Debug)]
pub(crate) struct Client {
    address: ControlAddress,
    stream: Option<Stream>,
    /// Connections that there were.
    connection: u64,
}

impl Client {
    pub(crate) fn new(address: ControlAddress) -> Client {
        Client {
            address,
            stream: None,
            connection: 0,
        }
    }

    /// Who is asked next is another connection's.
    pub(crate) fn hang_up(&mut self) {
        self.stream = None;
    }

    /// Asks for a path, which may depend on the connection. A connection that was kept may have ended meanwhile: then it is asked once more,
    /// on a new one.
    pub(crate) fn ask(
        &mut self,
        path: impl Fn(u64) -> String,
        body: Body<'_>,
        patience: Duration,
    ) -> Result<Answer, AskError> {
        let until = Instant::now() + patience;
        loop {
            let is_kept = self.stream.is_some();
            let mut answer = Vec::new();
            let outcome = self.exchange(&path, body, until, &mut answer);
            let error = match outcome {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            self.stream = None;
            let is_stale = is_kept && answer.is_empty();
            match error {
                Failed::Ask(error) => return Err(error),
                Failed::Io(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                        return Err(AskError::Late(self.address.to_string(), patience));
                    }
                    _ if is_stale => {}
                    _ => return Err(AskError::Ended(self.address.to_string(), error)),
                },
            }
        }
    }

    fn strange(&self, why: &'static str) -> Failed {
        Failed::Ask(AskError::Strange(self.address.to_string(), why))
    }

    fn connect(&mut self) -> Result<(), AskError> {
        let failed = |source| AskError::Connect {
            address: self.address.to_string(),
            source,
        };
        let stream = match &self.address {
            ControlAddress::Off => unreachable!("nobody is asked"),
            ControlAddress::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
            ControlAddress::Tcp { host, port } => {
                let bare = host.trim_start_matches('[').trim_end_matches(']');
                let addresses = (bare, *port).to_socket_addrs().map_err(failed)?;
                let none = Err(io::Error::other("its name leads to no address"));
                addresses.fold(none, |outcome, address| {
                    outcome.or_else(|_: io::Error| {
                        let stream = TcpStream::connect_timeout(&address, CONNECT)?;
                        stream.set_nodelay(true)?;
                        Ok(Stream::Tcp(stream))
                    })
                })
            }
        };
        self.stream = Some(stream.map_err(failed)?);
        self.connection += 1;
        Ok(())
    }

    fn exchange(
        &mut self,
        path: impl Fn(u64) -> String,
        body: Body<'_>,
        until: Instant,
        read: &mut Vec<u8>,
    ) -> Result<Answer, Failed> {
        if self.stream.is_none() {
            self.connect().map_err(Failed::Ask)?;
        }
        let request = request(&path(self.connection), &self.address, body);
        let stream = self.stream.as_mut().expect("connected");
        let mut sent = 0;
        while sent < request.len() {
            stream.time_out(left(until)?)?;
            match stream.write(&request[sent..])? {
                0 => return Err(Failed::Io(ErrorKind::WriteZero.into())),
                bytes => sent += bytes,
            }
        }
        let mut more = |read: &mut Vec<u8>| -> io::Result<()> {
            let before = read.len();
            read.resize(before + CHUNK, 0);
            stream.time_out(left(until)?)?;
            let bytes = stream.read(&mut read[before..]);
            read.truncate(before + *bytes.as_ref().unwrap_or(&0));
            match bytes? {
                0 => Err(ErrorKind::UnexpectedEof.into()),
                _ => Ok(()),
            }
        };
        let head = loop {
            match parse(read) {
                Ok(Some(head)) => break head,
                Ok(None) if read.len() < HEAD_BYTES => more(read)?,
                Ok(None) => return Err(self.strange("its head has no end")),
                Err(why) => return Err(self.strange(why)),
            }
        };
        if head.length > BODY_BYTES {
            return Err(self.strange("it is longer than any policy"));
        }
        let end = head.end + head.length;
        while read.len() < end {
            more(read)?;
        }
        if head.ends || read.len() > end {
            self.stream = None; // What else is there was not asked for.
        }
        Ok(Answer {
            code: head.code,
            body: read[head.end..end].to_vec(),
            connection: self.connection,
        })
    }
}

enum Failed {
    Ask(AskError),
    Io(io::Error),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Failed {
        Failed::Io(error)
    }
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.checked_duration_since(Instant::now());
    let left = left.filter(|left| !left.is_zero());
    left.ok_or_else(|| ErrorKind::TimedOut.into())
}

fn request(path: &str, address: &ControlAddress, body: Body<'_>) -> Vec<u8> {
    let host = match address {
        ControlAddress::Tcp { host, port } => format!("{host}:{port}"),
        ControlAddress::Off | ControlAddress::Unix(_) => "localhost".into(),
    };
    let version = env!("CARGO_PKG_VERSION");
    let common = format!("Host: {host}\r\nUser-Agent: rowmilld/{version}\r\n");
    match body {
        Body::None => format!("GET {path} HTTP/1.1\r\n{common}\r\n").into(),
        Body::Of(kind, bytes) => {
            let length = bytes.len();
            let head = format!(
                "POST {path} HTTP/1.1\r\n{common}Content-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
            );
            [head.as_bytes(), bytes].concat()
        }
    }
}

struct Head {
    code: u16,
    /// Where the body begins, and its bytes.
    end: usize,
    length: usize,
    /// Whether the connection ends after it.
    ends: bool,
}

/// Reads the head of an answer, as soon as all of it is there.
fn parse(bytes: &[u8]) -> Result<Option<Head>, &'static str> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let end = match response.parse(bytes) {
        Ok(httparse::Status::Complete(end)) => end,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err("it is no HTTP/1.1"),
    };
    let code = response.code.ok_or("it has no status")?;
    let of = |name: &str| {
        let mut headers = response.headers.iter();
        let header = headers.find(|header| header.name.eq_ignore_ascii_case(name))?;
        str::from_utf8(header.value).ok()
    };
    let length = match of("content-length") {
        Some(text) => text.parse().map_err(|_| "its length is no number")?,
        None if code == 204 => 0,
        None => return Err("it does not say how long it is"),
    };
    let ends = of("connection").is_some_and(|text| text.eq_ignore_ascii_case("close"));
    Ok(Some(Head {
        code,
        end,
        length,
        ends: ends || response.version != Some(1),
    }))
}

#[cfg(test)]
mod tests;
