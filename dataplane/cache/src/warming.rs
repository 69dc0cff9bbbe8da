//! Loads rows that were warm before, those of a worker's own shards, bit by bit.

use core::ops::Range;
use std::sync::Arc;

/// Rows of other workers, of all lists, that are looked at in one poll at most: hashing one takes some nanoseconds, all together as many
/// microseconds.
pub(crate) const LOOKS: u32 = 1024;
/// A row of its own counts for as many: a worker looks for it in both sets of slots where it can be, and there again for an empty slot, which
/// makes up to 128 looks into sets in a poll. One takes 30 to 100 ns where the set comes from memory, all together some ten microseconds.
const OWN: u32 = 32;
/// Rows that are compared with those before them in one poll at most: some microseconds.
const AHEAD: usize = 4096;

/// What a worker makes of a row of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// It is another worker's, or its table is not cached: nothing was looked at.
    Passed,
    /// It was looked for; it is there, or on its way, or there is no slot for it.
    Looked,
    /// No more of its table can be on their way, so that it is the next again; nothing was looked at.
    Full,
}

/// Rows of a table, by its number, those first that are wanted most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmRows {
    /// The table's number, one of a cached table.
    pub table: usize,
    /// Rows that it has.
    pub rows: Vec<u32>,
}

impl WarmRows {
    /// How often rows of a list may have been used that were used alike, which have these places in it, where the last of all was used twice:
    /// popularity is taken to follow Zipf's law. The order is kept so, and rows that are not used as often are found out as any others.
    fn uses_at(places: Range<usize>, rows: usize) -> u32 {
        let middle = places.start.midpoint(places.end);
        (2 * rows / (middle + 1)).try_into().unwrap_or(u32::MAX)
    }

    /// The same of each row of a list: those were used alike that follow one another in the order of their numbers ([`Store::hot`](crate::store::Store::hot)).
    pub fn uses(rows: &[u32]) -> Vec<u32> {
        let mut uses = Vec::with_capacity(rows.len());
        for alike in rows.chunk_by(|row, next| row < next) {
            let until = uses.len() + alike.len();
            uses.resize(until, WarmRows::uses_at(uses.len()..until, rows.len()));
        }
        uses
    }
}

/// How far a worker has come with a table.
#[derive(Debug)]
struct List {
    /// What lists its rows, and at which place there.
    tables: Arc<[WarmRows]>,
    at: usize,
    /// The row that is next.
    position: usize,
    /// The places of rows that were used alike, to the last of which it has come, and whether there are no more of them.
    alike: Range<usize>,
    is_end: bool,
}

impl List {
    /// How often the next row may have been used; none yet where its like go on behind as many as may be looked at.
    fn uses(&mut self, left: &mut usize) -> Option<u32> {
        let rows = &self.tables[self.at].rows;
        if self.position == self.alike.end && self.is_end {
            (self.alike, self.is_end) = (self.position..self.position + 1, false);
        }
        while !self.is_end {
            let until = self.alike.end;
            self.is_end = until == rows.len() || rows[until] < rows[until - 1];
            if !self.is_end {
                *left = left.checked_sub(1)?;
                self.alike.end += 1;
            }
        }
        Some(WarmRows::uses_at(self.alike.clone(), rows.len()))
    }

    fn of(&self) -> &WarmRows {
        &self.tables[self.at]
    }
}

/// How far a worker has come.
#[derive(Debug)]
pub(crate) struct Warming {
    /// Of each table that is not loaded yet, in the order in which they came.
    lists: Vec<List>,
    /// Whose turn it is.
    next: usize,
}

impl Warming {
    #[cfg(test)]
    fn new(tables: Arc<[WarmRows]>) -> Warming {
        let mut warming = Warming::with_room(tables.len());
        warming.begin(&tables);
        warming
    }

    /// Nothing to load, and room for so many tables.
    pub(crate) fn with_room(tables: usize) -> Warming {
        Warming {
            lists: Vec::with_capacity(tables),
            next: 0,
        }
    }

    /// These instead of all that is left: no table twice. No memory is taken if there is room for as many tables, and none is freed while
    /// another thread has the lists of before; nor where a table is loaded, when its list is let go of.
    pub(crate) fn begin(&mut self, tables: &Arc<[WarmRows]>) {
        self.lists.clear();
        (0..tables.len()).for_each(|at| self.push(tables, at));
    }

    /// These beside what is left of other tables, and instead of what is left of the same. Of memory as [`Warming::begin`] says.
    pub(crate) fn add(&mut self, tables: &Arc<[WarmRows]>) {
        for (at, WarmRows { table, .. }) in tables.iter().enumerate() {
            self.forget(*table);
            self.push(tables, at);
        }
    }

    fn push(&mut self, tables: &Arc<[WarmRows]>, at: usize) {
        if !tables[at].rows.is_empty() {
            let tables = Arc::clone(tables);
            self.lists.push(List {
                tables,
                at,
                position: 0,
                alike: 0..1,
                is_end: false,
            });
        }
    }

    /// What is left of a table is not loaded any more.
    pub(crate) fn forget(&mut self, table: usize) {
        let is_of = |list: &List| list.of().table == table;
        if let Some(at) = self.lists.iter().position(is_of) {
            self.lists.remove(at);
            self.next -= usize::from(at < self.next);
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.lists.is_empty()
    }

    /// Gives the next rows to `take`, the first of all tables, then the second ones, until it says of each table that no more can be on their
    /// way, or as many were looked at as `left` says: what other lists have left of [`LOOKS`].
    /// `take` is told besides how often a row may have been used, for which no more than [`AHEAD`] rows are looked at.
    pub(crate) fn go_on(&mut self, left: &mut u32, mut take: impl FnMut(usize, u32, u32) -> Look) {
        let (mut full, mut ahead) = (0, AHEAD);
        while *left > 0 && full < self.lists.len() {
            // A list that was the last may have gone.
            if self.next >= self.lists.len() {
                self.next = 0;
            }
            let list = &mut self.lists[self.next];
            let Some(uses) = list.uses(&mut ahead) else {
                (full, self.next) = (full + 1, self.next + 1);
                continue;
            };
            let WarmRows { table, rows } = &list.tables[list.at];
            let look = take(*table, rows[list.position], uses);
            let cost = if look == Look::Looked { OWN } else { 1 };
            *left = left.saturating_sub(cost);
            if look == Look::Full {
                full += 1;
                self.next += 1;
                continue;
            }
            full = 0;
            list.position += 1;
            if list.position < rows.len() {
                self.next += 1;
            } else {
                self.lists.remove(self.next);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A poll: `take` says whether a row was taken.
    fn go_on(warming: &mut Warming, mut take: impl FnMut(usize, u32) -> bool) {
        warming.go_on(&mut LOOKS.clone(), |table, row, _| match take(table, row) {
            true => Look::Looked,
            false => Look::Full,
        });
    }

    #[test]
    fn the_first_rows_of_all_tables_come_first_and_none_is_left_out() {
        let rows = |table, rows: &[u32]| WarmRows {
            table,
            rows: rows.into(),
        };
        let tables = [rows(3, &[7, 8, 9]), rows(1, &[]), rows(0, &[4])];
        let mut warming = Warming::new(tables.into());
        let (mut taken, mut room) = (vec![], 1);
        while !warming.is_done() {
            go_on(&mut warming, |table, row| {
                let is_taken = room > 0;
                if is_taken {
                    taken.push((table, row));
                    room -= 1;
                }
                is_taken
            });
            room = 1;
        }
        assert_eq!(taken, [(3, 7), (0, 4), (3, 8), (3, 9)]);
        assert!(Warming::new(Arc::new([])).is_done());

        // Another list instead of one that is under way, without memory of its own.
        warming.begin(&[rows(0, &[1, 2]), rows(2, &[3])].into());
        go_on(&mut warming, |_, row| row == 1);
        let next: Arc<[WarmRows]> = [rows(2, &[5, 6])].into();
        let counted = allocation_counter::measure(|| warming.begin(&next));
        assert_eq!(counted.count_total, 0);
        let mut taken = vec![];
        go_on(&mut warming, |table, row| {
            taken.push((table, row));
            true
        });
        assert_eq!(taken, [(2, 5), (2, 6)]);
        assert!(warming.is_done());
    }

    #[test]
    fn lists_that_come_meanwhile_are_loaded_beside_the_first() {
        let rows = |table, rows: &[u32]| WarmRows {
            table,
            rows: rows.into(),
        };
        let take = |warming: &mut Warming, most: usize| {
            let mut taken = vec![];
            go_on(warming, |table, row| {
                let is_taken = taken.len() < most;
                taken.extend(is_taken.then_some((table, row)));
                is_taken
            });
            taken
        };
        let mut warming = Warming::with_room(3);
        warming.begin(&[rows(0, &[1, 2, 3]), rows(1, &[4, 5])].into());
        assert_eq!(take(&mut warming, 3), [(0, 1), (1, 4), (0, 2)]);
        // Another table's, and one that lists again a table that is under way: without memory of its own.
        let others: [Arc<[WarmRows]>; 2] = [[rows(2, &[6, 7])].into(), [rows(0, &[8, 9])].into()];
        let counted = allocation_counter::measure(|| others.iter().for_each(|o| warming.add(o)));
        assert_eq!(counted.count_total, 0);
        assert!(others.iter().all(|list| Arc::strong_count(list) == 2));
        let all = [(1, 5), (2, 6), (0, 8), (2, 7), (0, 9)];
        assert_eq!(take(&mut warming, 9), all);
        assert!(warming.is_done());
        // Each was let go of when it was loaded, and not before.
        assert!(others.iter().all(|list| Arc::strong_count(list) == 1));

        // What is left of a table that goes is not loaded, and all of the others is.
        for gone in 0..3 {
            let lists = [rows(0, &[1, 2, 3]), rows(1, &[4, 5]), rows(2, &[6])];
            let mut warming = Warming::new(lists.into());
            let mut taken = take(&mut warming, 2);
            warming.forget(gone);
            taken.extend(take(&mut warming, 9));
            taken.sort_unstable();
            let expected: &[_] = match gone {
                0 => &[(0, 1), (1, 4), (1, 5), (2, 6)],
                1 => &[(0, 1), (0, 2), (0, 3), (1, 4), (2, 6)],
                _ => &[(0, 1), (0, 2), (0, 3), (1, 4), (1, 5)],
            };
            assert_eq!(taken, expected, "without {gone}");
            assert!(warming.is_done());
        }
    }

    #[test]
    fn tables_that_there_is_no_room_for_keep_no_others_back() {
        let rows = |table, rows: &[u32]| WarmRows {
            table,
            rows: rows.into(),
        };
        let tables = [rows(0, &[1, 2]), rows(1, &[]), rows(2, &[5, 6, 7])];
        let mut warming = Warming::new(tables.into());
        let mut taken = vec![];
        for hung in [0, 2] {
            go_on(&mut warming, |table, row| {
                taken.extend((table != hung).then_some((table, row)));
                table != hung
            });
        }
        assert_eq!(taken, [(2, 5), (2, 6), (2, 7), (0, 1), (0, 2)]);
        assert!(warming.is_done());
    }

    #[test]
    fn rows_that_were_used_alike_have_as_many_uses() {
        let long = 3 * AHEAD as u32;
        let mut list = vec![7, 9, 3, 4, 5, 8, 1];
        list.extend(100..100 + long);
        let rows = list.len();
        // 7 and 9, then 3 to 8, then all others.
        let of = |from, until| WarmRows::uses_at(from..until, rows);
        let uses = WarmRows::uses(&list);
        assert_eq!(uses[..2], [of(0, 2); 2]);
        assert_eq!(uses[2..6], [of(2, 6); 4]);
        assert!(uses[6..].iter().all(|&all| all == of(6, rows)));
        assert!(of(0, 2) > of(2, 6) && of(2, 6) > of(6, rows) && of(6, rows) >= 2);
        // Step by step it is the same, however far they go on.
        let (table, mut found, mut polls) = (0, vec![], 0);
        let mut warming = Warming::new([WarmRows { table, rows: list }].into());
        while !warming.is_done() {
            warming.go_on(&mut 4096, |_, _, uses| {
                found.push(uses);
                Look::Passed
            });
            polls += 1;
        }
        assert_eq!(found, uses);
        assert!(polls >= 4, "{polls} polls");
    }

    #[test]
    fn a_poll_looks_at_so_many_rows_at_most() {
        let rows = WarmRows {
            table: 0,
            rows: (0..3000).collect(),
        };
        let polls = |look: fn(u32) -> Look| {
            let mut warming = Warming::new([rows.clone()].into());
            let mut seen = vec![];
            while !warming.is_done() {
                let mut count = 0;
                warming.go_on(&mut LOOKS.clone(), |_, row, _| {
                    count += 1;
                    look(row)
                });
                seen.push(count);
            }
            seen
        };
        assert_eq!(polls(|_| Look::Passed), [1024, 1024, 952]);
        // Of its own some thirty, with those of another list.
        let own = polls(|_| Look::Looked);
        assert_eq!(own.len(), 3000_usize.div_ceil(32));
        assert!(own.iter().all(|&rows| rows <= 32));
        let one_in_ten = polls(|row| match row % 10 {
            0 => Look::Looked,
            _ => Look::Passed,
        });
        assert!(one_in_ten.iter().all(|&rows| rows <= 1024 * 10 / 41 + 10));
        let mut left = 10;
        let mut warming = Warming::new([rows].into());
        warming.go_on(&mut left, |_, _, _| Look::Looked);
        warming.go_on(&mut left, |_, _, _| panic!("it was enough"));
        assert_eq!(left, 0);
    }
}
