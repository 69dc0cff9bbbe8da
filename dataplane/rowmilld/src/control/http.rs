//! Asking a control plane: HTTP/1.1 on a blocking stream, with a limit of time and of length on everything.
//!
//! (ureq, which the command `rowmill` has, speaks to Unix sockets by interfaces that it calls unversioned; and what is needed here, bodies
//! of a known length on a connection that is kept, is little beside httparse, which is here already.)

use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use rowmill_link::{CONTROL_HEADER, is_name};
use rowmill_trust::{Token, TrustError, explain};

use super::stream::Stream;
use crate::config::{ControlAddress, Credentials};

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
    /// What proves who is who can't be read.
    #[error(transparent)]
    Credentials(#[from] TrustError),
    /// One does not trust the other.
    #[error("cannot speak TLS with {0}: {1}")]
    Untrusted(String, String),
    /// It takes too long.
    #[error("{0} {1}")]
    Late(String, String),
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
    /// The control plane that has answered, if it says so.
    pub(crate) control: Option<String>,
}

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body<'a> {
    /// Nothing: `GET`.
    None,
    /// So many bytes of a kind: `POST`.
    Of(&'a str, &'a [u8]),
}

/// One connection at a time.
#[derive(Debug)]
pub(crate) struct Client {
    address: ControlAddress,
    credentials: Credentials,
    stream: Option<Stream>,
    /// What is shown with each request of the connection.
    token: Option<Token>,
    /// Connections that there were.
    connection: u64,
}

impl Client {
    pub(crate) fn new(address: ControlAddress, credentials: Credentials) -> Client {
        Client {
            address,
            credentials,
            stream: None,
            token: None,
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
                        let why = format!("has not answered within {patience:?}");
                        return Err(AskError::Late(self.address.to_string(), why));
                    }
                    _ if is_stale => {}
                    _ => {
                        let address = self.address.to_string();
                        return Err(match explain(&error) {
                            Some(why) => AskError::Untrusted(address, why),
                            None => AskError::Ended(address, error),
                        });
                    }
                },
            }
        }
    }

    fn strange(&self, why: &'static str) -> Failed {
        Failed::Ask(AskError::Strange(self.address.to_string(), why))
    }

    fn connect(&mut self, until: Instant) -> Result<(), AskError> {
        let credentials = &self.credentials;
        let token = credentials.token_file.as_deref().map(Token::read);
        self.token = token.transpose()?;
        self.stream = Some(Stream::connect(&self.address, credentials, until)?);
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
            self.connect(until).map_err(Failed::Ask)?;
        }
        let path = path(self.connection);
        let request = request(&path, &self.address, self.token.as_ref(), body);
        let stream = self.stream.as_mut().expect("connected");
        stream.set_until(until);
        stream.write_all(&request)?;
        stream.flush()?;
        let mut more = |read: &mut Vec<u8>| -> io::Result<()> {
            let before = read.len();
            read.resize(before + CHUNK, 0);
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
            control: head.control,
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

fn request(path: &str, address: &ControlAddress, token: Option<&Token>, body: Body<'_>) -> Vec<u8> {
    let host = match address {
        ControlAddress::Tcp { host, port, .. } => format!("{host}:{port}"),
        ControlAddress::Off | ControlAddress::Unix(_) => "localhost".into(),
    };
    let version = env!("CARGO_PKG_VERSION");
    let token = token.map(|token| format!("Authorization: Bearer {}\r\n", token.secret()));
    let token = token.unwrap_or_default();
    let common = format!("Host: {host}\r\nUser-Agent: rowmilld/{version}\r\n{token}");
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
    control: Option<String>,
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
        control: of(CONTROL_HEADER)
            .filter(|name| is_name(name))
            .map(str::to_owned),
    }))
}

#[cfg(test)]
mod tests;
