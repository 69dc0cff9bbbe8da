//! What is behind the arena: rows that are not cached are fetched from a tier.
//!
//! A [`Tier`] is asked for rows and answers when it has them, in any order. [`FileTier`] reads them from a generation's
//! files, [`RemoteTier`] from another dataplane's memory; [`ScriptedTier`] answers as a test tells it to; [`Chain`] is several of them. None knows the time: it is an argument.

mod breaker;
mod chain;
mod device;
mod edges;
mod failures;
mod fetches;
mod file;
mod link;
mod pace;
mod patience;
mod reads;
mod remote;
mod scripted;
mod table;

use std::fmt;
use std::io;

pub use chain::Chain;
pub use device::{Device, EachRead};
pub use failures::{Failures, FileFailures};
pub use file::{FileTier, FileTierOptions, MAX_READ_BYTES, MIN_READ_BYTES, TierCounts};
pub use reads::FileReads;
pub use remote::{EachArrived, Readers, RemoteReads, RemoteTier, RemoteTierOptions};
pub use scripted::{Answer, ScriptedTier};
pub use table::FileTable;

/// A row that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The table, by the number that the tier gave it.
    pub table: u32,
    /// The row, one that the table has.
    pub row: u32,
    /// What the answer is to be known by. The tier does not look at it.
    pub token: u64,
    /// The time from which on the row is of no use.
    pub deadline_ns: u64,
}

/// Why a row could not be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierError {
    /// It did not come before its deadline, or the tier's own time for a fetch.
    Late,
    /// A page that it lies in does not match its checksum.
    Corrupt {
        /// The page of the table's file, counted from 0.
        page: u64,
    },
    /// The file ends before it: it was truncated.
    Gone,
    /// The kernel's error, by its number.
    Os(i32),
    /// The dataplane that it would be read from can't be: there is no connection to it, its lease is over, or the table is not granted.
    Unreached,
}

impl fmt::Display for TierError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TierError::Late => {
                f.write_str("the row did not come in time; look at the load of its disk, or of the dataplane that it is read from")
            }
            TierError::Corrupt { page } => {
                write!(
                    f,
                    "page {page} of the table's file is damaged; copy the file again"
                )
            }
            TierError::Gone => f.write_str("the table's file was truncated; copy it again"),
            TierError::Os(number) => {
                let error = io::Error::from_raw_os_error(*number);
                write!(
                    f,
                    "the table's file can't be read: {error}; look at its disk"
                )
            }
            TierError::Unreached => f.write_str(
                "the dataplane that exports the table's rows can't be read from; `rowmill status` here tells why",
            ),
        }
    }
}

impl std::error::Error for TierError {}

/// So many fetches are unanswered that another one can't be begun; one can when some were answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchesFull {
    /// Of any table.
    #[error("as many rows are being fetched as can be; ask again when some have come")]
    ForAll,
    /// Of the same table: of others one may be begun.
    #[error(
        "as many rows of the table are being fetched as may be beside others'; ask again when some have come"
    )]
    ForTable,
}

/// Called with a fetch's token, and the bytes of the row as its table stores them or why there are none.
pub type EachRow<'a> = &'a mut dyn FnMut(u64, Result<&[u8], TierError>);

/// What rows are fetched from. Belongs to one worker; nothing here waits, allocates or locks.
///
/// Each fetch that was taken is answered once: with the row, or with why there is none. Rows that have come are handed out before others are
/// given up, by the first poll at or after their deadline that finds no more of them. Time in which nobody polls may not count.
pub trait Tier {
    /// Takes a fetch, to be begun at the next poll. The same row may be asked for again: then both are answered.
    ///
    /// # Errors
    /// [`FetchesFull`]; nothing was taken.
    ///
    /// # Panics
    /// If there is no such table or row.
    fn fetch(&mut self, now_ns: u64, wanted: Wanted) -> Result<(), FetchesFull>;

    /// Begins some of what was asked for, and answers some of what can be answered: no more than takes about 50 us.
    fn poll(&mut self, now_ns: u64, each: EachRow<'_>);

    /// Fetches that were taken and not answered.
    fn unanswered(&self) -> usize;

    /// What it has done; zeros where it counts nothing.
    fn counts(&self) -> TierCounts {
        TierCounts::default()
    }
}
