//! The memory that the two halves of a lane's rings share, as each of them has it mapped.

use std::sync::Arc;

use rowmill_arena::{Region, Window};

use super::layout::Layout;
use crate::sync::AtomicU32;

/// A lane's block, kept mapped.
pub(super) struct Block {
    // Found once, since the polling loop needs it many millions of times a second. The lifetime is not
    // the true one: `window` gives it out with that of `self`.
    window: Window<'static>,
    _memory: Arc<Region>,
}

// SAFETY: a window is an address and a length; what it spans is kept mapped by `_memory`, which is Send
// and Sync, and is accessed by atomics and by copies that tolerate concurrent writers only.
unsafe impl Send for Block {}

impl Block {
    /// The block of a lane in a connection's control memory.
    pub(super) fn new(memory: Arc<Region>, layout: &Layout, lane: u16) -> Block {
        let part = memory
            .window()
            .part(usize::from(lane) * layout.lane_bytes(), layout.lane_bytes())
            .expect("the control memory has the layout's size");
        let start = core::ptr::NonNull::new(part.as_ptr()).expect("a window's start is not null");
        // SAFETY: the bytes are mapped readable and writable for as long as the region lives, which
        // this value keeps alive, and regions are reached through windows only.
        let window = unsafe { Window::from_raw(start, part.len()) };
        Block {
            window,
            _memory: memory,
        }
    }

    /// All of it.
    pub(super) fn window(&self) -> Window<'_> {
        self.window
    }

    /// A tail, or a flag that says who sleeps.
    pub(super) fn word(&self, at: usize) -> &AtomicU32 {
        self.window().atomic_u32(at)
    }

    /// An entry of the submission queue.
    pub(super) fn load_u32(&self, at: usize) -> u32 {
        self.window().load_u32(at)
    }

    /// Writes an entry of the submission queue.
    pub(super) fn store_u32(&self, at: usize, value: u32) {
        self.window().store_u32(at, value);
    }

    /// Copies bytes out.
    pub(super) fn read(&self, at: usize, out: &mut [u8]) {
        self.window().read(at, out);
    }

    /// Copies bytes in.
    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        self.window().write(at, bytes);
    }
}
