//! What one file failed to give.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::TierError;

/// Rows that one file did not give to those who read it, all workers together. Rows that it gives cost a load, those that it does not a
/// locked addition.
#[derive(Debug, Default)]
pub struct FileFailures {
    late: AtomicU64,
    corrupt: AtomicU64,
    gone: AtomicU64,
    failed: AtomicU64,
    is_failing: AtomicBool,
}

/// The same at one time. All only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// Rows that did not come in the time that the file had for them.
    pub late: u64,
    /// Rows in pages that don't match their checksums.
    pub corrupt: u64,
    /// Rows behind the file's end.
    pub gone: u64,
    /// Rows that the kernel could not read, or that the dataplane which exports them could not be reached for.
    pub failed: u64,
}

impl FileFailures {
    /// What there was since the file was opened.
    pub fn read(&self) -> Failures {
        Failures {
            late: self.late.load(Relaxed),
            corrupt: self.corrupt.load(Relaxed),
            gone: self.gone.load(Relaxed),
            failed: self.failed.load(Relaxed),
        }
    }

    /// Whether it has given no row since it last failed to give one.
    pub fn is_failing(&self) -> bool {
        self.is_failing.load(Relaxed)
    }

    /// The file is not read any more: nothing tells that it is well again.
    pub fn forget(&self) {
        self.is_failing.store(false, Relaxed);
    }

    /// A row was given, or not.
    pub fn note(&self, answer: &Result<&[u8], TierError>) {
        let is_failing = answer.is_err();
        if self.is_failing.load(Relaxed) != is_failing {
            self.is_failing.store(is_failing, Relaxed);
        }
        let count = match answer {
            Ok(_) => return,
            Err(TierError::Late) => &self.late,
            Err(TierError::Corrupt { .. }) => &self.corrupt,
            Err(TierError::Gone) => &self.gone,
            Err(TierError::Os(_) | TierError::Unreached) => &self.failed,
        };
        count.fetch_add(1, Relaxed);
    }
}
