//! Listed tables of the generations that are held: what each worker has of them, handed over while it serves.
//!
//! A table that is listed in `[[tables]]` has a home for each side, and is cached or resident in the generation of each. Whoever changes that holds
//! its hands (`Hands`): one table moves, or one generation comes or goes, at a time. What workers had comes back to the thread that tells them, so
//! that no worker makes memory or frees any.

mod bring;
mod warm;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use rowmill_arena::HugePages;
use rowmill_cache::Shares;
use rowmill_engine::{HELD, Side};
use rowmill_table::{Generation, Resident, ResidentTable, TableInfo};

use crate::cache::{CachePlan, Reads};
use crate::cache_view::{CacheView, TableView};
use crate::deltas::{self, Target};
use crate::files::{self, Identity, Watch};
use crate::mailbox::{Mailbox, Move};
use crate::remote::Remotes;
use crate::room::{Memory, Needs};
pub(crate) use warm::MOST_ROWS;

/// How often it is looked for what workers give back.
const LOOK: Duration = Duration::from_millis(1);
/// When a worker that does not is told of: it looks once a turn, and sleeps for a second at most.
const SLOW: Duration = Duration::from_secs(5);

/// What listed tables are changed with.
pub struct Means {
    /// Which tables are listed.
    pub plan: CachePlan,
    /// Their files.
    pub generation: Generation,
    /// What is in memory of all tables, of listed ones without their rows.
    pub tables: Arc<Resident>,
    /// What makes the workers' parts.
    pub shares: Shares,
    /// What workers count of tiers.
    pub reads: Reads,
    /// Where the tables are, for others to see.
    pub cache: Arc<CacheView>,
    /// Who looks at their files.
    pub watch: Arc<Watch>,
    /// The dataplane that rows are read from too, where there is one.
    pub remote: Option<Arc<Remotes>>,
    /// Deltas that were applied, where they are taken. Whoever waits for its lock has hands first, if it is to have any.
    pub deltas: Option<Arc<deltas::Store>>,
    /// The workers'.
    pub mailboxes: Vec<Arc<Mailbox>>,
    /// Pages of rows.
    pub huge_pages: HugePages,
    /// Whether checksums are compared while rows are read.
    pub verify: bool,
}

/// A generation that has listed tables.
pub(crate) struct Model {
    pub(crate) generation: Generation,
    pub(crate) tables: Arc<Resident>,
    /// Files of listed tables as they were when it came, in the order of the [view](CacheView)'s tables.
    files: Vec<Identity>,
}

impl Model {
    fn new(generation: Generation, tables: Arc<Resident>, cache: &CacheView) -> io::Result<Model> {
        let of_table = |view: &TableView| files::identity(&path(&generation, view));
        let files = cache
            .tables
            .iter()
            .map(of_table)
            .collect::<io::Result<_>>()?;
        Ok(Model {
            generation,
            tables,
            files,
        })
    }

    /// A listed table's number.
    pub(crate) fn number(&self, view: &TableView) -> usize {
        number(&self.generation, view)
    }

    /// A listed table's file.
    pub(crate) fn path(&self, view: &TableView) -> PathBuf {
        path(&self.generation, view)
    }

    /// The file of the table at this place in the view, as it was when the generation came.
    pub(crate) fn file(&self, at: usize) -> Identity {
        self.files[at]
    }
}

fn info<'g>(generation: &'g Generation, view: &TableView) -> Option<&'g TableInfo> {
    let mut tables = generation.tables().iter();
    tables.find(|info| info.name == view.name)
}

fn number(generation: &Generation, view: &TableView) -> usize {
    let mut tables = generation.tables().iter();
    let number = tables.position(|info| info.name == view.name);
    number.expect("generations without a listed table are refused")
}

fn path(generation: &Generation, view: &TableView) -> PathBuf {
    generation.path(&generation.tables()[number(generation, view)])
}

/// See the module's text.
pub struct Listed {
    pub(crate) means: Means,
    models: Mutex<[Option<Arc<Model>>; HELD]>,
    hands: Mutex<()>,
}

/// Who has them changes tables.
pub(crate) struct Hands<'l> {
    pub(crate) listed: &'l Listed,
    _alone: MutexGuard<'l, ()>,
}

impl Listed {
    /// Of the generation that is served first.
    ///
    /// # Errors
    /// Where a file can't be looked at.
    pub fn new(means: Means) -> io::Result<Arc<Listed>> {
        let (generation, tables) = (means.generation.clone(), Arc::clone(&means.tables));
        let first = Model::new(generation, tables, &means.cache)?;
        Ok(Arc::new(Listed {
            means,
            models: Mutex::new([Some(Arc::new(first)), None]),
            hands: Mutex::default(),
        }))
    }

    fn models(&self) -> MutexGuard<'_, [Option<Arc<Model>>; HELD]> {
        self.models.lock().expect("a panic ends the process")
    }

    /// The listed tables.
    pub(crate) fn views(&self) -> &[TableView] {
        &self.means.cache.tables
    }

    /// Which side's generation is the newest.
    pub(crate) fn newest_side(&self) -> Side {
        let first = self.views().first();
        first.map_or(Side::A, TableView::newest_side)
    }

    /// The newest generation.
    pub(crate) fn newest(&self) -> Arc<Model> {
        loop {
            let newest = self.newest_side();
            // Otherwise another became the newest, and that is gone already.
            if let Some(newest) = self.models()[newest.index()].clone() {
                return newest;
            }
        }
    }

    /// Whether another is held beside it.
    pub(crate) fn is_another_held(&self) -> bool {
        let other = self.newest_side().other();
        self.models()[other.index()].is_some()
    }

    /// Where rows of a listed table become others that has come in the generation of a side.
    pub(crate) fn target(&self, side: Side, table: &str) -> Option<Target> {
        let view = self.views().iter().find(|view| view.name == table)?;
        let kept = view.kept_on(side);
        let rows = |table: Arc<ResidentTable>| Target::Rows(ResidentTable::clone(&table));
        let cached = |store| Target::Cached(store, view.delta_bytes);
        kept.store.map(cached).or_else(|| kept.resident.map(rows))
    }

    /// Waits until nobody else changes tables.
    pub(crate) fn hands(&self) -> Hands<'_> {
        Hands {
            listed: self,
            _alone: self.hands.lock().expect("a panic ends the process"),
        }
    }

    /// Whether there is memory for that.
    pub(crate) fn has_room(&self, what: &str, needs: &Needs) -> anyhow::Result<()> {
        let room = Memory::now().has_room(self.means.huge_pages, what, needs);
        room.map_err(|why| anyhow!(why))
    }
}

impl Hands<'_> {
    /// Tells each worker its own, and returns what they had when all know. `what` it is about.
    pub(crate) fn over(&self, what: &str, news: Vec<Move>) -> Vec<Move> {
        let mailboxes = &self.listed.means.mailboxes;
        for (mailbox, new) in mailboxes.iter().zip(news) {
            mailbox.move_table(Box::new(new));
        }
        let began = Instant::now();
        let mut is_slow = false;
        let taken_back = mailboxes.iter().enumerate().map(|(worker, mailbox)| {
            loop {
                if let Some(moved) = mailbox.moved() {
                    return *moved;
                }
                if !is_slow && began.elapsed() > SLOW {
                    is_slow = true;
                    tracing::warn!("worker {worker} does not look where {what} is now");
                }
                thread::sleep(LOOK);
            }
        });
        taken_back.collect()
    }
}
