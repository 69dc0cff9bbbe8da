//! How much of what all tables share one of them may hold, so that a table whose file hangs leaves some for the others.
//!
//! These are the dynamic thresholds by which switches share a buffer among queues (A. K. Choudhury and E. L. Hahne, "Dynamic Queue Length
//! Thresholds for Shared-Memory Packet Switches", IEEE/ACM Transactions on Networking 6(2), 1998): a table may hold at most [`ALPHA`]
//! times what is free. Where k tables take all that they may, each holds `ALPHA * free` of `room = free * (1 + k * ALPHA)`. So nobody has
//! to know beforehand who will want how much, and none that holds something takes the last.
//!
//! **Why 8.** A table that is the only busy one of several is not to be slowed down: it gets 8/9 of the room, 113 reads of 128, which
//! keep a disk as busy as all would. What that leaves, 15 reads, is enough for another disk: at 100 us a read, 150,000 rows a
//! second. Half as much would cost a busy table a fifth of its reads; twice as much would leave others half of that. What a hung table holds
//! can't be taken from it, so tables that hang one after another take 8/9 of what is left each: after two there are 2 reads left, and the
//! last one is for a table that has none. Of a single table there is nobody to leave anything to: it may have all.

use crate::tier::FetchesFull;

/// How many times what is free a table may hold.
const ALPHA: u32 = 8;

/// Something of which there is so much, and how much of it each table holds.
#[derive(Debug)]
pub(crate) struct Quotas {
    held: Box<[u32]>,
    free: u32,
    /// Tables that share it.
    sharers: usize,
}

impl Quotas {
    /// So much of it, for those tables of which `tables` says so, by their numbers.
    pub(crate) fn new(room: u32, tables: &[bool]) -> Quotas {
        Quotas {
            held: vec![0; tables.len()].into_boxed_slice(),
            free: room,
            sharers: tables.iter().filter(|&&shares| shares).count(),
        }
    }

    /// What nobody holds.
    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// What a table holds.
    pub(crate) fn held(&self, table: usize) -> u32 {
        self.held[table]
    }

    /// Whether a table has to leave so much to others, if there is so much. One that holds nothing may have all that is free: what is
    /// larger than its part could otherwise never be had.
    pub(crate) fn is_over(&self, table: usize, more: u32) -> bool {
        let (held, left) = (self.held[table], self.free.saturating_sub(more));
        held > 0 && self.sharers > 1 && held + more > left.saturating_mul(ALPHA)
    }

    /// Whether a table may take so much more.
    ///
    /// # Errors
    /// [`FetchesFull::ForAll`] where there is not so much; [`FetchesFull::ForTable`] where it has to leave that to others.
    pub(crate) fn lets(&self, table: usize, more: u32) -> Result<(), FetchesFull> {
        if self.free < more {
            return Err(FetchesFull::ForAll);
        }
        match self.is_over(table, more) {
            false => Ok(()),
            true => Err(FetchesFull::ForTable),
        }
    }

    /// A table takes so much.
    ///
    /// # Panics
    /// If there is not so much.
    pub(crate) fn take(&mut self, table: usize, more: u32) {
        let left = self.free.checked_sub(more);
        self.free = left.expect("what is taken was free");
        self.held[table] += more;
    }

    /// A table gives so much back.
    ///
    /// # Panics
    /// If it does not hold so much.
    pub(crate) fn give_back(&mut self, table: usize, less: u32) {
        let held = self.held[table].checked_sub(less);
        self.held[table] = held.expect("what is given back was taken");
        self.free += less;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes one after another as long as it may.
    fn fill(quotas: &mut Quotas, table: usize) -> FetchesFull {
        loop {
            match quotas.lets(table, 1) {
                Ok(()) => quotas.take(table, 1),
                Err(full) => return full,
            }
        }
    }

    #[test]
    fn tables_that_take_all_they_may_leave_some() {
        let mut quotas = Quotas::new(128, &[true; 4]);
        let mut left = |table| {
            fill(&mut quotas, table);
            quotas.free()
        };
        let left: Vec<u32> = (0..4).map(&mut left).collect();
        assert_eq!(left, [15, 2, 1, 0]);
        assert_eq!(quotas.held(0), 113);
    }

    #[test]
    fn one_that_is_alone_has_all_and_one_that_has_nothing_what_is_left() {
        let mut alone = Quotas::new(5, &[false, true]);
        assert_eq!(fill(&mut alone, 1), FetchesFull::ForAll);
        let mut quotas = Quotas::new(5, &[true; 2]);
        assert_eq!(quotas.lets(0, 6), Err(FetchesFull::ForAll));
        assert_eq!(quotas.lets(0, 5), Ok(()));
        assert_eq!(fill(&mut quotas, 0), FetchesFull::ForTable);
        assert_eq!((quotas.held(0), quotas.free()), (4, 1));
        assert_eq!(quotas.lets(1, 1), Ok(()));
        quotas.take(1, 1);
        assert_eq!(quotas.lets(0, 1), Err(FetchesFull::ForAll));
        quotas.give_back(0, 3);
        assert_eq!(quotas.lets(0, 1), Ok(()));
        assert_eq!(quotas.lets(1, 3), Err(FetchesFull::ForTable));
    }
}
