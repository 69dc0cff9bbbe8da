//! What a request gives back.

use crate::error::Failure;
use crate::memory::Target;

/// Names a request in flight until its answer is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// Its place in the table of requests.
    pub(crate) index: u32,
    /// Its number on the wire, unique in the session.
    pub(crate) serial: u64,
}

impl Ticket {
    /// The request's number on the wire, as it stands in the dataplane's logs.
    pub fn request(&self) -> u64 {
        self.serial
    }
}

/// The end of a request: every part of it has had its final completion, or the connection is gone.
#[derive(Debug)]
#[must_use = "the answer holds the request's target"]
pub struct Answer {
    /// Whose answer.
    pub ticket: Ticket,
    /// The target, the caller's again. It holds the results where `outcome` is `Ok`; otherwise some
    /// of it may have been written.
    pub target: Target,
    /// Whether the results are there. Where several parts failed: why the first of them (by its
    /// bags) did.
    pub outcome: Result<(), Failure>,
    /// The generation of the rows; where parts report several, the newest.
    pub generation: u64,
    /// The last delta of that generation of which each row of the result is, or of a later one; 0 before the first. Where parts report several, the earliest.
    pub delta: u64,
    /// Nanoseconds from a part's receipt to its end by the dataplane's clock; of the slowest part.
    pub service_ns: u64,
    /// In how many parts the request was sent.
    pub parts: u32,
    /// How many slices were placed, over all parts.
    pub slices: u32,
    /// The attempt, as the request named it.
    pub attempt: u16,
}

/// A part of a request: the bags that one worker pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its number, from 0 on.
    pub number: u32,
    /// The first bag, counted over the whole batch.
    pub first_bag: u32,
    /// How many bags.
    pub bags: u32,
    /// In how many slices they are placed; all have as many bags but the last.
    pub slices: u32,
}

/// A run of bags whose vectors are placed, of a request that may still go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Of which request.
    pub ticket: Ticket,
    /// Of which part of it.
    pub part: u32,
    /// Which of the part's slices, from 0 on.
    pub number: u32,
    /// The first bag, counted over the whole batch.
    pub first_bag: u32,
    /// How many bags.
    pub bags: u32,
}
