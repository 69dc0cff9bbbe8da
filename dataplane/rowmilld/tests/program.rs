//! The program itself: it is started on a small model, asked, and ended.

#[path = "support/program.rs"]
mod support;

use std::io::Write;
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rowmill_port::ClientPort;
use rowmill_port::shm::ShmClient;
use rowmill_table::{RowFormat, TableSpec, generate, silent};
use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::request::{self, Element, FeatureSpan, Header, Op, Place as Source, Segment};
use rowmill_wire::{Pooling, Schema, Status};
use rustix::process::Signal;

use support::{MODEST, PATIENCE, Place, Running, ask, page, ready, run};

/// Sends null requests on a lane and waits for the answers.
fn null_requests(client: &mut ShmClient, lane: u16, count: u64) {
    let mut frame = [0; SLOT_BYTES];
    for number in 0..count {
        let len = request::encode(&Header::null(number), &[], &[], &mut frame).unwrap();
        client.submit(lane, 0, &frame[..len]).unwrap();
        let until = Instant::now() + PATIENCE;
        let record = loop {
            if let Some(record) = client.poll(lane).unwrap() {
                break record;
            }
            assert!(Instant::now() < until, "no answer on lane {lane}");
            client.wait(Some(Duration::from_millis(100))).unwrap();
        };
        assert_eq!((record.request, record.status), (number, Status::Ok));
    }
}

#[test]
fn serves_shows_itself_and_drains() {
    let place = Place::new();
    let (mut running, address) = ready(&place.configure("name = \"demo\"", MODEST));
    assert_eq!(page(address, "/healthz"), (200, "ok\n".into()));

    let mut client = ShmClient::connect(&place.endpoint(), "a test", 4).unwrap();
    assert_eq!(client.welcome().model, "demo");
    let (schema, _) = Schema::side_by_side(
        8,
        [("x", "f", Pooling::Sum, 16), ("y", "q", Pooling::Mean, 16)],
    );
    assert_eq!(client.bind(&schema).unwrap(), 0);
    client.register(1 << 16).unwrap();
    null_requests(&mut client, 0, 3);
    null_requests(&mut client, 1, 2);

    // A worker publishes its figures after it has answered.
    for line in [
        "# TYPE rowmill_requests_total counter",
        "rowmill_requests_total{worker=\"0\"} 3",
        "rowmill_completed_total{worker=\"1\"} 2",
        "rowmill_service_seconds_count{worker=\"0\"} 0",
        "rowmill_service_seconds_bucket{worker=\"0\",le=\"+Inf\"} 0",
        "rowmill_connections 1",
        "rowmill_clients_accepted_total 1",
        "rowmill_clients_cut_off_total 0",
        "# HELP rowmill_control_refused_total Control calls refused.",
        "rowmill_control_refused_total 0",
    ] {
        let until = Instant::now() + PATIENCE;
        loop {
            let (code, metrics) = page(address, "/metrics");
            assert_eq!(code, 200);
            if metrics.lines().any(|l| l == line) {
                break;
            }
            assert!(Instant::now() < until, "`{line}` is not in:\n{metrics}");
        }
    }
    let status: serde_json::Value = serde_json::from_str(&page(address, "/status").1).unwrap();
    assert_eq!(status["program"], "rowmilld");
    assert_eq!(
        (&status["state"], &status["model"]),
        (&"serving".into(), &"demo".into())
    );
    assert_eq!(status["endpoints"][0], place.endpoint());
    assert_eq!(status["workers"][0]["requests"], 3);
    assert_eq!(status["connections"][0]["client"], "a test");
    assert_eq!(status["connections"][0]["pid"], std::process::id());
    assert_eq!(status["connections"][0]["regions"], 1);
    assert_eq!(status["tables"][1]["name"], "q");
    assert_eq!(status["tables"][1]["available"], true);
    assert!(
        status["memory"]["arena_bytes"].as_u64() >= status["memory"]["rows_bytes"].as_u64(),
        "{status}"
    );
    assert!(
        status["choices"]
            .as_array()
            .unwrap()
            .iter()
            .any(|c| c["what"] == "kernels"),
        "{status}"
    );

    running.signal(Signal::TERM);
    assert_eq!(running.code(), Some(0));
    assert!(!place.path("r.sock").exists(), "the socket is removed");
    assert!(client.bind(&schema).is_err(), "the client sees the end");
}

#[test]
fn hostile_visitors_hold_nobody_up() {
    let place = Place::new();
    let (mut running, address) = ready(&place.configure("", MODEST));
    let idle: Vec<TcpStream> = (0..100)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    let mut endless = TcpStream::connect(address).unwrap();
    endless.set_write_timeout(Some(PATIENCE)).unwrap();
    let _cut_off = endless.write_all(&vec![b'a'; 1 << 20]);
    assert_eq!(page(address, "/healthz").0, 200);
    let cases = [
        ("GET /none HTTP/1.1\r\n\r\n", "HTTP/1.1 404 "),
        ("POST /status HTTP/1.1\r\n\r\n", "HTTP/1.1 405 "),
        ("PUT /status HTTP/1.1\r\n\r\n", "HTTP/1.1 405 "),
        ("HEAD /healthz HTTP/1.0\r\n\r\n", "HTTP/1.1 200 "),
        ("\0\u{1}\u{2}\r\n\r\n", "HTTP/1.1 400 "),
        (
            "GET /healthz?x=1 HTTP/1.1\r\nConnection: keep-alive\r\n\r\n",
            "HTTP/1.1 200 ",
        ),
    ];
    for (request, start) in cases {
        let reply = ask(address, request);
        assert!(reply.starts_with(start), "{request:?} gives {reply:?}");
    }
    drop(idle);
    running.signal(Signal::INT);
    assert_eq!(running.code(), Some(0));
}

#[test]
fn what_is_taken_is_refused() {
    let place = Place::new();
    let (_running, address) = ready(&place.configure("", MODEST));
    let other = Place::new();
    let admin = format!("[admin]\naddress = \"{address}\"");
    let third = Place::new();
    std::fs::write(third.path("r.sock"), "").unwrap();
    let cases = [
        (
            place.configure("", MODEST),
            "already in use by a running dataplane",
        ),
        (
            other.configure("", &admin),
            "admin.address: cannot listen on",
        ),
        (
            third.configure("", MODEST),
            "r.sock exists and is no socket",
        ),
    ];
    for (config, part) in cases {
        for check in [true, false] {
            let (output, stderr) = run(&config, check);
            assert_eq!(output.status.code(), Some(1), "check {check}: {stderr}");
            assert!(stderr.contains(part), "check {check}: {stderr}");
            assert!(stderr.matches("os error").count() <= 1, "{stderr}");
            let stdout = String::from_utf8_lossy(&output.stdout);
            assert!(!stdout.contains("can be served"), "{stdout}");
        }
    }
    assert_eq!(page(address, "/healthz"), (200, "ok\n".into()));
}

#[test]
fn check_says_what_would_be_chosen() {
    let place = Place::new();
    let (output, stderr) = run(&place.configure("", MODEST), true);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    for part in [
        "kernels: ",
        "workers: 2, not pinned (warning)",
        "2 tables",
        "can be served on this machine",
    ] {
        assert!(stdout.contains(part), "`{part}` is not in:\n{stdout}");
    }
    assert!(!place.path("r.sock").exists());
}

#[test]
fn what_cannot_be_served_is_refused() {
    let place = Place::new();
    let cases = [
        ("nmae = \"x\"", "", "unknown field `nmae`"),
        (
            "",
            "[workers]\ncpus = [100000]",
            "CPU 100000 is not one that this process may use",
        ),
        (
            "",
            "[limits]\nslots = 4096\nmax_ids = 16777216",
            "too little memory",
        ),
        ("huge_pages = \"some\"", "", "line 4"),
    ];
    for (model, more, part) in cases {
        for check in [true, false] {
            let (output, stderr) = run(&place.configure(model, more), check);
            assert_eq!(output.status.code(), Some(1), "{model}{more}: {stderr}");
            assert!(stderr.contains(part), "{model}{more} gives {stderr}");
        }
    }
    std::fs::remove_file(place.path("model").join("manifest.json")).unwrap();
    let (output, stderr) = run(&place.configure("", ""), true);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("model.directory"), "{stderr}");
    let (output, stderr) = run(&place.path("none.toml"), true);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr.contains("none.toml") && stderr.contains("--config"),
        "{stderr}"
    );
    assert_eq!(stderr.matches("No such file").count(), 1, "{stderr}");
}

#[test]
fn damaged_tables_are_not_served() {
    let place = Place::new();
    let files = std::fs::read_dir(place.path("model"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let table = files
        .max_by_key(|path| path.metadata().unwrap().len())
        .unwrap();
    let mut bytes = std::fs::read(&table).unwrap();
    bytes[5000] ^= 1;
    std::fs::write(&table, bytes).unwrap();
    let (output, stderr) = run(&place.configure("", MODEST), false);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("cannot load"), "{stderr}");
}

#[test]
fn a_table_that_was_cut_is_said_once() {
    let place = Place::new();
    let table = place.path("model").join("00000.rows");
    let table = std::fs::File::options().write(true).open(table).unwrap();
    table.set_len(5000).unwrap();
    for check in [true, false] {
        let (output, stderr) = run(&place.configure("", MODEST), check);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr.contains("model.directory: "), "{stderr}");
        assert_eq!(stderr.matches("5000").count(), 1, "{stderr}");
    }
}

/// A model whose lookups take long, and a client with some of them in progress: each reads 4 M rows of
/// 8 KiB, which a core does in half a second or more.
fn long_requests(place: &Place, count: u16) -> (Running, ShmClient) {
    let spec = TableSpec {
        name: "wide".into(),
        rows: 4,
        dim: 2048,
        format: RowFormat::F32,
        kind: rowmill_table::TableKind::Dense,
    };
    std::fs::remove_dir_all(place.path("model")).unwrap();
    generate(place.path("model"), 1, &[spec], 1, &silent).unwrap();
    let limits = "max_ids = 4194304\n[shutdown]\ndrain_timeout_s = 60";
    let more = MODEST.replace("slots = 4", &format!("slots = 4\n{limits}"));
    let (running, _) = ready(&place.configure("", &more));
    let mut client = ShmClient::connect(&place.endpoint(), "long", 4).unwrap();
    let (schema, row) = Schema::side_by_side(512, [("x", "wide", Pooling::Sum, 2048)]);
    let schema = client.bind(&schema).unwrap();
    let (bags, longest) = (512u32, 8192u32);
    let sources = client
        .register_source((bags * 4 + bags * longest * 4) as usize)
        .unwrap();
    let lengths: Vec<u8> = (0..bags).flat_map(|_| longest.to_le_bytes()).collect();
    client.memory(sources).unwrap().write(0, &lengths);
    let target = client.register(row as usize * bags as usize).unwrap();
    let segment = |offset, elements: u32| Segment {
        place: Source::Region {
            region: sources.0,
            offset,
        },
        element: Element::Bits32,
        len: u64::from(elements) * 4,
    };
    let mut frame = [0; SLOT_BYTES];
    for slot in 0..count {
        let header = Header {
            op: Op::Lookup,
            schema,
            bags,
            target_region: target.0,
            lengths: segment(0, bags),
            ids: segment(u64::from(bags) * 4, bags * longest),
            ..Header::null(slot.into())
        };
        let span = FeatureSpan {
            lengths_at: 0,
            ids_at: 0,
            ids: bags * longest,
            first_id: 0,
        };
        let len = request::encode(&header, &[span], &[], &mut frame).unwrap();
        client.submit(0, slot, &frame[..len]).unwrap();
    }
    (running, client)
}

/// Waits until a record comes, or the end.
fn next_status(client: &mut ShmClient) -> Option<Status> {
    loop {
        match client.poll(0) {
            Ok(Some(record)) => return Some(record.status),
            Ok(None) => client.wait(Some(Duration::from_millis(100))).ok()?,
            Err(_) => return None,
        }
    }
}

#[test]
fn draining_finishes_what_is_in_progress() {
    let place = Place::new();
    let (mut running, mut client) = long_requests(&place, 1);
    std::thread::sleep(Duration::from_millis(50));
    running.signal(Signal::TERM);
    running.wait_for("draining");
    assert!(ShmClient::connect(&place.endpoint(), "late", 4).is_err());
    assert_eq!(next_status(&mut client), Some(Status::Ok));
    assert_eq!(running.code(), Some(0));
}

#[test]
fn a_second_signal_ends_at_once() {
    let place = Place::new();
    let (mut running, mut client) = long_requests(&place, 4);
    std::thread::sleep(Duration::from_millis(50));
    running.signal(Signal::TERM);
    running.wait_for("draining");
    running.signal(Signal::INT);
    assert_eq!(running.code(), Some(130));
    while next_status(&mut client).is_some() {}
}

#[test]
fn a_thread_that_panics_ends_the_process() {
    const ASKED: &str = "ROWMILLD_TEST_PANIC";
    if std::env::var_os(ASKED).is_some() {
        rowmill_rowmilld::serve::abort_on_panic();
        let thread = std::thread::Builder::new().name("rowmilld-0".into());
        let thread = thread.spawn(|| panic!("on purpose")).unwrap();
        let _never = thread.join();
        return;
    }
    let mut this = Command::new(std::env::current_exe().unwrap());
    let this = this
        .env(ASKED, "1")
        .args(["--exact", "a_thread_that_panics_ends_the_process"]);
    let status = this
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()));
}

#[test]
fn memory_that_can_not_be_locked_is_found_by_check() {
    let place = Place::new();
    let cached = "[[tables]]\nname = \"f\"\nplacement = \"cached\"\ncache_bytes = 42000\n\
                  [cache]\npage_cache = \"allow\"\n";
    let config = place.configure("", &format!("{cached}{MODEST}"));
    // Room for one worker's buffers of 2 MiB, and not for two; and for none.
    for (kib, parts) in [
        (3072, &["can't be registered", "cache.read_bytes"][..]),
        (0, &["io_uring", "cache.reads = 128"]),
    ] {
        for check in [true, false] {
            let mut limited = std::process::Command::new("sh");
            let script = format!(
                "ulimit -l {kib} && exec setpriv --inh-caps -ipc_lock --bounding-set -ipc_lock \"$0\" \"$@\""
            );
            let program = support::command(&config, check);
            limited.args(["-c", &script]).arg(program.get_program());
            let output = limited.args(program.get_args()).output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            if stderr.contains("setpriv: ") {
                eprintln!("skipped: capabilities can't be given up here: {stderr}");
                return;
            }
            assert_eq!(output.status.code(), Some(1), "check {check}: {stderr}");
            for part in parts.iter().chain(&["LimitMEMLOCK="]) {
                assert!(stderr.contains(part), "check {check}: `{part}`: {stderr}");
            }
        }
    }
}
