//! First in, first out.

use super::Cache;
use super::lists::Lists;

pub(super) struct Fifo {
    capacity: usize,
    rows: Lists,
}

impl Fifo {
    pub(super) fn new(capacity: usize, rows: usize) -> Fifo {
        Fifo {
            capacity,
            rows: Lists::new(1, rows),
        }
    }
}

impl Cache for Fifo {
    fn access(&mut self, row: u32) -> bool {
        if self.rows.list_of(row).is_some() {
            return true;
        }
        if self.rows.len(0) == self.capacity {
            self.rows.pop(0);
        }
        self.rows.push(0, row);
        false
    }
}
