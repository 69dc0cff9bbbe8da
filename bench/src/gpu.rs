//! Suite `gpu`: what `make test-gpu` sees on a machine with a GPU.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use rowmill_client::GpuOptions;
use rowmill_client::cuda::Driver;
use serde::Deserialize;
use serde_json::Value;

use crate::report::Measurement;

/// What runs the checks, from the root of the checkout.
const SCRIPT: &str = "deploy/test-gpu.sh";

/// A check, as it stands in the file of results.
#[derive(Deserialize)]
struct Check {
    check: String,
    passed: bool,
    #[serde(default)]
    line: String,
    #[serde(default)]
    figures: Value,
}

/// Runs the checks. Without a GPU the error says why there is none.
///
/// # Errors
/// Where there is no GPU, and where no results come.
pub(crate) fn measure() -> Result<Vec<Measurement>> {
    let options = GpuOptions::default();
    let device = Driver::open(&options.library)?.device(options.ordinal)?;
    ensure!(
        !device.name()?.contains("no GPU"),
        "{} is a stand-in, whose times say nothing",
        options.library.display()
    );
    let folder = tempfile::tempdir().context("a folder for results")?;
    let file = folder.path().join("results.json");
    let ran = Command::new(SCRIPT).env("RESULTS", &file).output();
    let ran = ran.with_context(|| format!("running {SCRIPT} (from the root of a checkout)"))?;
    let said = String::from_utf8_lossy(&ran.stdout);
    eprint!("{said}");
    if !file.exists() {
        let skipped = said.lines().find(|line| line.starts_with("skipped: "));
        let why = skipped.map_or_else(|| format!("{SCRIPT} ended with {}", ran.status), Into::into);
        bail!("{why}");
    }
    read(&file)
}

/// The figures of a file of results.
fn read(file: &Path) -> Result<Vec<Measurement>> {
    let text = fs::read_to_string(file).context("the results")?;
    let checks: Vec<Check> = serde_json::from_str(&text).context("the results")?;
    Ok(checks.iter().flat_map(figures).collect())
}

fn figures(check: &Check) -> Vec<Measurement> {
    let case = format!("port=shm/shape=dlrm-v2/samples=256/check={}", check.check);
    let passed = f64::from(u8::from(check.passed));
    eprintln!("gpu: {}: {}", check.check, check.line);
    let mut found = vec![Measurement::plain("gpu", &case, "passed", passed, "checks")];
    let us = |name: &str| check.figures[name].as_f64();
    if let (Some(took), Some(bound)) = (us("end_to_end_us"), us("bound_us")) {
        let took = Measurement::plain("gpu", &case, "end_to_end", took, "us");
        let ratio = bound / took.value;
        found.push(took.beside(
            "1.1 x the larger of pooling and copying + 20 us",
            bound,
            ratio,
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_become_figures() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("results.json");
        let text = r#"[
            {"check": "dma-buf-export", "passed": true, "line": "exported", "figures": {"code": 0}},
            {"check": "after-the-lookup", "passed": false, "line": "the stream read something else"},
            {"check": "times", "passed": true, "line": "", "figures": {"end_to_end_us": 100.0, "bound_us": 120.0}}
        ]"#;
        fs::write(&file, text).expect("written");
        let found = read(&file).expect("read");
        let lines: Vec<Value> = found
            .iter()
            .map(|found| serde_json::to_value(found).expect("plain values"))
            .collect();
        let of = |at: usize, key: &str| lines[at][key].clone();
        assert_eq!(lines.len(), 4);
        assert_eq!(
            (of(0, "metric"), of(0, "value")),
            ("passed".into(), 1.0.into())
        );
        assert_eq!(of(1, "value"), 0.0);
        assert_eq!(
            of(3, "case"),
            "port=shm/shape=dlrm-v2/samples=256/check=times"
        );
        assert_eq!(
            (of(3, "metric"), of(3, "ratio")),
            ("end_to_end".into(), 1.2.into())
        );
    }
}
