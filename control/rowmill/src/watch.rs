//! `rowmill watch`: what a running `rowmilld` does, a table of rates every second.
//!
//! Each is the difference of two status pages over the time between them. On a terminal the tables stay in
//! place; elsewhere they follow one another. `rowmill watch control` asks a control plane instead, which knows of all its dataplanes.

use core::time::Duration;
use std::io::{IsTerminal, stdout};
use std::thread::sleep;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::{Args, value_parser};
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};
use serde_json::Value;

use crate::control::Control;
use crate::output::{print, shown};
use crate::plane::{self, Asked};
use crate::status::{fetch, parse};
use crate::units::{bytes, duration, thousands};

/// Options of `rowmill watch`.
#[derive(Args)]
pub(crate) struct Watch {
    /// Who is asked
    #[arg(value_enum, default_value_t = Asked::Dataplane, hide_default_value = true)]
    asked: Asked,
    /// The admin address of rowmilld
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7401")]
    admin: String,
    #[command(flatten)]
    control: Control,
    /// Seconds from one table to the next
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    interval: f64,
    /// End after so many tables
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = value_parser!(u64).range(1..))]
    count: Option<u64>,
}

impl Watch {
    pub(crate) fn run(self) -> Result<()> {
        ensure!(
            (0.05..=3600.0).contains(&self.interval),
            "--interval is {}; write 0.05 to 3600 seconds",
            self.interval
        );
        let interval = Duration::from_secs_f64(self.interval);
        let clear = if stdout().is_terminal() {
            "\x1b[H\x1b[2J"
        } else {
            ""
        };
        let count = self.count.unwrap_or(u64::MAX);
        if self.asked == Asked::Control {
            // Rates, which need no page before.
            return (0..count).try_for_each(|told| {
                if told > 0 {
                    sleep(interval);
                }
                print(&format!("{clear}{}\n", plane::rates(&self.control)?))
            });
        }
        let (mut before, mut read) = (self.page()?, Instant::now());
        for _ in 0..count {
            sleep(interval);
            let page = self.page()?;
            let now = Instant::now();
            let seconds = (now - read).as_secs_f64();
            print(&format!("{clear}{}\n", describe(&before, &page, seconds)))?;
            (before, read) = (page, now);
        }
        Ok(())
    }

    fn page(&self) -> Result<Value> {
        parse(&self.admin, &fetch(&self.admin)?)
    }
}

/// Two pages, the second so many seconds after the first, as text.
fn describe(before: &Value, page: &Value, seconds: f64) -> String {
    let text = |key: &str| page[key].as_str().map_or("?".into(), shown);
    let up = page["uptime_s"].as_u64().unwrap_or(0);
    let mut out = format!(
        "{} {}, model {}, generation {}, up {}\n\nworkers, a second\n",
        text("program"),
        text("state"),
        text("model"),
        page["generation"],
        duration(up)
    );
    let rates = Rates { seconds };
    out += &rates.workers(before, page).to_string();
    if page["cache"]
        .as_array()
        .is_some_and(|list| !list.is_empty())
    {
        out += "\n\ncached tables, a second\n";
        out += &rates.cache(before, page).to_string();
        out += "\n\nrows of their files, a second\n";
        out += &rates.files(before, page).to_string();
        out += &rates.tiers(before, page);
    }
    out
}

struct Rates {
    seconds: f64,
}

impl Rates {
    /// How much more there is of something, and how much that is a second. Less than before is a restart, and all of it is new.
    fn delta(before: &Value, now: &Value, key: &str) -> u64 {
        let (then, now) = (
            before[key].as_u64().unwrap_or(0),
            now[key].as_u64().unwrap_or(0),
        );
        now.checked_sub(then).unwrap_or(now)
    }

    fn rate(&self, count: u64) -> String {
        thousands((count as f64 / self.seconds).round() as u64)
    }

    fn workers(&self, before: &Value, page: &Value) -> Table {
        let mut table = new_table(&[
            "worker",
            "requests",
            "samples",
            "rows",
            "bytes",
            "busy",
            "refused",
            "expired",
            "in progress",
            "asleep",
        ]);
        let none = Vec::new();
        for (i, now) in page["workers"]
            .as_array()
            .unwrap_or(&none)
            .iter()
            .enumerate()
        {
            let then = &before["workers"][i];
            let of = |key| self.rate(Rates::delta(then, now, key));
            let moved = Rates::delta(then, now, "bytes") as f64 / self.seconds;
            let asleep = if now["sleeping"] == true { "yes" } else { "no" };
            table.add_row([
                now["index"].to_string(),
                of("completed"),
                of("bags"),
                of("rows"),
                bytes(moved as u64),
                of("busy"),
                of("refused"),
                of("expired"),
                now["in_progress"].to_string(),
                asleep.into(),
            ]);
        }
        to_the_right(table)
    }

    /// A line for each tier.
    fn tiers(&self, before: &Value, page: &Value) -> String {
        let none = Vec::new();
        let tiers = page["tiers"].as_array().unwrap_or(&none).iter();
        let line = |(i, now): (usize, &Value)| {
            let delta = |key| Rates::delta(&before["tiers"][i], now, key);
            let name = name(now, "tier");
            let moved = delta("read_bytes") as f64 / self.seconds;
            format!(
                "\n{name}: {} reads of {}, {} rows joined others' reads, {} had to wait, {} stalls",
                self.rate(delta("reads")),
                bytes(moved as u64),
                self.rate(delta("joined")),
                self.rate(delta("waits")),
                self.rate(delta("stalls")),
            )
        };
        tiers.enumerate().map(line).collect()
    }

    /// Of each table what its own file gives, and what its copy, if it has one.
    fn files(&self, before: &Value, page: &Value) -> Table {
        let mut table = new_table(&[
            "table",
            "tier",
            "asked for",
            "came",
            "p50 us",
            "p99 us",
            "late",
            "failed",
        ]);
        let none = Vec::new();
        let old = before["files"].as_array().unwrap_or(&none);
        for now in page["files"].as_array().unwrap_or(&none) {
            let is_it = |then: &&Value| ["table", "tier"].iter().all(|key| then[key] == now[key]);
            let then = old.iter().find(is_it).unwrap_or(&Value::Null);
            let delta = |key| Rates::delta(then, now, key);
            let failed = ["corrupt", "gone", "failed"].map(delta);
            table.add_row([
                name(now, "table"),
                name(now, "tier"),
                self.rate(delta("fetched")),
                self.rate(delta("arrived")),
                quantile(&then["fetch_us"], &now["fetch_us"], 0.5),
                quantile(&then["fetch_us"], &now["fetch_us"], 0.99),
                self.rate(delta("late")),
                self.rate(failed.iter().sum()),
            ]);
        }
        to_the_right(table)
    }

    fn cache(&self, before: &Value, page: &Value) -> Table {
        let mut table = new_table(&[
            "table",
            "share",
            "rows held",
            "lookups",
            "hits",
            "misses",
            "fetched",
            "admitted",
            "not admitted",
            "evicted",
            "failed",
            "hinted",
            "no room",
        ]);
        let none = Vec::new();
        let old = before["cache"].as_array().unwrap_or(&none);
        for now in page["cache"].as_array().unwrap_or(&none) {
            let then = old.iter().find(|then| then["table"] == now["table"]);
            let then = then.unwrap_or(&Value::Null);
            let delta = |key| Rates::delta(then, now, key);
            let share = match now["placement"].as_str() {
                Some("cached") => share(now),
                _ => "resident".into(),
            };
            let (lookups, hits) = (delta("lookups"), delta("hits"));
            let percent = match lookups {
                0 => "-".into(),
                all => format!("{:.1} %", 100.0 * hits as f64 / all as f64),
            };
            let failed = ["late", "stalled", "starved", "corrupt", "gone", "failed"].map(delta);
            // Hints that were dropped, and bags that had to wait.
            let crowded = ["hints_dropped", "parks_refused"].map(delta);
            table.add_row([
                name(now, "table"),
                share,
                thousands(now["held_rows"].as_u64().unwrap_or(0)),
                self.rate(lookups),
                percent,
                self.rate(delta("misses")),
                self.rate(delta("fetched")),
                self.rate(delta("admitted")),
                self.rate(delta("not_admitted") + delta("crowded")),
                self.rate(delta("evicted")),
                self.rate(failed.iter().sum()),
                self.rate(delta("hinted")),
                self.rate(crowded.iter().sum()),
            ]);
        }
        to_the_right(table)
    }
}

/// What a cached table has of the memory, and what it is on the way to have.
fn share(table: &Value) -> String {
    let of = |key: &str| table[key].as_u64().unwrap_or(0);
    let has = of("share_bytes");
    match table["wanted_bytes"].as_u64() {
        Some(wanted) if wanted != has => format!("{} > {}", bytes(has), bytes(wanted)),
        _ => bytes(has),
    }
}

/// The name that an entry of a list has.
fn name(item: &Value, key: &str) -> String {
    let name = item[key].as_str();
    name.map_or("?".into(), |name| shown(name).into_owned())
}

/// The end, in microseconds, of the bucket below which so many of the times are that came between two histograms of buckets that end
/// at powers of two, or that it is beyond all of them.
fn quantile(before: &Value, now: &Value, quantile: f64) -> String {
    let none = Vec::new();
    let counts: Vec<u64> = (now.as_array().unwrap_or(&none).iter().enumerate())
        .map(|(i, count)| {
            let (then, now) = (before[i].as_u64().unwrap_or(0), count.as_u64().unwrap_or(0));
            now.checked_sub(then).unwrap_or(now)
        })
        .collect();
    let total: u64 = counts.iter().sum();
    let wanted = ((total as f64 * quantile).ceil() as u64).max(1);
    let mut seen = 0;
    let bucket = counts.iter().position(|count| {
        seen += count;
        seen >= wanted
    });
    let end = |bucket: usize| {
        let us = 1u64.checked_shl(bucket as u32).unwrap_or(u64::MAX);
        thousands(us)
    };
    match bucket {
        None => "-".into(),
        // The last one has no end.
        Some(bucket) if bucket > 0 && bucket + 1 == counts.len() => {
            format!("> {}", end(bucket - 1))
        }
        Some(bucket) => end(bucket),
    }
}

fn new_table(heads: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY);
    table.set_header(heads);
    table
}

/// All columns but the first hold numbers.
fn to_the_right(mut table: Table) -> Table {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rates_are_differences_over_time() {
        let page = |requests: u64, hits: u64, fetched: u64| {
            json!({
                "program": "rowmilld", "state": "serving", "model": "demo", "generation": 2, "uptime_s": 61,
                "workers": [{"index": 0, "completed": requests, "bags": 10 * requests, "rows": 0, "bytes": 0,
                    "busy": 0, "refused": 0, "expired": 0, "in_progress": 3, "sleeping": true}],
                "cache": [{"table": "a", "placement": "cached", "share_bytes": 1 << 20, "held_rows": 77,
                    "lookups": 2 * hits, "hits": hits, "misses": hits, "fetched": fetched,
                    "hinted": 13 * hits, "hints_dropped": 3 * hits, "parks_refused": hits}],
                "files": [
                    {"table": "a", "tier": "file", "fetched": fetched, "arrived": 0, "late": fetched / 2, "corrupt": fetched / 4,
                        "gone": fetched / 4, "fetch_us": []},
                    {"table": "a", "tier": "copy", "fetched": 3 * fetched, "arrived": 2 * fetched, "late": 0, "corrupt": 0,
                        "fetch_us": [0, 0, 0, fetched, 0, fetched / 10, 0]}],
                "tiers": [
                    {"tier": "file", "reads": 3 * hits, "read_bytes": 4096 * hits, "joined": 7 * hits},
                    {"tier": "copy", "reads": hits}],
            })
        };
        let text = describe(&page(100, 50, 0), &page(1100, 4050, 20), 2.0);
        for part in [
            "up 1 min 1 s",
            "500",
            "5 000",
            "1.0 MiB",
            "50.0 %",
            "4 000",
            "77",
            "file          10      0        -        -      5        5 ",
            "copy          30     20        8       32      0        0 ",
            "26 000",
            " 8 000",
            "file: 6 000 reads of 7.8 MiB, 14 000 rows joined",
            "\ncopy: 2 000 reads of 0 B, 0 rows joined",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        // After a restart all is new.
        let text = describe(&page(1100, 4050, 20), &page(100, 50, 0), 2.0);
        assert!(text.contains(" 50 ") && text.contains(" 500 "), "{text}");
        // Of a page that is not like that nothing is known.
        let text = describe(
            &json!({}),
            &json!({"cache": [{}], "files": [{}, 7], "workers": [3]}),
            1.0,
        );
        assert!(text.contains('?') && text.contains('-'), "{text}");
    }

    #[test]
    fn a_time_beyond_all_buckets_has_no_end() {
        let now = json!([0, 90, 0, 10]);
        assert_eq!(quantile(&Value::Null, &now, 0.5), "2");
        assert_eq!(quantile(&Value::Null, &now, 0.99), "> 4");
        assert_eq!(quantile(&now, &now, 0.5), "-");
    }

    #[test]
    fn shares_on_their_way_are_shown_with_what_they_become() {
        let mib =
            |has: u64, wanted: u64| json!({"share_bytes": has << 20, "wanted_bytes": wanted << 20});
        assert_eq!(share(&mib(3, 3)), "3.0 MiB");
        assert_eq!(share(&mib(3, 2)), "3.0 MiB > 2.0 MiB");
        assert_eq!(share(&json!({"share_bytes": 1 << 20})), "1.0 MiB");
    }

    #[test]
    fn nothing_is_cached() {
        let text = describe(&json!({}), &json!({"cache": []}), 1.0);
        assert!(!text.contains("cached tables"), "{text}");
    }
}
