//! A service that is killed and started again: how long until the rows that were in its cache are there again, which nobody asks for.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::driver::{Driver, histogram};
use crate::model::Model;
use crate::report::{Measurement, Reporter};
use crate::service::Service;
use crate::workload::Query;

/// Rows of the table, of 256 bytes: 2 GiB in its file.
const ROWS: u32 = 8 << 20;
const DIM: usize = 64;
/// Rows that are hot, each in a page of its own: 64 MiB of rows, and for them 1 GiB of pages.
const HOT: u32 = 256 << 10;
/// Bytes of the cache: so many that no hot row has to leave.
const CACHE_BYTES: u64 = 256 << 20;
/// Bags of a request, and ids of each.
const BAGS: u32 = 16;
const BAG_LENGTH: u32 = 32;
const DEPTH: usize = 8;
/// Of the hot rows so many have to be listed, and there again.
const PART: f64 = 0.99;
/// How long each step may take.
const MOST: Duration = Duration::from_secs(300);
/// How often the service is asked how far it is.
const EVERY: Duration = Duration::from_millis(50);

/// Runs the case.
///
/// # Errors
/// Where the service can't be started or refuses, or rows don't come.
pub(crate) fn run(reporter: &mut Reporter) -> Result<()> {
    let case = format!("warm=restart/format=f32/dim={DIM}/hot={HOT}");
    if !reporter.wants(&case) {
        return Ok(());
    }
    eprintln!("cache: {case}");
    let model = Model::of_rows(ROWS.into(), DIM)?;
    let folder = tempfile::tempdir().context("a folder for the list")?;
    let list = folder.path().join("warm");
    let extra = format!(
        "[workers]\ncpus = 1\n[cache]\nbudget_ms = 10000\nwarm_file = \"{}\"\nwarm_every_s = 1\n[[tables]]\nname = \"rows\"\nplacement = \"cached\"\ncache_bytes = {CACHE_BYTES}\n",
        list.display()
    );
    let service = Service::start(&model.directory, &extra)?;
    let (schema, _) = model.schema(BAGS);
    let mut driver = Driver::new(service.connect("hot")?, schema, BAGS, DEPTH)?;
    let took = driver.pipelined(&hot_rows(), &mut histogram())?;
    let enough = (PART * f64::from(HOT)) as u64;
    until(&service, "rows are listed", |page| {
        page["warm"]["rows"].as_u64() >= Some(enough)
    })?;
    drop(driver);
    // It is killed.
    drop(service);
    let began = Instant::now();
    let service = Service::start(&model.directory, &extra)?;
    let ready = began.elapsed();
    until(&service, "rows are loaded", |page| {
        page["warm"]["loading"] == false
    })?;
    let warm = began.elapsed();
    let held = service.status()?["cache"][0]["held_rows"].as_u64();
    let held = held.context("rows that are held")?;
    ensure!(held >= enough, "{held} of {HOT} hot rows are there again");
    let mut tell = |metric, value, unit| {
        reporter.add(Measurement::plain("cache", &case, metric, value, unit));
    };
    tell("asked", took.as_secs_f64(), "s");
    tell("ready", ready.as_secs_f64(), "s");
    tell("warm", warm.as_secs_f64(), "s");
    tell("held", held as f64 / f64::from(HOT), "fraction");
    tell("rate", held as f64 / warm.as_secs_f64(), "rows/s");
    service.stop()
}

/// Requests for all hot rows, each once, all over the file.
fn hot_rows() -> Vec<Query> {
    let rows: Vec<u32> = (0..HOT).map(|row| row * (ROWS / HOT)).collect();
    let a_request = rows.chunks_exact((BAGS * BAG_LENGTH) as usize);
    let query = |ids: &[u32]| Query::new(BAGS, vec![(BAG_LENGTH, ids.to_vec())]);
    a_request.map(query).collect()
}

/// Waits until the status page is as wanted.
fn until(service: &Service, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<()> {
    let began = Instant::now();
    while !is_so(&service.status()?) {
        ensure!(
            began.elapsed() < MOST,
            "it takes more than {MOST:?} until {what}"
        );
        std::thread::sleep(EVERY);
    }
    Ok(())
}
