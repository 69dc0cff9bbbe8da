//! How long a result takes to the GPU, beside what it can't be shorter than: pooling it, and copying as many pinned bytes.

use core::ptr::NonNull;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rowmill_client::cuda::{Event, Pinned};
use rowmill_client::{Place as In, RequestOptions, Wait};
use serde_json::{Value, json};

use super::place::{Place, SAMPLES, Visitor};

/// Rounds of all three in turns; the medians are compared.
const ROUNDS: usize = 300;

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// A lookup to the host's memory.
fn pooled(visitor: &Visitor) -> Result<f64> {
    let options = RequestOptions::default();
    let began = Instant::now();
    let reply = visitor.hub.lookup(
        &visitor.schema,
        &visitor.batch,
        In::Pool,
        &options,
        Wait::Poll,
    )?;
    let took = us(began.elapsed());
    reply.outcome?;
    Ok(took)
}

/// From the call that submits to the result in the GPU's memory.
fn end_to_end(visitor: &Visitor, stream: &rowmill_client::cuda::Stream) -> Result<f64> {
    let began = Instant::now();
    visitor.submit(stream)?;
    visitor.gpu.synchronize(stream)?;
    Ok(us(began.elapsed()))
}

pub(super) fn measure(place: &Place) -> Result<(String, Value)> {
    let service = place.start()?;
    let visitor = service.visit(|_| ())?;
    let expected = visitor.expected()?;
    let stream = visitor.stream()?;
    let mut host = vec![1u8; visitor.bytes() as usize];
    let start = NonNull::new(host.as_mut_ptr()).expect("not null");
    let bytes = host.len();
    let pinned = Pinned::new(visitor.gpu.context(), host, start, bytes)?;
    let to = visitor.memory()?;
    let events = [
        Event::timed(visitor.gpu.context())?,
        Event::timed(visitor.gpu.context())?,
    ];
    let copied = || -> Result<f64> {
        let current = visitor.gpu.context().enter()?;
        current.record(&events[0], &stream)?;
        current.copy_in(&stream, (&to, 0), (&pinned, 0), bytes as u64)?;
        current.record(&events[1], &stream)?;
        current.wait_until(&events[1])?;
        Ok(f64::from(current.elapsed_ms(&events[0], &events[1])?) * 1e3)
    };
    let mut times = [(); 3].map(|()| Vec::with_capacity(ROUNDS));
    for _ in 0..ROUNDS {
        times[0].push(pooled(&visitor)?);
        times[1].push(copied()?);
        times[2].push(end_to_end(&visitor, &stream)?);
    }
    ensure!(
        visitor.read(visitor.output.memory())? == expected,
        "the last result"
    );
    let [pool_us, copy_us, end_to_end_us] = times.map(median);
    let bound_us = 1.1 * pool_us.max(copy_us) + 20.0;
    let is_real = !visitor.gpu.device().name()?.contains("no GPU");
    let verdict = match (is_real, end_to_end_us <= bound_us) {
        (false, _) => "of a stand-in, which says nothing",
        (true, true) => "within the bound",
        (true, false) => "SHORT of the bound",
    };
    let line = format!(
        "{SAMPLES} samples, {bytes} bytes: pooling {pool_us:.0} us, copying {copy_us:.0} us, end to end {end_to_end_us:.0} us, bound \
         {bound_us:.0} us: {verdict}"
    );
    let figures = json!({
        "bytes": bytes, "pool_us": pool_us, "copy_us": copy_us, "end_to_end_us": end_to_end_us, "bound_us": bound_us,
    });
    Ok((line, figures))
}
