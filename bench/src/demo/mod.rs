//! `rowmill-bench demo`, what `make run` shows: a model sized to the machine, a service, queries over
//! shared memory, every answer checked bit by bit against the scalar oracle, and a report; then the same with a table that is cached, and
//! then tables that share a memory which a control plane divides; and then a second generation, which is switched to.

mod cached;
mod control;
mod generations;

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use comfy_table::Table;
use comfy_table::presets::UTF8_BORDERS_ONLY;
use hdrhistogram::Histogram;
use rowmill_client::{Schema, Target, Ticket};
use rowmill_pooling::scalar;
use rowmill_table::Resident;

use crate::driver::{Driver, histogram, quantile_us, record};
use crate::machine;
use crate::model::{self, Model, cache_folder};
use crate::service::Service;
use crate::workload::{Query, TRACE_POOLING, Workload, read_trace, trace_queries};

/// Rows are held twice, by the service and by the checker; half of what is free stays free.
const SHARE_OF_MEMORY: u64 = 4;
/// The demo takes at most this share of the free disk.
const SHARE_OF_DISK: u64 = 8;
/// Larger models take longer to make than a first impression should.
const MODEL_BYTES_MAX: u64 = 4 << 30;
/// The least that DLRM-v2 scales to in a useful way.
const MODEL_BYTES_MIN: u64 = 64 << 20;
/// Results of a round stay in the client's region until they are checked: 24 queries of 700 samples of
/// 13,312 bytes are 224 MB.
const ROUND: usize = 24;
/// Requests in flight.
const DEPTH: usize = 4;
/// The largest query.
const SAMPLES_MAX: u32 = 700;

/// What was sent and what came back.
struct Tally {
    queries: u64,
    samples: u64,
    lookups: u64,
    serving: Duration,
    latencies: Histogram<u64>,
    service_times: Histogram<u64>,
    wrong_vectors: u64,
    checked_vectors: u64,
}

impl Tally {
    fn new() -> Tally {
        Tally {
            queries: 0,
            samples: 0,
            lookups: 0,
            serving: Duration::ZERO,
            latencies: histogram(),
            service_times: histogram(),
            wrong_vectors: 0,
            checked_vectors: 0,
        }
    }
}

/// Runs the demo.
///
/// # Errors
/// Where something is missing; a wrong answer is an error too.
pub(crate) fn run(trace: Option<&Path>, seconds: u64, bytes: Option<u64>) -> Result<ExitCode> {
    let (model, mut source) = match trace {
        Some(path) => replay(path)?,
        None => synthetic(bytes)?,
    };
    println!(
        "model      {:.2} GiB of rows in {} tables",
        gib(model.bytes()),
        model.rows().len()
    );
    let service = Service::start(&model.directory, "")?;
    describe_service(&service)?;
    let tables = model.load()?;
    let (schema, _) = model.schema(SAMPLES_MAX);
    let mut driver = Driver::new(service.connect("demo")?, schema.clone(), SAMPLES_MAX, ROUND)?;
    let again = source.again(&model);
    let mut tally = Tally::new();
    let began = Instant::now();
    let time_left =
        |tally: &Tally| tally.queries == 0 || began.elapsed() < Duration::from_secs(seconds);
    while let Some(queries) = source.next_round(time_left(&tally)) {
        let answers = serve_round(&mut driver, &queries, &mut tally)?;
        check_round(
            &mut driver,
            &schema,
            &|_| Some(&tables),
            &queries,
            answers,
            &mut tally,
        );
        eprintln!("demo: {} queries served and checked", tally.queries);
    }
    let failed = report(&tally);
    drop(driver);
    service.stop()?;
    if failed {
        return Ok(ExitCode::FAILURE);
    }
    let outcome = cached::run(&model, &tables, again, seconds)?;
    if outcome != ExitCode::SUCCESS || trace.is_some() {
        return Ok(outcome);
    }
    let outcome = control::run(seconds)?;
    if outcome != ExitCode::SUCCESS {
        return Ok(outcome);
    }
    generations::run(seconds)
}

/// An answer that is to be checked.
struct Answered {
    /// The query, by its place in its round.
    query: usize,
    /// The generation that it names.
    generation: u64,
    target: Target,
}

/// Where queries come from.
enum Source {
    Synthetic(Box<Workload>),
    /// A trace is replayed whole.
    Trace {
        queries: Vec<Query>,
        next: usize,
    },
}

impl Source {
    fn next_round(&mut self, time_left: bool) -> Option<Vec<Query>> {
        let queries: Vec<Query> = match self {
            Source::Trace { queries, next } => {
                let from = *next;
                *next = queries.len().min(from + ROUND);
                queries[from..*next].to_vec()
            }
            Source::Synthetic(workload) if time_left => {
                (0..ROUND).map(|_| workload.server_query()).collect()
            }
            Source::Synthetic(_) => Vec::new(),
        };
        (!queries.is_empty()).then_some(queries)
    }

    /// The same from the beginning.
    fn again(&self, model: &Model) -> Source {
        match self {
            Source::Synthetic(_) => synthetic_source(model),
            Source::Trace { queries, .. } => Source::Trace {
                queries: queries.clone(),
                next: 0,
            },
        }
    }

    /// How many queries there are, where they are replayed.
    fn replayed(&self) -> Option<usize> {
        match self {
            Source::Synthetic(_) => None,
            Source::Trace { queries, .. } => Some(queries.len()),
        }
    }
}

fn synthetic_source(model: &Model) -> Source {
    Source::Synthetic(Box::new(Workload::dlrm_v2(&model.rows(), 1)))
}

fn replay(path: &Path) -> Result<(Model, Source)> {
    let ids = read_trace(path, TRACE_POOLING)?;
    let rows = u64::from(ids.iter().copied().max().unwrap_or(0)) + 1;
    println!(
        "queries    replayed from {} ({} row ids of a table of {rows} rows)",
        path.display(),
        ids.len()
    );
    let queries = trace_queries(&ids, 1);
    Ok((Model::single(rows)?, Source::Trace { queries, next: 0 }))
}

fn synthetic(bytes: Option<u64>) -> Result<(Model, Source)> {
    let bytes = match bytes {
        Some(bytes) => bytes,
        None => sized_to_machine()?,
    };
    let (model, factor) = Model::dlrm_v2(bytes)?;
    println!(
        "shape      DLRM-v2 (26 tables, dim 128, 214 ids a sample), rows scaled by {factor:.5}"
    );
    println!(
        "queries    synthetic: 100 to 700 samples, popularity fitted to 2021 reuse statistics"
    );
    let source = synthetic_source(&model);
    Ok((model, source))
}

/// Bytes of rows that this machine has room for, twice in memory and once on disk; a power of two, so
/// that the next run finds the same model.
fn sized_to_machine() -> Result<u64> {
    let (memory, _) = rowmill_arena::available_bytes();
    let folder = cache_folder();
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    let disk = rustix::fs::statvfs(&folder).context("how much disk is free")?;
    let disk = disk.f_bavail * disk.f_frsize;
    let room = (memory / SHARE_OF_MEMORY)
        .min(disk / SHARE_OF_DISK)
        .min(MODEL_BYTES_MAX);
    ensure!(
        room >= MODEL_BYTES_MIN,
        "the demo needs {} MiB of free memory and {} MiB of free disk in {}; there are {} and {} (set ROWMILL_CACHE to use another disk)",
        (MODEL_BYTES_MIN * SHARE_OF_MEMORY) >> 20,
        (MODEL_BYTES_MIN * SHARE_OF_DISK) >> 20,
        folder.display(),
        memory >> 20,
        disk >> 20
    );
    Ok(1 << room.ilog2())
}

/// Serves a round of queries; each answer's target keeps its result for the check.
fn serve_round(driver: &mut Driver, queries: &[Query], tally: &mut Tally) -> Result<Vec<Answered>> {
    let mut sent: std::collections::HashMap<Ticket, (usize, Instant)> =
        std::collections::HashMap::new();
    let mut answers = Vec::with_capacity(queries.len());
    let mut next = 0;
    let began = Instant::now();
    while answers.len() < queries.len() {
        while next < queries.len() && sent.len() < DEPTH {
            let now = Instant::now();
            let Some(ticket) = driver.try_submit(&queries[next])? else {
                break;
            };
            sent.insert(ticket, (next, now));
            next += 1;
        }
        while let Some(answer) = driver.session.poll()? {
            let (query, at) = sent
                .remove(&answer.ticket)
                .context("an answer to a request of ours")?;
            record(&mut tally.latencies, at.elapsed());
            record(
                &mut tally.service_times,
                Duration::from_nanos(answer.service_ns),
            );
            answer.outcome?;
            tally.queries += 1;
            tally.samples += u64::from(queries[query].bags);
            tally.lookups += queries[query].ids();
            answers.push(Answered {
                query,
                generation: answer.generation,
                target: answer.target,
            });
        }
    }
    tally.serving += began.elapsed();
    Ok(answers)
}

/// Compares every vector of every answer with the oracle of its generation, on all CPUs. Of a generation that there is not all are wrong.
fn check_round<'t>(
    driver: &mut Driver,
    schema: &Schema,
    tables: &(dyn Fn(u64) -> Option<&'t Resident> + Sync),
    queries: &[Query],
    answers: Vec<Answered>,
    tally: &mut Tally,
) {
    let results: Vec<Vec<f32>> = answers
        .iter()
        .map(|answer| {
            let floats = driver.schema.target_bytes(queries[answer.query].bags) / 4;
            let mut result = vec![0.0; floats as usize];
            driver.session.read_f32s(&answer.target, 0, &mut result);
            result
        })
        .collect();
    let (next, wrong) = (AtomicUsize::new(0), AtomicU64::new(0));
    let check = || {
        while let Some(i) =
            Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&i| i < results.len())
        {
            let query = &queries[answers[i].query];
            let Some(tables) = tables(answers[i].generation) else {
                wrong.fetch_add(vectors(schema, query), Ordering::Relaxed);
                continue;
            };
            let mut bytes = vec![0; 4 * results[i].len()];
            scalar::pool(&model::batch(tables, schema, query), &mut bytes);
            let wanted: Vec<f32> = bytes
                .chunks_exact(4)
                .map(|x| f32::from_le_bytes(x.try_into().expect("four bytes")))
                .collect();
            wrong.fetch_add(
                wrong_vectors(schema, tables, query, &wanted, &results[i]),
                Ordering::Relaxed,
            );
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(check);
        }
    });
    tally.wrong_vectors += wrong.into_inner();
    for answer in answers {
        tally.checked_vectors += vectors(schema, &queries[answer.query]);
        driver.idle.push(answer.target);
    }
}

fn vectors(schema: &Schema, query: &Query) -> u64 {
    u64::from(query.bags) * schema.features.len() as u64
}

fn wrong_vectors(
    schema: &Schema,
    tables: &Resident,
    query: &Query,
    wanted: &[f32],
    found: &[f32],
) -> u64 {
    let mut wrong = 0;
    for (feature, table) in schema.features.iter().zip(tables.tables()) {
        for bag in 0..query.bags as usize {
            let at = (feature.offset as usize + bag * feature.stride as usize) / 4;
            let bits = |values: &[f32]| {
                values[at..at + table.dim()]
                    .iter()
                    .map(|x| x.to_bits())
                    .collect::<Vec<_>>()
            };
            wrong += u64::from(bits(wanted) != bits(found));
        }
    }
    wrong
}

fn describe_service(service: &Service) -> Result<()> {
    let status = service.status()?;
    for choice in status["choices"].as_array().into_iter().flatten() {
        let text = |key: &str| choice[key].as_str().unwrap_or_default();
        println!(
            "service    {}: {} ({})",
            text("what"),
            text("chosen"),
            text("why")
        );
    }
    Ok(())
}

/// Prints the report; whether any answer was wrong.
fn report(tally: &Tally) -> bool {
    for (what, text) in machine::describe() {
        println!("{what:<10} {text}");
    }
    let seconds = tally.serving.as_secs_f64();
    let row_bytes = tally.lookups * 512;
    println!(
        "\nserved     {} queries, {} samples, {} lookups ({:.1} GB of rows) in {seconds:.2} s of serving",
        tally.queries,
        tally.samples,
        tally.lookups,
        row_bytes as f64 / 1e9
    );
    println!(
        "rate       {:.0} samples/s, {:.1} M lookups/s, {:.1} GB/s of rows, {DEPTH} queries in flight",
        tally.samples as f64 / seconds,
        tally.lookups as f64 / seconds / 1e6,
        row_bytes as f64 / 1e9 / seconds
    );
    let mut table = Table::new();
    table
        .load_style(UTF8_BORDERS_ONLY)
        .set_header(["query latency", "p50", "p90", "p99", "max"]);
    for (what, times) in [
        ("seen by the client", &tally.latencies),
        ("in the service", &tally.service_times),
    ] {
        let us = |q| format!("{:.0} us", quantile_us(times, q));
        table.add_row([what.into(), us(0.5), us(0.9), us(0.99), us(1.0)]);
    }
    println!("{table}");
    println!(
        "checked    {} vectors against the scalar oracle, bit by bit: {}",
        tally.checked_vectors,
        if tally.wrong_vectors == 0 {
            "all equal".into()
        } else {
            format!("{} WRONG", tally.wrong_vectors)
        }
    );
    tally.wrong_vectors > 0
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}
