//! The description of the interface, held against the server.

#[path = "support/deltas.rs"]
mod deltas;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};

use rowmill_link::MEDIA_TYPE;
use rowmill_trust::Token;
use serde_json::{Value, json};
use support::{Control, Dataplane, TOML, wait_for};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../openapi.json");

#[test]
fn the_file_is_what_the_code_says() {
    let made = rowmill_control::api::description();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(FILE, &made).unwrap();
    }
    let file = std::fs::read_to_string(FILE).unwrap_or_default();
    assert!(
        file == made,
        "control/openapi.json is another one: run this test with UPDATE=1, and look at what changes for clients"
    );
}

/// Each operation of the file, with the statuses that it declares.
fn declared() -> BTreeMap<String, BTreeSet<u16>> {
    let file: Value = serde_json::from_str(&std::fs::read_to_string(FILE).unwrap()).unwrap();
    let mut operations = BTreeMap::new();
    for (path, methods) in file["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let statuses = operation["responses"].as_object().unwrap().keys();
            let statuses = statuses.map(|status| status.parse().unwrap()).collect();
            operations.insert(format!("{method} {path}"), statuses);
        }
    }
    operations
}

/// What was asked for, and the statuses that came of it.
struct Asked {
    control: Control,
    seen: BTreeMap<String, BTreeSet<u16>>,
}

impl Asked {
    /// Notes what came. A refusal has the declared body.
    fn note(&mut self, operation: &str, (status, body): (u16, Value)) -> Value {
        if status >= 400 {
            let keys: Vec<&String> = body.as_object().unwrap().keys().collect();
            assert_eq!(keys, ["error"], "{operation}: {body}");
            assert!(
                body["error"].as_str().unwrap().len() > 10,
                "{operation}: {body}"
            );
        }
        self.seen
            .entry(operation.into())
            .or_default()
            .insert(status);
        body
    }
}

/// What each operation answers where it is not known who asks, and where it is somebody else.
fn refused_by_trust() -> Vec<(String, (u16, Value))> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens");
    let tokens: Vec<Token> = (0..2).map(|_| Token::draw().unwrap()).collect();
    let who = ["rowmill://dataplane/a", "rowmill://operator/b"].map(|uri| uri.parse().unwrap());
    let lines = tokens
        .iter()
        .zip(&who)
        .map(|(token, who)| token.line(who) + "\n");
    std::fs::write(&file, lines.collect::<String>()).unwrap();
    let control = Control::start(&format!("{TOML}tokens_file = '{}'\n", file.display()));
    let mut answers = Vec::new();
    for operation in declared().into_keys() {
        let (method, path) = operation.split_once(' ').unwrap();
        let path = path.replace("{name}", "b").replace("{row}", "7");
        let url = control.url(&path.replace(['{', '}'], ""));
        // A dataplane is refused what is operators', and what is another's; an operator what is dataplanes'.
        let other = &tokens[usize::from(path.starts_with("/v1/dataplanes/b/policy"))];
        for token in [None, Some(other)] {
            let mut request = support::request(method, &url);
            if let Some(token) = token {
                request = request.header("authorization", format!("Bearer {}", token.secret()));
            }
            let answer = support::answer(support::agent().run(request.body(()).unwrap()));
            let expected = if token.is_some() { 403 } else { 401 };
            assert_eq!(answer.0, expected, "{operation}: {answer:?}");
            answers.push((operation.clone(), answer));
        }
    }
    answers
}

#[test]
fn every_answer_says_whose_it_is() {
    let control = Control::start(TOML);
    let of = |path: &str| {
        let request = support::request("get", &control.url(path)).body(());
        let answer = support::agent().run(request.unwrap()).unwrap();
        let name = answer.headers()[rowmill_link::CONTROL_HEADER].to_str();
        (answer.status().as_u16(), name.unwrap().to_owned())
    };
    let (_, status) = control.get("/v1/status");
    let name = status["control"].as_str().unwrap().to_owned();
    assert_eq!(of("/v1/tables"), (200, name.clone()));
    assert_eq!(of("/v1/nothing"), (404, name));
}

#[test]
fn every_operation_answers_as_it_declares() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let toml = format!(
        "{TOML}[limits]\ndataplanes = 2\n[deltas]\ndirectory = '{}'\nmax_bytes = 100000\n",
        log.display()
    );
    let mut asked = Asked {
        control: Control::start(&toml),
        seen: BTreeMap::new(),
    };
    let control = &asked.control;
    let (report, samples, policy) = (
        "post /v1/dataplanes/{name}/report",
        "post /v1/dataplanes/{name}/samples",
        "get /v1/dataplanes/{name}/policy",
    );
    let json = "application/json";
    let mut first = Dataplane::new("a", 1);
    // Dataplanes.
    let mut answers = vec![(samples, first.send_samples(control))];
    answers.push((policy, control.get("/v1/dataplanes/a/policy")));
    answers.push((policy, control.get("/v1/dataplanes/a/policy?after=now")));
    answers.push((report, first.report(control)));
    answers.push((samples, first.send_samples(control)));
    answers.push((
        samples,
        control.post("/v1/dataplanes/a/samples", MEDIA_TYPE, b"?"),
    ));
    answers.push((
        samples,
        control.post("/v1/dataplanes/a/samples", MEDIA_TYPE, &[0; 300 << 10]),
    ));
    answers.push((report, control.post("/v1/dataplanes/a/report", json, b"{}")));
    answers.push((
        report,
        control.post("/v1/dataplanes/a/report", json, &[b' '; 5 << 20]),
    ));
    answers.push((
        report,
        control.post(
            "/v1/dataplanes/a%2fb/report",
            json,
            &serde_json::to_vec(&first.report_of()).unwrap(),
        ),
    ));
    answers.push((report, Dataplane::new("b", 2).report(control)));
    answers.push((report, Dataplane::new("c", 3).report(control)));
    answers.push((report, Dataplane::new("b", 4).report(control)));
    answers.push((report, Dataplane::new("b", 2).report(control)));
    wait_for("a policy", || first.poll(control).is_some());
    answers.push((policy, control.get("/v1/dataplanes/a/policy")));

    // Operators.
    answers.push(("get /v1/status", control.get("/v1/status")));
    answers.push(("get /v1/dataplanes", control.get("/v1/dataplanes")));
    answers.push(("get /v1/tables", control.get("/v1/tables")));
    let table = "get /v1/tables/{model}/{table}";
    answers.push((table, control.get("/v1/tables/m/hot")));
    answers.push((table, control.get("/v1/tables/m/none")));
    let row = "get /v1/tables/{model}/{table}/rows/{row}";
    answers.push((row, control.get("/v1/tables/m/hot/rows/7")));
    answers.push((row, control.get("/v1/tables/m/hot/rows/-7")));
    answers.push((row, control.get("/v1/tables/n/hot/rows/7")));
    let settings = "/v1/tables/m/hot/settings";
    let set = "put /v1/tables/{model}/{table}/settings";
    answers.push((set, control.put(settings, &json!({"pinned_share": 0.1}))));
    answers.push((set, control.put(settings, &json!({"pinned": 0.1}))));
    answers.push((set, control.put(settings, &json!({"pinned_share": 1.1}))));
    answers.push((
        set,
        control.put(
            settings,
            &json!({"pinned_share": 0.1, "why": "x".repeat(5000)}),
        ),
    ));
    answers.push((
        "delete /v1/tables/{model}/{table}/settings",
        control.delete(settings),
    ));

    answers.push(("get /v1/settings", control.get("/v1/settings")));
    let wish = "post /v1/generations/{model}";
    let mut ask = |model: &str, body: &[u8]| {
        let path = format!("/v1/generations/{model}");
        answers.push((wish, control.post(&path, json, body)));
    };
    ask("m", br#"{"wish":{"load":2}}"#);
    ask("m", br#"{"wish":{"load":0}}"#);
    ask("n", br#"{"wish":{"load":2}}"#);
    ask("m", b"?");
    ask("m", &[b' '; 21 << 10]);
    answers.push(("get /v1/generations", control.get("/v1/generations")));

    // Deltas.
    let (give, piece) = (
        "post /v1/deltas",
        "get /v1/dataplanes/{name}/deltas/{model}/{generation}/{sequence}",
    );
    let made = deltas::Deltas::of(1);
    let bytes = "application/octet-stream";
    for body in [
        &made.bytes(2, 1.0)[..],
        &made.bytes(1, 1.0),
        b"?",
        &[0; 100_001],
    ] {
        answers.push((give, control.post("/v1/deltas", bytes, body)));
    }
    answers.push((
        give,
        (broken_off(control), json!({"error": "it broke off"})),
    ));
    answers.push(("get /v1/deltas", control.get("/v1/deltas")));
    let none = Control::start(TOML);
    answers.push(("get /v1/deltas", none.get("/v1/deltas")));
    for path in ["m/1/2", "m/1/x", "m/1/1?control=another"] {
        let path = format!("/v1/dataplanes/a/deltas/{path}");
        answers.push((piece, control.get(&path)));
    }
    let first = support::agent().get(control.url("/v1/dataplanes/a/deltas/m/1/1"));
    let first = first.call().unwrap();
    answers.push((piece, (first.status().as_u16(), json!(null))));

    for (operation, answer) in answers {
        asked.note(operation, answer);
    }
    for (operation, answer) in refused_by_trust() {
        asked.note(&operation, answer);
    }
    // What can't be had at will: a queue that is full, a disk that fails, bodies that don't come (which `program.rs` has).
    let mut declared = declared();
    for statuses in declared.values_mut() {
        statuses.retain(|status| ![408, 500].contains(status));
    }
    asked
        .seen
        .values_mut()
        .for_each(|statuses| _ = statuses.insert(503));
    assert!(
        declared[policy].len() == 5,
        "no policy is waited for in the queue"
    );
    for operation in [policy, piece, "get /v1/deltas"] {
        // Nor is what becomes of deltas.
        asked.seen.get_mut(operation).unwrap().remove(&503);
    }
    assert_eq!(asked.seen, declared);
}

/// What is said of a body in chunks that breaks off with what is no chunk.
fn broken_off(control: &Control) -> u16 {
    let mut stream = std::net::TcpStream::connect(control.address).unwrap();
    let request = "POST /v1/deltas HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n?\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    said.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn what_is_not_there_and_web_pages_are_refused_with_a_sentence() {
    let control = Control::start(TOML);
    let (code, page) = control.get("/v1/");
    assert_eq!((code, page["error"].is_string()), (404, true));
    let (code, page) = control.post("/v1/status", "text/plain", b"");
    assert_eq!((code, page["error"].is_string()), (405, true));
    let (code, page) = control.get("/v1/dataplanes/%ff/policy");
    assert_eq!((code, page["error"].is_string()), (400, true));
    let page = support::agent()
        .get(control.url("/v1/status"))
        .header("origin", "http://a.example")
        .call();
    let (code, page) = support::answer(page);
    assert_eq!((code, page["error"].is_string()), (403, true));
}
