//! `rowmill lookup`: a few ids, pooled by a running dataplane, for a person to look at.

mod report;

use core::str::FromStr;
use core::time::Duration;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use rowmill_client::{
    AnyPort, Batch, BoundSchema, Client, Division, Failure, Feature, Options, Output, Pooling,
    RequestOptions, Schema, Session, Status, TableEntry, Wait,
};

use self::report::{Found, Report};
use crate::output::{print, shown};

/// How much longer than the deadline to wait for a dataplane that may be stopped.
const GRACE: Duration = Duration::from_secs(1);

/// What becomes of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Pool {
    /// The sum of the rows, weighted where there are weights
    Sum,
    /// Their sum divided by their number, or by the sum of the weights
    Mean,
    /// The greatest value of each dimension
    Max,
    /// The rows one by one
    None,
}

/// The type of the elements of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Element {
    F32,
    F16,
    Bf16,
}

impl Element {
    fn output(self) -> Output {
        match self {
            Element::F32 => Output::F32,
            Element::F16 => Output::F16,
            Element::Bf16 => Output::Bf16,
        }
    }

    fn name(self) -> &'static str {
        ["f32", "f16", "bf16"][self as usize]
    }
}

/// Options of `rowmill lookup`.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    rowmill lookup shm:/run/rowmill/demo.sock --table cat_0 --ids 1,2,3\n  \
    rowmill lookup shm:/run/rowmill/demo.sock --table cat_0 --ids 1,2 --weights 0.5,2 --full\n  \
    rowmill lookup shm:/run/rowmill/demo.sock --feature clicked=items:4,8 --feature home=places:7 --pool mean")]
pub(crate) struct Lookup {
    /// Where the dataplane listens, as shm:/run/rowmill/NAME.sock or rdma://HOST:PORT
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
    /// Ids, separated by commas: rows of a dense table, keys of a hashed one
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = id,
        requires = "table",
        allow_hyphen_values = true
    )]
    ids: Vec<u64>,
    /// One weight for each id: a weighted sum or mean
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = weight,
        requires = "table",
        allow_hyphen_values = true
    )]
    weights: Option<Vec<f32>>,
    /// A feature of one bag; may be repeated
    #[arg(long, value_name = "NAME=TABLE:IDS")]
    feature: Vec<Wanted>,
    /// What becomes of the rows
    #[arg(long, value_enum, default_value = "sum")]
    pool: Pool,
    /// The type of the elements that the dataplane writes
    #[arg(long, value_enum, default_value = "f32")]
    output: Element,
    /// Give up after so many milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=3_600_000))]
    deadline_ms: u32,
    /// Look up in this generation, which is held beside the newest, and not in the newest
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    generation: Option<u64>,
    /// Only have rows of cached tables fetched that are not in memory, as far as there is room
    #[arg(long, conflicts_with_all = ["full", "json"])]
    prefetch: bool,
    /// Show every element
    #[arg(long)]
    full: bool,
    /// Print one JSON object; numbers that are not finite are the strings "inf", "-inf" and "nan"
    #[arg(long)]
    json: bool,
}

/// One feature to look up: the ids of a single bag.
#[derive(Clone, Debug, PartialEq)]
struct Wanted {
    name: String,
    table: String,
    ids: Vec<u64>,
    weights: Option<Vec<f32>>,
}

/// An id, signed or not: a negative one is the u64 of the same bits.
fn id(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let signed = || text.parse::<i64>().map(|id| id as u64);
    text.parse().or_else(|_| signed()).map_err(|_| {
        format!(
            "`{text}` is not an id: ids are integers of 64 bits{}",
            after(text)
        )
    })
}

/// A weight.
fn weight(text: &str) -> Result<f32, String> {
    let text = text.trim();
    text.parse().map_err(|_| {
        format!(
            "`{text}` is not a weight: weights are numbers{}",
            after(text)
        )
    })
}

/// What a value that looks like an option is instead: values may begin with a minus, so that an option
/// without a value is taken to have the next one as its value.
fn after(text: &str) -> &'static str {
    if text.starts_with("--") {
        ", separated by commas, and none stand in front of this option"
    } else {
        ""
    }
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
        let id = |text: &str| id(text).map_err(|error| format!("{error}; {}", usage()));
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

impl Lookup {
    pub(crate) fn run(self) -> Result<()> {
        let wanted = self.wanted()?;
        let deadline = Duration::from_millis(self.deadline_ms.into());
        let options = Options {
            name: "rowmill lookup".into(),
            credits: 1,
            reply_limit: deadline + GRACE,
            ..Options::default()
        };
        let mut session = Client::connect(&self.endpoint, options)?;
        let schema = bind(&mut session, &wanted, self.pool, self.output.output())?;
        let batch = batch(&wanted)?;
        let request = RequestOptions {
            remaining: Some(deadline),
            generation: self.generation.unwrap_or(0),
            ..RequestOptions::default()
        };
        let sent = Instant::now();
        let ticket = if self.prefetch {
            session.prefetch(&schema, &batch, &request)?
        } else {
            let bytes = schema.target_bytes(1);
            let region = session.region(usize::try_from(bytes)?.next_multiple_of(4096))?;
            let target = session.target(&region, bytes)?;
            session.submit(&schema, &batch, target, &request)?
        };
        // The dataplane keeps the deadline; one that has stopped altogether can't say so.
        let answer = session.wait_for(ticket, Wait::Block, deadline + GRACE)?;
        let answer = answer
            .context("no answer, not even that the deadline passed: is the dataplane stopped?")?;
        let round_trip = sent.elapsed();
        if let (Err(Failure::Refused(refusal)), Some(number)) = (&answer.outcome, self.generation)
            && refusal.status == Status::Retry
        {
            bail!("generation {number} is not held: `rowmill generation list` shows which are");
        }
        if let Err(failure) = answer.outcome {
            bail!(explain(failure, &wanted, session.tables()?));
        }
        if self.prefetch {
            return print("the ids were taken; `rowmill status` tells what is fetched\n");
        }
        let found: Vec<Found<'_>> = wanted
            .iter()
            .enumerate()
            .map(|(feature, wanted)| {
                let vectors = if schema.is_pooled(feature) {
                    1
                } else {
                    wanted.ids.len() as u32
                };
                let dim = schema.dim(feature);
                let vector = |i| {
                    let mut vector = vec![0.0; dim];
                    session.read_vector(&answer.target, &schema, feature, i, &mut vector);
                    vector
                };
                let vectors = (0..vectors).map(vector).collect();
                Found {
                    wanted,
                    dim,
                    vectors,
                }
            })
            .collect();
        let model = session.welcome().model.clone();
        let report = Report {
            model,
            pool: self.pool,
            output: self.output,
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
            ensure!(
                matches!(self.pool, Pool::Sum | Pool::Mean),
                "weights go with `--pool sum` and `--pool mean`: leave them out"
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
        match (pool, &self.weights) {
            (Pool::Sum, None) => Pooling::Sum,
            (Pool::Sum, Some(_)) => Pooling::WeightedSum,
            (Pool::Mean, None) => Pooling::Mean,
            (Pool::Mean, Some(_)) => Pooling::WeightedMean,
            (Pool::Max, _) => Pooling::Max,
            (Pool::None, _) => Pooling::None,
        }
    }
}

/// Binds a schema of one bag: vectors, and blocks of them, one after another.
fn bind(
    session: &mut Session<AnyPort>,
    wanted: &[Wanted],
    pool: Pool,
    output: Output,
) -> Result<BoundSchema> {
    let tables = session.tables()?;
    let mut features = Vec::with_capacity(wanted.len());
    let mut offset = 0;
    for w in wanted {
        let Some(table) = tables.iter().find(|t| t.name == w.table) else {
            bail!(no_table(&w.table, tables))
        };
        let most = u32::try_from(w.ids.len())?.max(1);
        let block = Feature::block(&w.name, &w.table, output, table.dim, most, offset);
        let pooling = w.pooling(pool);
        let feature = match pooling {
            Pooling::None => block,
            _ => Feature {
                pooling,
                max_ids: 0,
                ..block
            },
        };
        offset += u64::from(feature.max_vectors(1)) * feature.stride;
        features.push(feature);
    }
    Ok(session.bind(Schema {
        max_batch: 1,
        features,
    })?)
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
    let rows = table.map_or(String::new(), |t| {
        let hashed = if t.kind == 1 { "hashed, " } else { "" };
        format!(" ({hashed}{} rows)", t.rows)
    });
    let id = w
        .ids
        .get(refusal.index as usize)
        .map_or(String::new(), |&id| match refusal.status {
            Status::IdNegative => format!(", id {}", id as i64),
            _ => format!(", id {id}"),
        });
    format!(
        "feature `{}`, table `{}`{rows}{id}: {}",
        w.name, w.table, refusal.status
    )
}

#[cfg(test)]
mod tests {
    use super::report::found_text;
    use super::*;
    use rowmill_client::Refusal;

    #[test]
    fn features_are_read() {
        let feature = |name: &str, table: &str, ids: &[i64]| Wanted {
            name: name.into(),
            table: table.into(),
            ids: ids.iter().map(|&id| id as u64).collect(),
            weights: None,
        };
        assert_eq!(
            "a=t:18446744073709551615".parse(),
            Ok(feature("a", "t", &[-1]))
        );
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
    fn lists_may_begin_with_a_minus() {
        use clap::Parser;
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            lookup: Lookup,
        }
        let line = |rest: &str| {
            let words = ["lookup", "shm:x", "--table", "t"];
            let words = words.into_iter().chain(rest.split(' '));
            Line::try_parse_from(words).map(|line| line.lookup)
        };
        for text in [
            "--ids -1,5 --weights -3,1 --json",
            "--weights -3,1 --json --ids -1,5",
            "--json --ids=-1,5 --weights=-3,1",
            "--ids -1 --ids 5 --json --weights -3 --weights 1",
        ] {
            let lookup = line(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(lookup.ids, [u64::MAX, 5], "{text}");
            assert_eq!(lookup.weights, Some(vec![-3.0, 1.0]), "{text}");
            assert!(lookup.json, "{text}");
        }
        for (text, part) in [
            ("--ids --json", "`--json` is not an id"),
            ("--ids --full", "none stand in front of this option"),
            ("--ids 1 --weights --json", "`--json` is not a weight"),
            ("--ids -x", "`-x` is not an id: ids are integers of 64 bits"),
            ("--ids 1,-", "`-` is not an id"),
            (
                "--ids 1 --weights 1,x",
                "`x` is not a weight: weights are numbers",
            ),
        ] {
            let error = line(text).map(|_| ()).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
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
            kind: 0,
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
        let mut tables = tables;
        tables[0].kind = 1;
        let wanted = ["b=u:-1".parse().expect("good")];
        let text = |status| {
            explain(
                Failure::Refused(Refusal::at(status, 0, 0)),
                &wanted,
                &tables,
            )
        };
        let unknown = text(Status::UnknownId);
        assert!(
            unknown.starts_with(
                "feature `b`, table `u` (hashed, 10 rows), id 18446744073709551615: UnknownId (40)"
            ),
            "{unknown}"
        );
        assert!(text(Status::IdNegative).contains("id -1: IdNegative"));
    }

    #[test]
    fn names_command_no_terminal() {
        let wanted = Wanted::from_str("f\u{1b}[2J=t:1").expect("good");
        let found = Found {
            wanted: &wanted,
            dim: 4,
            vectors: vec![vec![0.5; 4]],
        };
        let text = found_text(&found, Pool::Sum, false);
        assert!(
            text.starts_with("f\\u{1b}[2J of table t: sum of 1 row, dim 4, norm 1.000000\n"),
            "{text}"
        );
        let text = found_text(&found, Pool::None, false);
        assert!(
            text.starts_with("f\\u{1b}[2J of table t: 1 row, dim 4\n id 1, norm 1.000000\n"),
            "{text}"
        );
        let table = TableEntry {
            name: "u\u{1b}c".into(),
            rows: 10,
            dim: 4,
            format: 0,
            kind: 0,
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
            kind: 0,
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
