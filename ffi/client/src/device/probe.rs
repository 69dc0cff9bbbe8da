//! Whether results come to a GPU's memory: a small transfer, checked.
//!
//! A NIC can take memory for registration that it then can't reach, or that is not where the GPU sees it; a driver can pin memory and
//! not copy it. So an empty bag, whose vector is zeros, is looked up to the first and to the last place of the region, over a pattern,
//! there and in the staging; what was there comes back afterwards.

use core::fmt::Display;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rowmill_cuda::{DeviceMemory, Stream};
use rowmill_port::ClientPort;
use rowmill_wire::{Output, Pooling, Schema};

use super::Inner;
use crate::answer::{Part, Slice};
use crate::batch::{Batch, Division};
use crate::error::{ClientError, Failure};
use crate::hub::{Place, Watcher};
use crate::memory::Region;
use crate::options::RequestOptions;
use crate::schema::BoundSchema;

/// What is there before. As f16 it is no zero.
const PATTERN: u8 = 0xa5;

/// Bytes of the pattern before and after the vector that have to stay, where there is room for them.
const AROUND: u64 = 64;

/// Passes the end of a request on.
struct Ended(Mutex<Sender<Result<(), Failure>>>);

impl Watcher for Ended {
    fn part(&self, _part: Part) {}

    fn slice(&self, _slice: Slice) {}

    fn end(&self, outcome: Result<(), Failure>) {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever waited may have left.
        let _ = sender.send(outcome);
    }
}

/// Where a vector of `bytes` is tried in a region: (from where the pattern is, how many bytes of it, the vector from there on).
fn places(region: u64, bytes: u64) -> Option<[(u64, u64, u64); 2]> {
    let around = AROUND.min(region.checked_sub(bytes)? / 2) / 64 * 64;
    let window = bytes + 2 * around;
    // Results begin at multiples of an element's bytes.
    let last = (region - window) / 4 * 4;
    Some([(0, window, around), (last, window, around)])
}

/// How a small transfer comes to the memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Through {
    /// A NIC writes to the region that it is registered as.
    Nic(Region),
    /// It is copied from pinned memory.
    Staging,
}

impl<P: ClientPort + Send + 'static> Inner<P> {
    /// Tries whether results come to the memory. The error is a sentence.
    pub(super) fn probe(&self, through: Through, memory: &DeviceMemory) -> Result<(), String> {
        let schema = self.probe_schema().map_err(text)?;
        let bytes = schema.vector_bytes(0);
        let places = places(memory.len(), bytes);
        let places = places.ok_or_else(|| {
            format!(
                "{} bytes are less than a vector of {bytes} to try it with",
                memory.len()
            )
        })?;
        for (from, len, at) in places {
            self.try_place(through, memory, &schema, (from, len, at))?;
        }
        Ok(())
    }

    fn try_place(
        &self,
        through: Through,
        memory: &DeviceMemory,
        schema: &BoundSchema,
        (from, len, at): (u64, u64, u64),
    ) -> Result<(), String> {
        let current = self.context.enter().map_err(text)?;
        let mut before = vec![0; len as usize];
        current.read(memory, from, &mut before).map_err(text)?;
        current.fill(memory, from, len, PATTERN).map_err(text)?;
        let looked_up = match through {
            Through::Nic(region) => self.look_up(region, schema, from + at),
            Through::Staging => self.look_up_staged(memory, schema, from + at),
        };
        let mut found = vec![0; len as usize];
        current.read(memory, from, &mut found).map_err(text)?;
        current.write(memory, from, &before).map_err(text)?;
        looked_up?;
        let vector = at as usize..(at + schema.vector_bytes(0)) as usize;
        let expected = |place: usize| if vector.contains(&place) { 0 } else { PATTERN };
        match (0..found.len()).find(|&place| found[place] != expected(place)) {
            None => Ok(()),
            Some(place) => Err(format!(
                "a small transfer did not come through: byte {} is {:#04x} instead of {:#04x}",
                from + place as u64,
                found[place],
                expected(place)
            )),
        }
    }

    /// Has the vector of an empty bag placed by a NIC.
    fn look_up(&self, region: Region, schema: &BoundSchema, at: u64) -> Result<(), String> {
        let (batch, until) = (empty_bag(), Instant::now() + self.options.limit);
        let (sender, ended) = channel();
        let watcher = Arc::new(Ended(Mutex::new(sender)));
        let pending = once_there_is_room(until, || {
            let (place, options) = (Place::At(region, at), RequestOptions::default());
            let watcher = Arc::clone(&watcher);
            let hub = &self.hub;
            hub.submit_watched(schema, &batch, place, &options, watcher)
        })?;
        // It holds the place until it is taken in that nobody wants the answer.
        drop(pending);
        let left = until.saturating_duration_since(Instant::now());
        let outcome = match ended.recv_timeout(left) {
            Ok(outcome) => outcome.map_err(|why| format!("a small transfer failed: {why}")),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                Err("a small transfer has had no answer".into())
            }
        };
        self.hub.take_in().map_err(text)?;
        outcome
    }

    /// Has the vector of an empty bag placed in the staging, over a pattern there, and copied, as all requests that are staged.
    fn look_up_staged(
        &self,
        memory: &DeviceMemory,
        schema: &BoundSchema,
        at: u64,
    ) -> Result<(), String> {
        let (batch, until) = (empty_bag(), Instant::now() + self.options.limit);
        let stream = Stream::new(&self.context).map_err(text)?;
        let bytes = vec![PATTERN; schema.vector_bytes(0) as usize];
        once_there_is_room(until, || {
            let (ids, options) = ((&batch).into(), RequestOptions::default());
            self.send_staged(
                schema,
                ids,
                (memory, at),
                &stream,
                &options,
                |staging, place| {
                    staging.window().write(place as usize, &bytes);
                },
            )
        })?;
        match self.synchronize(&stream) {
            Err(ClientError::NoResult(why)) => Err(format!("a small transfer failed: {why}")),
            outcome => outcome.map_err(text),
        }
    }

    /// A schema of one feature, of the table with the shortest rows; bound once. No result is smaller than its vector.
    fn probe_schema(&self) -> Result<BoundSchema, ClientError> {
        let bound = self.probe.lock();
        let mut bound = bound.unwrap_or_else(PoisonError::into_inner);
        if let Some(bound) = &*bound {
            return Ok(bound.clone());
        }
        let tables = self.hub.tables()?;
        let table = tables.iter().min_by_key(|table| table.dim);
        let table = table.ok_or(ClientError::NoTables)?;
        let feature = ("probe", table.name.as_str(), Pooling::Sum, table.dim);
        let (schema, _) = Schema::side_by_side_as(Output::F16, 1, [feature]);
        let new = self.hub.bind(schema)?;
        *bound = Some(new.clone());
        Ok(new)
    }
}

fn text(error: impl Display) -> String {
    error.to_string()
}

fn empty_bag() -> Batch {
    let mut batch = Batch::new(1).expect("one bag");
    let pushed = batch.push(Division::Lengths(&[0]), &[0u32; 0][..]);
    pushed.expect("an empty bag is one");
    batch
}

/// Sends until there is room for the request.
fn once_there_is_room<T>(
    until: Instant,
    mut send: impl FnMut() -> Result<T, ClientError>,
) -> Result<T, String> {
    loop {
        match send() {
            Ok(sent) => return Ok(sent),
            Err(error) if (error.would_block() || error.is_full()) && Instant::now() < until => {
                std::thread::yield_now();
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_lie_in_the_region_at_its_ends() {
        assert_eq!(places(15, 16), None);
        assert_eq!(places(16, 16), Some([(0, 16, 0), (0, 16, 0)]));
        assert_eq!(places(1000, 16), Some([(0, 144, 64), (856, 144, 64)]));
        assert_eq!(places(1003, 16), Some([(0, 144, 64), (856, 144, 64)]));
    }
}
