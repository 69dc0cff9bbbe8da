//! What it costs requests in progress that the model changes: another generation is loaded beside the one that is served, it is switched to
//! and back, and rows become others by a delta. All of it also where the table is cached, half of it, and requests are for an eighth: all that
//! they look up is there, and is loaded into the cache of a generation that comes.
//!
//! And how much memory the service has at most while it makes a change, beside what it has before and what the other generation, or the rows
//! of the delta, take.
//!
//! A client has a few requests in flight at any time. Rounds of each kind take turns. What is told is the 99th percentile of the time from a
//! request's receipt to its end, which the worker takes, beside what it is where nothing changes.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rowmill_client::Batch;

use crate::driver::{Driver, histogram, median, pin_beside, quantile_us};
use crate::model::{Model, shown};
use crate::report::{Measurement, Reporter};
use crate::service::Service;
use crate::workload::Query;

const DIM: usize = 64;
/// Bytes of a row, and of what a cache has beside each.
const ROW_BYTES: u64 = 4 * DIM as u64;
const SLOT_BYTES: u64 = 8;
/// Of all rows a delta changes one in so many.
const CHANGED_ONE_IN: u32 = 100;
/// Where the table is cached, of all rows requests are for one in so many.
const HOT_ONE_IN: u32 = 8;
/// Bags of a request, and ids of each.
const BAGS: u32 = 16;
const BAG_LENGTH: u32 = 20;
/// Requests in flight, and those that are sent in turn: 655,360 lookups, of more rows than CPUs' caches have.
const DEPTH: usize = 4;
const REQUESTS: usize = 2048;
/// How often each kind has its turn, and for how long at least.
const TURNS: u64 = 9;
const ROUND: Duration = Duration::from_millis(1_500);
/// Switches of a round.
const SWITCHES: u32 = 10;
const MODEL: &str = "dlrm-v2";
/// How often it is looked how much memory the service has.
const LOOK: Duration = Duration::from_millis(1);

/// What happens in a round.
#[derive(Clone, Copy)]
enum Kind {
    Nothing,
    /// A generation is read into memory, and given up again.
    Load,
    /// Two that are held take turns.
    Switch,
    /// Rows become others.
    Delta,
}

impl Kind {
    /// All of them.
    const ALL: [Kind; 4] = [Kind::Nothing, Kind::Load, Kind::Switch, Kind::Delta];

    /// How cases name it; none for the one that the others are beside.
    fn name(self) -> Option<&'static str> {
        match self {
            Kind::Nothing => None,
            Kind::Load => Some("load"),
            Kind::Switch => Some("switch"),
            Kind::Delta => Some("delta"),
        }
    }
}

/// Where the rows are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rows {
    Resident,
    Cached,
}

impl Rows {
    /// Rows of the table, of 256 bytes. All together, or the hot ones with what is beside them, they are more than CPUs' caches have: how many
    /// of the rows these have is not what is asked here, and after a switch they have none of the other generation's.
    fn count(self) -> u32 {
        match self {
            Rows::Resident => 1 << 20,
            Rows::Cached => 2 << 20,
        }
    }

    /// Bytes of memory that a generation's rows take: half of a cached table's.
    fn bytes(self) -> u64 {
        match self {
            Rows::Resident => u64::from(self.count()) * ROW_BYTES,
            Rows::Cached => u64::from(self.count() / 2) * (ROW_BYTES + SLOT_BYTES),
        }
    }

    fn case(self, kind: &str) -> String {
        let rows = match self {
            Rows::Resident => "dist=uniform",
            Rows::Cached => "dist=hot/rows=cached",
        };
        format!("port=shm/format=f32/dim={DIM}/{rows}/change={kind}")
    }
}

/// What is served, and changed.
struct Scene {
    service: Service,
    driver: Driver,
    batches: Vec<Batch>,
    next: usize,
    second: PathBuf,
    /// Of generation 1, each the next of the one before.
    deltas: Vec<PathBuf>,
}

/// Runs the cases.
///
/// # Errors
/// Where the service can't be started, or a change fails.
pub(crate) fn run(reporter: &mut Reporter) -> Result<()> {
    [Rows::Resident, Rows::Cached]
        .into_iter()
        .try_for_each(|rows| run_with(rows, reporter))
}

fn run_with(rows: Rows, reporter: &mut Reporter) -> Result<()> {
    let kinds = Kind::ALL;
    let wanted = |kind: &Kind| (kind.name()).is_some_and(|name| reporter.wants(&rows.case(name)));
    if !kinds.iter().any(wanted) {
        return Ok(());
    }
    let folder = tempfile::tempdir().context("a folder for deltas")?;
    let mut scene = Scene::new(folder.path(), rows)?;
    pin_beside(&scene.service)?;
    // All that is asked for has been, and is there.
    while scene.next < 2 * REQUESTS {
        scene.round(Kind::Nothing, 0)?;
    }
    let before = memory(scene.service.pid())?;
    let mut p99: Vec<Vec<f64>> = vec![Vec::new(); kinds.len()];
    for turn in 0..TURNS {
        for at in 0..kinds.len() {
            // Each kind comes after each other one.
            let at = if turn % 2 == 0 {
                at
            } else {
                kinds.len() - 1 - at
            };
            let times = scene.round(kinds[at], turn)?;
            p99[at].push(quantile_us(&times, 0.99));
        }
        eprintln!("changes: {} of {TURNS} rounds of each kind", turn + 1);
    }
    let nothing = p99.remove(0);
    for (kind, found) in kinds[1..].iter().zip(p99) {
        let case = rows.case(kind.name().expect("one that changes something"));
        // Of neighbours in time, since others use this machine too.
        let ratios = nothing.iter().zip(&found).map(|(nothing, it)| nothing / it);
        let ratio = median(ratios.collect());
        let found = Measurement::plain("changes", &case, "service_p99", median(found), "us");
        reporter.add(found.beside("no change", median(nothing.clone()), ratio));
    }
    let now = memory(scene.service.pid())?;
    for kind in [Kind::Load, Kind::Switch, Kind::Delta] {
        let case = rows.case(kind.name().expect("one that changes something"));
        let (old, most) = scene.most_memory(kind)?;
        let new = match kind {
            Kind::Delta => u64::from(rows.count() / CHANGED_ONE_IN) * ROW_BYTES,
            _ => rows.bytes(),
        };
        let both = (old + new) as f64;
        let found = Measurement::plain("changes", &case, "memory", most as f64, "bytes");
        reporter.add(found.beside("old + new", both, both / most as f64));
    }
    // Of a cached table the rows that deltas have changed are held in memory.
    let case = rows.case("all");
    let found = Measurement::plain("changes", &case, "memory_after", now as f64, "bytes");
    reporter.add(found.beside("before them", before as f64, before as f64 / now as f64));
    drop(scene.driver);
    scene.service.stop()
}

/// Reads a model's files, so that the page cache has them.
fn read_through(model: &Model) -> Result<()> {
    for entry in model.directory.read_dir()? {
        io::copy(&mut File::open(entry?.path())?, &mut io::sink())?;
    }
    Ok(())
}

impl Scene {
    fn new(folder: &Path, rows: Rows) -> Result<Scene> {
        let [first, second] = [1, 2].map(|n| Model::alike(&["rows"], rows.count().into(), DIM, n));
        let (first, second) = (first?, second?);
        // One for each turn, and another one when all have had theirs.
        let deltas = (1..=TURNS + 1).map(|sequence| delta(&first, rows, folder, sequence));
        let deltas = deltas.collect::<Result<_>>()?;
        let kept = folder.join("kept");
        let taking = format!(
            "allow_changes = true\n[deltas]\ndirectory = \"{}\"\n",
            kept.display()
        );
        let (one_in, listed) = match rows {
            Rows::Resident => (1, String::new()),
            Rows::Cached => {
                // Rows come from the page cache: how long a disk takes is not what is asked here.
                [&first, &second].into_iter().try_for_each(read_through)?;
                let share = rows.bytes();
                let listed = format!(
                    "[cache]\npage_cache = \"allow\"\n[[tables]]\nname = \"rows\"\nplacement = \"cached\"\ncache_bytes = {share}\n"
                );
                (HOT_ONE_IN, listed)
            }
        };
        let extra = taking + &listed;
        let service = Service::start(&first.directory, &extra)?;
        let (schema, _) = first.schema(BAGS);
        let driver = Driver::new(service.connect("bench")?, schema, BAGS, DEPTH)?;
        let mut random = StdRng::seed_from_u64(1);
        let batches = (0..REQUESTS).map(|_| {
            let ids = (0..BAGS * BAG_LENGTH)
                .map(|_| random.random_range(0..rows.count() / one_in) * one_in);
            let mut batch = Batch::new(1)?;
            Query::new(BAGS, vec![(BAG_LENGTH, ids.collect())]).fill(&mut batch)?;
            Ok(batch)
        });
        Ok(Scene {
            batches: batches.collect::<Result<_>>()?,
            service,
            driver,
            next: 0,
            second: second.directory,
            deltas,
        })
    }

    /// A round, and what requests took meanwhile.
    fn round(&mut self, kind: Kind, turn: u64) -> Result<Histogram<u64>> {
        let second = path(&self.second)?.to_owned();
        let delta = self.deltas.get(turn as usize).map(|delta| path(delta));
        let delta = delta.transpose()?.unwrap_or_default().to_owned();
        let admin = self.service.admin().to_owned();
        let ask = move |arguments: &[&str]| -> Result<()> {
            Service::rowmill(&[arguments, &["--admin", &admin]].concat()).map(drop)
        };
        let generation = |arguments: &[&str]| ask(&[&["generation"], arguments].concat());
        if let Kind::Switch = kind {
            generation(&["load", &second])?;
        }
        let change = || match kind {
            Kind::Nothing => Ok(()),
            Kind::Load => {
                generation(&["load", &second])?;
                generation(&["unload", "2"])
            }
            Kind::Switch => (0..SWITCHES).try_for_each(|_| {
                generation(&["activate", "2"])?;
                generation(&["rollback"])
            }),
            Kind::Delta => ask(&["delta", "apply", &delta]),
        };
        let times = thread::scope(|scope| {
            let changing = scope.spawn(change);
            let began = Instant::now();
            let times = self.serve(|| began.elapsed() < ROUND || !changing.is_finished());
            changing.join().expect("a command does not panic")?;
            times
        });
        let times = times.with_context(|| format!("with {}", shown(&self.second)))?;
        if let Kind::Switch = kind {
            generation(&["unload", "2"])?;
        }
        Ok(times)
    }

    /// The memory that the service has before a round, and the most that it has in it.
    fn most_memory(&mut self, kind: Kind) -> Result<(u64, u64)> {
        let process = self.service.pid();
        let before = memory(process)?;
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let looking = scope.spawn(|| {
                let mut most = 0;
                while !is_over.load(Ordering::Relaxed) {
                    most = most.max(memory(process)?);
                    thread::sleep(LOOK);
                }
                Ok(most)
            });
            let served = self.round(kind, TURNS);
            is_over.store(true, Ordering::Relaxed);
            let most = looking.join().expect("looking does not panic");
            served.and(most).map(|most| (before, most))
        })
    }

    /// Sends requests until told otherwise.
    fn serve(&mut self, goes_on: impl Fn() -> bool) -> Result<Histogram<u64>> {
        let mut times = histogram();
        let mut is_over = false;
        while !is_over || self.driver.session.pending() > 0 {
            is_over = is_over || !goes_on();
            if !is_over {
                let batch = &self.batches[self.next % REQUESTS];
                self.next += usize::from(self.driver.try_submit_batch(batch)?.is_some());
            }
            while let Some(answer) = self.driver.session.poll()? {
                answer.outcome?;
                times.saturating_record(answer.service_ns);
                self.driver.idle.push(answer.target);
            }
        }
        Ok(times)
    }
}

/// Bytes of memory that a process has for itself: not of files, which the system takes back when it wants.
fn memory(process: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).context("its memory")?;
    let kib = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        kib.and_then(|kib| kib.parse().ok()).unwrap_or(0)
    };
    let own = kib("RssAnon:");
    ensure!(own > 0, "process {process} has no memory: has it ended?");
    Ok(1024 * (own + kib("RssShmem:") + kib("HugetlbPages:")))
}

/// Makes a delta of a model's only table.
fn delta(model: &Model, rows: Rows, folder: &Path, sequence: u64) -> Result<PathBuf> {
    let mut random = StdRng::seed_from_u64(sequence);
    let rows = rows.count() / CHANGED_ONE_IN;
    let first = random.random_range(0..CHANGED_ONE_IN);
    let ids = (0..rows).flat_map(|row| u64::from(row * CHANGED_ONE_IN + first).to_le_bytes());
    let values =
        (0..rows as usize * DIM).flat_map(|_| random.random_range(-1.0_f32..1.0).to_le_bytes());
    let (ids_at, rows_at) = (folder.join("ids.npy"), folder.join("rows.npy"));
    npy(&ids_at, "<u8", &format!("({rows},)"), ids)?;
    npy(&rows_at, "<f4", &format!("({rows}, {DIM})"), values)?;
    let file = folder.join(format!("{sequence}.delta"));
    let table = format!("rows={},{}", path(&ids_at)?, path(&rows_at)?);
    let sequence = sequence.to_string();
    let mut arguments = vec!["delta", "make", "--model", path(&model.directory)?];
    arguments.extend(["--name", MODEL, "--sequence", &sequence, "--table", &table]);
    arguments.push(path(&file)?);
    Service::rowmill(&arguments)?;
    Ok(file)
}

/// Writes an array as NumPy does (format 1.0).
fn npy(file: &Path, kind: &str, shape: &str, bytes: impl Iterator<Item = u8>) -> Result<()> {
    let header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}");
    // With the ten bytes before it a multiple of 64, and a line's end at its end.
    let header = format!("{header:<117}\n");
    let write = || {
        let mut out = BufWriter::new(fs::File::create(file)?);
        out.write_all(b"\x93NUMPY\x01\x00")?;
        out.write_all(&(header.len() as u16).to_le_bytes())?;
        out.write_all(header.as_bytes())?;
        out.write_all(&bytes.collect::<Vec<u8>>())?;
        out.flush()
    };
    write().with_context(|| format!("cannot write {}", file.display()))
}

fn path(path: &Path) -> Result<&str> {
    path.to_str()
        .with_context(|| format!("a name in UTF-8: {path:?}"))
}
