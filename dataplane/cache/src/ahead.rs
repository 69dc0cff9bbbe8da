//! What is told of lookups that come next, so that rows which they ask for are not evicted shortly before.

use crate::policy::Lookahead;

/// Lookups that are known at most: two batches of 64 bags of 80 ids, and as many ids as a bag may have.
const MOST: usize = 16_384;
/// Lookups that may be told for each fetch that is begun. One takes some 5 ns: at most half of what a read of a disk costs a worker.
const PER_FETCH: usize = 512;

/// The lookups that come next, as far as they were told.
#[derive(Debug)]
pub(crate) struct Ahead {
    lookahead: Lookahead,
    /// Lookups that were told and that no fetches stand for.
    debt: usize,
}

impl Ahead {
    /// `none` where nothing is ever fetched.
    pub(crate) fn new(none: bool) -> Ahead {
        Ahead {
            lookahead: Lookahead::new(if none { 0 } else { MOST }),
            debt: 0,
        }
    }

    /// Whether fetches were begun since lookups were told last, and as many as that had cost.
    pub(crate) fn is_paid(&self) -> bool {
        self.debt == 0
    }

    /// Forgets what it was told.
    pub(crate) fn clear(&mut self) {
        self.lookahead.clear();
    }

    /// What comes next.
    pub(crate) fn extend(&mut self, table: usize, rows: &[u32]) {
        let before = self.lookahead.known();
        self.lookahead.extend(table as u32, rows);
        self.debt += self.lookahead.known() - before;
    }

    /// Whether no more can be known.
    pub(crate) fn is_full(&self) -> bool {
        self.lookahead.known() == MOST
    }

    /// A fetch is begun.
    pub(crate) fn begun(&mut self) {
        self.debt = self.debt.saturating_sub(PER_FETCH);
    }

    /// When a row is looked up next, if that is known.
    pub(crate) fn next_use(&self, table: u32, row: u32) -> Option<u32> {
        self.lookahead.next_use(table, row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_is_paid_by_fetches() {
        let mut ahead = Ahead::new(false);
        assert!(ahead.is_paid());
        ahead.extend(1, &[3; PER_FETCH]);
        ahead.extend(1, &[4]);
        ahead.begun();
        assert!(!ahead.is_paid());
        ahead.begun();
        assert!(ahead.is_paid() && !ahead.is_full());
        assert_eq!(ahead.next_use(1, 4), Some(PER_FETCH as u32));
        ahead.clear();
        assert_eq!(ahead.next_use(1, 4), None);
        ahead.extend(1, &[3; MOST + 1]);
        assert!(ahead.is_full());
        assert_eq!(ahead.debt, MOST);
    }
}
