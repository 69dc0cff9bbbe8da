//! Deltas: rows of a generation that is held become others while clients are served.
//!
//! A thread that is no worker checks a delta against the tables, keeps it in the directory of deltas, and then has the rows become others as
//! [`ResidentTable::change`](rowmill_table::ResidentTable::change) and, where the table is cached, [`patch`](rowmill_cache::store::Store::patch) say: readers
//! are the workers, in turns that the cache's epochs tell the end of. What was applied is applied again when the generation is loaded the next time,
//! or one of its tables is resident or cached that was not, before anybody is served from it. Deltas of a generation are counted from 1 and applied in
//! that order, each once.

mod store;
mod target;

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use rowmill_cache::store::Epochs;
use rowmill_engine::Side;
use rowmill_table::{DeltaFile, Resident, ResidentTable};
use serde_json::{Value, json};

use crate::generations::{Change, ChangeError, View};
use crate::listed::Listed;
use crate::metrics::Metrics;
use crate::places::{Stand, leave};

pub use store::Store;
pub(crate) use target::Target;
use target::change;

/// Changes that are told of: the one under way and those before it.
const TOLD: usize = 8;
/// How often it is looked whether workers have begun another turn: they do after some 50 us.
const LOOK: Duration = Duration::from_micros(100);
/// When one that has not is told of: a turn takes far less, and who sleeps is not waited for.
const SLOW: Duration = Duration::from_secs(5);

/// What deltas are applied with.
pub struct Means {
    /// Where they are kept.
    pub store: Arc<Store>,
    /// Which generations are held.
    pub view: Arc<View>,
    /// Listed tables, where there are some.
    pub listed: Option<Arc<Listed>>,
    /// The workers' turns.
    pub epochs: Arc<Epochs>,
    /// CPUs of workers, on which nothing is done here where there are others.
    pub workers_cpus: Vec<usize>,
}

/// See the module's text.
pub struct Deltas {
    store: Arc<Store>,
    view: Arc<View>,
    wanted: SyncSender<Given>,
    changes: Arc<Mutex<VecDeque<Change>>>,
    /// How many could not be applied.
    failures: Arc<AtomicU64>,
}

/// A file with a delta, and what it is called.
struct Given {
    file: PathBuf,
    name: PathBuf,
}

impl Deltas {
    /// Starts the thread.
    ///
    /// # Errors
    /// Where there can be no thread.
    pub fn start(means: Means) -> io::Result<Arc<Deltas>> {
        // One at a time, which `apply` sees to.
        let (sender, wanted) = sync_channel(1);
        let deltas = Deltas {
            store: Arc::clone(&means.store),
            view: Arc::clone(&means.view),
            wanted: sender,
            changes: Arc::default(),
            failures: Arc::default(),
        };
        let (changes, failures) = (Arc::clone(&deltas.changes), Arc::clone(&deltas.failures));
        let work = move || {
            leave(&means.workers_cpus);
            work(&means, &wanted, &changes, &failures);
        };
        thread::Builder::new()
            .name("rowmilld-deltas".into())
            .spawn(work)?;
        Ok(Arc::new(deltas))
    }

    /// Begins to apply the delta in a file, of which is said that it is the delta of this name: its own path, or who sent it. Returns the change's
    /// number.
    ///
    /// # Errors
    /// [`ChangeError::Busy`]; nothing is begun then.
    ///
    /// # Panics
    /// If the thread is gone.
    pub(crate) fn apply(&self, file: PathBuf, name: PathBuf) -> Result<u64, ChangeError> {
        let mut changes = self.changes.lock().expect("a panic ends the process");
        if let Some(last) = changes.back()
            && last.state == Stand::Running
        {
            return Err(ChangeError::Busy(last.wish.clone()));
        }
        let number = changes.back().map_or(0, |last| last.number) + 1;
        if changes.len() == TOLD {
            changes.pop_front();
        }
        changes.push_back(Change {
            number,
            wish: format!("apply {}", name.display()),
            state: Stand::Running,
            detail: String::new(),
        });
        let sent = self.wanted.try_send(Given { file, name });
        sent.expect("the thread waits for one, and lives as long as this");
        Ok(number)
    }

    /// How a change stands, with what is said of it; none of one that is not told of any more.
    pub(crate) fn outcome(&self, number: u64) -> Option<(Stand, String)> {
        let changes = self.changes.lock().expect("a panic ends the process");
        let change = changes.iter().find(|change| change.number == number)?;
        Some((change.state, change.detail.clone()))
    }

    /// What tells the deltas that were applied to tables from any others, as [`delta_chain`](rowmill_table::delta_chain) says; none while one is being
    /// applied.
    pub(crate) fn chain(&self, tables: &Resident, sequence: u64) -> Option<u32> {
        self.store.chain(tables, sequence)
    }

    /// A file for a delta that comes from elsewhere: whoever fetches it writes it anew.
    pub(crate) fn incoming(&self) -> PathBuf {
        self.store.directory().join("incoming.tmp")
    }

    /// What is shown of them.
    pub(crate) fn status(&self) -> Value {
        let (held, _) = self.view.held();
        let generations = held
            .iter()
            .map(|(_, held)| json!({"generation": held.number, "applied": held.resident.delta()}));
        json!({
            "directory": self.store.directory(),
            "generations": generations.collect::<Vec<_>>(),
            "rows": self.store.rows(),
        })
    }

    /// The last changes, the newest behind.
    pub(crate) fn changes(&self) -> Value {
        json!(*self.changes.lock().expect("a panic ends the process"))
    }

    pub(crate) fn metrics(&self, out: &mut Metrics) {
        let (name, help) = (
            "rowmill_delta_sequence",
            "The last delta that was applied to a generation that is held.",
        );
        out.family(name, "gauge", help);
        for (_, held) in self.view.held().0 {
            let labels = format!("generation=\"{}\"", held.number);
            out.sample(name, &labels, held.resident.delta());
        }
        let (name, help) = (
            "rowmill_delta_rows_total",
            "Rows that became others by deltas, at starts too.",
        );
        out.family(name, "counter", help);
        out.sample(name, "", self.store.rows());
        let (name, help) = (
            "rowmill_delta_failures_total",
            "Deltas that could not be applied, each time that one was tried.",
        );
        out.family(name, "counter", help);
        out.sample(name, "", self.failures.load(Ordering::Relaxed));
        let (name, help) = (
            "rowmill_delta_applying",
            "Whether a delta is being applied.",
        );
        out.family(name, "gauge", help);
        let changes = self.changes.lock().expect("a panic ends the process");
        let is_running = changes
            .back()
            .is_some_and(|last| last.state == Stand::Running);
        out.sample(name, "", u64::from(is_running));
    }
}

/// The thread's work, until nobody can want anything any more.
fn work(
    means: &Means,
    wanted: &Receiver<Given>,
    changes: &Mutex<VecDeque<Change>>,
    failures: &AtomicU64,
) {
    for given in wanted {
        let name = given.name.display();
        tracing::info!("to apply the delta {name}");
        let update = |state, detail| {
            let mut changes = changes.lock().expect("a panic ends the process");
            let last = changes.back_mut().expect("the one that was wanted");
            (last.state, last.detail) = (state, detail);
        };
        match means.apply(&given, &|detail| update(Stand::Running, detail)) {
            Ok(detail) => {
                tracing::info!("{detail}");
                update(Stand::Done, detail);
            }
            Err(error) => {
                let detail = format!("{error:#}");
                tracing::warn!("could not apply the delta {name}: {detail}");
                failures.fetch_add(1, Ordering::Relaxed);
                update(Stand::Failed, detail);
            }
        }
    }
}

impl Means {
    /// Applies the delta in a file.
    fn apply(&self, given: &Given, running: &dyn Fn(String)) -> anyhow::Result<String> {
        let began = Instant::now();
        let source = DeltaFile::open_called(&given.file, &given.name)?;
        let head = source.head();
        let (generation, sequence) = (head.generation, head.sequence);
        let _alone = self.store.alone();
        let (held, _) = self.view.held();
        let mut held = held.into_iter();
        let held = held.find(|(_, held)| held.number == generation);
        let (side, held) = held.ok_or_else(|| {
            source.bad(format!(
                "is for generation {generation}, which is not held; load it first"
            ))
        })?;
        let tables = &held.resident;
        let target = |table: &ResidentTable| Some(self.target(side, table));
        let Some(delta) = self.store.take(&source, tables, &target)? else {
            return Ok(format!(
                "delta {sequence} of generation {generation} was applied before"
            ));
        };
        let rows = head.rows();
        let changed = change(
            (&delta, tables, &target),
            &mut || self.pass(),
            &mut |done| {
                running(format!("{done} of {rows} rows"));
            },
        );
        changed.with_context(|| {
            format!(
                "delta {sequence} of generation {generation} is kept, and some of its rows may be served already: send the same one again, or restart"
            )
        })?;
        self.store.applied(tables, &delta);
        tables.set_delta(sequence);
        self.store.count(rows);
        Ok(format!(
            "delta {sequence} of generation {generation} is applied: {rows} rows in {:.3} s",
            began.elapsed().as_secs_f64()
        ))
    }

    /// Where rows of a table of the generation of a side become others.
    fn target(&self, side: Side, table: &ResidentTable) -> Target {
        let listed = self.listed.as_ref();
        let listed = listed.and_then(|listed| listed.target(side, table.name()));
        listed.unwrap_or_else(|| Target::Rows(table.clone()))
    }

    /// Waits until every worker has begun another turn, or rests.
    fn pass(&self) {
        let mut told = Instant::now();
        self.epochs.pass_all(|| {
            if told.elapsed() > SLOW {
                told = Instant::now();
                tracing::warn!("a delta waits for a worker that does not end its turn");
            }
            thread::sleep(LOOK);
        });
    }
}
