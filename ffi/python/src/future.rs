//! Requests in flight, as futures.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use rowmill_client::{ClientError, Pending, Reply};

use crate::client::Client;
use crate::errors::{Fault, Told};
use crate::once;
use crate::request::{Asked, Patience, Sent};
use crate::result::Result as Answer;

/// A request in flight. Made by :meth:`Client.submit`. All threads may use it. Dropped, the request goes on, and its result is
/// dropped when it comes.
#[pyclass(frozen, module = "rowmill", weakref)]
pub(crate) struct Future {
    asked: Asked,
    client: Py<Client>,
    state: Mutex<State>,
    outcome: PyOnceLock<Result<Py<Answer>, Told>>,
    /// Who awaits it, as `rowmill._await` has it. Locked for moments in which nothing of Python's runs.
    claim: Mutex<Option<Py<PyAny>>>,
}

/// Whoever holds its lock waits for no lock of the interpreter's. A thread that waits for the answer holds it for a slice of
/// time, and meanwhile other threads that have the interpreter's lock should not wait for it.
enum State {
    InFlight(Pending),
    Answered(Result<Option<Reply>, ClientError>),
    /// The answer is in `outcome`.
    Taken,
}

impl Future {
    pub(crate) fn new(sent: Sent, client: Py<Client>) -> Future {
        let state = match sent.pending {
            Some(pending) => State::InFlight(pending),
            None => State::Answered(Ok(None)),
        };
        Future {
            asked: sent.asked,
            client,
            state: Mutex::new(state),
            outcome: PyOnceLock::new(),
            claim: Mutex::new(None),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is answered.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let patience = Patience::new(timeout)?;
        if self.outcome.get(py).is_some() {
            return Ok(());
        }
        let how = self.client.get().wait;
        let answered = patience.wait(py, |slice| {
            let mut state = self.lock();
            if let State::InFlight(pending) = &mut *state {
                let answer = pending.wait_for(how, slice);
                let Some(answer) = answer.map(|reply| reply.map(Some)).transpose() else {
                    return Ok(None);
                };
                *state = State::Answered(answer);
            }
            Ok(Some(()))
        });
        answered?.map_err(|error| Fault::of(error, &[]).into())
    }

    /// The outcome of what is answered.
    fn outcome(&self, py: Python<'_>) -> &Result<Py<Answer>, Told> {
        self.outcome.get_or_init(py, || {
            let answered = std::mem::replace(&mut *self.lock(), State::Taken);
            let result = match answered {
                State::Answered(Ok(Some(reply))) => self.asked.result(reply),
                State::Answered(Ok(None)) => Ok(self.asked.nothing(0)),
                State::Answered(Err(error)) => Err(Fault::of(error, &[])),
                State::InFlight(_) | State::Taken => unreachable!("it is answered, and taken once"),
            };
            let result = result.and_then(|result| Ok(Py::new(py, result)?));
            result.map_err(|fault| fault.told(py))
        })
    }
}

#[pymethods]
impl Future {
    /// Waits for the result. Other threads of Python run meanwhile.
    ///
    /// Args:
    ///     timeout: Seconds to wait at most.
    ///
    /// Returns:
    ///     Result: The same each time.
    ///
    /// Raises:
    ///     IdError: An id is not in its table.
    ///     CancelledError: The request was cancelled.
    ///     RefusedError: The dataplane refused it for another reason.
    ///     WaitTimeout: There was no answer within ``timeout``. The request goes on.
    ///     ClosedError: The connection has ended.
    #[pyo3(signature = (timeout = None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<Answer>> {
        self.wait(py, timeout)?;
        match self.outcome(py) {
            Ok(result) => Ok(result.clone_ref(py)),
            Err(told) => Err(told.raise(py)),
        }
    }

    /// Waits for the result, and gives the exception that :meth:`result` raises.
    ///
    /// Args:
    ///     timeout: Seconds to wait at most.
    ///
    /// Returns:
    ///     Exception | None: None where there is a result.
    ///
    /// Raises:
    ///     WaitTimeout: There was no answer within ``timeout``.
    #[pyo3(signature = (timeout = None))]
    fn exception<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.wait(py, timeout)?;
        let told = self.outcome(py).as_ref().err();
        told.map(|told| told.exception(py)).transpose()
    }

    /// Whether :meth:`result` would return, or raise, at once.
    ///
    /// Raises:
    ///     ClosedError: The connection is that of a parent process.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        let done = py.detach(|| match self.state.try_lock() {
            Ok(state) => match &*state {
                State::InFlight(pending) => pending.is_done(),
                State::Answered(_) | State::Taken => Ok(true),
            },
            // Who waits for it has not got it.
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Poisoned(_)) => Ok(true),
        });
        Ok(done.map_err(|error| Fault::of(error, &[]))?)
    }

    /// Asks for an early end. The answer still comes: :class:`CancelledError`, or the result that it had become by then.
    ///
    /// Returns:
    ///     bool: Whether the request was still in flight.
    ///
    /// Raises:
    ///     ClosedError: The connection has ended.
    fn cancel(&self, py: Python<'_>) -> PyResult<bool> {
        let cancelled = py.detach(|| match &*self.lock() {
            State::InFlight(pending) => pending.cancel().map(|()| true),
            State::Answered(_) | State::Taken => Ok(false),
        });
        Ok(cancelled.map_err(|error| Fault::of(error, &[]))?)
    }

    /// For ``await``, in any event loop that has ``add_reader``. Where the only task that awaits it is cancelled, so is the request.
    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        static WAIT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let wait = once::import(slf.py(), &WAIT, "rowmill._await", "wait")?;
        wait.bind(slf.py()).call1((slf,))
    }

    /// The client whose request it is.
    #[getter]
    fn _client(&self, py: Python<'_>) -> Py<Client> {
        self.client.clone_ref(py)
    }

    /// Puts `own` in the place of the claim `before` (None for none), if that is the one that there is.
    ///
    /// Returns:
    ///     The claim that there is now: ``own``, or another one.
    fn _claim(&self, py: Python<'_>, before: Option<Py<PyAny>>, own: Py<PyAny>) -> Py<PyAny> {
        let mut claim = self.claim.lock().unwrap_or_else(PoisonError::into_inner);
        match &*claim {
            Some(other) if before.as_ref().is_none_or(|before| !before.is(other)) => {
                other.clone_ref(py)
            }
            _ => {
                let before = claim.replace(own.clone_ref(py));
                drop(claim);
                drop(before);
                own
            }
        }
    }

    /// Has the bell rung when there is an answer: with the token, and at once where it is there.
    fn _ring(&self, py: Python<'_>, bell: &Bell, token: u64) -> PyResult<()> {
        let rung = py.detach(|| match &*self.lock() {
            State::InFlight(pending) => pending.ring(&bell.bell, token),
            State::Answered(_) | State::Taken => Ok(()),
        });
        Ok(rung.map_err(|error| Fault::of(error, &[]))?)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let state = if self.done(py)? { "done" } else { "in flight" };
        Ok(format!("Future({state})"))
    }
}

/// A descriptor that is readable while requests that ring it have been answered.
#[pyclass(frozen, name = "_Bell", module = "rowmill._rowmill")]
pub(crate) struct Bell {
    bell: rowmill_client::Bell,
}

impl Bell {
    pub(crate) fn of(bell: rowmill_client::Bell) -> Bell {
        Bell { bell }
    }
}

#[pymethods]
impl Bell {
    /// The descriptor, which stays open as long as this lives.
    fn fileno(&self) -> i32 {
        self.bell.as_fd().as_raw_fd()
    }

    /// The tokens of requests that were answered since the last call.
    fn heard(&self) -> Vec<u64> {
        let mut tokens = Vec::new();
        self.bell.heard(&mut tokens);
        tokens
    }
}
