//! What a status record may say about the request that it is for.

use std::ops::Range;

use rowmill_wire::{Completion, Op, Status};

use super::flight::Flight;

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Frames that workers took.
    pub frames: u64,
    /// Parts answered OK, each compared with the reference.
    pub answered: u64,
    /// Vectors compared.
    pub vectors: u64,
    /// Parts with ids of rows that may be wanted soon that were taken.
    pub wishes: u64,
    /// Parts answered BUSY.
    pub busy: u64,
    /// Parts answered EXPIRED.
    pub expired: u64,
    /// Parts answered CANCELLED.
    pub cancelled: u64,
    /// Parts ended because a region was lost or given up.
    pub region_gone: u64,
    /// Parts refused for a key that a hashed table lacks.
    pub unknown_ids: u64,
    /// Parts refused for more ids than a block holds.
    pub overflows: u64,
    /// Parts ended because a row of a cached table did not come.
    pub row_unavailable: u64,
    /// Parts refused for anything else that they said.
    pub refused: u64,
    /// Connections cut off by the dataplane.
    pub closed: u64,
    /// Connections that ended without the dataplane's wanting it, because a client left or the link failed.
    pub ended: u64,
    /// Links that were silent for a while.
    pub silences: u64,
    /// Vectors of rows that became others while their request was in progress.
    pub newer: u64,
    /// Pieces of results that were placed after they were posted.
    pub placed: u64,
    /// Of those, pieces that were placed after their connection had failed.
    pub placed_late: u64,
}

impl Tally {
    /// Counts a request's final record.
    pub fn count(&mut self, flight: &Flight, status: Status) {
        *match status {
            Status::Ok if flight.is_wish() => &mut self.wishes,
            Status::Ok => &mut self.answered,
            Status::Busy => &mut self.busy,
            Status::Expired => &mut self.expired,
            Status::Cancelled => &mut self.cancelled,
            Status::RegionLost | Status::UnknownRegion => &mut self.region_gone,
            Status::UnknownId => &mut self.unknown_ids,
            Status::BlockOverflow => &mut self.overflows,
            Status::RowUnavailable => &mut self.row_unavailable,
            _ => &mut self.refused,
        } += 1;
    }
}

/// What else decides whether a record is right.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances {
    /// When it was announced.
    pub at_ns: u64,
    /// The client keeps to the protocol.
    pub honest: bool,
    /// Requests in progress on the lane, with this one.
    pub in_progress: usize,
    /// Slots of the lane's engine.
    pub slots: usize,
    /// Bytes that the lane has worked on since the request came.
    pub worked: u64,
    /// Rows of cached tables, on whatever lane, that have failed or were given up since the request came.
    pub rows_failed: u64,
    /// Whether the bag that it refuses has a row that has failed some time, or of whose table some were given up.
    pub has_failed: bool,
    /// The most that a single bag may have to wait for.
    pub wait_most: u64,
}

/// A slice's record: the one that comes next, with all its vectors in place.
///
/// # Errors
/// What is wrong, as a sentence.
pub fn check_slice(
    flight: &mut Flight,
    record: &Completion,
    stored: impl FnMut(Range<u64>) -> Option<Vec<u8>>,
) -> Result<(), String> {
    let slice_bags = flight.header.map_or(0, |h| h.slice_bags);
    let next = slice_bags > 0
        && (record.status, record.credits) == (Status::Ok, 0)
        && u32::from(record.slice) == flight.slices;
    if !next {
        let wanted = flight.slices;
        return Err(format!(
            "slice {wanted} is not the one that comes next: {record:?}"
        ));
    }
    let first = flight.slices * slice_bags;
    flight.slices += 1;
    let of = (record.generation, record.delta);
    flight.check(first..first + slice_bags, of, stored)?;
    flight.generation = Some(record.generation);
    Ok(())
}

/// A final record. Returns how many of its vectors are of rows that became others since the request came.
///
/// # Errors
/// What is wrong, as a sentence.
pub fn check_final(
    flight: &Flight,
    record: &Completion,
    now: Circumstances,
    stored: impl FnMut(Range<u64>) -> Option<Vec<u8>>,
) -> Result<u64, String> {
    if record.credits != 1 {
        return Err("a final record gives one credit back".into());
    }
    match record.status {
        Status::Ok => check_ok(flight, record, now, stored),
        Status::Busy if now.in_progress <= now.slots => Err(format!(
            "BUSY with {} of {} slots in use",
            now.in_progress - 1,
            now.slots
        )),
        Status::Expired
            if flight
                .deadline_ns()
                .is_none_or(|deadline| now.at_ns < deadline) =>
        {
            Err(format!(
                "EXPIRED before its deadline {:?}",
                flight.deadline_ns()
            ))
        }
        Status::Retry if flight.header.is_some_and(|header| header.generation == 0) => {
            Err("RETRY to a request that names no generation".into())
        }
        Status::Cancelled if !flight.cancelled => Err("CANCELLED, but nobody cancelled it".into()),
        Status::RowUnavailable if flight.is_wish() => {
            Err("rows that may be wanted soon are waited for".into())
        }
        Status::RowUnavailable if now.rows_failed == 0 => {
            Err("a row is said to be unavailable, but none has failed".into())
        }
        Status::RowUnavailable if !now.has_failed => Err(format!(
            "a row of feature {}, id {} is said to be unavailable, but others have failed",
            record.feature, record.index
        )),
        Status::Internal | Status::Unavailable | Status::Draining => {
            Err(format!("{} is never right here", record.status))
        }
        _ => Ok(0),
    }
}

fn check_ok(
    flight: &Flight,
    record: &Completion,
    now: Circumstances,
    stored: impl FnMut(Range<u64>) -> Option<Vec<u8>>,
) -> Result<u64, String> {
    let Some(header) = flight.header else {
        return Err("OK to a frame that cannot be parsed".into());
    };
    if header.op == Op::Null {
        return Ok(0);
    }
    let before_last = header.slices() - 1;
    if u32::from(record.slice) != before_last || flight.slices != before_last {
        return Err(format!(
            "OK after {} slices of {}",
            flight.slices,
            header.slices()
        ));
    }
    if header.op != Op::Prefetch && flight.model.is_none() {
        return Err("OK to a request whose schema is not bound".into());
    }
    if record.service_ns != now.at_ns - flight.received_ns {
        return Err(format!("a service time of {} ns", record.service_ns));
    }
    if now.honest && flight.has_read_twice() {
        return Err("ids or weights were read twice".into());
    }
    if header.op == Op::Prefetch {
        return flight.check_wish().map(|()| 0);
    }
    let newer = flight.check(0..u32::MAX, (record.generation, record.delta), stored)?;
    // What was worked on meanwhile includes the request itself.
    let most = now.wait_most + flight.own_bytes();
    if now.honest && flight.alone && header.bags == 1 && now.worked > most {
        return Err(format!(
            "a single bag waited for {} bytes, more than {most}",
            now.worked
        ));
    }
    Ok(newer)
}
