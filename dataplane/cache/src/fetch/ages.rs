//! How long rows have waited, table by table.

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
    is_listed: bool,
}

/// Numbers of fetches, each in the list of its table at most. Nothing is allocated after [`Ages::new`].
#[derive(Debug)]
pub(super) struct Ages {
    links: Box<[Link]>,
    /// The first and the last of each table.
    ends: Box<[(u32, u32)]>,
}

impl Ages {
    /// For fetches with numbers below `fetches`, of tables with numbers below `tables`.
    pub(super) fn new(fetches: u32, tables: usize) -> Ages {
        let link = Link {
            before: NONE,
            after: NONE,
            is_listed: false,
        };
        Ages {
            links: vec![link; fetches as usize].into_boxed_slice(),
            ends: vec![(NONE, NONE); tables].into_boxed_slice(),
        }
    }

    /// Tables that there are.
    pub(super) fn tables(&self) -> usize {
        self.ends.len()
    }

    /// The one of a table that came first.
    pub(super) fn first(&self, table: usize) -> Option<u32> {
        let (first, _) = self.ends[table];
        (first != NONE).then_some(first)
    }

    /// One waits from now on, as the last of its table, whether it did before or not.
    pub(super) fn push(&mut self, table: usize, fetch: u32) {
        self.remove(table, fetch);
        let (first, last) = &mut self.ends[table];
        self.links[fetch as usize] = Link {
            before: *last,
            after: NONE,
            is_listed: true,
        };
        match *last {
            NONE => *first = fetch,
            last => self.links[last as usize].after = fetch,
        }
        *last = fetch;
    }

    /// One waits no more, if it did.
    pub(super) fn remove(&mut self, table: usize, fetch: u32) {
        let link = &mut self.links[fetch as usize];
        if !std::mem::replace(&mut link.is_listed, false) {
            return;
        }
        let (first, last) = &mut self.ends[table];
        let Link { before, after, .. } = *link;
        match before {
            NONE => *first = after,
            before => self.links[before as usize].after = after,
        }
        match after {
            NONE => *last = before,
            after => self.links[after as usize].before = before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_each_table_is_the_one_that_waits_longest() {
        let mut ages = Ages::new(8, 2);
        for fetch in 0..6 {
            ages.push(fetch as usize % 2, fetch);
        }
        ages.push(0, 0);
        ages.remove(0, 2);
        ages.remove(0, 2);
        ages.remove(1, 5);
        let mut all = |table| {
            let mut all = vec![];
            while let Some(first) = ages.first(table) {
                ages.remove(table, first);
                all.push(first);
            }
            all
        };
        assert_eq!(all(0), [4, 0]);
        assert_eq!(all(1), [1, 3]);
    }
}
