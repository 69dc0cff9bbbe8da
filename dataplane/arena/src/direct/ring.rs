//! Making a ring, and what its errors mean.

use std::io;

use io_uring::IoUring;

use crate::ArenaError;

/// A ring with a place in its queue for each slot.
pub(super) fn ring(slots: u32, polled: bool) -> Result<IoUring, ArenaError> {
    let mut builder = IoUring::builder();
    if polled {
        builder.setup_iopoll();
    } else {
        // Completions interrupt nobody: they are taken in at the next poll, which a flag tells to call the kernel.
        builder.setup_coop_taskrun().setup_taskrun_flag();
    }
    let ring = match builder.build(slots) {
        // Kernels before 5.19 don't know these flags.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput && !polled => {
            IoUring::builder().build(slots)
        }
        outcome => outcome,
    };
    ring.map_err(refused)
}

/// Why there is no ring.
fn refused(source: io::Error) -> ArenaError {
    match source.kind() {
        io::ErrorKind::OutOfMemory => ArenaError::NoRingMemory { source },
        _ => ArenaError::NoIoUring { source },
    }
}

/// Whether the kernel has no time or no memory for it now, or was interrupted.
pub(super) fn put_off(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy
    )
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_ring_without_memory_is_about_the_limit_of_locked_memory() {
        let said = |errno: Errno| refused(errno.into()).to_string();
        assert!(said(Errno::NOMEM).contains("LimitMEMLOCK="));
        assert!(said(Errno::NOSYS).contains("Linux 5.6"));
        assert!(said(Errno::PERM).contains("io_uring_disabled"));
    }
}
