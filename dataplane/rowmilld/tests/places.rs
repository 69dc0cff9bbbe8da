//! Tables are moved by visitors of the admin address who may, and by nobody else.

#[path = "support/program.rs"]
mod support;

use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rowmill_arena::{Arena, HugePages};
use rustix::process::Signal;
use serde_json::{Value, json};

use support::{PATIENCE, Place, ask, page, ready};

/// The configuration of a service of which table `f` may be cached, and is not.
fn configure(place: &Place, cache: &str, admin: &str) -> PathBuf {
    let more = format!(
        "[cache]\npage_cache = \"allow\"\n[[tables]]\nname = \"f\"\nplacement = \"resident\"\n\
         cache_bytes = {cache}\n[workers]\ncpus = 2\npin = false\n[limits]\nslots = 4\n[admin]\n{admin}\n"
    );
    place.configure("", &more)
}

const ALLOWED: &str = "address = \"127.0.0.1:0\"\nallow_changes = true";

fn post(address: SocketAddr, path: &str, headers: &str) -> (u16, String) {
    let reply = ask(address, &format!("POST {path} HTTP/1.1\r\n{headers}\r\n"));
    let code = reply.split(' ').nth(1).unwrap().parse().unwrap();
    let (_, body) = reply.split_once("\r\n\r\n").unwrap();
    (code, body.into())
}

fn status(address: SocketAddr) -> Value {
    serde_json::from_str(&page(address, "/status").1).unwrap()
}

/// Moves table `f` and waits until that is through. Returns the change, and what `/status` says then.
fn moved(address: SocketAddr, to: &str) -> (Value, Value) {
    changed(address, "f", to)
}

/// The same of any table, with what `to` says behind the placement.
fn changed(address: SocketAddr, table: &str, to: &str) -> (Value, Value) {
    let (code, body) = post(address, &format!("/tables/{table}?placement={to}"), "");
    assert_eq!(code, 202, "{body}");
    let begun: Value = serde_json::from_str(&body).unwrap();
    let until = Instant::now() + PATIENCE;
    loop {
        let now = status(address);
        let mut changes = now["changes"].as_array().unwrap().iter();
        let change = changes.find(|change| change["number"] == begun["change"]);
        let change = change.unwrap().clone();
        if change["state"] != "running" {
            // Asked once more: what a status says of tables is older than what it says of changes.
            return (change, status(address));
        }
        assert!(Instant::now() < until, "{now:#}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_table_is_moved_and_seen_where_it_is() {
    let place = Place::new();
    let (mut running, address) = ready(&configure(&place, "30000", ALLOWED));
    let bytes = |status: &Value, what: &str| status["memory"][what].as_u64().unwrap();
    let at_first = status(address);
    for to in ["cached", "resident", "cached"] {
        let (change, status) = moved(address, to);
        assert_eq!(
            (&change["state"], &change["to"]),
            (&json!("done"), &json!(to))
        );
        assert_eq!(status["tables"][0]["placement"], to);
        assert_eq!(status["cache"][0]["placement"], to);
        let choices = status["choices"].as_array().unwrap();
        let of_table = choices.iter().filter(|choice| choice["what"] == "table f");
        let chosen: Vec<&str> = of_table.map(|c| c["chosen"].as_str().unwrap()).collect();
        assert!(
            matches!(&chosen[..], [one] if one.starts_with(to)),
            "{chosen:?}"
        );
        // 1000 rows of 64 bytes.
        let rows = if to == "cached" { 64_000 } else { 0 };
        let all = bytes(&at_first, "arena_bytes");
        assert_eq!(bytes(&status, "arena_bytes"), all - rows);
        assert_eq!(bytes(&status, "shares_bytes") > 0, to == "cached");
        let metrics = page(address, "/metrics").1;
        let none = metrics.contains("rowmill_cache_share_bytes{table=\"f\"} 0\n");
        assert_eq!(none, to == "resident", "{metrics}");
        running.wait_for(&format!("table f: {to}"));
        let again = post(address, &format!("/tables/f?placement={to}"), "");
        assert_eq!(again.0, 200, "{}", again.1);
    }
    running.signal(Signal::TERM);
    assert_eq!(running.code(), Some(0));
}

#[test]
fn shares_change_within_the_arena() {
    let place = Place::new();
    let path = configure(&place, "37000", ALLOWED);
    let other = "[[tables]]\nname = \"q\"\nplacement = \"cached\"\ncache_bytes = 20000\n";
    let arena = "[cache]\narena_bytes = 60000\n";
    let text = std::fs::read_to_string(&path).unwrap() + other;
    std::fs::write(&path, text.replace("[cache]\n", arena)).unwrap();
    let (_running, address) = ready(&path);
    let of = |status: &Value, table: usize| {
        let has = |key: &str| status["cache"][table][key].as_u64().unwrap();
        (has("share_bytes"), has("share_rows"))
    };
    // Rows of 64 bytes: a set of 16 in each of two shards has 32 x 72 bytes.
    let f = |sets: u64| (sets * 32 * 72, sets * 32);
    let refused = |table: &str, to: &str, why: &str| {
        let answer = post(address, &format!("/tables/{table}?placement={to}"), "");
        assert!(
            answer.0 == 409 && answer.1.contains(why),
            "{to}: {answer:?}"
        );
    };
    // A resident table's share is what it is to have.
    let (change, now) = changed(address, "f", "resident&cache_bytes=11600");
    assert_eq!(change["state"], "done");
    assert_eq!(
        (of(&now, 0), &now["cache"][0]["placement"]),
        (f(5), &json!("resident"))
    );
    assert_eq!(now["cache"][0]["memory_bytes"], 0);
    let (change, now) = changed(address, "f", "cached");
    assert_eq!(change["share_bytes"], f(5).0);
    assert_eq!(of(&now, 0), f(5));
    // Tags of a byte tell the 1000 rows of this table apart where there are eight sets, and what the table had at the start were four times as many.
    let tags = |status: &Value| {
        let of = |what: &str| status["cache"][0][what].clone();
        (of("tag_bytes"), of("tags_exact"))
    };
    assert_eq!(tags(&now), (json!(1), json!(true)));
    for sets in [17, 3, 4, 9] {
        let (bytes, rows) = f(sets);
        let (change, now) = changed(address, "f", &format!("cached&cache_bytes={bytes}"));
        assert_eq!(change["state"], "done", "{change}");
        let detail = change["detail"].as_str().unwrap();
        assert!(
            detail.contains(&format!("for {rows} of 1000 rows")),
            "{detail}"
        );
        assert_eq!(of(&now, 0), (bytes, rows));
        assert_eq!(tags(&now), (json!(1), json!(2 * sets >= 8)));
        let f = &now["cache"][0];
        assert_eq!(f["wanted_bytes"], f["share_bytes"]);
        // Each of four parts is rounded up to whole pages.
        let memory = f["memory_bytes"].as_u64().unwrap();
        assert!(
            (bytes..bytes + 4 * 4096).contains(&memory),
            "{memory} for {bytes}"
        );
        assert!(page(address, "/metrics").1.contains(&format!(
            "rowmill_cache_wanted_bytes{{table=\"f\"}} {bytes}\n"
        )));
    }
    let (bytes, _) = f(9);
    let same = post(
        address,
        &format!("/tables/f?placement=cached&cache_bytes={}", bytes + 1),
        "",
    );
    assert_eq!(same.0, 200, "{}", same.1);
    refused("f", "cached&cache_bytes=4607", "write at least 4608");
    refused("f", "cached&cache_bytes=1000000", "write at most 59904");
    refused(
        "f",
        "cached&cache_bytes=50000",
        "cached tables would have 66.2 KiB",
    );
    // What one gives up another may have, in whatever form it goes.
    changed(address, "f", "cached&cache_bytes=4608");
    let (_, now) = changed(address, "q", "cached&cache_bytes=34000");
    assert!(of(&now, 1).0 > 33_000);
    refused(
        "f",
        "cached&cache_bytes=30000",
        "make another table's share smaller first",
    );
    let (change, now) = changed(address, "q", "resident&cache_bytes=5000");
    assert_eq!(
        (&change["state"], of(&now, 1).0 <= 5000),
        (&json!("done"), true)
    );
    let (_, now) = changed(address, "f", "cached&cache_bytes=59904");
    assert_eq!(of(&now, 0), f(26));
    refused("q", "cached", "cached tables would have");
}

#[test]
fn pages_are_told_of_what_is_largest() {
    let bytes = 8 << 20;
    let kind = |text: &str| text.split(' ').next().map(str::to_owned);
    let kind_of = |pages| {
        let arena = Arena::allocate(bytes, pages).unwrap();
        kind(&arena.backing().to_string())
    };
    if kind_of(HugePages::Prefer) == kind_of(HugePages::Off) {
        println!("skipped: this machine has no huge pages");
        return;
    }
    let place = Place::new();
    let (_running, address) = ready(&configure(&place, &bytes.to_string(), ALLOWED));
    // What is resident is less than a huge page, and the share is several.
    let told = |status: &Value| kind(status["memory"]["backing"].as_str().unwrap());
    assert_eq!(told(&status(address)), kind_of(HugePages::Off));
    let (_, status) = moved(address, "cached");
    assert_eq!(told(&status), kind_of(HugePages::Prefer));
}

#[test]
fn what_is_not_to_be_is_refused() {
    let place = Place::new();
    let (_running, address) = ready(&configure(&place, "30000", ALLOWED));
    let cases = [
        (
            "/tables/nobody?placement=cached",
            "",
            404,
            "there is no table nobody",
        ),
        (
            "/tables/q?placement=cached",
            "",
            409,
            "list it in [[tables]]",
        ),
        (
            "/tables/f?placement=arena",
            "",
            400,
            "write placement=cached",
        ),
        ("/tables/f", "", 400, "write placement=cached"),
        ("/tables", "", 405, "POST to /tables/NAME"),
        (
            "/tables/f?placement=cached",
            "Origin: http://example.org\r\n",
            403,
            "pages in a browser",
        ),
    ];
    for (path, headers, code, why) in cases {
        let answer = post(address, path, headers);
        assert!(
            answer.0 == code && answer.1.contains(why),
            "{path}: {answer:?}"
        );
    }
    assert_eq!(status(address)["changes"], json!([]));
    // The rows' file is another one now.
    let whole = std::fs::metadata(place.path("model/00000.rows")).unwrap();
    std::fs::write(place.path("model/00000.rows"), "nothing").unwrap();
    assert_eq!(moved(address, "cached").0["state"], "done");
    let (change, status) = moved(address, "resident");
    assert_eq!(change["state"], "failed");
    let detail = change["detail"].as_str().unwrap();
    let sizes = format!(
        "00000.rows: the manifest promises {} bytes and the file has 7;",
        whole.len()
    );
    assert!(
        detail.contains("its rows cannot be read") && detail.contains(&sizes),
        "{detail}"
    );
    assert_eq!(status["cache"][0]["placement"], "cached");
    // So is one that is put in its place, whatever it has.
    std::fs::write(place.path("model/other"), "nothing").unwrap();
    std::fs::rename(place.path("model/other"), place.path("model/00000.rows")).unwrap();
    let (change, _) = moved(address, "resident");
    let detail = change["detail"].as_str().unwrap();
    assert!(
        detail.contains("00000.rows is another file now"),
        "{detail}"
    );
}

#[test]
fn a_share_that_has_no_room_is_refused_when_it_is_wanted() {
    // The largest share of such a table, nearly.
    let share = 140_000_000_000;
    if rowmill_arena::available_bytes().0 >= share {
        println!("skipped: this machine has room for any share");
        return;
    }
    let place = Place::new();
    let (_running, address) = ready(&configure(&place, &share.to_string(), ALLOWED));
    let (change, status) = moved(address, "cached");
    assert_eq!(change["state"], "failed");
    let detail = change["detail"].as_str().unwrap();
    assert!(
        detail.contains("too little memory: ") && detail.contains("its share"),
        "{detail}"
    );
    assert_eq!(status["cache"][0]["placement"], "resident");
    assert_eq!(page(address, "/healthz").0, 200);
}

#[test]
fn visitors_may_not_unless_it_is_said() {
    let place = Place::new();
    let (_running, address) = ready(&configure(&place, "30000", "address = \"127.0.0.1:0\""));
    let answer = post(address, "/tables/f?placement=cached", "");
    assert!(
        answer.0 == 403 && answer.1.contains("admin.allow_changes"),
        "{answer:?}"
    );
}

#[test]
fn visitors_from_elsewhere_may_not() {
    // Nothing is sent: the kernel says which of this host's addresses it would come from.
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    let own = socket
        .connect("192.0.2.1:9")
        .and_then(|()| socket.local_addr());
    let own = own
        .map(|own| own.ip())
        .ok()
        .filter(|own| !own.is_loopback());
    let Some(own) = own else {
        println!("skipped: this machine has no address but those of loopback");
        return;
    };
    let place = Place::new();
    let anywhere = "address = \"0.0.0.0:0\"\nallow_changes = true";
    let (_running, address) = ready(&configure(&place, "30000", anywhere));
    let path = "/tables/f?placement=cached";
    let answer = post(SocketAddr::new(own, address.port()), path, "");
    assert!(
        answer.0 == 403 && answer.1.contains("from this host only"),
        "{answer:?}"
    );
    let local = SocketAddr::from(([127, 0, 0, 1], address.port()));
    assert_eq!(post(local, path, "").0, 202);
}
