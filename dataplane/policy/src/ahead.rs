//! Rows that come though no lookup has missed them: those of a list, and those that are prefetched.

use super::{Newcomer, Policy, Word};

impl Policy {
    /// A row that is away was used about so often before the policy was there, and lately. What is known of it anyway counts for more.
    pub fn remember(&mut self, row: u32, uses: u32) {
        let now = self.now();
        let known = self.ghost.take(row);
        self.evicted(row, known.unwrap_or_else(|| Word::of_uses(uses, now)));
    }

    /// As [`newcomer`](Policy::newcomer), of a row that comes in advance, which is no use of it.
    pub fn in_advance(&mut self, row: u32) -> Newcomer {
        let now = self.now();
        match self.ghost.take(row) {
            None => self.unknown(row),
            Some(known) => {
                let word = known.halved(now, self.halved_ago());
                let rank = self.rank(word, now);
                Newcomer { row, word, rank }
            }
        }
    }
}
