//! What streams find before and after a lookup. Each check is repeated with the order broken, to show that it would be found.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use rowmill_client::cuda::{DeviceMemory, Stream};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::place::{Place, Service, Visitor};

/// What the output has before.
const BEFORE: u8 = 0xee;

/// Copies the output elsewhere in `reader`, right after a lookup in `stream` whose service is stopped for a while; what is read.
fn read_after(
    service: &Service,
    visitor: &Visitor,
    stream: &Stream,
    reader: &Stream,
) -> Result<Vec<u8>> {
    let seen = visitor.memory()?;
    visitor.fill(visitor.output.memory(), BEFORE)?;
    service.stop()?;
    visitor.submit(stream)?;
    {
        let current = visitor.gpu.context().enter()?;
        let (to, from) = ((&seen, 0), (&**visitor.output.memory(), 0));
        current.copy_between(reader, to, from, visitor.bytes())?;
        thread::sleep(Duration::from_millis(20));
        ensure!(!current.is_idle(stream)?, "the stream does not wait");
    }
    service.signal(Signal::CONT)?;
    visitor.gpu.synchronize(stream)?;
    visitor.gpu.synchronize(reader)?;
    visitor.read(&seen)
}

pub(super) fn after(place: &Place) -> Result<(String, Value)> {
    let service = place.start()?;
    let visitor = service.visit(|_| ())?;
    let expected = visitor.expected()?;
    let (stream, other) = (visitor.stream()?, visitor.stream()?);
    for round in 0..10 {
        let seen = read_after(&service, &visitor, &stream, &stream)?;
        ensure!(
            seen == expected,
            "the stream read something else in round {round}"
        );
    }
    let legacy = Stream::legacy(visitor.gpu.context());
    let seen = read_after(&service, &visitor, &legacy, &legacy)?;
    ensure!(
        seen == expected,
        "the legacy default stream read something else"
    );
    let seen = read_after(&service, &visitor, &stream, &other)?;
    ensure!(
        seen.iter().all(|&byte| byte == BEFORE),
        "a stream that does not wait has read the result: this test would find nothing"
    );
    let bytes = visitor.bytes();
    let line = format!("{bytes} bytes right in 11 of 11; without the order they are not");
    Ok((line, json!({"bytes": bytes})))
}

/// Copies the output elsewhere in `reader` behind work of some milliseconds, then looks up in `stream`; what is read.
fn read_before(
    visitor: &Visitor,
    large: &[DeviceMemory; 2],
    stream: &Stream,
    reader: &Stream,
) -> Result<Vec<u8>> {
    let seen = visitor.memory()?;
    visitor.fill(visitor.output.memory(), BEFORE)?;
    {
        let current = visitor.gpu.context().enter()?;
        for _ in 0..400 {
            current.copy_between(reader, (&large[0], 0), (&large[1], 0), large[0].len())?;
        }
        let (to, from) = ((&seen, 0), (&**visitor.output.memory(), 0));
        current.copy_between(reader, to, from, visitor.bytes())?;
        ensure!(!current.is_idle(reader)?, "the work before is too short");
    }
    visitor.submit(stream)?;
    visitor.gpu.synchronize(stream)?;
    visitor.gpu.synchronize(reader)?;
    visitor.read(&seen)
}

pub(super) fn before(place: &Place) -> Result<(String, Value)> {
    let service = place.start()?;
    let visitor = service.visit(|_| ())?;
    let expected = visitor.expected()?;
    // The stand-in copies slowly enough.
    let bytes = if visitor.gpu.device().name()?.contains("no GPU") {
        64
    } else {
        256 << 20
    };
    let large = || DeviceMemory::new(visitor.gpu.context(), bytes);
    let large = [large()?, large()?];
    let (stream, other) = (visitor.stream()?, visitor.stream()?);
    for round in 0..5 {
        let seen = read_before(&visitor, &large, &stream, &stream)?;
        let as_before = seen.iter().all(|&byte| byte == BEFORE);
        ensure!(
            as_before,
            "the result was written too early in round {round}"
        );
        ensure!(
            visitor.read(visitor.output.memory())? == expected,
            "the result"
        );
    }
    let seen = read_before(&visitor, &large, &stream, &other)?;
    ensure!(
        seen.iter().any(|&byte| byte != BEFORE),
        "a stream that is not waited for has read what was before: this test would find nothing"
    );
    let line = "the output is written after what reads it in 5 of 5; without the order it is not";
    Ok((line.into(), Value::Null))
}
