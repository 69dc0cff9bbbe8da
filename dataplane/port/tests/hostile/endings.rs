//! Connections that end, come and go, and what is left of them.

use super::*;

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
