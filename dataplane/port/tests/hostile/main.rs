//! Peers of the shared-memory port that break its rules on the socket, and servers that die.

mod endings;
mod regions;

use std::io::{IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rowmill_arena::{HugePages, sealed_memfd};
use rowmill_port::conformance::{Answers, Journal, Task, Worker};
use rowmill_port::shm::{ShmClient, ShmConfig, ShmLane, ShmServer, socket_path};
use rowmill_port::{ClientPort, ConnId, Idle, PendingBind, PortError, ServerPort, Service};
use rowmill_wire::control::{Control, Rights, TableEntry, Welcome};
use rowmill_wire::limits::MAX_CONTROL_BYTES;
use rowmill_wire::{Pooling, Refusal, Schema, Status};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    recvmsg, sendmsg, socket_with, socketpair, sockopt,
};
use tempfile::TempDir;

struct Server {
    endpoint: String,
    server: ShmServer,
    stop: Arc<AtomicBool>,
    workers: Vec<JoinHandle<()>>,
    _folder: TempDir,
}

impl Server {
    fn start(config: ShmConfig) -> Server {
        let answers = Arc::new(Answers::new(config.lanes));
        Server::start_with(config, answers)
    }

    fn start_with(config: ShmConfig, service: Arc<dyn Service>) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = format!("shm:{}/h.sock", folder.path().display());
        let (server, lanes) = ShmServer::listen(&endpoint, config, service).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let workers = lanes
            .into_iter()
            .map(|lane| {
                let stop = stop.clone();
                thread::spawn(move || work(lane, &stop))
            })
            .collect();
        Server {
            endpoint,
            server,
            stop,
            workers,
            _folder: folder,
        }
    }

    fn stream(&self) -> Stream {
        let flags = SocketFlags::CLOEXEC;
        let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let path = socket_path(&self.endpoint).unwrap();
        connect(&fd, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        let limit = Some(Duration::from_secs(10));
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, limit).unwrap();
        Stream(fd)
    }

    /// A stream that has said hello, and so many descriptors less to hold.
    fn member(&self) -> Stream {
        let stream = self.stream();
        stream.tell(&hello("raw"), &[]);
        assert!(matches!(stream.answer(), Some(Control::Welcome(_))));
        stream
    }

    /// Somebody else, who must notice nothing.
    fn check_others(&self) {
        let mut client = ShmClient::connect(&self.endpoint, "honest", 2).unwrap();
        client.submit(0, 0, &Task::Echo.frame()).unwrap();
        until("an answer", || client.poll(0).unwrap().is_some());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.join().unwrap();
        }
    }
}

fn work(mut lane: ShmLane, stop: &AtomicBool) {
    let mut worker = Worker::new(Arc::new(Journal::default()));
    while !stop.load(Ordering::SeqCst) {
        if !worker.turn(&mut lane) {
            lane.idle(Idle::Sleep(Some(Duration::from_millis(5))));
        }
    }
}

struct Stream(OwnedFd);

impl Stream {
    fn tell(&self, question: &Control, fds: &[BorrowedFd<'_>]) {
        self.tell_bytes(&question.encode(7), fds).unwrap();
    }

    fn tell_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
        let rights = SendAncillaryMessage::ScmRights(fds);
        let mut space = vec![MaybeUninit::uninit(); rights.size()];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(rights));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.0, &[IoSlice::new(bytes)], &mut ancillary, flags)
    }

    /// The next answer, its descriptors dropped; `None` at the end of the stream.
    fn answer(&self) -> Option<Control> {
        let mut bytes = vec![0; MAX_CONTROL_BYTES];
        let (_, len) = match recv(&self.0, &mut bytes[..], RecvFlags::empty()) {
            Ok(received) => received,
            Err(Errno::CONNRESET) => return None,
            Err(errno) => panic!("no answer: {errno}"),
        };
        match len {
            0 => None,
            _ => Some(Control::parse(&bytes[..len]).unwrap().1),
        }
    }

    fn refusal(&self) -> Status {
        match self.answer() {
            Some(Control::Refused { refusal, .. }) => refusal.status,
            other => panic!("a refusal, not {other:?}"),
        }
    }
}

fn hello(client: &str) -> Control {
    Control::Hello {
        client: client.to_owned(),
        credits: 2,
    }
}

#[track_caller]
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let since = Instant::now();
    while !done() {
        assert!(since.elapsed() < Duration::from_secs(20), "{what}");
        thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn silent_connections_are_dropped_and_shut_nobody_out() {
    let limit = Duration::from_millis(300);
    let server = Server::start(ShmConfig {
        handshake_limit: limit,
        max_connections: 2,
        ..ShmConfig::default()
    });
    let silent: Vec<Stream> = (0..100).map(|_| server.stream()).collect();
    let since = Instant::now();
    server.check_others();
    assert!(since.elapsed() < Duration::from_secs(5));
    for stream in &silent {
        assert_eq!(stream.answer(), None);
    }
    server.check_others();
}

#[test]
fn garbage_before_hello_is_refused_and_the_stream_closed() {
    let server = Server::start(ShmConfig::default());
    let mut old = hello("old").encode(1);
    old[0] = 99;
    for (bytes, status) in [
        (vec![0xff; 64], Status::UnsupportedVersion),
        (vec![0; 1], Status::Malformed),
        (old, Status::UnsupportedVersion),
        (vec![0xff; MAX_CONTROL_BYTES + 1], Status::TooLarge),
        (
            Control::ListTables { first: 0 }.encode(1),
            Status::Malformed,
        ),
    ] {
        let stream = server.stream();
        stream.tell_bytes(&bytes, &[]).unwrap();
        assert_eq!(stream.refusal(), status);
        assert_eq!(stream.answer(), None);
    }
    let stream = server.stream();
    let question = Control::Hello {
        client: String::new(),
        credits: 0,
    };
    stream.tell(&question, &[]);
    assert_eq!(stream.refusal(), Status::Malformed);
    server.check_others();
    assert_eq!(server.server.counters().refused, 6);
}

/// A schema that no worker takes in.
fn bind_held() -> Control {
    let feature = ("f", Answers::HELD, Pooling::Sum, 4);
    Control::Bind(Schema::side_by_side(8, [feature]).0)
}

#[test]
fn who_asks_again_before_its_schema_is_bound_is_cut_off() {
    let answers = Arc::new(Answers::new(1));
    let server = Server::start_with(ShmConfig::default(), answers.clone());
    let stream = server.member();
    stream.tell(&bind_held(), &[]);
    until("a bind", || answers.held() == 1);
    stream.tell(&Control::ListTables { first: 0 }, &[]);
    assert_eq!(stream.answer(), None, "neither is answered");
    assert_eq!(answers.held(), 0, "the schema is abandoned");
    assert_eq!(server.server.counters().violations, 1);
    server.check_others();
}

#[test]
fn who_hangs_up_while_it_binds_is_forgotten() {
    let answers = Arc::new(Answers::new(1));
    let server = Server::start_with(ShmConfig::default(), answers.clone());
    let stream = server.member();
    stream.tell(&bind_held(), &[]);
    until("a bind", || answers.held() == 1);
    drop(stream);
    until("its end", || answers.gone().len() == 1);
    assert_eq!(answers.held(), 0, "the schema is abandoned");
    server.check_others();
}

#[test]
fn hello_is_said_once() {
    let server = Server::start(ShmConfig::default());
    let stream = server.member();
    stream.tell(&hello("again"), &[]);
    assert_eq!(stream.refusal(), Status::Malformed);
    assert_eq!(stream.answer(), None);
    server.check_others();
}

fn socket_pair() -> (Stream, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    (Stream(a), b)
}

#[test]
fn a_client_that_asks_and_does_not_listen_is_cut_off() {
    let server = Server::start(ShmConfig::default());
    let stream = server.member();
    let question = Control::ListTables { first: 0 }.encode(1);
    until("the stream is cut", || {
        matches!(
            stream.tell_bytes(&question, &[]),
            Err(Errno::PIPE | Errno::CONNRESET)
        )
    });
    until("it is counted", || server.server.counters().violations == 1);
    server.check_others();
}

#[test]
fn servers_messages_are_refused() {
    let server = Server::start(ShmConfig::default());
    let stream = server.member();
    for question in [
        Control::Bound { schema: 1 },
        Control::Unregistered { region: 0 },
    ] {
        stream.tell(&question, &[]);
        assert_eq!(stream.refusal(), Status::Unsupported);
    }
    for region in [0, 15, 16, u32::MAX] {
        stream.tell(&Control::Unregister { region }, &[]);
        assert_eq!(stream.refusal(), Status::UnknownRegion);
    }
    server.check_others();
}

#[test]
fn nobody_listening_is_said_with_the_endpoint() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = format!("shm:{}/none.sock", folder.path().display());
    for prepare in [false, true] {
        if prepare {
            let path = socket_path(&endpoint).unwrap();
            drop(std::os::unix::net::UnixListener::bind(path).unwrap());
        }
        match ShmClient::connect(&endpoint, "early", 1) {
            Err(error @ PortError::Connect { .. }) => {
                assert!(error.to_string().contains("none.sock"), "{error}");
            }
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("nobody listens"),
        }
    }
}

const SERVE: &str = "ROWMILL_TEST_SERVE";

/// Not a test by itself: the process that `a_killed_server_is_noticed` starts and kills.
#[test]
fn serve_until_killed() {
    let Ok(endpoint) = std::env::var(SERVE) else {
        return;
    };
    let answers = Arc::new(Answers::new(1));
    let (_server, mut lanes) = ShmServer::listen(&endpoint, ShmConfig::default(), answers).unwrap();
    let mut worker = Worker::new(Arc::new(Journal::default()));
    loop {
        if !worker.turn(&mut lanes[0]) {
            lanes[0].idle(Idle::Sleep(None));
        }
    }
}

#[test]
fn a_killed_server_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = format!("shm:{}/k.sock", folder.path().display());
    let start = || {
        std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "serve_until_killed"])
            .env(SERVE, &endpoint)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap()
    };
    // The second round takes the endpoint over from the one that was killed.
    for _ in 0..2 {
        let mut child = start();
        let mut client = None;
        until("the server listens", || {
            client = ShmClient::connect(&endpoint, "survivor", 2).ok();
            client.is_some()
        });
        let mut client = client.unwrap();
        client.submit(0, 0, &Task::Echo.frame()).unwrap();
        until("an answer", || client.poll(0).unwrap().is_some());
        client.submit(0, 1, &Task::Hold.frame()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let since = Instant::now();
        client.wait(Some(Duration::from_secs(10))).unwrap();
        assert!(matches!(client.poll(0), Err(PortError::Closed)));
        assert!(since.elapsed() < Duration::from_secs(5));
    }
}
