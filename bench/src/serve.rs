//! Suite `serve`: the whole service over shared memory against the kernels alone, and under overload.
//!
//! One worker, pinned; the client on another CPU. The kernels alone run in this process, on this
//! thread's CPU, over a copy of the same tables, and write the same output for the same ids.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rowmill_arena::Window;
use rowmill_client::{Schema, Wait};
use rowmill_pooling::{Isa, Kernels};
use rowmill_table::Resident;

use crate::driver::{Driver, histogram, median, pin_beside, quantile_us, record};
use crate::model::{self, Model};
use crate::null;
use crate::open_loop;
use crate::python_client;
use crate::report::{Measurement, Reporter};
use crate::service::Service;
use crate::sharing;
use crate::workload::{Query, Workload};

/// Rows of all tables: at least 4 GiB, far beyond any cache.
const MODEL_BYTES: u64 = (4 << 30) + (256 << 20);
/// Samples of a large request.
const LARGE: u32 = 256;
/// Distinct large requests: 24 of 28 MB of rows each, so that no cache holds them.
const LARGE_QUERIES: usize = 24;
/// Distinct one-sample requests.
const SMALL_QUERIES: usize = 4_000;
/// Micro-batch of the default configuration, in microseconds.
pub(crate) const MICRO_BATCH_US: f64 = 50.0;

/// The service and what it is compared with.
pub(crate) struct Bench {
    /// The running service.
    pub service: Service,
    /// Its schema.
    pub schema: Schema,
    /// Draws queries.
    pub workload: Workload,
    tables: Arc<Resident>,
    kernels: Kernels,
    row_bytes: u64,
}

impl Bench {
    fn start() -> Result<Bench> {
        let (model, factor) = Model::dlrm_v2(MODEL_BYTES)?;
        eprintln!(
            "serve: DLRM-v2 with rows scaled by {factor:.4}, {:.2} GiB",
            model.bytes() as f64 / (1u64 << 30) as f64
        );
        let service = Service::start(&model.directory, "[workers]\ncpus = 1\n")?;
        let (schema, row_bytes) = model.schema(1024);
        let workload = Workload::dlrm_v2(&model.rows(), 1);
        let tables = model.load()?;
        pin_beside(&service)?;
        let kernels = Kernels::new(Isa::detect().isa);
        Ok(Bench {
            service,
            schema,
            workload,
            tables,
            kernels,
            row_bytes,
        })
    }

    /// A session of its own with `depth` targets of `bags` samples.
    ///
    /// # Errors
    /// Where the service refuses.
    pub(crate) fn driver(&self, name: &str, bags: u32, depth: usize) -> Result<Driver> {
        Driver::new(
            self.service.connect(name)?,
            self.schema.clone(),
            bags,
            depth,
        )
    }

    /// Bytes of a sample's answer.
    pub(crate) fn row_bytes(&self) -> u64 {
        self.row_bytes
    }

    /// How long the kernels alone take for a query.
    fn kernel_time(&self, query: &Query, out: &mut [u8]) -> Duration {
        let batch = model::batch(&self.tables, &self.schema, query);
        let began = Instant::now();
        self.kernels.pool(&batch, &Window::over(out));
        began.elapsed()
    }
}

/// Runs the suite.
///
/// # Errors
/// Where the service can't be started or an answer is a refusal.
pub(crate) fn run(full: bool, reporter: &mut Reporter) -> Result<()> {
    let mut bench = Bench::start().context("starting the service under test")?;
    let rounds = if full { 15 } else { 5 };
    throughput(&mut bench, rounds, reporter)?;
    python_client::run(&mut bench, reporter)?;
    let (null_p50, null_p99) = null_times(&bench)?;
    let kernel_p50 = single_sample(&mut bench, null_p50, rounds, reporter)?;
    beside_large(&mut bench, null_p99, kernel_p50, rounds, reporter)?;
    sharing::run(&mut bench, rounds, reporter)?;
    open_loop::overload(&mut bench, null_p99, rounds, reporter)?;
    bench.service.stop()
}

/// Samples a second of the service over those of the kernels alone.
fn throughput(bench: &mut Bench, rounds: usize, reporter: &mut Reporter) -> Result<()> {
    let case = format!("port=shm/shape=dlrm-v2/samples={LARGE}/load=closed");
    if !reporter.wants(&case) {
        return Ok(());
    }
    let queries: Vec<Query> = (0..LARGE_QUERIES)
        .map(|_| bench.workload.query(LARGE))
        .collect();
    let samples = (LARGE as usize * LARGE_QUERIES) as f64;
    let mut out = vec![0; bench.row_bytes as usize * LARGE as usize];
    let mut driver = bench.driver("bench large", LARGE, 3)?;
    let (mut served, mut alone, mut times) = (Vec::new(), Vec::new(), histogram());
    for round in 0..=rounds {
        eprintln!("serve: {case}, round {round} of {rounds} (0 warms up)");
        let began = Instant::now();
        for query in &queries {
            bench.kernel_time(query, &mut out);
        }
        let kernels = samples / began.elapsed().as_secs_f64();
        let service = samples / driver.pipelined(&queries, &mut times)?.as_secs_f64();
        if round > 0 {
            alone.push(kernels);
            served.push(service);
        } else {
            // The targets' first pages came with these.
            times.clear();
        }
    }
    let ratios = served.iter().zip(&alone).map(|(s, a)| s / a).collect();
    let (ratio, alone, served) = (median(ratios), median(alone), median(served));
    reporter.add(
        Measurement::plain("serve", &case, "rate", served, "samples/s").beside(
            "kernels alone",
            alone,
            ratio,
        ),
    );
    for (metric, q) in [("latency_p50", 0.5), ("latency_p99", 0.99)] {
        reporter.add(Measurement::plain(
            "serve",
            &case,
            metric,
            quantile_us(&times, q),
            "us",
        ));
    }
    Ok(())
}

/// Median and 99th percentile of a null round trip, in microseconds: of this run, for comparison.
fn null_times(bench: &Bench) -> Result<(f64, f64)> {
    let mut session = bench.service.connect("bench null")?;
    let times = null::round_trips(&mut session, 100_000, Wait::Poll, Duration::ZERO)?;
    Ok((quantile_us(&times, 0.5), quantile_us(&times, 0.99)))
}

/// The latency of one sample at a time; returns the kernels' median for one, in microseconds.
fn single_sample(
    bench: &mut Bench,
    null_p50: f64,
    rounds: usize,
    reporter: &mut Reporter,
) -> Result<f64> {
    let case = "port=shm/shape=dlrm-v2/samples=1/load=closed";
    let queries: Vec<Query> = (0..SMALL_QUERIES)
        .map(|_| bench.workload.query(1))
        .collect();
    let mut out = vec![0; bench.row_bytes as usize];
    let mut driver = bench.driver("bench single", 1, 1)?;
    let (mut ratios, mut kernel_p50s, mut times) = (Vec::new(), Vec::new(), histogram());
    for round in 0..=rounds {
        let (mut alone, mut served) = (histogram(), histogram());
        for query in &queries {
            record(&mut alone, bench.kernel_time(query, &mut out));
        }
        for query in &queries {
            record(&mut served, driver.round_trip(query)?);
        }
        if round > 0 {
            let bound = null_p50 + 1.5 * quantile_us(&alone, 0.5);
            ratios.push(bound / quantile_us(&served, 0.5));
            kernel_p50s.push(quantile_us(&alone, 0.5));
            times
                .add(&served)
                .context("histograms of the same bounds")?;
        }
    }
    let kernel_p50 = median(kernel_p50s);
    if reporter.wants(case) {
        let (bound, ratio) = (null_p50 + 1.5 * kernel_p50, median(ratios));
        let p50 = quantile_us(&times, 0.5);
        reporter.add(Measurement::plain(
            "serve",
            case,
            "kernel_p50",
            kernel_p50,
            "us",
        ));
        reporter.add(Measurement::plain(
            "serve", case, "null_p50", null_p50, "us",
        ));
        reporter.add(
            Measurement::plain("serve", case, "latency_p50", p50, "us").beside(
                "null + 1.5 kernel",
                bound,
                ratio,
            ),
        );
        reporter.add(Measurement::plain(
            "serve",
            case,
            "latency_p99",
            quantile_us(&times, 0.99),
            "us",
        ));
    }
    Ok(kernel_p50)
}

/// The latency of one sample at a time while another client has two queries of 700 in flight.
fn beside_large(
    bench: &mut Bench,
    null_p99: f64,
    kernel_p50: f64,
    rounds: usize,
    reporter: &mut Reporter,
) -> Result<()> {
    let case = "port=shm/shape=dlrm-v2/samples=1/load=closed/beside=700";
    if !reporter.wants(case) {
        return Ok(());
    }
    let singles: Vec<Query> = (0..SMALL_QUERIES)
        .map(|_| bench.workload.query(1))
        .collect();
    let large: Vec<Query> = (0..8).map(|_| bench.workload.query(700)).collect();
    let mut single = bench.driver("bench single", 1, 1)?;
    let mut other = bench.driver("bench 700", 700, 2)?;
    let bound = null_p99 + kernel_p50 + 2.0 * MICRO_BATCH_US;
    let (mut ratios, mut p99s, mut p50s) = (Vec::new(), Vec::new(), Vec::new());
    let mut large = large.iter().cycle();
    for _ in 0..rounds {
        let mut times = histogram();
        for query in &singles {
            // The large client copies its ids while no single sample is under way: on a machine with
            // two CPUs both clients share one, which is not what is measured.
            while let Some(answer) = other.session.poll()? {
                answer.outcome?;
                other.idle.push(answer.target);
            }
            while !other.idle.is_empty() {
                other
                    .try_submit(large.next().context("cycles")?)?
                    .context("credits for two queries")?;
            }
            record(&mut times, single.round_trip(query)?);
        }
        p99s.push(quantile_us(&times, 0.99));
        p50s.push(quantile_us(&times, 0.5));
        ratios.push(bound / quantile_us(&times, 0.99));
    }
    let against = "null p99 + kernel + 2 micro-batches";
    reporter.add(Measurement::plain(
        "serve",
        case,
        "latency_p50",
        median(p50s),
        "us",
    ));
    reporter.add(
        Measurement::plain("serve", case, "latency_p99", median(p99s), "us").beside(
            against,
            bound,
            median(ratios),
        ),
    );
    Ok(())
}
