//! Several tables that share an arena: hits by how it is divided among them.
//!
//! Each division is judged by the dataplane's cache, with the share that each table has, on the second half of the tables' lookups. That by
//! the control plane is what its planner has told a dataplane that looked the first half up; the best static one is searched with the hits of
//! the second half known.

use std::path::Path;

use anyhow::{Context, Result};
use rowmill_admission::{Curve, Point};

use super::adaptive::Adaptive;
use super::generators::{GENERATORS, ROWS};
use super::planned::planned;
use super::reference::Cache;
use super::trace::Trace;
use super::{PUBLIC_TRACE, Size, case};
use crate::report::{Measurement, Reporter};

/// Sizes of the arena: tight ones: all rows that are looked up take some 150 MB.
const ARENAS: [u64; 3] = [4 << 20, 8 << 20, 16 << 20];
/// Bytes of a slot beside its row: its tag and its meta word.
const SLOT_BYTES: u64 = 6;
/// The fewest rows of a share: a cache has two sets at least, and one row on its way.
pub(super) const ROWS_LEAST: u64 = 33;
/// The search tries sizes this far apart, and divides the arena in so many parts.
const STEP: f64 = 1.3;
const PARTS: usize = 512;

/// The tables: a trace, bytes of a row, and how many of its lookups there are beside the others'. As in models that are served, few tables
/// have most of the traffic, and those whose rows take most aren't these. (Synthetic but for the first.)
const TABLES: [(&str, u64, usize); 8] = [
    ("public", 256, 429_951),
    ("histogram", 256, 500_000),
    ("zipf-1.0", 72, 500_000),
    ("zipf-0.8", 512, 100_000),
    ("zipf-0.6", 512, 60_000),
    ("weak-recency", 512, 80_000),
    ("shift", 512, 50_000),
    ("zipf-1.2", 512, 60_000),
];

/// A table and its lookups.
pub(super) struct Table {
    pub(super) name: String,
    /// Bytes of the arena that a row takes.
    pub(super) row_bytes: u64,
    /// Rows that it has, and of which some are looked up.
    pub(super) rows: u64,
    pub(super) lookups: Vec<u32>,
}

/// Runs the cases of a mixture.
///
/// # Errors
/// Where a trace can't be read.
pub(super) fn run(reporter: &mut Reporter) -> Result<()> {
    let mixture = match Path::new(PUBLIC_TRACE).exists() {
        true => "mixture",
        false => "mixture-without-public",
    };
    let name = |arena, policy: &str| case(mixture, Size::Bytes(arena), policy, "single");
    if !ARENAS
        .iter()
        .any(|&arena| reporter.wants(&name(arena, "control")))
    {
        return Ok(());
    }
    let tables = tables()?;
    eprintln!(
        "cache: hits of {} tables by size, for the search",
        tables.len()
    );
    let known = tables.iter().map(|table| searched(table, ARENAS[2]));
    let known: Vec<Curve> = known.collect::<Result<_>>()?;
    for arena in ARENAS {
        if !reporter.wants(&name(arena, "control")) {
            continue;
        }
        let divisions = [
            ("equal", equal(arena, &tables)),
            ("by-size", by_size(arena, &tables)),
            ("best-static", best(arena, &tables, &known)),
            ("control", planned(arena, &tables, &equal(arena, &tables))?),
        ];
        let mut rates = Vec::new();
        for (policy, shares) in &divisions {
            eprintln!("cache: {arena} bytes, {policy}: {}", told(&tables, shares));
            let rate = hit_rate(&tables, shares)?;
            let case = name(arena, policy);
            reporter.add(Measurement::plain(
                "cache", &case, "hit_rate", rate, "fraction",
            ));
            rates.push(rate);
        }
        let control = rates[3];
        for (at, metric) in ["margin_equal", "margin_size", "margin_best"]
            .iter()
            .enumerate()
        {
            let points = 100.0 * (control - rates[at]);
            let mut found =
                Measurement::plain("cache", &name(arena, "control"), metric, points, "points");
            found.against = Some(divisions[at].0.into());
            reporter.add(found);
        }
    }
    Ok(())
}

fn tables() -> Result<Vec<Table>> {
    let table = |&(name, row_bytes, lookups): &(&str, u64, usize)| {
        let public = Path::new(PUBLIC_TRACE);
        let mut trace = if name == "public" && public.exists() {
            Trace::read(public)?
        } else {
            // In its place one that has a popularity seen elsewhere, which the case tells.
            let name = if name == "public" { "histogram" } else { name };
            let generator = GENERATORS.iter().find(|generator| generator.name == name);
            Trace::generate(generator.context("a known generator")?)
        };
        trace.accesses.truncate(lookups);
        Ok(Table {
            name: name.into(),
            row_bytes: row_bytes + SLOT_BYTES,
            rows: ROWS as u64,
            lookups: trace.accesses,
        })
    };
    TABLES.iter().map(table).collect()
}

/// The lookups of a table's second half that hit a cache of so many rows, which saw the first half, too.
fn hits(table: &Table, rows: u64) -> Result<usize> {
    if rows < ROWS_LEAST {
        return Ok(0);
    }
    let mut cache = Adaptive::of_single(rows as usize)?;
    let (first, second) = table.lookups.split_at(table.lookups.len() / 2);
    first.iter().for_each(|&row| _ = cache.access(row));
    Ok(second.iter().filter(|&&row| cache.access(row)).count())
}

/// The part of all lookups of the second halves that hits with these shares, in rows.
fn hit_rate(tables: &[Table], shares: &[u64]) -> Result<f64> {
    let (mut all, mut hit) = (0, 0);
    for (table, &rows) in tables.iter().zip(shares) {
        all += table.lookups.len() - table.lookups.len() / 2;
        hit += hits(table, rows)?;
    }
    Ok(hit as f64 / all as f64)
}

/// The hits of a table's second half by size, found with the cache itself.
fn searched(table: &Table, arena: u64) -> Result<Curve> {
    let most = table.rows.min(arena / table.row_bytes);
    let sizes = std::iter::successors(Some(64.0), |rows| Some(rows * STEP));
    let sizes = sizes
        .map(|rows| rows as u64)
        .take_while(|&rows| rows < most);
    let second = (table.lookups.len() - table.lookups.len() / 2) as f64;
    let point = |rows| {
        let hits = hits(table, rows)? as f64 / second;
        Ok(Point { rows, hits })
    };
    let points: Result<Vec<Point>> = sizes.chain([most]).map(point).collect();
    Ok(Curve::new(points?))
}

/// As many bytes for each.
fn equal(arena: u64, tables: &[Table]) -> Vec<u64> {
    let bytes = arena / tables.len() as u64;
    tables.iter().map(|table| bytes / table.row_bytes).collect()
}

/// In proportion to the bytes that tables have.
fn by_size(arena: u64, tables: &[Table]) -> Vec<u64> {
    let all: u64 = tables
        .iter()
        .map(|table| table.rows * table.row_bytes)
        .sum();
    let share =
        |table: &Table| (u128::from(arena) * u128::from(table.rows) / u128::from(all)) as u64;
    tables.iter().map(share).collect()
}

/// The best of all divisions in [`PARTS`] parts, by hits that are known: a dynamic programme over tables.
fn best(arena: u64, tables: &[Table], known: &[Curve]) -> Vec<u64> {
    let rows = |table: &Table, parts: usize| arena * parts as u64 / PARTS as u64 / table.row_bytes;
    // The most hits of the tables so far with so many parts, and the parts that the last one has then.
    let mut most = vec![0.0; PARTS + 1];
    let mut chosen: Vec<Vec<usize>> = Vec::new();
    for (table, curve) in tables.iter().zip(known) {
        let worth: Vec<f64> = (0..=PARTS)
            .map(|parts| curve.at(rows(table, parts)) * table.lookups.len() as f64)
            .collect();
        let with = |parts: usize| {
            let split = (0..=parts).map(|own| (own, most[parts - own] + worth[own]));
            split
                .max_by(|a, b| a.1.total_cmp(&b.1))
                .expect("at least none")
        };
        let (parts, hits): (Vec<usize>, Vec<f64>) = (0..=PARTS).map(with).unzip();
        chosen.push(parts);
        most = hits;
    }
    let mut left = PARTS;
    let mut shares: Vec<u64> = tables
        .iter()
        .zip(&chosen)
        .rev()
        .map(|(table, chosen)| {
            let own = chosen[left];
            left -= own;
            rows(table, own)
        })
        .collect();
    shares.reverse();
    shares
}

fn told(tables: &[Table], shares: &[u64]) -> String {
    let told = tables
        .iter()
        .zip(shares)
        .map(|(table, rows)| format!("{} {rows}", table.name));
    told.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(row_bytes: u64, lookups: usize) -> Table {
        Table {
            name: String::new(),
            row_bytes,
            rows: 1000,
            lookups: vec![0; lookups],
        }
    }

    #[test]
    fn shares_fill_the_arena_and_the_best_one_is_found() {
        let tables = [table(10, 100), table(30, 300), table(10, 100)];
        assert_eq!(equal(30_000, &tables), [1000, 333, 1000]);
        assert_eq!(by_size(25_000, &tables), [500, 500, 500]);
        let curve = |points: &[(u64, f64)]| {
            Curve::new(points.iter().map(|&(rows, hits)| Point { rows, hits }))
        };
        // A cliff, which no greedy division of parts would climb; a slope that is worth three times as much; nothing.
        let known = [
            curve(&[(400, 0.0), (500, 1.0)]),
            curve(&[(1000, 0.5)]),
            curve(&[]),
        ];
        let parts = |bytes: u64| bytes / PARTS as u64;
        let shares = best(parts(PARTS as u64 * 10_240), &tables, &known);
        let used: u64 = shares
            .iter()
            .zip(&tables)
            .map(|(rows, table)| rows * table.row_bytes)
            .sum();
        assert!(used <= 10_240);
        assert!((500..=502).contains(&shares[0]), "{shares:?}");
        assert!((170..=174).contains(&shares[1]), "{shares:?}");
    }
}
