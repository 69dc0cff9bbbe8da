//! An owned mapping: unmapped when dropped.

use core::ffi::c_void;
use core::ops::Range;
use core::ptr::{self, NonNull};
use std::os::fd::BorrowedFd;

use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap, mmap_anonymous, mremap_fixed, munmap};

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

    /// Puts new memory without pages in the place of a part, whose pages are given back.
    ///
    /// # Safety
    /// Nobody needs what is there, and the range is of whole pages.
    pub(crate) unsafe fn renew(&self, range: Range<usize>) -> rustix::io::Result<()> {
        assert!(
            range.start < range.end && range.end <= self.len,
            "a part of the mapping"
        );
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: the range is of our own mapping (asserted), which stays mapped as a whole, and its contents are nobody's by the
        // caller's contract.
        unsafe {
            let start = self.start.as_ptr().add(range.start).cast();
            mmap_anonymous(start, range.len(), protection, flags)?;
        }
        Ok(())
    }

    /// Moves another mapping's pages to `offset`, in the place of what is there.
    ///
    /// # Safety
    /// Nobody needs what is there, and `offset` is a multiple of the size of `pages`' pages, as is the start of this mapping.
    pub(crate) unsafe fn take_in(&self, offset: usize, pages: Mapping) -> rustix::io::Result<()> {
        assert!(
            offset <= self.len && pages.len <= self.len - offset,
            "a part of the mapping"
        );
        // SAFETY: both ranges are mapped and belong to us alone (asserted); what is at the target is nobody's by the caller's
        // contract, and nobody can have the address of `pages`, which is given up.
        unsafe {
            let to = self.start.as_ptr().add(offset).cast();
            mremap_fixed(
                pages.start.as_ptr().cast(),
                pages.len,
                pages.len,
                MremapFlags::MAYMOVE,
                to,
            )?;
        }
        core::mem::forget(pages);
        Ok(())
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
