//! The memory of a store: slots of rows, the tags by which they are found, the rows' numbers, and the meta words of the policy.
//!
//! ```text
//! | slots: sets x 16 x stride | tags: sets x 16 x u8 or u16 | numbers: sets x 16 x u32 | meta words: sets x 16 x u16 |
//! ```
//!
//! All of it is one arena, or, where the number of sets may change, areas of one that have room for the most there may be. Slot
//! `s` belongs to set `s / 16`. Behind the slots of sets there may be an area of others, for rows that are [patched](super::patches).

use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, Ordering};

use rowmill_arena::{
    Arena, ArenaError, Backing, HugePages, ReadWindow, Reserve, SharedArena, Window, prefetch_line,
};

use super::key::{NO_KEY, Tag, Width};
use super::spread::{ROWS_END, Spread};

/// Slots of a set: the tags of as many are half a cache line or a quarter, and the numbers of their rows a whole one.
pub const WAYS: usize = 16;
/// The number of a slot that holds no row and belongs to nobody.
pub(super) const EMPTY: u32 = u32::MAX;
/// The number of a slot that holds no row that can be found, and belongs to the writer: its row was taken away, or comes.
pub(super) const TAKEN: u32 = u32::MAX - 1;

/// The tags of a set, which lie in one line.
pub(super) type SetTags<T> = [T; WAYS];

const LINE_BYTES: usize = 64;
const _: () = assert!(LINE_BYTES.is_multiple_of(size_of::<SetTags<AtomicU16>>()));
const _: () = assert!(LINE_BYTES.is_multiple_of(size_of::<SetTags<AtomicU8>>()));

/// The tags of all sets that there may be.
#[derive(Clone, Copy, Debug)]
pub(super) enum AllTags<'m> {
    /// Of one byte each.
    One(&'m [SetTags<AtomicU8>]),
    /// Of two.
    Two(&'m [SetTags<AtomicU16>]),
}

/// How large a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    shards: u32,
    shard_sets: u32,
    row_bytes: usize,
    stride: usize,
    table_rows: u32,
    width: Width,
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
            table_rows: ROWS_END,
            width: Width::Two,
        })
    }

    /// The same for a table of no more than so many rows. It says how rows are [spread](super::Spread), and how fast they are found: where
    /// a store has room for one in 512 of them, tags tell them apart, and where it has room for many, [tags of one byte](Width::of_table) do.
    ///
    /// # Panics
    /// If so many can't be numbered.
    pub fn of_table(self, table_rows: u64) -> Shape {
        let table_rows = u32::try_from(table_rows).unwrap_or(u32::MAX);
        assert!(table_rows <= ROWS_END, "a table of {table_rows} rows");
        let width = Width::of_table(table_rows, self.sets());
        Shape {
            table_rows,
            width,
            ..self
        }
    }

    /// The same with tags of another length. Any finds all rows: where tags don't tell them apart, numbers are looked at.
    pub fn with_tags(self, width: Width) -> Shape {
        Shape { width, ..self }
    }

    /// How its rows are spread, by a seed that is for no client to know.
    pub fn spread(&self, seed: u64) -> Spread {
        Spread::new(
            seed,
            self.table_rows,
            self.shards,
            self.shard_sets,
            self.width,
        )
    }

    /// How long tags are, whatever size it is given later.
    pub fn width(&self) -> Width {
        self.width
    }

    /// The most rows that the table has.
    pub fn table_rows(&self) -> u32 {
        self.table_rows
    }

    /// The same with another number of sets a shard.
    ///
    /// # Panics
    /// If these are fewer than two, or more than places can name.
    pub fn over(self, shard_sets: u32) -> Shape {
        let slots = u64::from(self.shards) * u64::from(shard_sets) * WAYS as u64;
        assert!(
            shard_sets > 1 && slots < u64::from(ROWS_END),
            "{shard_sets} sets a shard"
        );
        Shape { shard_sets, ..self }
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

    /// Bytes of memory for all of it: the slots, and eight bytes a slot besides.
    pub fn bytes(&self) -> usize {
        let [.., metas] = self.parts();
        let [.., metas_at] = self.words_at();
        metas_at + metas
    }

    /// Bytes of slots, of tags, of numbers and of meta words: areas of their own in a store that may be given another size. Tags have two bytes each,
    /// of which those of one byte leave half unused: so as many bytes have room for as many rows, however long tags are.
    pub fn parts(&self) -> [usize; 4] {
        let slots = self.slots() as usize;
        [self.stride, 2, 4, 2].map(|bytes| bytes * slots)
    }

    /// Where tags, numbers and meta words begin, of which each part is full lines.
    fn words_at(&self) -> [usize; 3] {
        let [slots, tags, numbers, _] = self.parts();
        let tags_at = slots.next_multiple_of(LINE_BYTES);
        let numbers_at = (tags_at + tags).next_multiple_of(LINE_BYTES);
        [tags_at, numbers_at, numbers_at + numbers]
    }
}

/// Areas of slots, tags, numbers and meta words, in this order, and of slots for rows that are patched.
const AREAS: [usize; 4] = [0, 2, 3, 4];
const PATCHED: usize = 1;

/// The memory. Who may touch what when is said in [`super`].
#[derive(Debug)]
pub(super) struct Memory {
    pages: Pages,
    /// Slots for rows that are patched; none where none can be.
    patched: Range<u32>,
    /// The largest that there is memory or room for.
    most: Shape,
    /// Where tags, numbers and meta words begin.
    words_at: [usize; 3],
}

#[derive(Debug)]
enum Pages {
    Fixed(SharedArena),
    Growing(Reserve),
}

impl Memory {
    /// Memory with empty slots only, and room for `most` sets a shard and, as far as places can name them, so many `patched` rows.
    pub(super) fn allocate(
        shape: Shape,
        most: u32,
        patched: u32,
        policy: HugePages,
    ) -> Result<Memory, ArenaError> {
        let most = shape.over(most);
        let memory = if most == shape && patched == 0 {
            let arena = Arena::allocate(shape.bytes(), policy)?;
            Memory {
                pages: Pages::Fixed(arena.share()),
                patched: 0..0,
                most,
                words_at: shape.words_at(),
            }
        } else {
            let [all, now] = [most.parts(), shape.parts()];
            let mut areas = [(0, 0); 5];
            for (part, area) in AREAS.into_iter().enumerate() {
                areas[area] = (all[part], now[part]);
            }
            // The first of them is the first whole slot there. An area has addresses.
            areas[PATCHED].0 = (patched as usize + 1) * most.stride;
            let reserve = Reserve::new(&areas, policy)?;
            let first = reserve.start(PATCHED).div_ceil(most.stride);
            let first = u32::try_from(first).unwrap_or(ROWS_END).min(ROWS_END);
            Memory {
                patched: first..first + patched.min(ROWS_END - first),
                most,
                words_at: [1, 2, 3].map(|part| reserve.start(AREAS[part])),
                pages: Pages::Growing(reserve),
            }
        };
        memory.empty(0..shape.slots());
        Ok(memory)
    }

    /// Makes memory for so many sets a shard, which are more than there are, with empty slots. Where there is none nothing is done.
    pub(super) fn grow(&self, from: u32, to: u32) -> Result<(), ArenaError> {
        let [from, to] = [from, to].map(|shard_sets| self.most.over(shard_sets));
        let (former, parts) = (from.parts(), to.parts());
        if let Pages::Growing(reserve) = &self.pages {
            for (part, (area, bytes)) in AREAS.into_iter().zip(parts).enumerate() {
                if let Err(error) = reserve.resize(area, bytes) {
                    for (area, bytes) in AREAS.into_iter().zip(former).take(part) {
                        reserve.resize(area, bytes)?;
                    }
                    return Err(error);
                }
            }
        }
        self.empty(from.slots()..to.slots());
        Ok(())
    }

    /// Gives back what is behind so many sets a shard, which nobody looks at.
    pub(super) fn shrink(&self, to: u32) -> Result<(), ArenaError> {
        if let Pages::Growing(reserve) = &self.pages {
            let parts = self.most.over(to).parts();
            for (area, bytes) in AREAS.into_iter().zip(parts) {
                reserve.resize(area, bytes)?;
            }
        }
        Ok(())
    }

    /// Slots for rows that are patched, and may ever be.
    pub(super) fn patched(&self) -> &Range<u32> {
        &self.patched
    }

    /// Makes memory for the first so many of them.
    pub(super) fn grow_patched(&self, slots: u32) -> Result<(), ArenaError> {
        let Pages::Growing(reserve) = &self.pages else {
            return Ok(());
        };
        let bytes = self.offset(self.patched.start + slots) - reserve.start(PATCHED);
        if bytes > reserve.present(PATCHED) {
            reserve.resize(PATCHED, bytes)?;
        }
        Ok(())
    }

    /// Bytes that have pages.
    pub(super) fn present(&self) -> usize {
        match &self.pages {
            Pages::Fixed(_) => self.most.bytes(),
            Pages::Growing(reserve) => (0..5).map(|area| reserve.present(area)).sum(),
        }
    }

    fn empty(&self, slots: Range<u32>) {
        let slots = slots.start as usize..slots.end as usize;
        match self.tags() {
            AllTags::One(tags) => empty(&tags.as_flattened()[slots.clone()]),
            AllTags::Two(tags) => empty(&tags.as_flattened()[slots.clone()]),
        }
        let numbers = self.numbers()[slots].iter();
        numbers.for_each(|number| number.store(EMPTY, Ordering::Relaxed));
    }

    /// The largest shape that there is memory or room for.
    pub(super) fn most(&self) -> &Shape {
        &self.most
    }

    pub(super) fn backing(&self) -> &Backing {
        match &self.pages {
            Pages::Fixed(arena) => arena.backing(),
            Pages::Growing(reserve) => reserve.backing(),
        }
    }

    fn window(&self) -> Window<'_> {
        match &self.pages {
            Pages::Fixed(arena) => arena.window(),
            Pages::Growing(reserve) => reserve.window(),
        }
    }

    /// The tags of all sets that there may be.
    #[inline]
    pub(super) fn tags(&self) -> AllTags<'_> {
        let (at, slots) = (self.words_at[0], self.most.slots() as usize);
        match self.most.width {
            Width::One => AllTags::One(self.window().words_u8(at, slots).as_chunks().0),
            Width::Two => AllTags::Two(self.window().words_u16(at, slots).as_chunks().0),
        }
    }

    /// What a slot's row is found by: its [key](super::key).
    pub(super) fn key(&self, slot: u32, order: Ordering) -> u32 {
        match self.tags() {
            AllTags::One(tags) => tags.as_flattened()[slot as usize].key(order),
            AllTags::Two(tags) => tags.as_flattened()[slot as usize].key(order),
        }
    }

    /// Makes it another.
    pub(super) fn set_key(&self, slot: u32, key: u32, order: Ordering) {
        match self.tags() {
            AllTags::One(tags) => tags.as_flattened()[slot as usize].set_key(key, order),
            AllTags::Two(tags) => tags.as_flattened()[slot as usize].set_key(key, order),
        }
    }

    /// What all slots hold: the numbers of rows, [`EMPTY`] or [`TAKEN`].
    pub(super) fn numbers(&self) -> &[AtomicU32] {
        let slots = self.most.slots() as usize;
        self.window().words_u32(self.words_at[1], slots)
    }

    /// What a slot holds.
    pub(super) fn number(&self, slot: u32) -> &AtomicU32 {
        &self.numbers()[slot as usize]
    }

    /// The meta words of all slots.
    pub(super) fn metas(&self) -> &[AtomicU16] {
        let slots = self.most.slots() as usize;
        self.window().words_u16(self.words_at[2], slots)
    }

    /// The meta word of a slot.
    pub(super) fn meta(&self, slot: u32) -> &AtomicU16 {
        &self.metas()[slot as usize]
    }

    /// The slots of sets and, behind them, those of rows that are patched, for kernels.
    pub(super) fn slots(&self) -> ReadWindow<'_> {
        let slots = self.window().part(0, self.offset(self.places()));
        slots.expect("slots lie in the arena").to_read()
    }

    /// One more than the highest number of a slot.
    pub(super) fn places(&self) -> u32 {
        match self.patched.is_empty() {
            true => self.most.slots(),
            false => self.patched.end,
        }
    }

    /// Where a slot begins.
    fn offset(&self, slot: u32) -> usize {
        slot as usize * self.most.stride
    }

    /// The same of one that there is.
    fn row_at(&self, slot: u32) -> usize {
        let is_there = slot < self.most.slots() || self.patched.contains(&slot);
        assert!(is_there, "slot {slot}");
        self.offset(slot)
    }

    /// Writes the row of a slot, which nobody reads.
    pub(super) fn write_row(&self, slot: u32, row: &[u8]) {
        assert_eq!(row.len(), self.most.row_bytes, "bytes of a row");
        self.window().write(self.row_at(slot), row);
    }

    /// Copies the row of a slot, which nobody writes.
    pub(super) fn read_row(&self, slot: u32, out: &mut [u8]) {
        assert_eq!(out.len(), self.most.row_bytes, "bytes of a row");
        self.window().read(self.row_at(slot), out);
    }

    /// Copies the row of a slot, which nobody writes, to one that nobody reads.
    pub(super) fn copy_row(&self, from: u32, to: u32) {
        let [from, to] = [from, to].map(|slot| self.row_at(slot));
        let row = self.window().part(from, self.most.row_bytes);
        let row = row.expect("slots lie in the arena").to_read();
        row.copy_to(&self.window(), to);
    }

    /// Asks for the lines of a slot's row.
    pub(super) fn prefetch_row(&self, slot: u32) {
        let row = self
            .slots()
            .as_ptr()
            .wrapping_add(slot as usize * self.most.stride);
        let last = row.addr() + self.most.row_bytes - 1;
        let lines = last / LINE_BYTES - row.addr() / LINE_BYTES;
        for line in 0..=lines {
            prefetch_line(row.wrapping_add(line * LINE_BYTES));
        }
    }
}

/// Says of slots that none holds a row that can be found.
fn empty(tags: &[impl Tag]) {
    tags.iter()
        .for_each(|tag| tag.set_key(NO_KEY, Ordering::Relaxed));
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
        assert_eq!(good.bytes(), 960 * 9 + 960 * 8);
    }

    #[test]
    fn slots_and_words_do_not_overlap() {
        let shape = Shape::new(350, 1, 7, 9).unwrap();
        assert_do_not_overlap(shape, |slot| u32::from(!slot as u16));
        let shape = shape.of_table(1000).with_tags(Width::One);
        assert_eq!(shape.sets() % 4, 1);
        assert_do_not_overlap(shape, |slot| u32::from(!slot as u8));
    }

    fn assert_do_not_overlap(shape: Shape, key: impl Fn(u32) -> u32) {
        let memory = Memory::allocate(shape, shape.shard_sets(), 0, HugePages::Off).unwrap();
        for slot in 0..shape.slots() {
            assert_eq!(memory.key(slot, Ordering::Relaxed), NO_KEY);
            assert_eq!(memory.number(slot).load(Ordering::Relaxed), EMPTY);
            memory.write_row(slot, &[slot as u8; 7]);
            memory.set_key(slot, key(slot), Ordering::Relaxed);
            memory.number(slot).store(slot, Ordering::Relaxed);
            memory.meta(slot).store(slot as u16, Ordering::Relaxed);
        }
        for slot in 0..shape.slots() {
            let mut row = [0; 7];
            memory.read_row(slot, &mut row);
            assert_eq!(row, [slot as u8; 7]);
            assert_eq!(memory.key(slot, Ordering::Relaxed), key(slot));
            assert_eq!(memory.number(slot).load(Ordering::Relaxed), slot);
            assert_eq!(memory.meta(slot).load(Ordering::Relaxed), slot as u16);
        }
    }

    #[test]
    fn what_is_new_is_empty_and_what_was_there_stays() {
        let shape = Shape::new(350, 1, 7, 9).unwrap();
        assert_stays(shape);
        assert_stays(shape.of_table(1000).with_tags(Width::One));
    }

    fn assert_stays(shape: Shape) {
        let memory = Memory::allocate(shape, 5000, 0, HugePages::Off).unwrap();
        let present = memory.present();
        let last = |shard_sets: u32| shard_sets * WAYS as u32 - 1;
        for _ in 0..2 {
            memory.set_key(last(21), 3, Ordering::Relaxed);
            memory.number(last(21)).store(5, Ordering::Relaxed);
            memory.grow(21, 5000).unwrap();
            assert!(memory.present() >= shape.over(5000).bytes());
            assert_eq!(memory.key(last(21), Ordering::Relaxed), 3);
            assert_eq!(memory.number(last(21)).load(Ordering::Relaxed), 5);
            for slot in last(21) + 1..=last(5000) {
                assert_eq!(memory.key(slot, Ordering::Relaxed), NO_KEY);
                assert_eq!(memory.number(slot).load(Ordering::Relaxed), EMPTY);
            }
            memory.write_row(last(5000), &[7; 7]);
            memory.set_key(last(5000), 9, Ordering::Relaxed);
            memory.number(last(5000)).store(9, Ordering::Relaxed);
            memory.shrink(21).unwrap();
            assert_eq!(memory.present(), present);
        }
    }
}
