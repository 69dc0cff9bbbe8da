//! The program as a process, and a dataplane that is only what it says.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rowmill_admission::Sampling;
use rowmill_link::{
    Applied, MEDIA_TYPE, Order, Placement, Policy, Report, Samples, TableReport, TableSamples,
};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use serde_json::Value;
use tempfile::TempDir;

/// The configuration of most tests; `state` comes with the folder.
pub const TOML: &str = "listen = '127.0.0.1:0'\n";

/// Whatever is waited for ends what hangs.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "{what} did not come");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The program, running.
#[derive(Debug)]
pub struct Control {
    pub folder: Arc<TempDir>,
    pub address: SocketAddr,
    toml: String,
    child: Child,
    log: Arc<Mutex<String>>,
}

impl Control {
    pub fn start(toml: &str) -> Control {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        Control::try_start_in(&folder, toml).unwrap()
    }

    /// Starts it with the state of a folder. What it says where it doesn't start is the error.
    pub fn try_start_in(folder: &Arc<TempDir>, toml: &str) -> Result<Control, String> {
        let folder = Arc::clone(folder);
        let config = folder.path().join(format!("{}.toml", fresh()));
        let state = folder.path().join("state");
        // Before any section.
        std::fs::write(&config, format!("state = '{}'\n{toml}", state.display())).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_rowmill-control"))
            .arg("--config")
            .arg(&config)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = String::new();
        let address = loop {
            let Some(line) = lines.next() else {
                child.wait().unwrap();
                return Err(said);
            };
            let line = line.unwrap();
            said += &format!("{line}\n");
            if let Some((_, url)) = line.split_once("listens on http") {
                let (_, address) = url.split_once("://").unwrap();
                let address = address.split_whitespace().next().unwrap();
                break address.parse().unwrap();
            }
        };
        let log = Arc::new(Mutex::new(said));
        let more = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                *more.lock().unwrap() += &format!("{line}\n");
            }
        });
        Ok(Control {
            folder,
            address,
            toml: toml.into(),
            child,
            log,
        })
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn start_again(&mut self) {
        let control = Control::try_start_in(&Arc::clone(&self.folder), &self.toml);
        *self = control.unwrap();
    }

    pub fn kill_and_start(&mut self) {
        self.kill();
        self.start_again();
    }

    pub fn end(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.child.wait().unwrap()
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

    /// Has certificates and tokens read anew, and waits until something is said of that.
    pub fn renew(&self) -> String {
        let before = self.log().matches("SIGHUP").count();
        self.signal(Signal::HUP);
        wait_for("a word on SIGHUP", || {
            self.log().matches("SIGHUP").count() > before
        });
        let log = self.log();
        log.lines()
            .rev()
            .find(|line| line.contains("SIGHUP"))
            .unwrap()
            .into()
    }

    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn get(&self, path: &str) -> (u16, Value) {
        get(&self.url(path))
    }

    pub fn put(&self, path: &str, body: &Value) -> (u16, Value) {
        let sent = agent()
            .put(self.url(path))
            .send(body.to_string().as_bytes());
        answer(sent)
    }

    pub fn delete(&self, path: &str) -> (u16, Value) {
        answer(agent().delete(self.url(path)).call())
    }

    pub fn post(&self, path: &str, media: &str, body: &[u8]) -> (u16, Value) {
        let request = agent().post(self.url(path)).header("content-type", media);
        answer(request.send(body))
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // It may have ended.
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

pub fn fresh() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}

pub fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .timeout_global(Some(PATIENCE))
        .http_status_as_error(false)
        .proxy(None)
        .build()
        .new_agent()
}

/// A request without a body, to be finished.
pub fn request(method: &str, url: &str) -> ureq::http::request::Builder {
    let method = method.to_uppercase();
    ureq::http::Request::builder().method(&*method).uri(url)
}

pub fn get(url: &str) -> (u16, Value) {
    answer(agent().get(url).call())
}

pub fn answer(answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> (u16, Value) {
    let mut answer = answer.unwrap();
    let text = answer.body_mut().read_to_string().unwrap();
    let value = if text.is_empty() {
        Value::Null
    } else {
        serde_json::from_str(&text).unwrap()
    };
    (answer.status().as_u16(), value)
}

/// A dataplane with two tables of 100,000 rows: one whose lookups are often of few rows, and one whose are of all alike.
pub struct Dataplane {
    name: String,
    instance: u128,
    pub arena: u64,
    tables: Vec<(TableReport, TableSamples)>,
    applied: Option<Applied>,
    number: u64,
    looked_up: u32,
}

/// Lookups of each table between two bodies of samples.
const LOOKUPS: u32 = 20_000;

impl Dataplane {
    pub fn new(name: &str, instance: u128) -> Dataplane {
        let arena = 1_000_000;
        let table = |name: &str| {
            let report = TableReport {
                table: name.into(),
                rows: 100_000,
                slot_bytes: 100,
                placement: Placement::Cached,
                cache_bytes: arena / 2,
                cache_rows: arena / 200,
                held_rows: arena / 200,
                resizing: false,
                lookups: 0,
                hits: 0,
                fetched: 0,
                fetch_ns: 0,
                pinned: 0,
                pinned_held: 0,
            };
            (
                report,
                TableSamples {
                    table: name.into(),
                    ..TableSamples::default()
                },
            )
        };
        Dataplane {
            name: name.into(),
            instance,
            arena,
            tables: vec![table("cold"), table("hot")],
            applied: None,
            number: 0,
            looked_up: 0,
        }
    }

    pub fn report_of(&self) -> Report {
        Report {
            instance: format!("{:032x}", self.instance),
            version: "0".into(),
            model: "m".into(),
            generation: "1".into(),
            generations: vec![1],
            arena_bytes: self.arena,
            workers: 1,
            policy: self.applied.clone(),
            tables: self
                .tables
                .iter()
                .map(|(report, _)| report.clone())
                .collect(),
            ..Report::default()
        }
    }

    pub fn report(&self, control: &Control) -> (u16, Value) {
        let report = serde_json::to_vec(&self.report_of()).unwrap();
        control.post(
            &format!("/v1/dataplanes/{}/report", self.name),
            "application/json",
            &report,
        )
    }

    /// Looks rows up, and tells of them.
    pub fn send_samples(&mut self, control: &Control) -> (u16, Value) {
        let body = self.samples().encode();
        control.post(
            &format!("/v1/dataplanes/{}/samples", self.name),
            MEDIA_TYPE,
            &body,
        )
    }

    pub fn samples(&mut self) -> Samples {
        self.number += 1;
        let instance = self.instance as u64;
        for (report, samples) in &mut self.tables {
            let sampling = Sampling::below(samples.threshold);
            let rows = (0..LOOKUPS).map(|n| {
                // Weyl's sequence: even, and the same each time; cubed, the first rows come often.
                let even = (self.looked_up + n).wrapping_mul(2_654_435_769);
                let even = f64::from(even) / 4_294_967_296.0;
                let part = if report.table == "hot" {
                    even.powi(4)
                } else {
                    even
                };
                (part * 100_000.0) as u32
            });
            let rows: Vec<u32> = rows.collect();
            samples.lookups = LOOKUPS.into();
            samples.samples = sampling.of(instance, &rows);
            report.lookups += u64::from(LOOKUPS);
            report.hits += u64::from(LOOKUPS) / 2;
            report.fetched += u64::from(LOOKUPS) / 2;
        }
        self.looked_up = self.looked_up.wrapping_add(LOOKUPS);
        Samples {
            instance: self.instance,
            number: self.number,
            tables: self
                .tables
                .iter()
                .map(|(_, samples)| samples.clone())
                .collect(),
        }
    }

    pub fn bytes(&self, table: &str) -> u64 {
        let table = self.tables.iter().find(|(report, _)| report.table == table);
        table.unwrap().0.cache_bytes
    }

    fn has(&self) -> Order {
        self.applied
            .as_ref()
            .map_or(Order::default(), |applied| applied.order)
    }

    /// The present policy, where it is later than what it has.
    pub fn poll(&self, control: &Control) -> Option<Policy> {
        let (code, page) = control.get(&format!("/v1/dataplanes/{}/policy", self.name));
        let policy: Option<Policy> = (code == 200).then(|| serde_json::from_value(page).unwrap());
        policy.filter(|policy| policy.order > self.has())
    }

    /// Asks for a policy that is later than what it has. When this returns the program waits, as soon as it has answered whoever asks next.
    pub fn polling(&self, control: &Control) -> Polling {
        let instance = format!("{:032x}", self.instance);
        let mut stream = TcpStream::connect(control.address).unwrap();
        let (name, after) = (&self.name, self.has());
        write!(
            stream,
            "GET /v1/dataplanes/{name}/policy?instance={instance}&after={after} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        assert_eq!(control.get("/v1/status").0, 200);
        Polling(stream)
    }

    pub fn follow(&mut self, policy: &Policy) {
        for wanted in &policy.tables {
            let (report, samples) = self
                .tables
                .iter_mut()
                .find(|(report, _)| report.table == wanted.table)
                .unwrap();
            samples.threshold = wanted.threshold;
            if let Some(bytes) = wanted.cache_bytes {
                report.cache_bytes = bytes;
                report.cache_rows = bytes / report.slot_bytes;
                report.held_rows = report.cache_rows;
            }
        }
        self.applied = Some(Applied {
            control: policy.control.clone(),
            order: policy.order,
            refused: Vec::new(),
        });
    }
}

/// A poll that is waited for.
pub struct Polling(TcpStream);

impl Polling {
    /// The status and what follows the head.
    pub fn answer(mut self) -> (u16, String) {
        self.0.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut text = String::new();
        self.0.read_to_string(&mut text).unwrap();
        let status = text.split(' ').nth(1).unwrap_or_default().parse().unwrap();
        let (_, body) = text.split_once("\r\n\r\n").unwrap();
        (status, body.into())
    }
}
