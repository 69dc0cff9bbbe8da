//! The same by way of the control plane: all dataplanes of a model.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use comfy_table::Table;
use comfy_table::presets::UTF8_BORDERS_ONLY;
use serde_json::{Value, json};

use super::GenerationCommand;
use crate::control::{Control, part};
use crate::output::{note, print, shown};

/// How often it is looked what came of a wish.
const LOOK: Duration = Duration::from_millis(500);
/// What could not be done is believed when it is told for so long: dataplanes report once a second, and the last wish's may be meant before.
const BELIEVED: Duration = Duration::from_secs(5);
/// How often it is told what is waited for.
const TOLD: Duration = Duration::from_secs(3);

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
    pub(super) fn run_everywhere(&self, control: &Control, model: &str) -> Result<()> {
        let Some(wish) = self.wish()? else {
            return print(&list(&of(control, model)?));
        };
        let path = format!("/v1/generations/{}", part(model)?);
        control.ask("POST", &path, &wish.to_string())?;
        let (mut told, mut refused_since) = (Instant::now(), None);
        loop {
            let page = of(control, model)?;
            if page["settled"] == true {
                return print(&list(&page));
            }
            if let Some(why) = refusal(&page) {
                let since: Instant = *refused_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= BELIEVED {
                    bail!(
                        "{why}; it is tried again, and nothing else is served meanwhile: `rowmill generation unload` ends that"
                    );
                }
            } else {
                refused_since = None;
            }
            if told.elapsed() >= TOLD {
                told = Instant::now();
                note(&waited_for(&page));
            }
            sleep(LOOK);
        }
    }
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

/// Who could not do something, and why.
fn refusal(page: &Value) -> Option<String> {
    dataplanes(page).find_map(|of| {
        let why = of["refused"].as_array()?.first()?.as_str()?;
        Some(format!("{}: {}", shown(text(of, "dataplane")), shown(why)))
    })
}

/// Who is not there yet.
fn waited_for(page: &Value) -> String {
    let wanted = &page["wanted"];
    let lacks = |of: &&Value| {
        let held = of["held"].as_array();
        held.and_then(|held| held.first()) != Some(&wanted["newest"])
            || held.map(Vec::len) != wanted["held"].as_array().map(Vec::len)
    };
    let of_one = |of: &Value| {
        let change = match text(of, "change") {
            "" => "nothing is told yet".into(),
            change => shown(change),
        };
        format!("{}: {change}", shown(text(of, "dataplane")))
    };
    let lacking: Vec<String> = dataplanes(page).filter(lacks).map(of_one).collect();
    format!("waiting for {}", lacking.join("; "))
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
        Value::Null => "each serves what its configuration says".to_owned(),
        wanted => format!(
            "generations {} are to be held, and {} served",
            numbers(&wanted["held"]),
            wanted["newest"]
        ),
    };
    format!("{}: {wanted}\n{table}\n", shown(text(page, "model")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::At;

    fn page() -> Value {
        json!({"model": "m", "wanted": {"held": [1, 2], "newest": 1}, "settled": false, "dataplanes": [
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
        assert_eq!(refusal(&page), None);
        page["dataplanes"][1]["refused"] = json!(["generation 2: no \u{1b}such"]);
        let why = refusal(&page).unwrap();
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
