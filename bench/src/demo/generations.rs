//! The demo's last part: a second generation of a model is loaded beside the one that is served, switched to, and rolled back, under load.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use comfy_table::Table;
use comfy_table::presets::UTF8_BORDERS_ONLY;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rowmill_client::Schema;
use rowmill_table::Resident;

use super::{ROUND, Tally, check_round, serve_round};
use crate::driver::{Driver, quantile_us};
use crate::model::{Model, shown};
use crate::service::Service;
use crate::workload::Query;

/// Tables of so many rows of so many f32: 102 MB a generation.
const TABLES: [&str; 2] = ["items", "users"];
const ROWS: u64 = 200_000;
const DIM: usize = 64;
/// Samples of a query, and ids of a bag.
const BAGS: u32 = 64;
const IDS: u32 = 20;
/// What is seen of each state at least.
const PHASE_LEAST: Duration = Duration::from_secs(2);

/// What is served, and who asks.
struct Scene {
    driver: Driver,
    schema: Schema,
    /// Of generation 1, and of generation 2.
    tables: [std::sync::Arc<Resident>; 2],
    random: StdRng,
    report: Table,
    wrong: u64,
    checked: u64,
}

/// Runs it, and prints a table of what was served meanwhile.
///
/// # Errors
/// As the demo, and where a generation can't be loaded or switched to.
pub(super) fn run(seconds: u64) -> Result<ExitCode> {
    let phase = Duration::from_secs(seconds).max(PHASE_LEAST) / 2;
    let models = [1, 2].map(|number| Model::alike(&TABLES, ROWS, DIM, number));
    let [first, second] = models;
    let (first, second) = (first?, second?);
    let second_at = second.directory.to_str();
    let second_at =
        second_at.with_context(|| format!("a name in UTF-8: {:?}", second.directory))?;
    println!(
        "\nnow        generation 2 of a model of {:.0} MB is loaded beside generation 1, switched to, and rolled back",
        first.bytes() as f64 / 1e6
    );
    let service = Service::start(&first.directory, "allow_changes = true\n")?;
    let (schema, _) = first.schema(BAGS);
    let mut report = Table::new();
    report.load_style(UTF8_BORDERS_ONLY).set_header([
        "meanwhile",
        "time",
        "samples/s",
        "p50",
        "p99",
        "of 1",
        "of 2",
    ]);
    let mut scene = Scene {
        driver: Driver::new(service.connect("demo")?, schema.clone(), BAGS, ROUND)?,
        schema,
        tables: [first.load()?, second.load()?],
        random: StdRng::seed_from_u64(9),
        report,
        wrong: 0,
        checked: 0,
    };
    let steady = |scene: &mut Scene, what: &str| {
        let began = Instant::now();
        scene.serve(what, || began.elapsed() < phase)
    };
    let command = |scene: &mut Scene, what: &str, arguments: &[&str]| -> Result<()> {
        let arguments = [&["generation"], arguments, &["--admin", service.admin()]].concat();
        std::thread::scope(|scope| {
            let told = scope.spawn(|| Service::rowmill(&arguments));
            scene.serve(what, || !told.is_finished())?;
            told.join().expect("a command does not panic").map(|_| ())
        })
        .with_context(|| format!("with {}", shown(&second.directory)))
    };
    steady(&mut scene, "generation 1 is served")?;
    command(&mut scene, "2 is loaded", &["load", second_at])?;
    command(&mut scene, "2 is activated", &["activate", "2"])?;
    steady(&mut scene, "generation 2 is served")?;
    command(&mut scene, "it is rolled back", &["rollback"])?;
    steady(&mut scene, "generation 1 is served")?;
    println!("{}", scene.report);
    println!(
        "checked    {} vectors, each against the scalar oracle of the generation that its answer names: {}",
        scene.checked,
        match scene.wrong {
            0 => "all equal".into(),
            wrong => format!("{wrong} WRONG"),
        }
    );
    let wrong = scene.wrong;
    drop(scene);
    service.stop()?;
    Ok(match wrong {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

impl Scene {
    /// Serves rounds of queries, one at least, until told otherwise, and reports on them.
    fn serve(&mut self, what: &str, goes_on: impl Fn() -> bool) -> Result<()> {
        let began = Instant::now();
        let mut tally = Tally::new();
        let mut answered = [0_u64; 2];
        while tally.queries == 0 || goes_on() {
            let queries: Vec<Query> = (0..ROUND).map(|_| self.query()).collect();
            let answers = serve_round(&mut self.driver, &queries, &mut tally)?;
            for answer in &answers {
                if let Some(count) = place(answer.generation).and_then(|at| answered.get_mut(at)) {
                    *count += 1;
                }
            }
            let tables = &self.tables;
            check_round(
                &mut self.driver,
                &self.schema,
                &|generation| Some(&**tables.get(place(generation)?)?),
                &queries,
                answers,
                &mut tally,
            );
        }
        self.wrong += tally.wrong_vectors;
        self.checked += tally.checked_vectors;
        let us = |q| format!("{:.0} us", quantile_us(&tally.latencies, q));
        self.report.add_row([
            what.into(),
            format!("{:.2} s", began.elapsed().as_secs_f64()),
            format!("{:.0}", tally.samples as f64 / tally.serving.as_secs_f64()),
            us(0.5),
            us(0.99),
            answered[0].to_string(),
            answered[1].to_string(),
        ]);
        Ok(())
    }

    fn query(&mut self) -> Query {
        let random = &mut self.random;
        let features = TABLES.map(|_| {
            let ids = (0..BAGS * IDS).map(|_| random.random_range(0..ROWS as u32));
            (IDS, ids.collect())
        });
        Query::new(BAGS, features.into())
    }
}

/// Of a generation in the demo's lists.
fn place(generation: u64) -> Option<usize> {
    usize::try_from(generation).ok()?.checked_sub(1)
}
