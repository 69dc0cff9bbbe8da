//! The checks for a machine with a GPU (`make test-gpu`), with the stand-in for CUDA's driver: that they run, and hold there.

use std::ffi::OsStr;
use std::process::{Command, Output};

use cuda_stand_in::StandIn;
use rowmill_tests::faults::programs::Programs;

/// Bytes of the model: little more than the thousand rows that each of its tables has at least.
const BYTES: &str = "20000000";

fn run(library: &OsStr) -> Output {
    let programs = Programs::find().expect("the programs are built");
    let mut command = Command::new(programs.path("rowmill-gpu-tests"));
    command.arg(BYTES).env("ROWMILL_CUDA_LIBRARY", library);
    command.output().expect("it can be started")
}

#[test]
fn checks_hold_with_the_stand_in() {
    let stand_in = StandIn::new("");
    let output = run(stand_in.path().as_os_str());
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    let passed = said
        .lines()
        .filter(|line| line.starts_with("PASS "))
        .count();
    assert_eq!(passed, 8, "{said}");
}

#[test]
fn without_a_driver_they_are_skipped_with_the_reason() {
    let output = run(OsStr::new("libcuda-not-there.so.1"));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(
        said.starts_with("skipped: the CUDA driver `libcuda-not-there.so.1` can't be opened"),
        "{said}"
    );
}
