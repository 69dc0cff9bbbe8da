use std::net::TcpListener;
use std::thread;

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

/// Gives each of the visitors its answers, one for each request, and hangs up. Returns what was asked.
fn serve(answers: Vec<Vec<&'static str>>) -> (Client, thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let work = move || {
        let mut asked = Vec::new();
        for answers in answers {
            let (mut stream, _) = listener.accept().unwrap();
            for answer in answers {
                let mut bytes = [0; 4096];
                let read = stream.read(&mut bytes).unwrap();
                asked.push(String::from_utf8_lossy(&bytes[..read]).into_owned());
                stream.write_all(answer.as_bytes()).unwrap();
            }
        }
        asked
    };
    let address = format!("http://127.0.0.1:{port}").parse().unwrap();
    (
        Client::new(address, Credentials::default()),
        thread::spawn(work),
    )
}

fn path(connection: u64) -> String {
    format!("/v1/{connection}")
}

#[test]
fn connections_are_kept_and_made_anew() {
    let none = "HTTP/1.1 204 No Content\r\n\r\n";
    let some = "HTTP/1.1 200 OK\r\nRowmill-Control: c-1\r\ncontent-length: 2\r\n\r\nok";
    let odd = "HTTP/1.1 204 No Content\r\nrowmill-control: a/b\r\n\r\n";
    let (mut client, asked) = serve(vec![vec![some, odd], vec![none]]);
    let answer = client.ask(path, Body::None, PATIENCE).unwrap();
    assert_eq!(
        (answer.code, &*answer.body, answer.connection),
        (200, &b"ok"[..], 1)
    );
    assert_eq!(answer.control.as_deref(), Some("c-1"));
    let body = Body::Of("text/plain", b"what");
    let answer = client.ask(path, body, PATIENCE).unwrap();
    assert_eq!((answer.code, answer.connection), (204, 1));
    assert_eq!(answer.control, None, "that is nobody's name");
    // It has hung up.
    let answer = client.ask(path, Body::None, PATIENCE).unwrap();
    assert_eq!((answer.code, answer.connection), (204, 2));
    let asked = asked.join().unwrap();
    assert!(asked[0].starts_with("GET /v1/1 HTTP/1.1\r\nHost: 127.0.0.1:"));
    assert!(
        asked[1].starts_with("POST /v1/1 ") && asked[1].ends_with("Content-Length: 4\r\n\r\nwhat")
    );
    assert!(asked[2].starts_with("GET /v1/2 "));
    let error = client
        .ask(path, Body::None, PATIENCE)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("is rowmill-control running there?"),
        "{error}"
    );
}

#[test]
fn what_is_no_answer_is_told() {
    let endless = format!("HTTP/1.1 200 OK\r\na: {}", "b".repeat(2 * HEAD_BYTES)).leak();
    let cases = [
        ("220 mail.example ESMTP\r\n", "it is no HTTP/1.1"),
        ("HTTP/1.1 200 OK\r\n\r\n", "does not say how long"),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "does not say how long",
        ),
        ("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "no number"),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
            "longer than any policy",
        ),
        ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nless", "ended"),
        ("", "ended"),
        (endless, "its head has no end"),
    ];
    for (answer, why) in cases {
        let (mut client, served) = serve(vec![vec![answer]]);
        let error = client
            .ask(path, Body::None, PATIENCE)
            .unwrap_err()
            .to_string();
        assert!(error.contains(why), "{answer:?}: {error}");
        served.join().unwrap();
    }
}

#[test]
fn silence_has_an_end() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/", listener.local_addr().unwrap());
    let mut client = Client::new(address.parse().unwrap(), Credentials::default());
    let error = client
        .ask(path, Body::None, Duration::from_millis(50))
        .unwrap_err();
    assert!(matches!(error, AskError::Late(..)), "{error}");
}
