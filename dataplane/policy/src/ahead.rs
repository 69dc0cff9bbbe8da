//! Rows that come though no lookup has missed them: those of a list, and those that are prefetched.

use super::{Newcomer, Policy, Word};

impl Policy {
    /// As [`newcomer`](Policy::newcomer), of a row that comes in advance, which is no use of it. Before the policy was there it was used
    /// about so often, or 0 where that isn't known; what the policy knows of it itself counts for more. It comes as one that was used now, since
    /// it was last that it is worth something.
    pub fn in_advance(&mut self, row: u32, uses: u32) -> Newcomer {
        let now = self.now();
        let word = match self.ghost.take(row) {
            Some(known) => Word::of(known.halved(now, self.halved_ago()).class(), now),
            None if uses > 0 => Word::of_uses(uses, now),
            None => return self.unknown(row),
        };
        let rank = self.rank(word, now);
        Newcomer { row, word, rank }
    }
}
