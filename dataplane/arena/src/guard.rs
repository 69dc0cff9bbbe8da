//! Mappings whose holes are not filled: a touch of a page that is not there raises SIGBUS.
//!
//! The kernel fills a hole of a shared memfd at the first touch, and charges the page to whoever
//! touched it. For a peer's memory that is a way to spend ours: it punches holes, and our workers fill
//! them. userfaultfd(2) with `UFFD_FEATURE_SIGBUS` makes such a touch a fault like that of a truncated
//! file, which the SIGBUS handler turns into a lost mapping. Nothing is read from the descriptor, and
//! pages that are there, swapped out ones too, are touched as ever.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

use crate::ArenaError;
use crate::mapping::Mapping;

/// `UFFD_API` of linux/userfaultfd.h, which is also the ioctls' group.
const API: u64 = 0xaa;
const FEATURE_MISSING_HUGETLBFS: u64 = 1 << 4;
const FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const FEATURE_SIGBUS: u64 = 1 << 7;
const MODE_MISSING: u64 = 1;
/// `UFFD_USER_MODE_ONLY`: allowed without privileges, since Linux 5.11.
const USER_MODE_ONLY: u32 = 1;

/// `struct uffdio_api`: version, features, and the ioctls there are.
type ApiWords = [u64; 3];
/// `struct uffdio_register`: start, length, mode, and the ioctls there are.
type RegisterWords = [u64; 4];

/// An ioctl of userfaultfd: words in, words out.
struct Call<const OPCODE: Opcode, Words>(Words);

// SAFETY: the opcodes below are those of linux/userfaultfd.h for structures of the words' size, which
// the kernel reads and writes and keeps no pointer to.
unsafe impl<const OPCODE: Opcode, Words> Ioctl for Call<OPCODE, Words> {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        OPCODE
    }

    fn as_ptr(&mut self) -> *mut core::ffi::c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut core::ffi::c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

const UFFDIO_API: Opcode = opcode::read_write::<ApiWords>(API as u8, 0x3f);
const UFFDIO_REGISTER: Opcode = opcode::read_write::<RegisterWords>(API as u8, 0x00);

/// The process's descriptor, made at the first use; `None` where the kernel or its guards refuse it.
fn descriptor() -> Option<&'static OwnedFd> {
    static DESCRIPTOR: OnceLock<Option<OwnedFd>> = OnceLock::new();
    DESCRIPTOR.get_or_init(|| open().ok()).as_ref()
}

fn open() -> rustix::io::Result<OwnedFd> {
    let user_mode = UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
    // SAFETY: the descriptor stays in this module, and is used only to have faults on mappings of our
    // own raise SIGBUS; no page is ever placed through it.
    let opened = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC | user_mode) };
    // SAFETY: as above.
    let fd = opened.or_else(|_| unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC) })?;
    let features = FEATURE_SIGBUS | FEATURE_MISSING_SHMEM | FEATURE_MISSING_HUGETLBFS;
    // SAFETY: the structure is initialised, of the opcode's size, and lives across the call.
    unsafe { ioctl(&fd, Call::<UFFDIO_API, ApiWords>([API, features, 0]))? };
    Ok(fd)
}

/// Whether the kernel lets this process guard peers' memory against holes; see
/// [`Region::map_foreign`](crate::Region::map_foreign).
pub fn guards_holes() -> bool {
    descriptor().is_some()
}

/// From now on a touch of a page of `mapping` that is not there raises SIGBUS. False where that is not
/// to be had at all. Ends with the mapping.
pub(crate) fn guard(mapping: &Mapping) -> Result<bool, ArenaError> {
    let Some(fd) = descriptor() else {
        return Ok(false);
    };
    let (start, len) = (mapping.start().as_ptr() as u64, mapping.len() as u64);
    let words = [start, len, MODE_MISSING, 0];
    // SAFETY: as above; the range is a mapping of ours, whose users expect SIGBUS: it is watched.
    let outcome = unsafe { ioctl(fd, Call::<UFFDIO_REGISTER, RegisterWords>(words)) };
    outcome.map_err(|errno| ArenaError::os("userfaultfd for a region", errno))?;
    Ok(true)
}
