//! Suite `null`: a request for nothing, there and back, by polling and by blocking.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use rowmill_client::{AnyPort, Session, Wait};

use crate::driver::{histogram, pin_beside, quantile_us, record};
use crate::model::Model;
use crate::report::{Measurement, Reporter};
use crate::service::Service;

/// Round trips before anything is counted: the worker spins by then.
const WARM_UP: usize = 2_000;
/// A model just large enough to start a service with.
const MODEL_BYTES: u64 = 64 << 20;

/// Measures `count` null round trips.
///
/// # Errors
/// Where the service is gone.
pub(crate) fn round_trips(
    session: &mut Session<AnyPort>,
    count: usize,
    how: Wait,
    pause: Duration,
) -> Result<Histogram<u64>> {
    let mut times = histogram();
    for i in 0..count + WARM_UP.min(count) {
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
        let began = Instant::now();
        let ticket = session.submit_null(None)?;
        let answer = session.wait(ticket, how)?;
        let took = began.elapsed();
        answer.outcome?;
        if i >= WARM_UP.min(count) {
            record(&mut times, took);
        }
    }
    Ok(times)
}

/// Runs the suite.
///
/// # Errors
/// Where the service can't be started.
pub(crate) fn run(full: bool, reporter: &mut Reporter) -> Result<()> {
    let (model, _) = Model::dlrm_v2(MODEL_BYTES)?;
    let service = Service::start(&model.directory, "[workers]\ncpus = 1\n")?;
    pin_beside(&service)?;
    let mut session = service.connect("bench null").context("connecting")?;
    let count = if full { 1_000_000 } else { 200_000 };
    let cases = [
        (
            "port=shm/load=closed/wait=poll",
            count,
            Wait::Poll,
            Duration::ZERO,
        ),
        (
            "port=shm/load=closed/wait=block",
            count / 4,
            Wait::Block,
            Duration::ZERO,
        ),
        // Both sides have gone to sleep by the time the next request is sent.
        (
            "port=shm/load=closed/wait=asleep",
            count / 1000,
            Wait::Block,
            Duration::from_millis(5),
        ),
    ];
    for (case, count, how, pause) in cases {
        if !reporter.wants(case) {
            continue;
        }
        eprintln!("null: {case}, {count} round trips");
        let times = round_trips(&mut session, count, how, pause)?;
        for (metric, q) in [("rtt_p50", 0.5), ("rtt_p99", 0.99), ("rtt_p999", 0.999)] {
            reporter.add(Measurement::plain(
                "null",
                case,
                metric,
                quantile_us(&times, q),
                "us",
            ));
        }
        reporter.add(Measurement::plain(
            "null",
            case,
            "rate",
            1e6 / (times.mean() / 1000.0),
            "requests/s",
        ));
    }
    drop(session);
    service.stop()
}
