//! All faults of `make faults`, as a test, but for those of the Python package, which no test of cargo builds.

use rowmill_tests::faults::{Outcome, run};

#[test]
fn every_fault_is_survived() {
    let reports = run(
        |name| !name.starts_with("py-"),
        |report| println!("{:24} {:?}", report.name, report.outcome),
    );
    let reports = reports.unwrap_or_else(|error| panic!("{error:#}"));
    let failed: Vec<String> = reports
        .iter()
        .filter_map(|report| match &report.outcome {
            Outcome::Fail(why) => Some(format!("{}: {why}", report.name)),
            _ => None,
        })
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(!reports.is_empty());
}
