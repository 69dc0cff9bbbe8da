//! Who samples which table, and how many of its rows.

use std::collections::BTreeMap;

use super::Planner;
use super::dataplane::Dataplane;

/// Samples a second that a dataplane is asked for at least, and at most. A worker has room for 4,096 in 50 ms.
const SAMPLES: core::ops::RangeInclusive<f64> = 3_000.0..=60_000.0;

impl Planner {
    /// Chooses which dataplane samples which table.
    pub(super) fn choose_samplers(&mut self, now_ns: u64) {
        for ((model, name), table) in &mut self.tables {
            let serve = self.dataplanes.iter().filter(|(_, dataplane)| {
                dataplane.report.model == *model
                    && dataplane.tables.contains_key(name)
                    && !dataplane.is_silent(now_ns)
            });
            let present = table.sampler.clone();
            let rank = |(name_of, of): &(&String, &Dataplane)| {
                let chosen = present
                    .as_ref()
                    .is_some_and(|(name, instance)| name == *name_of && *instance == of.instance);
                (chosen, of.tables[name].lookups.unwrap_or(0.0))
            };
            let best = serve.max_by(|a, b| {
                let (a, b) = (rank(a), rank(b));
                a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
            });
            if let Some((sampler, dataplane)) = best
                && !rank(&(sampler, dataplane)).0
            {
                table.sampled_by(sampler, dataplane.instance);
            }
        }
    }

    /// Chooses how many rows of each table are sampled.
    pub(super) fn choose_rates(&mut self, now_ns: u64, passed_ns: u64) {
        let heard = self
            .dataplanes
            .values()
            .filter(|of| !of.is_silent(now_ns))
            .count();
        let each = self.limits.samples_per_s / heard.max(1) as f64;
        let each = each.clamp(*SAMPLES.start(), *SAMPLES.end());
        // Of each dataplane: lookups of tables that it samples, and samples that these want beside their part.
        let mut drawn: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        let mut wanted = Vec::new();
        for ((model, name), table) in &mut self.tables {
            let sampler = table
                .sampler
                .as_ref()
                .and_then(|(sampler, _)| self.dataplanes.get_key_value(sampler));
            let known = sampler.and_then(|(sampler, of)| Some((sampler, of, of.tables.get(name)?)));
            let Some((sampler, of, holding)) = known else {
                wanted.push(None);
                continue;
            };
            let lookups = holding.lookups.unwrap_or(0.0);
            let equal = of.report.arena_bytes / of.tables.len() as u64 / holding.seen.slot_bytes;
            table.asked(passed_ns, holding.lookups);
            let wants = table.wants(equal.min(holding.seen.rows));
            let holdings = self
                .dataplanes
                .values()
                .filter(|of| of.report.model == *model);
            let most = holdings.filter_map(|of| {
                let seen = &of.tables.get(name)?.seen;
                Some(seen.rows.min(of.report.arena_bytes / seen.slot_bytes))
            });
            let sum = drawn.entry(sampler).or_default();
            *sum = (sum.0 + lookups, sum.1 + wants);
            wanted.push(Some((sampler, lookups, wants, most.max().unwrap_or(0))));
        }
        for (table, wanted) in self.tables.values_mut().zip(wanted) {
            let Some((sampler, lookups, wants, most)) = wanted else {
                continue;
            };
            let (all, all_wants) = drawn[&**sampler];
            let part = each / 2.0 * lookups / all.max(1.0);
            let sizes = wants * (each / 2.0 / all_wants.max(1.0)).min(1.0);
            table.aim(now_ns, part.max(sizes), most);
        }
    }
}
