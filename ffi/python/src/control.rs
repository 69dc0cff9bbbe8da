//! Calls that ask the dataplane for something else than a lookup, and wait for its answer: Ctrl-C ends them.
//!
//! Whoever makes such a call holds the client's lock, under which nothing of Python's may run, as a signal's handler is. So a thread of
//! its own makes it, while the caller looks for signals; it ends soon after the caller has stopped waiting.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};

use pyo3::prelude::*;
use rowmill_client::{ClientError, Interrupt, spawn_quiet};

use crate::errors::{Class, Fault, Outcome};
use crate::request::Patience;

thread_local! {
    /// In a thread that makes a call: whether nobody waits for it any more.
    static ENDED: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
    /// Whether this thread does not wait for answers at all, once the first moment is over.
    static IMPATIENT: Cell<bool> = const { Cell::new(false) };
}

/// What ends the calls of a client.
pub(crate) fn interrupt() -> Interrupt {
    Interrupt::when(|| {
        let ended = |ended: &Option<Arc<AtomicBool>>| {
            ended
                .as_ref()
                .is_some_and(|ended| ended.load(Ordering::Relaxed))
        };
        IMPATIENT.get() || ENDED.with_borrow(ended)
    })
}

/// Makes a call, until it has its answer, a signal's handler raises, or the caller's patience is over.
pub(crate) fn call<T: Send + 'static>(
    py: Python<'_>,
    patience: &Patience,
    call: impl FnOnce() -> Result<T, ClientError> + Send + 'static,
) -> Outcome<Result<T, ClientError>> {
    let ended = Arc::new(AtomicBool::new(false));
    let (tell, answer) = mpsc::channel();
    let of_thread = Arc::clone(&ended);
    let thread = spawn_quiet("rowmill-control", move || {
        ENDED.set(Some(of_thread));
        // What nobody waits for is dropped here.
        let _ = tell.send(call());
    });
    let thread = thread.map_err(|error| {
        let text = format!("no thread could be started: {error}; see what the process uses");
        Fault::new(Class::Error, text)
    })?;
    let outcome = patience.wait(py, move |slice| match answer.recv_timeout(slice) {
        Ok(outcome) => outcome.map(Some),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => Err(ClientError::Stopped {
            why: "a thread of its own has panicked".into(),
        }),
    });
    match outcome {
        // It has told all, and ends: who looks at the process' threads finds none more than before.
        Ok(_) => drop(py.detach(|| thread.join())),
        Err(_) => ended.store(true, Ordering::Relaxed),
    }
    outcome
}

/// What `submit` gives, which may have to ask the dataplane for memory: where that takes longer than a moment, it is
/// [`ClientError::Interrupted`], and to be asked for by [`call`].
pub(crate) fn impatiently<T>(submit: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            IMPATIENT.set(self.0);
        }
    }
    let _before = Before(IMPATIENT.replace(true));
    submit()
}
