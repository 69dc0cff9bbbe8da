//! The program follows what its control plane says, and serves whatever becomes of that.

#[path = "support/looking.rs"]
mod looking;
#[path = "support/plane.rs"]
mod plane;
#[path = "support/program.rs"]
mod support;

use std::path::PathBuf;
use std::time::Duration;

use rowmill_link::{Admission, Placement, Report, TablePolicy};
use rowmill_table::{RowFormat, TableKind, TableSpec, generate, silent};
use rustix::process::Signal;

use looking::{look_up, status, wait_until};
use plane::Plane;
use support::{MODEST, Place, page, ready};

/// Rows of `f`, of 64 bytes and eight more in the cache, in two shards with sets of 16.
const SET: u64 = 2 * 16 * 72;

/// The configuration of a service that may have shares of 60,000 bytes together, of which `f` has 20 sets a shard.
fn configure(place: &Place, plane: &Plane) -> PathBuf {
    configure_and(place, plane, "")
}

/// The same with more lines of `[admin]`.
fn configure_and(place: &Place, plane: &Plane, admin: &str) -> PathBuf {
    let more = format!(
        "[cache]\npage_cache = \"allow\"\nbudget_ms = 20000\narena_bytes = 60000\n\
         [[tables]]\nname = \"f\"\nplacement = \"cached\"\ncache_bytes = {}\n\
         [control]\naddress = \"http://{}\"\nname = \"test\"\n",
        20 * SET,
        plane.address
    );
    place.configure("", &format!("{more}{MODEST}\n{admin}"))
}

fn of(table: &str) -> TablePolicy {
    TablePolicy {
        table: table.into(),
        cache_bytes: None,
        threshold: 0,
        admission: Admission::Built,
        pinned: Vec::new(),
    }
}

#[test]
fn what_there_is_is_reported_and_shares_are_as_told() {
    let (place, plane) = (Place::new(), Plane::new());
    let (mut running, address) = ready(&configure(&place, &plane));
    let report = plane.report("report", |_| true);
    assert_eq!(
        (report.instance.len(), report.workers, report.arena_bytes),
        (32, 2, 60_000)
    );
    assert_eq!((&*report.generation, report.policy), ("1", None));
    let [f, q] = &report.tables[..] else {
        panic!("{:?}", report.tables);
    };
    assert_eq!((&*f.table, f.rows, f.slot_bytes), ("f", 1000, 72));
    assert_eq!(
        (f.placement, f.cache_bytes, f.cache_rows),
        (Placement::Cached, 20 * SET, 640)
    );
    assert_eq!(
        (&*q.table, q.placement, q.cache_bytes),
        ("q", Placement::Resident, 0)
    );
    let ids: Vec<u32> = (0..200).collect();
    look_up(&place, address, &ids);
    for (version, sets) in [(1, 9), (2, 26), (3, 3)] {
        let share = TablePolicy {
            cache_bytes: Some(sets * SET + 100),
            ..of("f")
        };
        plane.publish("c", 1, version, vec![share]);
        let is_there = |bytes: u64| bytes == sets * SET;
        let report = plane.report("share", |report| is_there(report.tables[0].cache_bytes));
        let policy = report.policy.unwrap();
        assert_eq!((&*policy.control, policy.order.version), ("c", version));
        assert_eq!(policy.refused, [""; 0]);
        look_up(&place, address, &ids);
    }
    let report = plane.report("fetched rows", |report| report.tables[0].lookups == 800);
    assert!(report.tables[0].fetched > 0 && report.tables[0].fetch_ns > 0);
    let metrics = page(address, "/metrics").1;
    for line in [
        "rowmill_policy_connected 1\n",
        "rowmill_policy_version 3\n",
        "rowmill_policy_taken_total 3\n",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    // Visitors may not, since that is not configured.
    let refused = support::ask(address, "POST /tables/f?placement=cached HTTP/1.1\r\n\r\n");
    assert!(refused.contains("admin.allow_changes"), "{refused}");
    running.signal(Signal::TERM);
    assert_eq!(running.code(), Some(0));
}

#[test]
fn shares_are_as_told_in_whichever_generation_is_newest() {
    let (place, plane) = (Place::new(), Plane::new());
    let spec = |name: &str, rows| TableSpec {
        name: name.into(),
        rows,
        dim: 16,
        format: RowFormat::F32,
        kind: TableKind::Dense,
    };
    let tables = [spec("f", 2000), spec("q", 10)];
    generate(place.path("two"), 2, &tables, 2, &silent).unwrap();
    let file = configure_and(&place, &plane, "allow_changes = true");
    let (mut running, address) = ready(&file);
    let changed = |change: &str| {
        let head = format!("POST /generations/{change} HTTP/1.1\r\nHost: x\r\n\r\n");
        let reply = support::ask(address, &head);
        assert!(reply.starts_with("HTTP/1.1 202"), "{reply}");
        wait_until(address, change, |status| {
            let changes = status["generation_changes"].as_array().unwrap();
            changes.last().unwrap()["state"] == "done"
        });
    };
    // The other one has a store for each table from when it is loaded.
    changed("load?number=2");
    for (version, sets) in [(1, 9), (2, 26)] {
        let share = TablePolicy {
            cache_bytes: Some(sets * SET),
            ..of("f")
        };
        plane.publish("c", 1, version, vec![share]);
        for (change, newest) in [("activate?number=2", "2"), ("rollback", "1")] {
            let is_so = |report: &Report| report.tables[0].cache_bytes == sets * SET;
            plane.report("share", is_so);
            changed(change);
            plane.report("share after the switch", |report| {
                report.generation == newest && is_so(report)
            });
        }
    }
    running.signal(Signal::TERM);
    assert_eq!(running.code(), Some(0));
}

#[test]
fn what_cannot_be_done_is_told_and_the_rest_is_done() {
    let (place, plane) = (Place::new(), Plane::new());
    let (_running, address) = ready(&configure(&place, &plane));
    let policy = vec![
        of("gone"),
        of("q"),
        TablePolicy {
            cache_bytes: Some(10 * SET),
            pinned: vec![5, 4],
            ..of("f")
        },
        of("f"),
    ];
    plane.publish("c", 7, 1, policy);
    let report = plane.report("policy", |report| report.tables[0].cache_bytes == 10 * SET);
    let refused = report.policy.unwrap().refused;
    let whys = [
        "there is no table gone here",
        "table q is always resident",
        "table f: pinned rows are not ascending numbers below 1000",
        "table f is named twice",
    ];
    for (refused, why) in refused.iter().zip(whys) {
        assert!(refused.contains(why), "{refused}");
    }
    assert_eq!(refused.len(), whys.len(), "{refused:?}");
    for (version, bytes, why) in [(2, 70_000, "is too large"), (3, SET, "is too small")] {
        let share = TablePolicy {
            cache_bytes: Some(bytes),
            ..of("f")
        };
        plane.publish("c", 7, version, vec![share]);
        let refused = |report: &rowmill_link::Report| {
            let policy = report.policy.as_ref()?;
            let [why] = &policy.refused[..] else {
                return None;
            };
            (policy.order.version == version).then(|| why.clone())
        };
        let told = plane.wait("refusal", |known| refused(known.report.as_ref()?));
        assert!(told.contains(why), "{told}");
    }
    let many = TablePolicy {
        pinned: (0..241).collect(),
        ..of("f")
    };
    plane.publish("c", 7, 4, vec![many]);
    wait_until(address, "refusal", |status| {
        let refused = status["control"]["refused"][0].as_str();
        refused.is_some_and(|why| {
            why.contains("241 pinned rows are more than three quarters of the 320")
        })
    });
}

#[test]
fn rows_that_are_to_stay_come_and_stay() {
    let (place, plane) = (Place::new(), Plane::new());
    let (_running, address) = ready(&configure(&place, &plane));
    // One in two of all, so that sets are never full of them but by chance.
    let pinned: Vec<u32> = (0..1000).step_by(8).collect();
    let policy = |admission| TablePolicy {
        cache_bytes: Some(10 * SET),
        admission,
        pinned: pinned.clone(),
        ..of("f")
    };
    plane.publish("c", 1, 1, vec![policy(Admission::Built)]);
    let all = pinned.len() as u64;
    plane.report("pinned rows", |report| report.tables[0].pinned_held == all);
    // Others come and go, and these stay.
    for round in 0..10 {
        let others: Vec<u32> = (0..200).map(|n| (n * 7 + round * 131) % 1000).collect();
        look_up(&place, address, &others);
    }
    assert_eq!(look_up(&place, address, &pinned), all);
    // The others have no business here any more: nobody comes but these, which are loaded anew.
    plane.publish("c", 1, 2, vec![policy(Admission::Pinned)]);
    wait_until(address, "policy", |status| {
        status["control"]["followed"]["order"] == "1.2"
    });
    plane.report("pinned rows", |report| {
        let is_this = report
            .policy
            .as_ref()
            .is_some_and(|policy| policy.order.version == 2);
        is_this && report.tables[0].pinned == all
    });
    let admitted = |status: &serde_json::Value| status["cache"][0]["admitted"].as_u64().unwrap();
    let lacking = |round: u32| (0..100).map(move |n| 8 * ((n * 3 + round) % 125) + 1 + round % 7);
    let mut came = Vec::new();
    for round in 0..5 {
        let before = admitted(&status(address));
        look_up(&place, address, &lacking(round).collect::<Vec<_>>());
        came.push(admitted(&status(address)) - before);
    }
    assert_eq!(
        came[1..],
        [0; 4],
        "the workers knew it when the first were looked up"
    );
    assert_eq!(look_up(&place, address, &pinned), all);
}

#[test]
fn lookups_are_sampled_as_told() {
    let (place, plane) = (Place::new(), Plane::new());
    let (_running, address) = ready(&configure(&place, &plane));
    let half = TablePolicy {
        threshold: 1 << 31,
        ..of("f")
    };
    plane.publish("c", 1, 1, vec![half]);
    let report = plane.report("policy", |report| report.policy.is_some());
    // It is reported as soon as it came, and samples are told once every worker knows it.
    let others: Vec<u32> = (500..600).collect();
    let mut made = 0;
    while plane.wait("lock", |known| Some(known.samples.is_empty())) {
        assert!(made < 60_000, "no samples");
        look_up(&place, address, &others);
        made += others.len() as u64;
        std::thread::sleep(Duration::from_millis(50));
    }
    let ids: Vec<u32> = (0..400).map(|n| n % 200).collect();
    look_up(&place, address, &ids);
    look_up(&place, address, &ids);
    made += 800;
    let samples = plane.wait("samples", |known| {
        let parts = known.samples.iter().flat_map(|body| &body.tables);
        let lookups: u64 = parts.clone().map(|part| part.lookups).sum();
        (lookups == made).then(|| known.samples.clone())
    });
    let mut times = std::collections::BTreeMap::<u32, u32>::new();
    for (body, number) in samples.iter().zip(1..) {
        assert_eq!(body.number, number);
        assert_eq!(format!("{:032x}", body.instance), report.instance);
        for part in &body.tables {
            assert_eq!(
                (&*part.table, part.threshold, part.dropped),
                ("f", 1 << 31, 0)
            );
            let rows = part.samples.iter().map(|sample| sample.row);
            rows.filter(|&row| row < 200)
                .for_each(|row| *times.entry(row).or_default() += 1);
        }
    }
    // Of each row all lookups or none.
    assert!(times.values().all(|&times| times == 4), "{times:?}");
    assert!(
        (60..140).contains(&times.len()),
        "{} of 200 rows",
        times.len()
    );
}

#[test]
fn whatever_becomes_of_the_control_plane_it_serves_and_rejoins() {
    let (place, plane) = (Place::new(), Plane::new());
    let (mut running, address) = ready(&configure(&place, &plane));
    let share = |sets: u64| {
        let cache_bytes = Some(sets * SET);
        vec![TablePolicy {
            cache_bytes,
            ..of("f")
        }]
    };
    plane.publish("c", 1, 1, share(9));
    plane.report("share", |report| report.tables[0].cache_bytes == 9 * SET);
    let ids: Vec<u32> = (0..100).collect();
    let garbage: [(&[u8], &str); 4] = [
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{\"a\":",
            "answers 200",
        ),
        (b"\x16\x03\x01", "no HTTP/1.1"),
        (
            b"HTTP/1.1 500 Oh\r\nContent-Length: 99999999999\r\n\r\n",
            "longer than any policy",
        ),
        (
            b"HTTP/1.1 403 No\r\nContent-Length: 15\r\n\r\n{\"error\":\"who\"}",
            "answers 403: who",
        ),
    ];
    for (garbage, why) in garbage {
        plane.answer_with(Some(garbage));
        wait_until(address, why, |status| {
            let error = status["control"]["last_error"].as_str();
            status["control"]["connected"] == false
                && error.is_some_and(|error| error.contains(why))
        });
        look_up(&place, address, &ids);
        assert_eq!(page(address, "/healthz").0, 200);
        let there = status(address);
        assert_eq!(there["control"]["followed"]["order"], "1.1");
        assert_eq!(there["cache"][0]["share_bytes"], 9 * SET);
        plane.answer_with(None);
        wait_until(address, "connection", |status| {
            status["control"]["connected"] == true
        });
    }
    plane.publish("c", 2, 1, share(5));
    plane.report("share", |report| report.tables[0].cache_bytes == 5 * SET);
    // Another one answers at the address now.
    plane.publish("d", 9, 1, share(20));
    plane.answer_with(None);
    let refused = wait_until(address, "refusal", |status| {
        status["control"]["other"].is_string()
    });
    let other = refused["control"]["other"].as_str().unwrap();
    assert!(
        other.contains(
            "control plane d offers policy 9.1, and c, which is followed with policy 2.1"
        ),
        "{other}"
    );
    assert_eq!(refused["cache"][0]["share_bytes"], 5 * SET);
    let report = plane.report("refusal", |report| {
        let policy = report.policy.as_ref().unwrap();
        policy
            .refused
            .iter()
            .any(|why| why.contains("control plane d"))
    });
    assert_eq!(report.policy.unwrap().control, "c");
    running.signal(Signal::TERM);
    assert_eq!(running.code(), Some(0));
    running.wait_for("ended");
    let log = &running.log;
    assert_eq!(
        log.matches("what is cached stays as it is until it is there")
            .count(),
        4,
        "{log}"
    );
}
