//! What the whole library shares.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use crate::memory::Memory;
use crate::options::Options;
use crate::stream::{Event, Step, Stream};

/// The environment variable with the options.
const OPTIONS: &str = "ROWMILL_STAND_IN";

thread_local! {
    /// How many contexts are current in this thread, one above the other.
    static CURRENT: RefCell<usize> = const { RefCell::new(0) };
}

/// See the module's text.
pub(crate) struct State {
    /// The library's lock: what calls hold while they wait.
    library: Mutex<()>,
    options: Mutex<Options>,
    pub(crate) memory: Mutex<Memory>,
    streams: Mutex<HashMap<usize, Arc<Stream>>>,
    events: Mutex<HashMap<usize, Arc<Event>>>,
    /// The legacy default stream.
    legacy: Arc<Stream>,
    next: AtomicUsize,
    /// Calls of each thread, by its number in the kernel.
    calls: Mutex<HashMap<u64, u64>>,
}

static STATE: LazyLock<State> = LazyLock::new(|| State {
    library: Mutex::default(),
    options: Mutex::new(Options::parse(&std::env::var(OPTIONS).unwrap_or_default())),
    memory: Mutex::default(),
    streams: Mutex::default(),
    events: Mutex::default(),
    legacy: Stream::start(false),
    // The numbers below are CUDA's names for default streams.
    next: AtomicUsize::new(0x1000),
    calls: Mutex::default(),
});

pub(crate) fn state() -> &'static State {
    &STATE
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    pub(crate) fn options(&self) -> Options {
        lock(&self.options).clone()
    }

    pub(crate) fn set_options(&self, words: &str) {
        *lock(&self.options) = Options::parse(words);
    }

    pub(crate) fn memory(&self) -> MutexGuard<'_, Memory> {
        lock(&self.memory)
    }

    /// The library's lock.
    pub(crate) fn library(&self) -> MutexGuard<'_, ()> {
        lock(&self.library)
    }

    /// Counts a call of this thread.
    pub(crate) fn count(&self) {
        *lock(&self.calls).entry(thread_number()).or_default() += 1;
    }

    /// Calls of the thread with this number.
    pub(crate) fn calls(&self, thread: u64) -> u64 {
        lock(&self.calls).get(&thread).copied().unwrap_or(0)
    }

    pub(crate) fn push_context(&self) {
        CURRENT.with_borrow_mut(|depth| *depth += 1);
    }

    pub(crate) fn pop_context(&self) -> bool {
        CURRENT.with_borrow_mut(|depth| {
            let any = *depth > 0;
            *depth -= usize::from(any);
            any
        })
    }

    pub(crate) fn has_context(&self) -> bool {
        CURRENT.with_borrow(|depth| *depth > 0)
    }

    fn number(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn new_stream(&self, non_blocking: bool) -> usize {
        let number = self.number();
        lock(&self.streams).insert(number, Stream::start(non_blocking));
        number
    }

    /// A stream by its handle: 0, `CU_STREAM_LEGACY` (1) or one of ours.
    pub(crate) fn stream(&self, handle: usize) -> Option<Arc<Stream>> {
        match handle {
            0 | 1 => Some(Arc::clone(&self.legacy)),
            _ => lock(&self.streams).get(&handle).cloned(),
        }
    }

    pub(crate) fn take_stream(&self, handle: usize) -> Option<Arc<Stream>> {
        lock(&self.streams).remove(&handle)
    }

    pub(crate) fn new_event(&self) -> usize {
        let number = self.number();
        lock(&self.events).insert(number, Arc::default());
        number
    }

    pub(crate) fn event(&self, handle: usize) -> Option<Arc<Event>> {
        lock(&self.events).get(&handle).cloned()
    }

    pub(crate) fn take_event(&self, handle: usize) -> Option<Arc<Event>> {
        lock(&self.events).remove(&handle)
    }

    /// Queues a step, behind what the legacy default stream's rules put before it.
    pub(crate) fn queue(&self, stream: &Arc<Stream>, of: &'static str, step: Step) {
        let before: Vec<Arc<Stream>> = if Arc::ptr_eq(stream, &self.legacy) {
            let streams = lock(&self.streams);
            streams
                .values()
                .filter(|s| !s.non_blocking)
                .cloned()
                .collect()
        } else if stream.non_blocking {
            Vec::new()
        } else {
            vec![Arc::clone(&self.legacy)]
        };
        for other in before {
            let steps = other.queued();
            let stream_before = Step::WaitStream {
                stream: other,
                steps,
            };
            stream.queue("", stream_before);
        }
        stream.queue(of, step);
    }

    /// Waits until all streams have done what they have to do now.
    pub(crate) fn wait_for_all(&self) {
        let mut all: Vec<Arc<Stream>> = lock(&self.streams).values().cloned().collect();
        all.push(Arc::clone(&self.legacy));
        for stream in all {
            stream.wait(stream.queued());
        }
    }
}

/// This thread's number in the kernel.
fn thread_number() -> u64 {
    thread_local! {
        static NUMBER: u64 = std::fs::read_link("/proc/thread-self")
            .ok()
            .and_then(|link| link.file_name()?.to_str()?.parse().ok())
            .unwrap_or(0);
    }
    NUMBER.with(|number| *number)
}
