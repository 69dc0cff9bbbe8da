//! S3-FIFO (Yang et al., SOSP 2023): a small queue for newcomers, a main queue for what was used there twice, and a ghost of
//! the rows that the small queue gave up, which come back into the main queue.

use super::Cache;
use super::lists::Lists;

const SMALL: u8 = 0;
const MAIN: u8 = 1;
const GHOST: u8 = 2;

/// Uses in the small queue that lift a row into the main queue.
const USES_TO_MAIN: u8 = 2;
/// More uses than that count for no more rounds of the main queue.
const ROUNDS_MAX: u8 = 3;

pub(super) struct S3Fifo {
    capacity: usize,
    main: usize,
    ghost: usize,
    rows: Lists,
    uses: Vec<u8>,
    /// Whether a row was ever evicted: until then, what the small queue has no room for goes into the main queue.
    evicted: bool,
}

impl S3Fifo {
    /// A tenth is the small queue; the ghost has as many entries as the main queue.
    pub(super) fn new(capacity: usize, rows: usize) -> S3Fifo {
        let main = capacity - capacity / 10;
        S3Fifo {
            capacity,
            main,
            ghost: capacity * 9 / 10,
            rows: Lists::new(3, rows),
            uses: vec![0; rows],
            evicted: false,
        }
    }

    fn evict(&mut self) {
        self.evicted = true;
        if self.rows.len(MAIN) <= self.main {
            while let Some(row) = self.rows.pop(SMALL) {
                let uses = std::mem::take(&mut self.uses[row as usize]);
                if uses < USES_TO_MAIN {
                    return self.remember(row);
                }
                self.rows.push(MAIN, row);
            }
        }
        while let Some(row) = self.rows.pop(MAIN) {
            let uses = &mut self.uses[row as usize];
            if *uses == 0 {
                return;
            }
            *uses = (*uses).min(ROUNDS_MAX) - 1;
            self.rows.push(MAIN, row);
        }
    }

    fn remember(&mut self, row: u32) {
        if self.rows.len(GHOST) == self.ghost {
            self.rows.pop(GHOST);
        }
        self.rows.push(GHOST, row);
    }
}

impl Cache for S3Fifo {
    fn access(&mut self, row: u32) -> bool {
        let uses = &mut self.uses[row as usize];
        let queue = match self.rows.list_of(row) {
            Some(SMALL | MAIN) => {
                *uses = uses.saturating_add(1);
                return true;
            }
            Some(_) => MAIN,
            None => SMALL,
        };
        self.rows.remove(row);
        while self.rows.len(SMALL) + self.rows.len(MAIN) >= self.capacity {
            self.evict();
        }
        let overflows = !self.evicted && self.rows.len(SMALL) == self.capacity / 10;
        let queue = if overflows { MAIN } else { queue };
        self.rows.push(queue, row);
        false
    }
}
