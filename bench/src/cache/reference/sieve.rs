//! SIEVE (Zhang et al., NSDI 2024): a hand goes from the oldest row to the newest, over and over, forgives each row that
//! was used and evicts the first that was not. Rows that stay are not moved.

use super::Cache;
use super::lists::Lists;

pub(super) struct Sieve {
    capacity: usize,
    rows: Lists,
    used: Vec<bool>,
    hand: Option<u32>,
}

impl Sieve {
    pub(super) fn new(capacity: usize, rows: usize) -> Sieve {
        Sieve {
            capacity,
            rows: Lists::new(1, rows),
            used: vec![false; rows],
            hand: None,
        }
    }

    fn evict(&mut self) {
        let mut at = self
            .hand
            .or(self.rows.oldest(0))
            .expect("the cache is full");
        while std::mem::take(&mut self.used[at as usize]) {
            at = self.rows.newer(at).or(self.rows.oldest(0)).expect("full");
        }
        self.hand = self.rows.newer(at);
        self.rows.remove(at);
    }
}

impl Cache for Sieve {
    fn access(&mut self, row: u32) -> bool {
        if self.rows.list_of(row).is_some() {
            self.used[row as usize] = true;
            return true;
        }
        if self.rows.len(0) == self.capacity {
            self.evict();
        }
        self.rows.push(0, row);
        false
    }
}
