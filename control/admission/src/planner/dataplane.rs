//! What is known of a dataplane.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use rowmill_link::{Order, Placement, Policy, Report, TableReport};

use super::Refused;
use super::claims::checked;

/// Half of what is known of a table's traffic is forgotten in this time: a shift of traffic between tables is acted on at once.
const TRAFFIC_HALF_LIFE_NS: f64 = 1e9;
/// The same of the part of lookups that was found, as it is now and as it was before.
const FOUND_HALF_LIFE_NS: [f64; 2] = [1e9, 8e9];
/// Half of a table's traffic before a pause is forgotten in this time, where it is asked who is to sample it.
const PAUSE_HALF_LIFE_NS: f64 = 3e9;
/// More lookups a second are a claim that is not believed there.
const USUAL_MOST: f64 = 1e10;
/// The present hits are compared with those before only if so many lookups stand behind them.
const SHIFT_LOOKUPS: f64 = 1_000.0;
/// By how much they have to differ, beside what chance does to them: requests look rows up in batches, so that it does more than it would
/// to single ones.
const SHIFT_LEAST: f64 = 0.05;
/// After its share has changed a table's hits change for so long without its popularity being another one.
const SETTLING_NS: u64 = 10_000_000_000;

/// What a dataplane has told, and what is wanted of it.
#[derive(Debug)]
pub(crate) struct Dataplane {
    pub(crate) report: Report,
    pub(crate) instance: u128,
    /// When it reported last.
    pub(crate) heard_ns: u64,
    /// Number of the last body of samples.
    pub(crate) body: u64,
    /// Its cached tables.
    pub(crate) tables: BTreeMap<String, Holding>,
    pub(crate) policy: Option<Arc<Policy>>,
    /// Of the first policy that wants the generations which the last one does.
    pub(crate) generations_order: Order,
    /// When it was first heard of, or a popularity was last seen to be another one: after that more is moved at once.
    pub(crate) shifted_ns: Option<u64>,
    /// What its shares wait for, a sentence.
    pub(crate) state: String,
}

/// A table in a dataplane's cache.
#[derive(Debug)]
pub(crate) struct Holding {
    pub(crate) seen: TableReport,
    /// Lookups a second, or none before two reports.
    pub(crate) lookups: Option<f64>,
    /// The same, and before a pause.
    pub(crate) usual: f64,
    /// The part of lookups that was found, as it is and as it was before.
    found: [Option<f64>; 2],
    /// The share that is wanted, or none where it is left as the dataplane has it.
    pub(crate) wanted_bytes: Option<u64>,
    /// Until when no other share is wanted, since the dataplane could not give it one.
    pub(crate) refused_until_ns: u64,
    /// Its last changes, the latest last.
    pub(crate) moves: VecDeque<Move>,
}

/// A change of a table's share.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Move {
    pub(crate) at_ns: u64,
    pub(crate) from_bytes: u64,
    pub(crate) to_bytes: u64,
    /// Rows of it that had been fetched then.
    pub(crate) fetched: u64,
    pub(crate) why: String,
}

impl Dataplane {
    /// One that reports for the first time.
    pub(crate) fn new(now_ns: u64, report: Report) -> Result<Dataplane, Refused> {
        let (instance, report) = checked(report)?;
        let mut dataplane = Dataplane {
            instance,
            report,
            heard_ns: now_ns,
            body: 0,
            tables: BTreeMap::new(),
            policy: None,
            generations_order: Order::default(),
            shifted_ns: Some(now_ns),
            state: "it has reported once".into(),
        };
        dataplane.take_tables(now_ns, None);
        Ok(dataplane)
    }

    /// It reports again. Returns the tables whose popularity is seen to be another one.
    pub(crate) fn report(&mut self, now_ns: u64, report: Report) -> Result<Vec<String>, Refused> {
        let (instance, report) = checked(report)?;
        let passed = now_ns.saturating_sub(self.heard_ns);
        // Counters of another start are others.
        let passed = (instance == self.instance).then_some(passed);
        if instance != self.instance {
            self.body = 0;
        }
        (self.instance, self.heard_ns, self.report) = (instance, now_ns, report);
        let shifted = self.take_tables(now_ns, passed);
        if !shifted.is_empty() {
            self.shifted_ns = Some(now_ns);
        }
        Ok(shifted)
    }

    /// Takes over what the report says of tables, where so much time has passed since the one before.
    fn take_tables(&mut self, now_ns: u64, passed_ns: Option<u64>) -> Vec<String> {
        let mut before = std::mem::take(&mut self.tables);
        let mut shifted = Vec::new();
        for seen in &self.report.tables {
            if seen.placement != Placement::Cached {
                continue;
            }
            let name = seen.table.clone();
            let mut holding = before.remove(&name).unwrap_or(Holding {
                seen: seen.clone(),
                lookups: None,
                usual: 0.0,
                found: [None; 2],
                wanted_bytes: None,
                refused_until_ns: 0,
                moves: VecDeque::new(),
            });
            match passed_ns {
                Some(passed_ns) if holding.update(seen, now_ns, passed_ns) => {
                    shifted.push(name.clone());
                }
                _ => {}
            }
            holding.seen = seen.clone();
            self.tables.insert(name, holding);
        }
        shifted
    }

    /// Bytes of the arena that no table has.
    pub(crate) fn free_bytes(&self) -> u64 {
        let held = self.tables.values().map(|table| table.seen.cache_bytes);
        self.report.arena_bytes.saturating_sub(held.sum())
    }
}

impl Holding {
    /// Learns from counters that have gone on for some time. Tells whether hits are seen to be others than before.
    fn update(&mut self, seen: &TableReport, now_ns: u64, passed_ns: u64) -> bool {
        let lookups = seen.lookups.checked_sub(self.seen.lookups);
        let hits = seen.hits.checked_sub(self.seen.hits);
        let (Some(lookups), Some(hits)) = (lookups, hits) else {
            // They began anew, which a table's do when it is placed anew.
            return false;
        };
        if passed_ns == 0 {
            return false;
        }
        let (lookups, passed) = (lookups as f64, passed_ns as f64);
        let rate = lookups / (passed / 1e9);
        let left = |half_life: f64| 0.5_f64.powf(passed / half_life);
        let now = faded(self.lookups, rate, left(TRAFFIC_HALF_LIFE_NS));
        self.lookups = Some(now);
        self.usual = (self.usual * left(PAUSE_HALF_LIFE_NS)).max(now.min(USUAL_MOST));
        if lookups == 0.0 || hits as f64 > lookups {
            return false;
        }
        let found = hits as f64 / lookups;
        let before = self.found[1];
        for (known, half_life) in self.found.iter_mut().zip(FOUND_HALF_LIFE_NS) {
            *known = Some(faded(*known, found, left(half_life)));
        }
        let settling = |moved: &Move| now_ns < moved.at_ns.saturating_add(SETTLING_NS);
        let moving = seen.resizing || self.moves.back().is_some_and(settling);
        let differs = before.is_some_and(|before| {
            let sigma = (before * (1.0 - before) / lookups).sqrt();
            (found - before).abs() > (4.0 * sigma).max(SHIFT_LEAST)
        });
        let shifted =
            differs && !moving && lookups >= SHIFT_LOOKUPS && found < before.unwrap_or(0.0);
        if shifted {
            // Told once.
            self.found[1] = Some(found);
        }
        shifted
    }

    /// The part of its lookups that is found in the cache, as it is now.
    pub(crate) fn found(&self) -> Option<f64> {
        self.found[0]
    }
}

/// A value that goes towards another: so much of it is left.
fn faded(known: Option<f64>, new: f64, left: f64) -> f64 {
    known.map_or(new, |known| known * left + new * (1.0 - left))
}
