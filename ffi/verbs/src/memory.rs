//! Memory regions: memory registered with a device, by its owner, for as long as it is registered.

use core::ffi::c_int;
use core::mem::ManuallyDrop;
use core::ops::BitOr;
use core::ptr::{self, NonNull};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::domain::ProtectionDomain;
use crate::error::{Call, Error};
use crate::host_memory::HostMemory;
use crate::limits::Limits;
use crate::live;
use crate::sys;

/// What a device may do with a memory region. Local reading is always allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(u32);

impl Access {
    /// This side's queue pairs read it: the source of WRITEs and SENDs.
    pub const LOCAL_READ: Access = Access(0);
    /// This side's queue pairs write it: the target of READs and receives.
    pub const LOCAL_WRITE: Access = Access(1);
    /// Peers WRITE it. (Local writing has to be allowed besides, so it is part of this.)
    pub const REMOTE_WRITE: Access = Access(1 | 2);
    /// Peers READ it.
    pub const REMOTE_READ: Access = Access(4);
    /// The device may place bytes in any order; they are all there when the completion is. Wrong for
    /// memory that is polled. Optional: dropped where kernel or device don't know it.
    pub const RELAXED_ORDERING: Access = Access(1 << 20);

    fn raw(self) -> u32 {
        self.0
    }
}

impl BitOr for Access {
    type Output = Access;

    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

/// Copies bytes that a device may be writing meanwhile. Each is loaded once, so that what is found good in the copy is
/// what the copy has.
///
/// # Safety
/// Both ranges must be mapped, `to` writable and private, and they must not overlap.
unsafe fn copy_changing(from: *const u8, to: *mut u8, len: usize) {
    const WORD: usize = size_of::<u64>();
    let words = if from.addr().is_multiple_of(WORD) {
        len / WORD
    } else {
        0
    };
    // SAFETY: the caller's contract; words lie inside and `from` is aligned for them. Volatile loads are neither
    // repeated nor taken for loads of memory that can't change.
    unsafe {
        for word in 0..words {
            let value = from.cast::<u64>().add(word).read_volatile();
            to.cast::<u64>().add(word).write_unaligned(value);
        }
        for byte in words * WORD..len {
            to.add(byte).write(from.add(byte).read_volatile());
        }
    }
}

/// Memory that can be registered.
///
/// # Safety
/// [`bytes`](Backing::bytes) must name the same bytes each time. They must stay mapped, readable and
/// writable, until the value is dropped, wherever the value itself is moved; and through a shared
/// reference to the value no safe code may get a Rust reference to them, since a device writes them at any moment.
pub unsafe trait Backing: Send + 'static {
    /// The first byte's address, and how many there are.
    fn bytes(&self) -> (NonNull<u8>, usize);
}

// SAFETY: the mapping does not move and lives as long as the value; bytes are reached through `&mut` only.
unsafe impl Backing for HostMemory {
    fn bytes(&self) -> (NonNull<u8>, usize) {
        (self.start(), self.len())
    }
}

/// A place in a peer's memory, as the peer has told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The address that the peer's device knows the place by.
    pub address: u64,
    /// The key of the region around it.
    pub key: u32,
}

/// A registration with the device. Whatever it is of must outlive it; the owners in this crate see to that.
pub(crate) struct MemoryRegion {
    raw: NonNull<sys::ibv_mr>,
    domain: ProtectionDomain,
}

// SAFETY: libibverbs allows calls on a region from any thread; it is deregistered once, through ownership.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Registers `bytes` at `start`.
    ///
    /// # Safety
    /// The memory must stay mapped until the region is dropped without error, and must not be used in a way that
    /// the device's accesses under `access` would break.
    pub(crate) unsafe fn new(
        domain: &ProtectionDomain,
        start: NonNull<u8>,
        bytes: usize,
        access: Access,
    ) -> Result<MemoryRegion, Error> {
        let granted = domain.context().limits().memory_region_bytes;
        Limits::check("bytes of a memory region", bytes as u64, granted)?;
        let address = start.as_ptr();
        // SAFETY: the domain is valid; the memory is by the caller's promise.
        let raw = sys::pointer(Call::RegMr, unsafe {
            let (pd, iova) = (domain.raw(), address as u64);
            sys::ibv_reg_mr_iova2(pd, address.cast(), bytes, iova, access.raw())
        });
        let raw = raw.map_err(|error| match error.raw_os_error() {
            Some(libc::ENOMEM) => error.context(format!(
                "{bytes} bytes can't be pinned; RLIMIT_MEMLOCK (LimitMEMLOCK= of a unit, `ulimit -l`) may be too low"
            )),
            _ => error.context(format!("{bytes} bytes")),
        })?;
        live::REGIONS.made();
        let domain = domain.clone();
        Ok(MemoryRegion { raw, domain })
    }

    pub(crate) fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    pub(crate) fn local_key(&self) -> u32 {
        // SAFETY: the region is registered while the value lives.
        unsafe { self.raw.as_ref().lkey }
    }

    pub(crate) fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.raw.as_ref().rkey }
    }

    /// Ends the registration; on failure the device may still access the memory.
    pub(crate) fn deregister(self) -> Result<(), (Error, MemoryRegion)> {
        // SAFETY: registered in a constructor; after success the value is not used again.
        let answer = unsafe { sys::ibv_dereg_mr(self.raw.as_ptr()) };
        match sys::check(Call::DeregMr, answer) {
            Ok(()) => live::REGIONS.gone(),
            Err(error) => return Err((error, self)),
        }
        Ok(())
    }
}

/// Memory that is registered and that owns what it is made of.
///
/// Peers may write it at any moment if they have its key, so that no reference to its bytes can be had, only
/// bounded copies:
///
/// ```compile_fail,E0599
/// fn look(ring: &rowmill_verbs::Registered<rowmill_verbs::HostMemory>) -> u8 {
///     ring.as_slice()[0]
/// }
/// ```
/// ```
/// fn look(ring: &rowmill_verbs::Registered<rowmill_verbs::HostMemory>) -> u8 {
///     let mut byte = [0];
///     ring.copy_out(0, &mut byte);
///     byte[0]
/// }
/// ```
///
/// What it is made of can't be dropped, taken or written while it is registered:
///
/// ```compile_fail,E0382
/// use rowmill_verbs::{Access, HostMemory, ProtectionDomain, Registered};
/// fn register(domain: &ProtectionDomain, mut memory: HostMemory) {
///     let registered = Registered::new(domain, memory, Access::REMOTE_WRITE);
///     memory.as_mut_slice()[0] = 1;
/// }
/// ```
/// ```
/// use rowmill_verbs::{Access, HostMemory, ProtectionDomain, Registered};
/// fn register(domain: &ProtectionDomain, mut memory: HostMemory) {
///     memory.as_mut_slice()[0] = 1;
///     let registered = Registered::new(domain, memory, Access::REMOTE_WRITE);
/// }
/// ```
///
/// ```compile_fail,E0507
/// use rowmill_verbs::{HostMemory, Registered};
/// fn take(registered: &Registered<HostMemory>) -> HostMemory {
///     *registered.backing()
/// }
/// ```
/// ```
/// use rowmill_verbs::{HostMemory, Registered};
/// fn take(registered: Registered<HostMemory>) -> Option<HostMemory> {
///     registered.deregister().ok()
/// }
/// ```
pub struct Registered<B: Backing> {
    region: ManuallyDrop<MemoryRegion>,
    backing: ManuallyDrop<B>,
}

impl<B: Backing> Registered<B> {
    /// Registers all bytes of `backing`; gives it back where that fails.
    ///
    /// # Errors
    /// A failed call, mostly for a limit on locked memory; a region larger than the device takes.
    pub fn new(
        domain: &ProtectionDomain,
        backing: B,
        access: Access,
    ) -> Result<Registered<B>, (Error, B)> {
        let (start, bytes) = backing.bytes();
        // SAFETY: the bytes stay mapped while `backing` lives, which is dropped only after deregistering;
        // no reference to them can be had while it is owned here (both are the contract of `Backing`).
        match unsafe { MemoryRegion::new(domain, start, bytes, access) } {
            Ok(region) => Ok(Registered {
                region: ManuallyDrop::new(region),
                backing: ManuallyDrop::new(backing),
            }),
            Err(error) => Err((error, backing)),
        }
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.backing.bytes().1
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What a peer needs to know to access it: the first byte's address, and the key.
    pub fn remote(&self) -> Remote {
        Remote {
            address: self.backing.bytes().0.as_ptr() as u64,
            key: self.region.remote_key(),
        }
    }

    /// What it is made of.
    pub fn backing(&self) -> &B {
        &self.backing
    }

    /// Copies bytes from `offset` on to `out`. What peers wrote before the completion that was polled is
    /// there; what they write now may be there in parts.
    ///
    /// # Panics
    /// If the range lies outside.
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) {
        let from = self.place(offset, out.len());
        // SAFETY: `place` has checked that the range is mapped; `out` is private memory.
        unsafe { copy_changing(from, out.as_mut_ptr(), out.len()) }
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// If the range lies outside.
    pub fn copy_in(&mut self, offset: usize, bytes: &[u8]) {
        let to = self.place(offset, bytes.len());
        // SAFETY: as above; `&mut` keeps other threads of this process away.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    fn place(&self, offset: usize, len: usize) -> *mut u8 {
        let (start, bytes) = self.backing.bytes();
        let inside = offset.checked_add(len).is_some_and(|end| end <= bytes);
        assert!(inside, "{len} bytes at {offset} of {bytes}");
        // SAFETY: offset <= bytes, so the address lies inside the backing or one past it.
        unsafe { start.as_ptr().add(offset) }
    }

    /// Ends the registration and gives back what it was made of. From then on no peer can access it.
    ///
    /// # Errors
    /// A failed call; it is registered still.
    pub fn deregister(self) -> Result<B, (Error, Registered<B>)> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped and both fields are taken once.
        let (region, backing) = unsafe {
            let region = ManuallyDrop::take(&mut this.region);
            (region, ManuallyDrop::take(&mut this.backing))
        };
        match region.deregister() {
            Ok(()) => Ok(backing),
            Err((error, region)) => Err((
                error,
                Registered {
                    region: ManuallyDrop::new(region),
                    backing: ManuallyDrop::new(backing),
                },
            )),
        }
    }
}

impl<B: Backing> Drop for Registered<B> {
    fn drop(&mut self) {
        // SAFETY: taken once; the fields are not used after drop.
        let region = unsafe { ManuallyDrop::take(&mut self.region) };
        match region.deregister() {
            // SAFETY: dropped once, and the device knows the memory no more.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.backing) },
            Err((error, region)) => {
                // The device may write to the memory still, so it is never freed.
                core::mem::forget(region);
                tracing::error!(%error, bytes = self.len(), "memory is left registered and leaked");
            }
        }
    }
}

impl<B: Backing> fmt::Debug for Registered<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Registered({} bytes at {:#x})",
            self.len(),
            self.remote().address
        )
    }
}

/// Memory of another device (a GPU), exported as a dma-buf and registered. The CPU has no way to it here.
pub struct RegisteredDmaBuf {
    region: Option<MemoryRegion>,
    iova: u64,
    bytes: usize,
    fd: OwnedFd,
}

impl RegisteredDmaBuf {
    /// Registers `bytes` at `offset` of the dma-buf, for peers to know by the addresses from `iova` on.
    /// `offset` and `iova` must be equal modulo the page size.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where device or kernel don't know dma-bufs; a failed call. The descriptor is closed.
    pub fn new(
        domain: &ProtectionDomain,
        fd: OwnedFd,
        offset: u64,
        bytes: usize,
        iova: u64,
        access: Access,
    ) -> Result<RegisteredDmaBuf, Error> {
        let region = register_dmabuf(domain, fd.as_raw_fd(), offset, bytes, iova, access)?;
        Ok(RegisteredDmaBuf {
            region: Some(region),
            iova,
            bytes,
            fd,
        })
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The dma-buf's descriptor.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// What a peer needs to know to access it.
    pub fn remote(&self) -> Remote {
        Remote {
            address: self.iova,
            key: self.region.as_ref().map_or(0, MemoryRegion::remote_key),
        }
    }
}

impl Drop for RegisteredDmaBuf {
    fn drop(&mut self) {
        if let Some(Err((error, region))) = self.region.take().map(MemoryRegion::deregister) {
            // The kernel keeps the exporter's memory for as long as the registration is.
            core::mem::forget(region);
            tracing::error!(%error, bytes = self.bytes, "a dma-buf is left registered");
        }
    }
}

/// Whether device and kernel can register dma-bufs: asked by registering a descriptor that is none.
///
/// # Errors
/// A failed call that says neither.
pub fn dmabuf_support(domain: &ProtectionDomain) -> Result<bool, Error> {
    match register_dmabuf(domain, -1, 0, 4096, 0, Access::LOCAL_WRITE) {
        Err(Error::Unsupported { .. }) => Ok(false),
        Err(error) if error.raw_os_error() == Some(libc::EBADF) => Ok(true),
        Err(error) => Err(error),
        Ok(region) => {
            let _ = region.deregister();
            let errno = io::Error::from_raw_os_error(libc::EINVAL);
            Err(Error::call(Call::RegDmabufMr, errno).context("no descriptor was registered"))
        }
    }
}

fn register_dmabuf(
    domain: &ProtectionDomain,
    fd: c_int,
    offset: u64,
    bytes: usize,
    iova: u64,
    access: Access,
) -> Result<MemoryRegion, Error> {
    // SAFETY: the domain is valid. The memory is the exporter's: the kernel holds it while it is registered,
    // and no Rust reference to it exists.
    let raw = sys::pointer(Call::RegDmabufMr, unsafe {
        let access = access.raw() as c_int;
        sys::ibv_reg_dmabuf_mr(domain.raw(), offset, bytes, iova, fd, access)
    });
    match raw {
        Ok(raw) => {
            live::REGIONS.made();
            let domain = domain.clone();
            Ok(MemoryRegion { raw, domain })
        }
        Err(error) => Err(match error.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT) => Error::Unsupported {
                what: "registering dma-bufs (GPU memory)",
            },
            _ => error.context(format!("{bytes} bytes")),
        }),
    }
}
