//! `rowmill lookup`: a few ids, pooled by a running dataplane, for a person to look at.

use core::str::FromStr;
use core::time::Duration;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use rowmill_client::{
    Answer, AnyPort, Batch, BoundSchema, Client, Division, Failure, Options, Pooling,
    RequestOptions, Schema, Session, TableEntry, Wait,
};
use serde_json::{Value, json};

use crate::output::{print, shown};

/// Elements of a vector that are shown unless all are asked for.
const SHOWN: usize = 8;

/// How the ids become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Pool {
    /// The sum of the rows
    Sum,
    /// Their sum divided by their number
    Mean,
}

/// Options of `rowmill lookup`.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    rowmill lookup shm:/run/rowmill/demo.sock --table cat_0 --ids 1,2,3\n  \
    rowmill lookup shm:/run/rowmill/demo.sock --table cat_0 --ids 1,2 --weights 0.5,2 --full\n  \
    rowmill lookup shm:/run/rowmill/demo.sock --feature clicked=items:4,8 --feature home=places:7 --pool mean")]
pub(crate) struct Lookup {
    /// Where the dataplane listens, as shm:/run/rowmill/NAME.sock
    endpoint: String,
    /// The table to look up in
    #[arg(
        long,
        value_name = "NAME",
        requires = "ids",
        required_unless_present = "feature",
        conflicts_with = "feature"
    )]
    table: Option<String>,
    /// Row ids, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        requires = "table",
        allow_negative_numbers = true
    )]
    ids: Vec<i64>,
    /// One weight for each id: a weighted sum
    #[arg(
        long,
        value_delimiter = ',',
        requires = "table",
        conflicts_with = "pool",
        allow_negative_numbers = true
    )]
    weights: Option<Vec<f32>>,
    /// A feature of one bag; may be repeated
    #[arg(long, value_name = "NAME=TABLE:IDS")]
    feature: Vec<Wanted>,
    /// How the ids become one vector
    #[arg(long, value_enum, default_value = "sum")]
    pool: Pool,
    /// Give up after so many milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=3_600_000))]
    deadline_ms: u32,
    /// Show every element
    #[arg(long)]
    full: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// One feature to look up: the ids of a single bag.
#[derive(Clone, Debug, PartialEq)]
struct Wanted {
    name: String,
    table: String,
    ids: Vec<i64>,
    weights: Option<Vec<f32>>,
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Wanted, String> {
        let usage = || format!("a feature is NAME=TABLE:ID,ID,... and not `{text}`");
        let (name, rest) = text.split_once('=').ok_or_else(usage)?;
        // Table names may hold colons; ids don't.
        let (table, ids) = rest.rsplit_once(':').ok_or_else(usage)?;
        if name.is_empty() || table.is_empty() {
            return Err(usage());
        }
        let id = |id: &str| {
            id.trim()
                .parse()
                .map_err(|_| format!("`{id}` is not a row id; {}", usage()))
        };
        let ids = if ids.is_empty() {
            Vec::new()
        } else {
            ids.split(',').map(id).collect::<Result<_, _>>()?
        };
        Ok(Wanted {
            name: name.into(),
            table: table.into(),
            ids,
            weights: None,
        })
    }
}

/// A feature's answer.
struct Found<'a> {
    wanted: &'a Wanted,
    vector: Vec<f32>,
}

/// All that is printed.
struct Report<'a> {
    model: String,
    pool: Pool,
    round_trip: Duration,
    answer: Answer,
    found: Vec<Found<'a>>,
}

impl Lookup {
    pub(crate) fn run(self) -> Result<()> {
        let wanted = self.wanted()?;
        let options = Options {
            name: "rowmill lookup".into(),
            credits: 1,
            ..Options::default()
        };
        let mut session = Client::connect(&self.endpoint, options)?;
        let schema = bind(&mut session, &wanted, self.pool)?;
        let batch = batch(&wanted)?;
        let bytes = schema.target_bytes(1);
        let region = session.region(usize::try_from(bytes)?.next_multiple_of(4096))?;
        let target = session.target(&region, bytes)?;
        let deadline = Duration::from_millis(self.deadline_ms.into());
        let request = RequestOptions {
            remaining: Some(deadline),
            ..RequestOptions::default()
        };
        let sent = Instant::now();
        let ticket = session.submit(&schema, &batch, target, &request)?;
        // The dataplane keeps the deadline; one that has stopped altogether can't say so.
        let answer = session.wait_for(ticket, Wait::Block, deadline + Duration::from_secs(1))?;
        let answer = answer
            .context("no answer, not even that the deadline passed: is the dataplane stopped?")?;
        let round_trip = sent.elapsed();
        if let Err(failure) = answer.outcome {
            bail!(explain(failure, &wanted, session.tables()?));
        }
        let found: Vec<Found<'_>> = wanted
            .iter()
            .enumerate()
            .map(|(feature, wanted)| {
                let mut vector = vec![0.0; schema.dim(feature)];
                session.read_vector(&answer.target, &schema, feature, 0, &mut vector);
                Found { wanted, vector }
            })
            .collect();
        let model = session.welcome().model.clone();
        let report = Report {
            model,
            pool: self.pool,
            round_trip,
            answer,
            found,
        };
        print(&if self.json {
            format!("{}\n", report.json())
        } else {
            report.text(self.full)
        })
    }

    fn wanted(&self) -> Result<Vec<Wanted>> {
        let Some(table) = &self.table else {
            return Ok(self.feature.clone());
        };
        if let Some(weights) = &self.weights {
            let (given, ids) = (weights.len(), self.ids.len());
            ensure!(
                given == ids,
                "{given} weights for {ids} ids: give one weight for each id"
            );
        }
        let (ids, weights) = (self.ids.clone(), self.weights.clone());
        Ok(vec![Wanted {
            name: table.clone(),
            table: table.clone(),
            ids,
            weights,
        }])
    }
}

impl Wanted {
    fn pooling(&self, pool: Pool) -> Pooling {
        match (&self.weights, pool) {
            (Some(_), _) => Pooling::WeightedSum,
            (None, Pool::Sum) => Pooling::Sum,
            (None, Pool::Mean) => Pooling::Mean,
        }
    }
}

fn bind(session: &mut Session<AnyPort>, wanted: &[Wanted], pool: Pool) -> Result<BoundSchema> {
    let tables = session.tables()?;
    let mut features = Vec::with_capacity(wanted.len());
    for w in wanted {
        let Some(table) = tables.iter().find(|t| t.name == w.table) else {
            bail!(no_table(&w.table, tables))
        };
        features.push((
            w.name.as_str(),
            w.table.as_str(),
            w.pooling(pool),
            table.dim,
        ));
    }
    Ok(session.bind(Schema::side_by_side(1, features).0)?)
}

fn batch(wanted: &[Wanted]) -> Result<Batch> {
    let mut batch = Batch::new(1)?;
    for w in wanted {
        let length = [u32::try_from(w.ids.len())?];
        match &w.weights {
            Some(weights) => {
                batch.push_weighted(Division::Lengths(&length), &w.ids[..], weights)?
            }
            None => batch.push(Division::Lengths(&length), &w.ids[..])?,
        }
    }
    Ok(batch)
}

/// Names of tables that a message lists at most.
const LISTED: usize = 8;

fn no_table(name: &str, tables: &[TableEntry]) -> String {
    let names: Vec<_> = tables.iter().take(LISTED).map(|t| shown(&t.name)).collect();
    let more = match tables.len().saturating_sub(LISTED) {
        0 => String::new(),
        more => format!(" and {more} more (see `rowmill status`)"),
    };
    format!(
        "the model has no table `{name}`; it has {}{more}",
        names.join(", ")
    )
}

/// The refusal as a sentence that names the feature, the id and the table's size.
fn explain(failure: Failure, wanted: &[Wanted], tables: &[TableEntry]) -> String {
    let Failure::Refused(refusal) = failure else {
        return failure.to_string();
    };
    let Some(w) = wanted.get(refusal.feature as usize) else {
        return refusal.status.to_string();
    };
    let table = tables.iter().find(|t| t.name == w.table);
    let rows = table.map_or(String::new(), |t| format!(" ({} rows)", t.rows));
    let id = w
        .ids
        .get(refusal.index as usize)
        .map_or(String::new(), |id| format!(", id {id}"));
    format!(
        "feature `{}`, table `{}`{rows}{id}: {}",
        w.name, w.table, refusal.status
    )
}

fn norm(vector: &[f32]) -> f64 {
    vector
        .iter()
        .map(|&x| f64::from(x) * f64::from(x))
        .sum::<f64>()
        .sqrt()
}

fn pooling_name(wanted: &Wanted, pool: Pool) -> &'static str {
    match wanted.pooling(pool) {
        Pooling::Sum => "sum",
        Pooling::Mean => "mean",
        Pooling::WeightedSum => "weighted sum",
    }
}

/// A feature's vector, its head or all of it, for a person.
fn found_text(found: &Found<'_>, pool: Pool, full: bool) -> String {
    let Found { wanted, vector } = found;
    let (ids, rows) = (
        wanted.ids.len(),
        if wanted.ids.len() == 1 { "row" } else { "rows" },
    );
    let table = if wanted.name == wanted.table {
        String::new()
    } else {
        format!(" of table {}", shown(&wanted.table))
    };
    let mut out = format!(
        "{}{table}: {} of {ids} {rows}, dim {}, norm {:.6}",
        shown(&wanted.name),
        pooling_name(wanted, pool),
        vector.len(),
        norm(vector)
    );
    let head = if full {
        vector.len()
    } else {
        SHOWN.min(vector.len())
    };
    for row in vector[..head].chunks(SHOWN) {
        let values: Vec<String> = row.iter().map(|x| format!("{x:>12.6}")).collect();
        out += &format!("\n  {}", values.join(" "));
    }
    if head < vector.len() {
        out += &format!("  ... {} more (--full)", vector.len() - head);
    }
    out.push('\n');
    out
}

impl Report<'_> {
    fn text(&self, full: bool) -> String {
        let features = self.found.iter();
        let out: String = features
            .map(|found| found_text(found, self.pool, full))
            .collect();
        let us = self.answer.service_ns as f64 / 1000.0;
        let round_trip_us = self.round_trip.as_secs_f64() * 1e6;
        out + &format!(
            "model {}, generation {}, served in {us:.1} us, {round_trip_us:.1} us there and back\n",
            shown(&self.model),
            self.answer.generation
        )
    }

    fn json(&self) -> Value {
        let feature = |Found { wanted, vector }: &Found<'_>| {
            json!({
                "feature": wanted.name,
                "table": wanted.table,
                "pooling": pooling_name(wanted, self.pool),
                "ids": wanted.ids,
                "weights": wanted.weights,
                "dim": vector.len(),
                "norm": norm(vector),
                "vector": vector,
            })
        };
        json!({
            "model": self.model,
            "generation": self.answer.generation,
            "service_ns": self.answer.service_ns,
            "round_trip_ns": self.round_trip.as_nanos() as u64,
            "features": self.found.iter().map(feature).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rowmill_client::{Refusal, Status};

    #[test]
    fn features_are_read() {
        let feature = |name: &str, table: &str, ids: &[i64]| Wanted {
            name: name.into(),
            table: table.into(),
            ids: ids.into(),
            weights: None,
        };
        assert_eq!("a=t:1,2, 3".parse(), Ok(feature("a", "t", &[1, 2, 3])));
        assert_eq!("a=ns:t:-4".parse(), Ok(feature("a", "ns:t", &[-4])));
        assert_eq!("empty=t:".parse(), Ok(feature("empty", "t", &[])));
        for text in [
            "", "a", "a=t", "=t:1", "a=:1", "a=t:x", "a=t:1,,2", "a=t:1.5",
        ] {
            let error = text.parse::<Wanted>().expect_err(text);
            assert!(error.contains("NAME=TABLE:ID"), "{error}");
        }
    }

    #[test]
    fn refusals_name_the_feature_and_the_id() {
        let wanted = [
            "a=t:1,2".parse().expect("good"),
            "b=u:5,999".parse().expect("good"),
        ];
        let tables = [TableEntry {
            name: "u".into(),
            rows: 10,
            dim: 4,
            format: 0,
        }];
        let text = explain(
            Failure::Refused(Refusal::at(Status::IdOutOfRange, 1, 1)),
            &wanted,
            &tables,
        );
        assert_eq!(
            text,
            "feature `b`, table `u` (10 rows), id 999: IdOutOfRange (37): an id is not in the table; send ids from 0 to rows - 1"
        );
        let text = explain(
            Failure::Refused(Refusal::whole(Status::Busy)),
            &wanted,
            &tables,
        );
        assert!(text.starts_with("Busy (1)"), "{text}");
    }

    #[test]
    fn names_command_no_terminal() {
        let wanted = Wanted::from_str("f\u{1b}[2J=t:1").expect("good");
        let found = Found {
            wanted: &wanted,
            vector: vec![0.5; 4],
        };
        let text = found_text(&found, Pool::Sum, false);
        assert!(text.starts_with("f\\u{1b}[2J of table t: sum"), "{text}");
        let table = TableEntry {
            name: "u\u{1b}c".into(),
            rows: 10,
            dim: 4,
            format: 0,
        };
        assert!(no_table("t", &[table]).ends_with("it has u\\u{1b}c"));
    }

    #[test]
    fn unknown_tables_are_answered_with_those_that_there_are() {
        let entry = |i: u32| TableEntry {
            name: format!("t{i}"),
            rows: 1,
            dim: 4,
            format: 0,
        };
        let tables: Vec<TableEntry> = (0..10).map(entry).collect();
        let text = no_table("x", &tables);
        assert_eq!(
            text,
            "the model has no table `x`; it has t0, t1, t2, t3, t4, t5, t6, t7 and 2 more (see `rowmill status`)"
        );
        assert_eq!(
            no_table("x", &tables[..2]),
            "the model has no table `x`; it has t0, t1"
        );
    }
}
