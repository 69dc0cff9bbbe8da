//! Which rows were used least recently, by coarse stamps in their meta words.

/// A clock that goes by rows that come in: a stamp is as coarse as a 64th of the time in which all slots are filled once. So ages
/// are told up to a thousand fillings, and a hit changes the word of a row seldom.
#[derive(Debug)]
pub(crate) struct Recency {
    /// Rows that come in from one tick to the next.
    every: u32,
    left: u32,
    now: u16,
}

impl Recency {
    /// For a store of so many slots.
    pub(crate) fn new(slots: u32) -> Recency {
        let every = (slots / 64).max(1);
        Recency {
            every,
            left: every,
            now: 0,
        }
    }

    /// A row comes in.
    pub(crate) fn admitted(&mut self) {
        self.left -= 1;
        if self.left == 0 {
            self.left = self.every;
            self.now = self.now.wrapping_add(1);
        }
    }

    /// The word of a row that is used now.
    pub(crate) fn now(&self) -> u16 {
        self.now
    }

    /// What becomes of the word of a row that is hit.
    #[inline]
    pub(crate) fn touched(&self, _word: u16) -> u16 {
        self.now
    }

    /// Ticks since a row was used.
    pub(crate) fn age(&self, word: u16) -> u16 {
        self.now.wrapping_sub(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_grow_by_rows_that_come_in() {
        let mut recency = Recency::new(128);
        let old = recency.now();
        assert_eq!(recency.age(old), 0);
        for _ in 0..128 {
            recency.admitted();
        }
        assert_eq!(recency.age(old), 64);
        assert_eq!(recency.age(recency.touched(old)), 0);
        for _ in 0..2 * 70_000 {
            recency.admitted();
        }
        assert_eq!(recency.age(recency.now()), 0);
    }
}
