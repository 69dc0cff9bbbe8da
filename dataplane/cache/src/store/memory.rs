//! The memory of a store: slots of rows, the tags that say whose row a slot holds, and the meta words of the policy.
//!
//! ```text
//! | slots: sets x 16 x stride | tags: sets x 16 x u32, a line a set | meta words: sets x 16 x u16 |
//! ```
//!
//! All of it is one arena. Slot `s` belongs to set `s / 16`.

use core::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use rowmill_arena::{
    Arena, ArenaError, Backing, HugePages, ReadWindow, SharedArena, prefetch_line,
};

/// Slots of a set: the tags of as many fill a cache line.
pub const WAYS: usize = 16;
/// The tag of a slot that holds no row and belongs to nobody.
pub(super) const EMPTY: u32 = u32::MAX;
/// The tag of a slot that holds no row that can be found, and belongs to the writer: its row was taken away, or comes.
pub(super) const TAKEN: u32 = u32::MAX - 1;
/// Rows have numbers below this; tags from it on are none of a row.
pub const ROWS_END: u32 = 1 << 31;

/// The tags of a set.
pub(super) type Line = [AtomicU32; WAYS];

const LINE_BYTES: usize = 64;
const _: () = assert!(size_of::<Line>() == LINE_BYTES);

/// How large a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    shards: u32,
    shard_sets: u32,
    row_bytes: usize,
    stride: usize,
}

/// Why there can be no such store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// Fewer than two sets a shard.
    #[error(
        "a cache of {rows} rows in {shards} shards is too small: it has to hold {least} rows at least"
    )]
    TooSmall {
        /// The rows that it was to hold.
        rows: u32,
        /// Its shards.
        shards: u32,
        /// The fewest rows that can be.
        least: u64,
    },
    /// More slots than places can name.
    #[error("a cache of {rows} rows is too large: it can hold {most} rows at most", most = ROWS_END - 1)]
    TooLarge {
        /// The rows that it was to hold.
        rows: u32,
    },
    /// The stride is smaller than a row.
    #[error("slots of {stride} bytes are too small for rows of {row_bytes} bytes")]
    Stride {
        /// Bytes from one slot to the next.
        stride: usize,
        /// Bytes of a row.
        row_bytes: usize,
    },
}

impl Shape {
    /// A store of at most `rows` rows in `shards` shards alike, of `row_bytes` bytes each, `stride` bytes apart.
    ///
    /// # Errors
    /// If a shard would have fewer than two sets, there are more slots than places can name, or a row is longer than a stride.
    pub fn new(
        rows: u32,
        shards: u32,
        row_bytes: usize,
        stride: usize,
    ) -> Result<Shape, ShapeError> {
        let least = 2 * WAYS as u64 * u64::from(shards.max(1));
        if shards == 0 || u64::from(rows) < least {
            return Err(ShapeError::TooSmall {
                rows,
                shards,
                least,
            });
        }
        if rows >= ROWS_END {
            return Err(ShapeError::TooLarge { rows });
        }
        if row_bytes == 0 || stride < row_bytes {
            return Err(ShapeError::Stride { stride, row_bytes });
        }
        Ok(Shape {
            shards,
            shard_sets: rows / WAYS as u32 / shards,
            row_bytes,
            stride,
        })
    }

    /// Shards, each with a writer.
    pub fn shards(&self) -> u32 {
        self.shards
    }

    /// Sets of a shard.
    pub fn shard_sets(&self) -> u32 {
        self.shard_sets
    }

    /// Sets of all shards.
    pub fn sets(&self) -> u32 {
        self.shards * self.shard_sets
    }

    /// Slots of all sets.
    pub fn slots(&self) -> u32 {
        self.sets() * WAYS as u32
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Bytes from one slot to the next.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Bytes of memory for all of it: the slots, and six bytes a slot besides.
    pub fn bytes(&self) -> usize {
        self.metas_at() + 2 * self.slots() as usize
    }

    fn tags_at(&self) -> usize {
        (self.slots() as usize * self.stride).next_multiple_of(LINE_BYTES)
    }

    fn metas_at(&self) -> usize {
        self.tags_at() + 4 * self.slots() as usize
    }
}

/// The memory. Who may touch what when is said in [`super`].
#[derive(Debug)]
pub(super) struct Memory {
    arena: SharedArena,
    shape: Shape,
}

impl Memory {
    /// Memory with empty slots only.
    pub(super) fn allocate(shape: Shape, policy: HugePages) -> Result<Memory, ArenaError> {
        let mut arena = Arena::allocate(shape.bytes(), policy)?;
        arena.as_mut_slice()[shape.tags_at()..shape.metas_at()].fill(0xff);
        let memory = Memory {
            arena: arena.share(),
            shape,
        };
        assert_eq!(memory.tag(0).load(Ordering::Relaxed), EMPTY);
        Ok(memory)
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(super) fn backing(&self) -> &Backing {
        self.arena.backing()
    }

    /// The tags of all sets.
    pub(super) fn lines(&self) -> &[Line] {
        let slots = self.shape.slots() as usize;
        let tags = self.arena.window().words_u32(self.shape.tags_at(), slots);
        tags.as_chunks().0
    }

    /// The tags of a set.
    pub(super) fn line(&self, set: u32) -> &Line {
        &self.lines()[set as usize]
    }

    /// The tag of a slot.
    pub(super) fn tag(&self, slot: u32) -> &AtomicU32 {
        &self.line(slot / WAYS as u32)[slot as usize % WAYS]
    }

    /// The meta words of all slots.
    pub(super) fn metas(&self) -> &[AtomicU16] {
        let slots = self.shape.slots() as usize;
        self.arena.window().words_u16(self.shape.metas_at(), slots)
    }

    /// The meta word of a slot.
    pub(super) fn meta(&self, slot: u32) -> &AtomicU16 {
        &self.metas()[slot as usize]
    }

    /// The slots, for kernels.
    pub(super) fn slots(&self) -> ReadWindow<'_> {
        let bytes = self.shape.slots() as usize * self.shape.stride;
        let slots = self.arena.window().part(0, bytes);
        slots.expect("slots lie in the arena").to_read()
    }

    /// Writes the row of a slot, which nobody reads.
    pub(super) fn write_row(&self, slot: u32, row: &[u8]) {
        assert!(slot < self.shape.slots(), "slot {slot}");
        assert_eq!(row.len(), self.shape.row_bytes, "bytes of a row");
        let at = slot as usize * self.shape.stride;
        self.arena.window().write(at, row);
    }

    /// Copies the row of a slot, which nobody writes.
    pub(super) fn read_row(&self, slot: u32, out: &mut [u8]) {
        assert!(slot < self.shape.slots(), "slot {slot}");
        assert_eq!(out.len(), self.shape.row_bytes, "bytes of a row");
        let at = slot as usize * self.shape.stride;
        self.arena.window().read(at, out);
    }

    /// Asks for the lines of a slot's row.
    pub(super) fn prefetch_row(&self, slot: u32) {
        let row = self
            .slots()
            .as_ptr()
            .wrapping_add(slot as usize * self.shape.stride);
        let last = row.addr() + self.shape.row_bytes - 1;
        let lines = last / LINE_BYTES - row.addr() / LINE_BYTES;
        for line in 0..=lines {
            prefetch_line(row.wrapping_add(line * LINE_BYTES));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_that_cannot_be_are_refused() {
        let shape = |rows, shards, row_bytes, stride| Shape::new(rows, shards, row_bytes, stride);
        let small = |rows, shards, least| {
            Err(ShapeError::TooSmall {
                rows,
                shards,
                least,
            })
        };
        assert_eq!(shape(31, 1, 8, 8), small(31, 1, 32));
        assert_eq!(shape(100, 4, 8, 8), small(100, 4, 128));
        assert_eq!(shape(100, 0, 8, 8), small(100, 0, 32));
        assert_eq!(
            shape(1 << 31, 1, 8, 8),
            Err(ShapeError::TooLarge { rows: 1 << 31 })
        );
        for (row_bytes, stride) in [(0, 8), (9, 8)] {
            let error = ShapeError::Stride { stride, row_bytes };
            assert_eq!(shape(100, 1, row_bytes, stride), Err(error));
        }
        let good = shape(1000, 3, 7, 9).unwrap();
        assert_eq!(
            (good.shard_sets(), good.sets(), good.slots()),
            (20, 60, 960)
        );
        assert_eq!(good.bytes(), 960 * 9 + 960 * 6);
    }

    #[test]
    fn slots_and_words_do_not_overlap() {
        let shape = Shape::new(100, 1, 7, 9).unwrap();
        let memory = Memory::allocate(shape, HugePages::Off).unwrap();
        for slot in 0..shape.slots() {
            assert_eq!(memory.tag(slot).load(Ordering::Relaxed), EMPTY);
            memory.write_row(slot, &[slot as u8; 7]);
            memory.tag(slot).store(slot, Ordering::Relaxed);
            memory.meta(slot).store(slot as u16, Ordering::Relaxed);
        }
        for slot in 0..shape.slots() {
            let mut row = [0; 7];
            memory.read_row(slot, &mut row);
            assert_eq!(row, [slot as u8; 7]);
            assert_eq!(memory.tag(slot).load(Ordering::Relaxed), slot);
            assert_eq!(memory.meta(slot).load(Ordering::Relaxed), slot as u16);
        }
    }
}
