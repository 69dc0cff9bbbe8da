//! What goes into [`Fetches`](super::Fetches) and comes out of it.

use super::Lane;
use crate::tier::TierError;

/// Bounds, fixed at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rows in staging, with those that places are kept for. At least [`longest`](Limits::longest), so that any bag can be parked, and
    /// [`room_for`](super::room_for) where several tables' files may hang.
    pub staged: u32,
    /// Ids of the longest bag.
    pub longest: u32,
    /// Rows on their way that were asked for by [`Fetches::prefetch`](super::Fetches::prefetch) and that nobody wants.
    pub prefetched: u32,
    /// Rows that this worker asks of other workers at a time: each has memory of its own.
    pub asked: u32,
    /// Bags that wait, or are ready and not pooled yet.
    pub bags: u32,
    /// Bytes of the longest row of all tables.
    pub row_bytes: usize,
    /// How long a row may take from when it is asked of the tier, and how long the tier may answer nothing while rows wait for their turn; in
    /// nanoseconds.
    pub budget_ns: u64,
}

/// Room that a bag leaves to others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Rows in staging.
    pub rows: u32,
    /// Parked bags.
    pub bags: u32,
}

/// A parked bag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BagId {
    pub(super) index: u32,
    /// How often the place was given before, so that nobody takes one bag for another.
    pub(super) turn: u32,
}

impl BagId {
    /// A number below [`Limits::bags`], no other parked bag's.
    pub fn number(self) -> usize {
        self.index as usize
    }
}

/// A row to be read, and how its arrival is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    pub(super) index: u32,
    pub(super) turn: u32,
}

impl Ticket {
    /// A number below [`Fetches::most`](super::Fetches::most), that of no other row on its way.
    pub fn number(self) -> usize {
        self.index as usize
    }

    /// As a number that a tier can carry.
    pub fn token(self) -> u64 {
        u64::from(self.turn) << 32 | u64::from(self.index)
    }

    /// The ticket of [`Ticket::token`].
    ///
    /// # Panics
    /// Where it is used, if the number is no such token.
    pub fn of(token: u64) -> Ticket {
        Ticket {
            index: token as u32,
            turn: (token >> 32) as u32,
        }
    }
}

/// A row that has to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// To be given back with what was read.
    pub ticket: Ticket,
    /// The table's number.
    pub table: u32,
    /// The row.
    pub row: u32,
    /// In whose turn it was taken out.
    pub lane: Lane,
    /// When it is to be answered at the latest.
    pub deadline_ns: u64,
    /// Whether somebody waits for it, or has waited.
    pub is_wanted: bool,
    /// How often a row of a list may have been used.
    pub listed: Option<u32>,
}

/// Where a row of a bag is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the store: it was copied.
    Store,
    /// In the worker's tier.
    Tier,
    /// With another worker, who writes its shard: that one is asked.
    Owner,
}

/// A parked bag that waits for nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The bag.
    pub bag: BagId,
    /// Why a row of it is missing, if one is: there are zeros in its place.
    pub outcome: Result<(), TierError>,
}

/// What was counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Rows asked for.
    pub fetched: u64,
    /// Of these, those that nobody wanted when they were.
    pub prefetched: u64,
    /// Of these, those that were asked of other workers.
    pub asked: u64,
    /// Times that a row was wanted while it was on its way already.
    pub joined: u64,
    /// Rows that came.
    pub arrived: u64,
    /// Rows that were given up before they were asked of the tier, or while another worker was asked.
    pub late: u64,
    /// Rows that could not be read, or were read wrongly.
    pub failed: u64,
    /// Bags that were parked.
    pub parked: u64,
    /// Times that there was no room to park a bag.
    pub refused: u64,
}
