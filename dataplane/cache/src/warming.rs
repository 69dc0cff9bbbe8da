//! Loads rows that were warm before, those of a worker's own shards, bit by bit.

use std::sync::Arc;

/// Rows that are looked at in one poll at most: hashing one takes some nanoseconds.
const ROWS: usize = 1024;

/// Rows of a table, by its number, those first that are wanted most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmRows {
    /// The table's number, one of a cached table.
    pub table: usize,
    /// Rows that it has.
    pub rows: Vec<u32>,
}

/// How far a worker has come.
#[derive(Debug)]
pub(crate) struct Warming {
    /// Until all are loaded.
    tables: Option<Arc<[WarmRows]>>,
    /// Which row of each table is next, and which table.
    positions: Vec<usize>,
    table: usize,
    /// Rows that are left.
    left: usize,
}

impl Warming {
    #[cfg(test)]
    fn new(tables: Arc<[WarmRows]>) -> Warming {
        let mut warming = Warming::with_room(tables.len());
        warming.begin(tables);
        warming
    }

    /// Nothing to load, and room for lists of so many tables.
    pub(crate) fn with_room(tables: usize) -> Warming {
        Warming {
            tables: None,
            positions: Vec::with_capacity(tables),
            table: 0,
            left: 0,
        }
    }

    /// These instead of what is left. No memory is taken if there is room for as many tables, and none is freed while another thread
    /// has the list of before; nor where all are loaded, when the list is let go of.
    pub(crate) fn begin(&mut self, tables: Arc<[WarmRows]>) {
        self.positions.clear();
        self.positions.resize(tables.len(), 0);
        self.left = tables.iter().map(|table| table.rows.len()).sum();
        self.table = 0;
        self.tables = Some(tables).filter(|_| self.left > 0);
    }

    pub(crate) fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Gives the next rows to `take`, the first of all tables, then the second ones, until it says of each table that there is no room for more.
    pub(crate) fn go_on(&mut self, mut take: impl FnMut(usize, u32) -> bool) {
        let Some(tables) = self.tables.as_deref() else {
            return;
        };
        let mut refused = 0;
        for _ in 0..ROWS {
            if self.left == 0 || refused == tables.len() {
                break;
            }
            let WarmRows { table, rows } = &tables[self.table];
            let position = &mut self.positions[self.table];
            match rows.get(*position) {
                Some(&row) if take(*table, row) => {
                    (*position, refused) = (*position + 1, 0);
                    self.left -= 1;
                }
                // What there is no room for is its table's next again.
                _ => refused += 1,
            }
            self.table = (self.table + 1) % tables.len();
        }
        if self.is_done() {
            self.tables = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            warming.go_on(|table, row| {
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
        warming.begin([rows(0, &[1, 2]), rows(2, &[3])].into());
        warming.go_on(|_, row| row == 1);
        let next: Arc<[WarmRows]> = [rows(2, &[5, 6])].into();
        let counted = allocation_counter::measure(|| warming.begin(Arc::clone(&next)));
        assert_eq!(counted.count_total, 0);
        let mut taken = vec![];
        warming.go_on(|table, row| {
            taken.push((table, row));
            true
        });
        assert_eq!(taken, [(2, 5), (2, 6)]);
        assert!(warming.is_done());
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
            warming.go_on(|table, row| {
                taken.extend((table != hung).then_some((table, row)));
                table != hung
            });
        }
        assert_eq!(taken, [(2, 5), (2, 6), (2, 7), (0, 1), (0, 2)]);
        assert!(warming.is_done());
    }

    #[test]
    fn a_poll_looks_at_so_many_rows_at_most() {
        let rows = WarmRows {
            table: 0,
            rows: (0..3000).collect(),
        };
        let mut warming = Warming::new(Arc::new([rows]));
        for expected in [ROWS, ROWS, 3000 - 2 * ROWS] {
            let mut seen = 0;
            warming.go_on(|_, _| {
                seen += 1;
                true
            });
            assert_eq!(seen, expected);
        }
        assert!(warming.is_done());
    }
}
