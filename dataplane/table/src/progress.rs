//! How long work reports how far it is.

use std::fmt;

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Memory is being made present.
    Allocating,
    /// Rows are being made in memory.
    Filling,
    /// Rows are being read into memory.
    Loading,
    /// Indexes of hashed tables are being made.
    Indexing,
    /// Rows are being written to files.
    Writing,
    /// Files are being brought to the disk for good.
    Syncing,
    /// Checksums are being compared.
    Verifying,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Stage::Allocating => "allocating",
            Stage::Filling => "filling",
            Stage::Loading => "loading",
            Stage::Indexing => "indexing",
            Stage::Writing => "writing",
            Stage::Syncing => "syncing",
            Stage::Verifying => "verifying",
        })
    }
}

/// Called with a stage, the bytes done, and the bytes there are; from several threads, but never twice
/// at a time for the same bytes. Each stage ends with both numbers equal.
pub type Progress<'a> = &'a (dyn Fn(Stage, u64, u64) + Sync);

/// Reports to nobody.
pub fn silent(_stage: Stage, _done_bytes: u64, _total_bytes: u64) {}
