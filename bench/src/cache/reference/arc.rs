//! ARC (Megiddo and Modha, FAST 2003): an LRU list of rows used once and one of rows used more, with a ghost each; a hit in
//! a ghost makes its list's share larger.

use super::Cache;
use super::lists::Lists;

const ONCE: u8 = 0;
const MORE: u8 = 1;
const GHOST_ONCE: u8 = 2;
const GHOST_MORE: u8 = 3;

pub(super) struct Arc {
    capacity: usize,
    rows: Lists,
    /// The share that the list of rows used once is to have: p of the paper.
    once: f64,
}

impl Arc {
    pub(super) fn new(capacity: usize, rows: usize) -> Arc {
        Arc {
            capacity,
            rows: Lists::new(4, rows),
            once: 0.0,
        }
    }

    /// REPLACE of the paper.
    fn replace(&mut self, for_ghost_more: bool) {
        let len = self.rows.len(ONCE) as f64;
        let over = len > self.once || (len == self.once && for_ghost_more);
        let once = (len > 0.0 && over) || self.rows.len(MORE) == 0;
        let (from, to) = if once {
            (ONCE, GHOST_ONCE)
        } else {
            (MORE, GHOST_MORE)
        };
        if let Some(row) = self.rows.pop(from) {
            self.rows.push(to, row);
        }
    }

    /// Case IV of the paper: the row is in no list.
    fn make_room(&mut self) {
        let lens = [ONCE, MORE, GHOST_ONCE, GHOST_MORE].map(|list| self.rows.len(list));
        if lens[0] + lens[2] == self.capacity {
            if lens[2] == 0 {
                self.rows.pop(ONCE);
                return;
            }
            self.rows.pop(GHOST_ONCE);
        } else if lens.iter().sum::<usize>() >= 2 * self.capacity {
            self.rows.pop(GHOST_MORE);
        }
        self.replace(false);
    }
}

impl Cache for Arc {
    fn access(&mut self, row: u32) -> bool {
        let list = self.rows.list_of(row);
        let lens = [GHOST_ONCE, GHOST_MORE].map(|list| self.rows.len(list) as f64);
        match list {
            Some(GHOST_ONCE) => {
                let more = (lens[1] / lens[0]).max(1.0);
                self.once = (self.once + more).min(self.capacity as f64);
            }
            Some(GHOST_MORE) => {
                let less = (lens[0] / lens[1]).max(1.0);
                self.once = (self.once - less).max(0.0);
            }
            _ => {}
        }
        let hit = matches!(list, Some(ONCE | MORE));
        let full = self.rows.len(ONCE) + self.rows.len(MORE) == self.capacity;
        self.rows.remove(row);
        if !hit && full {
            match list {
                None => self.make_room(),
                Some(ghost) => self.replace(ghost == GHOST_MORE),
            }
        }
        self.rows
            .push(if list.is_some() { MORE } else { ONCE }, row);
        hit
    }
}
