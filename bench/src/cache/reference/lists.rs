//! Rows in lists, of which each row is in one at most: what every policy here is made of.

/// Stands for no row.
const NONE: u32 = u32::MAX;
/// Stands for no list.
const NOWHERE: u8 = u8::MAX;

/// The ends of a list.
#[derive(Clone)]
struct Ends {
    oldest: u32,
    newest: u32,
    len: usize,
}

/// A few lists over the rows of a table, each from its oldest entry to its newest.
pub(super) struct Lists {
    ends: Vec<Ends>,
    list_of: Vec<u8>,
    newer: Vec<u32>,
    older: Vec<u32>,
}

impl Lists {
    /// That many empty lists for a table of `rows`.
    pub(super) fn new(lists: u8, rows: usize) -> Lists {
        let empty = Ends {
            oldest: NONE,
            newest: NONE,
            len: 0,
        };
        Lists {
            ends: vec![empty; lists.into()],
            list_of: vec![NOWHERE; rows],
            newer: vec![NONE; rows],
            older: vec![NONE; rows],
        }
    }

    /// The list that a row is in.
    pub(super) fn list_of(&self, row: u32) -> Option<u8> {
        Some(self.list_of[row as usize]).filter(|&list| list != NOWHERE)
    }

    /// Rows in a list.
    pub(super) fn len(&self, list: u8) -> usize {
        self.ends[usize::from(list)].len
    }

    /// The oldest entry of a list.
    pub(super) fn oldest(&self, list: u8) -> Option<u32> {
        some(self.ends[usize::from(list)].oldest)
    }

    /// The next newer entry of the list that a row is in.
    pub(super) fn newer(&self, row: u32) -> Option<u32> {
        some(self.newer[row as usize])
    }

    /// Makes a row, which is in no list, the newest of one.
    pub(super) fn push(&mut self, list: u8, row: u32) {
        assert_eq!(self.list_of(row), None, "row {row} is in a list already");
        let ends = &mut self.ends[usize::from(list)];
        let before = std::mem::replace(&mut ends.newest, row);
        ends.len += 1;
        match before {
            NONE => ends.oldest = row,
            before => self.newer[before as usize] = row,
        }
        let at = row as usize;
        (self.list_of[at], self.older[at], self.newer[at]) = (list, before, NONE);
    }

    /// Takes a row out of its list; whether it was in one.
    pub(super) fn remove(&mut self, row: u32) -> bool {
        let at = row as usize;
        let Some(list) = self.list_of(row) else {
            return false;
        };
        let ends = &mut self.ends[usize::from(list)];
        ends.len -= 1;
        match self.older[at] {
            NONE => ends.oldest = self.newer[at],
            older => self.newer[older as usize] = self.newer[at],
        }
        match self.newer[at] {
            NONE => ends.newest = self.older[at],
            newer => self.older[newer as usize] = self.older[at],
        }
        self.list_of[at] = NOWHERE;
        true
    }

    /// Makes a row the newest of a list, wherever it was.
    pub(super) fn place(&mut self, list: u8, row: u32) {
        self.remove(row);
        self.push(list, row);
    }

    /// Takes the oldest entry out of a list.
    pub(super) fn pop(&mut self, list: u8) -> Option<u32> {
        let row = self.oldest(list)?;
        self.remove(row);
        Some(row)
    }
}

fn some(row: u32) -> Option<u32> {
    (row != NONE).then_some(row)
}
