//! A thread that lets streams go on whose answers don't come in time.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rowmill_port::{PortError, spawn_quiet};

use super::error::StreamFailure;
use super::watch::Watch;

/// Its name, as debuggers show it.
const NAME: &str = "rowmill-streams";

/// When the last request of a watch is given up, which one it is, and how long it had.
#[derive(Clone, Copy, Debug)]
struct Limit {
    at: Instant,
    serial: u32,
    limit: Duration,
}

#[derive(Debug, Default)]
struct State {
    /// By watch; that of a request that was answered stays until it is over, or the next one's comes.
    limits: Vec<Option<Limit>>,
    /// What the thread sleeps for; None while there is nothing.
    next: Option<Instant>,
    ended: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module's text. It makes no call of CUDA and takes no lock of the hub's.
#[derive(Debug)]
pub(crate) struct Timer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Timer {
    pub(crate) fn start(watches: Vec<Arc<Watch>>) -> Result<Timer, PortError> {
        let shared = Arc::new(Shared::default());
        shared.lock().limits.resize(watches.len(), None);
        let of_thread = Arc::clone(&shared);
        let thread = spawn_quiet(NAME, move || run(&of_thread, &watches));
        let thread = thread.map_err(|source| PortError::System {
            call: "starting the thread that releases streams",
            source,
        })?;
        Ok(Timer {
            shared,
            thread: Some(thread),
        })
    }

    /// Gives request `serial` of a watch up after `limit`, if it has not been answered by then.
    pub(crate) fn limit(&self, watch: usize, serial: u32, limit: Duration) {
        let Some(at) = Instant::now().checked_add(limit) else {
            return;
        };
        let mut state = self.shared.lock();
        state.limits[watch] = Some(Limit { at, serial, limit });
        if state.next.is_none_or(|next| at < next) {
            self.shared.changed.notify_one();
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // It has no result.
        }
    }
}

fn run(shared: &Shared, watches: &[Arc<Watch>]) {
    let mut state = shared.lock();
    while !state.ended {
        let now = Instant::now();
        let limits = (0usize..)
            .zip(&state.limits)
            .filter_map(|(at, limit)| Some((at, (*limit)?)));
        let first = limits.min_by_key(|(_, limit)| limit.at);
        state.next = first.map(|(_, limit)| limit.at);
        state = match first {
            Some((watch, limit)) if limit.at <= now => {
                state.limits[watch] = None;
                drop(state);
                let why = StreamFailure::TimedOut(limit.limit);
                watches[watch].give_up(limit.serial, why);
                shared.lock()
            }
            Some((_, limit)) => {
                let waited = shared.changed.wait_timeout(state, limit.at - now);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => {
                let waited = shared.changed.wait(state);
                waited.unwrap_or_else(PoisonError::into_inner)
            }
        };
    }
}
