//! The program, started on a small model in a folder of its own.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rowmill_table::{RowFormat, TableSpec, generate, silent};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use serde_json::Value;
use tempfile::TempDir;

/// Long enough for a loaded machine, short enough for a person.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A folder with a model and a configuration.
pub struct Place {
    folder: TempDir,
}

impl Place {
    pub fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let spec = |name: &str, format| TableSpec {
            name: name.into(),
            rows: 1000,
            dim: 16,
            format,
            kind: rowmill_table::TableKind::Dense,
        };
        let specs = [spec("f", RowFormat::F32), spec("q", RowFormat::Int8)];
        generate(folder.path().join("model"), 1, &specs, 1, &silent).unwrap();
        Place { folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn endpoint(&self) -> String {
        format!("shm:{}", self.path("r.sock").display())
    }

    /// Writes a configuration with `model` in the section of the model and `more` behind.
    pub fn configure(&self, model: &str, more: &str) -> PathBuf {
        let path = self.path("rowmilld.toml");
        let text = format!(
            "endpoints = [\"{}\"]\n[model]\ndirectory = \"{}\"\n{model}\n{more}\n",
            self.endpoint(),
            self.path("model").display()
        );
        std::fs::write(&path, text).unwrap();
        path
    }
}

/// What fits a small machine that does other things too.
pub const MODEST: &str =
    "[workers]\ncpus = 2\npin = false\n[limits]\nslots = 4\n[admin]\naddress = \"127.0.0.1:0\"";

pub fn command(config: &Path, check: bool) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rowmilld"));
    command
        .arg("--config")
        .arg(config)
        .env_remove("ROWMILL_LOG");
    if check {
        command.arg("--check");
    }
    command
}

pub fn run(config: &Path, check: bool) -> (Output, String) {
    let output = command(config, check).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, stderr)
}

/// A running program; killed when dropped.
pub struct Running {
    child: Child,
    lines: Receiver<String>,
    pub log: String,
}

impl Running {
    pub fn start(config: &Path) -> Running {
        let mut child = command(config, false)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Running {
            child,
            lines,
            log: String::new(),
        }
    }

    /// Waits for a line of the log that contains `part`.
    pub fn wait_for(&mut self, part: &str) -> String {
        let until = Instant::now() + PATIENCE;
        while let Ok(line) = self
            .lines
            .recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            self.log += &line;
            self.log.push('\n');
            if line.contains(part) {
                return line;
            }
        }
        panic!("no line with `{part}` in:\n{}", self.log);
    }

    /// Bounds how many bytes its files may come to have.
    pub fn limit_files(&self, bytes: Option<u64>) {
        let limit = Rlimit {
            current: bytes,
            maximum: getrlimit(Resource::Fsize).maximum,
        };
        prlimit(Some(Pid::from_child(&self.child)), Resource::Fsize, limit).unwrap();
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end; gives the exit code.
    pub fn code(&mut self) -> Option<i32> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(
                Instant::now() < until,
                "it does not end; its log:\n{}",
                self.log
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already where the test went well.
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Starts the program; gives the address of its admin pages too.
pub fn ready(config: &Path) -> (Running, SocketAddr) {
    let mut running = Running::start(config);
    let line = running.wait_for("admin pages on");
    let address = line
        .rsplit("http://")
        .next()
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    running.wait_for("ready: serving");
    (running, address)
}

/// Sends `request`; gives the whole reply.
pub fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

pub fn page(address: SocketAddr, path: &str) -> (u16, String) {
    let reply = ask(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"));
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    (
        head.split(' ').nth(1).unwrap().parse().unwrap(),
        body.to_owned(),
    )
}

/// Asks for a change and waits until it is through: how it stands, and what is said of it, in the list of that name.
pub fn changed(address: SocketAddr, path: &str, list: &str) -> (String, String) {
    let reply = ask(address, &format!("POST {path} HTTP/1.1\r\nHost: x\r\n\r\n"));
    assert!(reply.starts_with("HTTP/1.1 202"), "{reply}");
    let until = Instant::now() + PATIENCE;
    loop {
        let status: Value = serde_json::from_str(&page(address, "/status").1).unwrap();
        let last = status[list].as_array().unwrap().last().unwrap();
        let text = |key: &str| last[key].as_str().unwrap().to_owned();
        if text("state") != "running" {
            return (text("state"), text("detail"));
        }
        assert!(Instant::now() < until, "{last}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
