//! Where the rows of listed tables are, and how large the shares of cached ones, changed while they are served.
//!
//! A thread that is no worker makes what each worker is to have of the table: its part of an empty store, or the rows, which it
//! reads from the table's file. It gives each worker its part, which takes it between two of its turns and gives back what it had, and
//! frees that when all have. So no request waits for a change, and a worker neither makes memory nor frees any. While some
//! workers know of the change and others don't, each finds the rows where it knows them to be, and they are the same.
//!
//! A cached table's share becomes larger or smaller where it is: the thread makes memory, the workers move their rows between their turns,
//! and what is not needed any more is given back then.
//!
//! One change is made at a time. One that fails leaves everything as it was.

mod make;

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use rowmill_cache::store::Shape;
use rowmill_table::{Progress, Stage};
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use serde::Serialize;
use serde_json::{Value, json};

use crate::config::Placement;
use crate::listed::Listed;
use crate::plan::{Choice, bytes_text};
use crate::progress;

/// Changes that are told of: the one under way and those before it.
const TOLD: usize = 8;
/// A change that comes no further for so long hangs: the slowest disks give some MB in that time.
const HANGS: Duration = Duration::from_secs(5);
/// How often it is looked how far workers are.
const LOOK: Duration = Duration::from_millis(1);

/// What changes are made with.
pub struct Means {
    /// The tables.
    pub listed: Arc<Listed>,
    /// CPUs of workers, on which no rows are read where there are others.
    pub workers_cpus: Vec<usize>,
}

/// Why a change is not begun.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// The generation has no such table.
    #[error("there is no table {0}")]
    UnknownTable(String),
    /// It is always resident.
    #[error(
        "table {0} is always resident: list it in [[tables]] of the configuration, with its share of the memory, and restart"
    )]
    NotListed(String),
    /// It can't have such a share.
    #[error("table {table}: {why}")]
    Share {
        /// The table.
        table: String,
        /// What can't be, and what can.
        why: String,
    },
    /// It would be at two places.
    #[error(
        "table {0} is to be {1}, and two generations are held, in which a table is at the same place: unload one first (`rowmill generation unload`)"
    )]
    Generations(String, Placement),
    /// Another one is not through yet.
    #[error("table {0} is on its way; one moves at a time, so try again when it is there")]
    Busy(String),
    /// Another one is not through, and comes no further.
    #[error(
        "table {table} is on its way and has come no further for {seconds} s, as where a disk does not answer; one moves at a time, so look at its disk first"
    )]
    Hangs {
        /// The table that is on its way.
        table: String,
        /// How long it has come no further.
        seconds: u64,
    },
}

/// How a change stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stand {
    /// It is under way.
    Running,
    /// All workers know of it.
    Done,
    /// Everything is as it was before.
    Failed,
}

/// A change that was begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Counted from 1.
    pub number: u64,
    /// The table's name.
    pub table: String,
    /// Where its rows are to be.
    pub to: Placement,
    /// The share that it is to have when it is cached, in bytes.
    pub share_bytes: u64,
    /// How it stands.
    pub state: Stand,
    /// How far it is, as long as it is under way, if that is known; what came of it, or why nothing did.
    pub detail: String,
}

/// What is wanted of the thread.
struct Wanted {
    /// The table's place in the view.
    at: usize,
    to: Placement,
    shape: Shape,
}

/// Who is told how far a change is.
struct Reports<'r> {
    progress: Progress<'r>,
    /// That it is not stuck.
    is_going_on: &'r dyn Fn(),
}

/// See the module's text.
pub struct Places {
    means: Arc<Means>,
    wanted: SyncSender<Wanted>,
    changes: Arc<Mutex<VecDeque<Change>>>,
    /// When the one under way last came further.
    further: Arc<Mutex<Instant>>,
}

impl Places {
    /// Starts the thread. `tell` is told of each change that was made.
    ///
    /// # Errors
    /// Where there can be no thread, or a table's file can't be looked at.
    pub fn start(means: Means, tell: impl Fn(Choice) + Send + 'static) -> io::Result<Arc<Places>> {
        let means = Arc::new(means);
        // One at a time, which `change` sees to.
        let (sender, wanted) = sync_channel(1);
        let changes = Arc::default();
        let further = Arc::new(Mutex::new(Instant::now()));
        let work = {
            let (means, changes) = (Arc::clone(&means), Arc::clone(&changes));
            let further = Arc::clone(&further);
            move || {
                leave(&means.workers_cpus);
                work(&means, &wanted, (&changes, &further), &tell);
            }
        };
        thread::Builder::new()
            .name("rowmilld-places".into())
            .spawn(work)?;
        Ok(Arc::new(Places {
            means,
            wanted: sender,
            changes,
            further,
        }))
    }

    /// Begins to move a table, or to give it another share of so many bytes, or both. Returns the change's number, or none where there is
    /// nothing to change.
    ///
    /// # Errors
    /// [`PlaceError`]; nothing is begun then.
    ///
    /// # Panics
    /// If the thread is gone.
    pub fn change(
        &self,
        table: &str,
        to: Placement,
        share_bytes: Option<u64>,
    ) -> Result<Option<u64>, PlaceError> {
        let listed = &self.means.listed;
        let newest = listed.newest();
        if newest.generation.table(table).is_err() {
            return Err(PlaceError::UnknownTable(table.into()));
        }
        let at = listed.views().iter().position(|view| view.name == table);
        let at = at.ok_or_else(|| PlaceError::NotListed(table.into()))?;
        let view = &listed.views()[at];
        let mut changes = self.changes.lock().expect("a panic ends the process");
        if let Some(last) = changes.back()
            && last.state == Stand::Running
        {
            let (table, stood) = (last.table.clone(), self.further().elapsed());
            return Err(match stood < HANGS {
                true => PlaceError::Busy(table),
                false => PlaceError::Hangs {
                    table,
                    seconds: stood.as_secs(),
                },
            });
        }
        let (before, share) = (view.placement(), view.share());
        let no_share = |why| PlaceError::Share {
            table: table.into(),
            why,
        };
        let shape = share_bytes.map_or(Ok(share.shape), |bytes| share.of(bytes));
        let shape = shape.map_err(no_share)?;
        if (before, share.shape) == (to, shape) {
            return Ok(None);
        }
        if before != to && listed.is_another_held() {
            return Err(PlaceError::Generations(table.into(), to));
        }
        let grows = before == Placement::Resident || shape.slots() > share.shape.slots();
        if to == Placement::Cached && grows {
            let cache = &listed.means.cache;
            cache.has_room(view, shape).map_err(no_share)?;
        }
        let number = changes.back().map_or(0, |last| last.number) + 1;
        if changes.len() == TOLD {
            changes.pop_front();
        }
        changes.push_back(Change {
            number,
            table: table.into(),
            to,
            share_bytes: shape.bytes() as u64,
            state: Stand::Running,
            detail: String::new(),
        });
        *self.further() = Instant::now();
        let wanted = Wanted { at, to, shape };
        let sent = self.wanted.try_send(wanted);
        sent.expect("the thread waits for one, and lives as long as this");
        Ok(Some(number))
    }

    fn further(&self) -> MutexGuard<'_, Instant> {
        self.further.lock().expect("a panic ends the process")
    }

    /// The last changes, the newest behind.
    pub fn changes(&self) -> Vec<Change> {
        let changes = self.changes.lock().expect("a panic ends the process");
        changes.iter().cloned().collect()
    }

    pub(crate) fn status(&self) -> Value {
        json!(self.changes())
    }
}

/// Keeps the calling thread, and those that it starts, off these CPUs if it has others.
pub(crate) fn leave(cpus: &[usize]) {
    let Ok(mut own) = sched_getaffinity(None) else {
        return;
    };
    cpus.iter().for_each(|&cpu| own.unset(cpu));
    if own.count() > 0 {
        // Where that can't be, rows are read beside the workers.
        let _left = sched_setaffinity(None, &own);
    }
}

/// The thread's work, until nobody can want anything any more.
fn work(
    means: &Means,
    wanted: &Receiver<Wanted>,
    (changes, further): (&Mutex<VecDeque<Change>>, &Mutex<Instant>),
    tell: &dyn Fn(Choice),
) {
    for Wanted { at, to, shape } in wanted {
        let view = &means.listed.views()[at];
        match view.placement() {
            before if before == to => tracing::debug!("table {}: {shape:?}", view.name),
            _ => tracing::info!("table {}: to become {to}", view.name),
        }
        let logged = progress::logged();
        let is_going_on = || *further.lock().expect("a panic ends the process") = Instant::now();
        let progress = |stage: Stage, done: u64, total: u64| {
            logged(stage, done, total);
            is_going_on();
            let percent = done as f64 * 100.0 / total.max(1) as f64;
            let mut changes = changes.lock().expect("a panic ends the process");
            let last = changes.back_mut().expect("the one that was wanted");
            last.detail = format!("{stage}: {percent:.0} % of {}", bytes_text(total));
        };
        let reports = Reports {
            progress: &progress,
            is_going_on: &is_going_on,
        };
        let (state, detail) = match means.make(at, (to, shape), &reports) {
            Ok(()) => {
                let place = (to, view.share().shape);
                let (listed, newest) = (&means.listed, means.listed.newest());
                let number = newest.number(view);
                let choice = listed.means.plan.choice(&newest.generation, number, place);
                let detail = format!("{}: {}", choice.chosen, choice.why);
                tell(choice);
                (Stand::Done, detail)
            }
            Err(error) => {
                let detail = format!("{error:#}");
                let stays = view.placement();
                let share = bytes_text(view.share().shape.bytes() as u64);
                tracing::warn!(
                    "table {} stays {stays}, with a share of {share}: {detail}",
                    view.name
                );
                (Stand::Failed, detail)
            }
        };
        let mut changes = changes.lock().expect("a panic ends the process");
        let last = changes.back_mut().expect("the one that was wanted");
        (last.state, last.detail) = (state, detail);
    }
}

#[cfg(test)]
mod tests;
