//! The real program asks who is there, with certificates and tokens.

#[path = "support/papers.rs"]
mod papers;
mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use papers::{Papers, dial, dial_as, expired, get, open_to_all, valid, why};
use rowmill_trust::ClientFiles;
use support::{Control, Dataplane, TOML, fresh};

#[test]
fn certificates_say_who_may_what() {
    let papers = Papers::new();
    let control = Control::start(&format!("{TOML}{}", papers.toml(true)));
    let at = control.address;
    let a = papers.client(&["rowmill://dataplane/a", "https://a.example"], valid());
    let operator = papers.client(&["rowmill://operator/o"], valid());
    let report = serde_json::to_string(&Dataplane::new("a", 1).report_of()).unwrap();
    let report_as = |files: &ClientFiles, name: &str| {
        let path = format!("/v1/dataplanes/{name}/report");
        let mut asking = dial(at, files).unwrap();
        asking.ask("POST", &path, &report, None).unwrap()
    };
    assert_eq!(report_as(&a, "a").0, 204);
    assert_eq!(get(at, &operator, "/v1/status").unwrap().0, 200);
    // On one connection, many times.
    let mut asking = dial(at, &a).unwrap();
    for (path, status) in [
        ("/v1/dataplanes/a/policy", 200),
        ("/v1/dataplanes/b/policy", 403),
        ("/v1/dataplanes/%61/policy", 200),
        ("/v1/dataplanes/a%2fb/policy", 403),
        ("/v1/dataplanes/A/policy", 403),
        ("/v1/status", 403),
        ("/v1/tables", 403),
        ("/v1/dataplanes", 403),
    ] {
        let (code, body) = asking.get(path).unwrap();
        // A policy is there a second after the report.
        let is_so = code == status || (status, code) == (200, 204);
        assert!(is_so, "{path}: {code} {body}");
    }
    let (code, body) = asking
        .ask("PUT", "/v1/tables/m/hot/settings", "{}", None)
        .unwrap();
    assert_eq!(code, 403, "{body}");
    assert!(
        body.contains("this is for operators, and not for dataplane a"),
        "{body}"
    );
    assert_eq!(report_as(&a, "b").0, 403);
    let (code, body) = report_as(&operator, "a");
    assert_eq!(code, 403);
    assert!(
        body.contains("this is for dataplane a, and not for operator o"),
        "{body}"
    );
    for (uris, said) in [
        (&["https://a.example"][..], "says nobody's name"),
        (&["rowmill://root/a"], "names nobody"),
        (
            &["rowmill://dataplane/a", "rowmill://operator/o"],
            "names several",
        ),
    ] {
        let nobody = papers.client(uris, valid());
        let (code, body) = get(at, &nobody, "/v1/status").unwrap();
        assert_eq!(code, 401, "{body}");
        assert!(body.contains(said), "{body}");
    }
    assert!(!control.log().contains("WARN"), "{}", control.log());
}

#[test]
fn who_is_not_trusted_is_told_why() {
    let papers = Papers::new();
    let control = Control::start(&format!("{TOML}{}", papers.toml(true)));
    let at = control.address;
    let operator = papers.client(&["rowmill://operator/o"], valid());
    // The client's side.
    let old = papers.client(&["rowmill://operator/o"], expired());
    assert!(why(get(at, &old, "/v1/status")).contains("this side's certificate has expired"));
    let other = Papers::new();
    let foreign = ClientFiles {
        ca: papers.path("ca.pem"),
        ..other.client(&["rowmill://operator/o"], valid())
    };
    assert!(
        why(get(at, &foreign, "/v1/status")).contains("not issued by an authority that it knows")
    );
    assert!(
        why(get(at, &papers.stranger(), "/v1/status")).contains("it wants a client certificate")
    );
    // A server's certificate is none for clients.
    let server = ClientFiles {
        ca: papers.path("ca.pem"),
        own: Some((papers.path("server.pem"), papers.path("server-key.pem"))),
    };
    assert!(get(at, &server, "/v1/status").is_err());
    // The server's side.
    let elsewhere = dial_as(at, "control.example", &operator).map(|_| (0, String::new()));
    assert!(why(elsewhere).contains("its certificate is for another name"));
    let wrong = ClientFiles {
        ca: other.path("ca.pem"),
        ..operator.clone()
    };
    assert!(why(get(at, &wrong, "/v1/status")).contains("`ca` that is set here"));
    papers.server(&["127.0.0.1"], expired());
    control.renew();
    assert!(why(get(at, &operator, "/v1/status")).contains("its certificate has expired"));
    // The wrong protocol.
    let mut plain = TcpStream::connect(at).unwrap();
    plain
        .write_all(b"GET /v1/status HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    plain.read_to_string(&mut text).unwrap();
    assert!(
        text.starts_with("HTTP/1.1 400 ") && text.contains("write https://"),
        "{text}"
    );
    let open = Control::start(TOML);
    assert!(why(get(open.address, &operator, "/v1/status")).contains("does it speak plain HTTP?"));
    for said in ["UnknownIssuer", "expired", "plain HTTP"] {
        support::wait_for(said, || control.log().contains(said));
    }
}

#[test]
fn tokens_say_who_may_what_and_can_be_taken_back() {
    let papers = Papers::new();
    let uris = ["rowmill://dataplane/a", "rowmill://operator/o"];
    let tokens = papers.tokens(&uris);
    for client_ca in [false, true] {
        papers.write(
            "tokens",
            &(0..2)
                .map(|n| tokens[n].line(&uris[n].parse().unwrap()) + "\n")
                .collect::<String>(),
        );
        let toml = format!("{TOML}{}{}", papers.tokens_line(), papers.toml(client_ca));
        let control = Control::start(&toml);
        let mut asking = dial(control.address, &papers.stranger()).unwrap();
        let [a, o] = [tokens[0].secret(), tokens[1].secret()];
        for (path, token, status) in [
            ("/v1/status", Some(o), 200),
            ("/v1/status", Some(a), 403),
            ("/v1/status", None, 401),
            ("/v1/status", Some("rowmill_0"), 401),
            ("/v1/dataplanes/a/policy", Some(a), 204),
            ("/v1/dataplanes/b/policy", Some(a), 403),
            ("/v1/dataplanes/a/policy", Some(o), 403),
        ] {
            let (code, body) = asking.ask("GET", path, "", token).unwrap();
            assert_eq!(code, status, "{path} {token:?}: {body}");
        }
        // With a long body, too, the reason is seen.
        let long = "x".repeat(3 << 20);
        let (code, body) = asking
            .ask("POST", "/v1/dataplanes/a/report", &long, None)
            .unwrap();
        assert_eq!(code, 401, "{body}");
        if client_ca {
            let operator = papers.client(&["rowmill://operator/o"], valid());
            assert_eq!(
                get(control.address, &operator, "/v1/status").unwrap().0,
                200
            );
        }
        // What is no list changes nothing; a shorter one does at once, and for who is there.
        papers.write("tokens", "operator o rowmill_0\n");
        let said = control.renew();
        assert!(
            said.contains("line 1: ") && said.contains("still in force"),
            "{said}"
        );
        let mut asking = dial(control.address, &papers.stranger()).unwrap();
        assert_eq!(asking.ask("GET", "/v1/status", "", Some(o)).unwrap().0, 200);
        papers.write("tokens", "# nobody\n");
        assert!(control.renew().contains("read anew"));
        let mut asking = dial(control.address, &papers.stranger()).unwrap();
        assert_eq!(asking.ask("GET", "/v1/status", "", Some(o)).unwrap().0, 401);
    }
}

#[test]
fn certificates_are_read_anew_and_old_ones_stay_where_they_can_not_be() {
    let papers = Papers::new();
    let control = Control::start(&format!("{TOML}{}", papers.toml(true)));
    let at = control.address;
    let operator = papers.client(&["rowmill://operator/o"], valid());
    let mut kept = dial(at, &operator).unwrap();
    assert_eq!(kept.get("/v1/status").unwrap().0, 200);
    for broken in [
        "",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ] {
        papers.write("server.pem", broken);
        assert!(control.renew().contains("still in force"));
        assert_eq!(kept.get("/v1/status").unwrap().0, 200);
        assert_eq!(get(at, &operator, "/v1/status").unwrap().0, 200);
    }
    // Another authority: who was there by the old one is there no more.
    let other = Papers::new();
    for name in ["ca.pem", "server.pem", "server-key.pem"] {
        std::fs::copy(other.path(name), papers.path(name)).unwrap();
    }
    assert!(control.renew().contains("read anew"));
    support::wait_for("the end of the old connection", || {
        kept.get("/v1/status").is_err()
    });
    let new = other.client(&["rowmill://operator/o"], valid());
    assert_eq!(get(at, &new, "/v1/status").unwrap().0, 200);
    assert!(get(at, &operator, "/v1/status").is_err());
}

#[test]
fn who_stalls_a_handshake_keeps_nobody_out() {
    let papers = Papers::new();
    let toml = format!("{TOML}limits.connections = 4\n{}", papers.toml(true));
    let control = Control::start(&toml);
    let operator = papers.client(&["rowmill://operator/o"], valid());
    // Who has proved who it is does not make room for them.
    let mut known = dial(control.address, &operator).unwrap();
    assert_eq!(known.get("/v1/status").unwrap().0, 200);
    let mut stalled: Vec<TcpStream> = (0..12)
        .map(|n| {
            let mut stream = TcpStream::connect(control.address).unwrap();
            // Nothing, and the beginning of a record.
            let part: &[u8] = if n % 2 == 0 {
                &[]
            } else {
                &[0x16, 3, 1, 2, 0, 1]
            };
            stream.write_all(part).unwrap();
            stream
        })
        .collect();
    for _ in 0..5 {
        assert_eq!(
            get(control.address, &operator, "/v1/status").unwrap().0,
            200
        );
    }
    assert_eq!(known.get("/v1/status").unwrap().0, 200);
    for stream in &mut stalled {
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        // Closed, by a reset perhaps; nobody waits for it longer than that.
        let mut text = Vec::new();
        if let Err(error) = stream.read_to_end(&mut text) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
        }
    }
}

#[test]
fn what_can_not_be_served_is_refused_at_start() {
    let papers = Papers::new();
    let other = Papers::new();
    let start = |toml: &str| {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        Control::try_start_in(&folder, toml)
            .map(|_| ())
            .unwrap_err()
    };
    let toml = format!("{TOML}{}", papers.toml(true));
    let key = papers.path("server-key.pem");
    std::fs::copy(other.path("server-key.pem"), &key).unwrap();
    assert!(start(&toml).contains("does not fit the certificate"));
    papers.write("server-key.pem", "none");
    assert!(start(&toml).contains("no private key in PEM"));
    std::fs::remove_file(&key).unwrap();
    assert!(start(&toml).contains("cannot read"));
    papers.server(&["127.0.0.1"], valid());
    papers.write("tokens", "all of them\n");
    let tokens = format!("{TOML}{}{}", papers.tokens_line(), papers.toml(true));
    assert!(start(&tokens).contains("tokens: line 1: "));
}

#[test]
fn what_is_open_is_said_at_start_and_in_the_status() {
    let warned = |toml: &str, control: &Control| {
        let status = control.get("/v1/status").1;
        let warnings = status["warnings"].as_array().unwrap().clone();
        for warning in &warnings {
            assert!(control.log().contains(warning.as_str().unwrap()), "{toml}");
        }
        warnings
    };
    let control = Control::start(TOML);
    let warnings = warned(TOML, &control);
    assert!(
        warnings[0]
            .as_str()
            .unwrap()
            .contains("that is for development")
    );
    let beyond = "listen = '0.0.0.0:0'\ninsecure = true\n";
    let mut control = Control::start(beyond);
    control.address.set_ip([127, 0, 0, 1].into());
    let warnings = warned(beyond, &control);
    assert!(
        warnings[0]
            .as_str()
            .unwrap()
            .contains("whoever reaches it can read and change everything")
    );
    let papers = Papers::new();
    open_to_all(&papers.path("server-key.pem"));
    let control = Control::start(&format!("{TOML}{}", papers.toml(true)));
    assert!(
        control.log().contains("everybody on this host may read"),
        "{}",
        control.log()
    );
    // The socket's permissions say who may write it; nothing else is asked there.
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join(format!("s{}", fresh()));
    let toml = format!(
        "{TOML}socket = '{}'\n{}",
        socket.display(),
        papers.toml(true)
    );
    let _control = Control::start(&toml);
    let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    stream
        .write_all(b"GET /v1/status HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
}
