//! Deltas that come by a stream of a real Redis server.

#[path = "support/deltas.rs"]
mod deltas;
mod support;

use std::fs;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use deltas::Deltas;
use redis::{Connection, Value as Reply};
use serde_json::{Value, json};
use support::{Control, TOML, wait_for};

/// A server of its own, which keeps all it acknowledges. It ends with this.
struct Server {
    folder: tempfile::TempDir,
    child: Child,
}

impl Server {
    fn start() -> Server {
        let folder = tempfile::tempdir().unwrap();
        let child = Server::spawn(folder.path());
        Server { folder, child }
    }

    fn spawn(folder: &Path) -> Child {
        let log = fs::File::create(folder.join("log")).unwrap();
        // Debian has the server's program in redis-tools by this name; what it does, its own name says.
        let mut server = Command::new("redis-check-rdb");
        server.arg0("redis-server");
        server.args(["--port", "0", "--save", "", "--appendonly", "yes"]);
        server.args(["--appendfsync", "always", "--unixsocket", "socket"]);
        let server = server.current_dir(folder).stdout(Stdio::from(log));
        let child = server
            .spawn()
            .expect("redis-server is there: apt-get install redis-tools");
        wait_for("redis-server", || {
            UnixStream::connect(folder.join("socket")).is_ok()
        });
        child
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn kill_and_start(&mut self) {
        self.kill();
        self.child = Server::spawn(self.folder.path());
    }

    fn url(&self) -> String {
        format!("unix://{}", self.folder.path().join("socket").display())
    }

    fn connect(&self) -> Connection {
        let client = redis::Client::open(self.url()).unwrap();
        client.get_connection().unwrap()
    }

    /// Adds an entry to the stream. It is on the disk then.
    fn add(&self, field: &str, bytes: &[u8]) {
        self.add_with("*", field, bytes);
    }

    /// Adds a delta with a number.
    fn add_as(&self, number: &str, bytes: &[u8]) {
        self.add_with(number, "delta", bytes);
    }

    fn add_with(&self, number: &str, field: &str, bytes: &[u8]) {
        let mut add = redis::cmd("XADD");
        add.arg("rowmill:deltas").arg(number).arg(field).arg(bytes);
        let _id: String = add.query(&mut self.connect()).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn reading(folder: &tempfile::TempDir, server: &Server) -> String {
    let directory = folder.path().join("log");
    format!(
        "{TOML}[deltas]\ndirectory = '{}'\nmax_bytes = 100000\nredis = {{ url = '{}' }}\n",
        directory.display(),
        server.url()
    )
}

fn last(control: &Control) -> Value {
    control.get("/v1/deltas").1[0]["last"].clone()
}

#[test]
fn entries_are_taken_each_once_whoever_is_killed() {
    let (folder, made, mut server) = (tempfile::tempdir().unwrap(), Deltas::of(1), Server::start());
    server.add("delta", &made.bytes(1, 1.0));
    let mut control = Control::start(&reading(&folder, &server));
    wait_for("the first", || last(&control) == json!(1));
    // The same again, bad ones of each kind, and one ahead: they are passed by and told.
    server.add("delta", &made.bytes(1, 1.0));
    server.add("delta", b"none");
    server.add("other", &made.bytes(2, 2.0));
    server.add("delta", &vec![0; 100_001]);
    server.add("delta", &made.bytes(3, 3.0));
    server.add("delta", &made.bytes(2, 2.0));
    wait_for("the second", || last(&control) == json!(2));
    let log = control.log();
    assert!(log.contains("no field `delta`"), "{log}");
    assert!(log.contains("deltas.max_bytes is 100000"), "{log}");
    assert!(log.contains("and 2 comes next"), "{log}");
    assert_eq!(log.matches("is not taken").count(), 4, "{log}");
    let told = || control.get("/v1/status").1["deltas"].to_string();
    wait_for("how it stands", || {
        told().contains("3 taken or known; 3 refused; 1 passed by; the last: entry ")
    });
    assert!(told().contains("and 2 comes next"), "{}", told());

    // Redis is killed: what it had acknowledged is read once it is there again.
    server.kill();
    wait_for("a word on that", || {
        control.get("/v1/status").1["deltas"]
            .to_string()
            .contains("cannot be read")
    });
    server.child = Server::spawn(server.folder.path());
    server.add("delta", &made.bytes(3, 3.0));
    wait_for("the third", || last(&control) == json!(3));

    // Added while no control plane runs, and what was read before is not told of again.
    control.kill();
    server.add("delta", &made.bytes(4, 4.0));
    server.kill_and_start();
    control.start_again();
    wait_for("the fourth", || last(&control) == json!(4));
    let log = control.log();
    assert!(!log.contains("is not taken"), "{log}");

    // Its place is lost: all come again, and nothing changes.
    control.kill();
    fs::remove_file(folder.path().join("log/stream-place")).unwrap();
    server.add("delta", &made.bytes(5, 5.0));
    control.start_again();
    wait_for("the fifth", || last(&control) == json!(5));

    // The stream is begun anew, with numbers that come before.
    control.kill();
    let removed: Reply = redis::cmd("DEL")
        .arg("rowmill:deltas")
        .query(&mut server.connect())
        .unwrap();
    assert_eq!(removed, Reply::Int(1));
    server.add_as("5-1", &made.bytes(6, 6.0));
    control.start_again();
    wait_for("the sixth", || last(&control) == json!(6));
    assert!(control.log().contains("begun anew"), "{}", control.log());
}

#[test]
fn a_stream_that_is_begun_anew_while_it_is_read_is_read_from_its_beginning() {
    let (folder, made, server) = (tempfile::tempdir().unwrap(), Deltas::of(1), Server::start());
    server.add("delta", &made.bytes(1, 1.0));
    let control = Control::start(&reading(&folder, &server));
    wait_for("the first", || last(&control) == json!(1));
    let removed: Reply = redis::cmd("DEL")
        .arg("rowmill:deltas")
        .query(&mut server.connect())
        .unwrap();
    assert_eq!(removed, Reply::Int(1));
    server.add_as("6-1", &made.bytes(1, 1.0));
    server.add_as("6-2", &made.bytes(2, 2.0));
    wait_for("the second", || last(&control) == json!(2));
    let log = control.log();
    assert!(
        log.contains("ends at 6-2, and was read to ") && log.contains("WARN"),
        "{log}"
    );
    wait_for("how it stands", || {
        control.get("/v1/status").1["deltas"]
            .to_string()
            .contains("was read to 6-2")
    });
}
