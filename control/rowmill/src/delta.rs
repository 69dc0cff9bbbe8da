//! `rowmill delta`: files of rows that take the place of others, made, looked at, and applied to what is served.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::Subcommand;
use comfy_table::Table;
use comfy_table::presets::UTF8_BORDERS_ONLY;
use rowmill_table::{
    Container, DeltaFile, DeltaHead, DeltaTable, Generation, Safetensors, Stage, TableError,
    write_delta,
};
use serde_json::{Value, json};

use crate::control::Control;
use crate::generation::path_query;
use crate::output::{note, print, shown};
use crate::place::through;
use crate::progress::Reporter;
use crate::status::{fetch, parse, post};
use crate::units::bytes;

/// What can be done with deltas: rows of a generation become others while it is served. Those of a generation are counted from 1 and applied in
/// that order, each once. The configuration of rowmilld has `deltas.directory`, and `admin.allow_changes`.
#[derive(Subcommand)]
pub(crate) enum DeltaCommand {
    /// Make a delta of ids and rows in files
    Make {
        /// The new file; it must not exist
        file: PathBuf,
        /// The directory of the generation whose rows become others
        #[arg(long, value_name = "DIR")]
        model: PathBuf,
        /// The model's name where it is served. Default: that of its directory
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Its place among the deltas of the generation, counted from 1
        #[arg(long, value_name = "N", allow_negative_numbers = true)]
        sequence: u64,
        /// A table with the ids of rows, each once, and the rows: f32 or f16 (in safetensors also bf16), stored as the table's are; may be
        /// repeated
        #[arg(long, required = true, value_name = "NAME=IDS.npy,ROWS.npy | NAME=FILE.safetensors:IDS,ROWS", value_parser = parse_table)]
        table: Vec<DeltaTable>,
    },
    /// Show what a delta has, without reading its rows
    Show {
        /// The file
        file: PathBuf,
    },
    /// Apply a delta to a dataplane on this host, while it serves
    Apply {
        /// The file, which rowmilld has to be able to read
        file: PathBuf,
        /// Apply it though rowmilld takes deltas from a control plane, from where it gets none any more unless that keeps the same one
        #[arg(long)]
        local: bool,
        /// The admin address of rowmilld
        #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7401")]
        admin: String,
    },
    /// Give a delta to the control plane, which keeps it for all dataplanes of the model: they fetch and apply it by themselves
    Publish {
        /// The file
        file: PathBuf,
        #[command(flatten)]
        control: Control,
    },
    /// Show the deltas that the control plane keeps, and how far each dataplane is
    Log {
        #[command(flatten)]
        control: Control,
    },
    /// Show which deltas were applied
    List {
        /// The admin address of rowmilld
        #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7401")]
        admin: String,
    },
}

/// A table, and where its ids and rows lie.
fn parse_table(text: &str) -> Result<DeltaTable, String> {
    let wanted = "write NAME=IDS.npy,ROWS.npy or NAME=FILE.safetensors:IDS,ROWS";
    let parts = text.split_once('=').and_then(|(name, rest)| {
        let (ids, rows) = rest.rsplit_once(',')?;
        Some((name, ids, rows))
    });
    let (name, ids, rows) =
        parts.ok_or_else(|| format!("`{text}` names no ids and rows; {wanted}"))?;
    if name.is_empty() || ids.is_empty() || rows.is_empty() {
        return Err(format!("`{text}` leaves something out; {wanted}"));
    }
    let from = match ids.rsplit_once(':') {
        Some((file, ids)) if file.ends_with(".safetensors") => {
            let file = Safetensors::open(file).map_err(|error| format!("{:#}", anyhow!(error)))?;
            Container::Safetensors {
                rows: (file.clone(), rows.into()),
                ids: Some((file, ids.into())),
            }
        }
        _ => Container::Npy {
            rows: rows.into(),
            ids: Some(ids.into()),
        },
    };
    Ok(DeltaTable {
        name: name.into(),
        from,
    })
}

impl DeltaCommand {
    /// Does it, and says what came of it.
    pub(crate) fn run(self) -> Result<()> {
        match self {
            DeltaCommand::Make {
                file,
                model,
                name,
                sequence,
                table,
            } => {
                let name = name.map_or_else(|| name_of(&model), Ok)?;
                let generation = Generation::open(&model)?;
                let head = write_delta(file, &name, sequence, &generation, &table)?;
                print(&shown_head(&head))
            }
            DeltaCommand::Show { file } => print(&shown_head(DeltaFile::open(file)?.head())),
            DeltaCommand::Apply { file, local, admin } => apply(&file, local, &admin),
            DeltaCommand::Publish { file, control } => publish(&file, &control),
            DeltaCommand::Log { control } => {
                let kept = control.get("/v1/deltas")?;
                print(&log(&kept, &control.get("/v1/generations")?))
            }
            DeltaCommand::List { admin } => print(&list(&parse(&admin, &fetch(&admin)?)?)?),
        }
    }
}

/// A model's name where none is given: that of its directory.
fn name_of(model: &Path) -> Result<String> {
    let directory = model.canonicalize();
    let directory = directory.with_context(|| format!("cannot open {}", model.display()))?;
    let name = directory.file_name();
    let name = name.context("give the model's name with --name")?;
    Ok(name.to_string_lossy().into_owned())
}

fn apply(file: &Path, local: bool, admin: &str) -> Result<()> {
    // Damage shows here first, and rowmilld is in another directory.
    let delta = DeltaFile::open(file)?;
    let path = delta.path().canonicalize();
    let path = path.with_context(|| format!("cannot open {}", file.display()))?;
    let path = path.to_str().context("the file's path is no text")?;
    let local = if local { "&local=true" } else { "" };
    let (code, text) = post(
        admin,
        &format!("/deltas/apply?{}{local}", path_query("file", path)),
    )?;
    if !(200..300).contains(&code) {
        bail!("{}", shown(text.trim()));
    }
    let begun = parse(admin, &text)?;
    let number = begun["change"].as_u64();
    let number =
        number.context("the answer has no number: is this rowmilld of another version?")?;
    let change = through(admin, "delta_changes", number, "delta")?;
    let detail = shown(change["detail"].as_str().unwrap_or_default());
    if change["state"] != "done" {
        bail!("it is not applied: {detail}");
    }
    print(&format!("{detail}\n"))
}

fn publish(file: &Path, control: &Control) -> Result<()> {
    // Damage shows here first.
    let delta = DeltaFile::open(file)?;
    let length = delta.head().file_bytes();
    let progress = Reporter::new();
    let answer = control.post_bytes("/v1/deltas", length, &mut |stream| {
        let mut sent = 0;
        let outcome = delta.bytes(&mut |piece| {
            sent += piece.len() as u64;
            progress.report(Stage::Writing, sent, length);
            stream.write_all(piece)
        });
        outcome.map_err(|error| match error {
            TableError::Io { source, .. } => source,
            error => std::io::Error::other(error),
        })
    });
    let taken: Value = serde_json::from_str(&answer?).context("the answer is not JSON")?;
    let head = delta.head();
    // Who may publish may not be allowed to look.
    let models = control.get("/v1/generations").unwrap_or_default();
    let served = |of: &Value| of["model"] == *head.model && of["dataplanes"] != json!([]);
    if models.as_array().is_some_and(|all| !all.iter().any(served)) {
        note(&format!(
            "warning: no dataplane that is known serves a model `{}`: the delta waits for one that does",
            shown(&head.model)
        ));
    }
    let said = match taken["is_new"] == true {
        true => "is kept",
        false => "was kept before",
    };
    print(&format!(
        "delta {} of generation {} of model {} {said}\n",
        head.sequence,
        head.generation,
        shown(&head.model)
    ))
}

/// What the control plane keeps, and how far each dataplane is, as tables.
fn log(kept: &Value, models: &Value) -> String {
    let mut table = table_with(["model", "generation", "fingerprint", "last delta", "bytes"]);
    let mut amiss = String::new();
    for one in kept.as_array().into_iter().flatten() {
        let model = shown(one["model"].as_str().unwrap_or_default());
        for sequence in one["damaged"].as_array().into_iter().flatten() {
            amiss += &format!(
                "delta {sequence} of generation {} of model {model} is damaged where it is kept, and is not sent: publish it again\n",
                one["generation"]
            );
        }
        table.add_row([
            model,
            one["generation"].to_string().into(),
            shown(one["fingerprint"].as_str().unwrap_or_default()),
            one["last"].to_string().into(),
            bytes(one["bytes"].as_u64().unwrap_or(0)).into(),
        ]);
    }
    let mut far = table_with(["dataplane", "model", "generation", "applied", "last change"]);
    let mut takes = false;
    for model in models.as_array().into_iter().flatten() {
        for dataplane in model["dataplanes"].as_array().into_iter().flatten() {
            let name = shown(dataplane["dataplane"].as_str().unwrap_or_default());
            for why in dataplane["diverged"].as_array().into_iter().flatten() {
                let why = shown(why.as_str().unwrap_or_default());
                amiss += &format!("dataplane {name} does not follow: {why}\n");
            }
            let held = dataplane["held"].as_array().into_iter().flatten();
            let deltas = dataplane["deltas"].as_array().into_iter().flatten();
            for (generation, applied) in held.zip(deltas) {
                takes = true;
                far.add_row([
                    name.clone(),
                    shown(model["model"].as_str().unwrap_or_default()),
                    generation.to_string().into(),
                    applied.to_string().into(),
                    shown(dataplane["delta"].as_str().unwrap_or("-")),
                ]);
            }
        }
    }
    match takes {
        true => format!("{table}\n{far}\n{amiss}"),
        false => format!(
            "{table}\nno dataplane that reports takes deltas: set deltas.directory in their configuration\n{amiss}"
        ),
    }
}

fn table_with<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY);
    table.set_header(header);
    table
}

fn shown_head(head: &DeltaHead) -> String {
    let mut table = table_with(["table", "kind", "rows", "dim", "format"]);
    for section in &head.sections {
        table.add_row([
            section.table.clone(),
            if section.hashed { "hashed" } else { "dense" }.into(),
            section.rows.to_string(),
            section.dim.to_string(),
            section.format.to_string(),
        ]);
    }
    format!(
        "delta {} of generation {} (fingerprint {:08x}) of model {}, {}\n{table}\n",
        head.sequence,
        head.generation,
        head.base,
        shown(&head.model),
        bytes(head.file_bytes())
    )
}

/// What was applied, as a table.
fn list(page: &Value) -> Result<String> {
    let deltas = page["deltas"].as_object();
    let deltas = deltas.context("no deltas are taken here: set deltas.directory and admin.allow_changes in rowmilld's configuration")?;
    let mut table = table_with(["generation", "last delta"]);
    for one in deltas["generations"].as_array().into_iter().flatten() {
        table.add_row([one["generation"].to_string(), one["applied"].to_string()]);
    }
    Ok(format!("{table}\n"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tables_name_their_ids_and_rows() {
        let table = parse_table("users=a/ids.npy,b=c/rows.npy").expect("good");
        assert_eq!(table.name, "users");
        let Container::Npy { rows, ids } = table.from else {
            panic!("{table:?}");
        };
        assert_eq!(
            (rows, ids),
            ("b=c/rows.npy".into(), Some("a/ids.npy".into()))
        );
        for wrong in [
            "users",
            "users=",
            "users=ids.npy",
            "=i.npy,r.npy",
            "u=,r.npy",
            "u=i.npy,",
        ] {
            assert!(parse_table(wrong).is_err(), "{wrong}");
        }
        let absent = parse_table("u=/nowhere/a.safetensors:ids,rows").unwrap_err();
        assert!(absent.contains("/nowhere/a.safetensors"), "{absent}");
    }

    #[test]
    fn what_is_kept_and_how_far_dataplanes_are_is_shown() {
        let kept = json!([{"model": "m", "generation": 4, "fingerprint": "0000abcd", "last": 17, "bytes": 2048}]);
        let dataplane = json!({"dataplane": "a", "held": [4, 3], "deltas": [16, 9], "delta": "delta 16 is applied"});
        let models =
            json!([{"model": "m", "dataplanes": [dataplane, {"dataplane": "b", "held": [4]}]}]);
        let text = log(&kept, &models);
        for part in [
            "0000abcd",
            "17",
            "2.0 KiB",
            "16",
            "9",
            "delta 16 is applied",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("does not follow"), "{text}");
        let other = json!({"dataplane": "a", "held": [4], "deltas": [2], "diverged": ["it has applied other deltas"]});
        let text = log(&kept, &json!([{"model": "m", "dataplanes": [other]}]));
        let said = "dataplane a does not follow: it has applied other deltas\n";
        assert!(text.ends_with(said), "{text}");
        let damaged = json!([{"model": "m", "generation": 4, "last": 17, "damaged": [3, 5]}]);
        let text = log(&damaged, &models);
        assert!(
            text.contains("delta 3 of generation 4 of model m is damaged"),
            "{text}"
        );
        assert!(text.contains("delta 5 of"), "{text}");
        let none = log(&kept, &json!([]));
        assert!(
            none.contains("no dataplane that reports takes deltas"),
            "{none}"
        );
    }

    #[test]
    fn what_was_applied_is_listed() {
        let page = json!({"deltas": {"generations": [{"generation": 4, "applied": 17}]}});
        let text = list(&page).expect("a page");
        assert!(text.contains('4') && text.contains("17"), "{text}");
        let none = list(&json!({})).unwrap_err().to_string();
        assert!(none.contains("set deltas.directory"), "{none}");
    }
}
