//! Shares of the arena that cached tables have: how many rows so many bytes have room for, and how large a share may become.

use rowmill_cache::store::{ROWS_END, Shape, ShapeError};
use rowmill_table::TableInfo;

use crate::plan::bytes_text;

/// Bytes that a slot takes beside its row: a tag of two, the row's number of four and a meta word of two.
const BESIDE: u64 = 8;
/// Slots that a table may have for each of its rows: rows are spread by chance, so that some find no slot of theirs free where there is
/// one for each.
const SLOTS_PER_ROW: u64 = 2;

/// A listed table's share of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// As it is, or as it will be when the table is cached.
    pub shape: Shape,
    /// What it is about to be, where it is on the way to another size.
    pub wanted: Option<Shape>,
    /// The largest that it may become.
    pub most: Shape,
}

impl Share {
    /// The fewest bytes that it can be of.
    pub fn least_bytes(&self) -> u64 {
        2 * u64::from(set_rows(self.most)) * slot_bytes(self.most.stride())
    }

    /// A share that is to be of so many bytes.
    ///
    /// # Errors
    /// A sentence that says why it can't be.
    pub fn of(&self, bytes: u64) -> Result<Shape, String> {
        let (most, slot) = (self.most, slot_bytes(self.most.stride()));
        let sets = bytes / slot / u64::from(set_rows(most));
        if sets < 2 {
            return Err(format!(
                "a share of {bytes} bytes is too small: write at least {}",
                self.least_bytes()
            ));
        }
        match u32::try_from(sets) {
            Ok(sets) if sets <= most.shard_sets() => Ok(most.over(sets)),
            _ => Err(format!(
                "a share of {bytes} bytes is too large: write at most {}, which is all of cache.arena_bytes or twice what all of its \
                 rows take",
                most.bytes()
            )),
        }
    }
}

/// Rows of as many sets as there are shards.
fn set_rows(shape: Shape) -> u32 {
    shape.slots() / shape.shard_sets()
}

/// Bytes that a row of such a stride takes of a share, with what is beside it.
pub(crate) fn slot_bytes(stride: usize) -> u64 {
    stride as u64 + BESIDE
}

/// How many rows so many bytes have room for, in a shard for each worker.
pub(crate) fn shape(info: &TableInfo, bytes: u64, workers: u32) -> Result<Shape, String> {
    let slot = slot_bytes(info.stride);
    let rows = u32::try_from(bytes / slot).unwrap_or(u32::MAX);
    let shape = Shape::new(rows, workers, info.stride, info.stride);
    let shape = shape.map(|shape| shape.of_table(info.stored_rows()));
    shape.map_err(|error| match error {
        ShapeError::TooSmall { least, .. } => {
            format!("write at least {}, room for {least} rows", least * slot)
        }
        error => format!("{error}; write less"),
    })
}

/// Rows of it that deltas may change at most: all, and of another generation, which may have more, as many again.
pub(crate) fn most_patched(info: &TableInfo) -> u32 {
    let rows = info.stored_rows().saturating_mul(2);
    rows.min(u64::from(ROWS_END - 1)) as u32
}

/// The largest that a share may become: all that cached tables have together, or as much as the table can make use of. One that may not
/// change is as it is.
pub(crate) fn most(info: &TableInfo, shape: Shape, arena_bytes: u64, may_change: bool) -> Shape {
    if !may_change {
        return shape;
    }
    let useful = info.stored_rows().saturating_mul(SLOTS_PER_ROW);
    let slots = useful.min(arena_bytes / slot_bytes(info.stride));
    let slots = slots.min(u64::from(ROWS_END - 1));
    let sets = (slots / u64::from(set_rows(shape))) as u32;
    // A store that has as many as it may ever have can't give any back.
    let least = shape.shard_sets() + 1;
    let is_addressable = u64::from(least) * u64::from(set_rows(shape)) < u64::from(ROWS_END);
    shape.over(sets.max(if is_addressable {
        least
    } else {
        shape.shard_sets()
    }))
}

/// Why a table's share can't be of this size beside those of others, if it can't.
///
/// # Errors
/// A sentence.
pub(crate) fn fits(bytes: u64, others: u64, arena_bytes: u64) -> Result<(), String> {
    let all = others + bytes;
    if all <= arena_bytes {
        return Ok(());
    }
    Err(format!(
        "cached tables would have {} together, and cache.arena_bytes gives them {}, {} bytes less: make another table's share smaller \
         first (`rowmill place NAME cached --cache-bytes N`), or write at least {all} there and restart",
        bytes_text(all),
        bytes_text(arena_bytes),
        all - arena_bytes
    ))
}
