//! What one worker has asked of one file.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::figures::{Times, add};

/// Rows that one worker has asked one file for: written by it alone, read by others whenever they like. What the file did not give is
/// in [`FileFailures`](super::FileFailures).
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct FileReads {
    fetched: AtomicU64,
    /// Of each row that came, the time from when it was asked for.
    pub times: Times,
}

impl FileReads {
    /// A row was asked for.
    pub(super) fn begin(&self) {
        add(&self.fetched, 1);
    }

    /// Rows that were asked for.
    pub fn fetched(&self) -> u64 {
        self.fetched.load(Relaxed)
    }
}
