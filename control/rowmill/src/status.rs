//! `rowmill status`: what a running `rowmilld` says about itself, for a person.
//!
//! The page is read over HTTP with ureq, without TLS and the rest of its features: deadlines, chunked
//! bodies and bounded reads are there and are not worth writing again. What is printed follows the
//! page: fields that this version does not know are shown under their names, those that are missing
//! are left out, so that command and service need not be of the same version.

use core::fmt::Write;
use core::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};
use serde_json::{Map, Value};
use ureq::Body;
use ureq::http::Response;

use crate::control::Control;
use crate::output::{print, shown};
use crate::plane::{Asked, Pages};
use crate::units::{bytes, duration, thousands};

/// Longest page that is read: a thousand tables and connections take a few hundred KiB.
const PAGE_BYTES: u64 = 16 << 20;
/// The page is made in memory, so a service that takes longer is stuck.
const PATIENCE: Duration = Duration::from_secs(5);

/// Options of `rowmill status`.
#[derive(Args)]
pub(crate) struct Status {
    /// Who is asked
    #[arg(value_enum, default_value_t = Asked::Dataplane, hide_default_value = true)]
    asked: Asked,
    /// The admin address of rowmilld
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7401")]
    admin: String,
    #[command(flatten)]
    control: Control,
    /// Print the page as it is, in JSON
    #[arg(long)]
    json: bool,
}

impl Status {
    pub(crate) fn run(self) -> Result<()> {
        if self.asked == Asked::Control {
            let pages = Pages::of(&self.control)?;
            return print(&if self.json {
                pages.json()
            } else {
                pages.text()
            });
        }
        let page = parse(&self.admin, &fetch(&self.admin)?)?;
        if self.json {
            print(&format!("{page:#}\n"))
        } else {
            let page = page.as_object();
            let page =
                page.with_context(|| format!("what {} sent is no status page", self.admin))?;
            print(&describe(page))
        }
    }
}

/// The page of an admin address from its text.
pub(crate) fn parse(admin: &str, text: &str) -> Result<Value> {
    serde_json::from_str(text).with_context(|| {
        format!("what {admin} sent is not JSON: is this rowmilld's admin address?")
    })
}

/// The text of the page of an admin address.
pub(crate) fn fetch(admin: &str) -> Result<String> {
    let url = format!("http://{admin}/status");
    let (code, body) = read(&url, agent().get(&url).call())?;
    ensure!(
        (200..300).contains(&code),
        "{url} answered {code}: {}",
        body.trim()
    );
    Ok(body)
}

/// Asks an admin address for a change. Returns the answer's code and text.
pub(crate) fn post(admin: &str, path: &str) -> Result<(u16, String)> {
    let url = format!("http://{admin}{path}");
    read(&url, agent().post(&url).send_empty())
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .timeout_global(Some(PATIENCE))
        .http_status_as_error(false)
        .max_redirects(0)
        .proxy(None)
        .build()
        .new_agent()
}

fn read(url: &str, answer: Result<Response<Body>, ureq::Error>) -> Result<(u16, String)> {
    let mut answer = answer.with_context(|| {
        format!("cannot read {url}: is rowmilld running, and is this the admin address of its configuration?")
    })?;
    let body = answer
        .body_mut()
        .with_config()
        .limit(PAGE_BYTES)
        .read_to_string();
    let body = body.with_context(|| format!("the answer of {url} broke off"))?;
    Ok((answer.status().as_u16(), body))
}

/// Keys that the head of the page shows.
const HEAD: [&str; 8] = [
    "program",
    "version",
    "pid",
    "uptime_s",
    "model",
    "generation",
    "state",
    "endpoints",
];
/// Lists of objects, in the order in which they are printed, each with the columns that come first.
const LISTS: [(&str, &[&str]); 12] = [
    (
        "workers",
        &[
            "index",
            "cpu",
            "requests",
            "completed",
            "refused",
            "busy",
            "expired",
            "cancelled",
            "rows",
            "bytes",
        ],
    ),
    (
        "connections",
        &["id", "client", "pid", "address", "regions", "region_bytes"],
    ),
    (
        "tables",
        &[
            "name",
            "rows",
            "dim",
            "format",
            "kind",
            "bytes",
            "available",
            "placement",
        ],
    ),
    (
        "cache",
        &[
            "table",
            "placement",
            "share_bytes",
            "wanted_bytes",
            "share_rows",
            "held_rows",
            "lookups",
            "hits",
            "misses",
            "fetched",
            "fetch_p50_us",
            "fetch_p99_us",
        ],
    ),
    (
        "files",
        &[
            "table",
            "tier",
            "state",
            "fetched",
            "arrived",
            "fetch_p50_us",
            "fetch_p99_us",
        ],
    ),
    (
        "generations",
        &["generation", "state", "tables", "rows_bytes", "in_progress"],
    ),
    ("generation_changes", &["number", "wish", "state", "detail"]),
    ("tiers", &["tier", "reads", "read_bytes", "joined"]),
    (
        "remote",
        &[
            "url",
            "tried",
            "state",
            "connected",
            "lost",
            "lease_ms",
            "why",
        ],
    ),
    ("exports", &["generation", "state", "tables", "bytes"]),
    ("readers", &["address", "lanes", "lease_left_ms"]),
    (
        "changes",
        &["number", "table", "to", "share_bytes", "state", "detail"],
    ),
];

/// The page as text.
fn describe(page: &Map<String, Value>) -> String {
    let mut out = head(page);
    if let Some(Value::Array(choices)) = page.get("choices") {
        choices
            .iter()
            .for_each(|choice| describe_choice(choice, &mut out));
        out.push('\n');
    }
    if let Some(Value::Object(memory)) = page.get("memory") {
        describe_memory(memory, &mut out);
    }
    for (key, first) in LISTS {
        match page.get(key) {
            Some(Value::Array(list)) if list.is_empty() => line(&mut out, key, "none"),
            Some(Value::Array(list)) => {
                let _ = write!(out, "\n{key}\n{}\n", list_table(list, first));
            }
            Some(other) => line(&mut out, key, &plain(key, other)),
            None => {}
        }
    }
    let known = |key: &str| {
        let list = LISTS.iter().any(|(list, _)| *list == key);
        let own = ["choices", "memory"]
            .iter()
            .any(|own| *own == key && is_usual(key, &page[key]));
        HEAD.contains(&key) || list || own
    };
    let is_empty = |value: &Value| value.as_object().is_some_and(Map::is_empty);
    for (key, value) in page.iter() {
        if !known(key) && !is_empty(value) {
            line(&mut out, key, &plain(key, value));
        }
    }
    out
}

/// Whether the section has the form that it is printed in above.
fn is_usual(key: &str, value: &Value) -> bool {
    if key == "choices" {
        value.is_array()
    } else {
        value.is_object()
    }
}

fn head(page: &Map<String, Value>) -> String {
    let show = |key: &str| page.get(key).map(|value| plain(key, value));
    let mut first: Vec<String> = Vec::new();
    first.extend(show("program"));
    first.extend(show("version"));
    first.extend(show("pid").map(|pid| format!("(pid {pid})")));
    let mut out = first.join(" ");
    let named = [
        ("state", ""),
        ("uptime_s", "up "),
        ("model", "model "),
        ("generation", "generation "),
    ];
    for (key, before) in named {
        if let Some(text) = show(key) {
            let _ = write!(
                out,
                "{}{before}{text}",
                if out.is_empty() { "" } else { ", " }
            );
        }
    }
    out.push('\n');
    if let Some(endpoints) = show("endpoints") {
        line(&mut out, "endpoints", &endpoints);
    }
    out.push('\n');
    out
}

fn line(out: &mut String, name: &str, text: &str) {
    let _ = writeln!(out, "{:<12} {text}", shown(name));
}

/// `what: chosen`, and under it why, broken at words.
fn describe_choice(choice: &Value, out: &mut String) {
    let Value::Object(choice) = choice else {
        return line(out, "", &plain("", choice));
    };
    let text = |key: &str| {
        choice
            .get(key)
            .map_or_else(String::new, |value| plain(key, value))
    };
    let _ = writeln!(out, "{:<20} {}", text("what"), text("chosen"));
    for row in broken(&text("why"), 88) {
        let _ = writeln!(out, "{:20} {row}", "");
    }
    let others = choice
        .iter()
        .filter(|(key, _)| !["what", "chosen", "why"].contains(&key.as_str()));
    for (key, value) in others {
        let _ = writeln!(out, "{:20} {}: {}", "", shown(key), plain(key, value));
    }
}

/// The sizes in one line, what is said of them below.
fn describe_memory(memory: &Map<String, Value>, out: &mut String) {
    let (texts, sizes): (Vec<_>, Vec<_>) = memory.iter().partition(|(_, value)| value.is_string());
    line(out, "memory", &fields(sizes));
    for (key, value) in texts {
        for row in broken(&format!("{}: {}", label(key), plain(key, value)), 96) {
            line(out, "", &row);
        }
    }
}

/// The text in lines of at most `width` characters, as far as its words allow.
fn broken(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}

/// An object's fields in one line.
fn fields<'a>(object: impl IntoIterator<Item = (&'a String, &'a Value)>) -> String {
    let field = |(key, value): (&String, &Value)| format!("{}: {}", label(key), plain(key, value));
    object.into_iter().map(field).collect::<Vec<_>>().join(", ")
}

/// A list of objects as a table: the usual columns as far as they are there, then all others but
/// lists and those with nothing in them but zeros.
fn list_table(list: &[Value], first: &[&str]) -> Table {
    let has = |key: &str| list.iter().any(|item| item.get(key).is_some());
    let mut columns: Vec<&str> = first.iter().copied().filter(|key| has(key)).collect();
    let empty = |key: &str| {
        let mut values = list.iter().filter_map(|item| item.get(key));
        values.all(|value| value.as_u64() == Some(0) || value.is_array())
    };
    for key in list.iter().filter_map(Value::as_object).flat_map(Map::keys) {
        if !columns.contains(&key.as_str()) && !empty(key) {
            columns.push(key);
        }
    }
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY);
    table.set_header(columns.iter().map(|key| label(key)));
    for item in list {
        table.add_row(columns.iter().map(|key| {
            item.get(key)
                .map_or_else(String::new, |value| plain(key, value))
        }));
    }
    for (index, key) in columns.iter().enumerate() {
        let numbers = list
            .iter()
            .filter_map(|item| item.get(key))
            .all(Value::is_number);
        if let (true, Some(column)) = (numbers, table.column_mut(index)) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A key as a heading: sizes are shown with their unit, so it is not repeated.
fn label(key: &str) -> String {
    let name = key.strip_suffix("_bytes").unwrap_or(key);
    shown(name).replace('_', " ")
}

/// A value for a person, going by what its key says of its unit.
fn plain(key: &str, value: &Value) -> String {
    const NAMES: [&str; 6] = ["pid", "id", "cpu", "index", "generation", "dim"];
    match value {
        Value::Null => "-".into(),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.into(),
        Value::String(text) => shown(text).into_owned(),
        Value::Number(number) => match number.as_u64() {
            Some(count) if key == "bytes" || key.ends_with("_bytes") => bytes(count),
            Some(seconds) if key.ends_with("_s") => duration(seconds),
            Some(count) if !NAMES.contains(&key) => thousands(count),
            _ => number.to_string(),
        },
        Value::Array(list) => list
            .iter()
            .map(|item| plain(key, item))
            .collect::<Vec<_>>()
            .join(", "),
        Value::Object(object) => format!("{{{}}}", fields(object)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use serde_json::json;

    use super::*;

    fn described(page: Value) -> String {
        describe(page.as_object().expect("an object"))
    }

    #[test]
    fn a_whole_page_is_described() {
        let text = described(json!({
            "program": "rowmilld", "version": "0.1.0", "pid": 4711, "uptime_s": 3725, "model": "demo",
            "generation": 3, "state": "serving", "endpoints": ["shm:/run/rowmill/demo.sock"],
            "choices": [{"what": "huge pages", "chosen": "2 MiB", "why": "the pool has 300 of them free"}],
            "workers": [
                {"index": 0, "cpu": 2, "requests": 1234567, "bytes": 1536, "sleeping": false},
                {"index": 1, "cpu": 3, "requests": 8, "bytes": 0, "sleeping": true},
            ],
            "connections": [],
            "tables": [{"name": "cat_0", "rows": 40000, "dim": 128, "format": "f32", "bytes": 20480000, "available": true}],
            "memory": {"arena_bytes": 4294967296u64, "backing": "huge pages of 2 MiB"},
            "weather": {"sun": true}, "held": {},
            "files": [{"table": "cat_0", "tier": "copy", "state": "read", "fetched": 7654, "late": 0, "corrupt": 1, "fetch_us": [1]}],
            "tiers": [{"tier": "file", "joined": 5, "read_bytes": 8192, "reads": 2, "stalls": 0}],
        }));
        assert!(!text.contains("held") && !text.contains("stalls"), "{text}");
        for part in [
            "rowmilld 0.1.0 (pid 4711), serving, up 1 h 2 min, model demo, generation 3\n",
            "endpoints    shm:/run/rowmill/demo.sock\n",
            "huge pages           2 MiB\n                     the pool has 300 of them free\n",
            "memory       arena: 4.0 GiB\n             backing: huge pages of 2 MiB\n",
            "1 234 567",
            "1.5 KiB",
            "sleeping",
            "connections  none\n",
            "19.5 MiB",
            "weather      {sun: yes}\n",
            "8.0 KiB",
            "cat_0   copy   read      7 654         1 ",
        ] {
            assert!(text.contains(part), "no `{part}` in:\n{text}");
        }
    }

    #[test]
    fn what_is_missing_or_of_another_kind_is_no_trouble() {
        assert_eq!(described(json!({})), "\n\n");
        let text = described(
            json!({"state": 7, "workers": "asleep", "choices": 3, "memory": null, "tables": [1, {"x": 2}]}),
        );
        for part in [
            "7\n",
            "workers      asleep\n",
            "choices      3\n",
            "memory       -\n",
        ] {
            assert!(text.contains(part), "no `{part}` in:\n{text}");
        }
    }

    #[test]
    fn what_clients_say_commands_no_terminal() {
        let text = described(json!({
            "model": "m\u{1b}[2J", "x\u{1b}c": "y\u{9b}", "z": [{"k\u{7}": 1}],
            "choices": [{"what": "a\u{1b}", "chosen": "b\u{1b}", "why": "c\u{1b}", "d\u{1b}": 1}],
            "memory": {"e\u{1b}": 1, "f\u{1b}": "g\u{1b}"},
            "connections": [{"id": 0, "client": "\u{1b}]0;evil\u{7}\nline", "h\u{1b}": 1}],
        }));
        assert!(
            !text.contains(|c: char| c.is_control() && c != '\n'),
            "{text:?}"
        );
        assert!(text.contains("\\u{1b}]0;evil\\u{7}\\nline"), "{text}");
        assert!(text.contains("model m\\u{1b}[2J\n"), "{text}");
    }

    #[test]
    fn long_reasons_are_broken_at_words() {
        let why = "word ".repeat(60);
        let text = described(
            json!({"choices": [{"what": "x", "chosen": "y", "why": why, "cost": "none"}]}),
        );
        assert!(text.lines().all(|line| line.len() <= 110), "{text}");
        assert_eq!(text.matches("word").count(), 60);
        assert!(text.contains("cost: none"), "{text}");
    }

    /// Answers one request with these bytes.
    fn answering(answer: &'static [u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a visitor");
            let mut head = [0; 4096];
            let read = stream.read(&mut head).expect("a request");
            assert!(head[..read].starts_with(b"GET /status HTTP/1.1\r\n"));
            stream.write_all(answer).expect("sent");
        });
        address
    }

    #[test]
    fn pages_are_read_and_refusals_explained() {
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
        assert_eq!(fetch(&answering(chunked)).expect("a page"), "{}");
        let gone = b"HTTP/1.1 404 Not Found\r\nContent-Length: 10\r\n\r\nno such it";
        let error = fetch(&answering(gone)).expect_err("404").to_string();
        assert!(
            error.contains("404") && error.contains("no such it"),
            "{error}"
        );
        let error = fetch("127.0.0.1:1")
            .expect_err("nobody listens")
            .to_string();
        assert!(error.contains("is rowmilld running"), "{error}");
    }
}
