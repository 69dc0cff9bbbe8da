//! The log of deltas: what is taken and refused, what is there after a kill, and what appears in a directory.

#[path = "support/deltas.rs"]
mod deltas;
mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use deltas::Deltas;
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
        assert_eq!(give(&control, &damaged).0, 422, "byte {at}");
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
    assert_eq!(
        control.log().matches("dataplane `a` has applied").count(),
        2
    );
    assert_eq!(asked(&control, 3, second), 204);
    assert_eq!(shown(&control), ("[]".into(), "[]".into()));
}

#[test]
fn a_log_that_lacks_one_or_is_another_s_keeps_it_from_starting() {
    let (folder, made) = (tempfile::tempdir().unwrap(), Deltas::of(1));
    let toml = keeping(&folder, "");
    let mut control = Control::start(&toml);
    for sequence in 1..=3 {
        assert_eq!(give(&control, &made.bytes(sequence, 1.0)).0, 200);
    }
    let refused = |toml: &str| {
        let elsewhere = Arc::new(tempfile::tempdir().unwrap());
        Control::try_start_in(&elsewhere, toml).expect_err("it starts")
    };
    let said = refused(&toml);
    assert!(said.contains("another control plane's"), "{said}");
    control.kill();
    let path = |sequence: u64| {
        let name = format!("log/m/gen-1/{sequence:020}.delta");
        folder.path().join(name)
    };
    fs::rename(path(2), folder.path().join("2")).unwrap();
    let said = refused(&toml);
    assert!(said.contains("without a gap"), "{said}");
    fs::rename(folder.path().join("2"), path(2)).unwrap();
    fs::write(path(3), fs::read(path(1)).unwrap()).unwrap();
    let said = refused(&toml);
    assert!(said.contains("does not belong there"), "{said}");
    fs::remove_file(path(3)).unwrap();
    control.start_again();
    assert_eq!(last(&control), json!(2));
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
    wait_for("a word on the bad one", || {
        control.log().contains("b.delta is not taken")
    });
    assert_eq!(control.get("/v1/deltas").1, json!([]));
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
    assert_eq!(spool.read_dir().unwrap().count(), 5, "nothing is removed");
}
