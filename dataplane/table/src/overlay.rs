//! Rows of a table in memory that become others while they are read.
//!
//! Behind its rows a table that can change has room for some more, the *overlay*, which kernels reach as rows of higher numbers. So many
//! rows at a time become others, in six steps of one thread:
//!
//! 1. The new rows are written to the overlay, which nobody reads.
//! 2. They are *shown* as stand-ins of the old ones ([`stand_ins`]): whoever looks from now on reads them.
//! 3. Every reader passes a point at which it has nothing in hand. So nobody reads the old rows any more.
//! 4. The new rows are written over the old ones.
//! 5. The stand-ins are hidden: whoever looks from now on reads the rows, which say the same.
//! 6. Every reader passes such a point again. So nobody reads the overlay any more.
//!
//! No row is seen torn, since a row is written only when no reader can name it. None goes back: step 2 is one store, and a reader that has seen
//! it, or what another reader told it that had, finds the stand-ins, and afterwards rows with the same bytes. Readers wait for nothing.
//! What readers are, and how they pass such a point, the caller knows.

mod stand_ins;
mod sync;

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use rowmill_arena::{LiveArena, ReadWindow};

use crate::manifest::TableInfo;
pub use stand_ins::StandIns;

/// Most rows that become others at a time: what all tables of a model have as overlays stays some MiB, and a worker's look at a row's
/// stand-in stays in its nearest cache.
const MOST: u64 = 1024;
/// Fewest.
const LEAST: u64 = 16;
/// Else a row in so many: 1.6 % of the table's memory.
const SHARE: u64 = 64;
/// One more than the highest number that kernels take as a row's.
const NUMBERS_END: u64 = 1 << 31;

/// What a table needs behind what is loaded of it, to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// The number of the overlay's first row. Rows lie one behind the other from the table's start, whatever is between.
    pub(crate) first: u32,
    /// Rows of the overlay.
    pub(crate) slots: u32,
}

impl Room {
    /// For a table of which `loaded` bytes are in memory from its first row on; none where it has too many rows.
    pub(crate) fn behind(info: &TableInfo, loaded: u64) -> Option<Room> {
        let first = loaded.div_ceil(info.stride as u64);
        let slots = (info.stored_rows() / SHARE).clamp(LEAST, MOST);
        (first + slots < NUMBERS_END).then_some(Room {
            first: first as u32,
            slots: slots as u32,
        })
    }

    /// Bytes from the table's first row to the overlay's end.
    pub(crate) fn end(self, stride: usize) -> u64 {
        u64::from(self.first + self.slots) * stride as u64
    }

    /// The overlay, counted from the table's first row.
    fn range(self, stride: usize) -> Range<usize> {
        self.first as usize * stride..(self.first + self.slots) as usize * stride
    }

    /// What stays open to be written of the table that lies from `start` on in an arena: its rows and the overlay.
    pub(crate) fn open(self, info: &TableInfo, start: usize) -> [Range<usize>; 2] {
        let rows = 0..info.row_region_bytes() as usize;
        [rows, self.range(info.stride)].map(|range| start + range.start..start + range.end)
    }
}

/// A table's overlay.
#[derive(Debug)]
pub(crate) struct Overlay {
    arena: Arc<LiveArena>,
    /// The table's rows, which change, in the arena.
    rows: Range<usize>,
    stride: usize,
    room: Room,
    stand_ins: StandIns,
    /// Held by the one who changes rows.
    changing: Mutex<()>,
}

impl Overlay {
    /// Of the table whose rows lie there; they and the overlay are open in the arena.
    pub(crate) fn new(
        arena: &Arc<LiveArena>,
        rows: Range<usize>,
        stride: usize,
        room: Room,
    ) -> Overlay {
        Overlay {
            arena: Arc::clone(arena),
            rows,
            stride,
            room,
            stand_ins: StandIns::new(room.slots),
            changing: Mutex::new(()),
        }
    }

    /// One more than the highest number of a row.
    pub(crate) fn numbers(&self) -> u32 {
        self.room.first + self.room.slots
    }

    /// Rows and overlay, and whatever is between them.
    pub(crate) fn window(&self) -> ReadWindow<'_> {
        let start = self.rows.start;
        let end = start + self.room.end(self.stride) as usize;
        self.arena.to_read(start..end)
    }

    /// Puts stand-ins in the place of rows that have one now.
    #[inline]
    pub(crate) fn stand_in(&self, rows: &mut [u32]) {
        if self.stand_ins.are_shown() {
            self.stand_ins.put(rows);
        }
    }

    /// Rows become others: see the module's text.
    pub(crate) fn change(&self, rows: &[u32], bytes: &[u8], pass: &mut dyn FnMut()) {
        let _alone = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let (stride, most) = (self.stride, self.room.slots as usize);
        assert_eq!(bytes.len(), rows.len() * stride, "bytes of all rows");
        let overlay = self.room.range(stride);
        let (from, to) = (
            self.rows.start + overlay.start,
            self.rows.start + overlay.end,
        );
        let overlay = self.arena.window(from..to);
        let own = self.arena.window(self.rows.clone());
        for (rows, bytes) in rows.chunks(most).zip(bytes.chunks(most * stride)) {
            overlay.write(0, bytes);
            self.stand_ins.fill(rows, self.room.first);
            self.stand_ins.show(rows.len() as u32);
            pass();
            for (&row, bytes) in rows.iter().zip(bytes.chunks_exact(stride)) {
                own.write(row as usize * stride, bytes);
            }
            self.stand_ins.hide();
            pass();
        }
    }
}
