//! Memory that never changes, registered for peers to READ.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;

use crate::domain::ProtectionDomain;
use crate::error::Error;
use crate::memory::{Access, MemoryRegion, Remote};

/// Memory whose bytes never change, which may be read-only. Other threads may read it while peers do.
///
/// # Safety
/// [`bytes`](Immutable::bytes) must give the same bytes each time, at the same place wherever the value itself is moved. They must stay mapped
/// and readable until the value is dropped, and nobody may write them.
pub unsafe trait Immutable: Send + 'static {
    /// The bytes.
    fn bytes(&self) -> &[u8];
}

/// Immutable memory that peers may READ, and that is kept until they no longer may. Nobody can write it by this registration, neither a
/// peer nor a queue pair of this side.
///
/// ```compile_fail,E0277
/// use rowmill_verbs::{Exported, HostMemory, ProtectionDomain};
/// fn export(domain: &ProtectionDomain, memory: HostMemory) {
///     let exported = Exported::new(domain, memory);
/// }
/// ```
pub struct Exported<M: Immutable> {
    region: ManuallyDrop<MemoryRegion>,
    memory: ManuallyDrop<M>,
}

impl<M: Immutable> Exported<M> {
    /// Registers all bytes of `memory`; gives it back where that fails.
    ///
    /// # Errors
    /// A failed call, mostly for a limit on locked memory; a region larger than the device takes.
    ///
    /// # Panics
    /// If there are no bytes.
    pub fn new(domain: &ProtectionDomain, memory: M) -> Result<Exported<M>, (Error, M)> {
        let bytes = memory.bytes();
        assert!(!bytes.is_empty(), "memory of some bytes");
        let (start, len) = (NonNull::from(bytes).cast(), bytes.len());
        // SAFETY: the bytes stay mapped while `memory` lives, which is dropped only after deregistering, and never change. The device
        // may only read them, which goes together with shared references to them.
        match unsafe { MemoryRegion::new(domain, start, len, Access::REMOTE_READ) } {
            Ok(region) => Ok(Exported {
                region: ManuallyDrop::new(region),
                memory: ManuallyDrop::new(memory),
            }),
            Err(error) => Err((error, memory)),
        }
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.memory.bytes().len()
    }

    /// Never: there are some bytes.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// What a peer needs to know to READ it: the first byte's address, and the key.
    pub fn remote(&self) -> Remote {
        Remote {
            address: self.memory.bytes().as_ptr() as u64,
            key: self.region.remote_key(),
        }
    }
}

impl<M: Immutable> Drop for Exported<M> {
    fn drop(&mut self) {
        // SAFETY: taken once; the field is not used after drop.
        let region = unsafe { ManuallyDrop::take(&mut self.region) };
        match region.deregister() {
            // SAFETY: dropped once, and the device knows the memory no more.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.memory) },
            Err((error, region)) => {
                // The device may read the memory still, so it is never freed.
                core::mem::forget(region);
                tracing::error!(%error, bytes = self.len(), "memory is left registered and leaked");
            }
        }
    }
}

impl<M: Immutable> fmt::Debug for Exported<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.remote().address;
        write!(f, "Exported({} bytes at {address:#x})", self.len())
    }
}
