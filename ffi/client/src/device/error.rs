//! Why a stream went on without its result.

use core::time::Duration;

use crate::error::Failure;

/// Why a stream went on without its result. Where it is to be, there are NaNs, but for slices that had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamFailure {
    /// The request failed.
    #[error(transparent)]
    Request(Failure),
    /// No answer came in time.
    #[error("the dataplane has not answered within {0:?}; is it stopped?")]
    TimedOut(Duration),
    /// The GPU was given up meanwhile.
    #[error("the client was closed before the answer came")]
    Closed,
}

impl StreamFailure {
    /// What the status word says: the status of a refusal, as the wire has it, or one of the numbers from 0x1_0001 on.
    pub(crate) fn code(self) -> u32 {
        match self {
            StreamFailure::Request(Failure::Refused(refusal)) => u32::from(refusal.status as u16),
            StreamFailure::Request(Failure::Disconnected) => 0x1_0001,
            StreamFailure::TimedOut(_) => 0x1_0002,
            StreamFailure::Closed => 0x1_0003,
        }
    }
}
