//! Another generation is loaded, served and gone back from by visitors of the admin address who may; what can't be changes nothing.

#[path = "support/program.rs"]
mod support;

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use rowmill_table::{Generation, RowFormat, TableKind, TableSpec, generate, silent};
use rustix::process::Signal;
use serde_json::Value;

use support::{PATIENCE, Place, ask, page, ready};

const ALLOWED: &str = "[workers]\ncpus = 2\npin = false\n[limits]\nslots = 4\n[admin]\n\
                       address = \"127.0.0.1:0\"\nallow_changes = true";

fn spec(name: &str, rows: u64, dim: usize) -> TableSpec {
    TableSpec {
        name: name.into(),
        rows,
        dim,
        format: RowFormat::F32,
        kind: TableKind::Dense,
    }
}

fn generation(dir: &Path, number: u64, specs: &[TableSpec]) {
    generate(dir, number, specs, number, &silent).unwrap();
}

fn post(address: SocketAddr, change: &str) -> (u16, String) {
    let head = format!("POST /generations/{change} HTTP/1.1\r\nHost: x\r\n\r\n");
    let reply = ask(address, &head);
    let code = reply.split(' ').nth(1).unwrap().parse().unwrap();
    (code, reply.split_once("\r\n\r\n").unwrap().1.trim().into())
}

fn status(address: SocketAddr) -> Value {
    serde_json::from_str(&page(address, "/status").1).unwrap()
}

/// Makes a change and waits until it is through: how it stands, and what is said of it.
fn changed(address: SocketAddr, change: &str) -> (String, String) {
    let (code, body) = post(address, change);
    assert_eq!(code, 202, "{change}: {body}");
    let begun: Value = serde_json::from_str(&body).unwrap();
    let until = Instant::now() + PATIENCE;
    loop {
        let status = status(address);
        let mut changes = status["generation_changes"].as_array().unwrap().iter();
        let change = changes.find(|change| change["number"] == begun["change"]);
        let text = |key: &str| change.unwrap()[key].as_str().unwrap().to_owned();
        if text("state") != "running" {
            return (text("state"), text("detail"));
        }
        assert!(Instant::now() < until, "{status:#}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn done(address: SocketAddr, change: &str) {
    let (state, detail) = changed(address, change);
    assert_eq!(state, "done", "{change}: {detail}");
}

fn fails(address: SocketAddr, change: &str, why: &str) {
    let before = held(address);
    let (state, detail) = changed(address, change);
    assert!(
        state == "failed" && detail.contains(why),
        "{change}: {state}: {detail}"
    );
    assert_eq!(held(address), before);
}

fn refused(address: SocketAddr, change: &str, code: u16, why: &str) {
    let answer = post(address, change);
    assert!(
        answer.0 == code && answer.1.contains(why),
        "{change}: {answer:?}"
    );
}

/// What is held, the newest first, with what is said of each.
fn held(address: SocketAddr) -> Vec<(u64, String)> {
    let status = status(address);
    let of = |one: &Value| {
        let state = one["state"].as_str().unwrap().to_owned();
        (one["generation"].as_u64().unwrap(), state)
    };
    let held: Vec<_> = status["generations"]
        .as_array()
        .unwrap()
        .iter()
        .map(of)
        .collect();
    assert_eq!(status["generation"], held[0].0);
    held
}

fn named(held: &[(u64, &str)]) -> Vec<(u64, String)> {
    held.iter()
        .map(|&(number, state)| (number, state.into()))
        .collect()
}

#[test]
fn a_generation_is_loaded_served_gone_back_from_and_given_up() {
    let place = Place::new();
    generation(
        &place.path("two"),
        2,
        &[spec("f", 3000, 16), spec("q", 10, 16)],
    );
    generation(
        &place.path("three"),
        3,
        &[spec("f", 50, 16), spec("q", 10, 16), spec("new", 5, 8)],
    );
    let (mut running, address) = ready(&place.configure("", ALLOWED));
    assert_eq!(held(address), named(&[(1, "newest")]));
    refused(
        address,
        "activate?number=2",
        409,
        "generation 2 is not held: 1 is; load it first",
    );
    refused(address, "rollback", 409, "nothing to go back to");
    refused(
        address,
        "unload?number=1",
        409,
        "generation 1 is the newest",
    );
    assert_eq!(post(address, "activate?number=1"), (200, "{}".into()));

    done(address, "load?number=2");
    assert_eq!(held(address), named(&[(1, "newest"), (2, "held")]));
    refused(
        address,
        "load?number=3",
        409,
        "two generations are held, 1 and 2",
    );
    refused(address, "rollback", 409, "nothing to go back to");
    let metrics = page(address, "/metrics").1;
    for line in [
        "rowmill_generation_newest{generation=\"1\"} 1",
        "rowmill_generation_newest{generation=\"2\"} 0",
        "rowmill_generation_in_progress{generation=\"2\"} 0",
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
    done(address, "activate?number=2");
    assert_eq!(held(address), named(&[(2, "newest"), (1, "before")]));
    assert_eq!(status(address)["tables"][0]["rows"], 3000);
    running.wait_for("generation: 2");
    done(address, "rollback");
    assert_eq!(held(address), named(&[(1, "newest"), (2, "held")]));
    assert_eq!(status(address)["tables"][0]["rows"], 1000);
    // What was gone back from does not come again by mistake.
    refused(address, "rollback", 409, "nothing to go back to");
    done(address, "activate?number=2");
    done(address, "unload?number=1");
    assert_eq!(held(address), named(&[(2, "newest")]));
    refused(address, "rollback", 409, "nothing to go back to");
    refused(address, "unload?number=1", 409, "generation 1 is not held");

    // Another one takes the side that has become free, and the first comes back.
    done(address, "load?directory=three");
    done(address, "activate?number=3");
    assert_eq!(status(address)["tables"].as_array().unwrap().len(), 3);
    done(address, "unload?number=2");
    let absolute = format!("load?directory={}", place.path("model").display());
    done(address, &absolute);
    assert_eq!(held(address), named(&[(3, "newest"), (1, "held")]));
    running.signal(Signal::TERM);
    assert_eq!(running.code(), Some(0));

    // A restart serves what is configured.
    let (_running, address) = ready(&place.configure("", ALLOWED));
    assert_eq!(held(address), named(&[(1, "newest")]));
}

#[test]
fn what_can_not_be_loaded_changes_nothing_and_is_told() {
    let place = Place::new();
    generation(&place.path("wide"), 2, &[spec("f", 10, 32)]);
    generation(&place.path("same"), 1, &[spec("f", 10, 16)]);
    generation(&place.path("zero"), 0, &[spec("f", 10, 16)]);
    generation(&place.path("four"), 4, &[spec("f", 10, 16)]);
    generation(&place.path("four-again"), 4, &[spec("f", 10, 16)]);
    generation(&place.path("damaged"), 5, &[spec("f", 5000, 16)]);
    generation(
        &place.path("keyed"),
        6,
        &[TableSpec {
            kind: TableKind::Hashed(rowmill_table::Missing::Zero),
            ..spec("f", 10, 16)
        }],
    );
    let damaged = Generation::open(place.path("damaged")).unwrap();
    let file = damaged.path(&damaged.tables()[0]);
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    std::fs::create_dir(place.path("bad")).unwrap();
    std::fs::write(place.path("bad/manifest.json"), "{").unwrap();
    // Ones whose manifests or names say which generations they are.
    generation(&place.path("z30"), 30, &[spec("f", 10, 16)]);
    let cut = Generation::open(place.path("z30")).unwrap();
    let rows = cut.path(&cut.tables()[0]);
    std::fs::write(rows, "short").unwrap();
    std::fs::create_dir(place.path("v31")).unwrap();
    std::fs::write(place.path("v31/manifest.json"), "{").unwrap();

    let (_running, address) = ready(&place.configure("", ALLOWED));
    let cases = [
        (
            "directory=wide",
            "table f has dim 32 in generation 2 and 16 in generation 1",
        ),
        ("directory=same", "is generation 1, which is held already"),
        (
            "directory=zero",
            "generation 0 cannot be told from the newest",
        ),
        ("number=4", "several directories hold generation 4"),
        ("number=5", "damaged"),
        ("number=6", "so that ids mean something else"),
        (
            "number=77",
            "there is no generation 77 among the directories",
        ),
        (
            "number=77",
            "others that cannot be opened: 3 (`rowmill table inspect ",
        ),
        ("number=30", "generation 30 cannot be opened: "),
        ("number=30", "z30: "),
        ("number=30", "others that cannot be opened: 2 ("),
        ("number=31", "v31: "),
        ("directory=nowhere", "cannot open"),
        ("directory=bad", "cannot open"),
    ];
    for (source, why) in cases {
        fails(address, &format!("load?{source}"), why);
    }
    refused(address, "load?number=x", 400, "write number=N");
    refused(
        address,
        "remove?number=4",
        400,
        "there is no change `remove`",
    );
    let from_a_page = "POST /generations/rollback HTTP/1.1\r\nOrigin: http://x\r\n\r\n";
    assert!(ask(address, from_a_page).starts_with("HTTP/1.1 403"));
    done(address, "load?directory=four");
}

#[test]
fn changes_have_to_be_allowed() {
    let place = Place::new();
    generation(&place.path("two"), 2, &[spec("f", 10, 16)]);
    let (_running, address) = ready(&place.configure("", support::MODEST));
    refused(
        address,
        "load?number=2",
        403,
        "admin.allow_changes is false",
    );
}

/// The table `f` is listed, at first at this place.
fn listed(place: &Place, placement: &str) -> std::path::PathBuf {
    let table = format!(
        "{ALLOWED}\n[cache]\npage_cache = \"allow\"\n[[tables]]\nname = \"f\"\nplacement = \"{placement}\"\ncache_bytes = 30000\n"
    );
    place.configure("", &table)
}

fn moves(address: SocketAddr, to: &str) -> (u16, String) {
    let head = format!("POST /tables/f?placement={to} HTTP/1.1\r\nHost: x\r\n\r\n");
    let reply = ask(address, &head);
    let code = reply.split(' ').nth(1).unwrap().parse().unwrap();
    (code, reply.split_once("\r\n\r\n").unwrap().1.trim().into())
}

/// Moves `f` and waits until it is there.
fn moved(address: SocketAddr, to: &str) {
    let until = Instant::now() + PATIENCE;
    loop {
        let (code, body) = moves(address, to);
        if code == 202 {
            break;
        }
        // The one before it is where it was to be a little before that is told as done.
        let is_early = code == 409 && body.contains("one moves at a time");
        assert!(is_early && Instant::now() < until, "{body}");
        std::thread::sleep(Duration::from_millis(2));
    }
    while status(address)["cache"][0]["placement"] != to {
        assert!(Instant::now() < until, "{:#}", status(address));
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn listed_tables_have_a_cache_for_each_generation() {
    let place = Place::new();
    // There it has another number, and more rows.
    let others = [spec("new", 5, 8), spec("f", 3000, 16), spec("q", 10, 16)];
    generation(&place.path("two"), 2, &others);
    for before in ["cached", "resident"] {
        let (mut running, address) = ready(&listed(&place, before));
        let memory = |what: &str| status(address)["memory"][what].as_u64().unwrap();
        let cache = |what: &str| status(address)["cache"][0][what].clone();
        let (share, all) = (cache("share_bytes"), memory("arena_bytes"));
        for round in 0..3 {
            done(address, "load?number=2");
            assert_eq!(cache("placement"), before);
            done(address, "activate?number=2");
            assert_eq!(
                (cache("placement"), cache("share_bytes")),
                (before.into(), share.clone())
            );
            let rows = status(address)["tables"]
                .as_array()
                .unwrap()
                .iter()
                .find_map(|table| (table["name"] == "f").then(|| table["rows"].clone()));
            assert_eq!(rows, Some(3000.into()), "{:#}", status(address)["tables"]);
            let other = if before == "cached" {
                "resident"
            } else {
                "cached"
            };
            let (code, said) = moves(address, other);
            let both = "two generations are held, in which a table is at the same place";
            assert!(code == 409 && said.contains(both), "{code}: {said}");
            done(address, "rollback");
            if round == 1 {
                done(address, "unload?number=2");
                continue;
            }
            // The other side's is given up, and it is moved where the second is.
            done(address, "activate?number=2");
            done(address, "unload?number=1");
            moved(address, other);
            moved(address, before);
            done(
                address,
                &format!("load?directory={}", place.path("model").display()),
            );
            done(address, "activate?number=1");
            done(address, "unload?number=2");
        }
        assert_eq!(held(address), named(&[(1, "newest")]));
        assert_eq!((cache("share_bytes"), memory("arena_bytes")), (share, all));
        running.signal(Signal::TERM);
        assert_eq!(running.code(), Some(0));
    }
}

#[test]
fn listed_tables_of_another_kind_are_refused_and_nothing_stays() {
    let place = Place::new();
    let half = TableSpec {
        format: RowFormat::F16,
        ..spec("f", 1000, 32)
    };
    generation(&place.path("half"), 2, &[half, spec("q", 10, 16)]);
    generation(&place.path("none"), 3, &[spec("q", 10, 16)]);
    generation(
        &place.path("keyed"),
        4,
        &[
            TableSpec {
                kind: TableKind::Hashed(rowmill_table::Missing::Zero),
                ..spec("f", 10, 16)
            },
            spec("q", 10, 16),
        ],
    );
    generation(
        &place.path("five"),
        5,
        &[spec("f", 10, 16), spec("q", 10, 16)],
    );
    let (_running, address) = ready(&listed(&place, "cached"));
    let mut memory = None;
    for round in 0..2 {
        fails(
            address,
            "load?number=2",
            "table f has rows of 64 bytes (f16) in generation 2",
        );
        fails(
            address,
            "load?number=3",
            "table f is listed in [[tables]], and generation 3 has none",
        );
        // After its tables came.
        fails(address, "load?number=4", "so that ids mean something else");
        let now = status(address)["cache"][0]["memory_bytes"].clone();
        assert_eq!(*memory.get_or_insert(now.clone()), now);
        done(address, "load?number=5");
        done(address, "unload?number=5");
        assert_eq!(held(address), named(&[(1, "newest")]), "round {round}");
    }
}
