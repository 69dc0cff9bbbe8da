//! The real program, as dataplanes and operators meet it.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rowmill_link::Policy;
use serde_json::json;
use support::{Control, Dataplane, TOML, wait_for};

#[test]
fn a_dataplane_reports_is_sampled_and_is_given_another_division() {
    let control = Control::start(TOML);
    let mut dataplane = Dataplane::new("a", 1);
    assert_eq!(
        dataplane.send_samples(&control).0,
        409,
        "it has not reported"
    );
    // Until the thresholds are there, and then until shares change.
    let mut order = None;
    wait_for("another division", || {
        assert_eq!(dataplane.report(&control).0, 204);
        assert_eq!(dataplane.send_samples(&control).0, 204);
        if let Some(policy) = dataplane.poll(&control) {
            assert!(order < Some(policy.order), "{policy:?} after {order:?}");
            order = Some(policy.order);
            dataplane.follow(&policy);
        }
        dataplane.bytes("hot") > dataplane.arena / 2
    });
    let (code, page) = control.get("/v1/tables/m/hot");
    assert_eq!(code, 200);
    assert!(
        page["table"]["curve"].as_array().unwrap().len() > 2,
        "{page:#}"
    );
    let moves = &page["table"]["shares"][0]["moves"];
    assert!(
        moves[0]["why"]
            .as_str()
            .unwrap()
            .contains("lookups a second"),
        "{page:#}"
    );
    assert_eq!(page["dataplanes"][0]["shares"].as_array().unwrap().len(), 2);
    let (_, status) = control.get("/v1/status");
    assert_eq!(
        (&status["dataplanes"], &status["tables"], &status["epoch"]),
        (&json!(1), &json!(2), &json!(1))
    );
}

#[test]
fn after_a_kill_it_goes_on_where_it_was() {
    let mut control = Control::start(TOML);
    let mut dataplane = Dataplane::new("a", 1);
    let fixed = json!({"min_bytes": 700_000, "max_bytes": 700_000});
    assert_eq!(control.put("/v1/tables/m/cold/settings", &fixed).0, 200);
    let mut first: Option<Policy> = None;
    wait_for("the share that is set", || {
        dataplane.report(&control);
        if let Some(policy) = dataplane.poll(&control) {
            dataplane.follow(&policy);
            first = Some(policy);
        }
        (690_000..=700_000).contains(&dataplane.bytes("cold"))
    });
    let first = first.unwrap();
    control.kill_and_start();
    assert_eq!(control.get("/v1/status").1["epoch"], 2);
    // The dataplane only knows that nobody answered for a while. What it is told is later than what it has.
    wait_for("a policy of the next epoch", || {
        assert_eq!(dataplane.report(&control).0, 204);
        dataplane.poll(&control).is_some_and(|policy| {
            assert_eq!(policy.control, first.control);
            dataplane.follow(&policy);
            policy.order.epoch == 2
        })
    });
    let settings = control.get("/v1/tables/m/cold").1["table"]["settings"].clone();
    assert_eq!(settings, fixed);
    // It ends on a signal, and what it has told last is kept.
    assert!(control.end().success());
    control.start_again();
    dataplane = Dataplane::new("a", 2);
    wait_for("its shares", || {
        dataplane.report(&control);
        dataplane.poll(&control).is_some_and(|policy| {
            dataplane.follow(&policy);
            (690_000..=700_000).contains(&dataplane.bytes("cold"))
        })
    });
    assert_eq!(control.delete("/v1/tables/m/cold/settings").0, 204);
    assert_eq!(
        control.get("/v1/tables/m/cold").1["table"]["settings"],
        json!({})
    );
}

#[test]
fn files_that_may_not_grow_are_told_and_it_goes_on() {
    let control = Control::start(TOML);
    let dataplane = Dataplane::new("a", 1);
    assert_eq!(dataplane.report(&control).0, 204);
    let put = |bytes: u64| {
        let fixed = json!({"min_bytes": bytes, "max_bytes": bytes});
        control.put("/v1/tables/m/cold/settings", &fixed).0
    };
    assert_eq!(put(700_000), 200);
    control.limit_files(Some(0));
    assert_eq!(put(600_000), 500);
    control.limit_files(None);
    wait_for("a change that is kept", || put(600_000) == 200);
}

/// `tests/states/1` is the state that a former version has left: of a dataplane with tables `hot` and `cold` and their settings.
#[test]
fn what_a_former_version_has_kept_is_read() {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/states/1");
    std::fs::copy(kept, folder.path().join("state")).unwrap();
    let control = Control::try_start_in(&folder, TOML).unwrap();
    let status = control.get("/v1/status").1;
    assert_eq!(status["epoch"], 2, "{status}");
    assert!(
        control.log().contains("dde1b52d9c6d67c3fd7e3d219cb9fa86"),
        "its own name: {}",
        control.log()
    );
    let mut dataplane = Dataplane::new("a", 1);
    wait_for("the shares that were told", || {
        dataplane.report(&control);
        dataplane.poll(&control).is_some_and(|policy| {
            dataplane.follow(&policy);
            (390_000..=400_000).contains(&dataplane.bytes("cold"))
        })
    });
    let hot = control.get("/v1/tables/m/hot").1["table"]["settings"].clone();
    let told = json!({"min_bytes": 200_000, "max_bytes": 900_000, "pinned_share": 0.25});
    assert_eq!(hot, told);
}

#[test]
fn settings_without_effect_are_told_and_all_are_listed() {
    let control = Control::start(TOML);
    let mut dataplane = Dataplane::new("a", 1);
    wait_for("a table", || {
        dataplane.report(&control);
        control.get("/v1/tables/m/hot").0 == 200
    });
    let (code, kept) = control.put("/v1/tables/m/hto/settings", &json!({"min_bytes": 4096}));
    let warning = kept["warnings"][0].as_str().unwrap();
    assert_eq!(code, 200);
    assert!(warning.contains("caches a table `hto`"), "{warning}");
    let only = json!({"pinned_share": 0.7, "admission": "pinned"});
    let (code, kept) = control.put("/v1/tables/m/hot/settings", &only);
    let warning = kept["warnings"][0].as_str().unwrap();
    assert_eq!(code, 200);
    for part in [
        "of 3500 rows",
        "2048 of a table at most",
        "nothing else comes",
    ] {
        assert!(warning.contains(part), "{part}: {warning}");
    }
    let harmless = json!({"max_bytes": 900_000});
    let (_, kept) = control.put("/v1/tables/m/cold/settings", &harmless);
    assert_eq!(kept["warnings"], json!([]));
    let (_, all) = control.get("/v1/settings");
    let all = all.as_array().unwrap().iter();
    let tables: Vec<_> = all.map(|of| of["table"].as_str().unwrap()).collect();
    assert_eq!(tables, ["cold", "hot", "hto"]);
    // Objects are taken, and nothing else.
    for body in [json!([4096, 8192, 0.5, "pinned"]), json!([])] {
        let (code, told) = control.put("/v1/tables/m/cold/settings", &body);
        assert_eq!(code, 400, "{body}");
        assert!(told["error"].as_str().unwrap().contains("write an object"));
    }
    let table = control.get("/v1/tables/m/cold").1;
    assert_eq!(table["table"]["settings"], harmless);
    assert_eq!(control.delete("/v1/tables/m/hto/settings").0, 204);
    assert_eq!(control.get("/v1/settings").1.as_array().unwrap().len(), 2);
    // What is looked for has to be there.
    let (code, told) = control.get("/v1/tables/m/hot/rows/100000");
    let why = "table `hot` has 100000 rows, from 0 to 99999: there is no row 100000";
    assert_eq!((code, &told["error"]), (400, &json!(why)));
    assert_eq!(control.get("/v1/tables/m/hot/rows/99999").0, 200);
    // Once rows are pinned nothing is expected of the others.
    let share = |control: &Control| control.get("/v1/tables/m/hot").1["table"]["shares"][0].clone();
    wait_for("pinned rows", || {
        dataplane.report(&control);
        dataplane.send_samples(&control);
        if let Some(policy) = dataplane.poll(&control) {
            dataplane.follow(&policy);
        }
        share(&control)["admission"] == "pinned"
    });
    let share = share(&control);
    assert!(share["expected"].is_null(), "{share}");
    assert!(share["pins"]["sampled"].as_u64() > Some(0), "{share}");
}

#[test]
fn a_dataplane_that_is_not_heard_of_is_left_out_only_by_name() {
    let mut control = Control::start(TOML);
    let ask = |control: &Control, request: &serde_json::Value| {
        let body = request.to_string();
        control.post("/v1/generations/m", "application/json", body.as_bytes())
    };
    let tell = |control: &Control, name: &str, held: [u64; 2]| {
        let instance = u128::from(name.as_bytes()[0]);
        let mut report = Dataplane::new(name, instance).report_of();
        report.generations = held.to_vec();
        let report = serde_json::to_vec(&report).unwrap();
        let path = format!("/v1/dataplanes/{name}/report");
        assert_eq!(control.post(&path, "application/json", &report).0, 204);
    };
    tell(&control, "a", [1, 2]);
    tell(&control, "b", [1, 2]);
    let without = json!({"wish": {"activate": 2}, "without": ["b"]});
    assert_eq!(ask(&control, &json!({"wish": {"load": 2}})).0, 200);
    wait_for("silence", || {
        tell(&control, "a", [1, 2]);
        let (code, told) = ask(&control, &without);
        code == 200 || {
            assert!(told["error"].as_str().unwrap().contains("`b` is heard of"));
            false
        }
    });
    let wanted = |control: &Control| control.get("/v1/generations").1[0]["wanted"].clone();
    assert_eq!(wanted(&control)["without"], json!(["b"]));
    assert_eq!(control.get("/v1/generations").1[0]["settled"], false);
    // It is kept, until it is heard of; that is kept as well.
    control.kill_and_start();
    assert_eq!(wanted(&control)["without"], json!(["b"]));
    tell(&control, "b", [1, 2]);
    control.kill_and_start();
    assert_eq!(wanted(&control)["without"], json!(null));
    // The next start knows who there was.
    tell(&control, "a", [2, 1]);
    let (code, told) = ask(&control, &json!({"wish": {"unload": 1}}));
    let told = told["error"].as_str().unwrap();
    assert!(told.contains("`b` was not heard of for "), "{told}");
    assert_eq!(code, 409);
}

#[test]
fn who_serves_what_is_known_after_any_end() {
    let mut control = Control::start(TOML);
    // Neither has a cached table, so that there is nothing to tell them.
    let tell = |control: &Control, name: &str, held: &[u64]| {
        let instance = u128::from(name.as_bytes()[0]);
        let mut report = Dataplane::new(name, instance).report_of();
        report.tables.clear();
        report.generations = held.to_vec();
        let report = serde_json::to_vec(&report).unwrap();
        let path = format!("/v1/dataplanes/{name}/report");
        assert_eq!(control.post(&path, "application/json", &report).0, 204);
    };
    let ask = |control: &Control, wish: serde_json::Value| {
        let body = json!({"wish": wish}).to_string();
        control.post("/v1/generations/m", "application/json", body.as_bytes())
    };
    tell(&control, "a", &[1]);
    tell(&control, "b", &[1]);
    control.kill_and_start();
    tell(&control, "a", &[1]);
    assert_eq!(ask(&control, json!({"load": 2})).0, 200);
    tell(&control, "a", &[1, 2]);
    let (code, told) = ask(&control, json!({"activate": 2}));
    let why = told["error"].as_str().unwrap();
    assert!(
        why.starts_with("`b` was not heard of for ") && why.contains("generation 1"),
        "{why}"
    );
    assert_eq!(code, 409);
    // What it serves when it is heard again is what is known.
    tell(&control, "b", &[1, 2]);
    assert_eq!(ask(&control, json!({"activate": 2})).0, 200);
    tell(&control, "b", &[2, 1]);
    tell(&control, "a", &[2, 1]);
    control.kill_and_start();
    tell(&control, "a", &[2, 1]);
    assert_eq!(ask(&control, json!({"activate": 2})).0, 200);
}

#[test]
fn a_damaged_state_is_set_aside_and_told_and_dataplanes_are_taken_over() {
    let mut control = Control::start(TOML);
    let mut dataplane = Dataplane::new("a", 1);
    wait_for("a policy", || {
        dataplane.report(&control);
        dataplane
            .poll(&control)
            .inspect(|policy| dataplane.follow(policy))
            .is_some()
    });
    let before = control.get("/v1/status").1["control"].clone();
    control.kill_and_start();
    control.kill();
    std::fs::write(control.folder.path().join("state"), [7; 8192]).unwrap();
    control.start_again();
    assert_ne!(control.get("/v1/status").1["control"], before);
    assert!(
        control.log().contains("state.damaged-1"),
        "{}",
        control.log()
    );
    assert_eq!(
        std::fs::read(control.folder.path().join("state.damaged-1")).unwrap(),
        [7; 8192]
    );
    // It is told until the file is moved, also by the next start.
    let warnings = |control: &Control| control.get("/v1/status").1["warnings"].to_string();
    for _ in 0..2 {
        let told = warnings(&control);
        for part in ["state.damaged-1", " s ago", "settings", "generations"] {
            assert!(told.contains(part), "{part}: {told}");
        }
        control.kill_and_start();
    }
    let aside = control.folder.path().join("state.damaged-1");
    std::fs::rename(aside, control.folder.path().join("looked-at")).unwrap();
    assert!(!warnings(&control).contains("damaged"));
    wait_for("a policy that is later", || {
        dataplane.report(&control);
        let policy = dataplane.poll(&control);
        policy.is_some_and(|policy| {
            dataplane.follow(&policy);
            json!(policy.control) != before
        })
    });
}

#[test]
fn what_is_wrong_with_a_configuration_is_said_once() {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let said = Control::try_start_in(&folder, "listen = 7\n").unwrap_err();
    assert_eq!(said.matches("invalid type").count(), 1, "{said}");
    let toml = format!("{TOML}insecure = true\ntls = {{ certificate = 'a', key = 'b' }}\n");
    let said = Control::try_start_in(&folder, &toml).unwrap_err();
    assert!(said.starts_with("rowmill-control: tls: "), "{said}");
}

#[test]
fn of_two_one_is_refused_and_another_one_is_told_of() {
    let control = Control::start(TOML);
    // At the same state.
    let second = Control::try_start_in(&control.folder, TOML);
    assert!(second.unwrap_err().contains("is in use by another process"));
    // One with a state of its own: the dataplane follows who is later, and both say so.
    let mut dataplane = Dataplane::new("a", 1);
    wait_for("a policy", || {
        dataplane.report(&control);
        dataplane
            .poll(&control)
            .inspect(|policy| dataplane.follow(policy))
            .is_some()
    });
    let other = Control::start(TOML);
    dataplane.report(&other);
    let (_, status) = other.get("/v1/status");
    let told = status["others"][0].as_str().unwrap();
    assert!(
        told.contains("dataplane `a` follows control plane"),
        "{told}"
    );
    // It was told to.
    let taking = Control::start(&format!("{TOML}take_over = true\n"));
    wait_for("a policy of who takes over", || {
        dataplane.report(&taking);
        let policy = dataplane.poll(&taking);
        policy.is_some_and(|policy| {
            dataplane.follow(&policy);
            policy.order.epoch == 2
        })
    });
}

#[test]
fn who_says_half_of_something_holds_up_nobody() {
    let control = Control::start(TOML);
    let silent = |text: &str| {
        let mut stream = TcpStream::connect(control.address).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream
    };
    let mut half: Vec<TcpStream> = (0..40)
        .flat_map(|_| {
            [
                silent(""),
                silent("GET /v1/status HTTP/1.1\r\nHo"),
                silent("POST /v1/dataplanes/a/report HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{"),
            ]
        })
        .collect();
    assert_eq!(control.get("/v1/status").0, 200);
    let dataplane = Dataplane::new("a", 1);
    wait_for("a policy", || {
        assert_eq!(dataplane.report(&control).0, 204);
        dataplane.poll(&control).is_some()
    });
    // They are told, or cut off.
    for stream in &mut half {
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.is_empty() || text.contains("408"), "{text}");
    }
}

#[test]
fn a_poll_waits_and_ends_with_the_process() {
    let mut control = Control::start(TOML);
    let mut dataplane = Dataplane::new("a", 1);
    wait_for("a policy", || {
        dataplane.report(&control);
        dataplane
            .poll(&control)
            .inspect(|policy| dataplane.follow(policy))
            .is_some()
    });
    // One that waits is answered when there is something.
    let waiting = dataplane.polling(&control);
    let settings = json!({"min_bytes": 700_000});
    assert_eq!(control.put("/v1/tables/m/hot/settings", &settings).0, 200);
    dataplane.report(&control);
    let (code, policy) = waiting.answer();
    assert_eq!(code, 200, "{policy}");
    dataplane.follow(&serde_json::from_str(&policy).unwrap());
    // And when there is an end.
    let waiting = dataplane.polling(&control);
    assert!(control.end().success());
    assert_eq!(waiting.answer(), (204, String::new()));
}

#[test]
fn a_socket_is_served_too_and_made_anew_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let toml = format!("{TOML}socket = '{}'\n", socket.display());
    let mut control = Control::start(&toml);
    let ask = || {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        stream
            .write_all(b"GET /v1/status HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    assert!(ask().starts_with("HTTP/1.1 200 "));
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let other = Arc::new(tempfile::tempdir().unwrap());
    assert!(
        Control::try_start_in(&other, &toml)
            .unwrap_err()
            .contains("another process answers there")
    );
    control.kill_and_start();
    assert!(ask().starts_with("HTTP/1.1 200 "));
    assert!(control.end().success());
    assert!(!socket.exists());
    // Another kind of socket, which somebody has.
    let _others = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
    let why = Control::try_start_in(&other, &toml).unwrap_err();
    assert!(why.contains("can't be told"), "{why}");
    assert!(socket.exists());
}

#[test]
fn who_asks_and_does_not_read_keeps_nobody_out() {
    let control = Control::start(&format!("{TOML}limits.connections = 4\n"));
    let asked = "GET /v1/status HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1000);
    // Three times as many as there are places for, each until nothing more is taken from it.
    let deaf: Vec<TcpStream> = (0..12)
        .map(|_| {
            let mut stream = TcpStream::connect(control.address).unwrap();
            stream
                .set_write_timeout(Some(Duration::from_millis(200)))
                .unwrap();
            for _ in 0..10_000 {
                if stream.write_all(asked.as_bytes()).is_err() {
                    break;
                }
            }
            stream
        })
        .collect();
    assert_eq!(control.get("/v1/status").0, 200);
    drop(deaf);
}

#[test]
fn who_sends_too_much_is_told_so_once_all_is_sent() {
    let control = Control::start(TOML);
    let mebibyte = vec![b' '; 1 << 20];
    let send = |mebibytes: usize| {
        let mut stream = TcpStream::connect(control.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let length = mebibytes << 20;
        let head = format!(
            "POST /v1/dataplanes/a/report HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        for _ in 0..mebibytes {
            stream.write_all(&mebibyte)?;
            // What was sent is read, and could be answered, long before the rest comes.
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut answer = [0; 12];
        stream.read_exact(&mut answer)?;
        std::io::Result::Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    assert_eq!(send(12).unwrap(), "HTTP/1.1 413");
    // But not without end: what is longer than anybody would send is cut off.
    assert!(send(200).is_err(), "all of it is read");
    assert_eq!(control.get("/v1/status").0, 200);
}

#[test]
fn a_recording_is_replayed_to_the_same_policies() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recording");
    let mut control = Control::start(&format!("{TOML}[record]\nfile = '{}'\n", file.display()));
    let mut dataplane = Dataplane::new("a", 1);
    let mut last = None;
    wait_for("another division", || {
        dataplane.report(&control);
        dataplane.send_samples(&control);
        if let Some(policy) = dataplane.poll(&control) {
            dataplane.follow(&policy);
            last = Some(policy);
        }
        dataplane.bytes("hot") > dataplane.arena / 2
    });
    assert!(control.end().success());
    let last = last.unwrap();
    let mut planner = rowmill_admission::Planner::new(
        last.control.clone(),
        1,
        rowmill_admission::Limits::default(),
    );
    let mut seen = false;
    for line in std::fs::read_to_string(&file).unwrap().lines() {
        let line: rowmill_admission::Recorded = serde_json::from_str(line).unwrap();
        // What was refused then is refused now.
        let _refused = planner.handle(line.at_ns, line.event);
        seen |= planner.policy("a").is_some_and(|policy| **policy == last);
    }
    assert!(seen);
}
