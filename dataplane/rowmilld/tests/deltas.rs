//! Deltas, applied by the program while clients look rows up, kept, and applied again after a kill.

#[path = "support/plane.rs"]
mod plane;
#[path = "support/program.rs"]
mod support;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rowmill_arena::HugePages;
use rowmill_port::shm::ShmClient;
use rowmill_port::{ClientPort, RegionId};
use rowmill_table::{
    Container, DeltaTable, Generation, LoadOptions, generate, silent, write_delta,
};
use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::request::{self, Element, FeatureSpan, Header, Op, Place as Source, Segment};
use rowmill_wire::{Pooling, Schema, Status};
use rustix::process::Signal;
use serde_json::Value;
use support::{MODEST, PATIENCE, Place, ask, changed, page, ready, run};

const DIM: usize = 16;
/// Rows that change; one of four in the table.
const CHANGED: usize = 250;

fn taking(place: &Place) -> String {
    let directory = place.path("deltas");
    format!(
        "{MODEST}\nallow_changes = true\n[deltas]\ndirectory = \"{}\"\n",
        directory.display()
    )
}

fn npy(path: &Path, kind: &str, shape: &str, data: &[u8]) {
    let mut text = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}");
    text += &" ".repeat(117 - text.len());
    text.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.extend(data);
    fs::write(path, bytes).unwrap();
}

/// A delta that makes all values of the rows 0, 4, 8 and so on its sequence number plus 100.
fn delta(place: &Place, model: &str, sequence: u64) -> PathBuf {
    let (ids, rows) = (place.path("ids.npy"), place.path("rows.npy"));
    let values = vec![100.0 + sequence as f32; CHANGED * DIM];
    let values: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
    npy(&rows, "<f4", &format!("({CHANGED}, {DIM})"), &values);
    let numbers: Vec<u8> = (0..CHANGED as u64)
        .flat_map(|i| (i * 4).to_le_bytes())
        .collect();
    npy(&ids, "<i8", &format!("({CHANGED},)"), &numbers);
    let generation = Generation::open(place.path(model)).unwrap();
    let path = place.path(&format!("{model}-{sequence}.delta"));
    let tables = [DeltaTable {
        name: "f".into(),
        from: Container::Npy {
            rows,
            ids: Some(ids),
        },
    }];
    write_delta(&path, "model", sequence, &generation, &tables).unwrap();
    path
}

/// A delta of a model of that name that makes row 8 zeros.
fn one_row(place: &Place, path: &Path, name: &str, sequence: u64) {
    let generation = Generation::open(place.path("model")).unwrap();
    let (ids, rows) = (place.path("ids.npy"), place.path("rows.npy"));
    npy(&ids, "<i8", "(1,)", &8u64.to_le_bytes());
    npy(&rows, "<f4", "(1, 16)", &[0; 64]);
    let tables = [DeltaTable {
        name: "f".into(),
        from: Container::Npy {
            rows,
            ids: Some(ids),
        },
    }];
    write_delta(path, name, sequence, &generation, &tables).unwrap();
}

fn post(address: SocketAddr, path: &Path) -> (u16, String) {
    let head = format!(
        "POST /deltas/apply?file={} HTTP/1.1\r\nHost: x\r\n\r\n",
        path.display()
    );
    let reply = ask(address, &head);
    let code = reply.split(' ').nth(1).unwrap().parse().unwrap();
    (code, reply.split_once("\r\n\r\n").unwrap().1.trim().into())
}

fn status(address: SocketAddr) -> Value {
    serde_json::from_str(&page(address, "/status").1).unwrap()
}

/// Applies a delta and waits until that is through: how it stands, and what is said of it.
fn applied(address: SocketAddr, path: &Path) -> (String, String) {
    let (code, body) = post(address, path);
    assert_eq!(code, 202, "{body}");
    let begun: Value = serde_json::from_str(&body).unwrap();
    let until = Instant::now() + PATIENCE;
    loop {
        let status = status(address);
        let mut changes = status["delta_changes"].as_array().unwrap().iter();
        let change = changes.find(|change| change["number"] == begun["change"]);
        let text = |key: &str| change.unwrap()[key].as_str().unwrap().to_owned();
        if text("state") != "running" {
            return (text("state"), text("detail"));
        }
        assert!(Instant::now() < until, "{status:#}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn done(address: SocketAddr, path: &Path) -> String {
    let (state, detail) = applied(address, path);
    assert_eq!(state, "done", "{detail}");
    detail
}

fn fails(address: SocketAddr, path: &Path, why: &str) {
    let (state, detail) = applied(address, path);
    assert!(
        state == "failed" && detail.contains(why),
        "{state}: {detail}"
    );
}

/// A client that looks rows up one by one, each in a bag of its own.
struct Looker {
    client: ShmClient,
    schema: u32,
    target: RegionId,
    row: usize,
    lane: usize,
    /// Rows as they are in files.
    files: Vec<Vec<f32>>,
}

impl Looker {
    fn new(place: &Place, model: &str) -> Looker {
        let mut client = ShmClient::connect(&place.endpoint(), "looker", 4).unwrap();
        let (schema, row) = Schema::side_by_side(1000, [("x", "f", Pooling::Sum, DIM as u32)]);
        let schema = client.bind(&schema).unwrap();
        let target = client.register(row as usize * 200).unwrap();
        let generation = Generation::open(place.path(model)).unwrap();
        let tables = generation
            .load(HugePages::Off, &silent, LoadOptions::default())
            .unwrap();
        let table = &tables.tables()[0];
        let values = |row| {
            let mut values = vec![0.0; DIM];
            table.row_f32(row, &mut values).unwrap();
            values
        };
        Looker {
            client,
            schema,
            target,
            row: row as usize,
            lane: 0,
            files: (0..table.row_count()).map(values).collect(),
        }
    }

    /// Looks rows up, on another worker each time: of each the sequence number of the delta that it is of, and that of the record.
    fn look(&mut self, ids: &[u32]) -> (Vec<u64>, u64) {
        let bytes =
            |list: &[u32]| -> Vec<u8> { list.iter().flat_map(|x| x.to_le_bytes()).collect() };
        let at = request::inline_offset(1) as u32;
        let segment = |offset| Segment {
            place: Source::Inline { offset },
            element: Element::Bits32,
            len: ids.len() as u64 * 4,
        };
        let header = Header {
            op: Op::Lookup,
            schema: self.schema,
            bags: ids.len() as u32,
            target_region: self.target.0,
            lengths: segment(at),
            ids: segment(at + ids.len() as u32 * 4),
            ..Header::null(1)
        };
        let span = FeatureSpan {
            lengths_at: 0,
            ids_at: 0,
            ids: ids.len() as u32,
            first_id: 0,
        };
        let mut frame = [0; SLOT_BYTES];
        let inline = [bytes(&vec![1; ids.len()]), bytes(ids)];
        let inline = [inline[0].as_slice(), inline[1].as_slice()];
        let len = request::encode(&header, &[span], &inline, &mut frame).unwrap();
        self.lane = 1 - self.lane;
        self.client
            .submit(self.lane as u16, 0, &frame[..len])
            .unwrap();
        let until = Instant::now() + PATIENCE;
        let record = loop {
            if let Some(record) = self.client.poll(self.lane as u16).unwrap() {
                break record;
            }
            assert!(Instant::now() < until, "no answer");
            self.client.wait(Some(Duration::from_millis(100))).unwrap();
        };
        assert_eq!(record.status, Status::Ok);
        let mut answer = vec![0; self.row * ids.len()];
        self.client
            .memory(self.target)
            .unwrap()
            .read(0, &mut answer);
        let of = |(row, &id): (&[u8], &u32)| {
            let (values, _) = row.as_chunks::<4>();
            let values: Vec<f32> = values
                .iter()
                .map(|&value| f32::from_le_bytes(value))
                .collect();
            if values == self.files[id as usize] {
                return 0;
            }
            assert!(
                values.iter().all(|&value| value == values[0]),
                "row {id} is torn: {values:?}"
            );
            assert!(id % 4 == 0 && values[0] > 100.0, "row {id} is {values:?}");
            (values[0] - 100.0) as u64
        };
        (
            answer.chunks(self.row).zip(ids).map(of).collect(),
            record.delta,
        )
    }

    /// That the rows that change are of this delta, and the others are as in the files.
    fn all_are(&mut self, sequence: u64) {
        for first in (0..1000).step_by(100) {
            let ids: Vec<u32> = (first..first + 100).collect();
            let (rows, delta) = self.look(&ids);
            assert_eq!(delta, sequence);
            for (id, row) in ids.into_iter().zip(rows) {
                assert_eq!(row, if id % 4 == 0 { sequence } else { 0 }, "row {id}");
            }
        }
    }
}

/// The table is listed as this; its share has room for less than half of its rows.
fn listed(placement: &str) -> String {
    format!(
        "[[tables]]\nname = \"f\"\nplacement = \"{placement}\"\ncache_bytes = 30000\n[cache]\npage_cache = \"allow\"\n"
    )
}

#[test]
fn rows_change_under_load_never_go_back_and_are_there_after_a_kill() {
    rows_change("");
}

#[test]
fn so_do_those_of_a_cached_table() {
    rows_change(&listed("cached"));
}

#[test]
fn so_do_those_of_a_table_that_may_be_cached() {
    rows_change(&listed("resident"));
}

fn rows_change(listed: &str) {
    const DELTAS: u64 = 6;
    let place = Place::new();
    let config = place.configure("", &(taking(&place) + listed));
    let (mut running, address) = ready(&config);
    let (ended, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for client in 0..2 {
            let (place, ended, acknowledged) = (&place, &ended, &acknowledged);
            scope.spawn(move || {
                let mut looker = Looker::new(place, "model");
                let ids: Vec<u32> = (0..100).map(|i| i * 8 + client * 4).collect();
                let mut seen = vec![0; ids.len()];
                let mut told = 0;
                while !ended.load(Ordering::Relaxed) {
                    let before = acknowledged.load(Ordering::SeqCst);
                    let (rows, delta) = looker.look(&ids);
                    assert!(
                        delta >= told && delta >= before,
                        "the record says {delta} after {told} and {before}"
                    );
                    told = delta;
                    for (seen, row) in seen.iter_mut().zip(rows) {
                        assert!(
                            row >= *seen && row >= delta,
                            "{row} after {seen}, at {delta}"
                        );
                        *seen = row;
                    }
                }
            });
        }
        for sequence in 1..=DELTAS {
            let detail = done(address, &delta(&place, "model", sequence));
            assert!(detail.contains("250 rows"), "{detail}");
            acknowledged.store(sequence, Ordering::SeqCst);
        }
        thread::sleep(Duration::from_millis(50));
        ended.store(true, Ordering::Relaxed);
    });
    Looker::new(&place, "model").all_are(DELTAS);
    let now = status(address);
    assert_eq!(now["deltas"]["generations"][0]["applied"], DELTAS);
    assert_eq!(now["generations"][0]["delta"], DELTAS);
    let metrics = page(address, "/metrics").1;
    for line in [
        format!("rowmill_delta_sequence{{generation=\"1\"}} {DELTAS}"),
        format!("rowmill_delta_rows_total {}", DELTAS * CHANGED as u64),
    ] {
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
    // In the middle of the next one.
    let next = delta(&place, "model", DELTAS + 1);
    assert_eq!(post(address, &next).0, 202);
    running.signal(Signal::KILL);
    running.code();
    let (running, address) = ready(&config);
    let there = status(address)["generations"][0]["delta"].as_u64().unwrap();
    assert!(there == DELTAS || there == DELTAS + 1, "{there}");
    Looker::new(&place, "model").all_are(there);
    done(address, &next);
    Looker::new(&place, "model").all_are(DELTAS + 1);
    assert!(done(address, &next).contains("was applied before"));
    drop(running);
    let (_running, _) = ready(&config);
    Looker::new(&place, "model").all_are(DELTAS + 1);
}

#[test]
fn what_can_not_be_applied_changes_nothing_and_is_told() {
    let place = Place::new();
    let config = place.configure("", &taking(&place));
    let (running, address) = ready(&config);
    let first = delta(&place, "model", 1);
    let first = {
        let kept = place.path("first.delta");
        fs::rename(first, &kept).unwrap();
        kept
    };
    let good = fs::read(&first).unwrap();
    let damaged = place.path("damaged.delta");
    for at in [20, 600, good.len() / 2, good.len() - 1] {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        fs::write(&damaged, bytes).unwrap();
        fails(address, &damaged, "is damaged");
    }
    fs::write(&damaged, &good[..good.len() - 1]).unwrap();
    fails(address, &damaged, "not written or copied whole");
    fails(address, &place.path("nowhere.delta"), "nowhere.delta");
    fails(
        address,
        &delta(&place, "model", 2),
        "has sequence number 2, and 1 comes next",
    );
    let specs: Vec<rowmill_table::TableSpec> = [
        "f:1000:16:f32".parse().unwrap(),
        "q:1000:16:int8".parse().unwrap(),
    ]
    .into();
    generate(place.path("seventh"), 7, &specs, 3, &silent).unwrap();
    let seventh = delta(&place, "seventh", 1);
    fails(address, &seventh, "is for generation 7, which is not held");
    assert!(
        post(address, Path::new("a.delta"))
            .1
            .contains("does not begin with /")
    );
    let mut looker = Looker::new(&place, "model");
    looker.all_are(0);
    done(address, &first);
    looker.all_are(1);
    // Another of the same number.
    let other = place.path("other");
    fs::create_dir(&other).unwrap();
    let same_number = other.join("1.delta");
    one_row(&place, &same_number, "model", 1);
    fails(
        address,
        &same_number,
        "which another delta has that was taken before",
    );
    let stranger = other.join("2.delta");
    one_row(&place, &stranger, "stranger", 2);
    fails(
        address,
        &stranger,
        "is for model stranger, and model is served",
    );
    looker.all_are(1);

    // Another generation has deltas of its own, also when it is loaded again.
    let generations = |change: &str| {
        let head = format!("POST /generations/{change} HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(ask(address, &head).starts_with("HTTP/1.1 202"));
        let until = Instant::now() + PATIENCE;
        while status(address)["generation_changes"]
            .as_array()
            .unwrap()
            .last()
            .unwrap()["state"]
            == "running"
        {
            assert!(Instant::now() < until);
            thread::sleep(Duration::from_millis(5));
        }
    };
    generations("load?number=7");
    done(address, &seventh);
    looker.all_are(1);
    generations("unload?number=7");
    generations("load?number=7");
    generations("activate?number=7");
    Looker::new(&place, "seventh").all_are(1);
    drop(running);

    // One that is kept and damaged stops a start, until it is there again.
    let kept = place.path("deltas/model/gen-1/00000000000000000001.delta");
    let mut bytes = fs::read(&kept).unwrap();
    assert_eq!(bytes, good);
    bytes[900] ^= 1;
    fs::write(&kept, &bytes).unwrap();
    for (check, part) in [
        (true, "is damaged"),
        (false, "cannot apply delta 1 of generation 1 again"),
    ] {
        let (output, stderr) = run(&config, check);
        assert_eq!(output.status.code(), Some(1), "check {check}: {stderr}");
        assert!(stderr.contains(part), "check {check}: {stderr}");
    }
    fs::write(&kept, &good).unwrap();
    fs::write(
        kept.with_file_name("00000000000000000002.delta.tmp"),
        &good[..100],
    )
    .unwrap();
    let (output, stderr) = run(&config, true);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let draft = kept.with_file_name("00000000000000000002.delta.tmp");
    assert!(draft.exists(), "it leaves all as it is");
    let (running, _) = ready(&config);
    Looker::new(&place, "model").all_are(1);
    drop(running);

    // A generation that is made anew under the same number does not get what was kept for the other.
    fs::remove_dir_all(place.path("model")).unwrap();
    generate(place.path("model"), 1, &specs, 99, &silent).unwrap();
    for (check, part) in [
        (true, "do not belong there"),
        (false, "made anew under that number"),
    ] {
        let (output, stderr) = run(&config, check);
        assert_eq!(output.status.code(), Some(1), "check {check}: {stderr}");
        assert!(
            stderr.contains(part) && stderr.contains("gen-1"),
            "check {check}: {stderr}"
        );
    }
    fs::rename(place.path("deltas/model/gen-1"), place.path("away")).unwrap();
    let (_running, address) = ready(&config);
    fails(address, &first, "made anew under that number");
    done(address, &delta(&place, "model", 1));
}

#[test]
fn a_directory_that_is_none_is_told_before_the_start() {
    let place = Place::new();
    let config = place.configure("", &taking(&place));
    let (output, stderr) = run(&config, true);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(!place.path("deltas").exists(), "it leaves no trace");
    fs::write(place.path("deltas"), "a file").unwrap();
    for check in [true, false] {
        let (output, stderr) = run(&config, check);
        assert_eq!(output.status.code(), Some(1), "check {check}: {stderr}");
        assert!(stderr.contains("deltas.directory: "), "{stderr}");
    }
}

#[test]
fn one_of_this_host_alone_has_to_be_wanted_where_they_come_from_a_control_plane() {
    let place = Place::new();
    let more = format!(
        "{}[control]\naddress = \"unix:{}\"\nname = \"test\"\n",
        taking(&place),
        place.path("control.sock").display()
    );
    let (_running, address) = ready(&place.configure("", &more));
    let first = delta(&place, "model", 1);
    let (code, why) = post(address, &first);
    assert_eq!(code, 409);
    assert!(
        why.contains("rowmill delta publish") && why.contains("--local"),
        "{why}"
    );
    let head = format!(
        "POST /deltas/apply?file={}&local=true HTTP/1.1\r\nHost: x\r\n\r\n",
        first.display()
    );
    assert!(ask(address, &head).starts_with("HTTP/1.1 202 "));
    let until = Instant::now() + PATIENCE;
    while status(address)["deltas"]["generations"][0]["applied"] != 1 {
        assert!(Instant::now() < until, "{}", status(address));
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_comes_damaged_is_told_by_whom_it_came_from() {
    let (place, plane) = (Place::new(), plane::Plane::new());
    let mut bytes = fs::read(delta(&place, "model", 1)).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    plane.give_delta(bytes);
    let more = format!(
        "{}[control]\naddress = \"http://{}\"\nname = \"test\"\n",
        taking(&place),
        plane.address
    );
    let (_running, address) = ready(&place.configure("", &more));
    let generation = Generation::open(place.path("model")).unwrap();
    let report = plane.report("a word on the delta", |report| {
        report.deltas_change.is_some()
    });
    assert_eq!(report.fingerprints, [generation.fingerprint()]);
    let told = report.deltas_change.unwrap();
    assert_eq!(report.deltas_failed.as_ref(), Some(&told));
    let metrics = page(address, "/metrics").1;
    assert!(
        metrics.contains("\nrowmill_delta_failures_total 1\n"),
        "{metrics}"
    );
    let from = format!(
        "the delta 1 of generation 1 that the control plane at http://{} sent is damaged",
        plane.address
    );
    assert!(told.contains(&from) && !told.contains(".tmp"), "{told}");
    let shown = status(address)["delta_changes"].to_string();
    assert!(shown.contains(&from), "{shown}");
}

/// Asks for a change, which is made when this returns.
fn change(address: SocketAddr, path: &str, list: &str) {
    let (state, detail) = changed(address, path, list);
    assert_eq!(state, "done", "{detail}");
}

/// While a client looks, whose rows never go back, the table moves and deltas come, and another generation with deltas of its own.
#[test]
fn rows_that_changed_are_so_wherever_their_table_is() {
    let place = Place::new();
    let specs: Vec<rowmill_table::TableSpec> = [
        "f:1000:16:f32".parse().unwrap(),
        "q:1000:16:int8".parse().unwrap(),
    ]
    .into();
    generate(place.path("seventh"), 7, &specs, 3, &silent).unwrap();
    let config = place.configure("", &(taking(&place) + &listed("cached")));
    let (running, address) = ready(&config);
    let ended = AtomicBool::new(false);
    let moves = |to: &str| change(address, &format!("/tables/f?placement={to}"), "changes");
    let generations =
        |to: &str| change(address, &format!("/generations/{to}"), "generation_changes");
    let all_are = |sequence| Looker::new(&place, "model").all_are(sequence);
    thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut looker = Looker::new(&place, "model");
            let ids: Vec<u32> = (0..100).map(|i| i * 10 / 4 * 4).collect();
            let mut seen = vec![0; ids.len()];
            while !ended.load(Ordering::Relaxed) {
                let (rows, delta) = looker.look(&ids);
                for (seen, row) in seen.iter_mut().zip(rows) {
                    assert!(row >= *seen && row >= delta, "{row} after {seen}");
                    *seen = row;
                }
            }
        });
        let mut sequence = 0;
        for to in ["resident", "cached", "resident", "cached"] {
            sequence += 1;
            done(address, &delta(&place, "model", sequence));
            all_are(sequence);
            moves(to);
            all_are(sequence);
        }
        generations("load?number=7");
        done(address, &delta(&place, "seventh", 1));
        done(address, &delta(&place, "model", sequence + 1));
        all_are(sequence + 1);
        ended.store(true, Ordering::Relaxed);
        looking.join().unwrap();
        generations("activate?number=7");
        Looker::new(&place, "seventh").all_are(1);
        generations("rollback");
        all_are(sequence + 1);
        generations("unload?number=7");
        generations("load?number=7");
        generations("activate?number=7");
        Looker::new(&place, "seventh").all_are(1);
        let table = &status(address)["cache"][0];
        assert_eq!(table["patched_rows"], 2 * CHANGED as u64, "{table:#}");
    });
    drop(running);
}

#[test]
fn they_are_taken_where_that_is_configured_and_as_far_as_there_is_room() {
    let place = Place::new();
    let first = delta(&place, "model", 1);
    let (running, address) =
        ready(&place.configure("", &format!("{MODEST}\nallow_changes = true\n")));
    let (code, why) = post(address, &first);
    assert!(
        code == 409 && why.contains("deltas.directory is not set"),
        "{code}: {why}"
    );
    drop(running);
    let little = |rows: usize| {
        let bytes = format!("\ndelta_bytes = {}\n[cache]", rows * DIM * 4);
        taking(&place) + &listed("cached").replace("\n[cache]", &bytes)
    };
    let (running, address) = ready(&place.configure("", &little(CHANGED - 1)));
    let why = "has 250 rows of table f that no delta changed before, with which those that deltas changed take 16000 bytes, and tables.delta_bytes is 15936";
    fails(address, &first, why);
    let kept = place.path("deltas/model/gen-1/00000000000000000001.delta");
    assert!(!kept.exists());
    Looker::new(&place, "model").all_are(0);
    drop(running);
    let config = place.configure("", &little(CHANGED));
    let (running, address) = ready(&config);
    done(address, &first);
    for sequence in 2..=3 {
        done(address, &delta(&place, "model", sequence));
        Looker::new(&place, "model").all_are(sequence);
    }
    drop(running);
    // With less than it has: what was acknowledged is served, and no other row changes.
    let config = place.configure("", &little(CHANGED - 1));
    let (running, address) = ready(&config);
    let told = page(address, "/status").1;
    assert!(told.contains("more than its tables.delta_bytes"), "{told}");
    Looker::new(&place, "model").all_are(3);
    assert!(status(address)["cache"][0]["patched_rows"] == CHANGED as u64);
    // Those that it has change on.
    done(address, &delta(&place, "model", 4));
    Looker::new(&place, "model").all_are(4);
    assert!(status(address)["cache"][0]["patched_rows"] == CHANGED as u64);
    let metrics = page(address, "/metrics").1;
    let line = format!("rowmill_cache_patched_rows{{table=\"f\"}} {CHANGED}");
    assert!(metrics.contains(&line), "{metrics}");
    drop(running);
}

/// Files that are gone from under the service don't make rows go back.
#[test]
fn a_table_moves_only_with_all_deltas_that_were_applied() {
    let place = Place::new();
    let config = place.configure("", &(taking(&place) + &listed("cached")));
    let (_running, address) = ready(&config);
    for sequence in 1..=3 {
        done(address, &delta(&place, "model", sequence));
    }
    let kept = |sequence: u64| place.path(&format!("deltas/model/gen-1/{sequence:020}.delta"));
    let refused = |why: &str| {
        let (state, detail) = changed(address, "/tables/f?placement=resident", "changes");
        assert!(
            state == "failed" && detail.contains(why),
            "{state}: {detail}"
        );
        Looker::new(&place, "model").all_are(3);
    };
    let away = place.path("away");
    fs::rename(kept(3), &away).unwrap();
    refused("lacks delta 3, of 3 that were applied");
    fails(address, &delta(&place, "model", 4), "lacks delta 3");
    fs::rename(&away, kept(3)).unwrap();
    // Another of the same number.
    fs::rename(kept(1), &away).unwrap();
    one_row(&place, &kept(1), "model", 1);
    refused("has other deltas than the 3 that were applied");
    fs::rename(&away, kept(1)).unwrap();
    change(address, "/tables/f?placement=resident", "changes");
    Looker::new(&place, "model").all_are(3);
}
