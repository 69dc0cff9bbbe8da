//! Memory of a GPU as a dma-buf, which a NIC can register.

use core::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};

use crate::context::Current;
use crate::driver::Attribute;
use crate::error::Error;
use crate::memory::DeviceMemory;
use crate::sys::{DMA_BUF_MAPPING_TYPE_PCIE, HANDLE_DMA_BUF_FD, INVALID_VALUE, NOT_SUPPORTED};

/// Whole pages around a range of a GPU's memory, as a dma-buf.
#[derive(Debug)]
pub struct DmaBuf {
    /// The descriptor, which may be closed once it is registered.
    pub fd: OwnedFd,
    /// Where in it the range begins.
    pub offset: u64,
}

/// The pages of `page` bytes that a range touches: the first one's address and all their bytes.
fn pages_around(address: u64, bytes: u64, page: u64) -> Option<(u64, u64)> {
    let start = address - address % page;
    let end = address.checked_add(bytes)?.checked_next_multiple_of(page)?;
    Some((start, end - start))
}

impl Current<'_> {
    /// Exports a range. `page` is the host's page size: the driver exports whole pages. `Ok(None)` says that the device can't,
    /// for whatever the driver says of it.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Call`].
    pub fn export(&self, memory: &DeviceMemory, page: u64) -> Result<Option<DmaBuf>, Error> {
        if self
            .context
            .device()
            .attribute(Attribute::DMA_BUF)
            .unwrap_or(0)
            == 0
        {
            return Ok(None);
        }
        let export = self.functions().cuMemGetHandleForAddressRange;
        let export = export.ok_or(Error::Missing {
            symbol: "cuMemGetHandleForAddressRange",
            what: "no memory can be exported as a dma-buf",
        })?;
        let (start, bytes) = pages_around(memory.address(), memory.len(), page)
            .expect("a range that is allocated ends before the last page");
        let mut fd: c_int = -1;
        let mut with = |flags| {
            // SAFETY: the driver writes a descriptor, an int for this type of handle.
            self.check("cuMemGetHandleForAddressRange", unsafe {
                let fd = core::ptr::from_mut(&mut fd).cast();
                export(fd, start, bytes as usize, HANDLE_DMA_BUF_FD, flags)
            })
        };
        // Through the PCIe BAR, where the NIC is, also where the CPU has another way to the GPU. Drivers before 12.8 don't know the
        // flag, and where there is no other way some refuse it.
        match with(DMA_BUF_MAPPING_TYPE_PCIE) {
            Err(error) if matches!(error.code(), Some(INVALID_VALUE | NOT_SUPPORTED)) => with(0)?,
            done => done?,
        }
        // SAFETY: a descriptor that was just made for the caller.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let offset = memory.address() - start;
        Ok(Some(DmaBuf { fd, offset }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_pages() {
        let cases = [
            ((0x10_0000, 4096), Some((0x10_0000, 4096))),
            ((0x10_0010, 1), Some((0x10_0000, 4096))),
            ((0x10_0ff0, 32), Some((0x10_0000, 8192))),
            ((u64::MAX - 10, 10), None),
        ];
        for ((address, bytes), pages) in cases {
            assert_eq!(pages_around(address, bytes, 4096), pages, "{address:#x}");
        }
    }
}
