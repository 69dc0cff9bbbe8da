//! Rows of a table that were hot when it was cached last, from when it becomes resident until they are loaded again.

use std::sync::{Arc, Mutex, MutexGuard, Weak};

use rowmill_cache::WarmRows;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct HotBefore(Mutex<Option<Remembered>>);

#[derive(Debug)]
struct Remembered {
    /// One table's. Workers that load them have them, too.
    rows: Arc<[WarmRows]>,
    /// The same among those of other tables, as long as workers load these; one that is none has them, too, to free them.
    at_start: Option<Weak<[WarmRows]>>,
}

impl Remembered {
    fn is_loaded(&self) -> bool {
        let at_start = self.at_start.as_ref().map_or(0, Weak::strong_count);
        Arc::strong_count(&self.rows) == 1 && at_start <= 1
    }
}

impl HotBefore {
    fn lock(&self) -> MutexGuard<'_, Option<Remembered>> {
        self.0.lock().expect("a panic ends the process")
    }

    /// Remembers these, unless there are none. `at_start`: what workers load them from, if they do.
    pub(super) fn remember(
        &self,
        rows: WarmRows,
        at_start: Option<Weak<[WarmRows]>>,
    ) -> Option<Arc<[WarmRows]>> {
        let rows = (!rows.rows.is_empty()).then(|| [rows].into());
        *self.lock() = rows.clone().map(|rows| Remembered { rows, at_start });
        rows
    }

    /// What is remembered, as long as somebody has it.
    pub(super) fn to_load(&self) -> Option<Arc<[WarmRows]>> {
        let remembered = self.lock();
        remembered.as_ref().map(|before| Arc::clone(&before.rows))
    }

    /// What is remembered, as [`to_load`](Self::to_load) has it. What all workers have loaded of a table that is cached is forgotten.
    pub(super) fn not_loaded(&self, is_cached: impl Fn() -> bool) -> Option<Arc<[WarmRows]>> {
        let mut remembered = self.lock();
        // Asked in this order: who moves the table has the rows from before it moves until it is where it is to be.
        let _loaded = remembered.take_if(|before| before.is_loaded() && is_cached());
        remembered.as_ref().map(|before| Arc::clone(&before.rows))
    }

    /// Whether workers are still loading them.
    pub(super) fn is_loading(&self, is_cached: impl Fn() -> bool) -> bool {
        let remembered = self.lock();
        let mut remembered = remembered.iter();
        remembered.any(|before| is_cached() && !before.is_loaded())
    }

    pub(super) fn forget(&self) {
        *self.lock() = None;
    }
}
