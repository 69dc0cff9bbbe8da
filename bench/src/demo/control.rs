//! The demo's third part: three tables share a memory that a control plane divides. Popularity moves from one table to another, and the
//! shares follow; the control plane is killed, and serving goes on; it is started again, and is followed again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rowmill_client::Schema;
use rowmill_table::Resident;
use serde_json::Value;

use super::{ROUND, Tally, check_round, serve_round};
use crate::driver::{Driver, quantile_us};
use crate::model::Model;
use crate::service::{Service, program};
use crate::workload::Query;

/// Tables of so many rows of so many f32, and the bytes of each one's share at first, for 1 row in 13.
const TABLES: [&str; 3] = ["items", "users", "ads"];
const ROWS: u64 = 400_000;
const DIM: usize = 16;
const SHARE: u64 = 2 << 20;
/// Samples of a query, and ids of a bag of the table that is asked for most; of the others one.
const BAGS: u32 = 64;
const IDS: u32 = 20;
/// A table that is asked for most is, for at least so long: a share changes once enough was sampled, and then in steps of two seconds.
const PHASE_LEAST: Duration = Duration::from_secs(16);
/// Where a machine is slow, so much longer at most, until its share has grown.
const PHASE_MORE: Duration = Duration::from_secs(60);
/// A line of the report.
const LINE: Duration = Duration::from_secs(2);
/// Serving without a control plane.
const WITHOUT: Duration = Duration::from_secs(4);
/// A control plane that comes again is followed within this: the dataplane dials again after some seconds.
const FOLLOWED: Duration = Duration::from_secs(60);
/// Columns of a bar that stands for all of the memory.
const BAR: u64 = 24;

/// A `rowmill-control`. Dropping it kills it.
struct ControlPlane(Child);

impl ControlPlane {
    fn start(config: &Path, log: &Path) -> Result<ControlPlane> {
        let log = fs::File::create(log).context("the control plane's log")?;
        let child = Command::new(program("rowmill-control")?)
            // The kernel ends it when this thread ends, however that comes about.
            .args(["--leash", &std::process::id().to_string()])
            .arg("--config")
            .arg(config)
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .context("starting rowmill-control")?;
        Ok(ControlPlane(child))
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        // It may have ended.
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// What is served, and who asks.
struct Scene {
    service: Service,
    driver: Driver,
    schema: Schema,
    tables: Arc<Resident>,
    random: StdRng,
    wrong: u64,
    checked: u64,
}

/// Runs it, and prints a line every two seconds.
///
/// # Errors
/// As the demo, and where the control plane is not followed.
pub(super) fn run(seconds: u64) -> Result<ExitCode> {
    let model = Model::alike(&TABLES, ROWS, DIM, 1)?;
    let folder = tempfile::tempdir().context("a folder for the control plane")?;
    let path = |name: &str| -> PathBuf { folder.path().join(name) };
    let (config, socket) = (path("control.toml"), path("control.sock"));
    let text = format!(
        "listen = \"off\"\nsocket = \"{}\"\nstate = \"{}\"\n",
        socket.display(),
        path("control.redb").display()
    );
    fs::write(&config, text).context("the control plane's configuration")?;
    println!(
        "\nnow        tables {}, of {ROWS} rows each, share {:.1} MiB, which a control plane divides (rowmill-control)",
        TABLES.join(", "),
        mib(SHARE * TABLES.len() as u64)
    );
    let control = ControlPlane::start(&config, &path("control.log"))?;
    let address = format!("unix:{}", socket.display());
    let mut extra = format!(
        "[cache]\npage_cache = \"allow\"\nbudget_ms = 10000\n[control]\naddress = \"{address}\"\nname = \"demo\"\n"
    );
    for name in TABLES {
        extra += &format!(
            "[[tables]]\nname = \"{name}\"\nplacement = \"cached\"\ncache_bytes = {SHARE}\n"
        );
    }
    let service = Service::start(&model.directory, &extra)?;
    let (schema, _) = model.schema(BAGS);
    let driver = Driver::new(service.connect("demo")?, schema.clone(), BAGS, ROUND)?;
    let mut scene = Scene {
        service,
        driver,
        schema,
        tables: model.load()?,
        random: StdRng::seed_from_u64(7),
        wrong: 0,
        checked: 0,
    };
    scene.wait_until_followed(1)?;
    println!(
        "{:>6}  {:<24}  {:<27}  {:>6}  {:>9}  {:>8}",
        "time", "shares", "", "hits", "samples/s", "p99"
    );
    let phase = Duration::from_secs(seconds).max(PHASE_LEAST);
    println!("most lookups are of {}", TABLES[0]);
    scene.shift(phase, 0)?;
    println!("and now of {}", TABLES[1]);
    scene.shift(phase, 1)?;
    let command = ["policy", "explain", "dlrm-v2", TABLES[1], "--control"];
    let explained = Service::rowmill(&[&command[..], &[&*address]].concat())?;
    drop(control);
    println!("the control plane is killed, and serving goes on");
    scene.serve(WITHOUT, 1)?;
    let told = scene.service.status()?["control"].take();
    ensure!(
        told["connected"] == false,
        "the dataplane does not know that it is gone: {told}"
    );
    let _control = ControlPlane::start(&config, &path("control.log"))?;
    scene.wait_until_followed(2)?;
    println!("it was started again, and is followed in its second epoch");
    scene.serve(LINE, 1)?;
    println!(
        "\n$ rowmill {}\n{}",
        command[..4].join(" "),
        explained.trim_end()
    );
    println!(
        "checked    {} vectors against the scalar oracle, bit by bit: {}",
        scene.checked,
        match scene.wrong {
            0 => "all equal".into(),
            wrong => format!("{wrong} WRONG"),
        }
    );
    let wrong = scene.wrong;
    drop(scene.driver);
    scene.service.stop()?;
    Ok(match wrong {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

impl Scene {
    /// Waits until a policy of an epoch is followed.
    fn wait_until_followed(&self, epoch: u64) -> Result<()> {
        let began = Instant::now();
        loop {
            let control = self.service.status()?["control"].take();
            let order = control["followed"]["order"].as_str().unwrap_or_default();
            if order.starts_with(&format!("{epoch}.")) {
                return Ok(());
            }
            ensure!(
                began.elapsed() < FOLLOWED,
                "the control plane is not followed after {FOLLOWED:?}: {control}\n{}",
                self.service.log_end()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Serves queries for so long at least, of which table `most` has the most lookups, and until that has a greater share than before.
    fn shift(&mut self, time: Duration, most: usize) -> Result<()> {
        let share = |scene: &Scene| -> Result<u64> {
            let share = scene.cached()?[most]["share_bytes"].as_u64();
            share.context("a table's share")
        };
        let (before, began) = (share(self)?, Instant::now());
        self.serve(time, most)?;
        while share(self)? <= before && began.elapsed() < time + PHASE_MORE {
            self.serve(LINE, most)?;
        }
        let now = share(self)?;
        ensure!(
            now > before,
            "most lookups were of {} for {:?}, and its share is {now} bytes: no more than {before}",
            TABLES[most],
            began.elapsed()
        );
        Ok(())
    }

    /// Serves queries for so long, of which table `most` has the most lookups, and prints how that goes.
    fn serve(&mut self, time: Duration, most: usize) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < time {
            let line = Instant::now();
            let before = self.cached()?;
            let mut tally = Tally::new();
            while line.elapsed() < LINE {
                let queries: Vec<Query> = (0..ROUND).map(|_| self.query(most)).collect();
                let answers = serve_round(&mut self.driver, &queries, &mut tally)?;
                check_round(
                    &mut self.driver,
                    &self.schema,
                    &|_| Some(&self.tables),
                    &queries,
                    answers,
                    &mut tally,
                );
            }
            let after = self.cached()?;
            self.wrong += tally.wrong_vectors;
            self.checked += tally.checked_vectors;
            println!("{}", shown(began.elapsed(), &before, &after, &tally));
        }
        Ok(())
    }

    /// Few rows of a table are looked up often and most seldom: the row of rank `r` with a probability of `1 / r`, about.
    fn query(&mut self, most: usize) -> Query {
        let mut ids = |count: u32| -> Vec<u32> {
            let row = |part: f64| ((ROWS as f64).powf(part) as u64 * 2_654_435_761 % ROWS) as u32;
            (0..count).map(|_| row(self.random.random())).collect()
        };
        let features = (0..TABLES.len()).map(|table| {
            let count = if table == most { IDS } else { 1 };
            (count, ids(BAGS * count))
        });
        let features = features.collect();
        Query::new(BAGS, features)
    }

    /// What the service says of its cached tables, in the order of their names above.
    fn cached(&self) -> Result<Vec<Value>> {
        let status = self.service.status()?;
        let listed = status["cache"].as_array().context("cached tables")?;
        let of = |name: &&str| listed.iter().find(|page| page["table"] == **name).cloned();
        let found: Option<Vec<Value>> = TABLES.iter().map(of).collect();
        found.context("the tables of the demo")
    }
}

/// A line of the report.
fn shown(at: Duration, before: &[Value], after: &[Value], tally: &Tally) -> String {
    let of = |page: &Value, key: &str| page[key].as_u64().unwrap_or(0);
    let all = |pages: &[Value], key: &str| pages.iter().map(|page| of(page, key)).sum::<u64>();
    let more = |key: &str| all(after, key).saturating_sub(all(before, key));
    let hits = 100.0 * more("hits") as f64 / more("lookups").max(1) as f64;
    let memory = SHARE * TABLES.len() as u64;
    let (mut bar, mut texts, mut upto) = (String::new(), Vec::new(), 0);
    for (table, filled) in after.iter().zip(['\u{2588}', '\u{2592}', '\u{2591}']) {
        let bytes = of(table, "share_bytes");
        upto += bytes;
        let columns = (upto * BAR + memory / 2) / memory;
        let missing = (columns as usize).saturating_sub(bar.chars().count());
        bar.extend(std::iter::repeat_n(filled, missing));
        texts.push(format!("{filled} {:.1} MiB", mib(bytes)));
    }
    format!(
        "{:>4} s  {bar:<24}  {:<27}  {hits:>4.1} %  {:>9.0}  {:>5.0} us",
        at.as_secs(),
        texts.join(" "),
        tally.samples as f64 / tally.serving.as_secs_f64(),
        quantile_us(&tally.latencies, 0.99)
    )
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
