//! Asynchronous events of a device, on a thread of their own.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::device::Context;
use crate::error::{Call, Error};
use crate::health::Trouble;
use crate::sys;

/// How many events of each kind have come.
#[derive(Debug, Default)]
pub struct EventCounts {
    queue_pair: AtomicU64,
    completion_queue: AtomicU64,
    device: AtomicU64,
    port_down: AtomicU64,
    port_up: AtomicU64,
    gid_change: AtomicU64,
    other: AtomicU64,
}

impl EventCounts {
    /// Trouble with queue pairs; which one says its [`Health`](crate::Health).
    pub fn queue_pair(&self) -> u64 {
        self.queue_pair.load(Ordering::Relaxed)
    }

    /// Completion queues that failed.
    pub fn completion_queue(&self) -> u64 {
        self.completion_queue.load(Ordering::Relaxed)
    }

    /// Whether the device itself has failed: nothing on it can be used any more.
    pub fn device_failed(&self) -> bool {
        self.device.load(Ordering::Relaxed) > 0
    }

    /// How often a port went down. Connections survive what is short.
    pub fn port_down(&self) -> u64 {
        self.port_down.load(Ordering::Relaxed)
    }

    /// How often a port came up.
    pub fn port_up(&self) -> u64 {
        self.port_up.load(Ordering::Relaxed)
    }

    /// How often the GID table changed.
    pub fn gid_change(&self) -> u64 {
        self.gid_change.load(Ordering::Relaxed)
    }

    /// All others, those included that this crate does not know.
    pub fn other(&self) -> u64 {
        self.other.load(Ordering::Relaxed)
    }

    fn of(&self, what: What) -> &AtomicU64 {
        match what {
            What::QueuePair(_) => &self.queue_pair,
            What::CompletionQueue => &self.completion_queue,
            What::Device => &self.device,
            What::PortDown => &self.port_down,
            What::PortUp => &self.port_up,
            What::GidChange => &self.gid_change,
            What::Other => &self.other,
        }
    }
}

/// What an event means here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    QueuePair(Trouble),
    CompletionQueue,
    Device,
    PortDown,
    PortUp,
    GidChange,
    Other,
}

impl What {
    /// From the number of verbs; a number from a newer kernel is one of the others.
    fn from_raw(event_type: u32) -> What {
        match event_type {
            0 => What::CompletionQueue,             // IBV_EVENT_CQ_ERR
            1 => What::QueuePair(Trouble::Fatal),   // IBV_EVENT_QP_FATAL
            2 => What::QueuePair(Trouble::Request), // IBV_EVENT_QP_REQ_ERR
            3 => What::QueuePair(Trouble::Access),  // IBV_EVENT_QP_ACCESS_ERR
            8 => What::Device,                      // IBV_EVENT_DEVICE_FATAL
            9 => What::PortUp,                      // IBV_EVENT_PORT_ACTIVE
            10 => What::PortDown,                   // IBV_EVENT_PORT_ERR
            18 => What::GidChange,                  // IBV_EVENT_GID_CHANGE
            _ => What::Other,
        }
    }
}

/// Reads a device's asynchronous events for as long as it lives, on the thread `verbs-events`: notes trouble in the
/// health of queue pairs and completion queues, counts, logs, and acknowledges. Destroying an object waits for
/// the acknowledgement, so what was noted is there when an object is gone.
pub struct DeviceWatch {
    context: Context,
    counts: Arc<EventCounts>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl DeviceWatch {
    /// Begins to read.
    ///
    /// # Errors
    /// A failed call.
    ///
    /// # Panics
    /// If the device is being watched already.
    pub fn start(context: &Context) -> Result<DeviceWatch, Error> {
        // SAFETY: the context is open while it is borrowed.
        let events = unsafe { BorrowedFd::borrow_raw((*context.raw()).async_fd) };
        sys::set_nonblocking(events)?;
        // SAFETY: no memory is passed.
        let stop = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if stop < 0 {
            return Err(Error::call(Call::EventFd, io::Error::last_os_error()));
        }
        // SAFETY: the descriptor was just made and is nobody else's.
        let stop = Arc::new(unsafe { OwnedFd::from_raw_fd(stop) });
        let watched = context.watched().swap(true, Ordering::Relaxed);
        assert!(!watched, "one thread reads a device's events");
        let counts = Arc::new(EventCounts::default());
        let reader = Reader {
            second: (Instant::now(), 0),
            context: context.clone(),
            counts: Arc::clone(&counts),
            stop: Arc::clone(&stop),
        };
        let thread = std::thread::Builder::new()
            .name("verbs-events".into())
            .spawn(move || reader.run());
        match thread {
            Ok(thread) => Ok(DeviceWatch {
                context: context.clone(),
                counts,
                stop,
                thread: Some(thread),
            }),
            Err(errno) => {
                context.watched().store(false, Ordering::Relaxed);
                Err(Error::call(Call::Spawn, errno))
            }
        }
    }

    /// What has come so far.
    pub fn counts(&self) -> &Arc<EventCounts> {
        &self.counts
    }
}

impl fmt::Debug for DeviceWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceWatch({:?}: {:?})", self.context, self.counts)
    }
}

impl Drop for DeviceWatch {
    fn drop(&mut self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the descriptor is open, and an eventfd takes 8 bytes.
        unsafe { libc::write(self.stop.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread verbs-events has panicked");
        }
        self.context.watched().store(false, Ordering::Relaxed);
    }
}

/// Lines about queue pairs each second: peers cause these events.
const LINES_PER_SECOND: u32 = 10;

struct Reader {
    /// The second that lines are counted in, and how many there were.
    second: (Instant, u32),
    context: Context,
    counts: Arc<EventCounts>,
    stop: Arc<OwnedFd>,
}

impl Reader {
    fn run(mut self) {
        loop {
            match self.wait() {
                Ok(true) => return,
                Ok(false) => while self.take() {},
                Err(error) => {
                    tracing::error!(%error, "asynchronous events of the device are no longer read");
                    return;
                }
            }
        }
    }

    /// Sleeps until there is an event, or the end has come (true).
    fn wait(&self) -> Result<bool, io::Error> {
        // SAFETY: the context is open while it is held.
        let events = unsafe { (*self.context.raw()).async_fd };
        let mut polled = [events, self.stop.as_raw_fd()].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        // SAFETY: the array has two entries.
        let found = unsafe { libc::poll(polled.as_mut_ptr(), 2, -1) };
        if found < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::Interrupted => Ok(false),
                _ => Err(error),
            };
        }
        if polled[0].revents & (libc::POLLERR | libc::POLLNVAL) != 0 {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        Ok(polled[1].revents != 0)
    }

    /// Whether one more line about a queue pair may be written this second.
    fn may_speak(&mut self) -> bool {
        let (since, lines) = &mut self.second;
        if since.elapsed() >= Duration::from_secs(1) {
            let kept_out = lines.saturating_sub(LINES_PER_SECOND);
            if kept_out > 0 {
                tracing::warn!(kept_out, "lines about queue pairs were left out of the log");
            }
            (*since, *lines) = (Instant::now(), 0);
        }
        *lines += 1;
        *lines <= LINES_PER_SECOND
    }

    /// Takes one event, if there is one.
    fn take(&mut self) -> bool {
        let mut event = sys::AsyncEvent {
            element: 0,
            event_type: 0,
        };
        let place: *mut sys::ibv_async_event = (&raw mut event).cast();
        // SAFETY: the context is open, and the struct has the layout of the C one.
        if unsafe { sys::ibv_get_async_event(self.context.raw(), place) } != 0 {
            return false;
        }
        let what = What::from_raw(event.event_type);
        self.note(what, &event);
        // SAFETY: the event was just taken; its object is not destroyed before this call.
        unsafe { sys::ibv_ack_async_event(place) };
        true
    }

    fn note(&mut self, what: What, event: &sys::AsyncEvent) {
        let speaks = !matches!(what, What::QueuePair(_)) || self.may_speak();
        let device = self.context.name();
        let number = event.event_type;
        match what {
            What::QueuePair(trouble) => {
                self.context.registry().note(event.element, trouble);
                if speaks {
                    tracing::warn!(device, ?trouble, "trouble with a queue pair");
                }
            }
            What::CompletionQueue => {
                self.context.registry().note(event.element, Trouble::Fatal);
                tracing::error!(device, "a completion queue has failed");
            }
            What::Device => tracing::error!(device, "the device has failed"),
            What::PortDown | What::PortUp | What::GidChange => {
                // The element's first bytes are the port's number, an int.
                let port = c_int::from_ne_bytes(first_four(event.element));
                tracing::warn!(device, port, ?what, "a port has changed");
            }
            What::Other => tracing::debug!(device, number, "another asynchronous event"),
        }
        self.counts.of(what).fetch_add(1, Ordering::Relaxed);
    }
}

fn first_four(element: u64) -> [u8; 4] {
    let bytes = element.to_ne_bytes();
    [bytes[0], bytes[1], bytes[2], bytes[3]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_today_and_of_the_future() {
        for (number, what) in [
            (0, What::CompletionQueue),
            (1, What::QueuePair(Trouble::Fatal)),
            (3, What::QueuePair(Trouble::Access)),
            (8, What::Device),
            (18, What::GidChange),
            (4, What::Other),
            (20, What::Other),
            (1000, What::Other),
            (u32::MAX, What::Other),
        ] {
            assert_eq!(What::from_raw(number), what, "{number}");
        }
    }

    #[test]
    fn each_kind_has_its_count() {
        let counts = EventCounts::default();
        for what in [What::Device, What::GidChange, What::GidChange, What::Other] {
            counts.of(what).fetch_add(1, Ordering::Relaxed);
        }
        assert!(counts.device_failed());
        assert_eq!((counts.gid_change(), counts.other()), (2, 1));
        assert_eq!((counts.queue_pair(), counts.port_down()), (0, 0));
    }
}
