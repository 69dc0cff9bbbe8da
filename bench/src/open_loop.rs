//! Open-loop load: requests are sent when their time has come, whatever became of those before, and
//! latency counts from that time (no coordinated omission).

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rowmill_client::{Batch, Failure, Status, Ticket};

use crate::driver::{Driver, histogram, median, quantile_us, record};
use crate::report::{Measurement, Reporter};
use crate::serve::{Bench, MICRO_BATCH_US};

/// Samples of a request under overload: 3.5 MB of rows, two micro-batches.
const SAMPLES: u32 = 32;
/// Sessions: 8 of 8 credits offer 64 requests to the worker's 32 slots.
const SESSIONS: usize = 8;
const CREDITS: usize = 8;
/// Distinct requests: 5.5 MB of ids.
const QUERIES: usize = 200;
/// Requests in flight at saturation: one for each of the worker's slots, so that none is refused.
const SLOTS: usize = 32;
/// How long each load is offered.
const SPAN: Duration = Duration::from_millis(1500);
/// Requests that wait for a credit at the client before later ones are given up: what a client
/// with a bounded queue does.
const BACKLOG: usize = 64;

/// What became of an offered load.
struct Outcome {
    completed: u64,
    busy: u64,
    given_up: u64,
    took: Duration,
    latencies: Histogram<u64>,
    busy_times: Histogram<u64>,
}

impl Outcome {
    fn rate(&self) -> f64 {
        self.completed as f64 / self.took.as_secs_f64()
    }
}

struct Load<'a> {
    drivers: &'a mut [Driver],
    batches: &'a [Batch],
    in_flight: Vec<HashMap<Ticket, (Instant, Instant)>>,
    next_batch: usize,
    turn: usize,
    outcome: Outcome,
}

impl<'a> Load<'a> {
    fn new(drivers: &'a mut [Driver], batches: &'a [Batch]) -> Load<'a> {
        let in_flight = drivers
            .iter()
            .map(|_| HashMap::with_capacity(CREDITS))
            .collect();
        let outcome = Outcome {
            completed: 0,
            busy: 0,
            given_up: 0,
            took: Duration::ZERO,
            latencies: histogram(),
            busy_times: histogram(),
        };
        Load {
            drivers,
            batches,
            in_flight,
            next_batch: 0,
            turn: 0,
            outcome,
        }
    }

    /// Sends a request through the next session that has a credit; whether there was one.
    fn submit(&mut self, due: Instant) -> Result<bool> {
        for _ in 0..self.drivers.len() {
            self.turn = (self.turn + 1) % self.drivers.len();
            let batch = &self.batches[self.next_batch % self.batches.len()];
            let sent = Instant::now();
            if let Some(ticket) = self.drivers[self.turn].try_submit_batch(batch)? {
                self.in_flight[self.turn].insert(ticket, (due, sent));
                self.next_batch += 1;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn collect(&mut self) -> Result<()> {
        for (driver, in_flight) in self.drivers.iter_mut().zip(&mut self.in_flight) {
            while let Some(answer) = driver.session.poll()? {
                let (due, sent) = in_flight
                    .remove(&answer.ticket)
                    .context("an answer to a request of ours")?;
                match answer.outcome {
                    Ok(()) => {
                        self.outcome.completed += 1;
                        record(&mut self.outcome.latencies, due.elapsed());
                    }
                    Err(Failure::Refused(refusal)) if refusal.status == Status::Busy => {
                        self.outcome.busy += 1;
                        record(&mut self.outcome.busy_times, sent.elapsed());
                    }
                    Err(failure) => return Err(failure.into()),
                }
                driver.idle.push(answer.target);
            }
        }
        Ok(())
    }

    fn drain(mut self, took: Duration) -> Result<Outcome> {
        self.outcome.took = took;
        let in_time = self.outcome.completed;
        while self.in_flight.iter().any(|i| !i.is_empty()) {
            self.collect()?;
        }
        // What was completed after the span does not count for its rate.
        self.outcome.completed = in_time;
        Ok(self.outcome)
    }
}

/// Keeps `depth` requests in flight for the span.
fn saturate(drivers: &mut [Driver], batches: &[Batch], depth: usize) -> Result<Outcome> {
    let mut load = Load::new(drivers, batches);
    let began = Instant::now();
    while began.elapsed() < SPAN {
        let flying: usize = load.in_flight.iter().map(HashMap::len).sum();
        if flying < depth {
            load.submit(Instant::now())?;
        }
        load.collect()?;
    }
    load.drain(began.elapsed())
}

/// Offers `rate` requests a second with exponential gaps (Poisson arrivals) for the span.
fn offer(drivers: &mut [Driver], batches: &[Batch], rate: f64, seed: u64) -> Result<Outcome> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut gap = || Duration::from_secs_f64(-(1.0 - rng.random::<f64>()).ln() / rate);
    let mut load = Load::new(drivers, batches);
    let mut backlog = VecDeque::with_capacity(BACKLOG);
    let began = Instant::now();
    let mut due = began + gap();
    while began.elapsed() < SPAN {
        while due <= Instant::now() {
            if backlog.len() < BACKLOG {
                backlog.push_back(due);
            } else {
                load.outcome.given_up += 1;
            }
            due += gap();
        }
        if let Some(&first) = backlog.front()
            && load.submit(first)?
        {
            backlog.pop_front();
        }
        load.collect()?;
    }
    load.drain(began.elapsed())
}

/// Throughput at twice the load that saturates, over that at saturation; and how soon BUSY comes.
///
/// # Errors
/// Where the service refuses for another reason than BUSY.
pub(crate) fn overload(
    bench: &mut Bench,
    null_p99: f64,
    rounds: usize,
    reporter: &mut Reporter,
) -> Result<()> {
    let case = |load: &str| format!("port=shm/shape=dlrm-v2/samples={SAMPLES}/load={load}");
    let doubled = case("open2x");
    if !reporter.wants(&doubled) {
        return Ok(());
    }
    // Made beforehand: a load generator that shares the memory with what it measures does little else.
    let mut batches = vec![Batch::new(1)?; QUERIES];
    for batch in &mut batches {
        bench.workload.query(SAMPLES).fill(batch)?;
    }
    let mut drivers = (0..SESSIONS)
        .map(|i| bench.driver(&format!("bench load {i}"), SAMPLES, CREDITS))
        .collect::<Result<Vec<_>>>()?;
    let bound = null_p99 + MICRO_BATCH_US;
    let (mut kept, mut busy_ratios, mut rates, mut p99s) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut busy_p99s, mut saturated) = (Vec::new(), Vec::new());
    let (mut half_p50s, mut half_p99s) = (Vec::new(), Vec::new());
    let mut busy_p95s = Vec::new();
    let (mut busy, mut given_up) = (0, 0);
    for round in 0..rounds {
        eprintln!("serve: {doubled}, round {} of {rounds}", round + 1);
        let full = saturate(&mut drivers, &batches, SLOTS)?;
        let calm = offer(&mut drivers, &batches, full.rate() * 0.5, round as u64)?;
        let over = offer(&mut drivers, &batches, full.rate() * 2.0, round as u64)?;
        saturated.push(full.rate());
        half_p50s.push(quantile_us(&calm.latencies, 0.5));
        half_p99s.push(quantile_us(&calm.latencies, 0.99));
        kept.push(over.rate() / full.rate());
        rates.push(over.rate());
        p99s.push(quantile_us(&over.latencies, 0.99));
        busy += over.busy;
        given_up += over.given_up;
        if over.busy > 0 {
            busy_p95s.push(quantile_us(&over.busy_times, 0.95));
            busy_p99s.push(quantile_us(&over.busy_times, 0.99));
            busy_ratios.push(bound / quantile_us(&over.busy_times, 0.99));
        }
    }
    let f = f64::from(SAMPLES);
    let saturation = median(saturated);
    reporter.add(Measurement::plain(
        "serve",
        &case("closed"),
        "rate",
        saturation * f,
        "samples/s",
    ));
    for (metric, times) in [("latency_p50", half_p50s), ("latency_p99", half_p99s)] {
        reporter.add(Measurement::plain(
            "serve",
            &case("open0.5x"),
            metric,
            median(times),
            "us",
        ));
    }
    let (rate, ratio) = (median(rates), median(kept));
    let against = "rate at saturation";
    reporter.add(
        Measurement::plain("serve", &doubled, "rate", rate * f, "samples/s").beside(
            against,
            saturation * f,
            ratio,
        ),
    );
    reporter.add(Measurement::plain(
        "serve",
        &doubled,
        "latency_p99",
        median(p99s),
        "us",
    ));
    reporter.add(Measurement::plain(
        "serve",
        &doubled,
        "busy",
        busy as f64,
        "requests",
    ));
    reporter.add(Measurement::plain(
        "serve",
        &doubled,
        "given_up_by_client",
        given_up as f64,
        "requests",
    ));
    reporter.add(Measurement::plain(
        "serve",
        &doubled,
        "busy_p95",
        median(busy_p95s),
        "us",
    ));
    let (p99, ratio, against) = (
        median(busy_p99s),
        median(busy_ratios),
        "null p99 + 1 micro-batch",
    );
    reporter.add(
        Measurement::plain("serve", &doubled, "busy_p99", p99, "us").beside(against, bound, ratio),
    );
    Ok(())
}
