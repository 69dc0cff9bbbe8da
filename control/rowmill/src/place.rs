//! `rowmill place`: a table becomes cached, or resident again, or has another share of the memory, while it is served.

use core::time::Duration;
use std::thread::sleep;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::output::{note, print, shown};
use crate::status::{fetch, parse, post};

/// How often it is asked whether the change is through.
const LOOK: Duration = Duration::from_millis(100);
/// How many such looks pass before it is said how far it is: a second.
const QUIET: u32 = 10;
/// And how many until that is said again.
const AGAIN: u32 = 30;

/// Options of `rowmill place`.
#[derive(Args)]
pub(crate) struct Place {
    /// The table's name
    name: String,
    /// Where its rows are to be: some in memory and the rest in its file, or all in memory. A table that was resident has none in memory at
    /// first when it becomes cached
    to: To,
    /// The bytes of memory that it has when it is cached: rows, and 8 bytes a row besides. Default: as many as it had
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    cache_bytes: Option<u64>,
    /// The admin address of rowmilld, whose configuration has admin.allow_changes
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7401")]
    admin: String,
}

#[derive(Clone, Copy, ValueEnum)]
enum To {
    Cached,
    Resident,
}

impl To {
    fn name(self) -> &'static str {
        match self {
            To::Cached => "cached",
            To::Resident => "resident",
        }
    }
}

impl Place {
    /// Begins the change, waits until it is through, and says what came of it.
    pub(crate) fn run(self) -> Result<()> {
        let Place {
            name,
            to,
            cache_bytes,
            admin,
        } = self;
        let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        ensure!(name.chars().all(is_name), "`{name}` is no name of a table");
        let mut path = format!("/tables/{name}?placement={}", to.name());
        if let Some(bytes) = cache_bytes {
            path += &format!("&cache_bytes={bytes}");
        }
        let (code, text) = post(&admin, &path)?;
        if !(200..300).contains(&code) {
            bail!("{}", shown(text.trim()));
        }
        let begun = parse(&admin, &text)?;
        let Some(number) = begun["change"].as_u64() else {
            return print(&format!("{name} is {} already\n", to.name()));
        };
        let change = through(&admin, "changes", number, &name)?;
        let detail = change["detail"].as_str().unwrap_or_default();
        let detail = shown(detail);
        if change["state"] != "done" {
            bail!("{name} stays as it was: {detail}");
        }
        if cache_bytes.is_some() {
            // Without the page it is done all the same.
            let page = fetch(&admin).and_then(|text| parse(&admin, &text));
            if let Some(divided) = page.ok().as_ref().and_then(divided) {
                note(&format!("note: {divided}"));
            }
        }
        print(&format!("{name}: {detail}\n"))
    }
}

/// Who else gives tables their shares, if somebody does.
fn divided(page: &Value) -> Option<String> {
    let control = &page["control"];
    let _follows = control["followed"]["control"].as_str()?;
    Some(format!(
        "the control plane at {} divides the memory of cached tables, and gives this one another share where that is worth more: bound it by \
         `rowmill policy set MODEL TABLE --min BYTES --max BYTES`",
        shown(control["address"].as_str().unwrap_or_default())
    ))
}

/// Waits until a change is through, and says of `what` how far it is where that takes long. `list` is where the status page has it.
pub(crate) fn through(admin: &str, list: &str, number: u64, what: &str) -> Result<Value> {
    let mut looks = 0;
    loop {
        let page = parse(admin, &fetch(admin)?)?;
        let change = of_number(&page, list, number)?;
        if change["state"] != "running" {
            return Ok(change.clone());
        }
        looks += 1;
        if let Some(far) = how_far(what, change, looks) {
            note(&far);
        }
        sleep(LOOK);
    }
}

/// What is said of a change that is still under way after so many looks.
fn how_far(name: &str, change: &Value, looks: u32) -> Option<String> {
    let is_told = looks >= QUIET && (looks - QUIET).is_multiple_of(AGAIN);
    let detail = match change["detail"].as_str() {
        Some(detail) if !detail.is_empty() => shown(detail),
        _ => "on its way".into(),
    };
    is_told.then(|| format!("{name}: {detail}"))
}

/// A change on the status page.
fn of_number<'p>(page: &'p Value, list: &str, number: u64) -> Result<&'p Value> {
    let changes = page[list].as_array();
    let mut changes = changes.into_iter().flatten();
    let change = changes.find(|change| change["number"] == number);
    change.with_context(|| {
        format!("what came of the change is not known any more: rowmilld tells of the last ones, and change {number} is none of them; \
             `rowmill status` says how things are now")
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use serde_json::json;

    use super::*;

    #[test]
    fn who_else_gives_shares_is_told() {
        let mut page = json!({"control": {"address": "unix:/c", "followed": null}});
        assert_eq!(divided(&page), None);
        assert_eq!(divided(&json!({})), None);
        page["control"]["followed"] = json!({"control": "c-1"});
        let said = divided(&page).unwrap();
        assert!(
            said.starts_with("the control plane at unix:/c divides"),
            "{said}"
        );
    }

    /// Moves table `a` with an address that gives these answers.
    fn place(to: To, answers: &[&str]) -> Result<()> {
        place_in((to, None), answers)
    }

    /// The same with a share.
    fn place_in((to, cache_bytes): (To, Option<u64>), answers: &[&str]) -> Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let admin = listener.local_addr().expect("bound").to_string();
        let share = cache_bytes.map_or(String::new(), |bytes| format!("&cache_bytes={bytes}"));
        let asked = format!("POST /tables/a?placement={}{share} HTTP/1.1\r\n", to.name());
        let answers: Vec<String> = answers.iter().map(|&answer| answer.into()).collect();
        let others = core::iter::repeat("GET /status HTTP/1.1\r\n".to_owned());
        let requests = core::iter::once(asked).chain(others);
        let answerer = std::thread::spawn(move || {
            for (answer, request) in answers.iter().zip(requests) {
                let (mut stream, _) = listener.accept().expect("a visitor");
                let mut head = [0; 4096];
                let read = stream.read(&mut head).expect("a request");
                assert!(head[..read].starts_with(request.as_bytes()));
                stream.write_all(answer.as_bytes()).expect("sent");
            }
        });
        let name = "a".into();
        let outcome = Place {
            name,
            to,
            cache_bytes,
            admin,
        }
        .run();
        answerer.join().expect("all was asked for");
        outcome
    }

    fn page(state: &str, detail: &str) -> String {
        let change =
            json!({"number": 4, "table": "a", "to": "cached", "state": state, "detail": detail});
        format!(
            "HTTP/1.1 200 OK\r\n\r\n{}",
            json!({"changes": [{"number": 3}, change]})
        )
    }

    const BEGUN: &str = "HTTP/1.1 202 Accepted\r\n\r\n{\"change\": 4}";

    #[test]
    fn it_waits_until_the_change_is_through() {
        let (running, done) = (page("running", ""), page("done", "cached"));
        place(To::Cached, &[BEGUN, &running, &running, &done]).expect("it is done");
        place_in((To::Cached, Some(4096)), &[BEGUN, &done]).expect("it is done");
        place(To::Resident, &["HTTP/1.1 200 OK\r\n\r\n{}"]).expect("it is there");
    }

    #[test]
    fn it_says_how_far_it_is_after_a_second_and_then_now_and_then() {
        let change = json!({"detail": "loading: 40 % of 3 GiB"});
        let told = (0..60).filter_map(|looks| Some((looks, how_far("a", &change, looks)?)));
        let far = || "a: loading: 40 % of 3 GiB".to_owned();
        assert_eq!(told.collect::<Vec<_>>(), [(10, far()), (40, far())]);
        let unknown = how_far("a", &json!({"detail": ""}), 10);
        assert_eq!(unknown.as_deref(), Some("a: on its way"));
    }

    #[test]
    fn it_says_why_nothing_came_of_it() {
        let failed = page("failed", "too little memory");
        let refused = "HTTP/1.1 409 Conflict\r\n\r\ntable b is on its way\n";
        let gone = "HTTP/1.1 200 OK\r\n\r\n{\"changes\": []}";
        let cases = [
            (vec![BEGUN, &failed], "a stays as it was: too little memory"),
            (vec![refused], "table b is on its way"),
            (vec![BEGUN, gone], "change 4 is none of them"),
        ];
        for (answers, why) in cases {
            let error = place(To::Cached, &answers).expect_err("it is not done");
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}
