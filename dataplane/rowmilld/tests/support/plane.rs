//! What a dataplane takes for its control plane: it answers as it is told.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rowmill_link::{Order, Policy, Report, Samples, TablePolicy};
use rowmill_trust::tls::{ServerConfig, ServerConnection, StreamOwned};

/// Long enough for a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is known of the dataplane, and what it is told.
#[derive(Default)]
pub struct Known {
    pub report: Option<Report>,
    pub reports: u64,
    pub samples: Vec<Samples>,
    policy: Option<Policy>,
    /// What each delta that is asked for has.
    delta: Option<Vec<u8>>,
    /// What every request is answered with, where it is not what it should be.
    garbage: Option<Vec<u8>>,
    /// Connections that were ended since.
    turn: u64,
    /// Whether none lasts.
    is_gone: bool,
    /// What was shown last beside a request.
    pub authorization: Option<String>,
    /// The server's end of TLS, where that is spoken.
    tls: Option<Arc<ServerConfig>>,
}

/// A connection, inside TLS or not.
trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// See the file's text.
#[derive(Clone)]
pub struct Plane {
    known: Arc<(Mutex<Known>, Condvar)>,
    pub address: SocketAddr,
}

impl Plane {
    pub fn new() -> Plane {
        Plane::start(None)
    }

    /// One that speaks TLS.
    pub fn secured(tls: Arc<ServerConfig>) -> Plane {
        Plane::start(Some(tls))
    }

    fn start(tls: Option<Arc<ServerConfig>>) -> Plane {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let plane = Plane {
            known: Arc::default(),
            address,
        };
        plane.lock().tls = tls;
        let own = plane.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let own = own.clone();
                // The dataplane leaves when it likes.
                std::thread::spawn(move || own.serve(stream.unwrap()).ok());
            }
        });
        plane
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.0.lock().unwrap()
    }

    /// Publishes a policy.
    pub fn publish(&self, control: &str, epoch: u64, version: u64, tables: Vec<TablePolicy>) {
        let order = Order { epoch, version };
        let control = control.into();
        self.lock().policy = Some(Policy {
            control,
            order,
            tables,
            generations: None,
        });
        self.known.1.notify_all();
    }

    /// Has this for a delta, whichever is asked for.
    pub fn give_delta(&self, bytes: Vec<u8>) {
        self.lock().delta = Some(bytes);
    }

    /// Answers all requests with this from now on, or as it should.
    pub fn answer_with(&self, garbage: Option<&[u8]>) {
        let mut known = self.lock();
        known.garbage = garbage.map(<[u8]>::to_vec);
        known.turn += 1;
        self.known.1.notify_all();
    }

    /// Ends all connections, and new ones at once, or no more.
    pub fn be_gone(&self, is_gone: bool) {
        let mut known = self.lock();
        known.is_gone = is_gone;
        known.turn += 1;
        self.known.1.notify_all();
    }

    /// Speaks TLS so from now on, or none, on new connections alone: others end.
    pub fn secure_with(&self, tls: Option<Arc<ServerConfig>>) {
        let mut known = self.lock();
        known.tls = tls;
        known.turn += 1;
        self.known.1.notify_all();
    }

    /// Waits until what is known of the dataplane is as wanted.
    pub fn wait<T>(&self, what: &str, is_so: impl Fn(&Known) -> Option<T>) -> T {
        let until = Instant::now() + PATIENCE;
        let mut known = self.lock();
        loop {
            if let Some(found) = is_so(&known) {
                return found;
            }
            let left = until.checked_duration_since(Instant::now());
            let left = left.unwrap_or_else(|| panic!("no {what}: {:#?}", known.report));
            known = self.known.1.wait_timeout(known, left).unwrap().0;
        }
    }

    /// Waits for a report that is as wanted.
    pub fn report(&self, what: &str, is_so: impl Fn(&Report) -> bool) -> Report {
        self.wait(what, |known| known.report.clone().filter(&is_so))
    }

    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        let (turn, tls) = {
            let known = self.lock();
            (known.turn, known.tls.clone())
        };
        let stream: Box<dyn Stream> = match tls {
            None => Box::new(stream),
            Some(tls) => {
                let connection = ServerConnection::new(tls).map_err(std::io::Error::other)?;
                Box::new(StreamOwned::new(connection, stream))
            }
        };
        let mut reader = BufReader::new(stream);
        loop {
            let mut first = String::new();
            if reader.read_line(&mut first)? == 0 {
                return Ok(());
            }
            let mut headers = BTreeMap::new();
            loop {
                let mut line = String::new();
                reader.read_line(&mut line)?;
                let Some((name, value)) = line.trim().split_once(": ") else {
                    break;
                };
                headers.insert(name.to_lowercase(), value.to_owned());
            }
            let length = headers.get("content-length");
            let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
            reader.read_exact(&mut body)?;
            let is_gone = {
                let mut known = self.lock();
                known.authorization = headers.get("authorization").cloned();
                known.is_gone
            };
            if is_gone {
                return Ok(());
            }
            let answer = self.answer(&first, &body, turn);
            let Some(answer) = answer else {
                return Ok(());
            };
            reader.get_mut().write_all(&answer)?;
            reader.get_mut().flush()?;
        }
    }

    fn answer(&self, first: &str, body: &[u8], turn: u64) -> Option<Vec<u8>> {
        let none = b"HTTP/1.1 204 No Content\r\n\r\n".to_vec();
        let mut known = self.lock();
        if let Some(garbage) = &known.garbage {
            return Some(garbage.clone());
        }
        if known.turn != turn {
            return None;
        }
        let path = first.split(' ').nth(1).unwrap();
        let path = path.strip_prefix("/v1/dataplanes/test/").unwrap();
        if path == "report" {
            known.report = Some(serde_json::from_slice(body).unwrap());
            known.reports += 1;
            self.known.1.notify_all();
            return Some(none);
        }
        if path == "samples" {
            known.samples.push(Samples::decode(body).unwrap());
            self.known.1.notify_all();
            return Some(none);
        }
        if let Some((_, at)) = path.split_once("&at=") {
            let Some(delta) = &known.delta else {
                return Some(none);
            };
            let piece = &delta[at.parse().unwrap()..];
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", piece.len());
            return Some([head.as_bytes(), piece].concat());
        }
        let after: Order = path.split("after=").nth(1).unwrap().parse().unwrap();
        let until = Instant::now() + Duration::from_secs(2);
        loop {
            if known.turn != turn || known.garbage.is_some() {
                return None;
            }
            if let Some(policy) = known.policy.as_ref().filter(|policy| policy.order > after) {
                let body = serde_json::to_string(policy).unwrap();
                let length = body.len();
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
                return Some((head + &body).into());
            }
            let Some(left) = until.checked_duration_since(Instant::now()) else {
                return Some(none);
            };
            known = self.known.1.wait_timeout(known, left).unwrap().0;
        }
    }
}
