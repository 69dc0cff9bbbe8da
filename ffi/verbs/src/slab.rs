//! Blocks of registered memory that are moved to the device and back.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::fmt;
use std::sync::Arc;

use crate::domain::ProtectionDomain;
use crate::error::Error;
use crate::host_memory::HostMemory;
use crate::memory::{Access, MemoryRegion};

/// Memory cut into equal blocks. Taking a block and dropping one neither allocates nor locks. Cloning
/// the slab is cheap; the memory lives as long as a block or a registration of it.
#[derive(Clone)]
pub struct Slab {
    inner: Arc<Inner>,
}

struct Inner {
    // Reached through blocks only: each owns its part of it.
    memory: HostMemory,
    block_bytes: usize,
    blocks: usize,
    // A set bit is a free block.
    free: Box<[AtomicU64]>,
}

impl Slab {
    /// Cuts `memory` into as many blocks of `block_bytes` as it holds.
    ///
    /// # Panics
    /// If that is none, or more than 2^32.
    pub fn new(memory: HostMemory, block_bytes: usize) -> Slab {
        assert!(block_bytes > 0, "blocks of some bytes");
        let blocks = memory.len() / block_bytes;
        assert!(
            blocks > 0 && u32::try_from(blocks).is_ok(),
            "{blocks} blocks"
        );
        let word = |at: usize| match blocks - at * 64 {
            left if left < 64 => AtomicU64::new((1 << left) - 1),
            _ => AtomicU64::new(u64::MAX),
        };
        let free = (0..blocks.div_ceil(64)).map(word).collect();
        let inner = Arc::new(Inner {
            memory,
            block_bytes,
            blocks,
            free,
        });
        Slab { inner }
    }

    /// A free block, with what its last owner left in it; `None` where all are taken.
    pub fn take(&self) -> Option<Block> {
        for (at, word) in self.inner.free.iter().enumerate() {
            let mut seen = word.load(Ordering::Relaxed);
            while seen != 0 {
                let bit = seen.trailing_zeros();
                let without = seen & !(1 << bit);
                // Acquire: what the last owner wrote comes before what this one does.
                match word.compare_exchange_weak(
                    seen,
                    without,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => {
                        return Some(Block {
                            slab: self.clone(),
                            index: at as u32 * 64 + bit,
                        });
                    }
                    Err(now) => seen = now,
                }
            }
        }
        None
    }

    /// Blocks that are free now.
    pub fn free(&self) -> usize {
        let ones = |word: &AtomicU64| word.load(Ordering::Relaxed).count_ones() as usize;
        self.inner.free.iter().map(ones).sum()
    }

    /// All blocks.
    pub fn blocks(&self) -> usize {
        self.inner.blocks
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.inner.block_bytes
    }

    /// Registers all blocks in `domain`, for this side's queue pairs alone. A slab can be registered in several
    /// domains; each time its pages count against RLIMIT_MEMLOCK.
    ///
    /// # Errors
    /// A failed call, mostly for a limit on locked memory.
    pub fn register(&self, domain: &ProtectionDomain) -> Result<SlabRegistration, Error> {
        let (start, bytes) = (self.inner.memory.start(), self.inner.memory.len());
        let access = Access::LOCAL_WRITE | Access::RELAXED_ORDERING;
        // SAFETY: the memory lives while `slab` does, which is held until the region is deregistered. Without
        // remote rights the device touches only what is posted, which are blocks that were moved away.
        let region = unsafe { MemoryRegion::new(domain, start, bytes, access) }?;
        let held = Arc::new(Held {
            region: Some(region),
            slab: self.clone(),
        });
        Ok(SlabRegistration { held })
    }

    fn is(&self, other: &Slab) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    fn start_of(&self, index: u32) -> NonNull<u8> {
        // SAFETY: index < blocks, so the block lies inside the memory.
        unsafe {
            let start = self.inner.memory.start();
            start.add(index as usize * self.inner.block_bytes)
        }
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (free, blocks, bytes) = (self.free(), self.blocks(), self.block_bytes());
        write!(f, "Slab({free} of {blocks} blocks of {bytes} bytes free)")
    }
}

/// A slab's registration in one protection domain. Cloning it is cheap; it lasts as long as a queue pair holds it.
#[derive(Clone)]
pub struct SlabRegistration {
    held: Arc<Held>,
}

struct Held {
    region: Option<MemoryRegion>,
    slab: Slab,
}

impl SlabRegistration {
    /// The slab.
    pub fn slab(&self) -> &Slab {
        &self.held.slab
    }

    /// The domain it is registered in.
    pub fn domain(&self) -> &ProtectionDomain {
        self.region().domain()
    }

    pub(crate) fn local_key(&self) -> u32 {
        self.region().local_key()
    }

    pub(crate) fn covers(&self, block: &Block) -> bool {
        self.held.slab.is(&block.slab)
    }

    fn region(&self) -> &MemoryRegion {
        self.held
            .region
            .as_ref()
            .expect("registered until it is dropped")
    }
}

impl fmt::Debug for SlabRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} registered in {:?}", self.slab(), self.domain())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(Err((error, region))) = self.region.take().map(MemoryRegion::deregister) {
            // The device may write to the memory still, so it is never freed.
            core::mem::forget((region, self.slab.clone()));
            tracing::error!(%error, "a slab is left registered and leaked");
        }
    }
}

/// A block of a [`Slab`]: its owner alone can read and write it, and who posts it gives it away.
///
/// ```compile_fail,E0308
/// fn twice(block: &rowmill_verbs::Block) -> rowmill_verbs::Block {
///     block.clone()
/// }
/// ```
/// ```
/// fn another(block: &rowmill_verbs::Block) -> Option<rowmill_verbs::Block> {
///     block.slab().take()
/// }
/// ```
///
/// The memory can't go while a block is out: the slab has taken it.
///
/// ```compile_fail,E0382
/// use rowmill_verbs::{Block, HostMemory, Slab};
/// fn cut(memory: HostMemory) -> Option<Block> {
///     let slab = Slab::new(memory, 4096);
///     let block = slab.take();
///     drop(memory);
///     block
/// }
/// ```
/// ```
/// use rowmill_verbs::{Block, HostMemory, Slab};
/// fn cut(memory: HostMemory) -> Option<Block> {
///     let slab = Slab::new(memory, 4096);
///     let block = slab.take();
///     drop(slab);
///     block
/// }
/// ```
pub struct Block {
    slab: Slab,
    index: u32,
}

impl Block {
    /// Its size in bytes.
    pub fn len(&self) -> usize {
        self.slab.inner.block_bytes
    }

    /// Never: blocks have bytes.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Its number in the slab.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The slab it belongs to.
    pub fn slab(&self) -> &Slab {
        &self.slab
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory is initialised and mapped while the slab lives. Only this value gives access
        // to these bytes: its bit is taken, and a block that is posted is owned by its queue pair until the
        // device is done with it.
        unsafe { core::slice::from_raw_parts(self.start().as_ptr(), self.len()) }
    }

    /// The bytes, for writing.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(self.start().as_ptr(), self.len()) }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.slab.start_of(self.index)
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} of {} bytes)", self.index, self.len())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let word = &self.slab.inner.free[self.index as usize / 64];
        // Release: what was written through this block comes before its next owner.
        word.fetch_or(1 << (self.index % 64), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_memory::Pages;

    fn slab(bytes: usize, block_bytes: usize) -> Slab {
        let memory = HostMemory::new(bytes, Pages::Small).expect("memory");
        Slab::new(memory, block_bytes)
    }

    #[test]
    fn each_block_is_out_once_and_comes_back() {
        let slab = slab(70 * 4096, 4096);
        let mut out: Vec<Block> = std::iter::from_fn(|| slab.take()).collect();
        assert_eq!((out.len(), slab.free(), slab.blocks()), (70, 0, 70));
        for (at, block) in out.iter_mut().enumerate() {
            assert_eq!(block.index() as usize, at);
            block.as_mut_slice().fill(at as u8);
        }
        for (at, block) in out.iter().enumerate() {
            assert!(block.as_slice().iter().all(|&byte| byte == at as u8));
        }
        drop(out.remove(66));
        assert_eq!(slab.free(), 1);
        let again = slab.take().expect("a block");
        assert_eq!((again.index(), again.as_slice()[0]), (66, 66));
        drop((again, out));
        assert_eq!(slab.free(), 70);
    }

    #[test]
    fn memory_outlives_the_slab_while_a_block_is_out() {
        let mut block = slab(4096, 4096).take().expect("a block");
        block.as_mut_slice().fill(9);
        assert!(block.as_slice().iter().all(|&byte| byte == 9));
    }

    #[test]
    fn threads_never_share_a_block() {
        let slab = slab(8 * 4096, 4096);
        std::thread::scope(|scope| {
            for id in 0..4 {
                let slab = slab.clone();
                scope.spawn(move || {
                    for _ in 0..2_000 {
                        let Some(mut block) = slab.take() else {
                            continue;
                        };
                        block.as_mut_slice()[..64].fill(id);
                        std::hint::spin_loop();
                        assert!(block.as_slice()[..64].iter().all(|&byte| byte == id));
                    }
                });
            }
        });
        assert_eq!(slab.free(), 8);
    }
}
