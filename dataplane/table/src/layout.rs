//! Where parts of tables lie in an arena.

use std::ops::Range;

use rowmill_arena::{Arena, HugePages};

use crate::{Progress, Stage, TableError};

/// Tables start at a page, so that rows of a power of two never cross one more page than they must.
const LARGE_ALIGN: u64 = 4096;
/// Small tables start at a cache line.
const SMALL_ALIGN: u64 = 64;
/// From this size on a page of padding is less than 5 % of a table.
const LARGE_BYTES: u64 = 20 * LARGE_ALIGN;

/// Where each of some parts lies in an arena.
pub(crate) struct Layout {
    /// Offset and length of each, ascending.
    places: Vec<(usize, usize)>,
    bytes: usize,
}

impl Layout {
    /// For parts of these lengths, 4096 at most of 2^45 bytes, which stay below 2^58.
    pub(crate) fn new(lens: impl Iterator<Item = u64>) -> Layout {
        let mut end = 0u64;
        let mut places = Vec::new();
        for len in lens {
            let align = if len >= LARGE_BYTES {
                LARGE_ALIGN
            } else {
                SMALL_ALIGN
            };
            let offset = end.next_multiple_of(align);
            places.push((offset as usize, len as usize));
            end = offset + len;
        }
        Layout {
            places,
            bytes: end as usize,
        }
    }

    /// Bytes of all of them and of what lies between them.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// An arena for all of them; of one byte where they have none.
    pub(crate) fn allocate(
        &self,
        huge_pages: HugePages,
        progress: Progress<'_>,
    ) -> Result<Arena, TableError> {
        if self.bytes == 0 {
            return Ok(Arena::allocate(1, HugePages::Off)?);
        }
        let total = self.bytes as u64;
        progress(Stage::Allocating, 0, total);
        let arena = Arena::allocate_with(self.bytes, huge_pages, &mut |done| {
            progress(Stage::Allocating, total.min(done as u64), total);
        })?;
        Ok(arena)
    }

    /// The parts as slices of their own.
    pub(crate) fn split<'a>(&self, arena: &'a mut [u8]) -> Vec<&'a mut [u8]> {
        let mut rest = arena;
        let mut at = 0;
        let mut slices = Vec::with_capacity(self.places.len());
        for &(offset, len) in &self.places {
            let (_padding, behind) = rest.split_at_mut(offset - at);
            let (part, behind) = behind.split_at_mut(len);
            slices.push(part);
            rest = behind;
            at = offset + len;
        }
        slices
    }

    /// Where they lie.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<usize>> + Clone {
        self.places.iter().map(|&(at, len)| at..at + len)
    }
}
