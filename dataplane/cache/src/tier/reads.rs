//! What one worker has asked of one file.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::figures::{Times, add};

/// Rows that one worker has asked one file for: written by it alone, read by others whenever they like. What the file did not give is
/// in [`FileFailures`](super::FileFailures).
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct FileReads {
    fetched: AtomicU64,
    is_bypassed: AtomicBool,
    /// Of each row that came, the time from when it was asked for.
    pub times: Times,
}

impl FileReads {
    /// A row was asked for.
    pub(super) fn begin(&self) {
        add(&self.fetched, 1);
    }

    /// Whether the next tier is asked at once from now on.
    pub(super) fn bypass(&self, is_bypassed: bool) {
        if self.is_bypassed() != is_bypassed {
            self.is_bypassed.store(is_bypassed, Relaxed);
        }
    }

    /// The file is not read any more.
    pub fn forget(&self) {
        self.bypass(false);
    }

    /// Whether the worker asks the next tier at once, and this file for a row now and then: so many in a row were late.
    pub fn is_bypassed(&self) -> bool {
        self.is_bypassed.load(Relaxed)
    }

    /// Rows that were asked for.
    pub fn fetched(&self) -> u64 {
        self.fetched.load(Relaxed)
    }
}
