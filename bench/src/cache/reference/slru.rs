//! Segmented LRU: a hit lifts a row by one segment, a full segment lets its least recently used row sink by one.

use super::Cache;
use super::lists::Lists;

pub(super) struct Slru {
    capacity: usize,
    /// Rows a segment, from the one that evicts on.
    limits: Vec<usize>,
    rows: Lists,
}

impl Slru {
    /// Four segments of one size, as libCacheSim has them.
    pub(super) fn new(capacity: usize, rows: usize) -> Slru {
        Slru::with_segments(vec![capacity / 4; 4], capacity, rows)
    }

    /// Segments of those sizes.
    pub(super) fn with_segments(limits: Vec<usize>, capacity: usize, rows: usize) -> Slru {
        Slru {
            capacity,
            rows: Lists::new(limits.len() as u8, rows),
            limits,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.segments().map(|s| self.rows.len(s)).sum()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.capacity
    }

    /// The row that goes next.
    pub(super) fn victim(&self) -> Option<u32> {
        self.segments().find_map(|s| self.rows.oldest(s))
    }

    pub(super) fn remove(&mut self, row: u32) {
        self.rows.remove(row);
    }

    /// A hit's effect; false where the row is missing.
    pub(super) fn touch(&mut self, row: u32) -> bool {
        let Some(segment) = self.rows.list_of(row) else {
            return false;
        };
        let top = self.limits.len() as u8 - 1;
        let to = top.min(segment + 1);
        self.rows.place(to, row);
        for full in (1..=to).rev() {
            while self.rows.len(full) > self.limits[usize::from(full)] {
                let sinks = self.rows.pop(full).expect("it is full");
                self.rows.push(full - 1, sinks);
            }
        }
        true
    }

    /// Takes a row in, at the lowest segment that has room.
    pub(super) fn insert(&mut self, row: u32) {
        while self.is_full() {
            let victim = self.victim().expect("the cache is full");
            self.rows.remove(victim);
        }
        let room = |&s: &u8| self.rows.len(s) < self.limits[usize::from(s)];
        let segment = self.segments().find(room).unwrap_or(0);
        self.rows.push(segment, row);
    }

    fn segments(&self) -> std::ops::Range<u8> {
        0..self.limits.len() as u8
    }
}

impl Cache for Slru {
    fn access(&mut self, row: u32) -> bool {
        let hit = self.touch(row);
        if !hit {
            self.insert(row);
        }
        hit
    }
}
