//! What is told of lookups that come next, so that rows which they ask for are not evicted shortly before.

use rowmill_policy::Lookahead;

/// Lookups that are known at most: two batches of 64 bags of 80 ids, and as many ids as a bag may have.
const MOST: usize = 16_384;
/// Lookups that may be told for each fetch that is begun. One takes some 5 ns: at most half of what a read of a disk costs a worker.
const PER_FETCH: usize = 512;

/// The lookups that come next, as far as they were told.
#[derive(Debug)]
pub(crate) struct Ahead {
    lookahead: Lookahead,
    /// Lookups that may be told for the fetches so far, less those that were told. What is saved goes up to [`MOST`]: bags that miss much
    /// pay for those that miss little.
    saved: isize,
}

impl Ahead {
    /// `none` where nothing is ever fetched.
    pub(crate) fn new(none: bool) -> Ahead {
        Ahead {
            lookahead: Lookahead::new(if none { 0 } else { MOST }),
            saved: 0,
        }
    }

    /// Whether as many fetches were begun as the lookups that were told have cost.
    pub(crate) fn is_paid(&self) -> bool {
        self.saved >= 0
    }

    /// Forgets what it was told.
    pub(crate) fn clear(&mut self) {
        self.lookahead.clear();
    }

    /// What comes next.
    pub(crate) fn extend(&mut self, table: usize, rows: &[u32]) {
        let before = self.lookahead.known();
        self.lookahead.extend(table as u32, rows);
        self.saved -= (self.lookahead.known() - before) as isize;
    }

    /// Whether no more can be known.
    pub(crate) fn is_full(&self) -> bool {
        self.lookahead.known() == MOST
    }

    /// A fetch is begun.
    pub(crate) fn begun(&mut self) {
        self.saved = (self.saved + PER_FETCH as isize).min(MOST as isize);
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
        // What was paid too much before counts, but no more than what can be told at once.
        let fetches_until_paid = |ahead: &mut Ahead| {
            let mut fetches = 0;
            while !ahead.is_paid() {
                ahead.begun();
                fetches += 1;
            }
            fetches
        };
        assert_eq!(fetches_until_paid(&mut ahead), MOST / PER_FETCH);
        (0..1000).for_each(|_| ahead.begun());
        ahead.clear();
        ahead.extend(1, &[3; MOST]);
        assert!(ahead.is_paid());
        ahead.clear();
        ahead.extend(1, &[3; MOST]);
        assert_eq!(fetches_until_paid(&mut ahead), MOST / PER_FETCH);
    }
}
