//! When a dataplane's arena is divided anew, and what of its tables goes into that.

use std::collections::BTreeMap;

use rowmill_link::Policy;

use super::dataplane::{Dataplane, Holding, Move};
use super::settings::Settings;
use super::shares::{Candidate, Verdict, decide};
use super::table::Table;
use super::{Key, TURN_NS};
use crate::curve::Curve;
use crate::spread::Spread;

/// A dataplane that has not reported for so long is not decided for: five reports that didn't come.
const SILENT_NS: u64 = 5 * TURN_NS;
/// After a change a table has this time to use what it was given, and to be seen without what it gave up.
const SETTLING_NS: u64 = 10 * TURN_NS;
/// It uses it once so much of it is filled.
const FILLED: f64 = 0.9;
/// A table with fewer lookups a second gains nothing, whatever its hits by size may be.
const IDLE: f64 = 1.0;
/// Slots of a set, of which a share has as many for each worker.
const SET_SLOTS: u64 = 16;
/// Slots that a table has for each worker in any case: four sets.
const FLOOR_SLOTS: u64 = 4 * SET_SLOTS;
/// And this part of an equal share.
const FLOOR_PART: u64 = 100;
/// A share that the dataplane could not make is not wanted again for so long.
const REFUSED_NS: u64 = 60 * TURN_NS;
/// Changes of a share that are remembered.
const MOVES_MAX: usize = 8;

/// Divides a dataplane's arena anew, if that is worth it.
pub(super) fn divide_anew(
    now_ns: u64,
    dataplane: &mut Dataplane,
    tables: &BTreeMap<Key, Table>,
    settings: &BTreeMap<Key, Settings>,
) {
    let names: Vec<String> = dataplane.tables.keys().cloned().collect();
    let candidates: Vec<Candidate> = names
        .iter()
        .map(|name| {
            let key = (dataplane.report.model.clone(), name.clone());
            candidate(
                now_ns,
                dataplane,
                &dataplane.tables[name],
                tables.get(&key),
                settings.get(&key),
            )
        })
        .collect();
    let (hurry, workers) = (dataplane.hurries(now_ns), dataplane.report.workers);
    match decide(dataplane.report.arena_bytes, &candidates, hurry) {
        Verdict::Stay(why) => dataplane.state = why,
        Verdict::Move(shift) => {
            dataplane.state = format!(
                "shares of {} tables change: {:.0} hits a second are to be gained in the end, {:.0} lost",
                shift.rows.len(),
                shift.gain,
                shift.loss
            );
            for (at, rows) in shift.rows {
                let holding = dataplane.tables.get_mut(&names[at]).expect("it was named");
                holding.move_to(now_ns, rows, workers, &candidates[at]);
            }
        }
    }
}

/// A table as the division sees it.
fn candidate(
    now_ns: u64,
    dataplane: &Dataplane,
    holding: &Holding,
    table: Option<&Table>,
    settings: Option<&Settings>,
) -> Candidate {
    let seen = &holding.seen;
    let equal = dataplane.report.arena_bytes / dataplane.tables.len() as u64 / seen.slot_bytes;
    let floor = (FLOOR_SLOTS * u64::from(dataplane.report.workers)).max(equal / FLOOR_PART);
    let rows = |bytes: Option<u64>| bytes.map(|bytes| bytes / seen.slot_bytes);
    let set = |of: fn(&Settings) -> Option<u64>| rows(settings.and_then(of));
    // A bound of the operator's is one wherever there can be a cache at all.
    let most = seen.rows.max(floor);
    let most = set(|settings| settings.max_bytes).map_or(most, |max| most.min(max).max(floor));
    let least = set(|settings| settings.min_bytes).map_or(floor, |min| min.clamp(floor, most));
    let known = table.filter(|_| holding.lookups.is_some());
    // Where only pinned rows come, a share is worth what those have.
    let pinned = known.and_then(|table| table.pinned_curve(settings?.only_pinned()?));
    let (keeps, waits) = match now_ns < holding.refused_until_ns {
        true => (true, true),
        false => holding.settling(now_ns, dataplane.hurries(now_ns)),
    };
    Candidate {
        lookups: holding.lookups.unwrap_or(0.0),
        row_bytes: seen.slot_bytes,
        present: holding.present_bytes(dataplane.report.workers) / seen.slot_bytes,
        bounds: least.min(most)..=most,
        curve: match holding.lookups {
            Some(lookups) if lookups < IDLE => Some(Curve::new([])),
            _ => pinned.clone().or_else(|| known?.model.curve()),
        },
        samples: known.map_or(0.0, |table| table.model.weight()),
        spread: match (known, pinned) {
            (Some(table), None) => table.model.spread(),
            _ => Spread::default(),
        },
        keeps,
        waits,
    }
}

impl Dataplane {
    /// Nothing has been heard of it for a while.
    pub(super) fn is_silent(&self, now_ns: u64) -> bool {
        now_ns >= self.heard_ns.saturating_add(SILENT_NS)
    }

    /// A popularity was seen to be another one a moment ago.
    fn hurries(&self, now_ns: u64) -> bool {
        self.shifted_ns
            .is_some_and(|at| now_ns < at.saturating_add(SETTLING_NS))
    }

    /// Goes on from what it was told in an earlier epoch, as far as that can still be.
    pub(super) fn go_on_from(&mut self, policy: &Policy) {
        let wanted = |name: &String| {
            let mut tables = policy.tables.iter();
            tables.find(|table| table.table == *name)?.cache_bytes
        };
        let shares = self
            .tables
            .iter()
            .map(|(name, holding)| wanted(name).unwrap_or(holding.seen.cache_bytes));
        if shares.fold(0, u64::saturating_add) <= self.report.arena_bytes {
            for (name, holding) in &mut self.tables {
                holding.wanted_bytes = wanted(name);
            }
        }
    }

    /// It has done what it could of its policy: shares that it could not make are not wanted any more, and for some time no others of those
    /// tables.
    pub(super) fn take_refusals(&mut self, now_ns: u64) {
        let workers = self.report.workers;
        let Some(applied) = &self.report.policy else {
            return;
        };
        for (name, holding) in &mut self.tables {
            let Some(wanted) = holding.wanted_bytes else {
                continue;
            };
            // A share that differs without a sentence is what its sets make of it.
            let mut refused = applied.refused.iter();
            let refused = refused.find(|sentence| sentence.starts_with(&format!("table {name}:")));
            if let Some(sentence) = refused.filter(|_| !holding.has_nearly(wanted, workers)) {
                holding.wanted_bytes = Some(holding.seen.cache_bytes);
                holding.refused_until_ns = now_ns.saturating_add(REFUSED_NS);
                holding.remember(Move {
                    at_ns: now_ns,
                    from_bytes: wanted,
                    to_bytes: holding.seen.cache_bytes,
                    fetched: holding.seen.fetched,
                    why: format!("the dataplane could not: {sentence}"),
                });
            }
        }
    }

    /// What its arena's division waits for, if it does.
    pub(super) fn held_up(&self, now_ns: u64, control: &str) -> Option<String> {
        if self.is_silent(now_ns) {
            let ago = now_ns.saturating_sub(self.heard_ns) / TURN_NS;
            return Some(format!(
                "nothing was heard of it for {ago} s: it keeps what it has"
            ));
        }
        if let Some(applied) = &self.report.policy
            && applied.control != control
            && self
                .policy
                .as_ref()
                .is_none_or(|own| applied.order.epoch >= own.order.epoch)
        {
            let (other, order) = (&applied.control, applied.order);
            return Some(format!(
                "it follows another control plane, {other}, at {order}: stop one of the two"
            ));
        }
        if self.tables.len() < 2 {
            return Some("it has no two cached tables that could share an arena".into());
        }
        if let Some(policy) = &self.policy {
            let followed = self.report.policy.as_ref().map(|applied| applied.order);
            if followed != Some(policy.order) {
                return Some("it has not taken its last policy yet".into());
            }
        }
        let resizing = self.tables.iter().find(|(_, table)| table.seen.resizing);
        resizing.map(|(name, _)| format!("table `{name}` is on its way to another share"))
    }
}

impl Holding {
    /// Whether it keeps what it was given, since that is not filled yet, or waits for no more, since it has just given some up: else
    /// shares would go back and forth on what is seen of caches that aren't full.
    fn settling(&self, now_ns: u64, hurry: bool) -> (bool, bool) {
        let Some(moved) = self.moves.back().filter(|_| !hurry) else {
            return (false, false);
        };
        let late = now_ns >= moved.at_ns.saturating_add(SETTLING_NS);
        let grown = moved.to_bytes > moved.from_bytes;
        let filled = self.seen.held_rows as f64 >= FILLED * self.seen.cache_rows as f64;
        let turned = self.seen.fetched.saturating_sub(moved.fetched) >= 2 * self.seen.cache_rows;
        (grown && !late && !filled && !turned, !grown && !late)
    }

    /// Its share: what is wanted, where the dataplane's sets make only a little less of it.
    fn present_bytes(&self, workers: u32) -> u64 {
        let near = self
            .wanted_bytes
            .filter(|&wanted| self.has_nearly(wanted, workers));
        near.unwrap_or(self.seen.cache_bytes)
    }

    /// Less than a set for each worker is missing, or a sixteenth. Of a small share a set is more than that.
    fn has_nearly(&self, wanted: u64, workers: u32) -> bool {
        let missing = self.seen.cache_bytes.abs_diff(wanted);
        let sets = u128::from(SET_SLOTS) * u128::from(workers) * u128::from(self.seen.slot_bytes);
        u128::from(missing) < sets.max(u128::from(wanted / 16))
    }

    fn remember(&mut self, moved: Move) {
        self.moves.push_back(moved);
        if self.moves.len() > MOVES_MAX {
            self.moves.pop_front();
        }
    }

    /// It is to have another share.
    fn move_to(&mut self, now_ns: u64, rows: u64, workers: u32, as_seen: &Candidate) {
        let (from_bytes, to_bytes) = (self.present_bytes(workers), rows * self.seen.slot_bytes);
        let before = as_seen
            .curve
            .as_ref()
            .map(|curve| curve.at(as_seen.present));
        let after = as_seen.curve.as_ref().map(|curve| curve.at(rows));
        let why = match before.zip(after) {
            Some((before, after)) => format!(
                "hits expected go from {:.1} to {:.1} % of {:.0} lookups a second",
                100.0 * before,
                100.0 * after,
                as_seen.lookups
            ),
            None => "it has no more rows, or its settings want another share than it had".into(),
        };
        self.wanted_bytes = Some(to_bytes);
        self.remember(Move {
            at_ns: now_ns,
            from_bytes,
            to_bytes,
            fetched: self.seen.fetched,
            why,
        });
    }
}
