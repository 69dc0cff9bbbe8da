//! The demo's second half: the largest table has a share of the memory for a quarter of its rows, and the rest is read from its file.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use comfy_table::Table;
use comfy_table::presets::UTF8_BORDERS_ONLY;
use rowmill_table::Resident;
use serde_json::Value;

use super::{ROUND, SAMPLES_MAX, Source, Tally, check_round, gib, serve_round};
use crate::driver::{Driver, quantile_us};
use crate::model::Model;
use crate::service::Service;

/// How many times larger than its share the table is.
const TIMES: u64 = 4;
/// Rows of the report: how the cache fills.
const PARTS: u32 = 4;

/// Serves the queries of `source` for so long, checks all answers, and prints what the cache did.
///
/// # Errors
/// As the demo.
pub(super) fn run(
    model: &Model,
    tables: &Resident,
    mut source: Source,
    seconds: u64,
) -> Result<ExitCode> {
    let largest = tables
        .tables()
        .iter()
        .max_by_key(|table| table.bytes().len());
    let largest = largest.context("a model has tables")?;
    let (name, bytes) = (largest.name(), largest.bytes().len() as u64);
    println!(
        "\nnow        table {name} ({:.2} GiB) has a share of the memory of {:.2} GiB, {TIMES} times less; what is not there is read from its file",
        gib(bytes),
        gib(bytes / TIMES)
    );
    let extra = format!(
        "[cache]\npage_cache = \"allow\"\nbudget_ms = 10000\n[[tables]]\nname = \"{name}\"\nplacement = \"cached\"\ncache_bytes = {}",
        bytes / TIMES
    );
    let service = Service::start(&model.directory, &extra)?;
    describe(&service, name)?;
    let (schema, _) = model.schema(SAMPLES_MAX);
    let session = service.connect("demo")?;
    let mut driver = Driver::new(session, schema.clone(), SAMPLES_MAX, ROUND)?;
    let mut shown = new_table();
    let (mut wrong, mut checked) = (0, 0);
    let mut before = figures(&service)?;
    for part in 1..=PARTS {
        let mut tally = Tally::new();
        let limit = Duration::from_secs(seconds) / PARTS;
        let began = Instant::now();
        while let Some(queries) = source.next_round(tally.queries == 0 || began.elapsed() < limit) {
            let answers = serve_round(&mut driver, &queries, &mut tally)?;
            check_round(
                &mut driver,
                &schema,
                &|_| Some(tables),
                &queries,
                answers,
                &mut tally,
            );
            let share = source.replayed().map(|all| all.div_ceil(PARTS as usize));
            if share.is_some_and(|share| tally.queries >= share as u64) {
                break;
            }
        }
        eprintln!("demo: {} queries served and checked", tally.queries);
        if tally.queries == 0 {
            break;
        }
        let after = figures(&service)?;
        shown.add_row(row(part, &before, &after, &tally));
        before = after;
        wrong += tally.wrong_vectors;
        checked += tally.checked_vectors;
    }
    println!("{shown}");
    println!(
        "checked    {checked} vectors against the scalar oracle, bit by bit: {}",
        match wrong {
            0 => "all equal".into(),
            wrong => format!("{wrong} WRONG"),
        }
    );
    drop(driver);
    service.stop()?;
    Ok(if wrong > 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// What was chosen of the table.
fn describe(service: &Service, table: &str) -> Result<()> {
    let status = service.status()?;
    let wanted = [
        format!("table {table}"),
        "cached tables".into(),
        "reads of files".into(),
    ];
    for choice in status["choices"].as_array().into_iter().flatten() {
        let text = |key: &str| choice[key].as_str().unwrap_or_default();
        if wanted.iter().any(|what| what == text("what")) {
            println!(
                "service    {}: {} ({})",
                text("what"),
                text("chosen"),
                text("why")
            );
        }
    }
    Ok(())
}

/// What the service says of the one table that it caches.
fn figures(service: &Service) -> Result<Value> {
    let status = service.status()?;
    let cached = status["cache"].as_array().and_then(|list| list.first());
    cached.cloned().context("the service has a cached table")
}

fn new_table() -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY).set_header([
        "part",
        "lookups",
        "hits",
        "fetched",
        "rows held",
        "fetch mean",
        "query p50",
        "query p99",
    ]);
    table
}

fn row(part: u32, before: &Value, after: &Value, tally: &Tally) -> [String; 8] {
    let of = |page: &Value, key: &str| page[key].as_u64().unwrap_or(0);
    let more = |key: &str| of(after, key) - of(before, key);
    let (lookups, arrived) = (more("lookups"), more("arrived"));
    let us = |q| format!("{:.0} us", quantile_us(&tally.latencies, q));
    [
        part.to_string(),
        lookups.to_string(),
        format!(
            "{:.1} %",
            100.0 * more("hits") as f64 / lookups.max(1) as f64
        ),
        more("fetched").to_string(),
        of(after, "held_rows").to_string(),
        format!("{} us", more("fetch_sum_us") / arrived.max(1)),
        us(0.5),
        us(0.99),
    ]
}
