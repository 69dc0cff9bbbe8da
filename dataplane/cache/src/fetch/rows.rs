//! Which rows are on their way, by table and number.

use hashbrown::HashTable;

use super::Fetch;

/// A row of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowKey {
    pub(super) table: u32,
    pub(super) row: u32,
}

/// Finds a fetch by its row. The keys stand in the fetches themselves.
#[derive(Debug)]
pub(super) struct Rows {
    numbers: HashTable<u32>,
    seed: u64,
}

impl Rows {
    pub(super) fn new(fetches: u32, seed: u64) -> Rows {
        Rows {
            // With room to spare it is tidied in place where places of removed ones use it up, and never grows.
            numbers: HashTable::with_capacity(2 * fetches as usize),
            seed,
        }
    }

    pub(super) fn find(&self, key: RowKey, fetches: &[Fetch]) -> Option<u32> {
        let same = |&number: &u32| fetches[number as usize].key == key;
        self.numbers.find(self.hash(key), same).copied()
    }

    pub(super) fn insert(&mut self, key: RowKey, number: u32, fetches: &[Fetch]) {
        let seed = self.seed;
        let again = |&number: &u32| hash(seed, fetches[number as usize].key);
        self.numbers.insert_unique(self.hash(key), number, again);
    }

    pub(super) fn remove(&mut self, key: RowKey, number: u32) {
        let found = self.numbers.find_entry(self.hash(key), |&n| n == number);
        found
            .expect("a row on its way is known by its number")
            .remove();
    }

    fn hash(&self, key: RowKey) -> u64 {
        hash(self.seed, key)
    }
}

/// Folded multiplication, as in wyhash: both halves of the product depend on all bits of the key and the seed.
fn hash(seed: u64, key: RowKey) -> u64 {
    let bits = u64::from(key.table) << 32 | u64::from(key.row);
    let product = u128::from(bits ^ seed) * u128::from(seed.rotate_left(32) | 1);
    let mixed = (product as u64) ^ (product >> 64) as u64;
    let product = u128::from(mixed) * 0x9e37_79b9_7f4a_7c15;
    (product as u64) ^ (product >> 64) as u64
}
