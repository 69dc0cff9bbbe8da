//! Asking a control plane: HTTP/1.1 over TLS, TCP or a Unix socket, one request a connection.
//!
//! ureq, which asks `rowmilld`, has no Unix sockets but by an interface that it calls unstable.

use core::time::Duration;
use std::io::{Error, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use rowmill_trust::{ClientFiles, Token, connect, explain, is_open_to_all};
use serde_json::Value;

use crate::output::{note, shown};

/// Longest answer that is read: a thousand tables take a few MiB.
const PAGE_BYTES: u64 = 64 << 20;
/// Pages are made in memory, so a control plane that takes longer is stuck.
const PATIENCE: Duration = Duration::from_secs(5);

/// Who is given a delta reads all of it, and sees to it that it is on the disk.
const LONG_PATIENCE: Duration = Duration::from_secs(120);

/// What is sent with a request, and how long an answer to that may take.
struct Sent {
    kind: &'static str,
    length: u64,
    patience: Duration,
}

/// Which control plane, and what is shown to it.
#[derive(Args, Default)]
pub(crate) struct Control {
    /// The control plane: https://HOST:PORT, http://HOST:PORT or unix:PATH
    #[arg(
        long,
        value_name = "WHERE",
        env = "ROWMILL_CONTROL",
        default_value = "http://127.0.0.1:7403"
    )]
    control: String,
    /// For https: the authority that issued the control plane's certificate, in PEM
    #[arg(long, value_name = "FILE", env = "ROWMILL_CONTROL_CA")]
    ca: Option<PathBuf>,
    /// For https: the certificate that says who you are, in PEM
    #[arg(
        long,
        value_name = "FILE",
        env = "ROWMILL_CONTROL_CERTIFICATE",
        requires = "key"
    )]
    certificate: Option<PathBuf>,
    /// The certificate's key, in PEM
    #[arg(
        long,
        value_name = "FILE",
        env = "ROWMILL_CONTROL_KEY",
        requires = "certificate"
    )]
    key: Option<PathBuf>,
    /// A file with the token that says who you are
    #[arg(long, value_name = "FILE", env = "ROWMILL_CONTROL_TOKEN_FILE")]
    token_file: Option<PathBuf>,
}

/// A connection, of either kind.
trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

impl Control {
    /// A page.
    pub(crate) fn get(&self, path: &str) -> Result<Value> {
        let text = self.ask("GET", path, "")?;
        serde_json::from_str(&text).with_context(|| {
            format!(
                "what {} sent is not JSON: is this a control plane?",
                self.control
            )
        })
    }

    /// Asks for something, and returns the body of the answer; of a refusal what it says is the error.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> Result<String> {
        let sent = Sent {
            kind: "application/json",
            length: body.len() as u64,
            patience: PATIENCE,
        };
        self.exchange(method, path, sent, &mut |stream| {
            stream.write_all(body.as_bytes())
        })
    }

    /// Posts so many bytes, that `write` writes, and returns the body of the answer as [`ask`](Self::ask) does. Who takes them may
    /// have to read all of them before it answers.
    pub(crate) fn post_bytes(
        &self,
        path: &str,
        length: u64,
        write: &mut dyn FnMut(&mut dyn Write) -> std::io::Result<()>,
    ) -> Result<String> {
        let sent = Sent {
            kind: "application/octet-stream",
            length,
            patience: LONG_PATIENCE,
        };
        self.exchange("POST", path, sent, write)
    }

    fn exchange(
        &self,
        method: &str,
        path: &str,
        sent: Sent,
        write: &mut dyn FnMut(&mut dyn Write) -> std::io::Result<()>,
    ) -> Result<String> {
        let token = self.token_file.as_deref().map(Token::read).transpose()?;
        let (mut stream, host) = self.connect(token.is_some(), sent.patience)?;
        let token = token.map(|token| format!("Authorization: Bearer {}\r\n", token.secret()));
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\n{}Connection: close\r\nContent-Type: {}\r\nContent-Length: {}\r\n\r\n",
            token.unwrap_or_default(),
            sent.kind,
            sent.length
        );
        let mut answer = Vec::new();
        let asked = stream
            .write_all(head.as_bytes())
            .and_then(|()| write(&mut stream));
        let asked = asked.and_then(|()| stream.flush());
        // Who refuses a long body may have said why before it came.
        let (asked, unsent) = match asked {
            Err(error) if sent.length > 0 && is_closed(&error) => (Ok(()), Some(error)),
            asked => (asked, None),
        };
        let read = asked.and_then(|()| stream.take(PAGE_BYTES).read_to_end(&mut answer));
        let read = match (read, unsent) {
            // An answer without a length may have broken off, if not all of the body was taken.
            (Ok(_), Some(error)) if !tells_length(&answer) => Err(error),
            (read, _) => read,
        };
        match read {
            Ok(_) => {}
            // Who ends without the goodbye of TLS, or has not read all of a body, may have said all: the length tells.
            Err(error)
                if (error.kind() == ErrorKind::UnexpectedEof || is_closed(&error))
                    && tells_length(&answer) => {}
            Err(error) => {
                let known = match method {
                    "GET" => "",
                    _ => {
                        ": it may have done nevertheless what it was asked to, so look before this is asked again"
                    }
                };
                return Err(self.untrusted(&error).unwrap_or_else(|| {
                    anyhow!(error).context(format!("{} did not answer{known}", self.control))
                }));
            }
        }
        let (code, body) = parted(&answer).ok_or_else(|| {
            anyhow!(
                "what {} sent is no answer of HTTP: is this a control plane?",
                self.control
            )
        })?;
        if !(200..300).contains(&code) {
            let page: Option<Value> = serde_json::from_str(&body).ok();
            let told = page.as_ref().and_then(|page| page["error"].as_str());
            bail!(
                "{}",
                shown(told.unwrap_or(&format!("{} answered {code}", self.control)))
            );
        }
        Ok(body)
    }

    fn connect(&self, has_token: bool, patience: Duration) -> Result<(Box<dyn Stream>, String)> {
        if let Some(path) = self.control.strip_prefix("unix:") {
            let stream = UnixStream::connect(path).with_context(|| self.unreachable())?;
            stream.set_read_timeout(Some(patience))?;
            stream.set_write_timeout(Some(patience))?;
            return Ok((Box::new(stream), "rowmill-control".into()));
        }
        let schemes = [("https://", true), ("http://", false)];
        let found = schemes.into_iter().find_map(|(scheme, secured)| {
            let host = self.control.strip_prefix(scheme)?;
            Some((host.trim_end_matches('/'), secured))
        });
        let (host, secured) = found.with_context(|| {
            format!(
                "--control {}: write https://HOST:PORT, http://HOST:PORT or unix:PATH",
                self.control
            )
        })?;
        ensure!(
            secured || (self.ca.is_none() && self.certificate.is_none()),
            "{}: --ca and --certificate are for TLS: write --control https://HOST:PORT, or leave them out",
            self.control
        );
        let stream = self.dial(host, patience)?;
        if secured {
            return Ok((self.secure(host, stream)?, host.into()));
        }
        let is_here = stream.peer_addr()?.ip().is_loopback();
        ensure!(
            is_here || !has_token,
            "{}: a token is not sent without TLS beyond this host, since whoever is in between could use it: write https://",
            self.control
        );
        Ok((Box::new(stream), host.into()))
    }

    fn dial(&self, host: &str, patience: Duration) -> Result<TcpStream> {
        let mut last = None;
        let addresses = host.to_socket_addrs();
        for address in addresses.with_context(|| self.unreachable())? {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(patience))?;
                    stream.set_write_timeout(Some(patience))?;
                    return Ok(stream);
                }
                Err(error) => last = Some(error),
            }
        }
        let last = last.map_or_else(|| anyhow!("{host} has no address"), Into::into);
        Err(last.context(self.unreachable()))
    }

    fn secure(&self, host: &str, stream: TcpStream) -> Result<Box<dyn Stream>> {
        let ca = self.ca.clone();
        let ca = ca.context("https:// needs --ca FILE (or ROWMILL_CONTROL_CA): the authority that issued the control plane's certificate")?;
        let files = ClientFiles {
            ca,
            own: self.certificate.clone().zip(self.key.clone()),
        };
        let secrets = files.key().into_iter().chain(self.token_file.as_deref());
        for path in secrets.filter(|path| is_open_to_all(path)) {
            note(&format!(
                "warning: everybody on this host may read {}: chmod 600",
                path.display()
            ));
        }
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        let stream = connect(&files.read()?, bare, stream);
        let stream = stream.map_err(|error| {
            self.untrusted(&error)
                .unwrap_or_else(|| anyhow!(error).context(self.unreachable()))
        })?;
        Ok(Box::new(stream))
    }

    fn unreachable(&self) -> String {
        format!(
            "cannot connect to {}: is rowmill-control running, and is this where it listens?",
            self.control
        )
    }

    /// What it was, where it was TLS.
    fn untrusted(&self, error: &Error) -> Option<anyhow::Error> {
        explain(error).map(|why| anyhow!("cannot speak TLS with {}: {why}", self.control))
    }
}

/// Whether the other end has closed the connection, with something on the way to it or before it came.
fn is_closed(error: &Error) -> bool {
    [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset].contains(&error.kind())
}

/// Whether an answer tells how long it is, so that one that is cut off is known.
fn tells_length(answer: &[u8]) -> bool {
    head_and_body(answer).is_some_and(|(head, _)| length(head).is_some())
}

/// An answer's head, without the empty line, and its body.
fn head_and_body(answer: &[u8]) -> Option<(&str, &[u8])> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    Some((str::from_utf8(&answer[..end]).ok()?, &answer[end + 4..]))
}

/// How long a head says that the body is.
fn length(head: &str) -> Option<usize> {
    let lengths = head.split("\r\n").skip(1).filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        let named = name.eq_ignore_ascii_case("content-length");
        named.then(|| value.trim().parse::<usize>().ok())?
    });
    lengths.last()
}

/// The status and body of an answer that tells its body's length, or has none.
fn parted(answer: &[u8]) -> Option<(u16, String)> {
    let (head, body) = head_and_body(answer)?;
    let code = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    // One that broke off is none.
    let whole = length(head).is_none_or(|length| length == body.len());
    whole.then(|| Some((code, String::from_utf8(body.into()).ok()?)))?
}

/// A name as a part of a path.
pub(crate) fn part(name: &str) -> Result<String> {
    ensure!(!name.is_empty(), "a name is empty");
    let escaped = name.bytes().map(|byte| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    });
    Ok(escaped.collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    use super::*;

    /// One that answers once, and tells what it was asked.
    fn answering(answer: &'static str) -> (Control, JoinHandle<String>) {
        answering_in_turn(vec![answer.into()])
    }

    /// One that answers so many requests, and tells what the last one was.
    pub(crate) fn answering_in_turn(answers: Vec<String>) -> (Control, JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let control = format!("http://{}", listener.local_addr().unwrap());
        let asked = std::thread::spawn(move || {
            let mut text = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                text.clear();
                while parted(&text).is_none() && !whole(&text) {
                    let mut some = [0; 1024];
                    let read = stream.read(&mut some).unwrap();
                    assert!(read > 0);
                    text.extend_from_slice(&some[..read]);
                }
                stream.write_all(answer.as_bytes()).unwrap();
            }
            String::from_utf8(text).unwrap()
        });
        let control = Control {
            control,
            ..Control::default()
        };
        (control, asked)
    }

    fn whole(request: &[u8]) -> bool {
        let text = String::from_utf8_lossy(request);
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            return false;
        };
        head.contains(&format!("Content-Length: {}", body.len()))
    }

    #[test]
    fn a_refusal_is_told_though_most_of_a_body_was_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let refusing = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 100]).unwrap();
            let answer = "HTTP/1.1 500 No\r\ncontent-length: 16\r\n\r\n{\"error\":\"full\"}";
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let control = Control {
            control: format!("unix:{}", path.display()),
            ..Control::default()
        };
        let body = vec![0; 4 << 20];
        let length = body.len() as u64;
        let told = control.post_bytes("/", length, &mut |stream| stream.write_all(&body));
        assert_eq!(told.unwrap_err().to_string(), "full");
        refusing.join().unwrap();
    }

    #[test]
    fn who_dies_amid_a_body_may_have_done_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        for said in ["", "HTTP/1.1 200 OK\r\n\r\n{"] {
            let control = Control {
                control: format!("unix:{}", path.display()),
                ..Control::default()
            };
            let listener = listener.try_clone().unwrap();
            let dying = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                stream.read_exact(&mut [0; 100]).unwrap();
                stream.write_all(said.as_bytes()).unwrap();
            });
            let body = vec![0; 4 << 20];
            let length = body.len() as u64;
            let told = control.post_bytes("/", length, &mut |stream| stream.write_all(&body));
            let told = told.unwrap_err().to_string();
            assert!(told.contains("may have done nevertheless"), "{told}");
            dying.join().unwrap();
        }
    }

    #[test]
    fn pages_are_read_and_refusals_are_told() {
        let (control, asked) = answering("HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n{\"a\":1}");
        assert_eq!(control.get("/v1/status").unwrap()["a"], 1);
        let asked = asked.join().unwrap();
        assert!(
            asked.starts_with("GET /v1/status HTTP/1.1\r\nHost: 127.0.0.1:"),
            "{asked}"
        );
        let (control, _) = answering(
            "HTTP/1.1 404 Not Found\r\ncontent-length: 22\r\n\r\n{\"error\":\"no\\u001bthere\"}",
        );
        let error = control.get("/").unwrap_err().to_string();
        assert!(!error.contains('\u{1b}'), "{error}");
        for broken in [
            "HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n{}",
            "SSH-2.0\r\n\r\n",
            "HTTP/1.1 200 OK",
        ] {
            let (control, _) = answering(broken);
            let error = control.get("/").unwrap_err().to_string();
            assert!(error.contains("is this a control plane"), "{error}");
        }
        let nowhere = Control {
            control: "unix:/nowhere/at/all".into(),
            ..Control::default()
        };
        assert!(
            nowhere
                .get("/")
                .unwrap_err()
                .to_string()
                .contains("is rowmill-control running")
        );
        let nothing = Control {
            control: "127.0.0.1:7403".into(),
            ..Control::default()
        };
        assert!(
            nothing
                .get("/")
                .unwrap_err()
                .to_string()
                .contains("write https://HOST:PORT")
        );
    }

    #[test]
    fn names_are_parts_of_paths() {
        assert_eq!(part("cat_0.x-1").unwrap(), "cat_0.x-1");
        assert_eq!(part("a/b %é").unwrap(), "a%2Fb%20%25%C3%A9");
        assert!(part("").is_err());
    }
}
