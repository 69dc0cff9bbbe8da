//! Least recently used goes first.

use super::Cache;
use super::lists::Lists;

pub(super) struct Lru {
    capacity: usize,
    rows: Lists,
}

impl Lru {
    pub(super) fn new(capacity: usize, rows: usize) -> Lru {
        Lru {
            capacity,
            rows: Lists::new(1, rows),
        }
    }
}

impl Cache for Lru {
    fn access(&mut self, row: u32) -> bool {
        let hit = self.rows.list_of(row).is_some();
        if !hit && self.rows.len(0) == self.capacity {
            self.rows.pop(0);
        }
        self.rows.place(0, row);
        hit
    }
}
