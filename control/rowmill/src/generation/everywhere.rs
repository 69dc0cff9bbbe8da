//! The same by way of the control plane: all dataplanes of a model.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use comfy_table::Table;
use comfy_table::presets::UTF8_BORDERS_ONLY;
use serde_json::{Value, json};

use super::{At, GenerationCommand};
use crate::control::{Control, part};
use crate::output::{note, print, shown};

/// How often it is looked what came of a wish.
const LOOK: Duration = Duration::from_millis(500);
/// What could not be done is believed when it is told for so long: a control plane of another version may tell what was refused before the wish.
const BELIEVED: Duration = Duration::from_secs(5);
/// How often it is told what is waited for.
const TOLD: Duration = Duration::from_secs(3);
/// A generation that could not be loaded is given up in this time, where no request names it.
const GIVEN_UP: Duration = Duration::from_secs(10);

impl GenerationCommand {
    /// What is wished for, where something is.
    ///
    /// # Errors
    /// Where a directory is named.
    fn wish(&self) -> Result<Option<Value>> {
        Ok(Some(match self {
            GenerationCommand::Load { source, .. } => {
                let number: u64 = source.parse().ok().with_context(|| {
                    format!("`{}`: the control plane tells dataplanes numbers, which each finds beside its model; write one", shown(source))
                })?;
                json!({ "load": number })
            }
            GenerationCommand::Activate { number, .. } => json!({ "activate": number }),
            GenerationCommand::Rollback { .. } => json!("rollback"),
            GenerationCommand::Unload { number, .. } => json!({ "unload": number }),
            GenerationCommand::List { .. } => return Ok(None),
        }))
    }

    /// Does it with all dataplanes of a model, waits until all are through, and says what came of it.
    pub(super) fn run_everywhere(&self, at: &At, model: &str) -> Result<()> {
        let (control, without) = (&at.control, &at.without);
        let wish = self.wish()?;
        let before = of(control, model)?;
        let Some(wish) = wish else {
            ensure!(without.is_empty(), "a list shows all: leave --without out");
            return print(&list(&before));
        };
        let path = format!("/v1/generations/{}", part(model)?);
        let request = |wish: &Value| json!({"wish": wish, "without": without}).to_string();
        control.ask("POST", &path, &request(&wish))?;
        let is_new = |number: &&Value| {
            let held = before["wanted"]["held"].as_array();
            !held.is_some_and(|held| held.contains(number))
        };
        let loaded = wish.get("load").filter(is_new);
        let (mut told, mut refused_since) = (Instant::now(), None);
        loop {
            let page = of(control, model).with_context(|| {
                format!(
                    "this is wanted from now on, and what comes of it is not known: see `rowmill generation list --model {}`",
                    shown(model)
                )
            })?;
            if is_done(&page) {
                return print(&list(&page));
            }
            if let Some(why) = refusal(&page, asked(&wish, &page)) {
                let since: Instant = *refused_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= BELIEVED {
                    if let Some(number) = loaded {
                        let request = request(&json!({ "unload": number }));
                        let outcome = control.ask("POST", &path, &request);
                        bail!("{why}; {}", given_up(control, model, number, outcome));
                    }
                    bail!(
                        "{why}; it is tried again once a minute, and at once when this command is given again; nothing else is served meanwhile: `rowmill generation unload` ends that"
                    );
                }
            } else {
                refused_since = None;
            }
            if told.elapsed() >= TOLD {
                told = Instant::now();
                note(&waited_for(&page));
                let status = control.get("/v1/status")?;
                for other in status["others"].as_array().into_iter().flatten() {
                    note(&shown(other.as_str().unwrap_or_default()));
                }
            }
            sleep(LOOK);
        }
    }
}

/// What becomes of a generation that some dataplane could not load, and that is not wanted any more, or still.
fn given_up(control: &Control, model: &str, number: &Value, outcome: Result<String>) -> String {
    if let Err(error) = outcome {
        return format!(
            "generation {number} is wanted still, since that can't be taken back ({error:#}): `rowmill generation unload {number} --model {}` does when it can",
            shown(model)
        );
    }
    let began = Instant::now();
    while began.elapsed() < GIVEN_UP {
        if of(control, model).is_ok_and(|page| is_done(&page)) {
            return format!("everything is as it was: nobody holds generation {number}");
        }
        sleep(LOOK);
    }
    format!(
        "generation {number} is not wanted any more: who has loaded it gives it up when no request names it"
    )
}

/// What is known of a model.
fn of(control: &Control, model: &str) -> Result<Value> {
    let page = control.get("/v1/generations")?;
    let models = page.as_array().into_iter().flatten();
    let found = models.into_iter().find(|of| of["model"] == model);
    found.cloned().with_context(|| {
        format!(
            "no dataplane that the control plane knows serves model `{}`",
            shown(model)
        )
    })
}

fn dataplanes(page: &Value) -> impl Iterator<Item = &Value> {
    page["dataplanes"].as_array().into_iter().flatten()
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_default()
}

fn numbers(value: &Value) -> String {
    let numbers = value.as_array().into_iter().flatten();
    let numbers: Vec<String> = numbers.map(Value::to_string).collect();
    numbers.join(", ")
}

fn has(list: &Value, name: &str) -> bool {
    let mut names = list.as_array().into_iter().flatten();
    names.any(|of| of == name)
}

/// Whether all but those that were left out are where they are to be.
fn is_done(page: &Value) -> bool {
    let mut missing = page["missing"].as_array().into_iter().flatten();
    let is_left_out = |name: &Value| {
        let name = name.as_str().unwrap_or_default();
        has(&page["wanted"]["without"], name)
    };
    let is_there = |of: &Value| !has(&page["missing"], text(of, "dataplane"));
    page["settled"] == true || missing.all(is_left_out) && dataplanes(page).any(is_there)
}

/// The generation that a wish is about.
fn asked<'v>(wish: &'v Value, page: &'v Value) -> &'v Value {
    let mut named = ["load", "activate", "unload"].iter();
    let named = named.find_map(|kind| wish.get(kind));
    named.unwrap_or(&page["wanted"]["newest"])
}

/// Who could not do what was asked for with this generation, and why. One that is silent, or has not told anything since, may yet.
fn refusal(page: &Value, number: &Value) -> Option<String> {
    let waited = |of: &&Value| !has(&page["wanted"]["without"], text(of, "dataplane"));
    let begin = format!("generation {number}:");
    let answering = |of: &&Value| is_heard(of) && has_answered(of);
    let mut answering = dataplanes(page).filter(waited).filter(answering);
    answering.find_map(|of| {
        let mut refused = of["refused"].as_array()?.iter();
        let why = refused.find_map(|why| why.as_str().filter(|why| why.starts_with(&begin)))?;
        Some(format!("{}: {}", shown(text(of, "dataplane")), shown(why)))
    })
}

/// Seconds after which a dataplane that says nothing may be left out, as the control plane has it.
const SILENT_S: u64 = 5;

fn is_heard(of: &Value) -> bool {
    matches!(of["heard_s_ago"].as_u64(), Some(..SILENT_S))
}

/// Whether it has told something since the last wish, as far as the control plane says that.
fn has_answered(of: &Value) -> bool {
    of["answered"] != false
}

/// Who is not there yet.
fn waited_for(page: &Value) -> String {
    let of_one = |name: &str| {
        let known = dataplanes(page).find(|of| text(of, "dataplane") == name);
        let heard_s_ago = known.and_then(|of| of["heard_s_ago"].as_u64());
        let stands = match (known, heard_s_ago) {
            (Some(of), _) if is_heard(of) => match text(of, "change") {
                change if has_answered(of) && !change.is_empty() => shown(change),
                _ => "nothing is told yet".into(),
            },
            (_, ago) => {
                let ago = ago.map_or("since the control plane started".into(), |s| {
                    format!("for {s} s")
                });
                format!(
                    "not heard of {ago} (--without {} goes on without it)",
                    shown(name)
                )
                .into()
            }
        };
        format!("{}: {stands}", shown(name))
    };
    let missing = page["missing"].as_array().into_iter().flatten();
    let names = missing.filter_map(Value::as_str);
    let names = names.filter(|name| !has(&page["wanted"]["without"], name));
    let lacking: Vec<String> = names.map(of_one).collect();
    match lacking.is_empty() {
        true => "waiting for some dataplane to be heard of".into(),
        false => format!("waiting for {}", lacking.join("; ")),
    }
}

/// A model's dataplanes, as a table.
fn list(page: &Value) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY);
    table.set_header(["dataplane", "served", "held", "heard of", "last change"]);
    for of in dataplanes(page) {
        let held = &of["held"];
        table.add_row([
            shown(text(of, "dataplane")).into_owned(),
            held[0].as_u64().map_or("-".into(), |n| n.to_string()),
            numbers(held),
            format!("{} s ago", of["heard_s_ago"]),
            shown(text(of, "change")).into_owned(),
        ]);
    }
    let wanted = match &page["wanted"] {
        Value::Null => "nothing is wanted of its dataplanes: each keeps what it serves, and one that starts anew serves what its configuration says".to_owned(),
        wanted => format!(
            "generations {} are to be held, and {} served",
            numbers(&wanted["held"]),
            wanted["newest"]
        ),
    };
    let left_out = page["wanted"]["without"].as_array().into_iter().flatten();
    let left_out: Vec<String> = left_out
        .filter_map(Value::as_str)
        .map(|name| shown(name).into_owned())
        .collect();
    let left_out = match left_out.is_empty() {
        true => String::new(),
        false => format!(
            "left out until heard of again: {}, which may serve another generation\n",
            left_out.join(", ")
        ),
    };
    format!(
        "{}: {wanted}\n{left_out}{table}\n",
        shown(text(page, "model"))
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::At;

    fn page() -> Value {
        json!({"model": "m", "wanted": {"held": [1, 2], "newest": 1}, "settled": false, "missing": ["y"], "dataplanes": [
            {"dataplane": "x", "heard_s_ago": 0, "held": [1, 2], "change": null, "refused": []},
            {"dataplane": "y", "heard_s_ago": 0, "held": [1], "change": "load generation 2: under way: 40 %", "refused": []},
        ]})
    }

    #[test]
    fn who_is_waited_for_and_who_can_not_is_told() {
        let mut page = page();
        assert_eq!(
            waited_for(&page),
            "waiting for y: load generation 2: under way: 40 %"
        );
        let two = json!(2);
        assert_eq!(refusal(&page, &two), None);
        page["dataplanes"][1]["refused"] = json!(["generation 2: no \u{1b}such"]);
        let why = refusal(&page, &two).unwrap();
        assert!(why.starts_with("y: generation 2: no"), "{why}");
        assert!(!why.contains('\u{1b}'));
        let text = list(&page);
        for part in [
            "m: generations 1, 2 are to be held, and 1 served",
            "x",
            "1, 2",
            "40 %",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_refusal_of_something_else_does_not_count() {
        let mut page = page();
        let load = json!({"load": 2});
        let refused = |page: &Value| refusal(page, asked(&load, page));
        let (seven, two) = ("generation 7: damaged", "generation 2: damaged");
        page["dataplanes"][1]["refused"] = json!([seven]);
        assert_eq!(refused(&page), None, "of another generation");
        page["dataplanes"][1]["refused"] = json!([seven, two]);
        assert_eq!(refused(&page).unwrap(), "y: generation 2: damaged");
        page["dataplanes"][1]["heard_s_ago"] = json!(5);
        assert_eq!(refused(&page), None, "it is silent");
        page["dataplanes"][1]["heard_s_ago"] = json!(0);
        page["dataplanes"][1]["answered"] = json!(false);
        assert_eq!(refused(&page), None, "of an earlier wish");
        page["dataplanes"][1]["change"] = json!("load generation 7: failed: damaged");
        assert_eq!(waited_for(&page), "waiting for y: nothing is told yet");
        let rollback = json!("rollback");
        assert_eq!(*asked(&rollback, &page), json!(1), "what is to be served");
    }

    #[test]
    fn who_is_not_heard_of_is_waited_for_until_it_is_left_out() {
        let mut page = page();
        page["dataplanes"][1]["heard_s_ago"] = json!(12);
        page["missing"] = json!(["y", "z"]);
        assert_eq!(
            waited_for(&page),
            "waiting for y: not heard of for 12 s (--without y goes on without it); \
             z: not heard of since the control plane started (--without z goes on without it)"
        );
        page["wanted"]["without"] = json!(["y"]);
        assert!(!is_done(&page) && !waited_for(&page).contains('y'));
        page["wanted"]["without"] = json!(["y", "z"]);
        assert!(is_done(&page));
        let text = list(&page);
        assert!(
            text.contains("left out until heard of again: y, z,"),
            "{text}"
        );
        page["missing"] = json!(["x", "y"]);
        assert!(!is_done(&page), "x is on its way");
        page["wanted"]["without"] = json!(["x", "y"]);
        assert!(!is_done(&page), "nobody is there");
    }

    #[test]
    fn wishes_are_those_of_the_control_plane() {
        let at = At::default;
        let load = |source: &str| GenerationCommand::Load {
            source: source.into(),
            at: at(),
        };
        assert_eq!(load("2").wish().unwrap(), Some(json!({"load": 2})));
        assert!(load("/a/directory").wish().is_err());
        let rollback = GenerationCommand::Rollback { at: at() };
        assert_eq!(rollback.wish().unwrap(), Some(json!("rollback")));
        let list = GenerationCommand::List { at: at() };
        assert_eq!(list.wish().unwrap(), None);
    }
}
