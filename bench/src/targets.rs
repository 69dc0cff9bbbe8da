//! `rowmill-bench targets`: runs the suites that `targets.toml` names and compares each figure with its
//! bound.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use comfy_table::Table;
use comfy_table::presets::UTF8_BORDERS_ONLY;
use rowmill_pooling::Isa;
use serde::Deserialize;
use serde_json::Value;

use crate::gpu;
use crate::machine;
use crate::report::figure;

/// The bounds, as committed.
const TARGETS: &str = include_str!("../targets.toml");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Targets {
    target: Vec<Target>,
}

/// One line of a "Must reach".
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    /// What is promised, for a person.
    what: String,
    suite: String,
    case: String,
    metric: String,
    /// Which figure is bounded: `ratio` or `value`.
    figure: String,
    /// The least it may be.
    at_least: f64,
}

/// The committed targets, for this machine's instruction set.
fn committed() -> Result<Targets> {
    let isa = format!("isa={}", Isa::detect().isa);
    toml::from_str(&TARGETS.replace("isa=best", &isa)).context("targets.toml")
}

/// Runs all suites that are named, and prints a table.
///
/// # Errors
/// Where a suite can't be run at all.
pub(crate) fn run(json: bool) -> Result<ExitCode> {
    let targets = committed()?;
    let mut measured = Measured::new();
    let mut unmeasured: Vec<String> = Vec::new();
    for suite in suites(&targets.target) {
        let lines = match suite {
            // It has two halves, on machines that the lab makes.
            "rdma" => in_the_lab(&mut unmeasured),
            "gpu" => on_a_gpu(&mut unmeasured)?,
            suite => measure(suite)?,
        };
        for line in lines {
            let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
            measured.insert((text("suite"), text("case"), text("metric")), line);
        }
        // Each suite takes minutes, and a run that is cut short has these.
        let of_suite = targets.target.iter().filter(|target| target.suite == suite);
        for target in of_suite {
            let (found, outcome) = outcome(target, line_of(&measured, target));
            let found = found.map_or_else(|| "-".into(), |f| format!("{f:.3}"));
            eprintln!("targets: {outcome} {suite} {}: {found}", target.case);
        }
    }
    let mut table = Table::new();
    table
        .load_style(UTF8_BORDERS_ONLY)
        .set_header(["target", "case", "bound", "figure", "outcome"]);
    let mut passed = 0;
    for target in &targets.target {
        let line = line_of(&measured, target);
        let (found, outcome) = outcome(target, line);
        passed += usize::from(outcome == "PASS");
        let shown = found.map_or_else(|| "-".into(), |f| format!("{f:.3}"));
        let value = line.map_or_else(String::new, |l| value_of(l, &target.metric));
        if json {
            let object = serde_json::json!({
                "target": target.what, "suite": target.suite, "case": target.case, "metric": target.metric,
                "figure": target.figure, "at_least": target.at_least, "found": found, "outcome": outcome,
            });
            println!("{object}");
        }
        let case = format!("{} {}{value}", target.suite, target.case);
        let bound = format!("{} >= {}", target.figure, target.at_least);
        table.add_row([target.what.as_str(), &case, &bound, &shown, outcome]);
    }
    if !json {
        for (what, text) in machine::describe() {
            println!("{what}: {text}");
        }
        println!(
            "{table}\n{passed} of {} targets reached",
            targets.target.len()
        );
        for why in &unmeasured {
            println!("NOT MEASURED: {why}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The suites that are named, each once.
fn suites(targets: &[Target]) -> Vec<&str> {
    let mut suites: Vec<&str> = Vec::new();
    for target in targets {
        if !suites.contains(&target.suite.as_str()) {
            suites.push(&target.suite);
        }
    }
    suites
}

/// What was measured, by suite, case and metric.
type Measured = BTreeMap<(String, String, String), Value>;

/// What was measured of a target.
fn line_of<'m>(measured: &'m Measured, target: &Target) -> Option<&'m Value> {
    let Target {
        suite,
        case,
        metric,
        ..
    } = target;
    measured.get(&(suite.clone(), case.clone(), metric.clone()))
}

/// Its figure, and whether that is enough.
fn outcome(target: &Target, line: Option<&Value>) -> (Option<f64>, &'static str) {
    let found = line
        .and_then(|line| line[&target.figure].as_f64())
        .filter(|f| f.is_finite());
    let outcome = match found {
        None => "NOT MEASURED",
        Some(found) if found >= target.at_least => "PASS",
        Some(_) => "SHORT",
    };
    (found, outcome)
}

/// The figures behind a ratio, for a person.
fn value_of(line: &Value, metric: &str) -> String {
    let unit = line["unit"].as_str().unwrap_or_default();
    let value = line["value"].as_f64().map(figure).unwrap_or_default();
    match (line["against"].as_str(), line["against_value"].as_f64()) {
        (Some(against), Some(other)) => {
            format!("\n{metric} {value} {unit}, {against} {}", figure(other))
        }
        _ => format!("\n{metric} {value} {unit}"),
    }
}

/// Runs a suite as a process of its own, so that no suite leaves its memory or pinning to the next.
fn measure(suite: &str) -> Result<Vec<Value>> {
    eprintln!("targets: running the suite {suite}");
    let this = std::env::current_exe().context("where this program lies")?;
    let out = Command::new(this)
        .args([suite, "--json"])
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("running {suite}"))?;
    if !out.status.success() {
        // Its message stands on standard error; what it has measured counts, the rest is NOT MEASURED.
        eprintln!("targets: the suite {suite} ended with {}", out.status);
    }
    let text = String::from_utf8(out.stdout).context("the suite's output")?;
    text.lines()
        .map(|l| serde_json::from_str(l).context("a line of the suite's output"))
        .collect()
}

/// The suite `gpu`, which most machines have nothing for; why goes to `unmeasured`.
fn on_a_gpu(unmeasured: &mut Vec<String>) -> Result<Vec<Value>> {
    eprintln!("targets: running the suite gpu");
    let measured = gpu::measure().unwrap_or_else(|why| {
        unmeasured.push(format!("the suite gpu: {why:#}"));
        Vec::new()
    });
    let lines = measured.iter().map(serde_json::to_value);
    lines
        .collect::<Result<_, _>>()
        .context("figures of the suite gpu")
}

/// The lab's driver, from the root of the checkout.
const LAB: &str = "deploy/lab/run.py";

/// The suite `rdma`: its two halves between two machines of the lab, and the counts of system calls in one. What can't be
/// measured goes to `unmeasured` with its reason.
fn in_the_lab(unmeasured: &mut Vec<String>) -> Vec<Value> {
    let mut figures = Vec::new();
    for (kind, scenario) in [("bench", "rdma"), ("test", "syscalls")] {
        eprintln!("targets: running the lab's scenario {scenario}");
        match scenario_of_the_lab(kind, scenario) {
            Ok(lines) => figures.extend(lines),
            Err(why) => unmeasured.push(format!("the lab's scenario {scenario}: {why:#}")),
        }
    }
    figures
}

/// Runs one scenario; its figures, also where it fails after some of them.
fn scenario_of_the_lab(kind: &str, scenario: &str) -> Result<Vec<Value>> {
    let out = Command::new(LAB)
        .args([kind, "--filter", &format!("^{scenario}$")])
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("running {LAB} (from the root of a checkout)"))?;
    let said = String::from_utf8_lossy(&out.stdout);
    let folder = said
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("lab: logs are in "));
    let path = folder.map(|folder| Path::new(folder).join("figures.json"));
    let text = path.and_then(|path| fs::read_to_string(path).ok());
    let Some(text) = text else {
        let end: Vec<&str> = said.lines().rev().take(5).collect();
        bail!(
            "no figures, {}; it ends with: {}",
            out.status,
            end.into_iter().rev().collect::<Vec<_>>().join(" / ")
        );
    };
    if !out.status.success() {
        eprintln!(
            "targets: the lab's scenario {scenario} ended with {}",
            out.status
        );
    }
    text.lines()
        .map(|l| serde_json::from_str(l).context("a line of the lab's figures"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_targets_are_read() {
        let targets = committed().expect("targets.toml");
        assert!(targets.target.len() >= 10);
        assert!(
            targets
                .target
                .iter()
                .all(|t| ["ratio", "value"].contains(&t.figure.as_str()))
        );
    }

    #[test]
    fn each_suite_is_run_once() {
        let targets = committed().expect("targets.toml");
        let mut suites = suites(&targets.target);
        let count = suites.len();
        suites.sort_unstable();
        suites.dedup();
        assert_eq!(suites.len(), count);
        assert!(
            targets
                .target
                .iter()
                .all(|t| suites.contains(&t.suite.as_str()))
        );
    }
}
