//! Forks of a process that has connections.
//!
//! A child has a copy of every descriptor, and shares the parent's rings and regions. If it used them, both would break; if it
//! only kept the stream open, the dataplane would not learn of the parent's end. So what is listed here is replaced
//! in the child, before `fork` returns there, by a descriptor that leads nowhere: the numbers stay taken, so that
//! whoever closes them there closes nothing of somebody else's.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::SeqCst};

use rustix::event::{EventfdFlags, eventfd};

use crate::PortError;

/// Most descriptors that are listed at a time: more than the 1,024 that a process can usually have open. Going through all
/// of them takes a few microseconds a fork.
pub const MAX_LISTED: usize = 4096;

const FREE: i32 = -1;

static LISTED: [AtomicI32; MAX_LISTED] = [const { AtomicI32::new(FREE) }; MAX_LISTED];

/// What listed descriptors are replaced by.
static NOWHERE: AtomicI32 = AtomicI32::new(FREE);

/// How many forks lie between this process and the first of its line that has used this module.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// A process, to be told from the children that were forked from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// The one that this is called in.
    ///
    /// # Errors
    /// [`PortError::System`] where the process can't be told of its forks: no memory or no descriptor is left.
    pub fn this() -> Result<Process, PortError> {
        install()?;
        Ok(Process(FORKS.load(SeqCst)))
    }

    /// Whether it is the one that this is called in. A load of a word.
    pub fn is_this(self) -> bool {
        self.0 == FORKS.load(SeqCst)
    }
}

/// A descriptor that forked children don't have.
#[derive(Debug)]
pub struct ParentFd {
    // Fields are dropped in order: the place is free before the number can be used for something else.
    _place: Place,
    fd: OwnedFd,
}

#[derive(Debug)]
struct Place {
    at: usize,
    number: i32,
}

impl ParentFd {
    /// Lists a descriptor.
    ///
    /// # Errors
    /// [`PortError::System`] where [`MAX_LISTED`] are, or as from [`Process::this`].
    pub fn new(fd: OwnedFd) -> Result<ParentFd, PortError> {
        install()?;
        let number = fd.as_raw_fd();
        let takes =
            |place: &AtomicI32| place.compare_exchange(FREE, number, SeqCst, SeqCst).is_ok();
        match LISTED.iter().position(takes) {
            Some(at) => Ok(ParentFd {
                _place: Place { at, number },
                fd,
            }),
            None => Err(PortError::System {
                call: "listing a descriptor for forks",
                source: std::io::Error::other(format!(
                    "{MAX_LISTED} are listed; close connections first"
                )),
            }),
        }
    }
}

impl AsFd for ParentFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // In a child the place is somebody else's by now, or nobody's; that one has another number.
        let _ = LISTED[self.at].compare_exchange(self.number, FREE, SeqCst, SeqCst);
    }
}

/// Has the process told of its forks.
fn install() -> Result<(), PortError> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let refused = |source| PortError::System {
        call: "preparing for forks",
        source,
    };
    if NOWHERE.load(SeqCst) != FREE {
        return Ok(());
    }
    let mut installed = INSTALLED
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    if !*installed {
        let nowhere = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let nowhere = nowhere.map_err(|errno| refused(errno.into()))?;
        // SAFETY: the handler is a function of this program, which keeps to what may be called in a child of a program with
        // threads: it uses atomics and dup3.
        let outcome = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if outcome != 0 {
            return Err(refused(std::io::Error::from_raw_os_error(outcome)));
        }
        *installed = true;
        NOWHERE.store(nowhere.into_raw_fd(), SeqCst);
    }
    Ok(())
}

/// Runs in a forked child, in its only thread.
extern "C" fn in_child() {
    FORKS.fetch_add(1, SeqCst);
    let nowhere = NOWHERE.load(SeqCst);
    for place in &LISTED {
        let number = place.swap(FREE, SeqCst);
        if number != FREE && nowhere != FREE {
            // SAFETY: no memory is touched. The number is open here: it was taken off the list before it was closed. Whoever
            // owns it goes on owning it, with something else behind it. There is no one to tell of a failure.
            unsafe { libc::dup3(nowhere, number, libc::O_CLOEXEC) };
        }
    }
}
