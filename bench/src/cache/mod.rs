//! Suite `cache`: hit rates of the built-in policy beside known ones, on traces and at sizes.

pub(crate) mod adaptive;
mod generators;
mod hard;
mod planned;
mod random;
mod reference;
mod shares;
mod table;
mod trace;

use std::path::Path;

use anyhow::{Result, ensure};
use rowmill_arena::available_bytes;

use crate::report::{Measurement, Reporter};
use adaptive::Adaptive;
use generators::GENERATORS;
use hard::HARD;
use reference::{Belady, ONLINE};
use trace::Trace;

/// Where the public trace lies beside a checkout.
const PUBLIC_TRACE: &str = "../shared/traces/reuse_medium_500k.txt";

/// Sizes of the cache, in rows.
const CAPACITIES: [usize; 6] = [1_000, 5_000, 10_000, 25_000, 50_000, 100_000];

/// Bytes that a policy takes for a row, at most: the largest of them keep lists of as many rows again, and sketches.
const POLICY_BYTES: u64 = 128;

/// The built-in policy.
const ADAPTIVE: &str = "adaptive";

/// Lookups of a batch: 64 bags of 80.
const BATCH: usize = 64 * 80;

/// What to measure; where nothing is named, everything.
pub(crate) struct Choice<'a> {
    /// A file of ids, one a line, instead of the public trace and the generated ones.
    pub(crate) trace: Option<&'a Path>,
    /// Rows that the cache holds.
    pub(crate) rows: Option<usize>,
    /// One policy.
    pub(crate) policy: Option<&'a str>,
    /// The hard traces, too, and batches from all traces and not from the public one only.
    pub(crate) full: bool,
}

impl Choice<'_> {
    fn has(&self, policy: &str) -> bool {
        self.policy.is_none_or(|only| only == policy)
    }

    fn has_batches(&self, trace: &Trace) -> bool {
        self.has(ADAPTIVE) && (self.full || self.trace.is_some() || table::is_of(trace))
    }
}

/// Runs the suite.
///
/// # Errors
/// Where the trace can't be read, or there is no such policy.
pub(crate) fn run(choice: &Choice, reporter: &mut Reporter) -> Result<()> {
    let known = || [ADAPTIVE].into_iter().chain(ONLINE).chain(["belady"]);
    if let Some(policy) = choice.policy {
        ensure!(
            known().any(|name| name == policy),
            "there is no policy {policy}; --policy is one of {}",
            known().collect::<Vec<_>>().join(", ")
        );
    }
    if let Some(rows) = choice.rows {
        let ((available, _), needed) = (available_bytes(), rows as u64 * POLICY_BYTES);
        ensure!(
            needed <= available,
            "--rows {rows}: policies may take {} MiB for so many, and {} MiB are free; write fewer",
            needed >> 20,
            available >> 20
        );
    }
    let capacities = choice.rows.map_or(CAPACITIES.to_vec(), |rows| vec![rows]);
    let mut margins = Vec::new();
    for trace in traces(choice.trace, choice.full)? {
        let trace = trace()?;
        for &capacity in &capacities {
            let mut compared = Compared::new(&trace, capacity);
            for policy in known().filter(|policy| choice.has(policy)) {
                let case = case(&trace.name, Size::Rows(capacity), policy, "single");
                if !reporter.wants(&case) {
                    continue;
                }
                if policy == ADAPTIVE {
                    margins.push(compared.margin(&case, compared.single()?, reporter));
                } else {
                    compared.known(&case, policy, reporter);
                }
            }
            for (access, waiting) in [("batch", 0), ("batch/waiting=1", 1)] {
                let case = case(&trace.name, Size::Rows(capacity), ADAPTIVE, access);
                if choice.has_batches(&trace) && reporter.wants(&case) {
                    compared.margin(&case, compared.batches(waiting)?, reporter);
                }
            }
        }
    }
    worst_cases(&capacities, &margins, reporter);
    if choice.trace.is_none() && choice.rows.is_none() && choice.policy.is_none() {
        shares::run(reporter)?;
    }
    Ok(())
}

/// The traces to run, each made or read when its turn comes.
#[expect(clippy::type_complexity, reason = "a list of things to call")]
fn traces(file: Option<&Path>, full: bool) -> Result<Vec<Box<dyn Fn() -> Result<Trace> + '_>>> {
    if let Some(file) = file {
        return Ok(vec![Box::new(|| Trace::read(file))]);
    }
    let mut traces: Vec<Box<dyn Fn() -> Result<Trace>>> = Vec::new();
    if Path::new(PUBLIC_TRACE).exists() {
        traces.push(Box::new(|| Trace::read(Path::new(PUBLIC_TRACE))));
    } else {
        eprintln!("cache: there is no {PUBLIC_TRACE} here, so only generated traces are run");
    }
    let hard = HARD.iter().filter(|_| full);
    for generator in GENERATORS.iter().chain(hard) {
        traces.push(Box::new(|| Ok(Trace::generate(generator))));
    }
    Ok(traces)
}

/// How large a cache is, as a case tells it.
#[derive(Clone, Copy)]
enum Size {
    Rows(usize),
    Bytes(u64),
}

fn case(trace: &str, size: Size, policy: &str, access: &str) -> String {
    let size = match size {
        Size::Rows(rows) => format!("rows={rows}"),
        Size::Bytes(bytes) => format!("bytes={bytes}"),
    };
    format!("trace={trace}/{size}/policy={policy}/access={access}")
}

/// How far the built-in policy is above the best known one, of a trace and size.
struct Margin {
    trace: String,
    capacity: usize,
    against: &'static str,
    points: f64,
}

/// A trace at a size, with the hit rates of the known policies as far as they were needed.
struct Compared<'a> {
    trace: &'a Trace,
    capacity: usize,
    rates: Vec<(&'static str, f64)>,
}

impl Compared<'_> {
    fn new(trace: &Trace, capacity: usize) -> Compared<'_> {
        Compared {
            trace,
            capacity,
            rates: Vec::new(),
        }
    }

    /// The hit rate of a policy that is in `reference`.
    fn rate(&mut self, policy: &'static str) -> f64 {
        if let Some((_, rate)) = self.rates.iter().find(|(name, _)| *name == policy) {
            return *rate;
        }
        let rate = hit_rate_of(policy, self.capacity, self.trace).expect("a known policy");
        self.rates.push((policy, rate));
        rate
    }

    /// Reports a known policy, beside libCacheSim's figure where there is one.
    fn known(&mut self, case: &str, policy: &'static str, reporter: &mut Reporter) {
        let rate = self.rate(policy);
        let found = Measurement::plain("cache", case, "hit_rate", rate, "fraction");
        reporter.add(match table::hit_rate(self.trace, self.capacity, policy) {
            Some(known) => found.beside("libCacheSim 0.3.5", known, over(rate, known)),
            None => found,
        });
    }

    /// The built-in policy, lookup by lookup.
    fn single(&self) -> Result<f64> {
        let mut cache = Adaptive::of_single(self.capacity)?;
        let hits = reference::hits(&mut cache, &self.trace.accesses);
        Ok(hits as f64 / self.trace.accesses.len() as f64)
    }

    /// The built-in policy, with so many more batches known than the one in hand.
    fn batches(&self, waiting: usize) -> Result<f64> {
        let mut cache = Adaptive::of_bags(self.capacity)?;
        let hits = cache.hits_of_batches(&self.trace.accesses, BATCH, waiting);
        Ok(hits as f64 / self.trace.accesses.len() as f64)
    }

    /// Reports the built-in policy beside the best known online one.
    fn margin(&mut self, case: &str, rate: f64, reporter: &mut Reporter) -> Margin {
        let rates = ONLINE.map(|policy| (policy, self.rate(policy)));
        let best = rates.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let (against, best) = best.expect("there are policies");
        let points = 100.0 * (rate - best);
        let found = Measurement::plain("cache", case, "hit_rate", rate, "fraction");
        reporter.add(found.beside(against, best, over(rate, best)));
        let mut found = Measurement::plain("cache", case, "margin", points, "points");
        found.against = Some(against.into());
        reporter.add(found);
        Margin {
            trace: self.trace.name.clone(),
            capacity: self.capacity,
            against,
            points,
        }
    }
}

/// One hit rate over another; of two that are zero, 1.
fn over(rate: f64, other: f64) -> f64 {
    if rate == other { 1.0 } else { rate / other }
}

/// Reports, for each size, the trace on which the built-in policy is worst beside the best known online one.
fn worst_cases(capacities: &[usize], margins: &[Margin], reporter: &mut Reporter) {
    for &capacity in capacities {
        let of_size = margins.iter().filter(|m| m.capacity == capacity);
        if let Some(worst) = of_size.min_by(|a, b| a.points.total_cmp(&b.points)) {
            let case = case("worst", Size::Rows(capacity), ADAPTIVE, "single");
            let mut found = Measurement::plain("cache", &case, "margin", worst.points, "points");
            found.against = Some(format!("{} on {}", worst.against, worst.trace).into());
            reporter.add(found);
        }
    }
}

/// The share of a trace's accesses that hit a cache of `capacity` rows; `None` where there is no such policy.
fn hit_rate_of(policy: &str, capacity: usize, trace: &Trace) -> Option<f64> {
    let accesses = &trace.accesses;
    let hits = match policy {
        "belady" => Belady::hits(accesses, capacity, trace.rows),
        online => reference::hits(
            &mut *reference::online(online, capacity, trace.rows)?,
            accesses,
        ),
    };
    Some(hits as f64 / accesses.len() as f64)
}
