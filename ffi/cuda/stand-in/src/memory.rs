//! What is allocated, on the "device" and pinned on the host.

use core::ffi::c_void;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;

/// `cuMemAlloc` gives multiples of this.
const ALIGNED: usize = 512;

/// What a range of addresses is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Memory of the device, on the heap.
    Device,
    /// `cuMemHostAlloc`, on the heap.
    Host,
    /// `cuMemHostRegister`, the caller's.
    Registered,
}

/// A range that does not overlap another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) bytes: usize,
    pub(crate) kind: Kind,
}

/// All ranges, by their first address.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    ranges: BTreeMap<u64, Range>,
}

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.checked_next_multiple_of(ALIGNED)?, 4096).ok()
}

impl Memory {
    /// Zeroed memory; None where there is none, or none is wanted.
    pub(crate) fn allocate(&mut self, bytes: usize, kind: Kind) -> Option<u64> {
        let layout = layout(bytes).filter(|layout| layout.size() > 0)?;
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            return None;
        }
        self.ranges.insert(start as u64, Range { bytes, kind });
        Some(start as u64)
    }

    /// Gives back what was allocated as this kind.
    pub(crate) fn free(&mut self, start: u64, kind: Kind) -> bool {
        match self.ranges.get(&start) {
            Some(range) if range.kind == kind => {
                let layout = layout(range.bytes).expect("as it was allocated");
                // SAFETY: `allocate` took it with this layout; it leaves the table now.
                unsafe { dealloc(start as *mut u8, layout) };
                self.ranges.remove(&start);
                true
            }
            _ => false,
        }
    }

    /// Enters memory of the caller's; false where some of it is known already.
    pub(crate) fn register(&mut self, start: *mut c_void, bytes: usize) -> bool {
        let start = start as u64;
        let before = self.ranges.range(..start + bytes as u64).next_back();
        let overlaps = before.is_some_and(|(at, range)| at + range.bytes as u64 > start);
        if !overlaps {
            let kind = Kind::Registered;
            self.ranges.insert(start, Range { bytes, kind });
        }
        !overlaps
    }

    /// Forgets memory of the caller's.
    pub(crate) fn unregister(&mut self, start: *mut c_void) -> bool {
        let start = start as u64;
        let known = self.ranges.get(&start);
        let known = known.is_some_and(|range| range.kind == Kind::Registered);
        if known {
            self.ranges.remove(&start);
        }
        known
    }

    /// The range around an address.
    pub(crate) fn around(&self, address: u64) -> Option<Range> {
        let (start, range) = self.ranges.range(..=address).next_back()?;
        (address - start < range.bytes as u64).then_some(*range)
    }

    /// Whether all of these bytes are of the device, in one allocation.
    pub(crate) fn is_device(&self, address: u64, bytes: usize) -> bool {
        let Some((start, range)) = self.ranges.range(..=address).next_back() else {
            return false;
        };
        let end = (address - start).checked_add(bytes as u64);
        range.kind == Kind::Device && end.is_some_and(|end| end <= range.bytes as u64)
    }
}
