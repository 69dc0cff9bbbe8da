//! Closing what clients sent or wrote to, where it holds up nobody.
//!
//! The last close of a descriptor can take as long as whoever made it likes: a socket with SO_LINGER
//! waits for its peer, a file may lie in a file system that a client serves, and a Unix socket closes
//! all descriptors that lie unread in its queue. So the control thread and the workers close no such
//! descriptor themselves but hand it to closing threads, which nobody waits for, at the server's end
//! neither.
//!
//! The queue before these threads is bounded by whoever adds to it: where [`MOST_WAITING`] descriptors
//! wait, a client that sends one more unwanted descriptor is cut off, and nobody is let in until there is
//! room. What the clients that are still there hold comes on top: at most one message's descriptors and
//! a stream each.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::{io, thread};

use rustix::fs::{fcntl_get_seals, fstat};
use rustix::net::{Shutdown, shutdown, sockopt::set_socket_linger};

/// Descriptors that may wait to be closed before clients are cut off and nobody is let in.
const MOST_WAITING: usize = 512;

/// Closing threads. One would do but for descriptors whose closing can't be sped up, such as a socket
/// that lingers unread in the queue of another: each holds up one thread.
const THREADS: usize = 4;

#[derive(Default)]
struct Queue {
    waiting: VecDeque<OwnedFd>,
    ended: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Shared {
    // Held for a push or a pop only, never while something is closed.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way to the closing threads of a server. They end when the last of it is dropped and the queue
/// is empty.
pub(super) struct Closer(Arc<Shared>);

impl std::fmt::Debug for Closer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Closer")
    }
}

impl Closer {
    /// Starts the threads.
    pub(super) fn start() -> io::Result<Arc<Closer>> {
        let closer = Closer(Arc::default());
        for _ in 0..THREADS {
            let shared = closer.0.clone();
            thread::Builder::new()
                .name("shm-close".to_owned())
                .spawn(move || close_all(&shared))?;
        }
        Ok(Arc::new(closer))
    }

    /// Has a descriptor closed soon. Never waits for that.
    pub(super) fn close(&self, fd: OwnedFd) {
        self.0.queue().waiting.push_back(fd);
        self.0.changed.notify_one();
    }

    /// Whether more than a few descriptors wait, so that whoever causes more has to be stopped.
    pub(super) fn is_full(&self) -> bool {
        self.0.queue().waiting.len() >= MOST_WAITING
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.0.queue().ended = true;
        self.0.changed.notify_all();
    }
}

fn close_all(shared: &Shared) {
    loop {
        let mut queue = shared.queue();
        let fd = loop {
            match queue.waiting.pop_front() {
                Some(fd) => break fd,
                None if queue.ended => return,
                None => {
                    queue = shared
                        .changed
                        .wait(queue)
                        .unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        drop(queue);
        // A TCP socket then sends what it has to send in the background. It fails for what is no socket.
        let _ = set_socket_linger(&fd, None);
        drop(fd);
    }
}

/// Whether closing a descriptor takes no longer than freeing `most` bytes: true of memfds only.
pub(super) fn closes_at_once(fd: &OwnedFd, most: u64) -> bool {
    // The seals first: fstat of a file that is no memfd may ask a file system that a client serves.
    fcntl_get_seals(fd).is_ok()
        && fstat(fd).is_ok_and(|stat| u64::try_from(stat.st_size).is_ok_and(|size| size <= most))
}

/// The server's end of a client's stream. When it is dropped the client sees the stream's end at once,
/// and a closing thread frees what the client left unread in it.
#[derive(Debug)]
pub(super) struct ClientStream {
    fd: Option<OwnedFd>,
    closer: Arc<Closer>,
}

impl ClientStream {
    pub(super) fn new(fd: OwnedFd, closer: Arc<Closer>) -> ClientStream {
        ClientStream {
            fd: Some(fd),
            closer,
        }
    }
}

impl AsFd for ClientStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let fd = self.fd.as_ref().expect("it is taken by drop only");
        fd.as_fd()
    }
}

impl Drop for ClientStream {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            // It fails only where the client closed its end before.
            let _ = shutdown(&fd, Shutdown::Both);
            self.closer.close(fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn everything_is_closed_also_after_the_end() {
        let closer = Closer::start().unwrap();
        let shared = closer.0.clone();
        for _ in 0..2 * MOST_WAITING {
            closer.close(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        }
        drop(closer);
        let since = Instant::now();
        // The threads' copies go when they end, and they end when the queue is empty.
        while Arc::strong_count(&shared) > 1 {
            assert!(since.elapsed() < Duration::from_secs(20));
            thread::sleep(Duration::from_millis(1));
        }
        assert!(shared.queue().waiting.is_empty());
    }

    #[test]
    fn only_memfds_are_closed_in_place() {
        let memory = rowmill_arena::sealed_memfd("m", 8192, rowmill_arena::HugePages::Off).unwrap();
        assert!(closes_at_once(&memory, 8192));
        assert!(!closes_at_once(&memory, 4096));
        let (a, _b) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!closes_at_once(&a.into(), u64::MAX));
    }
}
