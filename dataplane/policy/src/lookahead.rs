//! Which rows the requests in hand, and those that wait, will ask for, and when.

use super::draw::mixed;

/// An entry of the table of rows: the row, when it is looked up next, and in which filling that was written.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u64,
    next: u32,
    filling: u32,
}

/// The lookups that are known to come, of all tables, as one sequence.
#[derive(Clone, Debug)]
pub struct Lookahead {
    capacity: usize,
    /// A hash table of rows with linear probing, half full at most. What was not written in this filling is free.
    entries: Vec<Entry>,
    filling: u32,
    known: usize,
}

impl Lookahead {
    /// Room for so many lookups.
    ///
    /// # Panics
    /// If they are 2^30 or more.
    pub fn new(capacity: usize) -> Lookahead {
        assert!(capacity < 1 << 30, "{capacity} lookups");
        let free = Entry {
            key: 0,
            next: 0,
            filling: 0,
        };
        Lookahead {
            capacity,
            entries: vec![free; (2 * capacity).next_power_of_two()],
            filling: 1,
            known: 0,
        }
    }

    /// How many lookups are known.
    pub fn known(&self) -> usize {
        self.known
    }

    /// Forgets them all.
    pub fn clear(&mut self) {
        if self.filling == u32::MAX {
            self.entries.iter_mut().for_each(|entry| entry.filling = 0);
            self.filling = 0;
        }
        self.filling += 1;
        self.known = 0;
    }

    /// These lookups of a table come after those that are known, in this order. Those that there is no room for are not known. Takes
    /// some nanoseconds a lookup.
    pub fn extend(&mut self, table: u32, rows: &[u32]) {
        let fitting = rows.len().min(self.capacity - self.known);
        for &row in &rows[..fitting] {
            let key = key(table, row);
            let slot = self.slot(key);
            let entry = &mut self.entries[slot];
            if entry.filling != self.filling {
                *entry = Entry {
                    key,
                    next: self.known as u32,
                    filling: self.filling,
                };
            }
            self.known += 1;
        }
    }

    /// The place in the sequence of a row's next use, if one is known to come.
    pub fn next_use(&self, table: u32, row: u32) -> Option<u32> {
        let entry = self.entries[self.slot(key(table, row))];
        (entry.filling == self.filling).then_some(entry.next)
    }

    /// Where the row is among the entries, or may be written.
    fn slot(&self, key: u64) -> usize {
        let mask = self.entries.len() - 1;
        let mut slot = mixed(key) as usize & mask;
        loop {
            let entry = &self.entries[slot];
            if entry.filling != self.filling || entry.key == key {
                return slot;
            }
            slot = (slot + 1) & mask;
        }
    }
}

fn key(table: u32, row: u32) -> u64 {
    u64::from(table) << 32 | u64::from(row)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn next_uses_are_those_of_the_sequence(
            sequences in prop::collection::vec(prop::collection::vec((0..3u32, prop::collection::vec(0..20u32, 0..30)), 0..5), 1..4),
        ) {
            const CAPACITY: usize = 60;
            let mut lookahead = Lookahead::new(CAPACITY);
            for parts in sequences {
                lookahead.clear();
                parts.iter().for_each(|(table, rows)| lookahead.extend(*table, rows));
                let all = parts.iter().flat_map(|(table, rows)| rows.iter().map(|&row| (*table, row)));
                let all: Vec<_> = all.take(CAPACITY).collect();
                prop_assert_eq!(lookahead.known(), all.len());
                for one in (0..3).flat_map(|table| (0..21).map(move |row| (table, row))) {
                    let next = all.iter().position(|&known| known == one);
                    prop_assert_eq!(lookahead.next_use(one.0, one.1), next.map(|at| at as u32));
                }
            }
        }
    }

    #[test]
    fn fillings_that_wrap_around_forget_all() {
        let mut lookahead = Lookahead::new(4);
        lookahead.extend(0, &[1, 2]);
        lookahead.filling = u32::MAX;
        lookahead.extend(0, &[4]);
        lookahead.clear();
        lookahead.extend(0, &[3]);
        assert_eq!(
            [1, 2, 3, 4].map(|row| lookahead.next_use(0, row)),
            [None, None, Some(0), None]
        );
    }
}
