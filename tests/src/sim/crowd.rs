//! Rows of the simulated world that are all looked for in the same slots: in some worlds most ids that clients draw are of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use fastrand::Rng;
use rowmill_cache::store::Store;

/// Of each table of which there are some, rows with one primary set in its store, as the process has spread them. Who clones it has the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Crowd(Arc<Mutex<BTreeMap<usize, Vec<u32>>>>);

/// Of 8 ids, how many are of these rows.
const OFTEN: u8 = 7;

impl Crowd {
    fn rows(&self) -> MutexGuard<'_, BTreeMap<usize, Vec<u32>>> {
        self.0.lock().expect("a panic ends the run")
    }

    /// A store spreads a table's rows in its own way: takes those of the fullest set.
    pub(super) fn is_of(&self, table: usize, count: u32, store: &Store) {
        let spread = store.spread().over(store.shape().shard_sets());
        let mut sets: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for row in 0..count {
            sets.entry(spread.primary(row)).or_default().push(row);
        }
        let fullest = sets.into_values().max_by_key(Vec::len);
        self.rows().insert(table, fullest.unwrap_or_default());
    }

    /// One of a table's rows, most times, where there are some.
    pub(super) fn draw(&self, table: usize, rng: &mut Rng) -> Option<u32> {
        let rows = self.rows();
        let rows = rows.get(&table)?;
        if rng.u8(0..8) >= OFTEN {
            return None;
        }
        rng.choice(rows).copied()
    }
}
