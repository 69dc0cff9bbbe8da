//! Peers of the shared-memory port that break its rules on the socket, and servers that die.

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

#[test]
fn regions_that_cannot_be_trusted_are_refused() {
    let server = Server::start(ShmConfig::default());
    let stream = server.member();
    let plain = |bytes: u64, seals: SealFlags| {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("hostile", flags).unwrap();
        ftruncate(&fd, bytes).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        fd
    };
    let sealed = SealFlags::SHRINK | SealFlags::GROW;
    let file = OwnedFd::from(tempfile::tempfile().unwrap());
    let cases = [
        (
            plain(4096, SealFlags::empty()),
            4096,
            Status::RegionUnsealed,
        ),
        (plain(4096, SealFlags::GROW), 4096, Status::RegionUnsealed),
        (plain(4096, SealFlags::SHRINK), 4096, Status::RegionUnsealed),
        (plain(4096, sealed), 8192, Status::RegionRefused),
        (plain(4096, sealed), 1, Status::RegionRefused),
        (plain(0, sealed), 0, Status::RegionRefused),
        // Neither whole pages nor, the second, allocated.
        (plain(4000, sealed), 4000, Status::RegionRefused),
        (plain(4096, sealed), 4096, Status::RegionRefused),
        (plain(4096, sealed), u64::MAX, Status::RegionRefused),
        (
            plain(4096, sealed | SealFlags::WRITE),
            4096,
            Status::RegionRefused,
        ),
        (file, 4096, Status::RegionRefused),
    ];
    for (i, (fd, bytes, status)) in cases.iter().enumerate() {
        stream.tell(
            &Control::Register {
                bytes: *bytes,
                rights: Rights::Write,
            },
            &[fd.as_fd()],
        );
        assert_eq!(stream.refusal(), *status, "case {i}");
    }
    // Without a descriptor, with two, with many, and one with a message that has none.
    let good = sealed_memfd("good", 4096, HugePages::Off).unwrap();
    let register = Control::Register {
        bytes: 4096,
        rights: Rights::Write,
    };
    for count in [0, 2, 3, 100] {
        stream.tell(&register, &vec![good.as_fd(); count]);
        assert_eq!(stream.refusal(), Status::Malformed, "{count} descriptors");
    }
    stream.tell(&Control::ListTables { first: 0 }, &[good.as_fd()]);
    assert_eq!(stream.refusal(), Status::Malformed);
    // After all that the connection still works.
    stream.tell(&register, &[good.as_fd()]);
    assert_eq!(stream.answer(), Some(Control::Registered { region: 0 }));
    let shown = server.server.connections();
    assert_eq!((shown.len(), shown[0].client.as_str()), (1, "raw"));
    assert_eq!(shown[0].pid, std::process::id() as i32);
    until("the region is shown", || {
        let shown = server.server.connections();
        (shown[0].regions, shown[0].region_bytes) == (1, 4096)
    });
    server.check_others();
}

#[test]
fn descriptors_are_not_kept() {
    let server = Server::start(ShmConfig::default());
    let stream = server.member();
    let probe = sealed_memfd("kept-or-not", 4096, HugePages::Off).unwrap();
    let open = || {
        let entries = std::fs::read_dir("/proc/self/fd").unwrap();
        entries
            .filter_map(|e| std::fs::read_link(e.unwrap().path()).ok())
            .filter(|link| link.to_string_lossy().contains("kept-or-not"))
            .count()
    };
    assert_eq!(open(), 1);
    for _ in 0..50 {
        stream.tell(&Control::ListTables { first: 0 }, &[probe.as_fd(); 20]);
        assert_eq!(stream.refusal(), Status::Malformed);
        stream.tell(
            &Control::Register {
                bytes: 4096,
                rights: Rights::Write,
            },
            &[probe.as_fd()],
        );
        let Some(Control::Registered { region }) = stream.answer() else {
            panic!("registered");
        };
        stream.tell(&Control::Unregister { region }, &[]);
        assert_eq!(stream.answer(), Some(Control::Unregistered { region }));
    }
    assert_eq!(open(), 1);
}

#[test]
fn regions_are_bounded_together() {
    let server = Server::start(ShmConfig {
        max_region_bytes: 3 * 4096,
        ..ShmConfig::default()
    });
    let stream = server.member();
    let memory = sealed_memfd("good", 8192, HugePages::Off).unwrap();
    let register = Control::Register {
        bytes: 8192,
        rights: Rights::Write,
    };
    stream.tell(&register, &[memory.as_fd()]);
    assert_eq!(stream.answer(), Some(Control::Registered { region: 0 }));
    stream.tell(&register, &[memory.as_fd()]);
    match stream.answer() {
        Some(Control::Refused { refusal, detail }) => {
            assert_eq!(refusal.status, Status::LimitReached);
            assert!(
                detail.contains("8192") && detail.contains("12288"),
                "{detail}"
            );
        }
        other => panic!("{other:?}"),
    }
    stream.tell(&Control::Unregister { region: 0 }, &[]);
    assert_eq!(stream.answer(), Some(Control::Unregistered { region: 0 }));
    stream.tell(&register, &[memory.as_fd()]);
    assert_eq!(stream.answer(), Some(Control::Registered { region: 0 }));
}

#[test]
fn all_clients_regions_are_bounded_together() {
    let server = Server::start(ShmConfig {
        total_region_bytes: 3 * 4096,
        ..ShmConfig::default()
    });
    let (one, other) = (server.member(), server.member());
    let memory = sealed_memfd("good", 8192, HugePages::Off).unwrap();
    let register = Control::Register {
        bytes: 8192,
        rights: Rights::Write,
    };
    one.tell(&register, &[memory.as_fd()]);
    assert_eq!(one.answer(), Some(Control::Registered { region: 0 }));
    other.tell(&register, &[memory.as_fd()]);
    assert_eq!(other.refusal(), Status::LimitReached);
    drop(one);
    until("the other's turn", || {
        other.tell(&register, &[memory.as_fd()]);
        matches!(other.answer(), Some(Control::Registered { .. }))
    });
}

/// Control memory is on the server's account, whoever keeps a descriptor of it.
#[test]
fn control_memory_is_freed_though_it_is_kept() {
    let server = Server::start(ShmConfig::default());
    let stream = server.stream();
    stream.tell(&hello("keeps"), &[]);
    let mut bytes = vec![0; MAX_CONTROL_BYTES];
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut bytes)];
    recvmsg(&stream.0, parts, &mut ancillary, RecvFlags::empty()).unwrap();
    let kept: Vec<OwnedFd> = ancillary
        .drain()
        .filter_map(|part| match part {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    let held = || fstat(&kept[0]).unwrap().st_blocks * 512;
    assert!(held() >= 2 * 8192, "{}", held());
    drop(stream);
    until("its pages are freed", || held() == 0);
    server.check_others();
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

/// A TCP socket whose last close waits for an hour: its peer, which comes with it, reads nothing.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (silent, _) = listener.accept().unwrap();
    sender.set_nonblocking(true).unwrap();
    while sender.write(&[0; 1 << 16]).is_ok() {}
    sender.set_nonblocking(false).unwrap();
    let hour = Some(Duration::from_secs(3600));
    sockopt::set_socket_linger(&sender, hour).unwrap();
    (sender.into(), silent)
}

/// Holds the control thread up in `tables`, so that a test can close its copies of what it sent first.
struct Gate {
    answers: Answers,
    shut: Mutex<()>,
    waiting: AtomicBool,
}

impl Gate {
    fn hold<T>(&self, asker: &Stream, meanwhile: impl FnOnce() -> T) -> T {
        let shut = self.shut.lock().unwrap();
        asker.tell(&Control::ListTables { first: 0 }, &[]);
        until("a question", || self.waiting.swap(false, Ordering::SeqCst));
        let outcome = meanwhile();
        drop(shut);
        assert!(matches!(asker.answer(), Some(Control::Tables { .. })));
        outcome
    }
}

impl Service for Gate {
    fn welcome(&self, client: &str) -> Result<Welcome, (Refusal, String)> {
        self.answers.welcome(client)
    }

    fn tables(&self) -> Vec<TableEntry> {
        self.waiting.store(true, Ordering::SeqCst);
        let _open = self.shut.lock().unwrap();
        self.answers.tables()
    }

    fn bind(
        &self,
        conn: ConnId,
        schema: Schema,
    ) -> Result<Box<dyn PendingBind>, (Refusal, String)> {
        self.answers.bind(conn, schema)
    }

    fn gone(&self, conn: ConnId) {
        Service::gone(&self.answers, conn);
    }
}

#[test]
fn descriptors_whose_close_takes_long_hold_up_nobody() {
    let gate = Arc::new(Gate {
        answers: Answers::new(1),
        shut: Mutex::new(()),
        waiting: AtomicBool::new(false),
    });
    let server = Server::start_with(ShmConfig::default(), gate.clone());
    let prompt = || {
        let since = Instant::now();
        server.check_others();
        assert!(since.elapsed() < Duration::from_secs(5));
    };
    let mut silent = Vec::new();
    let mut sockets = |count: usize| -> Vec<OwnedFd> {
        let (sockets, peers): (Vec<_>, Vec<_>) = (0..count).map(|_| lingering()).unzip();
        silent.extend(peers);
        sockets
    };
    let (asker, stream, greeting) = (server.member(), server.member(), server.stream());
    // With a question that takes none, with one that takes one, with more than that, and before hello.
    let list = Control::ListTables { first: 0 };
    let register = Control::Register {
        bytes: 4096,
        rights: Rights::Write,
    };
    for (to, question, count, status) in [
        (&stream, &list, 1, Status::Malformed),
        (&stream, &register, 1, Status::RegionRefused),
        (&stream, &register, 3, Status::Malformed),
        (&greeting, &list, 3, Status::Malformed),
    ] {
        let sent = sockets(count);
        gate.hold(&asker, move || {
            to.tell(
                question,
                &sent.iter().map(OwnedFd::as_fd).collect::<Vec<_>>(),
            );
            drop(sent); // The server's are the last ones.
        });
        assert_eq!(to.refusal(), status);
        prompt();
    }
    assert_eq!(greeting.answer(), None);
    // As many as the kernel passes, and unread in a stream that is closed.
    let (unread, sent) = (server.stream(), sockets(2));
    gate.hold(&asker, || {
        unread.tell_bytes(&[], &[sent[0].as_fd(); 253]).unwrap();
        unread.tell_bytes(&[0], &[sent[1].as_fd()]).unwrap();
        drop(sent);
    });
    assert_eq!(unread.answer(), None);
    prompt();
    // And unread in the queue of a socket that is passed: nothing makes this close quicker.
    let (outer, inner) = (socket_pair(), sockets(1));
    gate.hold(&asker, || {
        outer.0.tell_bytes(&[0], &[inner[0].as_fd()]).unwrap();
        drop(inner);
        stream.tell(&list, &[outer.1.as_fd()]);
        drop(outer);
    });
    assert_eq!(stream.refusal(), Status::Malformed);
    prompt();
    let since = Instant::now();
    drop(server);
    assert!(since.elapsed() < Duration::from_secs(5));
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
fn connections_come_and_go_without_a_trace() {
    let server = Server::start(ShmConfig {
        lanes: 3,
        max_connections: 4,
        ..ShmConfig::default()
    });
    server.check_others();
    for _ in 0..200 {
        let stream = server.stream();
        stream.tell(&hello("brief"), &[]);
        match stream.answer() {
            Some(Control::Welcome(_)) => (),
            // All four may still be on their way out.
            Some(Control::Refused { refusal, .. }) => {
                assert_eq!(refusal.status, Status::LimitReached);
                thread::sleep(Duration::from_millis(5));
            }
            other => panic!("{other:?}"),
        }
    }
    until("all are gone", || server.server.connections().is_empty());
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

#[test]
fn a_draining_server_keeps_its_clients_and_gives_the_endpoint_up() {
    let server = Server::start(ShmConfig::default());
    let mut client = ShmClient::connect(&server.endpoint, "stays", 2).unwrap();
    server.server.stop_accepting();
    until("the endpoint is free", || {
        !socket_path(&server.endpoint).unwrap().exists()
    });
    assert!(ShmClient::connect(&server.endpoint, "late", 2).is_err());
    client.submit(0, 0, &Task::Echo.frame()).unwrap();
    until("an answer", || client.poll(0).unwrap().is_some());
    // The lock beside the socket is given up a moment after it.
    let mut next = None;
    until("the endpoint can be had", || {
        let answers = Arc::new(Answers::new(1));
        next = ShmServer::listen(&server.endpoint, ShmConfig::default(), answers).ok();
        next.is_some()
    });
    assert!(client.register(4096).is_ok());
}

#[test]
fn the_stream_stays_open_until_every_worker_has_let_go() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = format!("shm:{}/h.sock", folder.path().display());
    let config = ShmConfig {
        lanes: 2,
        ..ShmConfig::default()
    };
    let (server, mut lanes) =
        ShmServer::listen(&endpoint, config, Arc::new(Answers::new(2))).unwrap();
    let mut client = ShmClient::connect(&endpoint, "watchful", 2).unwrap();
    let mut workers = [0, 1].map(|_| Worker::new(Arc::new(Journal::default())));
    // One worker cuts the client off; the other one is stopped and does not poll.
    client
        .submit(0, 0, &Task::Close(Status::Unavailable).frame())
        .unwrap();
    let closed = |client: &mut ShmClient| {
        client.wait(Some(Duration::from_millis(1))).unwrap();
        matches!(client.poll(0), Err(PortError::Closed))
    };
    for _ in 0..100 {
        workers[0].turn(&mut lanes[0]);
        assert!(!closed(&mut client), "a stopped worker may still write");
    }
    assert!(server.connections()[0].ending);
    until("the end", || {
        (0..2).for_each(|i| {
            workers[i].turn(&mut lanes[i]);
        });
        closed(&mut client)
    });
    // A worker that ends without polling again has let go as well.
    let mut client = ShmClient::connect(&endpoint, "second", 2).unwrap();
    drop(lanes);
    drop(server);
    until("the end", || closed(&mut client));
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
