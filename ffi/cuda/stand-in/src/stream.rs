//! Streams, each a thread with a queue, and events.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use crate::state::state;

/// Between two looks at a word.
const LOOK: Duration = Duration::from_micros(20);

/// What a stream does.
pub(crate) enum Step {
    /// Copies `bytes` between addresses that were checked when it was queued.
    Copy { to: u64, from: u64, bytes: usize },
    /// Waits for a word.
    WaitWord { address: u64, value: u32 },
    /// Reaches an event.
    Reach { event: Arc<Event>, serial: u64 },
    /// Waits for an event.
    WaitEvent { event: Arc<Event>, serial: u64 },
    /// Waits until another stream has done so many steps.
    WaitStream { stream: Arc<Stream>, steps: u64 },
}

#[derive(Default)]
struct Queue {
    steps: VecDeque<(&'static str, Step)>,
    queued: u64,
    done: u64,
    capturing: bool,
    closed: bool,
}

/// A stream.
#[derive(Default)]
pub(crate) struct Stream {
    queue: Mutex<Queue>,
    changed: Condvar,
    pub(crate) non_blocking: bool,
}

impl Stream {
    /// Starts one.
    pub(crate) fn start(non_blocking: bool) -> Arc<Stream> {
        let stream = Arc::new(Stream {
            non_blocking,
            ..Stream::default()
        });
        let worker = Arc::clone(&stream);
        let named = thread::Builder::new().name("stand-in-stream".into());
        named.spawn(move || worker.work()).expect("a thread");
        stream
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a step of a function.
    pub(crate) fn queue(&self, of: &'static str, step: Step) {
        let mut queue = self.lock();
        queue.steps.push_back((of, step));
        queue.queued += 1;
        self.changed.notify_all();
    }

    /// Steps queued so far.
    pub(crate) fn queued(&self) -> u64 {
        self.lock().queued
    }

    /// Whether all is done.
    pub(crate) fn is_idle(&self) -> bool {
        let queue = self.lock();
        queue.done >= queue.queued
    }

    /// Waits until so many steps are done.
    pub(crate) fn wait(&self, steps: u64) {
        let mut queue = self.lock();
        while queue.done < steps {
            queue = self
                .changed
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the thread once all is done.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    pub(crate) fn is_capturing(&self) -> bool {
        self.lock().capturing
    }

    pub(crate) fn capture(&self, on: bool) {
        self.lock().capturing = on;
    }

    fn work(&self) {
        loop {
            let mut queue = self.lock();
            let (of, step) = loop {
                match queue.steps.pop_front() {
                    Some(step) => break step,
                    None if queue.closed => return,
                    None => {
                        queue = self
                            .changed
                            .wait(queue)
                            .unwrap_or_else(PoisonError::into_inner)
                    }
                }
            };
            drop(queue);
            let options = state().options();
            thread::sleep(options.pause(of));
            run(step, options.corrupts(of));
            self.lock().done += 1;
            self.changed.notify_all();
        }
    }
}

fn run(step: Step, corrupt: bool) {
    match step {
        Step::Copy { to, from, bytes } => {
            let to = to as *mut u8;
            // SAFETY: both ranges were checked when the step was queued. Whoever frees one waits for all streams before.
            unsafe {
                core::ptr::copy(from as *const u8, to, bytes);
                if corrupt && bytes > 0 {
                    *to ^= 1;
                }
            }
        }
        Step::WaitWord { address, value } => {
            // SAFETY: the word was checked to be pinned when the step was queued, and is freed after all streams are idle.
            let word = unsafe { AtomicU32::from_ptr(address as *mut u32) };
            while (word.load(Ordering::Acquire).wrapping_sub(value)).cast_signed() < 0 {
                thread::sleep(LOOK);
            }
        }
        Step::Reach { event, serial } => event.reach(serial),
        Step::WaitEvent { event, serial } => event.wait(serial),
        Step::WaitStream { stream, steps } => stream.wait(steps),
    }
}

#[derive(Default)]
struct Mark {
    recorded: u64,
    reached: u64,
    at: Option<Instant>,
}

/// An event.
#[derive(Default)]
pub(crate) struct Event {
    mark: Mutex<Mark>,
    changed: Condvar,
}

impl Event {
    fn lock(&self) -> MutexGuard<'_, Mark> {
        self.mark.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records it anew. Gives the number of this recording.
    pub(crate) fn record(&self) -> u64 {
        let mut mark = self.lock();
        mark.recorded += 1;
        mark.recorded
    }

    /// The number of the last recording.
    pub(crate) fn recorded(&self) -> u64 {
        self.lock().recorded
    }

    fn reach(&self, serial: u64) {
        let mut mark = self.lock();
        mark.reached = mark.reached.max(serial);
        mark.at = Some(Instant::now());
        self.changed.notify_all();
    }

    pub(crate) fn is_reached(&self) -> bool {
        let mark = self.lock();
        mark.reached >= mark.recorded
    }

    /// When it was reached last.
    pub(crate) fn at(&self) -> Option<Instant> {
        self.lock().at
    }

    pub(crate) fn wait(&self, serial: u64) {
        let mut mark = self.lock();
        while mark.reached < serial {
            mark = self
                .changed
                .wait(mark)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}
