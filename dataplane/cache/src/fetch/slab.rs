//! Staging: rows that bags wait with, each at a place of its own.

use crate::quotas::Quotas;

/// Room for a fixed number of rows of any table, each with a number of users. A place is free again when it has none.
#[derive(Debug)]
pub(crate) struct Slab {
    bytes: Box<[u8]>,
    stride: usize,
    users: Box<[u32]>,
    free: Vec<u32>,
    /// Whose rows they are, and how many each table has.
    tables: Box<[u32]>,
    quotas: Quotas,
}

impl Slab {
    /// Room for `rows` rows of at most `stride` bytes, shared by those tables of which `tables` says so. Up to `longest` are wanted at once.
    pub(crate) fn new(rows: u32, longest: u32, stride: usize, tables: &[bool]) -> Slab {
        Slab {
            // Not zeros, which the allocator would give untouched: requests shall not pay for page faults.
            bytes: vec![0xff; rows as usize * stride].into_boxed_slice(),
            stride,
            users: vec![0; rows as usize].into_boxed_slice(),
            free: (0..rows).rev().collect(),
            tables: vec![0; rows as usize].into_boxed_slice(),
            quotas: Quotas::new(rows, longest, tables),
        }
    }

    /// All places, `stride` bytes each.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    pub(crate) fn places(&self) -> u32 {
        self.users.len() as u32
    }

    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// How much of it each table has.
    pub(crate) fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// A place for a row of a table, with one user.
    ///
    /// # Panics
    /// If none is free: whoever takes places has looked before.
    pub(crate) fn take(&mut self, table: u32) -> u32 {
        let place = self.free.pop().expect("a free place was counted before");
        self.quotas.take(table as usize, 1);
        self.tables[place as usize] = table;
        self.users[place as usize] = 1;
        place
    }

    /// The bytes of a place that is taken.
    pub(crate) fn row(&mut self, place: u32) -> &mut [u8] {
        assert!(self.users[place as usize] > 0, "the place is taken");
        let at = place as usize * self.stride;
        &mut self.bytes[at..at + self.stride]
    }

    /// One more user of a place that is taken.
    pub(crate) fn share(&mut self, place: u32) {
        let users = &mut self.users[place as usize];
        assert!(*users > 0, "the place is taken");
        *users += 1;
    }

    /// One user less.
    pub(crate) fn release(&mut self, place: u32) {
        let users = &mut self.users[place as usize];
        *users = users.checked_sub(1).expect("the place is taken");
        if *users == 0 {
            let table = self.tables[place as usize];
            self.quotas.give_back(table as usize, 1);
            self.free.push(place);
        }
    }
}
