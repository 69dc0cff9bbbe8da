//! The admin pages over HTTP, and changes where these are allowed, on one thread that is no worker.
//!
//! What a visitor can take is bounded: `VISITORS` connections, `HEAD_BYTES` each for what they
//! send, one page each for what they get, `PATIENCE` in all. When too many come, the oldest goes. A
//! visitor that sends or reads slowly holds up nobody, since no socket here blocks. (The small HTTP
//! servers in use, tiny_http among them, start threads and buffer headers without a bound and have
//! no time limit, so the sockets are handled here; httparse reads what they send.)

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::change_page::{NO_POST, Wish};
use crate::overview::{Overview, Page};

/// Connections at a time: a person, a browser's six, a few scrapers.
const VISITORS: usize = 32;
/// Longest request head; browsers send about 1 KiB.
const HEAD_BYTES: usize = 8 << 10;
/// Most headers of a request.
const HEADERS: usize = 64;
/// A visit takes at most so long, from connecting to the last byte.
const PATIENCE: Duration = Duration::from_secs(5);
/// The admin thread's name; a panic on it ends a visit, not the process.
pub const THREAD: &str = "rowmilld-admin";

/// Why there are no admin pages.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The address is taken or not ours.
    #[error(
        "admin.address: cannot listen on {address} (is another rowmilld running? choose another port, or \"off\")"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// No thread could be started.
    #[error("cannot start the admin thread")]
    Thread(#[source] std::io::Error),
}

/// Starts to serve the pages of `overview` at `address`, for as long as the process lives. Returns
/// the address, with the port that the kernel chose where port 0 was asked for.
///
/// # Errors
/// [`AdminError`].
pub fn serve(address: SocketAddr, overview: Arc<Overview>) -> Result<SocketAddr, AdminError> {
    let failed = |source| AdminError::Listen { address, source };
    let listener = bind(address)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let thread = std::thread::Builder::new().name(THREAD.into());
    let work = move || {
        let mut visitors = Vec::with_capacity(VISITORS);
        loop {
            let turn = AssertUnwindSafe(|| turn(&listener, &mut visitors, &overview));
            if catch_unwind(turn).is_err() {
                visitors.clear();
                // Should it panic again and again, the log grows slowly at least.
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    };
    thread.spawn(work).map_err(AdminError::Thread)?;
    Ok(bound)
}

/// Takes the address. Dropping the listener gives it back.
///
/// # Errors
/// [`AdminError::Listen`].
pub fn bind(address: SocketAddr) -> Result<TcpListener, AdminError> {
    TcpListener::bind(address).map_err(|source| AdminError::Listen { address, source })
}

/// Waits for something to do, and does it.
fn turn(listener: &TcpListener, visitors: &mut Vec<Visitor>, overview: &Overview) {
    let mut fds = Vec::with_capacity(1 + VISITORS);
    fds.push(PollFd::new(listener, PollFlags::IN));
    fds.extend(visitors.iter().map(|v| PollFd::new(&v.stream, v.wants())));
    // Visitors whose time is over are looked for about once a second.
    let limit = (!visitors.is_empty()).then_some(Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    });
    let outcome = poll(&mut fds, limit.as_ref());
    let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
    drop(fds);
    if outcome.is_err() {
        // A signal came between, or the kernel is short of memory; neither is cured by hurry.
        std::thread::sleep(Duration::from_millis(10));
        return;
    }
    let now = Instant::now();
    let mut ready = ready.into_iter();
    let newcomers = ready.next().unwrap_or(false);
    visitors.retain_mut(|visitor| {
        let ready = ready.next().unwrap_or(false);
        let stays = !ready || visitor.advance(overview);
        stays && now.duration_since(visitor.since) < PATIENCE
    });
    if newcomers {
        accept(listener, visitors, now);
    }
}

fn accept(listener: &TcpListener, visitors: &mut Vec<Visitor>, now: Instant) {
    match listener.accept() {
        Ok((stream, address)) => {
            if stream.set_nonblocking(true).is_ok() {
                if visitors.len() == VISITORS {
                    visitors.remove(0); // Newcomers are pushed behind, so this is the oldest.
                }
                visitors.push(Visitor {
                    stream,
                    is_local: address.ip().to_canonical().is_loopback(),
                    since: now,
                    head: Vec::new(),
                    reply: Vec::new(),
                    sent: 0,
                });
            }
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        // Out of descriptors, most likely; the newcomer stays in the kernel's queue meanwhile.
        Err(_) => std::thread::sleep(Duration::from_millis(100)),
    }
}

/// One connection: it asks once, is answered, and goes.
struct Visitor {
    stream: TcpStream,
    /// Whether it is on this host.
    is_local: bool,
    since: Instant,
    head: Vec<u8>,
    reply: Vec<u8>,
    sent: usize,
}

impl Visitor {
    fn wants(&self) -> PollFlags {
        if self.reply.is_empty() {
            PollFlags::IN
        } else {
            PollFlags::OUT
        }
    }

    /// Reads or writes what can be. Returns whether the visit goes on.
    fn advance(&mut self, overview: &Overview) -> bool {
        if self.reply.is_empty() {
            let mut part = [0; 2048];
            match self.stream.read(&mut part) {
                Ok(0) => return false,
                Ok(len) => self.head.extend_from_slice(&part[..len]),
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
            match answer(&self.head, self.is_local, overview) {
                None => return true,
                Some(reply) => self.reply = reply,
            }
        }
        match self.stream.write(&self.reply[self.sent..]) {
            Ok(len) => self.sent += len,
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
        if self.sent < self.reply.len() {
            return true;
        }
        // What the visitor still sends is of no interest; its end of the connection may be gone.
        let _gone = self.stream.shutdown(Shutdown::Write);
        false
    }
}

/// The whole reply to what was sent so far, or `None` while more is to come.
fn answer(head: &[u8], is_local: bool, overview: &Overview) -> Option<Vec<u8>> {
    let refusal = |code, body: &str| Page {
        code,
        kind: "text/plain; charset=utf-8",
        body: body.into(),
    };
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let (page, with_body) = match request.parse(head) {
        Ok(httparse::Status::Partial) if head.len() < HEAD_BYTES => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            (refusal(431, "the request head is too large\n"), true)
        }
        Err(error) => (refusal(400, &format!("{error}\n")), true),
        Ok(httparse::Status::Complete(_)) => match request.method.unwrap_or_default() {
            "GET" => (overview.page(request.path.unwrap_or_default()), true),
            "HEAD" => (overview.page(request.path.unwrap_or_default()), false),
            "POST" => {
                let mut headers = request.headers.iter();
                let wish = Wish {
                    path: request.path.unwrap_or_default(),
                    is_local,
                    // Browsers say where a page is from that posts something.
                    is_of_a_page: headers.any(|h| h.name.eq_ignore_ascii_case("origin")),
                };
                (overview.change(wish), true)
            }
            _ => (refusal(405, &format!("{NO_POST}\n")), true),
        },
    };
    let mut reply = format!(
        "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        page.code,
        reason(page.code),
        page.kind,
        page.body.len()
    );
    if with_body {
        reply.push_str(&page.body);
    }
    Some(reply.into_bytes())
}

fn reason(code: u16) -> &'static str {
    match code {
        200 => "OK",
        202 => "Accepted",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "",
    }
}
