//! Private memory of this process in whole pages, for registering.

use core::ptr::{self, NonNull};
use std::io;

use crate::error::{Call, Error};

/// Which pages to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// 4 KiB, or what the kernel makes of them.
    Small,
    /// Reserved huge pages of 2 MiB; an error where there are too few.
    Huge,
    /// Reserved huge pages where there are enough, otherwise small ones.
    HugeOrSmall,
}

const HUGE: usize = 2 << 20;

/// Zeroed memory that is this process's alone, all of it present, at an address that does not change.
///
/// While it is registered there is no way to it but through its owner: a value of this type can be
/// written to only as `&mut`, and whatever registers it takes the value.
#[derive(Debug)]
pub struct HostMemory {
    start: NonNull<u8>,
    bytes: usize,
    pages: Pages,
}

// SAFETY: the memory is owned and reached through `&mut` only.
unsafe impl Send for HostMemory {}
// SAFETY: nothing can be read or written through a shared reference.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Takes `bytes`, rounded up to whole pages, of the pages wanted.
    ///
    /// # Errors
    /// A failed `mmap`: too little memory, or too few reserved huge pages.
    ///
    /// # Panics
    /// If `bytes` is 0.
    pub fn new(bytes: usize, pages: Pages) -> Result<HostMemory, Error> {
        assert!(bytes > 0, "memory of some bytes");
        if pages != Pages::Small {
            let flags = libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
            match map(bytes.next_multiple_of(HUGE), flags, Pages::Huge) {
                Ok(memory) => return Ok(memory),
                Err(error) if pages == Pages::Huge => {
                    let needed = bytes.div_ceil(HUGE);
                    let advice = format!("{needed} reserved huge pages of 2 MiB are needed");
                    return Err(error.context(advice));
                }
                Err(_) => tracing::debug!(bytes, "no huge pages, small ones are taken"),
            }
        }
        map(bytes.next_multiple_of(4096), 0, Pages::Small)
    }

    /// Size in bytes, whole pages.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Never: there is at least a page.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// What was got: [`Pages::Small`] or [`Pages::Huge`].
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// The bytes.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: mapped readable and writable for `bytes`, initialised (zeroed) by the kernel, private to
        // this process, and borrowed for as long as the slice.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this size, unmapped here only; whoever lent the address to a device
        // owned the value until the device had given it up.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

fn map(bytes: usize, flags: libc::c_int, pages: Pages) -> Result<HostMemory, Error> {
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let start = unsafe { libc::mmap(ptr::null_mut(), bytes, rights, flags, -1, 0) };
    let start = NonNull::new(start).filter(|start| start.as_ptr() != libc::MAP_FAILED);
    match start {
        Some(start) => Ok(HostMemory {
            start: start.cast(),
            bytes,
            pages,
        }),
        None => Err(Error::call(Call::Mmap, io::Error::last_os_error())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_zeroed_pages() {
        let mut memory = HostMemory::new(5000, Pages::Small).expect("memory");
        assert_eq!((memory.len(), memory.pages()), (8192, Pages::Small));
        assert!(memory.as_mut_slice().iter().all(|&byte| byte == 0));
        memory.as_mut_slice()[8191] = 7;
        let memory = HostMemory::new(1, Pages::HugeOrSmall).expect("memory");
        assert!(memory.len() == 4096 || memory.pages() == Pages::Huge);
    }
}
