//! Memory of a simulated region: on the heap, written through windows only.

use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;

use rowmill_arena::Window;

/// Bytes that a client, a worker and the test may all write, from one thread.
#[derive(Debug)]
pub struct SimMemory {
    /// Atomics, since those may be written through a shared reference; aligned as real regions are
    /// for everything that is stored in them.
    words: Box<[AtomicU64]>,
    len: usize,
}

impl SimMemory {
    /// Zeroed memory.
    pub(super) fn new(len: usize) -> SimMemory {
        SimMemory {
            words: (0..len.div_ceil(8)).map(|_| AtomicU64::new(0)).collect(),
            len,
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of it.
    pub fn window(&self) -> Window<'_> {
        let start = NonNull::from(&*self.words).cast();
        // SAFETY: the words are allocated for as long as `self` is borrowed and have at least `len`
        // bytes. They are atomics, whose memory may be written behind shared references, and no
        // reference to one is ever made but by the window itself.
        unsafe { Window::from_raw(start, self.len) }
    }

    /// Memory of its own with a copy of some bytes.
    pub(super) fn clone_part(&self, offset: usize, len: usize) -> SimMemory {
        let copy = SimMemory::new(len);
        copy.window().write(0, &self.bytes(offset, len));
        copy
    }

    /// A copy of some bytes.
    ///
    /// # Panics
    /// If they don't lie inside.
    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.window().read(offset, &mut out);
        out
    }
}
