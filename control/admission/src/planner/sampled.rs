//! Who samples which table, and how many of its rows.

use std::collections::BTreeMap;

use super::{Planner, TURN_NS, seed_of};
use crate::hash::hash;

/// Samples a second that a dataplane is asked for at least, and at most. A worker has room for 4,096 in 50 ms.
const SAMPLES: core::ops::RangeInclusive<f64> = 3_000.0..=60_000.0;

/// A dataplane with so many times the lookups of the one that samples a table samples it instead. To begin anew costs what was learnt.
const MUCH_MORE: f64 = 4.0;
/// But not sooner than so long after that one was chosen, if it is asked at all.
const STAYS_NS: u64 = 10 * TURN_NS;
/// Of those with half of the most lookups, or more, any may be chosen.
const ABOUT: f64 = 0.5;
/// Fewer lookups a second are none.
const IDLE: f64 = 1.0;

impl Planner {
    /// Chooses which dataplane samples which table: one that many lookups of it go to, and of those that have about as many any, so that
    /// tables are spread over them. It stays as long as none has far more.
    pub(super) fn choose_samplers(&mut self, now_ns: u64) {
        for ((model, name), table) in &mut self.tables {
            let serve = self.dataplanes.iter().filter_map(|(of, dataplane)| {
                let is_it = dataplane.report.model == *model && !dataplane.is_silent(now_ns);
                let holding = is_it.then(|| dataplane.tables.get(name))??;
                Some((of, dataplane.instance, holding.usual))
            });
            let most = serve.clone().map(|(.., usual)| usual).fold(IDLE, f64::max);
            let present = table.sampler.as_ref().and_then(|(of, instance)| {
                let mut serve = serve.clone();
                serve.find(|known| (known.0, known.1) == (of, *instance))
            });
            let stays = present.is_some_and(|(.., usual)| {
                let is_new = now_ns < table.sampler_since_ns.saturating_add(STAYS_NS);
                most <= MUCH_MORE * usual.max(IDLE) || is_new && usual >= IDLE
            });
            if stays {
                continue;
            }
            let about = serve.filter(|(.., usual)| usual.max(IDLE) >= ABOUT * most);
            if let Some((of, instance, _)) = about.max_by_key(|(of, ..)| drawn(name, of)) {
                table.sampled_by(now_ns, of, instance);
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
            let equal = of.report.arena_bytes / of.tables.len() as u64 / holding.seen.slot_bytes;
            table.asked(passed_ns, holding.lookups);
            // Where nobody asks for it for a moment its sizes stay known: whoever may have its share has to know what that would cost.
            let lookups = table.traffic;
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

/// A number of a table and a dataplane that says nothing of either.
fn drawn(table: &str, dataplane: &str) -> u64 {
    hash(seed_of(table, dataplane), 0)
}
