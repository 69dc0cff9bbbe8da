//! Tries every fault that has to be survived against the real programs, and prints what became of it.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Context, Result};
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{ContentArrangement, Table};
use regex::Regex;
use rowmill_tests::faults::programs::{LEASH, become_leashed};
use rowmill_tests::faults::{FAR, ONE, Outcome, Report, VANISH, every, far, one, run, vanish};

const USAGE: &str = "usage: faults [--filter REGEX | --without REGEX | --list]
  --filter REGEX   only faults whose names match
  --without REGEX  only those whose names don't
  --list           print their names";

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next().unwrap_or_default();
    let outcome = match first.to_str() {
        Some(LEASH) => become_leashed(arguments).map(|()| true),
        Some(ONE) => one(arguments).map(|()| true),
        Some(VANISH) => vanish(arguments).map(|()| true),
        Some(FAR) => far(arguments).map(|()| true),
        Some(how @ ("" | "--filter" | "--without")) => match (arguments.next(), arguments.next()) {
            (filter, None) => all(filter, how != "--without"),
            _ => Err(anyhow::anyhow!(USAGE)),
        },
        Some("--list") => {
            every().for_each(|fault| println!("{}", fault.name));
            Ok(true)
        }
        _ => Err(anyhow::anyhow!(USAGE)),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("faults: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs those that match, or those that don't; true where none failed.
fn all(filter: Option<OsString>, matching: bool) -> Result<bool> {
    let filter = filter.unwrap_or_default().into_string();
    let filter = Regex::new(&filter.ok().context("a filter in UTF-8")?).context("the filter")?;
    let reports = run(
        |name| filter.is_match(name) == matching,
        |report| {
            let (word, text) = shown(report);
            println!(
                "{word:7} {:24} {:6.2} s  {text}",
                report.name,
                report.took.as_secs_f64()
            );
        },
    )?;
    let mut table = Table::new();
    table
        .load_style(UTF8_BORDERS_ONLY)
        .set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["fault", "expected", "bound", "outcome", "time"]);
    for report in &reports {
        let time = format!("{:.2} s", report.took.as_secs_f64());
        let (word, text) = shown(report);
        let outcome = if word == "SKIPPED" {
            format!("{word}: {text}")
        } else {
            word.to_owned()
        };
        table.add_row([report.name, report.expected, report.bound, &outcome, &time]);
    }
    println!("\n{table}");
    let count = |word: &str| {
        reports
            .iter()
            .filter(|report| shown(report).0 == word)
            .count()
    };
    println!(
        "{} passed, {} failed, {} skipped",
        count("PASS"),
        count("FAIL"),
        count("SKIPPED")
    );
    Ok(count("FAIL") == 0)
}

fn shown(report: &Report) -> (&'static str, &str) {
    match &report.outcome {
        Outcome::Pass(note) => ("PASS", note),
        Outcome::Fail(why) => ("FAIL", why),
        Outcome::Skipped(why) => ("SKIPPED", why),
    }
}
