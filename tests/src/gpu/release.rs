//! Streams that wait for a result that does not come, or comes late.

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rowmill_client::{ClientError, Failure, StreamFailure};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::place::{Place, Visitor};

/// A moment in which what does not wait is over.
const MOMENT: Duration = Duration::from_millis(200);

/// Longer than anything takes that does not hang.
const PATIENCE: Duration = Duration::from_secs(10);

fn is_missing(visitor: &Visitor) -> Result<()> {
    let bytes = visitor.read(visitor.output.memory())?;
    ensure!(
        bytes.iter().all(|&byte| byte == 0xff),
        "what is there is no NaN"
    );
    Ok(())
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

pub(super) fn killed(place: &Place) -> Result<(String, Value)> {
    let service = place.start()?;
    let visitor = service.visit(|_| ())?;
    let stream = visitor.stream()?;
    service.stop()?;
    visitor.submit(&stream)?;
    thread::sleep(MOMENT);
    let began = Instant::now();
    service.signal(Signal::KILL)?;
    let outcome = visitor.gpu.synchronize(&stream);
    let took = began.elapsed();
    let gone = StreamFailure::Request(Failure::Disconnected);
    let told = matches!(outcome, Err(ClientError::NoResult(why)) if why == gone);
    ensure!(told, "{outcome:?}");
    ensure!(took < PATIENCE, "after {took:?}");
    is_missing(&visitor)?;
    let line = format!("released and told after {:.0} us, NaNs", us(took));
    Ok((line, json!({"us": us(took)})))
}

pub(super) fn late(place: &Place) -> Result<(String, Value)> {
    let service = place.start()?;
    let visitor = service.visit(|options| options.limit = MOMENT)?;
    let stream = visitor.stream()?;
    service.stop()?;
    let began = Instant::now();
    visitor.submit(&stream)?;
    let outcome = visitor.gpu.synchronize(&stream);
    let took = began.elapsed();
    let told = matches!(
        outcome,
        Err(ClientError::NoResult(StreamFailure::TimedOut(_)))
    );
    ensure!(told, "{outcome:?}");
    ensure!(took >= MOMENT && took < MOMENT + PATIENCE, "after {took:?}");
    is_missing(&visitor)?;
    service.signal(Signal::CONT)?;
    let line = format!(
        "released and told after {:.0} us of {MOMENT:?}, NaNs",
        us(took)
    );
    Ok((line, json!({"us": us(took)})))
}

/// Memory is freed while a stream waits: the driver can hold its lock for that until the stream goes on.
pub(super) fn freed(place: &Place) -> Result<(String, Value)> {
    let service = place.start()?;
    let visitor = service.visit(|_| ())?;
    let (stream, memory) = (visitor.stream()?, visitor.memory()?);
    service.stop()?;
    visitor.submit(&stream)?;
    let (done, is_done) = channel();
    let free = thread::spawn(move || {
        drop(memory);
        let _ = done.send(());
    });
    let waits = is_done.recv_timeout(MOMENT).is_err();
    service.signal(Signal::CONT)?;
    let began = Instant::now();
    visitor.gpu.synchronize(&stream)?;
    let took = began.elapsed();
    ensure!(free.join().is_ok(), "freeing has panicked");
    ensure!(took < PATIENCE, "the stream went on after {took:?}");
    let does = if waits {
        "waits for the stream"
    } else {
        "does not wait for the stream"
    };
    let line = format!(
        "cuMemFree {does}; the result came {:.0} us after the service went on",
        us(took)
    );
    Ok((line, json!({"free_waits": waits, "us": us(took)})))
}
