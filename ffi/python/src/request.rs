//! Sending a batch and waiting for its answer, with the interpreter's lock given to others meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use rowmill_client::{
    ClientError, Hub, Pending, RENAMED, Reply, RequestOptions, Wait, has_renamed,
};

use crate::arguments;
use crate::batch::Batch;
use crate::buffer::{Out, Registered};
use crate::control;
use crate::errors::{self, Class, Fault, Outcome};
use crate::memory::{Held, Keeper};
use crate::result::Result as Answer;
use crate::schema::{Layout, Schema};

/// How long a wait holds a signal up, such as that of Ctrl-C, whose handler has to run in Python.
const SLICE: Duration = Duration::from_millis(20);

/// What is to be sent.
pub(crate) struct Request {
    pub(crate) batch: Batch,
    pub(crate) out: Out,
    pub(crate) options: RequestOptions,
    /// Of a batch that is a part of another one: the ids of each feature that come before it there.
    pub(crate) before: Option<Vec<u64>>,
}

/// What a result needs to know of its request.
pub(crate) struct Asked {
    layout: Arc<Layout>,
    names: Arc<[String]>,
    bags: usize,
    vectors: Option<Vec<usize>>,
    /// The caller's memory for it.
    out: Option<(Arc<Registered>, usize)>,
    before: Option<Vec<u64>>,
}

/// A request that was sent.
pub(crate) struct Sent {
    pub(crate) asked: Asked,
    /// `None` where there is nothing to wait for.
    pub(crate) pending: Option<Pending>,
}

impl Asked {
    fn of(schema: &Schema, request: &Request) -> Asked {
        let Request {
            batch, out, before, ..
        } = request;
        Asked {
            layout: Arc::clone(&schema.layout),
            names: Arc::clone(&schema.names),
            bags: batch.bags,
            vectors: batch.vectors(schema),
            out: out.memory.clone(),
            before: before.clone(),
        }
    }

    /// The result of a batch without bags.
    pub(crate) fn nothing(&self, generation: u64) -> Answer {
        Answer {
            layout: Arc::clone(&self.layout),
            names: Arc::clone(&self.names),
            bags: 0,
            vectors: None,
            held: None,
            generation,
            delta: 0,
            service_s: 0.0,
        }
    }

    /// The result that an answer brings.
    pub(crate) fn result(&self, reply: Reply) -> Outcome<Answer> {
        let names = &self.names;
        reply.outcome.map_err(|failure| {
            let failure = match &self.before {
                Some(before) => errors::counted_from(failure, before),
                None => failure,
            };
            Fault::of_failure(failure, names)
        })?;
        // A place of the caller's own is the caller's again; what is in the pool is lent.
        let keeper = match &self.out {
            Some((registered, offset)) => Keeper::Buffer(Arc::clone(registered), *offset),
            None => Keeper::Lease(reply.lease),
        };
        Ok(Answer {
            layout: Arc::clone(&self.layout),
            names: Arc::clone(names),
            bags: self.bags,
            vectors: self.vectors.clone(),
            held: Some(Held::new(keeper)),
            generation: reply.generation,
            delta: reply.delta,
            service_s: reply.service_ns as f64 / 1e9,
        })
    }
}

/// The time that a caller gives for waiting, cut into slices.
pub(crate) struct Patience {
    until: Option<Instant>,
    timeout: Option<f64>,
}

impl Patience {
    pub(crate) fn new(timeout: Option<f64>) -> Outcome<Patience> {
        let limit = arguments::timeout(timeout)?;
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        Ok(Patience { until, timeout })
    }

    /// Until there is something, or a signal.
    pub(crate) fn endless() -> Patience {
        Patience {
            until: None,
            timeout: None,
        }
    }

    fn slice(&self) -> Duration {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        self.until.map_or(SLICE, |until| left(until).min(SLICE))
    }

    /// Waits, one slice after another, until there is something, a signal's handler raises, or the time is over.
    pub(crate) fn wait<T: Send>(
        &self,
        py: Python<'_>,
        mut once: impl FnMut(Duration) -> Result<Option<T>, ClientError> + Send,
    ) -> Outcome<Result<T, ClientError>> {
        loop {
            let slice = self.slice();
            match py.detach(|| once(slice)).transpose() {
                Some(outcome) => return Ok(outcome),
                None => {
                    py.check_signals()?;
                    if self.until.is_some_and(|until| Instant::now() >= until) {
                        let text = format!(
                            "no answer within {} s; wait longer, or give requests a deadline",
                            self.timeout.unwrap_or_default()
                        );
                        return Err(Fault::new(Class::WaitTimeout, text));
                    }
                }
            }
        }
    }
}

/// Sends a request and waits for its result; again where the generation that its parts named is not held any more.
pub(crate) fn lookup(
    py: Python<'_>,
    hub: &Hub,
    wait: Wait,
    schema: &Schema,
    request: &Request,
    timeout: Option<f64>,
) -> PyResult<Answer> {
    let asked = Asked::of(schema, request);
    if asked.bags == 0 {
        return Ok(asked.nothing(0));
    }
    let patience = Patience::new(timeout)?;
    let mut sent: Option<Pending> = None;
    let mut renamed = 0;
    let answer = loop {
        let answer = patience.wait(py, |slice| {
            let mut limit = slice;
            if sent.is_none() {
                let began = Instant::now();
                let submit = || {
                    request.batch.with_view(|view| {
                        let Request { out, options, .. } = request;
                        let limit = Some(slice);
                        hub.submit_within(&schema.bound, view, out.place, options, wait, limit)
                    })
                };
                sent = control::impatiently(submit)?;
                limit = slice.saturating_sub(began.elapsed());
            }
            match &mut sent {
                Some(pending) => pending.wait_for(wait, limit),
                None => Ok(None),
            }
        });
        match answer {
            Ok(Err(ClientError::Interrupted)) => make_room(py, &patience, hub, schema, &asked)?,
            Ok(Ok(reply)) if renamed < RENAMED && has_renamed(&reply.outcome, &request.options) => {
                // Its result's memory first: it may be all that there is.
                drop(reply);
                sent = None;
                renamed += 1;
            }
            answer => break answer,
        }
    };
    let answer = match answer {
        Ok(answer) => answer,
        Err(fault) => {
            // Nobody will take its answer.
            let _ = sent.map(|pending| pending.cancel());
            return Err(fault.into());
        }
    };
    let reply = answer.map_err(|error| of_batch(error, schema, &request.batch))?;
    Ok(asked.result(reply)?)
}

/// Asks for room for a result, which the dataplane takes some time for.
fn make_room(
    py: Python<'_>,
    patience: &Patience,
    hub: &Hub,
    schema: &Schema,
    asked: &Asked,
) -> Outcome<()> {
    let bytes = schema.result_bytes(asked.bags as u32);
    let hub = hub.clone();
    let made = control::call(py, patience, move || hub.make_room(bytes))?;
    made.map_err(|error| Fault::of(error, &asked.names))
}

/// Sends a request, if there is room for it.
pub(crate) fn submit(
    py: Python<'_>,
    hub: &Hub,
    schema: &Schema,
    request: &Request,
) -> PyResult<Sent> {
    let asked = Asked::of(schema, request);
    if asked.bags == 0 {
        let pending = None;
        return Ok(Sent { asked, pending });
    }
    let submit = || {
        request.batch.with_view(|view| {
            let Request { out, options, .. } = request;
            hub.submit(&schema.bound, view, out.place, options)
        })
    };
    let mut pending = py.detach(|| control::impatiently(submit));
    while matches!(pending, Err(ClientError::Interrupted)) {
        make_room(py, &Patience::endless(), hub, schema, &asked)?;
        pending = py.detach(|| control::impatiently(submit));
    }
    let pending = pending.map_err(|error| of_batch(error, schema, &request.batch))?;
    let pending = Some(pending);
    Ok(Sent { asked, pending })
}

/// Sends a batch whose rows may be wanted soon, if there is room for it.
pub(crate) fn prefetch(
    py: Python<'_>,
    hub: &Hub,
    schema: &Schema,
    batch: &Batch,
    options: &RequestOptions,
) -> PyResult<()> {
    if batch.bags == 0 {
        return Ok(());
    }
    let sent = py.detach(|| batch.with_view(|view| hub.prefetch(&schema.bound, view, options)));
    Ok(sent.map_err(|error| of_batch(error, schema, batch))?)
}

/// An error of sending, which counts the batch's columns where it has names for them, else the schema's features.
pub(crate) fn of_batch(error: ClientError, schema: &Schema, batch: &Batch) -> Fault {
    match batch.names() {
        Some(names) => Fault::of(error, &names),
        None => Fault::of(error, &schema.names),
    }
}
