//! The memory of a store: tags are atomics, and rows must not be read and written at once.

use std::sync::Mutex;

use loom::cell::UnsafeCell;
use loom::sync::atomic;

use super::key::{NO_KEY, Tag};
use super::sync::{AtomicU16, AtomicU32, Ordering};

/// Two ways a set, so that a way is a choice; more would be more steps and no more cases.
pub(crate) const WAYS: usize = 2;
pub(crate) const EMPTY: u32 = u32::MAX;
pub(crate) const TAKEN: u32 = u32::MAX - 1;

pub(crate) type SetTags<T> = [T; WAYS];

/// A row. Loom is told of every access, and finds those that no order keeps apart.
#[derive(Debug)]
struct Row {
    access: UnsafeCell<()>,
    bytes: [u8; 4],
}

#[derive(Debug)]
pub(crate) struct Memory {
    tags: Vec<SetTags<AtomicU16>>,
    numbers: Vec<AtomicU32>,
    metas: Vec<atomic::AtomicU16>,
    /// A row that is not there, and its key: what is in memory that is not there.
    lost: (u32, u32),
    /// Locked for no longer than an access is noted, in which loom runs no other thread.
    rows: Vec<Mutex<Row>>,
}

impl Memory {
    /// Of so many sets, the first of which are empty. In the others there is a row that is not there, as there may be where the kernel
    /// gave memory; `lost` is its number and its key.
    pub(crate) fn new(sets: u32, empty: u32, lost: (u32, u32)) -> Memory {
        let of = |set| {
            if set < empty { (EMPTY, NO_KEY) } else { lost }
        };
        let tags = |set| core::array::from_fn(|_| AtomicU16::new(of(set).1 as u16));
        let number = |slot| AtomicU32::new(of(slot / WAYS as u32).0);
        let row = |_| {
            Mutex::new(Row {
                access: UnsafeCell::new(()),
                bytes: [0; 4],
            })
        };
        let slots = sets as usize * WAYS;
        Memory {
            tags: (0..sets).map(tags).collect(),
            numbers: (0..slots as u32).map(number).collect(),
            metas: (0..slots).map(|_| atomic::AtomicU16::new(0)).collect(),
            rows: (0..slots).map(row).collect(),
            lost,
        }
    }

    /// Makes sets empty.
    pub(crate) fn empty(&self, sets: core::ops::Range<u32>) {
        self.fill(sets, (EMPTY, NO_KEY));
    }

    fn fill(&self, sets: core::ops::Range<u32>, (number, key): (u32, u32)) {
        for slot in sets.start * WAYS as u32..sets.end * WAYS as u32 {
            self.set_key(slot, key, Ordering::Relaxed);
            self.number(slot).store(number, Ordering::Relaxed);
        }
    }

    /// Gives the kernel what is behind so many sets.
    pub(crate) fn lose(&self, sets: u32) {
        self.fill(sets..self.tags.len() as u32, self.lost);
    }

    /// Copies a row.
    pub(crate) fn copy_row(&self, from: u32, to: u32) {
        self.write_row(to, &self.row(from));
    }

    pub(crate) fn tags(&self) -> &[SetTags<AtomicU16>] {
        &self.tags
    }

    fn tag(&self, slot: u32) -> &AtomicU16 {
        &self.tags[slot as usize / WAYS][slot as usize % WAYS]
    }

    pub(crate) fn key(&self, slot: u32, order: Ordering) -> u32 {
        self.tag(slot).key(order)
    }

    pub(crate) fn set_key(&self, slot: u32, key: u32, order: Ordering) {
        self.tag(slot).set_key(key, order);
    }

    pub(crate) fn number(&self, slot: u32) -> &AtomicU32 {
        &self.numbers[slot as usize]
    }

    pub(crate) fn meta(&self, slot: u32) -> &atomic::AtomicU16 {
        &self.metas[slot as usize]
    }

    pub(crate) fn write_row(&self, slot: u32, row: &[u8]) {
        let mut place = self.rows[slot as usize].lock().expect("no access panicked");
        place.access.with_mut(|_| ());
        place.bytes.copy_from_slice(row);
    }

    pub(crate) fn read_row(&self, slot: u32, out: &mut [u8]) {
        out.copy_from_slice(&self.row(slot));
    }

    pub(crate) fn row(&self, slot: u32) -> [u8; 4] {
        let place = self.rows[slot as usize].lock().expect("no access panicked");
        place.access.with(|_| ());
        place.bytes
    }
}
