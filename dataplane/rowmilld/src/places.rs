//! Where the rows of listed tables are, changed while they are served.
//!
//! A thread that is no worker makes what each worker is to have of the table: its part of an empty store, or the rows, which it
//! reads from the table's file. It gives each worker its part, which takes it between two of its turns and gives back what it had, and
//! frees that when all have. So no request waits for a change, and a worker neither makes memory nor frees any. While some
//! workers know of the change and others don't, each finds the rows where it knows them to be, and they are the same.
//!
//! One change is made at a time. One that fails leaves everything as it was.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use rowmill_arena::HugePages;
use rowmill_cache::Shares;
use rowmill_cache::store::Store;
use rowmill_engine::Home;
use rowmill_table::{Generation, LoadOptions, Progress, Resident, Stage};
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use serde::Serialize;
use serde_json::{Value, json};

use crate::cache::CachePlan;
use crate::cache_view::{CacheView, TableView};
use crate::config::Placement;
use crate::files::{self, Identity};
use crate::mailbox::{Mailbox, Move};
use crate::plan::{Choice, bytes_text};
use crate::progress;
use crate::room::Memory;
use crate::waiting;

/// Changes that are told of: the one under way and those before it.
const TOLD: usize = 8;
/// A change that comes no further for so long hangs: the slowest disks give some MB in that time.
const HANGS: Duration = Duration::from_secs(5);
/// How often it is looked for what workers give back.
const LOOK: Duration = Duration::from_millis(1);
/// When a worker that does not is told of: it looks once a turn, and sleeps for a second at most.
const SLOW: Duration = Duration::from_secs(5);

/// What changes are made with.
pub struct Means {
    /// Which tables are listed.
    pub plan: CachePlan,
    /// Their files.
    pub generation: Generation,
    /// What is in memory of all tables, of listed ones without their rows.
    pub tables: Arc<Resident>,
    /// What makes the workers' parts.
    pub shares: Shares,
    /// Where the tables are, for others to see.
    pub cache: Arc<CacheView>,
    /// The workers'.
    pub mailboxes: Vec<Arc<Mailbox>>,
    /// Pages of rows.
    pub huge_pages: HugePages,
    /// Whether checksums are compared while rows are read.
    pub verify: bool,
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
    /// How it stands.
    pub state: Stand,
    /// How far it is, as long as it is under way, if that is known; what came of it, or why nothing did.
    pub detail: String,
}

/// What is wanted of the thread.
struct Wanted {
    table: usize,
    to: Placement,
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
        let files = files::identities(&means.generation, &means.cache)?;
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
                work(&means, &files, &wanted, (&changes, &further), &tell);
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

    /// Begins to move a table. Returns the change's number, or none where the table is there already.
    ///
    /// # Errors
    /// [`PlaceError`]; nothing is begun then.
    ///
    /// # Panics
    /// If the thread is gone.
    pub fn change(&self, table: &str, to: Placement) -> Result<Option<u64>, PlaceError> {
        let tables = self.means.generation.tables();
        if !tables.iter().any(|info| info.name == table) {
            return Err(PlaceError::UnknownTable(table.into()));
        }
        let listed = &self.means.cache.tables;
        let view = listed.iter().find(|view| view.name == table);
        let view = view.ok_or_else(|| PlaceError::NotListed(table.into()))?;
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
        if view.placement() == to {
            return Ok(None);
        }
        let number = changes.back().map_or(0, |last| last.number) + 1;
        if changes.len() == TOLD {
            changes.pop_front();
        }
        changes.push_back(Change {
            number,
            table: table.into(),
            to,
            state: Stand::Running,
            detail: String::new(),
        });
        *self.further() = Instant::now();
        let wanted = Wanted {
            table: view.number,
            to,
        };
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
fn leave(cpus: &[usize]) {
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
    files: &[Identity],
    wanted: &Receiver<Wanted>,
    (changes, further): (&Mutex<VecDeque<Change>>, &Mutex<Instant>),
    tell: &dyn Fn(Choice),
) {
    for Wanted { table, to } in wanted {
        let view = means.view(table);
        tracing::info!("table {}: to become {to}", view.name);
        let logged = progress::logged();
        let progress = |stage: Stage, done: u64, total: u64| {
            logged(stage, done, total);
            *further.lock().expect("a panic ends the process") = Instant::now();
            let percent = done as f64 * 100.0 / total.max(1) as f64;
            let mut changes = changes.lock().expect("a panic ends the process");
            let last = changes.back_mut().expect("the one that was wanted");
            last.detail = format!("{stage}: {percent:.0} % of {}", bytes_text(total));
        };
        let (state, detail) = match means.make(view, to, files, &progress) {
            Ok(()) => {
                let choice = means.plan.choice(&means.generation, table, to);
                let detail = format!("{}: {}", choice.chosen, choice.why);
                tell(choice);
                (Stand::Done, detail)
            }
            Err(error) => {
                let detail = format!("{error:#}");
                let stays = view.placement();
                tracing::warn!("table {} stays {stays}: {detail}", view.name);
                (Stand::Failed, detail)
            }
        };
        let mut changes = changes.lock().expect("a panic ends the process");
        let last = changes.back_mut().expect("the one that was wanted");
        (last.state, last.detail) = (state, detail);
    }
}

impl Means {
    fn view(&self, table: usize) -> &TableView {
        let mut listed = self.cache.tables.iter();
        let view = listed.find(|view| view.number == table);
        view.expect("a listed table")
    }

    fn path(&self, view: &TableView) -> PathBuf {
        let info = &self.generation.tables()[view.number];
        self.generation.path(info)
    }

    /// Moves a table.
    fn make(
        &self,
        view: &TableView,
        to: Placement,
        files: &[Identity],
        progress: Progress<'_>,
    ) -> anyhow::Result<()> {
        let (homes, store) = match to {
            Placement::Cached => self.cached(view)?,
            Placement::Resident => (self.resident(view, files, progress)?, None),
        };
        let before = self.hand_over(view, homes);
        view.set_store(store);
        // The last who have it: its memory is given back.
        drop(before);
        Ok(())
    }

    fn cached(&self, view: &TableView) -> anyhow::Result<(Vec<Home>, Option<Arc<Store>>)> {
        self.has_room("slots of its share", view.share_bytes)?;
        let parts = self.shares.table(view.number);
        let parts = parts.context("there is no memory for its share")?;
        let store = parts.first().map(|part| Arc::clone(part.store()));
        let home = |part| Home {
            resident: None,
            cached: Some(part),
        };
        Ok((parts.into_iter().map(home).collect(), store))
    }

    fn resident(
        &self,
        view: &TableView,
        files: &[Identity],
        progress: Progress<'_>,
    ) -> anyhow::Result<Vec<Home>> {
        let path = self.path(view);
        let table = waiting::told(|tell| {
            tell(&path);
            self.is_the_same_file(view, files)?;
            self.has_room("its rows", view.rows_bytes)?;
            let options = LoadOptions {
                verify: self.verify,
            };
            let without = &self.tables.tables()[view.number];
            let progress = |stage: Stage, done: u64, total: u64| {
                tell(&path);
                progress(stage, done, total);
            };
            let generation = &self.generation;
            let table = generation.load_rows(without, self.huge_pages, &progress, options);
            let table = table.context("its rows cannot be read")?;
            tell(&path);
            self.is_the_same_file(view, files)?;
            anyhow::Ok(table)
        })?;
        let home = |_| Home {
            resident: Some(Box::new(table.clone())),
            cached: None,
        };
        Ok(self.mailboxes.iter().map(home).collect())
    }

    /// Refuses rows of a file that was put in the place of the one that was there at start: they may be another generation's.
    fn is_the_same_file(&self, view: &TableView, files: &[Identity]) -> anyhow::Result<()> {
        let path = self.path(view);
        let now = files::identity(&path);
        let now = now.with_context(|| format!("cannot look at {}", path.display()))?;
        let mut listed = self.cache.tables.iter().zip(files);
        let at_start = listed.find(|(other, _)| other.number == view.number);
        ensure!(
            at_start.is_some_and(|(_, &file)| file == now),
            "{} is another file now than at the start; to serve its rows start anew",
            path.display()
        );
        Ok(())
    }

    fn has_room(&self, what: &str, bytes: u64) -> anyhow::Result<()> {
        let room = Memory::now().has_room(self.huge_pages, what, bytes);
        room.map_err(|why| anyhow!(why))
    }

    /// Gives each worker its home of the table, and returns what they had when all know.
    fn hand_over(&self, view: &TableView, homes: Vec<Home>) -> Vec<Box<Move>> {
        for (mailbox, home) in self.mailboxes.iter().zip(homes) {
            let table = view.number;
            mailbox.move_table(Box::new(Move { table, home }));
        }
        let began = Instant::now();
        let mut is_slow = false;
        let taken_back = self.mailboxes.iter().enumerate().map(|(worker, mailbox)| {
            loop {
                if let Some(moved) = mailbox.moved() {
                    return moved;
                }
                if !is_slow && began.elapsed() > SLOW {
                    is_slow = true;
                    let table = &view.name;
                    tracing::warn!("worker {worker} does not look where table {table} is now");
                }
                thread::sleep(LOOK);
            }
        });
        taken_back.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc::channel;

    use rowmill_table::{TableSpec, generate, silent};

    use super::*;
    use crate::config::Config;

    #[test]
    fn one_table_moves_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let specs: [TableSpec; 2] = ["a:1000:4:f32", "b:1000:4:f32"].map(|s| s.parse().unwrap());
        generate(folder.path().join("1"), 1, &specs, 3, &silent).unwrap();
        let listed = |name: &str| {
            format!("[[tables]]\nname = \"{name}\"\nplacement = \"resident\"\ncache_bytes = 4000\n")
        };
        let (a, b) = (listed("a"), listed("b"));
        let text = format!("[model]\ndirectory = \".\"\n[cache]\npage_cache = \"allow\"\n{a}{b}");
        let config = Config::parse(&text, Path::new("r.toml")).unwrap();
        let generation = Generation::open(folder.path().join("1")).unwrap();
        let plan = CachePlan::make(&config, &generation, 1).unwrap();
        let keep = |table| plan.keep(table);
        let tables = generation.load_parts(keep, HugePages::Off, &silent, LoadOptions::default());
        let mut tables = tables.unwrap();
        let mailbox = Arc::<Mailbox>::default();
        let mailboxes = vec![Arc::clone(&mailbox)];
        let opened = plan.open(&generation, &mut tables, HugePages::Off, &mailboxes);
        let opened = opened.unwrap();
        let cache = Arc::new(plan.view(&generation, &opened.parts));
        let means = Means {
            plan,
            generation,
            tables: Arc::new(tables),
            shares: opened.shares.unwrap(),
            cache: Arc::clone(&cache),
            mailboxes,
            huge_pages: HugePages::Off,
            verify: true,
            workers_cpus: Vec::new(),
        };
        let (tell, told) = channel();
        let places = Places::start(means, move |choice| tell.send(choice).unwrap()).unwrap();
        assert_eq!(places.change("a", Placement::Cached), Ok(Some(1)));
        // The worker, which is this thread, does not know yet.
        let busy = Err(PlaceError::Busy("a".into()));
        assert_eq!(places.change("b", Placement::Cached), busy);
        assert_eq!(cache.placement("a"), Some(Placement::Resident));
        let moving = loop {
            match mailbox.next_move() {
                Some(moving) => break moving,
                None => thread::yield_now(),
            }
        };
        assert!(
            moving.table == 0 && moving.home.cached.is_some() && moving.home.resident.is_none()
        );
        mailbox.has_moved(moving);
        let choice = told.recv().unwrap();
        assert_eq!(choice.what, "table a");
        assert_eq!(cache.placement("a"), Some(Placement::Cached));
        while places.change("a", Placement::Cached) != Ok(None) {
            thread::yield_now();
        }
        let [change] = &places.changes()[..] else {
            panic!("{:?}", places.changes());
        };
        assert_eq!((change.number, change.state), (1, Stand::Done));
        assert!(
            change.detail.starts_with(&choice.chosen),
            "{}",
            change.detail
        );
        // Rows were read before the worker is given them.
        assert_eq!(places.change("a", Placement::Resident), Ok(Some(2)));
        let moving = loop {
            match mailbox.next_move() {
                Some(moving) => break moving,
                None => thread::yield_now(),
            }
        };
        let change = &places.changes()[1];
        assert_eq!(change.state, Stand::Running);
        assert!(change.detail.contains("100 % of"), "{}", change.detail);
        mailbox.has_moved(moving);
        told.recv().unwrap();
    }
}
