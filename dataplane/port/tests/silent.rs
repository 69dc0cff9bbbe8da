//! Servers that let clients in and say nothing.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rowmill_port::shm::{ShmClient, ShmClientConfig, socket_path};
use rowmill_port::{Interrupt, PortError};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use tempfile::TempDir;

/// Longer than any of these tests.
const LONG: Duration = Duration::from_secs(600);

/// An endpoint where so many connections are let in, and those after it wait; nobody reads what they say.
struct Silent {
    endpoint: String,
    _listener: OwnedFd,
    _folder: TempDir,
}

fn socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket")
}

impl Silent {
    fn with_backlog(backlog: i32) -> Silent {
        let folder = tempfile::tempdir().expect("a folder");
        let endpoint = format!("shm:{}/silent.sock", folder.path().display());
        let listener = socket();
        bind(&listener, &address(&endpoint)).expect("bound");
        listen(&listener, backlog).expect("listening");
        Silent {
            endpoint,
            _listener: listener,
            _folder: folder,
        }
    }

    fn connect(&self, reply_limit: Duration, interrupt: Interrupt) -> PortError {
        let config = ShmClientConfig {
            reply_limit,
            interrupt,
            ..ShmClientConfig::default()
        };
        let outcome = ShmClient::connect_with(&self.endpoint, "hopeful", config);
        outcome.err().expect("nobody answers")
    }
}

fn address(endpoint: &str) -> SocketAddrUnix {
    SocketAddrUnix::new(socket_path(endpoint).expect("an endpoint")).expect("short")
}

extern "C" fn ignore(_: i32) {}

/// Has this thread interrupted each 2 ms while `call` runs, which would make it last for ever if each began the wait anew. Says
/// whether it ended before the signals did.
fn under_signals<T>(call: impl FnOnce() -> T) -> (T, bool) {
    let handler = ignore as extern "C" fn(i32);
    // SAFETY: the handler does nothing, and calls that it interrupts are not begun again by the kernel.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = handler as usize;
        assert_eq!(
            libc::sigaction(libc::SIGUSR1, &action, core::ptr::null_mut()),
            0
        );
    }
    // SAFETY: it has no conditions.
    let this = unsafe { libc::pthread_self() };
    let over = AtomicBool::new(false);
    let until = Instant::now() + Duration::from_secs(15);
    thread::scope(|scope| {
        let signals = scope.spawn(|| {
            while Instant::now() < until && !over.load(Ordering::SeqCst) {
                // SAFETY: the thread lives: it waits for this one.
                unsafe { libc::pthread_kill(this, libc::SIGUSR1) };
                thread::sleep(Duration::from_millis(2));
            }
            Instant::now() < until
        });
        let outcome = call();
        over.store(true, Ordering::SeqCst);
        (outcome, signals.join().expect("no panic"))
    })
}

#[test]
fn a_server_that_says_nothing_is_given_up_by_the_clock() {
    let silent = Silent::with_backlog(8);
    let limit = Duration::from_millis(100);
    let (error, in_time) = under_signals(|| silent.connect(limit, Interrupt::default()));
    assert!(
        matches!(error, PortError::NoAnswer { limit: told } if told == limit),
        "{error}"
    );
    assert!(in_time, "signals stretched the limit");
}

#[test]
fn a_server_that_lets_nobody_in_is_given_up_by_the_clock() {
    let silent = Silent::with_backlog(0);
    let first = socket();
    connect(&first, &address(&silent.endpoint)).expect("there is room for one");
    let limit = Duration::from_millis(100);
    let (error, in_time) = under_signals(|| silent.connect(limit, Interrupt::default()));
    assert!(matches!(error, PortError::NoAnswer { .. }), "{error}");
    assert!(in_time, "signals stretched the limit");
}

#[test]
fn connecting_can_be_interrupted() {
    for backlog in [8, 0] {
        let silent = Silent::with_backlog(backlog);
        let first = socket();
        connect(&first, &address(&silent.endpoint)).expect("there is room for one");
        let asked = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&asked);
        let interrupt = Interrupt::when(move || seen.swap(true, Ordering::SeqCst));
        let error = silent.connect(LONG, interrupt);
        assert!(matches!(error, PortError::Interrupted), "{error}");
        assert!(asked.load(Ordering::SeqCst));
    }
}
