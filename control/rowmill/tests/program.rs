//! The program as scripts use it: its exit codes and what it does where nobody reads.

use std::fs::File;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

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

/// The signals that ask to end, and the statuses that shells give for them.
const ENDINGS: [(&str, i32); 3] = [("INT", 130), ("TERM", 143), ("HUP", 129)];

#[test]
fn interrupted_work_removes_what_it_wrote() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = folder.path().join("model");
    let model = model.to_str().expect("a plain path");
    let entries = || folder.path().read_dir().expect("readable").count();
    for (signal, status) in ENDINGS {
        // 2 GiB, of which little is written, unless this process gets no time.
        let mut command = Command::new(env!("CARGO_BIN_EXE_rowmill"));
        command.args(["table", "generate", model, "--table", "t:4000000:128:f32"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let child = child.expect("it runs");
        let began = Instant::now();
        while entries() == 0 {
            assert!(began.elapsed() < Duration::from_secs(20), "no draft");
            std::thread::sleep(Duration::from_millis(1));
        }
        // Twice, as `timeout` and a terminal that is closed do; by the second time it may have ended.
        let pid = child.id();
        let mut shell = Command::new("sh");
        let sent = shell.args([
            "-c",
            &format!("kill -{signal} {pid} && kill -{signal} {pid}; true"),
        ]);
        assert!(sent.status().expect("sh runs").success());
        let ended = child.wait_with_output().expect("it ends");
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(status), "{signal}: {stderr}");
        let said = format!("error: interrupted by SIG{signal}; what was written is removed again");
        assert!(stderr.contains(&said), "{stderr}");
        assert_eq!(entries(), 0, "{signal}");
    }
}

#[test]
fn files_that_may_not_grow_leave_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = env!("CARGO_BIN_EXE_rowmill");
    let model = folder.path().join("model");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 100; exec \"$0\" \"$@\"", program]);
    command.args(["table", "generate"]).arg(&model);
    let ended = command.args(["--table", "t:100000:16:f32"]).output();
    let ended = ended.expect("it runs");
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{:?}: {stderr}", ended.status);
    assert!(stderr.contains("raise the limit (`ulimit -f`)"), "{stderr}");
    assert_eq!(folder.path().read_dir().expect("readable").count(), 0);
}

#[test]
fn output_that_may_not_grow_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = std::fs::File::create(folder.path().join("out")).expect("a file");
    let mut command = Command::new("sh");
    let program = env!("CARGO_BIN_EXE_rowmill");
    command.args([
        "-c",
        "ulimit -f 0; exec \"$0\" token new --operator x",
        program,
    ]);
    let ended = command.stdout(out).output().expect("it runs");
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{:?}: {stderr}", ended.status);
    assert!(
        stderr.contains("cannot write to standard output: File too large"),
        "{stderr}"
    );
}

#[test]
fn to_watch_nothing_is_refused() {
    let ended = rowmill(&["watch", "--count", "0"], Stdio::null());
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("0 is not in 1.."), "{stderr}");
}

#[test]
fn numbers_that_can_not_be_are_told_and_not_taken_for_options() {
    let set = ["policy", "set", "m", "items"];
    for (words, option, said) in [
        (&set[..], &["--min", "-5MiB"][..], "a size is a number"),
        (&set, &["--max", "0MiB"], "a size is at least a byte"),
        (&set, &["--pinned", "-0.1"], "write a part of all"),
        (&["watch"], &["--interval", "-1"], "--interval is -1"),
        (
            &["generation"],
            &["load", "-1", "--model", "m"],
            "write one",
        ),
        (
            &["generation"],
            &["unload", "-1"],
            "invalid digit found in string",
        ),
    ] {
        let ended = rowmill(&[words, option].concat(), Stdio::null());
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success());
        assert!(stderr.contains(said), "{option:?}: {stderr}");
    }
}

#[test]
fn certificates_for_development_are_made_once() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let certs = folder.path().join("certs");
    let path = certs.to_str().expect("a plain path");
    let make = |more: &[&str]| {
        let args = ["cert", "dev", path, "--dataplane", "a", "--operator", "o"];
        rowmill(&[&args, more].concat(), Stdio::piped())
    };
    let made = make(&["--host", "control.example", "--days", "7"]);
    let told = String::from_utf8_lossy(&made.stdout).into_owned();
    assert!(made.status.success(), "{made:?}");
    assert!(
        told.contains("control.example, dataplanes: a, operators: o; valid for 7 days"),
        "{told}"
    );
    let names = ["server", "dataplane-a", "operator-o"];
    for name in names {
        let key = std::fs::metadata(certs.join(format!("{name}-key.pem"))).expect("a key");
        assert_eq!(key.permissions().mode() & 0o777, 0o600, "{name}");
        let own = (
            certs.join(format!("{name}.pem")),
            certs.join(format!("{name}-key.pem")),
        );
        let files = rowmill_trust::ClientFiles {
            ca: certs.join("ca.pem"),
            own: Some(own),
        };
        files.read().expect("a certificate and its key");
    }
    let ca = || std::fs::read(certs.join("ca.pem")).expect("an authority");
    let before = ca();
    let again = make(&[]);
    let stderr = String::from_utf8_lossy(&again.stderr);
    assert!(
        !again.status.success() && stderr.contains("--force"),
        "{stderr}"
    );
    assert_eq!(ca(), before);
    assert!(make(&["--force"]).status.success());
    assert_ne!(ca(), before);
    for wrong in [
        ["--host", "a b"],
        ["--dataplane", "a/b"],
        ["--days", "0"],
        ["--days", "10000"],
    ] {
        let args = [&["cert", "dev", path, "--force"], &wrong[..]].concat();
        assert!(!rowmill(&args, Stdio::null()).status.success(), "{wrong:?}");
    }
}

#[test]
fn tokens_are_shown_once() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let [token, lines] = ["token", "tokens"].map(|name| folder.path().join(name));
    let path = token.to_str().expect("a plain path");
    let made = rowmill(
        &["token", "new", "--operator", "me", "--to", path],
        Stdio::piped(),
    );
    std::fs::write(&lines, &made.stdout).expect("a file");
    let secret = rowmill_trust::Token::read(&token).expect("a token");
    let mode = std::fs::metadata(&token)
        .expect("a file")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let known = rowmill_trust::Tokens::read(&lines).expect("a line");
    let who = known.find(secret.secret().as_bytes()).expect("it is known");
    assert_eq!(who.to_string(), "operator me");
    assert!(!String::from_utf8_lossy(&made.stdout).contains(secret.secret()));
    let again = rowmill(
        &["token", "new", "--operator", "me", "--to", path],
        Stdio::null(),
    );
    assert!(!again.status.success(), "a token is not overwritten");
    let shown = rowmill(&["token", "new", "--dataplane", "a"], Stdio::piped());
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(
        shown.contains("\nrowmill_") && shown.contains("\ndataplane a "),
        "{shown}"
    );
    for wrong in [
        &["token", "new"][..],
        &["token", "new", "--operator", "a", "--dataplane", "b"],
    ] {
        assert!(!rowmill(wrong, Stdio::null()).status.success(), "{wrong:?}");
    }
}

#[test]
fn what_is_needed_for_tls_is_said() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("https://{}", listener.local_addr().expect("an address"));
    let answer = rowmill(&["tables", "--control", &url], Stdio::null());
    let stderr = String::from_utf8_lossy(&answer.stderr);
    assert!(stderr.contains("https:// needs --ca FILE"), "{stderr}");
    let answer = rowmill(
        &["tables", "--control", &url, "--ca", "/nowhere/ca.pem"],
        Stdio::null(),
    );
    let stderr = String::from_utf8_lossy(&answer.stderr);
    assert!(stderr.contains("cannot read /nowhere/ca.pem"), "{stderr}");
    let answer = rowmill(&["tables", "--control", &url, "--key", "k"], Stdio::null());
    assert!(!answer.status.success());
}
