//! The list of warm rows as the admin pages show it.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rowmill_cache::WarmRows;
use serde_json::{Value, json};

use crate::cache_view::{CacheView, TableView};
use crate::metrics::Metrics;

/// The file as the admin pages show it.
#[derive(Debug)]
pub struct WarmView {
    path: PathBuf,
    /// Rows in the file as it was written last.
    rows: AtomicU64,
    written: AtomicU64,
    failures: AtomicU64,
    is_failing: AtomicBool,
    /// What workers were given at start, until all have loaded it: it is hundreds of megabytes, which no worker is to free.
    loading: Mutex<Option<Arc<[WarmRows]>>>,
    /// Why none is kept, if so.
    off: Option<String>,
}

impl WarmView {
    /// That of a file of which workers were given these rows. `off`: why none is kept, if so.
    pub(super) fn new(path: PathBuf, rows: &Arc<[WarmRows]>, off: Option<String>) -> WarmView {
        WarmView {
            path,
            rows: AtomicU64::new(0),
            written: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            is_failing: AtomicBool::new(false),
            loading: Mutex::new(Some(Arc::clone(rows))),
            off,
        }
    }

    /// The file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// So many rows were written, or none could be. Returns whether it was otherwise the time before.
    pub(super) fn note(&self, written: Option<u64>) -> bool {
        match written {
            Some(rows) => {
                self.rows.store(rows, Relaxed);
                self.written.fetch_add(1, Relaxed);
            }
            None => _ = self.failures.fetch_add(1, Relaxed),
        }
        self.is_failing.swap(written.is_none(), Relaxed) != written.is_none()
    }

    /// Whether a file is there that this process has not written.
    pub(super) fn is_as_found(&self) -> bool {
        self.written.load(Relaxed) == 0 && self.path.exists()
    }

    /// Whether rows of the file are still being loaded. Once they are not, what listed them is freed by who asks.
    pub(super) fn is_loading(&self) -> bool {
        let mut loading = self.loading.lock().expect("a panic ends the process");
        let _loaded = loading.take_if(|rows| Arc::strong_count(rows) == 1);
        loading.is_some()
    }

    /// The same, or those that were hot in a table when it was cached before.
    fn loads(&self, cache: &CacheView) -> bool {
        self.is_loading() || cache.tables.iter().any(TableView::is_loading)
    }

    pub(crate) fn status(&self, cache: &CacheView) -> Value {
        json!({
            "file": self.path.display().to_string(),
            "rows": self.rows.load(Relaxed),
            "written": self.written.load(Relaxed),
            "failures": self.failures.load(Relaxed),
            "failing": self.is_failing.load(Relaxed),
            "loading": self.loads(cache),
            "off": self.off,
        })
    }

    pub(crate) fn metrics(&self, cache: &CacheView, out: &mut Metrics) {
        let all: [(&str, &str, &str, u64); 5] = [
            (
                "rowmill_warm_rows",
                "gauge",
                "Rows in the file of warm rows as it was written last.",
                self.rows.load(Relaxed),
            ),
            (
                "rowmill_warm_loading",
                "gauge",
                "1 while rows of the file, or of a table that is cached again, are loaded.",
                self.loads(cache).into(),
            ),
            (
                "rowmill_warm_written_total",
                "counter",
                "Times that the file of warm rows was written.",
                self.written.load(Relaxed),
            ),
            (
                "rowmill_warm_failures_total",
                "counter",
                "Times that the file of warm rows could not be written.",
                self.failures.load(Relaxed),
            ),
            (
                "rowmill_warm_off",
                "gauge",
                "1 where none is kept, since what is there is no list of warm rows: warm.off in /status says what it is.",
                self.off.is_some().into(),
            ),
        ];
        for (name, kind, help, value) in all {
            out.family(name, kind, help);
            out.sample(name, "", value);
        }
    }
}
