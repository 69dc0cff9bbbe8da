//! A client's sleep, in parts: so that who sleeps need not hold the port meanwhile.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use arrayvec::ArrayVec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::PortError;

/// Most descriptors of a set: two of a port's, and two of whoever sleeps.
const FDS_MAX: usize = 4;

/// Whether a client that lay down may sleep. See [`ClientPort::lie_down`](crate::ClientPort::lie_down).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Something may have come: it does not lie, and polls.
    Disturbed,
    /// Nothing has come. It may sleep for at most this long (`None`: no limit), and gets up then.
    Quiet(Option<Duration>),
}

/// The descriptors that end a client's sleep, and what each of them is polled for.
///
/// A port gives them out borrowed ([`ClientPort::wake_fds`](crate::ClientPort::wake_fds)). To sleep while others use the
/// port, a set of duplicates is made once, by [`WakeFds::try_to_owned`].
#[derive(Debug)]
pub struct WakeFds<F>(ArrayVec<(F, PollFlags), FDS_MAX>);

impl<'p> WakeFds<BorrowedFd<'p>> {
    /// Of a port that does not wake by descriptors.
    pub fn none() -> Self {
        WakeFds::of([])
    }

    /// A port's, at most two.
    pub(crate) fn of<const N: usize>(fds: [(BorrowedFd<'p>, PollFlags); N]) -> Self {
        const { assert!(N <= FDS_MAX - 2) }
        WakeFds(fds.into_iter().collect())
    }

    /// Duplicates of them, which outlive the borrow. What they refer to stays open for as long as they do: the dataplane
    /// may learn of the client's end only when they are dropped, too.
    ///
    /// # Errors
    /// [`PortError::System`] where the process has no descriptors left.
    pub fn try_to_owned(&self) -> Result<WakeFds<OwnedFd>, PortError> {
        let duplicate = |(fd, flags): &(BorrowedFd<'_>, PollFlags)| {
            let fd = fd.try_clone_to_owned().map_err(|source| {
                let call = "duplicating a descriptor";
                PortError::System { call, source }
            })?;
            Ok((fd, *flags))
        };
        Ok(WakeFds(
            self.0
                .iter()
                .map(duplicate)
                .collect::<Result<_, PortError>>()?,
        ))
    }
}

impl WakeFds<OwnedFd> {
    /// With a descriptor of the caller's own, such as an eventfd: the sleep ends also when it can be read.
    ///
    /// # Panics
    /// If there are more than two of the caller's own.
    #[must_use]
    pub fn with(mut self, own: OwnedFd) -> Self {
        self.0.push((own, PollFlags::IN));
        self
    }
}

impl<F: AsFd> WakeFds<F> {
    /// Sleeps until one of them is ready, a signal comes, or the time has passed (`None`: no limit).
    ///
    /// # Errors
    /// [`PortError::System`] where the kernel has no memory for the call.
    pub fn sleep(&self, limit: Option<Duration>) -> Result<(), PortError> {
        self.poll(limit).map_err(|errno| PortError::System {
            call: "poll",
            source: errno.into(),
        })
    }

    pub(crate) fn poll(&self, limit: Option<Duration>) -> Result<(), Errno> {
        let fds = self.0.iter();
        let mut fds: ArrayVec<PollFd<'_>, FDS_MAX> =
            fds.map(|(fd, flags)| PollFd::new(fd, *flags)).collect();
        match poll(&mut fds, limit.map(timespec).as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

/// As the kernel wants it; what is more than it can count is the most that it can.
pub(crate) fn timespec(limit: Duration) -> Timespec {
    Timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    }
}
