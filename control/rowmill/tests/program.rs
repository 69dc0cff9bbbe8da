//! The program as scripts use it: its exit codes and what it does where nobody reads.

use std::fs::File;
use std::process::{Command, Output, Stdio};

fn rowmill(args: &[&str], stdout: Stdio) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rowmill"));
    command.args(args).stdout(stdout).output().expect("it runs")
}

#[test]
fn output_that_cannot_be_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = folder.path().join("model");
    let model = model.to_str().expect("a plain path");
    let made = rowmill(
        &["table", "generate", model, "--table", "t:100:16:f32"],
        Stdio::null(),
    );
    assert!(made.status.success());
    for args in [
        &["table", "inspect", model][..],
        &["table", "inspect", model, "--json"],
        &["table", "inspect", model, "--row", "t:1"],
        &["table", "verify", model],
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let closed = rowmill(args, writer.into());
        assert_eq!(closed.status.code(), Some(0), "{args:?}");
        assert!(closed.stderr.is_empty(), "{args:?}");

        let full = File::create("/dev/full").expect("it is always there");
        let full = rowmill(args, full.into());
        let stderr = String::from_utf8_lossy(&full.stderr);
        assert_eq!(full.status.code(), Some(1), "{args:?}: {stderr}");
        assert!(
            stderr.starts_with("error: cannot write to standard output: "),
            "{stderr}"
        );
    }
}

#[test]
fn reasons_are_said_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let endpoint = format!("shm:{}", folder.path().join("none.sock").display());
    let answer = rowmill(
        &["lookup", &endpoint, "--table", "t", "--ids", "1"],
        Stdio::null(),
    );
    let stderr = String::from_utf8_lossy(&answer.stderr);
    assert_eq!(answer.status.code(), Some(1));
    assert_eq!(stderr.matches("No such file").count(), 1, "{stderr}");
}
