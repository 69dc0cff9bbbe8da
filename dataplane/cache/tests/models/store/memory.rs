//! The memory of a store: tags are atomics, and rows must not be read and written at once.

use std::sync::Mutex;

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU16;

use super::sync::{AtomicU32, Ordering};

/// Two ways a set, so that a way is a choice; more would be more steps and no more cases.
pub(crate) const WAYS: usize = 2;
pub(crate) const EMPTY: u32 = u32::MAX;
pub(crate) const TAKEN: u32 = u32::MAX - 1;
pub(crate) const ROWS_END: u32 = 1 << 31;
/// What is in the tags of memory that is not there.
const LOST: u32 = 1;

pub(crate) type Line = [AtomicU32; WAYS];

/// A row. Loom is told of every access, and finds those that no order keeps apart.
#[derive(Debug)]
struct Row {
    access: UnsafeCell<()>,
    bytes: [u8; 4],
}

#[derive(Debug)]
pub(crate) struct Memory {
    lines: Vec<Line>,
    metas: Vec<AtomicU16>,
    /// Locked for no longer than an access is noted, in which loom runs no other thread.
    rows: Vec<Mutex<Row>>,
}

impl Memory {
    /// Of so many sets, the first of which are empty. In the others' tags there is a row that is not there, as there may be where the kernel
    /// gave memory.
    pub(crate) fn new(sets: u32, empty: u32) -> Memory {
        let tag = |set| if set < empty { EMPTY } else { LOST };
        let line = |set| core::array::from_fn(|_| AtomicU32::new(tag(set)));
        let row = |_| {
            Mutex::new(Row {
                access: UnsafeCell::new(()),
                bytes: [0; 4],
            })
        };
        let slots = sets as usize * WAYS;
        Memory {
            lines: (0..sets).map(line).collect(),
            metas: (0..slots).map(|_| AtomicU16::new(0)).collect(),
            rows: (0..slots).map(row).collect(),
        }
    }

    /// Makes sets empty.
    pub(crate) fn empty(&self, sets: core::ops::Range<u32>) {
        for tag in self.lines[sets.start as usize..sets.end as usize]
            .iter()
            .flatten()
        {
            tag.store(EMPTY, Ordering::Relaxed);
        }
    }

    /// Gives the kernel what is behind so many sets.
    pub(crate) fn lose(&self, sets: u32) {
        for tag in self.lines[sets as usize..].iter().flatten() {
            tag.store(LOST, Ordering::Relaxed);
        }
    }

    /// Copies a row.
    pub(crate) fn copy_row(&self, from: u32, to: u32) {
        self.write_row(to, &self.row(from));
    }

    pub(crate) fn lines(&self) -> &[Line] {
        &self.lines
    }

    pub(crate) fn tag(&self, slot: u32) -> &AtomicU32 {
        &self.lines[slot as usize / WAYS][slot as usize % WAYS]
    }

    pub(crate) fn meta(&self, slot: u32) -> &AtomicU16 {
        &self.metas[slot as usize]
    }

    pub(crate) fn write_row(&self, slot: u32, row: &[u8]) {
        let mut place = self.rows[slot as usize].lock().expect("no access panicked");
        place.access.with_mut(|_| ());
        place.bytes.copy_from_slice(row);
    }

    pub(crate) fn read_row(&self, slot: u32, out: &mut [u8]) {
        out.copy_from_slice(&self.row(slot));
    }

    pub(crate) fn row(&self, slot: u32) -> [u8; 4] {
        let place = self.rows[slot as usize].lock().expect("no access panicked");
        place.access.with(|_| ());
        place.bytes
    }
}
