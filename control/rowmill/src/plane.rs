//! What a control plane says of itself and of its dataplanes, for a person: `rowmill status control` and `rowmill watch control`.

use core::fmt::Write;

use anyhow::Result;
use clap::ValueEnum;
use serde_json::{Value, json};

use crate::control::Control;
use crate::policy::{drawn, list, percent, rate, size, tables, text};
use crate::units::{duration, thousands};

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Asked {
    /// rowmilld, at its admin address
    Dataplane,
    /// rowmill-control
    Control,
}

/// What is known of a control plane at a time.
pub(crate) struct Pages {
    status: Value,
    dataplanes: Value,
}

impl Pages {
    /// Asks for them.
    pub(crate) fn of(control: &Control) -> Result<Pages> {
        Ok(Pages {
            status: control.get("/v1/status")?,
            dataplanes: control.get("/v1/dataplanes")?,
        })
    }

    /// As they are.
    pub(crate) fn json(&self) -> String {
        let Pages { status, dataplanes } = self;
        format!(
            "{:#}\n",
            json!({"status": status, "dataplanes": dataplanes})
        )
    }

    /// For a person.
    pub(crate) fn text(&self) -> String {
        let status = &self.status;
        let number = |key: &str| status[key].as_u64().map_or("-".into(), thousands);
        let up = status["uptime_s"].as_u64().map_or("-".into(), duration);
        let mut out = format!(
            "{} {}, control {}, start {} with its state, up {up}, process {}\n",
            text(&status["program"]),
            text(&status["version"]),
            text(&status["control"]),
            number("epoch"),
            // A number that names something has no commas.
            status["pid"]
        );
        let told = [
            ("warnings", "warning: "),
            ("others", ""),
            ("deltas", "deltas: "),
        ];
        for (key, what) in told {
            for sentence in list(&status[key]) {
                writeln!(out, "{what}{}", text(sentence)).expect("strings take everything");
            }
        }
        writeln!(
            out,
            "{} dataplanes, {} cached tables\n\n{}",
            number("dataplanes"),
            number("tables"),
            dataplanes(&self.dataplanes)
        )
        .expect("strings take everything");
        out
    }
}

/// What is done, of dataplanes and of tables: rates that the control plane has worked out.
pub(crate) fn rates(control: &Control) -> Result<String> {
    let pages = Pages::of(control)?;
    let page = control.get("/v1/tables")?;
    Ok(format!("{}\n{}", pages.text(), tables(&page)))
}

/// A line for each dataplane, and what could not be done of their policies.
fn dataplanes(page: &Value) -> String {
    if list(page).is_empty() {
        return "no dataplane has reported yet".into();
    }
    let rows = list(page).iter().map(|of| {
        let [lookups, hits] = sums(&of["shares"]);
        let found = (lookups > 0.0).then(|| hits / lookups);
        vec![
            text(&of["name"]),
            text(&of["model"]),
            text(&of["generation"]),
            of["heard_s_ago"].as_u64().map_or("-".into(), duration),
            size(&of["arena_bytes"]),
            size(&of["free_bytes"]),
            list(&of["shares"]).len().to_string(),
            rate(&json!(lookups)),
            percent(&json!(found)),
            text(&of["published"]),
            text(&of["follows"]),
        ]
    });
    let header = [
        "dataplane",
        "model",
        "generation",
        "heard ago",
        "arena",
        "free",
        "tables",
        "lookups/s",
        "hits",
        "published",
        "followed",
    ];
    let mut out = drawn(&header, 3, rows).to_string();
    for of in list(page) {
        for refused in list(&of["refused"]) {
            let line = write!(out, "\n{} refused: {}", text(&of["name"]), text(refused));
            line.expect("strings take everything");
        }
    }
    out
}

/// Lookups a second of shares, and hits of those whose hits are known.
fn sums(shares: &Value) -> [f64; 2] {
    let known = list(shares).iter().filter_map(|share| {
        let lookups = share["lookups_per_s"].as_f64()?;
        Some([lookups, lookups * share["found"].as_f64()?])
    });
    known.fold([0.0; 2], |[a, b], [lookups, hits]| [a + lookups, b + hits])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(dataplanes: Value) -> Pages {
        Pages {
            status: json!({
                "program": "rowmill-control", "version": "0.1.0", "control": "c0ffee", "epoch": 3, "uptime_s": 125, "pid": 12345,
                "dataplanes": 1, "tables": 2, "warnings": ["open to all"], "others": ["dataplane `x` follows control plane y"],
                "deltas": ["stream of redis: at 7"],
            }),
            dataplanes,
        }
    }

    #[test]
    fn a_control_plane_and_its_dataplanes_are_told_for_people() {
        let share =
            |lookups: Value, found: Value| json!({"lookups_per_s": lookups, "found": found});
        let of = json!([{
            "name": "dp1\u{1b}[31m", "model": "m", "generation": "7", "heard_s_ago": 1, "arena_bytes": 3 << 20, "free_bytes": 1 << 20,
            "published": "3.9", "follows": "3.8", "refused": ["table q is gone"],
            "shares": [share(json!(300.0), json!(0.5)), share(json!(100.0), json!(0.9)), share(Value::Null, json!(0.1))],
        }]);
        let text = pages(of).text();
        for part in [
            "rowmill-control 0.1.0, control c0ffee, start 3 with its state",
            "process 12345",
            "warning: open to all",
            "dataplane `x` follows control plane y",
            "deltas: stream of redis: at 7",
            "1 dataplanes, 2 cached tables",
            "3.0 MiB",
            "400",
            "60.0 %",
            "3.9",
            "3.8",
            "refused: table q is gone",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn what_is_not_known_is_a_dash() {
        let text = pages(json!([{"name": "dp1", "shares": []}])).text();
        assert!(text.contains("dp1") && text.contains('-'), "{text}");
        let text = pages(json!([])).text();
        assert!(text.contains("no dataplane has reported yet"), "{text}");
    }
}
