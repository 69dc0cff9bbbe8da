//! `rowmill tables` and `rowmill policy`: what the control plane knows and wants, and why.

use core::fmt::Write;

use anyhow::Result;
use clap::{ArgGroup, Args, Subcommand};
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};
use serde_json::{Map, Value, json};

use crate::control::{Control, part};
use crate::output::{note, print, shown};
use crate::units::{bytes, duration, parse_bytes, thousands};

/// Options of `rowmill tables`.
#[derive(Args)]
pub(crate) struct Tables {
    #[command(flatten)]
    control: Control,
    /// Print the page as it is, in JSON
    #[arg(long)]
    json: bool,
}

/// `rowmill policy ...`
#[derive(Subcommand)]
pub(crate) enum PolicyCommand {
    /// What each dataplane's tables have, what becomes of it, and all settings, also of tables that no dataplane has
    Show(Show),
    /// Bound a table's share, have rows of it pinned, or leave it to the control plane again; settings that are not named stay as they are
    Set(Set),
    /// Why a table has its share, or why a row is in or out
    Explain(Explain),
}

/// Options of `rowmill policy show`.
#[derive(Args)]
pub(crate) struct Show {
    #[command(flatten)]
    control: Control,
    /// Print the page as it is, in JSON
    #[arg(long)]
    json: bool,
}

/// Options of `rowmill policy set`.
#[derive(Args)]
#[command(group(ArgGroup::new("wanted").args(["min", "max", "pinned", "admission", "clear"]).multiple(true).required(true)))]
pub(crate) struct Set {
    /// The table's model
    model: String,
    /// Its name
    table: String,
    /// Its share is at least so large, in each dataplane: 512MiB, 2GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, allow_hyphen_values = true)]
    min: Option<u64>,
    /// And at most so large
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, allow_hyphen_values = true)]
    max: Option<u64>,
    /// This part of its share, from 0 to 0.7, is kept for the rows that were sampled most often: 2,048 of a table at most, and only
    /// rows that are sampled (`rowmill policy explain` says how many are)
    #[arg(long, value_name = "PART", value_parser = parse_part, allow_negative_numbers = true)]
    pinned: Option<f64>,
    /// Which rows that were missed come into the cache: `built`, what the dataplane takes for worth it, or `pinned`, none but pinned
    /// ones, as for a table that is scanned: what is not filled by those stays empty
    #[arg(long, value_parser = ["built", "pinned"])]
    admission: Option<String>,
    /// Leave its share to the control plane
    #[arg(long, conflicts_with_all = ["min", "max", "pinned", "admission"])]
    clear: bool,
    #[command(flatten)]
    control: Control,
}

/// Options of `rowmill policy explain`.
#[derive(Args)]
pub(crate) struct Explain {
    /// The table's model
    model: String,
    /// Its name
    table: String,
    /// A row of it: why is it in, or out
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    row: Option<u32>,
    #[command(flatten)]
    control: Control,
    /// Print the page as it is, in JSON
    #[arg(long)]
    json: bool,
}

impl Tables {
    pub(crate) fn run(self) -> Result<()> {
        let page = self.control.get("/v1/tables")?;
        put(&page, self.json, tables)
    }
}

impl PolicyCommand {
    pub(crate) fn run(self) -> Result<()> {
        match self {
            PolicyCommand::Show(Show { control, json }) => {
                let page = json!({
                    "dataplanes": control.get("/v1/dataplanes")?,
                    "settings": control.get("/v1/settings")?,
                });
                put(&page, json, policies)
            }
            PolicyCommand::Set(set) => set.run(),
            PolicyCommand::Explain(explain) => explain.run(),
        }
    }
}

impl Set {
    fn run(self) -> Result<()> {
        let path = format!(
            "/v1/tables/{}/{}/settings",
            part(&self.model)?,
            part(&self.table)?
        );
        if self.clear {
            self.control.ask("DELETE", &path, "")?;
            return print(&format!(
                "{}: its share is left to the control plane\n",
                shown(&self.table)
            ));
        }
        let mut settings = self.known()?;
        for (key, value) in [("min_bytes", self.min), ("max_bytes", self.max)] {
            if let Some(value) = value {
                settings.insert(key.into(), value.into());
            }
        }
        if let Some(part) = self.pinned {
            settings.insert("pinned_share".into(), json!(part));
        }
        if let Some(admission) = self.admission {
            settings.insert("admission".into(), admission.into());
        }
        let settings = Value::Object(settings);
        let answer = self.control.ask("PUT", &path, &settings.to_string())?;
        let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
        for warning in list(&answer["warnings"]) {
            note(&format!("warning: {}", text(warning)));
        }
        print(&format!("{}: {}\n", shown(&self.table), wanted(&settings)))
    }
}

impl Set {
    /// The table's settings, whoever has set them: what is put takes the place of all of them.
    fn known(&self) -> Result<Map<String, Value>> {
        let page = self.control.get("/v1/settings")?;
        let is_its = |of: &&Value| of["model"] == *self.model && of["table"] == *self.table;
        let known = list(&page).iter().find(is_its);
        let known = known.and_then(|of| of["settings"].as_object());
        let mut known = known.cloned().unwrap_or_default();
        known.retain(|_, value| !value.is_null());
        Ok(known)
    }
}

/// A part of a whole.
fn parse_part(text: &str) -> Result<f64, String> {
    let part: Option<f64> = text.parse().ok();
    part.filter(|part| (0.0..=1.0).contains(part))
        .ok_or_else(|| "write a part of all, as 0.25".into())
}

impl Explain {
    fn run(self) -> Result<()> {
        let path = format!("/v1/tables/{}/{}", part(&self.model)?, part(&self.table)?);
        match self.row {
            Some(row) => put(
                &self.control.get(&format!("{path}/rows/{row}"))?,
                self.json,
                |page| format!("row {row}: {}\n", text(&page["why"])),
            ),
            None => put(&self.control.get(&path)?, self.json, explained),
        }
    }
}

fn put(page: &Value, json: bool, told: impl FnOnce(&Value) -> String) -> Result<()> {
    print(&if json {
        format!("{page:#}\n")
    } else {
        told(page)
    })
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(crate) fn text(value: &Value) -> String {
    shown(value.as_str().unwrap_or("-")).into_owned()
}

/// A size, a count, a part of all and a rate; what is not known is a dash.
pub(crate) fn size(value: &Value) -> String {
    value.as_u64().map_or("-".into(), bytes)
}

fn count(value: &Value) -> String {
    value.as_u64().map_or("-".into(), thousands)
}

pub(crate) fn percent(value: &Value) -> String {
    value
        .as_f64()
        .map_or("-".into(), |part| format!("{:.1} %", 100.0 * part))
}

pub(crate) fn rate(value: &Value) -> String {
    value
        .as_f64()
        .map_or("-".into(), |rate| thousands(rate.round() as u64))
}

/// Settings in words.
fn wanted(settings: &Value) -> String {
    let mut words = Vec::new();
    if let Some(min) = settings["min_bytes"].as_u64() {
        words.push(format!("at least {}", bytes(min)));
    }
    if let Some(max) = settings["max_bytes"].as_u64() {
        words.push(format!("at most {}", bytes(max)));
    }
    if let Some(part) = settings["pinned_share"].as_f64() {
        words.push(format!("{:.1} % of it pinned", 100.0 * part));
    }
    match settings["admission"].as_str() {
        Some("pinned") => words.push("no other row comes".into()),
        Some("built") => words.push("rows come as the dataplane decides".into()),
        _ => {}
    }
    if words.is_empty() {
        "-".into()
    } else {
        words.join(", ")
    }
}

/// A table as the other commands draw them; the first columns are names.
pub(crate) fn drawn(
    header: &[&str],
    names: usize,
    rows: impl IntoIterator<Item = Vec<String>>,
) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY);
    table.set_header(header.iter().copied());
    rows.into_iter().for_each(|row| _ = table.add_row(row));
    for column in table.column_iter_mut().skip(names) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

pub(crate) fn tables(page: &Value) -> String {
    if list(page).is_empty() {
        return "no dataplane that caches a table has reported yet\n".into();
    }
    let rows = list(page).iter().flat_map(|table| {
        list(&table["shares"]).iter().map(move |share| {
            vec![
                text(&table["model"]),
                text(&table["table"]),
                text(&share["dataplane"]),
                wanted(&table["settings"]),
                size(&share["cache_bytes"]),
                rate(&share["lookups_per_s"]),
                percent(&share["found"]),
                match share["admission"].as_str() {
                    Some("pinned") => "- (only pinned rows come)".into(),
                    _ => percent(&share["expected"]),
                },
                rate(&share["gain_per_mib"]),
            ]
        })
    });
    let header = [
        "model",
        "table",
        "dataplane",
        "set",
        "share",
        "lookups/s",
        "hits",
        "expected",
        "hits/s a MiB more",
    ];
    let all = list(page).iter().flat_map(|table| list(&table["shares"]));
    let short: String = all.map(short).collect();
    format!("{}\n{short}", drawn(&header, 4, rows))
}

/// A line about a share of which fewer rows can be pinned than were asked for.
fn short(share: &Value) -> String {
    match share["pins"]["short"].as_str() {
        Some(why) => format!(
            "{} in {}: {}\n",
            text(&share["table"]),
            text(&share["dataplane"]),
            shown(why)
        ),
        None => String::new(),
    }
}

fn shares(of: &Value) -> String {
    let rows = list(&of["shares"]).iter().map(|share| {
        let arrow = share["resizing"].as_bool() == Some(true)
            || share["wanted_bytes"].as_u64().is_some_and(|wanted| {
                share["cache_bytes"]
                    .as_u64()
                    .is_some_and(|has| 16 * has.abs_diff(wanted) > wanted)
            });
        let to = if arrow {
            format!(" -> {}", size(&share["wanted_bytes"]))
        } else {
            String::new()
        };
        vec![
            text(&share["table"]),
            format!("{}{to}", size(&share["cache_bytes"])),
            count(&share["held_rows"]),
            rate(&share["lookups_per_s"]),
            percent(&share["found"]),
            rate(&share["gain_per_mib"]),
            rate(&share["loss_per_mib"]),
            match share["pins"]["asked"].as_u64() {
                Some(asked) => format!("{} of {} asked", count(&share["pinned"]), thousands(asked)),
                None => count(&share["pinned"]),
            },
        ]
    });
    let header = [
        "table",
        "share",
        "rows",
        "lookups/s",
        "hits",
        "hits/s a MiB more",
        "a MiB less",
        "pinned",
    ];
    let short: String = list(&of["shares"]).iter().map(short).collect();
    let drawn = format!("{}\n{short}", drawn(&header, 1, rows));
    drawn.trim_end().into()
}

/// Dataplanes, and settings of all tables.
fn policies(page: &Value) -> String {
    let mut out = dataplanes(&page["dataplanes"]);
    let rows = list(&page["settings"]).iter();
    let rows = rows.map(|of| {
        vec![
            text(&of["model"]),
            text(&of["table"]),
            wanted(&of["settings"]),
        ]
    });
    if !list(&page["settings"]).is_empty() {
        out += &format!("{}\n", drawn(&["model", "table", "set"], 3, rows));
    }
    for of in list(&page["settings"]) {
        for warning in list(&of["warnings"]) {
            out += &format!(
                "warning: {} of {}: {}\n",
                text(&of["table"]),
                text(&of["model"]),
                text(warning)
            );
        }
    }
    out
}

fn dataplanes(page: &Value) -> String {
    let mut out = String::new();
    for of in list(page) {
        let heard = of["heard_s_ago"].as_u64().map_or("-".into(), duration);
        let lines = writeln!(
            out,
            "{}: model {}, generation {}, arena {} ({} free), heard {heard} ago\npolicy {} published, {} followed\n{}\n{}",
            text(&of["name"]),
            text(&of["model"]),
            text(&of["generation"]),
            size(&of["arena_bytes"]),
            size(&of["free_bytes"]),
            text(&of["published"]),
            text(&of["follows"]),
            text(&of["state"]),
            shares(of)
        );
        lines.expect("strings take everything");
        for refused in list(&of["refused"]) {
            writeln!(out, "refused: {}", text(refused)).expect("strings take everything");
        }
    }
    if out.is_empty() {
        out = "no dataplane has reported yet\n".into();
    }
    out
}

fn explained(page: &Value) -> String {
    let table = &page["table"];
    let mut out = format!(
        "{} of model {}: sampled by {} ({:.4} % of its rows), {} samples behind its hits by size\nset: {}\n",
        text(&table["table"]),
        text(&table["model"]),
        text(&table["sampled_by"]),
        100.0 * table["rate"].as_f64().unwrap_or(0.0),
        rate(&table["weight"]),
        wanted(&table["settings"])
    );
    if let Some(ago) = table["shifted_s_ago"].as_u64() {
        out += &format!(
            "its popularity was last seen to be another one {} ago\n",
            duration(ago)
        );
    }
    let curve = list(&table["curve"]).iter();
    let curve = curve.map(|tried| vec![count(&tried["rows"]), percent(&tried["hits"])]);
    out += &format!("{}\n", drawn(&["rows", "hits expected"], 0, curve));
    for of in list(&page["dataplanes"]) {
        out += &format!(
            "in {}, beside the others: {}\n{}\n",
            text(&of["name"]),
            text(&of["state"]),
            shares(of)
        );
    }
    for share in list(&table["shares"]) {
        for moved in list(&share["moves"]) {
            let ago = moved["s_ago"].as_u64().map_or("-".into(), duration);
            let (from, to) = (size(&moved["from_bytes"]), size(&moved["to_bytes"]));
            out += &format!(
                "{}, {ago} ago: {from} -> {to}: {}\n",
                text(&share["dataplane"]),
                text(&moved["why"])
            );
        }
    }
    out
}

#[cfg(test)]
mod tests;
