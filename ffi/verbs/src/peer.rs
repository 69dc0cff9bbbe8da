//! Memory registered by its address: that of another device ("peer memory", which a module of that device's driver translates), or
//! memory of this process that this crate did not make.

use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use std::fmt;

use crate::domain::ProtectionDomain;
use crate::error::Error;
use crate::memory::{Access, MemoryRegion, Remote};

/// Memory of another device (a GPU), registered by the address that it has there, and what keeps it allocated. It needs a kernel module
/// that knows such addresses: nvidia-peermem. Or memory of this process. There is no way to it here.
pub struct RegisteredPeer<T: Send + 'static> {
    region: ManuallyDrop<MemoryRegion>,
    owner: ManuallyDrop<T>,
    remote: Remote,
    bytes: usize,
}

impl<T: Send + 'static> RegisteredPeer<T> {
    /// Registers `bytes` from `address` on; gives the owner back where that fails.
    ///
    /// # Safety
    /// They must be memory of a device, or mapped memory that nothing in Rust refers to while the device may write there; and stay
    /// allocated until the owner is dropped.
    ///
    /// # Errors
    /// A failed call: "Bad address" where no module knows the address; a region larger than the device takes.
    pub unsafe fn new(
        domain: &ProtectionDomain,
        owner: T,
        address: u64,
        bytes: usize,
        access: Access,
    ) -> Result<RegisteredPeer<T>, (Error, T)> {
        let Some(start) = NonNull::new(address as *mut u8) else {
            let what = "registering memory at no address";
            return Err((Error::Unsupported { what }, owner));
        };
        // SAFETY: the memory stays while the owner does, which is dropped after deregistering; no reference to it exists, since it
        // is none of Rust's (both are the caller's promise).
        match unsafe { MemoryRegion::new(domain, start, bytes, access) } {
            Ok(region) => {
                let key = region.remote_key();
                Ok(RegisteredPeer {
                    region: ManuallyDrop::new(region),
                    owner: ManuallyDrop::new(owner),
                    remote: Remote { address, key },
                    bytes,
                })
            }
            Err(error) => Err((error, owner)),
        }
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// What a peer needs to know to access it.
    pub fn remote(&self) -> Remote {
        self.remote
    }
}

impl<T: Send + 'static> Drop for RegisteredPeer<T> {
    fn drop(&mut self) {
        // SAFETY: taken once; the field is not used after drop.
        let region = unsafe { ManuallyDrop::take(&mut self.region) };
        match region.deregister() {
            // SAFETY: dropped once, and the device knows the memory no more.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.owner) },
            Err((error, region)) => {
                core::mem::forget(region);
                tracing::error!(%error, bytes = self.bytes, "memory of a device is left registered");
            }
        }
    }
}

impl<T: Send + 'static> fmt::Debug for RegisteredPeer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "RegisteredPeer({} bytes at {:#x})",
            self.bytes, self.remote.address
        )
    }
}
