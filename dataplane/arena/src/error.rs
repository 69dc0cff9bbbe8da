//! What can go wrong with memory, each with what to do about it.

use std::path::PathBuf;

use crate::sigbus::MAX_WATCHED;

/// Why memory could not be had, shared or mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// The machine, or the control group this process runs in, has less free memory than is needed.
    #[error(
        "too little memory: {needed} bytes are needed and {available} are available ({limited_by}); \
         free some memory, raise the limit, or use smaller or fewer tables"
    )]
    TooLittleMemory {
        /// Bytes needed, page tables included.
        needed: u64,
        /// Bytes that can be had without swapping or being killed.
        available: u64,
        /// What sets the bound: the machine or a control group's limit.
        limited_by: String,
    },
    /// Huge pages are required and the pools do not have enough of them.
    #[error(
        "huge pages are required, and the pools cannot give {needed} bytes: {pools}; add pages with \
         `sysctl vm.nr_hugepages={pages_2m}` (2 MiB each), or don't require huge pages"
    )]
    NoHugePages {
        /// Bytes needed.
        needed: u64,
        /// What each pool has.
        pools: String,
        /// The size the 2 MiB pool must have for this allocation beside what is in use already.
        pages_2m: u64,
    },
    /// A memfd for sharing must have a size that is a multiple of its page.
    #[error("{bytes} bytes are no multiple of the page of {page} bytes; round the size up")]
    NotWholePages {
        /// The size asked for.
        bytes: u64,
        /// The size of a page.
        page: u64,
    },
    /// A peer's memfd has pages that nobody has paid for.
    #[error(
        "only {allocated} of the region's {bytes} bytes are allocated; allocate all of them with \
         fallocate() before registering it, and punch no holes into it"
    )]
    Unallocated {
        /// The memfd's size.
        bytes: u64,
        /// What is allocated of it.
        allocated: u64,
    },
    /// A size of zero, or one that no address space can hold.
    #[error("a mapping of {bytes} bytes is impossible; ask for at least 1 and at most 2^47 bytes")]
    ImpossibleSize {
        /// The size asked for.
        bytes: u64,
    },
    /// The descriptor is not a memfd, so its size can't be sealed.
    #[error(
        "the descriptor is not a memfd; make the region with memfd_create(MFD_ALLOW_SEALING) and seal it"
    )]
    NotMemfd,
    /// A seal is missing, so the peer could pull the memory away.
    #[error(
        "the memfd lacks the seal {missing}; add F_SEAL_SHRINK and F_SEAL_GROW with fcntl(F_ADD_SEALS) \
         before registering it"
    )]
    Unsealed {
        /// The missing seals, by their names in the manual.
        missing: &'static str,
    },
    /// The memfd is sealed against writing, so results can't be stored to it.
    #[error(
        "the memfd has the seal {seal}, so it can't be mapped for writing; leave that seal out"
    )]
    SealedAgainstWriting {
        /// The seal that is in the way.
        seal: &'static str,
    },
    /// The memfd's size is not what was claimed.
    #[error(
        "the region was announced with {promised} bytes and has {found}; announce its true size"
    )]
    SizeMismatch {
        /// The size claimed.
        promised: u64,
        /// The size found.
        found: u64,
    },
    /// All places of the SIGBUS handler's table are taken.
    #[error("{MAX_WATCHED} regions and files are mapped already, which is the limit; release some")]
    TooManyMappings,
    /// A mapped file lost bytes while it was mapped: it was truncated, or its disk failed.
    #[error("{path} was truncated or could not be read while it was mapped; restore the file")]
    FileLost {
        /// The file.
        path: PathBuf,
    },
    /// A range outside a mapped file.
    #[error("{len} bytes at {offset} lie outside {path}, which has {size} bytes")]
    OutsideFile {
        /// The file.
        path: PathBuf,
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// The file's size.
        size: u64,
    },
    /// The kernel has no io_uring, or this process may not use it.
    #[error(
        "table files can't be read by io_uring; it takes Linux 5.6, `sysctl kernel.io_uring_disabled=0`, and in a \
         container a seccomp profile that allows io_uring_setup"
    )]
    NoIoUring {
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The kernel has no memory for a ring, which counts as locked.
    #[error(
        "io_uring gets no memory for its queues; raise the limit of locked memory (`ulimit -l`, LimitMEMLOCK= of \
         systemd), or free some memory"
    )]
    NoRingMemory {
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The kernel does not lock the memory that files are read into.
    #[error(
        "{bytes} bytes of buffers can't be registered with io_uring; raise the limit of locked memory (`ulimit -l`, \
         LimitMEMLOCK= of systemd), or use fewer or smaller buffers"
    )]
    NotRegistered {
        /// Bytes of all buffers.
        bytes: u64,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// A file whose file system has no O_DIRECT.
    #[error(
        "{path} can't be read past the page cache (O_DIRECT); keep it on a local disk's file system, or allow the \
         page cache to be used"
    )]
    NotDirect {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// A file whose device can't be polled, for a reader that polls.
    #[error("the device of {path} can't be polled ({why}); use a reader that does not poll")]
    NotPolled {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// A system call failed.
    #[error("{call} failed")]
    Os {
        /// The call and what it was for.
        call: &'static str,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// A file could not be opened or examined.
    #[error("{path} can't be opened")]
    File {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

impl ArenaError {
    /// Wraps the kernel's answer to `call`.
    pub(crate) fn os(call: &'static str, errno: rustix::io::Errno) -> ArenaError {
        ArenaError::Os {
            call,
            source: errno.into(),
        }
    }
}
