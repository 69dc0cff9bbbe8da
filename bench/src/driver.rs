//! Driving a service: pinned, with latencies recorded from when a request was meant to be sent.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use rowmill_client::{AnyPort, Batch, BoundSchema, RequestOptions, Session, Target, Ticket, Wait};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::service::Service;
use crate::workload::Query;

/// Latencies in nanoseconds up to a minute, at three significant digits.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("sound bounds")
}

/// Records a time.
pub(crate) fn record(histogram: &mut Histogram<u64>, time: Duration) {
    histogram.saturating_record(time.as_nanos() as u64);
}

/// A quantile in microseconds.
pub(crate) fn quantile_us(histogram: &Histogram<u64>, q: f64) -> f64 {
    histogram.value_at_quantile(q) as f64 / 1000.0
}

/// The median of some values.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

/// Pins this thread to the first CPU it may use.
pub(crate) fn pin_to_first_cpu() -> Result<()> {
    pin_where(|_| true)
}

/// The first CPU that this process may use.
pub(crate) fn first_cpu() -> Result<usize> {
    first_where(|_| true)?.context("a CPU to run on")
}

/// Pins this thread to the first CPU it may use where no worker of the service is; anywhere if there is none.
pub(crate) fn pin_beside(service: &Service) -> Result<()> {
    let status = service.status()?;
    let workers = status["workers"].as_array().context("its workers")?;
    let theirs: Vec<_> = workers
        .iter()
        .map(|worker| worker["cpu"].as_u64())
        .collect();
    pin_where(|cpu| !theirs.contains(&Some(cpu as u64)))
}

fn first_where(fits: impl Fn(usize) -> bool) -> Result<Option<usize>> {
    let allowed = allowed()?;
    Ok((0..CpuSet::MAX_CPU).find(|&cpu| allowed.is_set(cpu) && fits(cpu)))
}

fn pin_where(fits: impl Fn(usize) -> bool) -> Result<()> {
    let mut one = CpuSet::new();
    if let Some(first) = first_where(fits)? {
        one.set(first);
        sched_setaffinity(None, &one).context("pinning to a CPU")?;
    }
    Ok(())
}

/// Lets this thread run where it could at first. What it starts runs where it does: a service that comes after another, beside which
/// the client was pinned, would share the client's CPU.
pub(crate) fn unpin() -> Result<()> {
    sched_setaffinity(None, allowed()?).context("using all CPUs again")
}

/// The CPUs that this process may use: those of before it pinned anything.
fn allowed() -> Result<&'static CpuSet> {
    static ALLOWED: OnceLock<CpuSet> = OnceLock::new();
    if let Some(allowed) = ALLOWED.get() {
        return Ok(allowed);
    }
    let now = sched_getaffinity(None).context("the CPUs this process may use")?;
    Ok(ALLOWED.get_or_init(|| now))
}

/// A session with a schema bound and targets for `depth` requests of up to `bags` samples.
pub(crate) struct Driver {
    /// The session.
    pub session: Session<AnyPort>,
    /// Its schema.
    pub schema: BoundSchema,
    /// Targets that no request holds.
    pub idle: Vec<Target>,
    batch: Batch,
}

impl Driver {
    /// Binds the schema and registers the targets.
    ///
    /// # Errors
    /// Where the service refuses.
    pub(crate) fn new(
        mut session: Session<AnyPort>,
        schema: rowmill_client::Schema,
        bags: u32,
        depth: usize,
    ) -> Result<Driver> {
        let schema = session.bind(schema)?;
        let bytes = schema.target_bytes(bags);
        let room = bytes.next_multiple_of(4096);
        let region = session.region(room as usize * depth)?;
        let idle = (0..depth)
            .map(|i| session.target_at(&region, i as u64 * room, bytes))
            .collect::<Result<_, _>>()?;
        Ok(Driver {
            session,
            schema,
            idle,
            batch: Batch::new(1)?,
        })
    }

    /// Submits a query if a target and credits are there.
    ///
    /// # Errors
    /// What is wrong with the query or the connection.
    pub(crate) fn try_submit(&mut self, query: &Query) -> Result<Option<Ticket>> {
        if self.idle.is_empty() {
            return Ok(None);
        }
        let mut batch = std::mem::replace(&mut self.batch, Batch::new(1)?);
        query.fill(&mut batch)?;
        let outcome = self.try_submit_batch(&batch);
        self.batch = batch;
        outcome
    }

    /// Submits a batch if a target and credits are there.
    ///
    /// # Errors
    /// What is wrong with the batch or the connection.
    pub(crate) fn try_submit_batch(&mut self, batch: &Batch) -> Result<Option<Ticket>> {
        let Some(target) = self.idle.pop() else {
            return Ok(None);
        };
        let options = RequestOptions::default();
        match self.session.submit(&self.schema, batch, target, &options) {
            Ok(ticket) => Ok(Some(ticket)),
            Err(unsent) if unsent.error.would_block() => {
                self.idle.extend(unsent.target);
                Ok(None)
            }
            Err(unsent) => Err(unsent.into()),
        }
    }

    /// Sends queries, as many at a time as there are targets; returns how long all took, and records how long each did.
    ///
    /// # Errors
    /// As [`Driver::try_submit`], and where an answer is a refusal.
    pub(crate) fn pipelined<'q>(
        &mut self,
        queries: impl IntoIterator<Item = &'q Query>,
        times: &mut Histogram<u64>,
    ) -> Result<Duration> {
        let began = Instant::now();
        let mut sent = HashMap::new();
        let mut left = queries.into_iter();
        let mut next = left.next();
        while next.is_some() || self.session.pending() > 0 {
            while let Some(query) = next {
                let now = Instant::now();
                let Some(ticket) = self.try_submit(query)? else {
                    break;
                };
                sent.insert(ticket, now);
                next = left.next();
            }
            while let Some(answer) = self.session.poll()? {
                answer.outcome?;
                if let Some(at) = sent.remove(&answer.ticket) {
                    record(times, at.elapsed());
                }
                self.idle.push(answer.target);
            }
            std::hint::spin_loop();
        }
        Ok(began.elapsed())
    }

    /// Sends one query and polls for its answer: from submission to the answer taken.
    ///
    /// # Errors
    /// As [`Driver::try_submit`], and where the answer is a refusal.
    pub(crate) fn round_trip(&mut self, query: &Query) -> Result<Duration> {
        let target = self.idle.pop().context("no target is free")?;
        query.fill(&mut self.batch)?;
        let began = Instant::now();
        let options = RequestOptions::default();
        let answer =
            self.session
                .lookup(&self.schema, &self.batch, target, &options, Wait::Poll)?;
        let took = began.elapsed();
        answer.outcome?;
        self.idle.push(answer.target);
        Ok(took)
    }
}
