//! `rowmill generation`: another generation of the model is loaded while one is served, becomes the newest, and goes.

mod everywhere;

use core::fmt::Write as _;
use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use comfy_table::Table;
use comfy_table::presets::UTF8_BORDERS_ONLY;
use serde_json::Value;

use crate::control::Control;
use crate::output::{print, shown};
use crate::place::through;
use crate::status::{fetch, parse, post};
use crate::units::bytes;

/// What can be done with generations. Where these change, the configuration of rowmilld has `admin.allow_changes`. A restart serves the
/// generation of `model.directory`, whatever was done here.
#[derive(Subcommand)]
pub(crate) enum GenerationCommand {
    /// Read a generation into memory, beside the one that is served. At most two are held
    Load {
        /// Its number, to be found among the directories beside that of the model; or its directory, which is beside that of the model
        /// unless it begins with /
        #[arg(value_name = "NUMBER|DIR", allow_negative_numbers = true)]
        source: String,
        #[command(flatten)]
        at: At,
    },
    /// Serve a generation that is held: requests that name none get it from now on, for all tables at once
    Activate {
        /// Its number
        #[arg(allow_negative_numbers = true)]
        number: u64,
        #[command(flatten)]
        at: At,
    },
    /// Serve the generation again that was served before, which is still held
    Rollback {
        #[command(flatten)]
        at: At,
    },
    /// Give up a generation that is held and not served, when no request uses it any more
    Unload {
        /// Its number
        #[arg(allow_negative_numbers = true)]
        number: u64,
        #[command(flatten)]
        at: At,
    },
    /// Show which generations are held
    List {
        #[command(flatten)]
        at: At,
    },
}

/// Whom to ask.
#[derive(Args, Default)]
pub(crate) struct At {
    /// The admin address of rowmilld, for one dataplane
    #[arg(
        long,
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:7401",
        conflicts_with = "model"
    )]
    admin: String,
    /// All dataplanes of this model, by way of the control plane: another generation is served only when all of them are heard of and
    /// hold it
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Go on without this dataplane, which the control plane does not hear of, until it does: it may serve another generation meanwhile.
    /// May be given several times
    #[arg(long, value_name = "NAME", requires = "model")]
    without: Vec<String>,
    #[command(flatten)]
    control: Control,
}

impl GenerationCommand {
    /// Does it, waits until it is through, and says what came of it.
    pub(crate) fn run(self) -> Result<()> {
        let at = self.at();
        if let Some(model) = &at.model {
            return self.run_everywhere(at, model);
        }
        self.run_here()
    }

    fn at(&self) -> &At {
        match self {
            GenerationCommand::Load { at, .. }
            | GenerationCommand::Activate { at, .. }
            | GenerationCommand::Rollback { at }
            | GenerationCommand::Unload { at, .. }
            | GenerationCommand::List { at } => at,
        }
    }

    /// What of this a control plane may want otherwise, as far as it is known before it is done.
    fn asked(&self) -> Option<Asked> {
        Some(match self {
            GenerationCommand::Load { source, .. } => Asked::Held(source.parse().ok()?),
            GenerationCommand::Activate { number, .. } => Asked::Served(*number),
            GenerationCommand::Rollback { .. } => Asked::Before,
            GenerationCommand::Unload { number, .. } => Asked::Gone(*number),
            GenerationCommand::List { .. } => return None,
        })
    }

    /// Does it with one dataplane.
    fn run_here(self) -> Result<()> {
        let asked = self.asked();
        let (path, at) = match self {
            GenerationCommand::Load { source, at } => (format!("load?{}", query(&source)), at),
            GenerationCommand::Activate { number, at } => (format!("activate?number={number}"), at),
            GenerationCommand::Rollback { at } => ("rollback".into(), at),
            GenerationCommand::Unload { number, at } => (format!("unload?number={number}"), at),
            GenerationCommand::List { at } => {
                let page = parse(&at.admin, &fetch(&at.admin)?)?;
                return print(&list(&page)?);
            }
        };
        let admin = &at.admin;
        // Once it is done it may have been taken back already.
        let before = fetch(admin).and_then(|text| parse(admin, &text));
        let (code, text) = post(admin, &format!("/generations/{path}"))?;
        if !(200..300).contains(&code) {
            bail!("{}", shown(text.trim()));
        }
        let begun = parse(admin, &text)?;
        let Some(number) = begun["change"].as_u64() else {
            return print("it is so already\n");
        };
        let change = through(admin, "generation_changes", number, "generations")?;
        let detail = shown(change["detail"].as_str().unwrap_or_default());
        if change["state"] != "done" {
            bail!("everything is as it was: {detail}");
        }
        let asked = asked.or_else(|| Some(Asked::Held(loaded(&detail)?)));
        let note = before.ok().zip(asked);
        if let Some(note) = note.and_then(|(page, asked)| taken_back(&page, asked)) {
            eprintln!("note: {note}");
        }
        print(&format!("{detail}\n"))
    }
}

/// What one dataplane was asked for.
#[derive(Clone, Copy)]
enum Asked {
    Held(u64),
    Served(u64),
    /// The one is served that was before.
    Before,
    Gone(u64),
}

/// The number of a generation that was loaded, from what is told of that.
fn loaded(detail: &str) -> Option<u64> {
    let number = detail.strip_prefix("generation ")?.split(' ').next()?;
    number.parse().ok()
}

/// What a control plane makes of what it was not asked for, from the page before that was done; none where it wants the same.
fn taken_back(page: &Value, asked: Asked) -> Option<String> {
    let control = &page["control"];
    let newest = control["generations"]["newest"].as_u64()?;
    let held = control["generations"]["held"].as_array()?;
    let held: BTreeSet<u64> = held.iter().filter_map(Value::as_u64).collect();
    let is_wanted = match asked {
        Asked::Held(number) => held.contains(&number),
        Asked::Served(number) => number == newest,
        // Two are held, the one that is served first.
        Asked::Before => page["generations"][1]["generation"] == newest,
        Asked::Gone(number) => !held.contains(&number),
    };
    if is_wanted {
        return None;
    }
    let others = held.iter().filter(|&&number| number != newest);
    let others: Vec<String> = others.map(u64::to_string).collect();
    let beside = match others.is_empty() {
        true => "none".into(),
        false => others.join(", "),
    };
    let address = shown(control["address"].as_str().unwrap_or_default());
    let wanted = format!(
        "the control plane at {address} has generation {newest} served here and {beside} held beside it"
    );
    Some(match control["connected"].as_bool() {
        Some(false) => format!(
            "{wanted}, and is not heard: this stands until it is, and what differs is taken back then"
        ),
        _ => format!(
            "{wanted}, and what differs is taken back: ask for the change with --model to have it at all dataplanes of the model"
        ),
    })
}

/// What names a generation in a request.
fn query(source: &str) -> String {
    if source.parse::<u64>().is_ok() {
        return format!("number={source}");
    }
    path_query("directory", source)
}

/// What names a file or directory in a request.
pub(crate) fn path_query(key: &str, path: &str) -> String {
    let mut query = format!("{key}=");
    for byte in path.bytes() {
        let is_plain = byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
        let _ = match is_plain {
            true => write!(query, "{}", char::from(byte)),
            false => write!(query, "%{byte:02x}"),
        };
    }
    query
}

/// The generations that are held, as a table.
fn list(page: &Value) -> Result<String> {
    let held = page["generations"].as_array();
    let held =
        held.context("the status page has no generations: is this rowmilld of another version?")?;
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY);
    table.set_header([
        "generation",
        "state",
        "tables",
        "rows",
        "in progress",
        "directory",
    ]);
    for one in held {
        let text = |key: &str| match &one[key] {
            Value::String(text) => shown(text).into_owned(),
            other => other.to_string(),
        };
        let rows = one["rows_bytes"].as_u64().map_or_else(String::new, bytes);
        table.add_row([
            text("generation"),
            text("state"),
            text("tables"),
            rows,
            text("in_progress"),
            text("directory"),
        ]);
    }
    Ok(format!("{table}\n"))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use serde_json::json;

    use super::*;

    /// Runs a command with an address that expects this request, and a status page before it and others after it, and gives these answers.
    fn run(
        command: impl FnOnce(At) -> GenerationCommand,
        asked: &str,
        answers: &[String],
    ) -> Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let admin = listener.local_addr().expect("bound").to_string();
        let asked = format!("POST /generations/{asked} HTTP/1.1\r\n");
        let before = "HTTP/1.1 200 OK\r\n\r\n{}".to_owned();
        let answers: Vec<String> = [before].iter().chain(answers).cloned().collect();
        let answerer = std::thread::spawn(move || {
            for (at, answer) in answers.iter().enumerate() {
                let (mut stream, _) = listener.accept().expect("a visitor");
                let mut head = [0; 4096];
                let read = stream.read(&mut head).expect("a request");
                let wanted = if at == 1 {
                    asked.as_str()
                } else {
                    "GET /status HTTP/1.1\r\n"
                };
                assert!(head[..read].starts_with(wanted.as_bytes()));
                stream.write_all(answer.as_bytes()).expect("sent");
            }
        });
        let at = At {
            admin,
            ..At::default()
        };
        let outcome = command(at).run();
        answerer.join().expect("all was asked for");
        outcome
    }

    fn page(state: &str, detail: &str) -> String {
        let change = json!({"number": 4, "wish": "load", "state": state, "detail": detail});
        format!(
            "HTTP/1.1 200 OK\r\n\r\n{}",
            json!({"generation_changes": [{"number": 3}, change]})
        )
    }

    fn begun() -> String {
        "HTTP/1.1 202 Accepted\r\n\r\n{\"change\": 4}".into()
    }

    #[test]
    fn what_a_control_plane_takes_back_is_told() {
        let mut page = json!({"control": {
            "address": "unix:/run/c.sock",
            "generations": {"held": [2, 1], "newest": 2},
        }});
        page["generations"] = json!([{"generation": 2}, {"generation": 1}]);
        let note = taken_back(&page, Asked::Before).expect("it is told");
        assert!(
            note.contains("unix:/run/c.sock has generation 2 served here and 1 held"),
            "{note}"
        );
        page["control"]["connected"] = false.into();
        let note = taken_back(&page, Asked::Before).expect("it is told");
        assert!(note.contains("is not heard: this stands until it is"));
        for other in [Asked::Held(3), Asked::Served(1), Asked::Gone(1)] {
            assert!(taken_back(&page, other).is_some());
        }
        for same in [Asked::Held(1), Asked::Served(2), Asked::Gone(3)] {
            assert_eq!(taken_back(&page, same), None);
        }
        page["generations"] = json!([{"generation": 1}, {"generation": 2}]);
        assert_eq!(taken_back(&page, Asked::Before), None, "as it wants");
        page["control"]["generations"] = Value::Null;
        assert_eq!(taken_back(&page, Asked::Served(1)), None);
        assert_eq!(taken_back(&json!({}), Asked::Served(1)), None);
        assert_eq!(loaded("generation 3 of /m/g is held, 1 KiB"), Some(3));
        assert_eq!(loaded("held"), None);
    }

    #[test]
    fn changes_are_waited_for() {
        let load = |source: &'static str| {
            move |at| GenerationCommand::Load {
                source: source.into(),
                at,
            }
        };
        let done = [begun(), page("running", ""), page("done", "held")];
        run(load("5"), "load?number=5", &done).expect("done");
        run(load("a b/%5"), "load?directory=a%20b/%255", &done).expect("done");
        let activate = |at| GenerationCommand::Activate { number: 5, at };
        run(activate, "activate?number=5", &done).expect("done");
        let already = ["HTTP/1.1 200 OK\r\n\r\n{}".to_owned()];
        run(activate, "activate?number=5", &already).expect("so already");
        run(|at| GenerationCommand::Rollback { at }, "rollback", &done).expect("done");
        let unload = |at| GenerationCommand::Unload { number: 5, at };
        let failed = [begun(), page("failed", "too little memory")];
        let error = run(unload, "unload?number=5", &failed).expect_err("failed");
        assert!(
            error.to_string().contains("as it was: too little memory"),
            "{error}"
        );
        let refused = ["HTTP/1.1 409 Conflict\r\n\r\ngeneration 5 is the newest\n".to_owned()];
        let error = run(unload, "unload?number=5", &refused).expect_err("refused");
        assert_eq!(error.to_string(), "generation 5 is the newest");
    }

    #[test]
    fn what_is_held_is_listed() {
        let one = |number: u64, state: &str| json!({"generation": number, "state": state, "directory": "/m/gen", "tables": 2, "rows_bytes": 2048, "in_progress": 3});
        let text =
            list(&json!({"generations": [one(5, "newest"), one(4, "before")]})).expect("a page");
        for part in ["5", "newest", "4", "before", "2.0 KiB", "/m/gen"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(list(&json!({})).is_err());
    }
}
