//! Which rows the requests in hand, and those that wait, will ask for, and when.

use super::draw::mixed;

/// Stands for no lookup.
const NEVER: u32 = u32::MAX;

/// An entry of the table of rows: the row, whose lookup comes next, and in which loading it was written.
#[derive(Clone, Copy, Debug)]
struct Entry {
    row: u32,
    next: u32,
    loading: u32,
}

/// The lookups that are known to come, as one sequence.
#[derive(Clone, Debug)]
pub struct Lookahead {
    capacity: usize,
    /// A hash table of rows with linear probing, half full at most. What was not written in this loading is free.
    table: Vec<Entry>,
    loading: u32,
    /// For each lookup its row, and the next lookup of that.
    lookups: Vec<(u32, u32)>,
}

impl Lookahead {
    /// Room for so many lookups.
    ///
    /// # Panics
    /// If they are 2^30 or more.
    pub fn new(capacity: usize) -> Lookahead {
        assert!(capacity < 1 << 30, "{capacity} lookups");
        let free = Entry {
            row: 0,
            next: NEVER,
            loading: 0,
        };
        Lookahead {
            capacity,
            table: vec![free; (2 * capacity).next_power_of_two()],
            loading: 1,
            lookups: Vec::with_capacity(capacity),
        }
    }

    /// Forgets what it knew. These lookups come now, in this order; those that there is no room for are not known. Takes some
    /// nanoseconds a lookup, and nothing while they are done.
    pub fn load(&mut self, rows: impl Iterator<Item = u32>) {
        if self.loading == u32::MAX {
            self.table.iter_mut().for_each(|entry| entry.loading = 0);
            self.loading = 0;
        }
        self.loading += 1;
        self.lookups.clear();
        let known = rows.take(self.capacity).map(|row| (row, NEVER));
        self.lookups.extend(known);
        for at in (0..self.lookups.len()).rev() {
            let row = self.lookups[at].0;
            let loading = self.loading;
            let entry = self.entry(row);
            let next = if entry.loading == loading {
                entry.next
            } else {
                NEVER
            };
            *entry = Entry {
                row,
                next: at as u32,
                loading,
            };
            self.lookups[at].1 = next;
        }
    }

    /// The lookup at a place in the sequence is being done: its row's next use is another one. Lookups are done in order; places
    /// beyond those that are known change nothing.
    pub fn done(&mut self, at: usize) {
        if let Some(&(row, next)) = self.lookups.get(at) {
            self.entry(row).next = next;
        }
    }

    /// The place in the sequence of a row's next use, if one is known to come.
    pub fn next_use(&self, row: u32) -> Option<u32> {
        let entry = self.table[self.slot(row)];
        (entry.loading == self.loading && entry.next != NEVER).then_some(entry.next)
    }

    fn entry(&mut self, row: u32) -> &mut Entry {
        let slot = self.slot(row);
        &mut self.table[slot]
    }

    /// Where the row is in the table, or may be written.
    fn slot(&self, row: u32) -> usize {
        let mask = self.table.len() - 1;
        let mut slot = mixed(row.into()) as usize & mask;
        loop {
            let entry = &self.table[slot];
            if entry.loading != self.loading || entry.row == row {
                return slot;
            }
            slot = (slot + 1) & mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn next_uses_are_those_of_the_sequence(sequences in prop::collection::vec(prop::collection::vec(0..30u32, 0..80), 1..4)) {
            const CAPACITY: usize = 60;
            let mut lookahead = Lookahead::new(CAPACITY);
            for rows in sequences {
                lookahead.load(rows.iter().copied());
                let known = &rows[..rows.len().min(CAPACITY)];
                for done in 0..rows.len() {
                    lookahead.done(done);
                    for row in 0..31 {
                        let next = (done + 1..known.len()).find(|&at| known[at] == row);
                        prop_assert_eq!(lookahead.next_use(row), next.map(|at| at as u32));
                    }
                }
            }
        }
    }

    #[test]
    fn loadings_that_wrap_around_forget_all() {
        let mut lookahead = Lookahead::new(4);
        lookahead.load([1, 2].into_iter());
        lookahead.loading = u32::MAX;
        lookahead.load([3].into_iter());
        assert_eq!(
            [1, 2, 3].map(|row| lookahead.next_use(row)),
            [None, None, Some(0)]
        );
    }
}
