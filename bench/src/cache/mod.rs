//! Suite `cache`: hit rates of the built-in policy and of known ones, on traces and at sizes.

mod generators;
mod random;
mod reference;
mod table;
mod trace;

use std::path::Path;

use anyhow::{Result, ensure};

use crate::report::{Measurement, Reporter};
use generators::GENERATORS;
use reference::{Belady, ONLINE};
use trace::Trace;

/// Where the public trace lies beside a checkout.
const PUBLIC_TRACE: &str = "../shared/traces/reuse_medium_500k.txt";

/// Sizes of the cache, in rows.
const CAPACITIES: [usize; 5] = [1_000, 5_000, 10_000, 25_000, 50_000];

/// What to measure; where nothing is named, everything.
pub(crate) struct Choice<'a> {
    /// A file of ids, one a line, instead of the public trace and the generated ones.
    pub(crate) trace: Option<&'a Path>,
    /// Rows that the cache holds.
    pub(crate) rows: Option<usize>,
    /// One policy.
    pub(crate) policy: Option<&'a str>,
}

/// Runs the suite.
///
/// # Errors
/// Where the trace can't be read, or there is no such policy.
pub(crate) fn run(choice: &Choice, reporter: &mut Reporter) -> Result<()> {
    let known = || ONLINE.into_iter().chain(["belady"]);
    if let Some(policy) = choice.policy {
        ensure!(
            known().any(|name| name == policy),
            "there is no policy {policy}; --policy is one of {}",
            known().collect::<Vec<_>>().join(", ")
        );
    }
    let capacities = choice.rows.map_or(CAPACITIES.to_vec(), |rows| vec![rows]);
    for trace in traces(choice.trace)? {
        let trace = trace()?;
        for &capacity in &capacities {
            let named = |name: &&str| choice.policy.is_none_or(|policy| policy == *name);
            for policy in known().filter(named) {
                let case = case(&trace.name, capacity, policy);
                if reporter.wants(&case) {
                    measure(&case, &trace, capacity, policy, reporter);
                }
            }
        }
    }
    Ok(())
}

/// The traces to run, each made or read when its turn comes.
#[expect(clippy::type_complexity, reason = "a list of things to call")]
fn traces(file: Option<&Path>) -> Result<Vec<Box<dyn Fn() -> Result<Trace> + '_>>> {
    if let Some(file) = file {
        return Ok(vec![Box::new(|| Trace::read(file))]);
    }
    let mut traces: Vec<Box<dyn Fn() -> Result<Trace>>> = Vec::new();
    if Path::new(PUBLIC_TRACE).exists() {
        traces.push(Box::new(|| Trace::read(Path::new(PUBLIC_TRACE))));
    } else {
        eprintln!("cache: there is no {PUBLIC_TRACE} here, so only generated traces are run");
    }
    for generator in &GENERATORS {
        traces.push(Box::new(|| Ok(Trace::generate(generator))));
    }
    Ok(traces)
}

fn case(trace: &str, rows: usize, policy: &str) -> String {
    format!("trace={trace}/rows={rows}/policy={policy}/access=single")
}

/// One policy on one trace, beside libCacheSim's figure where there is one.
fn measure(case: &str, trace: &Trace, capacity: usize, policy: &str, reporter: &mut Reporter) {
    let rate = hit_rate_of(policy, capacity, trace).expect("a known policy");
    let found = Measurement::plain("cache", case, "hit_rate", rate, "fraction");
    reporter.add(match table::hit_rate(trace, capacity, policy) {
        Some(known) => found.beside("libCacheSim 0.3.5", known, rate / known),
        None => found,
    });
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
