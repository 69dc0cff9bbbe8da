//! A dataplane starts again without tables that its control plane's policy names.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::Verdict;
use super::cached::{Asker, COLD, COLD_ROWS, PATIENT, figure_of};
use super::control::{control_plane, says, some};
use super::operator::{following, wishes, wishes_until};
use super::patron::{Innocent, bound_of_files};
use super::site::{Service, Settings, Site, patience, until};
use super::watch::{Scene, beside_an_innocent_of};

/// Tables of [`COLD`]'s rows: one that stays, one that is not listed any more, and one that the model lacks then.
const STAYS: &str = "stays";
const UNLISTED: &str = "unlisted";
const LOST: &str = "lost";
const BEFORE: [&str; 4] = [COLD, STAYS, UNLISTED, LOST];
const AFTER: [&str; 2] = [COLD, STAYS];
/// Bytes that cached tables have together, what each has at its start, and what is wanted for each.
const ARENA: u64 = 4_000_000;
const OWN: u64 = 100_000;
const SHARE: u64 = 400_000;

/// Two tables are gone from it, of four that the policy names with shares and rows to be pinned.
pub(super) fn gone(site: &Site) -> Result<Verdict> {
    if !site.programs.path("rowmill-control").exists() {
        return Ok(Verdict::Skipped("rowmill-control is not built".into()));
    }
    let rows = |tables: &[&'static str]| -> Vec<(&str, u32)> {
        tables.iter().map(|&table| (table, COLD_ROWS)).collect()
    };
    site.model_with(&rows(&BEFORE[..3]))?;
    let larger = site.generation(2, &rows(&BEFORE))?;
    let _control = control_plane(site)?;
    let before = Settings {
        model: larger,
        ..listing(site, &BEFORE)?
    };
    let named = followed_whole(site, &before)?;
    let after = listing(site, &AFTER)?;
    let service = site.start(&after)?;
    // What was published for it before comes at once; a report of it is taken when the one before has been silent for 5 s.
    says(&service, "the policy for what was there", |control| {
        control["followed"]["order"] == named
            && refuses(control, "table unlisted is always resident")
            && refuses(control, "there is no table lost here")
    })?;
    says(&service, "connected", |control| {
        control["connected"] == true
    })?;
    beside_an_innocent_of(site, service, &after, |scene| {
        let service = &*scene.service;
        let asked = ask(scene, &BEFORE[..3])?;
        says(service, "a policy for what is there", |control| {
            let refused = control["refused"].as_array();
            control["followed"]["order"] != named && refused.is_some_and(Vec::is_empty)
        })?;
        are_as_wanted(service, &AFTER, SHARE)?;
        shows(site)?;
        // What is wished for one that is gone harms nobody either, and what is for others comes true.
        for table in BEFORE {
            wish(site, table, 2 * SHARE)?;
        }
        are_as_wanted(service, &AFTER, 2 * SHARE)?;
        let asked = asked + ask(scene, &BEFORE[..3])?;
        says(service, "nothing refused", |control| {
            let refused = control["refused"].as_array();
            refused.is_some_and(Vec::is_empty)
        })?;
        Ok(format!(
            "two of four tables gone, refused and told; the others as wished, {asked} rows right"
        ))
    })
}

/// Settings where these are cached, and the innocent's tables in memory.
fn listing(site: &Site, tables: &[&str]) -> Result<Settings> {
    let own = site.settings()?;
    let table = |name| {
        format!("[[tables]]\nname = \"{name}\"\nplacement = \"cached\"\ncache_bytes = {OWN}\n")
    };
    let tables: String = tables.iter().map(table).collect();
    let cached =
        format!("[cache]\npage_cache = \"allow\"\narena_bytes = {ARENA}\n{PATIENT}{tables}");
    Ok(following(site, Settings { cached, ..own }))
}

/// A dataplane with all tables, which has the shares that are wished for, and rows pinned; it ends by itself. Returns the order of its last policy.
fn followed_whole(site: &Site, settings: &Settings) -> Result<Value> {
    let mut service = site.start(settings)?;
    let [tables] = &site.others()?[..] else {
        anyhow::bail!("the larger model is the only other one");
    };
    let limit = bound_of_files();
    let innocent = Innocent::start(&service.endpoint, tables, false, limit)?;
    for table in BEFORE {
        wish(site, table, SHARE)?;
    }
    are_as_wanted(&service, &BEFORE, SHARE)?;
    // The last two, which go.
    let mut askers = [UNLISTED, LOST].map(|table| Asker::of(table, &service, tables));
    let are_pinned = until(2 * patience(), || {
        let mut asks = askers.iter_mut().flatten();
        asks.all(|asker| asker.is_answered(&HOT).is_ok())
            && [UNLISTED, LOST]
                .iter()
                .all(|table| figure_of(&service, table, "pinned").is_ok_and(|pinned| pinned > 0))
    });
    are_pinned.context("no rows of those that go are pinned")?;
    drop(askers);
    innocent.finish()?;
    let order = service.status()?["control"]["followed"]["order"].take();
    service.process().signal(Signal::TERM)?;
    let status = service.process().end(patience());
    let status = status.context("it does not end")?;
    ensure!(status.success(), "it ended with {status}");
    Ok(order)
}

/// Rows that are looked up again and again.
const HOT: [u32; 64] = {
    let mut rows = [0; 64];
    let mut at = 0;
    while at < 64 {
        rows[at] = 997 * at as u32;
        at += 1;
    }
    rows
};

/// Has the control plane give a table this share, and pin some of its rows.
fn wish(site: &Site, table: &str, bytes: u64) -> Result<()> {
    let share = format!("{bytes}B");
    let words = ["policy", "set", "faults", table, "--min", &share, "--max"];
    let words = [&words[..], &[&share, "--pinned", "0.5"]].concat();
    wishes_until(site, &words).map(drop)
}

fn are_as_wanted(service: &Service, tables: &[&str], bytes: u64) -> Result<()> {
    for table in tables {
        let mut last = String::new();
        let is_so = until(2 * patience(), || {
            let share = figure_of(service, table, "share_bytes");
            last = format!("{share:?}");
            share.is_ok_and(|share| share.abs_diff(bytes) < OWN / 4)
        });
        is_so.with_context(|| format!("{table} has {last} of {bytes}"))?;
    }
    Ok(())
}

fn refuses(control: &Value, part: &str) -> bool {
    let refused = control["refused"].as_array();
    let mut refused = refused.into_iter().flatten().filter_map(Value::as_str);
    refused.any(|why| why.contains(part))
}

/// That rows of these are answered right. Returns how many.
fn ask(scene: &Scene<'_>, tables: &[&'static str]) -> Result<usize> {
    let mut asked = 0;
    for table in tables {
        let mut asker = Asker::of(table, scene.service, scene.tables)?;
        for round in 0..20 {
            let rows = some(round);
            asker.is_answered(&rows).context(*table)?;
            asked += rows.len();
        }
    }
    Ok(asked)
}

/// That the control plane shows tables that are there, and settings also of those that are not.
fn shows(site: &Site) -> Result<()> {
    let (is_shown, said) = wishes(site, &["policy", "show", "--json"])?;
    ensure!(is_shown, "{said}");
    let page: Value = serde_json::from_str(&said).context("a page")?;
    let names = |of: &Value| -> BTreeSet<String> {
        let of = of.as_array().into_iter().flatten();
        of.filter_map(|one| Some(one["table"].as_str()?.to_owned()))
            .collect()
    };
    let (shares, settings) = (
        names(&page["dataplanes"][0]["shares"]),
        names(&page["settings"]),
    );
    ensure!(
        shares == AFTER.map(String::from).into(),
        "shares of {shares:?}"
    );
    ensure!(
        settings == BEFORE.map(String::from).into(),
        "settings of {settings:?}"
    );
    Ok(())
}
