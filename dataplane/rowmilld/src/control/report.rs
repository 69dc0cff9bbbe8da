//! What is told of the dataplane each second.

use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use rowmill_cache::figures::Count;
use rowmill_link::{Applied, Placement, Report, TableReport};
use rowmill_table::TableInfo;

use super::deltas::Told;
use super::generations::Holder;
use crate::cache_view::{CacheView, TableView};
use crate::config;
use crate::share::slot_bytes;

/// What reports are made of.
pub(super) struct Teller {
    pub(super) model: String,
    pub(super) holder: Holder,
    pub(super) workers: u32,
    pub(super) cache: Arc<CacheView>,
    /// What became of the last delta, where they are taken.
    pub(super) deltas: Option<Told>,
}

impl Teller {
    /// A report of now, as JSON. `is_changing`: shares are still to be changed for the policy.
    pub(super) fn report(
        &self,
        instance: u128,
        policy: Option<Applied>,
        is_changing: bool,
    ) -> Vec<u8> {
        let listed = |name: &str| self.cache.tables.iter().find(|view| view.name == name);
        let newest = self.holder.view.newest();
        let tables = newest.tables.iter();
        let deltas = self.deltas.as_ref().map(Told::get).unwrap_or_default();
        let report = Report {
            instance: format!("{instance:032x}"),
            version: env!("CARGO_PKG_VERSION").into(),
            model: self.model.clone(),
            generation: newest.number.to_string(),
            generations: self.holder.told(),
            fingerprints: self.holder.fingerprints_told(),
            generations_change: self.holder.last_change(),
            deltas: self.deltas.as_ref().map(|_| self.holder.deltas_told()),
            deltas_change: deltas.change,
            deltas_failed: deltas.failed,
            arena_bytes: self.cache.arena_bytes,
            workers: self.workers,
            policy,
            tables: tables
                .map(|info| table(info, listed(&info.name), is_changing))
                .collect(),
        };
        serde_json::to_vec(&report).expect("plain values")
    }
}

fn table(info: &TableInfo, view: Option<&TableView>, is_changing: bool) -> TableReport {
    let mut report = TableReport {
        table: info.name.clone(),
        rows: info.stored_rows(),
        slot_bytes: slot_bytes(info.stride),
        placement: Placement::Resident,
        cache_bytes: 0,
        cache_rows: 0,
        held_rows: 0,
        resizing: false,
        lookups: 0,
        hits: 0,
        fetched: 0,
        fetch_ns: 0,
        pinned: 0,
        pinned_held: 0,
    };
    let Some(view) = view else {
        return report;
    };
    let share = view.share();
    report.resizing = share.wanted.is_some();
    if view.placement() == config::Placement::Cached {
        report.placement = Placement::Cached;
        report.resizing |= is_changing;
        report.cache_bytes = share.shape.bytes() as u64;
        report.cache_rows = share.shape.slots().into();
        report.held_rows = view.held();
    }
    let (times, sum_ns) = view.fetch_times();
    TableReport {
        lookups: view.get(Count::Lookups),
        hits: view.get(Count::Hits),
        fetched: times.iter().sum(),
        fetch_ns: sum_ns,
        pinned: view.wishes.pinned.load(Relaxed),
        pinned_held: view.wishes.pinned_held.load(Relaxed),
        ..report
    }
}
