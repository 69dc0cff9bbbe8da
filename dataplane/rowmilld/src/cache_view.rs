//! Cached tables as the admin pages show them.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use rowmill_cache::figures::{BUCKETS, COUNTS, Count, TIER_COUNTS, TableFigures, TierFigures};
use rowmill_cache::store::Store;
use serde_json::{Value, json};

use crate::config::Placement;
use crate::metrics::{Metrics, escape};

/// The one tier that there is.
const TIER: &str = "file";

/// A listed table.
#[derive(Debug)]
pub struct TableView {
    /// Its number in the generation.
    pub number: usize,
    /// Its name.
    pub name: String,
    /// How many rows it has, and their bytes.
    pub rows: u64,
    /// See above.
    pub rows_bytes: u64,
    /// Its share of the arena when it is cached, in bytes.
    pub share_bytes: u64,
    /// Rows that the share has room for.
    pub share_rows: u64,
    /// What each worker has done about it.
    pub figures: Vec<Arc<TableFigures>>,
    /// What is kept of it while it is cached.
    pub store: Mutex<Option<Arc<Store>>>,
    /// Rows that left the cache when the table did.
    pub left: AtomicU64,
}

impl TableView {
    /// Where its rows are.
    pub fn placement(&self) -> Placement {
        match self.store() {
            Some(_) => Placement::Cached,
            None => Placement::Resident,
        }
    }

    /// What is kept of it, if it is cached.
    pub(crate) fn store(&self) -> Option<Arc<Store>> {
        self.store.lock().expect("a panic ends the process").clone()
    }

    /// It is cached in another store from now on, or in none. Of the one before no worker has anything any more.
    pub(crate) fn set_store(&self, store: Option<Arc<Store>>) {
        let mut own = self.store.lock().expect("a panic ends the process");
        if store.is_none() {
            let held = self.held();
            self.left.fetch_add(held, Relaxed);
        }
        *own = store;
    }

    /// How often something happened, on all workers.
    pub fn get(&self, what: Count) -> u64 {
        self.figures.iter().map(|figures| figures.get(what)).sum()
    }

    fn fetch_times(&self) -> ([u64; BUCKETS + 1], u64) {
        let none = ([0; BUCKETS + 1], 0);
        self.figures.iter().fold(none, |(all, sum), figures| {
            let (counts, ns) = figures.fetch_times.read();
            (core::array::from_fn(|i| all[i] + counts[i]), sum + ns)
        })
    }

    /// Rows that are in the cache: a moment's difference of what came and what left.
    fn held(&self) -> u64 {
        self.get(Count::Admitted)
            .saturating_sub(self.get(Count::Evicted))
            .saturating_sub(self.left.load(Relaxed))
    }

    fn misses(&self) -> u64 {
        let lookups = self.get(Count::Lookups);
        lookups.saturating_sub(self.get(Count::Hits))
    }

    fn status(&self) -> Value {
        let (times, sum_ns) = self.fetch_times();
        let mut table = json!({
            "table": self.name,
            "placement": self.placement().to_string(),
            "tier": TIER,
            "share_bytes": self.share_bytes,
            "share_rows": self.share_rows,
            "held_rows": self.held(),
            "misses": self.misses(),
            "fetch_p50_us": quantile_us(&times, 0.5),
            "fetch_p99_us": quantile_us(&times, 0.99),
            "fetch_sum_us": sum_ns / 1000,
            "fetch_us": times,
        });
        for (what, name, _) in COUNTS {
            table[name] = self.get(what).into();
        }
        table
    }
}

/// The bucket's end below which so many of the times are; nothing where there are none.
fn quantile_us(counts: &[u64; BUCKETS + 1], quantile: f64) -> Option<u64> {
    let total: u64 = counts.iter().sum();
    let wanted = ((total as f64 * quantile).ceil() as u64).max(1);
    let mut seen = 0;
    let bucket = counts.iter().position(|count| {
        seen += count;
        seen >= wanted
    })?;
    Some(1 << bucket)
}

/// All listed tables.
#[derive(Debug)]
pub struct CacheView {
    /// In the order of the configuration.
    pub tables: Vec<TableView>,
    /// What each worker has done with its tier.
    pub tiers: Vec<Arc<TierFigures>>,
}

impl CacheView {
    /// Where a table's rows are, if it is listed.
    pub fn placement(&self, name: &str) -> Option<Placement> {
        let table = self.tables.iter().find(|table| table.name == name);
        table.map(TableView::placement)
    }

    /// Bytes of all shares of cached tables.
    pub(crate) fn shares_bytes(&self) -> u64 {
        let cached = |table: &&TableView| table.placement() == Placement::Cached;
        let shares = self.tables.iter().filter(cached);
        shares.map(|table| table.share_bytes).sum()
    }

    /// Bytes of the rows of tables that have memory of their own.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let resident = |table: &&TableView| table.placement() == Placement::Resident;
        let tables = self.tables.iter().filter(resident);
        tables.map(|table| table.rows_bytes).sum()
    }

    pub(crate) fn status(&self) -> Vec<Value> {
        self.tables.iter().map(TableView::status).collect()
    }

    fn tier_counts(&self) -> [u64; TIER_COUNTS.len()] {
        TierFigures::sum(self.tiers.iter().map(|worker| &**worker))
    }

    /// Rows that the next tier was asked for.
    pub(crate) fn passed_on(&self) -> u64 {
        let named = TIER_COUNTS.iter().position(|what| what.name == "passed_on");
        self.tier_counts()[named.expect("tiers count it")]
    }

    /// What is behind the tables, where there are some.
    pub(crate) fn tiers_status(&self) -> Vec<Value> {
        if self.tables.is_empty() {
            return Vec::new();
        }
        let mut tier = json!({ "tier": TIER });
        for (what, count) in TIER_COUNTS.iter().zip(self.tier_counts()) {
            tier[what.name] = count.into();
        }
        vec![tier]
    }

    pub(crate) fn metrics(&self, out: &mut Metrics) {
        let label = |table: &TableView| format!("table=\"{}\"", escape(&table.name));
        let behind = |table: &TableView| format!("{},tier=\"{TIER}\"", label(table));
        let mut gauge = |name: &str, help: &str, value: &dyn Fn(&TableView) -> u64| {
            out.family(name, "gauge", help);
            for table in &self.tables {
                out.sample(name, &label(table), value(table));
            }
        };
        let is_cached = |table: &TableView| u64::from(table.placement() == Placement::Cached);
        let help = "Bytes of the arena for rows of the table.";
        gauge("rowmill_cache_share_bytes", help, &|table| {
            is_cached(table) * table.share_bytes
        });
        let help = "Rows that the table's share has room for.";
        gauge("rowmill_cache_share_rows", help, &|table| {
            is_cached(table) * table.share_rows
        });
        let help = "Rows of the table in the cache.";
        gauge("rowmill_cache_held_rows", help, &TableView::held);
        let name = "rowmill_cache_misses_total";
        out.family(
            name,
            "counter",
            "Rows looked up that were not in the cache.",
        );
        for table in &self.tables {
            out.sample(name, &label(table), table.misses());
        }
        for (what, name, help) in COUNTS {
            let name = format!("rowmill_cache_{name}_total");
            out.family(&name, "counter", help);
            for table in &self.tables {
                let labels = match what.is_of_tier() {
                    true => behind(table),
                    false => label(table),
                };
                out.sample(&name, &labels, table.get(what));
            }
        }
        for (what, count) in TIER_COUNTS.iter().zip(self.tier_counts()) {
            let name = format!("rowmill_tier_{}_total", what.name);
            out.family(&name, "counter", what.help);
            if !self.tables.is_empty() {
                out.sample(&name, &format!("tier=\"{TIER}\""), count);
            }
        }
        let name = "rowmill_fetch_seconds";
        let help = "Time from when a row is asked of its tier until it is there.";
        out.family(name, "histogram", help);
        for table in &self.tables {
            out.histogram(name, &behind(table), table.fetch_times());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_ends_of_buckets() {
        let mut counts = [0; BUCKETS + 1];
        assert_eq!(quantile_us(&counts, 0.5), None);
        counts[3] = 98;
        counts[7] = 2;
        assert_eq!(quantile_us(&counts, 0.5), Some(8));
        assert_eq!(quantile_us(&counts, 0.98), Some(8));
        assert_eq!(quantile_us(&counts, 0.99), Some(128));
    }
}
