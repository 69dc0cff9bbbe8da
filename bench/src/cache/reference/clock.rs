//! First in, first out, with one more round for each row that was used since it was last looked at.

use super::Cache;
use super::lists::Lists;

pub(super) struct Clock {
    capacity: usize,
    rows: Lists,
    used: Vec<bool>,
}

impl Clock {
    pub(super) fn new(capacity: usize, rows: usize) -> Clock {
        Clock {
            capacity,
            rows: Lists::new(1, rows),
            used: vec![false; rows],
        }
    }
}

impl Cache for Clock {
    fn access(&mut self, row: u32) -> bool {
        if self.rows.list_of(row).is_some() {
            self.used[row as usize] = true;
            return true;
        }
        if self.rows.len(0) == self.capacity {
            while let Some(oldest) = self.rows.pop(0)
                && std::mem::take(&mut self.used[oldest as usize])
            {
                self.rows.push(0, oldest);
            }
        }
        self.rows.push(0, row);
        false
    }
}
