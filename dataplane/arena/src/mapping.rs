//! An owned mapping: unmapped when dropped.

use core::ffi::c_void;
use core::ptr::{self, NonNull};
use std::os::fd::BorrowedFd;

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::{ArenaError, HUGE_2M};

/// The size of a small page on the machines this runs on with the kernel's answer as proof.
pub(crate) fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// `bytes` rounded up to a multiple of `unit`, or an error where that is no possible mapping.
pub(crate) fn round_up(bytes: usize, unit: usize) -> Result<usize, ArenaError> {
    // User space ends at 2^47 on x86-64 with four levels of page tables.
    let possible = bytes > 0 && bytes <= 1 << 47;
    let rounded = if possible {
        bytes.checked_next_multiple_of(unit)
    } else {
        None
    };
    rounded.ok_or(ArenaError::ImpossibleSize {
        bytes: bytes as u64,
    })
}

/// A range of whole pages that belongs to this value alone and is unmapped with it.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is a range of addresses of the process, not of a thread; the type hands out no
// access by itself.
unsafe impl Send for Mapping {}
// SAFETY: as above, shared use reads the two fields only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Private anonymous memory of `len` bytes, a multiple of the page that `flags` ask for.
    pub(crate) fn anonymous(len: usize, flags: MapFlags) -> rustix::io::Result<Mapping> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the address is the kernel's choice, so no existing mapping is touched.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), len, protection, MapFlags::PRIVATE | flags)? };
        Ok(Mapping::own(start, len))
    }

    /// Private anonymous memory that starts at a multiple of 2 MiB, as transparent huge pages need.
    pub(crate) fn anonymous_aligned(len: usize) -> rustix::io::Result<Mapping> {
        let wide = Mapping::anonymous(len + HUGE_2M, MapFlags::NORESERVE)?;
        let address = wide.start.as_ptr() as usize;
        let lead = address.next_multiple_of(HUGE_2M) - address;
        let tail = HUGE_2M - lead;
        let start = wide.start;
        core::mem::forget(wide);
        // SAFETY: lead < 2 MiB <= wide's length, and wide was forgotten, so its parts are ours to release.
        let start = unsafe {
            if lead > 0 {
                munmap(start.as_ptr().cast(), lead)?;
            }
            start.add(lead)
        };
        // SAFETY: lead + len + tail is wide's length, so these `tail` bytes are wide's last.
        unsafe { munmap(start.as_ptr().add(len).cast(), tail)? };
        Ok(Mapping { start, len })
    }

    /// `len` bytes of `fd` from its start, shared with everybody who maps it.
    pub(crate) fn shared(
        fd: BorrowedFd<'_>,
        len: usize,
        protection: ProtFlags,
    ) -> rustix::io::Result<Mapping> {
        // SAFETY: the address is the kernel's choice, so no existing mapping is touched.
        let start = unsafe { mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, fd, 0)? };
        Ok(Mapping::own(start, len))
    }

    fn own(start: *mut c_void, len: usize) -> Mapping {
        Mapping {
            start: NonNull::new(start.cast()).expect("the kernel never maps address 0"),
            len,
        }
    }

    /// The first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Mapped bytes, whole pages.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by a constructor and is released here only; users borrow from
        // the owner of this value, so none is left. Failure leaves the pages mapped, which is harmless.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
