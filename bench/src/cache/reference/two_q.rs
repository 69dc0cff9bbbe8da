//! 2Q (Johnson and Shasha, VLDB 1994), the full version: newcomers wait in a queue, hits there change nothing; who is
//! asked for again after having left it goes to an LRU list.

use super::Cache;
use super::lists::Lists;

const IN: u8 = 0;
const MAIN: u8 = 1;
const OUT: u8 = 2;

pub(super) struct TwoQ {
    capacity: usize,
    rows: Lists,
}

impl TwoQ {
    pub(super) fn new(capacity: usize, rows: usize) -> TwoQ {
        TwoQ {
            capacity,
            rows: Lists::new(3, rows),
        }
    }

    /// The queue of newcomers has a quarter of the rows, what it remembers is half as many as there are rows.
    fn evict(&mut self) {
        if self.rows.len(IN) <= self.capacity / 4 && self.rows.pop(MAIN).is_some() {
            return;
        }
        let row = self.rows.pop(IN).expect("the cache is full");
        if self.rows.len(OUT) == self.capacity / 2 {
            self.rows.pop(OUT);
        }
        self.rows.push(OUT, row);
    }
}

impl Cache for TwoQ {
    fn access(&mut self, row: u32) -> bool {
        let queue = match self.rows.list_of(row) {
            Some(IN) => return true,
            Some(MAIN) => {
                self.rows.place(MAIN, row);
                return true;
            }
            Some(_) => MAIN,
            None => IN,
        };
        self.rows.remove(row);
        if self.rows.len(IN) + self.rows.len(MAIN) == self.capacity {
            self.evict();
        }
        self.rows.push(queue, row);
        false
    }
}
