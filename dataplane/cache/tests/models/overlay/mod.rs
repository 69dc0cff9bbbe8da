//! Rows of a resident table that become others (`overlay.rs` of the crate `table`): its file of orderings, and rows that must not be read and
//! written at once.

#[path = "../../../../table/src/overlay/stand_ins.rs"]
pub(crate) mod stand_ins;

use std::sync::Mutex;

use loom::cell::UnsafeCell;

use crate::store::sync;
use stand_ins::StandIns;

/// A row's value. Loom is told of every access, and finds those that no order keeps apart.
pub(crate) struct Row {
    access: UnsafeCell<()>,
    value: u32,
}

impl Row {
    pub(crate) fn new() -> Mutex<Row> {
        Mutex::new(Row {
            access: UnsafeCell::new(()),
            value: 0,
        })
    }

    pub(crate) fn write(&mut self, value: u32) {
        self.access.with_mut(|_| ());
        self.value = value;
    }

    pub(crate) fn read(&self) -> u32 {
        self.access.with(|_| ());
        self.value
    }
}

/// A table of one row, with an overlay of one.
pub(crate) struct Table {
    stand_ins: StandIns,
    /// Locked for no longer than an access is noted, in which loom runs no other thread.
    rows: [Mutex<Row>; 2],
}

/// The row, and the number of the overlay's first.
const ROW: u32 = 0;
const FIRST: u32 = 1;

impl Table {
    pub(crate) fn new() -> Table {
        Table {
            stand_ins: StandIns::new(1),
            rows: [Row::new(), Row::new()],
        }
    }

    fn write(&self, row: u32, value: u32) {
        let row = &self.rows[row as usize];
        row.lock().expect("no panic").write(value);
    }

    /// A reader's, in a turn.
    pub(crate) fn read(&self) -> u32 {
        let mut found = [ROW];
        if self.stand_ins.are_shown() {
            self.stand_ins.put(&mut found);
        }
        let row = &self.rows[found[0] as usize];
        row.lock().expect("no panic").read()
    }

    /// The steps of `Overlay::change`.
    pub(crate) fn change(&self, value: u32, mut pass: impl FnMut()) {
        self.write(FIRST, value);
        self.stand_ins.fill(&[ROW], FIRST);
        self.stand_ins.show(1);
        pass();
        self.write(ROW, value);
        self.stand_ins.hide();
        pass();
    }
}
