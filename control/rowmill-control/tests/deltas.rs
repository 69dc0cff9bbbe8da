//! The log of deltas: what is taken and refused, what is there after a kill, and what appears in a directory.

#[path = "support/deltas.rs"]
mod deltas;
mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use deltas::Deltas;
use rowmill_link::Report;
use rowmill_table::{DeltaFile, delta_chain};
use serde_json::{Value, json};
use support::{Control, Dataplane, TOML, wait_for};

const BYTES: &str = "application/octet-stream";

/// A configuration with a log in a folder, and what it has more.
fn keeping(folder: &tempfile::TempDir, more: &str) -> String {
    let directory = folder.path().join("log");
    format!(
        "{TOML}[deltas]\ndirectory = '{}'\n{more}",
        directory.display()
    )
}

fn give(control: &Control, bytes: &[u8]) -> (u16, Value) {
    control.post("/v1/deltas", BYTES, bytes)
}

fn last(control: &Control) -> Value {
    control.get("/v1/deltas").1[0]["last"].clone()
}

/// A delta as a dataplane fetches it; none where there is none.
fn fetch(control: &Control, sequence: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let path = format!("/v1/dataplanes/a/deltas/m/1/{sequence}?at={}", bytes.len());
        let answer = support::agent().get(control.url(&path)).call().unwrap();
        if answer.status() == 204 {
            return None;
        }
        assert_eq!(answer.status(), 200);
        let piece = answer.into_body().read_to_vec().unwrap();
        if piece.is_empty() {
            return Some(bytes);
        }
        bytes.extend(piece);
    }
}

#[test]
fn deltas_are_kept_in_their_order_each_once() {
    let (folder, made) = (tempfile::tempdir().unwrap(), Deltas::of(1));
    let mut control = Control::start(&keeping(&folder, "max_bytes = 100000\n"));
    let (first, second) = (made.bytes(1, 1.0), made.bytes(2, 2.0));
    assert_eq!(control.get("/v1/deltas"), (200, json!([])));
    assert_eq!(fetch(&control, 1), None);
    let (code, said) = give(&control, &second);
    assert_eq!(code, 409);
    assert!(said.to_string().contains("and 1 comes next"), "{said}");
    let taken = json!({"model": "m", "generation": 1, "sequence": 1, "is_new": true});
    assert_eq!(give(&control, &first), (200, taken));
    assert_eq!(give(&control, &first).1["is_new"], json!(false));
    let (code, said) = give(&control, &made.bytes(1, 7.0));
    assert_eq!(code, 409);
    assert!(said.to_string().contains("another one has"), "{said}");
    let (code, said) = give(&control, &Deltas::of(2).bytes(2, 2.0));
    assert_eq!(code, 409);
    assert!(said.to_string().contains("made anew"), "{said}");
    for at in [3, 30, 600, second.len() - 1] {
        let mut damaged = second.clone();
        damaged[at] ^= 1;
        let (code, said) = give(&control, &damaged);
        assert_eq!(code, 422, "byte {at}");
        assert!(
            said.to_string().contains("the delta that was sent "),
            "{said}"
        );
    }
    assert_eq!(give(&control, &second[..second.len() - 1]).0, 422);
    assert_eq!(give(&control, b"").0, 422);
    assert_eq!(give(&control, &vec![0; 100_001]).0, 413);
    assert_eq!(last(&control), json!(1));
    control.kill_and_start();
    assert_eq!(give(&control, &second).1["is_new"], json!(true));
    assert_eq!(fetch(&control, 1), Some(first));
    assert_eq!(fetch(&control, 2), Some(second.clone()));
    assert_eq!((fetch(&control, 3), fetch(&control, 0)), (None, None));
    let other = "/v1/dataplanes/a/deltas/m/1/1?control=another";
    assert_eq!(control.get(other).0, 409);

    // One that breaks off leaves nothing, and keeps nobody out.
    let third = made.bytes(3, 3.0);
    let mut broken = TcpStream::connect(control.address).unwrap();
    let head = format!(
        "POST /v1/deltas HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n",
        third.len()
    );
    broken.write_all(head.as_bytes()).unwrap();
    broken.write_all(&third[..third.len() / 2]).unwrap();
    wait_for("its first half", || {
        let draft = folder.path().join("log/incoming.tmp");
        fs::metadata(draft).is_ok_and(|meta| meta.len() > 0)
    });
    assert_eq!(give(&control, &third).0, 503, "while another is on its way");
    drop(broken);
    wait_for("the third", || give(&control, &third).0 == 200);
    assert_eq!(last(&control), json!(3));

    // Killed amid one, it comes back with what it had acknowledged.
    let mut cut = TcpStream::connect(control.address).unwrap();
    cut.write_all(head.as_bytes()).unwrap();
    cut.write_all(&made.bytes(4, 4.0)[..100]).unwrap();
    control.kill_and_start();
    let mut rest = Vec::new();
    let _gone = cut.read_to_end(&mut rest);
    assert!(rest.is_empty());
    assert_eq!(last(&control), json!(3));
    assert!(!folder.path().join("log/incoming.tmp").exists());
}

#[test]
fn who_has_applied_others_gets_none_after_them() {
    let (folder, made) = (tempfile::tempdir().unwrap(), Deltas::of(1));
    let mut control = Control::start(&keeping(&folder, ""));
    let own: Vec<DeltaFile> = (1..=2)
        .map(|sequence| DeltaFile::open(made.make(sequence, 1.0)).unwrap())
        .collect();
    let base = own[0].head().base;
    let asked = |control: &Control, sequence: u64, chain: u32| {
        let path = format!("/v1/dataplanes/a/deltas/m/1/{sequence}?chain={chain}");
        let answer = support::agent().get(control.url(&path)).call().unwrap();
        answer.status().as_u16()
    };
    assert_eq!(
        asked(&control, 1, 9),
        204,
        "nothing is kept to compare with"
    );
    for delta in &own {
        assert_eq!(give(&control, &fs::read(delta.path()).unwrap()).0, 200);
    }
    let first = delta_chain(base, own[0].crc32());
    let second = delta_chain(first, own[1].crc32());
    let other = DeltaFile::open(made.make(1, 7.0)).unwrap();
    let others = delta_chain(base, other.crc32());
    for _ in 0..2 {
        assert_eq!(asked(&control, 1, base), 200);
        assert_eq!(asked(&control, 2, first), 200);
        assert_eq!(asked(&control, 3, second), 204);
        assert_eq!(asked(&control, 1, base ^ 1), 409);
        assert_eq!(asked(&control, 2, others), 409);
        assert_eq!(asked(&control, 3, delta_chain(others, own[1].crc32())), 409);
        // It is farther than what is kept here.
        assert_eq!(asked(&control, 4, 5), 409);
        control.kill_and_start();
    }

    // It is shown while it is so, of a dataplane that reports.
    let shown = |control: &Control| {
        let models = control.get("/v1/generations").1;
        let diverged = models[0]["dataplanes"][0]["diverged"].to_string();
        (diverged, control.get("/v1/status").1["deltas"].to_string())
    };
    asked(&control, 4, 5);
    assert_eq!(shown(&control).1, "[]", "nobody reports");
    assert_eq!(Dataplane::new("a", 1).report(&control).0, 204);
    let (diverged, status) = shown(&control);
    assert!(diverged.contains("it has applied 3 deltas"), "{diverged}");
    assert!(
        status.contains(
            "dataplane `a` has applied 3 deltas to generation 1 of model m, and 2 are kept here"
        ),
        "{status}"
    );
    asked(&control, 2, others);
    let (diverged, _) = shown(&control);
    assert!(diverged.contains("other deltas"), "{diverged}");
    // It has applied none: it is the generation that is another one.
    asked(&control, 1, base ^ 1);
    let (diverged, _) = shown(&control);
    let other = format!(
        "it serves another generation 1 of model m (fingerprint {:08x}) than the deltas that are kept here were made for ({base:08x})",
        base ^ 1
    );
    assert!(diverged.contains(&other), "{diverged}");
    assert_eq!(
        control.log().matches("dataplane `a` has applied").count(),
        2
    );
    assert_eq!(asked(&control, 3, second), 204);
    assert_eq!(shown(&control), ("[]".into(), "[]".into()));
}

#[test]
fn a_log_of_another_control_plane_keeps_it_from_starting() {
    let folder = tempfile::tempdir().unwrap();
    let toml = keeping(&folder, "");
    let _control = Control::start(&toml);
    let refused = |toml: &str| {
        let elsewhere = Arc::new(tempfile::tempdir().unwrap());
        Control::try_start_in(&elsewhere, toml).expect_err("it starts")
    };
    let said = refused(&toml);
    assert!(said.contains("another control plane's"), "{said}");
}

#[test]
fn one_that_can_t_be_used_holds_up_those_behind_it_until_it_is_given_again_and_nobody_else() {
    let (folder, made) = (tempfile::tempdir().unwrap(), Deltas::of(1));
    let mut control = Control::start(&keeping(&folder, ""));
    let bytes: Vec<Vec<u8>> = (1..=4)
        .map(|sequence| made.bytes(sequence, sequence as f32))
        .collect();
    for delta in &bytes {
        assert_eq!(give(&control, delta).0, 200);
    }
    let path = |sequence: usize| {
        let name = format!("log/m/gen-1/{sequence:020}.delta");
        folder.path().join(name)
    };
    for sequence in [1, 2] {
        let whole = &bytes[sequence - 1];
        let mut header = whole.clone();
        header[40] ^= 1;
        let cases = [
            (Some(header), "header does not match its checksum"),
            (Some(whole[..100].to_vec()), "less than its header"),
            (Some(bytes[3].clone()), "does not belong there"),
            (None, "No such file"),
        ];
        for (damage, why) in cases {
            control.kill();
            match damage {
                Some(damage) => fs::write(path(sequence), damage).unwrap(),
                None => fs::remove_file(path(sequence)).unwrap(),
            }
            control.start_again();
            let told = control.get("/v1/status").1["deltas"].to_string();
            let named = format!("delta {sequence} of generation 1 of model m can't be used");
            assert!(told.contains(&named) && told.contains(why), "{told}");
            let kept = |control: &Control, count: usize| {
                for (sequence, delta) in (1..).zip(&bytes[..count]) {
                    assert_eq!(fetch(control, sequence).as_ref(), Some(delta));
                }
            };
            kept(&control, sequence - 1);
            let of = format!("/v1/dataplanes/a/deltas/m/1/{sequence}");
            let (code, said) = control.get(&of);
            assert_eq!(code, 500, "{said}");
            assert!(said.to_string().contains("publish it again"), "{said}");
            // Not what comes after the last one: that would take the place of those which are there.
            assert_eq!(give(&control, &made.bytes(5, 5.0)).0, 409);
            assert_eq!(give(&control, whole).0, 200);
            assert_eq!(last(&control), json!(4));
            assert_eq!(control.get("/v1/status").1["deltas"], json!([]));
            kept(&control, bytes.len());
            let other = made.bytes(sequence as u64, 9.0);
            assert_eq!(give(&control, &other).0, 409);
        }
    }
}

#[test]
fn what_appears_in_a_directory_is_taken_in_its_order() {
    let (folder, made) = (tempfile::tempdir().unwrap(), Deltas::of(1));
    let spool = folder.path().join("spool");
    let toml = keeping(&folder, &format!("watch = '{}'\n", spool.display()));
    let control = Control::start(&toml);
    wait_for("a word on the directory", || {
        control.log().contains("cannot look into")
    });
    fs::create_dir(&spool).unwrap();
    fs::copy(made.make(3, 3.0), spool.join("c.delta")).unwrap();
    fs::copy(made.make(2, 2.0), spool.join("a.delta")).unwrap();
    fs::write(spool.join("b.delta"), b"none").unwrap();
    fs::write(spool.join("two\nlines.delta"), b"none").unwrap();
    wait_for("a word on the bad ones", || {
        let log = control.log();
        log.contains("b.delta is not taken") && log.contains("two\\nlines.delta is not taken")
    });
    let whole = |line: &str| line.contains("rowmill_control");
    assert!(control.log().lines().all(whole), "{}", control.log());
    assert_eq!(control.get("/v1/deltas").1, json!([]));
    let told = || control.get("/v1/status").1["deltas"].to_string();
    let waiting =
        "is watched, and 2 deltas in it wait for others before them; 2 refused; the last: ";
    wait_for("how it stands", || told().contains(waiting));
    fs::copy(made.make(1, 1.0), spool.join("half")).unwrap();
    fs::rename(spool.join("half"), spool.join("z.delta")).unwrap();
    wait_for("all of them", || last(&control) == json!(3));
    fs::copy(made.make(2, 9.0), spool.join("other.delta")).unwrap();
    wait_for("a word on the other one", || {
        control
            .log()
            .contains("other.delta is not taken: the delta has sequence number 2")
    });
    assert_eq!(
        fetch(&control, 2),
        Some(fs::read(spool.join("a.delta")).unwrap())
    );
    assert_eq!(spool.read_dir().unwrap().count(), 6, "nothing is removed");
    let said = told();
    assert!(
        said.contains("3 taken or known; 3 refused") && said.contains("other.delta is not taken"),
        "{said}"
    );
}

#[test]
fn what_can_not_be_read_for_a_while_is_taken_then() {
    let (folder, made) = (tempfile::tempdir().unwrap(), Deltas::of(1));
    let spool = folder.path().join("spool");
    fs::create_dir(&spool).unwrap();
    let toml = keeping(&folder, &format!("watch = '{}'\n", spool.display()));
    // A socket can be opened by nobody, whoever this runs as.
    let first = spool.join("1.delta");
    let socket = std::os::unix::net::UnixListener::bind(&first).unwrap();
    let control = Control::start(&toml);
    fs::copy(made.make(2, 2.0), spool.join("2.delta")).unwrap();
    let told = || control.get("/v1/status").1["deltas"].to_string();
    wait_for("that one waits", || told().contains("1 deltas in it wait"));
    wait_for("why", || {
        let told = told();
        told.contains("1.delta can't be read or written: No such device")
            && told.contains("trying again each second")
    });
    drop(socket);
    fs::remove_file(&first).unwrap();
    fs::copy(made.make(1, 1.0), &first).unwrap();
    wait_for("both", || last(&control) == json!(2));
    assert!(told().contains("2 taken or known"), "{}", told());
    assert!(!told().contains("refused"), "{}", told());
}

#[test]
fn what_was_damaged_since_it_was_taken_is_mended_by_who_gives_it_again() {
    let (folder, made) = (tempfile::tempdir().unwrap(), Deltas::of(1));
    let spool = folder.path().join("spool");
    fs::create_dir(&spool).unwrap();
    let toml = keeping(&folder, &format!("watch = '{}'\n", spool.display()));
    let mut control = Control::start(&toml);
    let bytes = made.bytes(1, 1.0);
    assert_eq!(give(&control, &bytes).0, 200);
    let kept = folder.path().join("log/m/gen-1/00000000000000000001.delta");
    let damage = || {
        let mut damaged = bytes.clone();
        *damaged.last_mut().unwrap() ^= 1;
        fs::write(&kept, damaged).unwrap();
    };
    // While it runs nobody has looked at it since.
    damage();
    assert_eq!(give(&control, &bytes).1["is_new"], json!(false));
    assert_eq!(fs::read(&kept).unwrap(), bytes);
    // In the directory that is watched it is as good, also where it was before.
    fs::copy(made.make(1, 1.0), spool.join("1.delta")).unwrap();
    let told = |control: &Control| control.get("/v1/status").1["deltas"].to_string();
    wait_for("that it is known", || {
        told(&control).contains("1 taken or known")
    });
    control.kill();
    damage();
    control.start_again();
    wait_for("that it is whole", || fs::read(&kept).unwrap() == bytes);
    wait_for("that nothing is told", || {
        control.get("/v1/deltas").1[0]["damaged"] == json!([])
    });
}

/// What a dataplane reports that holds a generation 1 with a fingerprint.
fn holds(control: &Control, dataplane: &str, instance: u128, fingerprint: u32) {
    let report = Report {
        deltas: Some(vec![0]),
        fingerprints: vec![fingerprint],
        ..Dataplane::new(dataplane, instance).report_of()
    };
    let path = format!("/v1/dataplanes/{dataplane}/report");
    let body = serde_json::to_vec(&report).unwrap();
    assert_eq!(control.post(&path, "application/json", &body).0, 204);
}

#[test]
fn what_was_made_for_another_generation_than_is_held_is_refused() {
    let (folder, made) = (tempfile::tempdir().unwrap(), Deltas::of(1));
    let (spool, own) = (folder.path().join("spool"), Deltas::of(2));
    fs::create_dir(&spool).unwrap();
    let control = Control::start(&keeping(
        &folder,
        &format!("watch = '{}'\n", spool.display()),
    ));
    let first = made.make(1, 1.0);
    let base = |path: &Path| DeltaFile::open(path).unwrap().head().base;
    let (wrong, right) = (base(&first), base(&own.make(1, 7.0)));
    fs::copy(&first, spool.join("1.delta")).unwrap();
    // It is not taken before dataplanes were heard of.
    holds(&control, "a", 1, right);
    let fingerprints = format!(
        "(fingerprint {wrong:08x}) than dataplane `a` holds ({right:08x}), and no dataplane holds that one"
    );
    let (code, said) = give(&control, &made.bytes(1, 2.0));
    assert_eq!(code, 409);
    assert!(said.to_string().contains(&fingerprints), "{said}");
    wait_for("a word on that in the directory", || {
        holds(&control, "a", 1, right);
        control.log().contains("1.delta is not taken")
    });
    assert_eq!(give(&control, &own.bytes(1, 1.0)).0, 200);

    // As soon as one of them holds it, others come to it.
    holds(&control, "a", 1, wrong);
    assert_eq!(give(&control, &own.bytes(2, 1.0)).0, 409);
    holds(&control, "b", 2, right);
    assert_eq!(give(&control, &own.bytes(2, 1.0)).0, 200);
}

#[test]
fn a_dataplane_that_can_t_apply_one_is_told_of_until_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let control = Control::start(&keeping(&folder, ""));
    let report = |why: Option<&str>| {
        let report = Report {
            deltas_failed: why.map(str::to_owned),
            ..Dataplane::new("a", 1).report_of()
        };
        let body = serde_json::to_vec(&report).unwrap();
        let path = "/v1/dataplanes/a/report";
        assert_eq!(control.post(path, "application/json", &body).0, 204);
        control.get("/v1/status").1["deltas"].clone()
    };
    assert_eq!(report(None), json!([]));
    let why = format!(
        "delta 1 of generation 1 could not be applied: {}",
        "é".repeat(9_000)
    );
    let told = report(Some(&why))[0].as_str().unwrap().to_owned();
    let begins = "dataplane `a` takes no deltas of this generation of model m until this is mended: delta 1 of generation 1 could not be applied: é";
    assert!(told.starts_with(begins) && told.len() < 700, "{told}");
    assert_eq!(report(None), json!([]));
}

#[test]
fn one_that_was_damaged_where_it_is_kept_is_not_sent_until_it_is_given_again() {
    let (folder, made) = (tempfile::tempdir().unwrap(), Deltas::of(1));
    let mut control = Control::start(&keeping(&folder, ""));
    let bytes = [made.bytes(1, 1.0), made.bytes(2, 2.0)];
    for delta in &bytes {
        assert_eq!(give(&control, delta).0, 200);
    }
    control.kill();
    let kept = folder.path().join("log/m/gen-1/00000000000000000002.delta");
    let mut damaged = bytes[1].clone();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(&kept, damaged).unwrap();
    control.start_again();
    wait_for("a word on that", || {
        let told = control.get("/v1/status").1["deltas"].to_string();
        told.contains("delta 2 of generation 1 of model m can't be read where it is kept")
    });
    assert_eq!(control.get("/v1/deltas").1[0]["damaged"], json!([2]));
    let (code, said) = control.get("/v1/dataplanes/a/deltas/m/1/2");
    assert_eq!(code, 500);
    assert!(said.to_string().contains("publish it again"), "{said}");
    assert_eq!(fetch(&control, 1).as_ref(), Some(&bytes[0]));
    assert_eq!(give(&control, &bytes[1]).1["is_new"], json!(false));
    assert_eq!(fetch(&control, 2).as_ref(), Some(&bytes[1]));
    assert_eq!(control.get("/v1/deltas").1[0]["damaged"], json!([]));
    assert_eq!(control.get("/v1/status").1["deltas"], json!([]));
    assert_eq!(fs::read(kept).unwrap(), bytes[1]);
}

#[test]
fn one_that_comes_too_slowly_makes_way_for_others() {
    let (folder, made) = (tempfile::tempdir().unwrap(), Deltas::of(1));
    let control = Control::start(&keeping(&folder, ""));
    let delta = made.bytes(1, 1.0);
    let mut slow = TcpStream::connect(control.address).unwrap();
    let head = "POST /v1/deltas HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n";
    slow.write_all(head.as_bytes()).unwrap();
    let began = Instant::now();
    // Who is refused amid a body is told so.
    while give(&control, &vec![0; 4 << 20]).0 != 503 {
        assert!(began.elapsed() < Duration::from_secs(5), "it has begun");
    }
    // Something comes again and again.
    while give(&control, &delta).0 == 503 {
        assert!(
            began.elapsed() < Duration::from_secs(25),
            "it has its place"
        );
        slow.write_all(b"R").unwrap();
        std::thread::sleep(Duration::from_millis(500));
    }
    assert!(began.elapsed() > Duration::from_secs(8), "it had its time");
    assert_eq!(last(&control), json!(1));
    slow.shutdown(std::net::Shutdown::Write).unwrap();
    let mut said = String::new();
    slow.read_to_string(&mut said).unwrap();
    assert!(
        said.starts_with("HTTP/1.1 408 ") && said.contains("bytes of the body came within 10 s"),
        "{said}"
    );
}

#[test]
fn a_path_that_names_no_delta_is_told_by_its_part() {
    let control = Control::start(TOML);
    for (path, part) in [
        ("m/x/1", "`x` is no number of a generation"),
        ("m/1/-2", "`-2` is no number of a delta"),
    ] {
        let (code, said) = control.get(&format!("/v1/dataplanes/a/deltas/{path}"));
        assert_eq!(code, 400);
        assert!(said.to_string().contains(part), "{said}");
    }
}
