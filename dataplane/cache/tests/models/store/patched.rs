//! Rows of a cached table that are patched (`store/patches.rs`), in slots that must not be read and written at once.

use std::sync::Mutex;

use super::patches::{Lacking, Patches};
use crate::overlay::Row;

/// The row that is looked up.
pub(crate) const ROW: u32 = 0;

/// A cached table's row that was patched, in three slots of which one is written again.
pub(crate) struct Patched {
    patches: Patches,
    slots: [Mutex<Row>; SLOTS as usize],
}

/// The first slot, and how many there are; each level has one row more than the one before, so that rows go from one to the next.
const SLOT: u32 = 7;
const SLOTS: u32 = 3;
const MISSED: u32 = u32::MAX;

impl Patched {
    pub(crate) fn new() -> Patched {
        Patched {
            patches: Patches::new(SLOT, SLOTS - 1, 1),
            slots: [Row::new(), Row::new(), Row::new()],
        }
    }

    /// A reader's, in a turn: 0 where the row was not patched.
    pub(crate) fn read(&self) -> u32 {
        let mut places = [MISSED];
        if self.patches.put(&[ROW], &mut places, MISSED) == 0 {
            return 0;
        }
        let row = &self.slots[(places[0] - SLOT) as usize];
        row.lock().expect("no panic").read()
    }

    /// The rows become others, of these values.
    pub(crate) fn change(&self, rows: &[u32], values: &[u32], mut pass: impl FnMut()) {
        let mut make = |slots| (slots <= SLOTS).then_some(()).ok_or(Lacking::Places);
        let mut write = |position: usize, slot: u32| {
            let row = &self.slots[(slot - SLOT) as usize];
            row.lock().expect("no panic").write(values[position]);
        };
        let changed = self.patches.change(rows, &mut make, &mut write, &mut pass);
        changed.expect("there is room");
    }
}
