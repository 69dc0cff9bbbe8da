//! Memory of a peer: sealed memfds, reachable only through windows.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat,
    fstatfs, ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{Advice, ProtFlags, madvise};

use crate::guard::guard;
use crate::mapping::{Mapping, page_bytes, round_up};
use crate::memory::check_available;
use crate::pages::Pools;
use crate::sigbus::Watched;
use crate::{ArenaError, HUGE_2M, HugePages, Window};

/// The magic number of hugetlbfs in statfs(2).
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// Makes a memfd of exactly `bytes` zeroed bytes, with all its pages allocated, sealed against
/// shrinking, growing and further seals: what [`Region::map`] accepts at the other end.
///
/// Huge pages are taken from the 2 MiB pool where `bytes` is a multiple of 2 MiB.
///
/// # Errors
/// [`ArenaError::TooLittleMemory`]; where huge pages are required also [`ArenaError::NoHugePages`] and
/// [`ArenaError::NotWholePages`]; [`ArenaError::Os`] where memfds are not to be had.
pub fn sealed_memfd(name: &str, bytes: usize, policy: HugePages) -> Result<OwnedFd, ArenaError> {
    round_up(bytes, page_bytes())?;
    let whole = bytes.is_multiple_of(HUGE_2M);
    if policy == HugePages::Require && !whole {
        return Err(ArenaError::NotWholePages {
            bytes: bytes as u64,
            page: HUGE_2M as u64,
        });
    }
    if policy != HugePages::Off && whole {
        match filled_memfd(name, bytes, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB) {
            Ok(fd) => return Ok(fd),
            Err(_) if policy == HugePages::Prefer => (),
            Err(_) => {
                let pools = Pools::now();
                return Err(ArenaError::NoHugePages {
                    needed: bytes as u64,
                    pools: pools.to_string(),
                    pages_2m: pools.size_for((bytes / HUGE_2M) as u64),
                });
            }
        }
    }
    check_available(bytes)?;
    filled_memfd(name, bytes, MemfdFlags::empty())
        .map_err(|errno| ArenaError::os(making(errno), errno))
}

/// What failed, for an operator.
fn making(errno: rustix::io::Errno) -> &'static str {
    match errno {
        rustix::io::Errno::FBIG => {
            "making a memfd as large, which this process's limit of file sizes forbids (`ulimit -f`, LimitFSIZE=),"
        }
        _ => "making a memfd",
    }
}

fn filled_memfd(name: &str, bytes: usize, flags: MemfdFlags) -> rustix::io::Result<OwnedFd> {
    let fd = memfd_create(
        name,
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | flags,
    )?;
    ftruncate(&fd, bytes as u64)?;
    fallocate(&fd, FallocateFlags::empty(), 0, bytes as u64)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// A peer's sealed memfd, mapped for reading and writing.
///
/// The peer can change every byte at any moment, so no reference to them is given, only windows. If
/// the peer takes the memory away all the same (a hole punched into huge pages while the pool is
/// empty), reads give zeros and [`Region::is_lost`] becomes true and stays so.
#[derive(Debug)]
pub struct Region {
    watched: Watched,
    bytes: usize,
}

impl Region {
    /// Maps a peer's memfd that was announced with `bytes` bytes.
    ///
    /// The file descriptor is not needed afterwards. Where the peer has allocated all pages, they are
    /// entered into the page tables here, so that no worker faults on them later.
    ///
    /// # Errors
    /// [`ArenaError::NotMemfd`], [`ArenaError::Unsealed`], [`ArenaError::SealedAgainstWriting`],
    /// [`ArenaError::SizeMismatch`], [`ArenaError::ImpossibleSize`], [`ArenaError::TooManyMappings`],
    /// [`ArenaError::Os`]. All but the last two are the peer's doing.
    pub fn map(fd: BorrowedFd<'_>, bytes: usize) -> Result<Region, ArenaError> {
        Region::map_with(fd, bytes, false)
    }

    /// As [`Region::map`], of memory that is to stay on the peer's account, not ours.
    ///
    /// The first to touch a page of a memfd pays for it: the page counts against that process's control
    /// group for as long as anybody holds the memfd. So the memfd has to have whole pages, all of them
    /// allocated, and a hole that is punched later counts as memory taken away: its touch raises SIGBUS
    /// instead of allocating, and the region is lost. Where the kernel has no means for the latter (see
    /// [`crate::guards_holes`]), the pages of holes that are touched are charged to this process.
    ///
    /// # Errors
    /// Those of [`Region::map`]; [`ArenaError::NotWholePages`], [`ArenaError::Unallocated`].
    pub fn map_foreign(fd: BorrowedFd<'_>, bytes: usize) -> Result<Region, ArenaError> {
        Region::map_with(fd, bytes, true)
    }

    fn map_with(fd: BorrowedFd<'_>, bytes: usize, foreign: bool) -> Result<Region, ArenaError> {
        check_seals(fd)?;
        // From here on the size can't change.
        let stat = fstat(fd).map_err(|errno| ArenaError::os("fstat of a region", errno))?;
        let found = u64::try_from(stat.st_size).unwrap_or(0);
        if found != bytes as u64 {
            return Err(ArenaError::SizeMismatch {
                promised: bytes as u64,
                found,
            });
        }
        let page = page_of(fd)?;
        let len = round_up(bytes, page)?;
        if (foreign || page != page_bytes()) && len != bytes {
            return Err(ArenaError::NotWholePages {
                bytes: bytes as u64,
                page: page as u64,
            });
        }
        let allocated = u64::try_from(stat.st_blocks)
            .unwrap_or(0)
            .saturating_mul(512);
        if foreign && allocated < found {
            return Err(ArenaError::Unallocated {
                bytes: found,
                allocated,
            });
        }
        let mapping = Mapping::shared(fd, len, ProtFlags::READ | ProtFlags::WRITE)
            .map_err(|errno| ArenaError::os("mmap of a region", errno))?;
        let watched = Watched::new(mapping)?;
        let guarded = foreign && guard(watched.mapping())?;
        if allocated >= found {
            match advise(watched.mapping(), Advice::LinuxPopulateWrite) {
                // A page that was there a moment ago is a hole now.
                Err(Errno::FAULT) if guarded => {
                    return Err(ArenaError::Unallocated {
                        bytes: found,
                        allocated: 0,
                    });
                }
                // A saving only: where it fails the pages are entered one by one when they are touched.
                _ => (),
            }
        }
        Ok(Region { watched, bytes })
    }

    /// Bytes that the peer registered.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Never true: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// All bytes.
    pub fn window(&self) -> Window<'_> {
        // SAFETY: the mapping has at least `bytes` readable and writable bytes and lives as long as
        // `self`; this type never makes a reference to them. When memory is lost the handler keeps the
        // same addresses mapped readable and writable.
        unsafe { Window::from_raw(self.watched.mapping().start(), self.bytes) }
    }

    /// The `len` bytes at `offset`, both claims of the peer; `None` where they do not lie inside.
    pub fn window_at(&self, offset: u64, len: u64) -> Option<Window<'_>> {
        self.window()
            .part(usize::try_from(offset).ok()?, usize::try_from(len).ok()?)
    }

    /// Whether the peer took memory away; all bytes are then private zeros (or what was stored since).
    pub fn is_lost(&self) -> bool {
        self.watched.is_lost()
    }

    /// Frees all pages, whoever else maps or holds the memfd: all see zeros, and who touches one next pays
    /// for it. For memory of ours that a peer may keep after it is gone.
    pub fn free_pages(&self) {
        // Where it fails, or another mapping has taken its place, the pages stay with the memfd.
        advise(self.watched.mapping(), Advice::LinuxRemove).ok();
    }

    /// Gives back the private memory that was stored to in place of a region that is lost; nothing
    /// where it is not.
    pub fn discard_if_lost(&self) {
        if self.is_lost() {
            // It fails only where the mapping is gone, which `self` keeps.
            advise(self.watched.mapping(), Advice::LinuxDontNeed).ok();
        }
    }
}

fn advise(mapping: &Mapping, advice: Advice) -> rustix::io::Result<()> {
    // SAFETY: the whole of a mapping of ours, to whose bytes nobody has a reference. Populating changes
    // no contents; what is not needed is given up only of private memory that stands for lost memory, and what is
    // removed reads as zeros, which a peer could bring about at any time.
    unsafe { madvise(mapping.start().as_ptr().cast(), mapping.len(), advice) }
}

/// Refuses whatever is not a memfd whose size is fixed and which can be written.
fn check_seals(fd: BorrowedFd<'_>) -> Result<(), ArenaError> {
    let seals = match fcntl_get_seals(fd) {
        Ok(seals) => seals,
        Err(Errno::INVAL) => return Err(ArenaError::NotMemfd),
        Err(errno) => return Err(ArenaError::os("fcntl(F_GET_SEALS)", errno)),
    };
    let missing = match (
        seals.contains(SealFlags::SHRINK),
        seals.contains(SealFlags::GROW),
    ) {
        (true, true) => None,
        (true, false) => Some("F_SEAL_GROW"),
        (false, true) => Some("F_SEAL_SHRINK"),
        (false, false) => Some("F_SEAL_SHRINK and F_SEAL_GROW"),
    };
    if let Some(missing) = missing {
        return Err(ArenaError::Unsealed { missing });
    }
    if seals.contains(SealFlags::WRITE) {
        return Err(ArenaError::SealedAgainstWriting {
            seal: "F_SEAL_WRITE",
        });
    }
    if seals.contains(SealFlags::FUTURE_WRITE) {
        return Err(ArenaError::SealedAgainstWriting {
            seal: "F_SEAL_FUTURE_WRITE",
        });
    }
    Ok(())
}

/// The page size of the file system that a memfd lives in.
fn page_of(fd: BorrowedFd<'_>) -> Result<usize, ArenaError> {
    let stat = fstatfs(fd.as_fd()).map_err(|errno| ArenaError::os("fstatfs of a region", errno))?;
    if stat.f_type as u64 != HUGETLBFS_MAGIC {
        return Ok(page_bytes());
    }
    Ok(usize::try_from(stat.f_bsize).unwrap_or(HUGE_2M))
}
