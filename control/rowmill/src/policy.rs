//! `rowmill tables` and `rowmill policy`: what the control plane knows and wants, and why.

use core::fmt::Write;

use anyhow::Result;
use clap::{Args, Subcommand};
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};
use serde_json::{Map, Value, json};

use crate::control::{Control, part};
use crate::output::{print, shown};
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
    /// What each dataplane's tables have, and what becomes of it
    Show(Show),
    /// Bound a table's share, have rows of it pinned, or leave it to the control plane again
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
pub(crate) struct Set {
    /// The table's model
    model: String,
    /// Its name
    table: String,
    /// Its share is at least so large, in each dataplane: 512MiB, 2GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    min: Option<u64>,
    /// And at most so large
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    max: Option<u64>,
    /// This part of its share, from 0 to 0.7, is kept for the rows that were sampled most often
    #[arg(long, value_name = "PART")]
    pinned: Option<f64>,
    /// Which rows that were missed come into the cache: `built`, what the dataplane takes for worth it, or `pinned`, none but pinned ones
    #[arg(long, value_parser = ["built", "pinned"])]
    admission: Option<String>,
    /// Leave its share to the control plane
    #[arg(
        long,
        conflicts_with_all = ["min", "max", "pinned", "admission"],
        required_unless_present_any = ["min", "max", "pinned", "admission"]
    )]
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
    #[arg(long, value_name = "NUMBER")]
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
                put(&control.get("/v1/dataplanes")?, json, dataplanes)
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
        let mut settings = Map::new();
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
        self.control.ask("PUT", &path, &settings.to_string())?;
        print(&format!("{}: {}\n", shown(&self.table), wanted(&settings)))
    }
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
                percent(&share["expected"]),
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
    format!("{}\n", drawn(&header, 4, rows))
}

fn shares(of: &Value) -> Table {
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
            count(&share["pinned"]),
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
    drawn(&header, 1, rows)
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
mod tests {
    use clap::Parser;

    use super::*;
    use crate::control::tests::answering;

    fn share(name: &str, has: u64) -> Value {
        json!({
            "dataplane": "dp\u{1b}1", "table": name, "cache_bytes": has, "wanted_bytes": 3 << 20, "cache_rows": 100, "held_rows": 90,
            "resizing": false, "lookups_per_s": 12345.6, "found": 0.5, "expected": 0.499, "gain_per_mib": 12.0, "loss_per_mib": null,
            "pinned": 7, "moves": [{"s_ago": 61, "from_bytes": 1 << 20, "to_bytes": 3 << 20, "why": "it gains"}],
        })
    }

    fn table() -> Value {
        json!({
            "model": "m", "table": "hot", "sampled_by": "dp1", "rate": 0.0625, "weight": 2000.4, "curve": [{"rows": 5000, "hits": 0.25}],
            "shifted_s_ago": 5, "settings": {"min_bytes": 1 << 20, "pinned_share": 0.1}, "shares": [share("hot", 1 << 20)],
        })
    }

    fn dataplane() -> Value {
        json!({
            "name": "dp1", "model": "m", "generation": "1", "arena_bytes": 1 << 30, "free_bytes": 0, "heard_s_ago": 1, "published": "1.2",
            "follows": "1.1", "state": "it waits", "refused": ["no"], "shares": [share("hot", 1 << 20), share("cold", 3 << 20)],
        })
    }

    #[test]
    fn pages_are_told_for_people() {
        let text = tables(&json!([table()]));
        for part in [
            "hot",
            "1.0 MiB",
            &thousands(12_346),
            "50.0 %",
            "49.9 %",
            "at least 1.0 MiB, 10.0 % of it pinned",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains('\u{1b}'), "{text}");
        let text = dataplanes(&json!([dataplane()]));
        for part in [
            "1.0 MiB -> 3.0 MiB",
            "it waits",
            "refused: no",
            "policy 1.2 published, 1.1 followed",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("3.0 MiB -> "), "{text}");
        assert!(dataplanes(&json!([])).contains("no dataplane has reported"));
        assert!(tables(&json!([])).contains("no dataplane that caches"));
        let text = explained(&json!({"table": table(), "dataplanes": [dataplane()]}));
        for part in [
            "6.2500 % of its rows",
            "25.0 %",
            "in dp1, beside the others: it waits",
            "1.0 MiB -> 3.0 MiB: it gains",
            "cold",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // What is missing is told as a dash.
        assert!(explained(&json!({})).contains("- of model -"));
    }

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: PolicyCommand,
    }

    fn asked(words: &[&str], answer: &'static str) -> String {
        let (control, asked) = answering(answer);
        let words = ["rowmill"].iter().chain(words);
        let mut line = Line::parse_from(words);
        if let PolicyCommand::Set(set) = &mut line.command {
            set.control = control;
        }
        line.command.run().unwrap();
        asked.join().unwrap()
    }

    #[test]
    fn settings_are_sent() {
        let none = "HTTP/1.1 204 No Content\r\n\r\n";
        let text = asked(
            &["set", "m", "a b", "--min", "1MiB", "--pinned", "0.5"],
            none,
        );
        assert!(
            text.starts_with("PUT /v1/tables/m/a%20b/settings "),
            "{text}"
        );
        assert!(
            text.ends_with(r#"{"min_bytes":1048576,"pinned_share":0.5}"#),
            "{text}"
        );
        let pins = ["set", "m", "a", "--pinned", "0.5", "--admission", "pinned"];
        let text = asked(&pins, none);
        assert!(
            text.ends_with(r#"{"admission":"pinned","pinned_share":0.5}"#),
            "{text}"
        );
        let text = asked(&["set", "m", "a", "--clear"], none);
        assert!(
            text.starts_with("DELETE /v1/tables/m/a/settings "),
            "{text}"
        );
        for wrong in [
            &["set", "m", "a"][..],
            &["set", "m", "a", "--clear", "--min", "1MiB"],
            &["set", "m", "a", "--admission", "all"],
        ] {
            assert!(Line::try_parse_from(["rowmill"].iter().chain(wrong)).is_err());
        }
    }
}
