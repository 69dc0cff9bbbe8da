//! A peer in another process: killed, stopped, gone without a word.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rowmill_verbs::{
    CmEventKind, Connection, EventChannel, Listener, Operation, ReplyData, RequestData, Signal,
    Status,
};

use crate::pair::{CAPACITY, End, PATIENCE, device, next_event, parameters, resolve};

/// Says to the child that it is one.
const CHILD: &str = "ROWMILL_TEST_CHILD";

/// What the child process runs: it accepts one connection, says so, and does nothing more.
#[test]
fn child() {
    if std::env::var(CHILD).is_err() {
        return;
    }
    let Some(context) = device() else { return };
    let channel = EventChannel::new().expect("an event channel");
    let listener = Listener::bind(&channel, context.address(), 8).expect("a listener");
    let mut end = End::new(&context, CAPACITY, 1);
    let remote = end.shared.remote();
    let port = listener.local_address().expect("an address").port();
    println!("\nlistening {port} {} {}", remote.address, remote.key);
    let mut connections: Vec<Connection> = Vec::new();
    loop {
        if let CmEventKind::ConnectRequest(mut request) = next_event(&channel).kind {
            request
                .initialise(&mut end.qp, &parameters())
                .expect("INIT");
            end.qp.receive_empty(4).expect("receives");
            let accepted = request.accept(&mut end.qp, &parameters(), &ReplyData::none());
            connections.push(accepted.expect("accepted"));
            break;
        }
    }
    next_event(&channel);
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// The child, killed whatever happens.
struct Peer(Child);

impl Peer {
    fn signal(&self, number: i32) {
        // SAFETY: the process is this one's child and has not been waited for.
        assert_eq!(unsafe { libc::kill(self.0.id() as i32, number) }, 0);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Connected {
    end: End,
    connection: Connection,
    channel: EventChannel,
    remote: rowmill_verbs::Remote,
    peer: Peer,
}

fn connect_to_child() -> Option<Connected> {
    let context = device()?;
    let program = std::env::current_exe().expect("this program");
    let mut peer = Command::new(program)
        .args(["--exact", "other_process::child", "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .map(Peer)
        .expect("a child");
    let mut lines = BufReader::new(peer.0.stdout.take().expect("its output")).lines();
    let line = lines.find_map(|line| {
        let line = line.expect("a line");
        line.strip_prefix("listening ").map(str::to_owned)
    });
    let numbers: Vec<u64> = line
        .expect("a listening child")
        .split(' ')
        .map(|word| word.parse().expect("a number"))
        .collect();
    let mut to = context.address();
    to.set_port(numbers[0] as u16);
    let remote = rowmill_verbs::Remote {
        address: numbers[1],
        key: numbers[2] as u32,
    };
    let channel = EventChannel::new().expect("an event channel");
    let mut end = End::new(&context, CAPACITY, 9);
    let mut way = resolve(&channel, to, &parameters());
    way.initialise(&mut end.qp, &parameters()).expect("INIT");
    let connecting = way.connect(&mut end.qp, &parameters(), &RequestData::none());
    let event = next_event(&channel);
    let connection = connecting
        .expect("connecting begins")
        .establish(&event, &mut end.qp, &parameters())
        .expect("established");
    Some(Connected {
        end,
        connection,
        channel,
        remote,
        peer,
    })
}

fn write(connected: &mut Connected) -> Status {
    let mut batch = connected.end.qp.batch();
    let to = Operation::Write(connected.remote);
    batch.post_inline(to, &[1], Signal::Yes).expect("room");
    batch.ring().expect("posted");
    connected.end.next().status
}

#[test]
fn a_killed_peer_is_told() {
    let Some(mut connected) = connect_to_child() else {
        return;
    };
    assert_eq!(write(&mut connected), Status::Success);
    let began = Instant::now();
    connected.peer.signal(libc::SIGKILL);
    let event = next_event(&connected.channel);
    println!("{:?} after {:?}", event.kind, began.elapsed());
    // A rejection where its host has not heard yet that this side is ready.
    let told = matches!(
        event.kind,
        CmEventKind::Disconnected | CmEventKind::Rejected
    );
    assert!(told, "{event:?}");
    assert_eq!(event.id, connected.connection.token());
    // The kernel ends the peer's connection before it destroys the peer's queue pairs, so that some WRITEs may still
    // succeed.
    let began = Instant::now();
    let mut succeeded = 0;
    let status = loop {
        match write(&mut connected) {
            Status::Success => succeeded += 1,
            failure => break failure,
        }
        assert!(
            began.elapsed() < PATIENCE,
            "{succeeded} WRITEs to a dead peer"
        );
    };
    println!(
        "{succeeded} WRITEs succeed, then one ends with {status:?}, after {:?}",
        began.elapsed()
    );
    connected.end.qp.fail().expect("failed");
    connected.end.drain();
}

#[test]
fn nothing_waits_for_a_stopped_peer() {
    let Some(mut connected) = connect_to_child() else {
        return;
    };
    assert_eq!(write(&mut connected), Status::Success);
    connected.peer.signal(libc::SIGSTOP);
    // The peer's kernel acknowledges still: only the peer's program could say that it is stopped.
    assert_eq!(write(&mut connected), Status::Success);
    let began = Instant::now();
    connected.end.qp.fail().expect("failed");
    connected.end.drain();
    let drained = began.elapsed();
    connected.connection.disconnect().expect("disconnected");
    let told = began.elapsed();
    let Connected {
        end, connection, ..
    } = connected;
    drop(end);
    let destroyed = began.elapsed();
    drop(connection);
    let gone = began.elapsed();
    println!("drained {drained:?}, told {told:?}, destroyed {destroyed:?}, id gone {gone:?}");
    assert!(gone < Duration::from_secs(2), "{gone:?}");
}
