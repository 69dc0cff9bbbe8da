//! Part of the suite `serve`: a client that threads share beside a session of one thread's own.
//!
//! Both have a connection of their own, send the same queries from the same thread, in turns, and wait by polling. So
//! what shows is what the lock, the table of requests and the pool of results cost.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;
use rowmill_client::{
    Batch, BoundSchema, Hub, HubOptions, Pending, Place, Reply, RequestOptions, Wait,
};

use crate::driver::{histogram, median, quantile_us, record};
use crate::report::{Measurement, Reporter};
use crate::serve::Bench;
use crate::workload::Query;

/// Requests of each case: their samples, how many are in flight, and how many make a round.
const CASES: [(u32, usize, usize); 3] = [(256, 3, 24), (256, 1, 24), (1, 1, 4_000)];

/// A shared client that one thread uses.
struct Sharing {
    hub: Hub,
    schema: BoundSchema,
    batch: Batch,
}

impl Sharing {
    /// Connects, with room in the first region of the pool for results of `bags` samples.
    fn new(bench: &Bench, bags: u32, depth: usize) -> Result<Sharing> {
        let session = bench.service.connect("bench hub")?;
        let bytes = bags as u64 * depth as u64 * bench.row_bytes();
        let options = HubOptions {
            pool_region_bytes: bytes.next_power_of_two(),
            ..HubOptions::default()
        };
        let hub = Hub::over(session, options)?;
        let schema = hub.bind(bench.schema.clone())?;
        let batch = Batch::new(1)?;
        Ok(Sharing { hub, schema, batch })
    }

    fn submit(&mut self, query: &Query) -> Result<Pending> {
        query.fill(&mut self.batch)?;
        let options = RequestOptions::default();
        let sent = self
            .hub
            .submit(&self.schema, &self.batch, Place::Pool, &options)?;
        Ok(sent)
    }

    /// As [`crate::driver::Driver::pipelined`], with up to `depth` in flight.
    fn pipelined(
        &mut self,
        queries: &[Query],
        depth: usize,
        times: &mut Histogram<u64>,
    ) -> Result<Duration> {
        let began = Instant::now();
        let mut sent = VecDeque::with_capacity(depth);
        let mut end = |(at, pending): (Instant, Pending)| -> Result<()> {
            let Reply { outcome, .. } = pending.wait(Wait::Poll)?;
            record(times, at.elapsed());
            Ok(outcome?)
        };
        for query in queries {
            if sent.len() == depth {
                sent.pop_front().map_or(Ok(()), &mut end)?;
            }
            sent.push_back((Instant::now(), self.submit(query)?));
        }
        sent.into_iter().try_for_each(end)?;
        Ok(began.elapsed())
    }

    /// As [`crate::driver::Driver::round_trip`].
    fn round_trip(&mut self, query: &Query) -> Result<Duration> {
        query.fill(&mut self.batch)?;
        let began = Instant::now();
        let options = RequestOptions::default();
        let reply =
            self.hub
                .lookup(&self.schema, &self.batch, Place::Pool, &options, Wait::Poll)?;
        let took = began.elapsed();
        reply.outcome?;
        Ok(took)
    }
}

/// What was measured of one of the two, a value a round.
#[derive(Default)]
struct Side {
    rates: Vec<f64>,
    p50s: Vec<f64>,
}

/// Sends queries one by one; returns how long all took but for filling batches, and records how long each did.
fn one_by_one(
    queries: &[Query],
    times: &mut Histogram<u64>,
    mut round_trip: impl FnMut(&Query) -> Result<Duration>,
) -> Result<Duration> {
    let mut all = Duration::ZERO;
    for query in queries {
        let took = round_trip(query)?;
        record(times, took);
        all += took;
    }
    Ok(all)
}

/// Rates of both, and the medians of their latencies.
///
/// # Errors
/// Where an answer is a refusal.
pub(crate) fn run(bench: &mut Bench, rounds: usize, reporter: &mut Reporter) -> Result<()> {
    for (samples, depth, count) in CASES {
        let case = format!(
            "port=shm/shape=dlrm-v2/samples={samples}/load=closed/depth={depth}/client=hub"
        );
        if !reporter.wants(&case) {
            continue;
        }
        let queries: Vec<Query> = (0..count).map(|_| bench.workload.query(samples)).collect();
        let mut own = bench.driver("bench session", samples, depth)?;
        let mut shared = Sharing::new(bench, samples, depth)?;
        let mut sides = [Side::default(), Side::default()];
        for round in 0..=rounds {
            eprintln!("serve: {case}, round {round} of {rounds} (0 warms up)");
            let mut times = [histogram(), histogram()];
            let mut took = [Duration::ZERO; 2];
            // Who goes first has the caches as the other one left them.
            for side in [round % 2, (round + 1) % 2] {
                let times = &mut times[side];
                took[side] = match (side, depth) {
                    (0, 1) => one_by_one(&queries, times, |query| own.round_trip(query))?,
                    (0, _) => own.pipelined(&queries, times)?,
                    (_, 1) => one_by_one(&queries, times, |query| shared.round_trip(query))?,
                    _ => shared.pipelined(&queries, depth, times)?,
                };
            }
            for (side, (took, times)) in sides.iter_mut().zip(took.into_iter().zip(&times)) {
                if round > 0 {
                    side.rates
                        .push(f64::from(samples) * count as f64 / took.as_secs_f64());
                    side.p50s.push(quantile_us(times, 0.5));
                }
            }
        }
        let [own, shared] = sides;
        let against = "a session";
        let ratios = |above: &[f64], below: &[f64]| {
            median(above.iter().zip(below).map(|(a, b)| a / b).collect())
        };
        let rate = ratios(&shared.rates, &own.rates);
        let p50 = ratios(&own.p50s, &shared.p50s);
        reporter.add(
            Measurement::plain("serve", &case, "rate", median(shared.rates), "samples/s").beside(
                against,
                median(own.rates),
                rate,
            ),
        );
        reporter.add(
            Measurement::plain("serve", &case, "latency_p50", median(shared.p50s), "us").beside(
                against,
                median(own.p50s),
                p50,
            ),
        );
    }
    Ok(())
}
