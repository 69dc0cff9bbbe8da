//! Generations of the model: another is loaded beside the one that is served, becomes the newest, and goes, all while clients are served.
//!
//! A thread that is no worker reads the rows, binds what clients have bound to the other tables, too, and tells the workers, each of
//! which does a step between two of its turns ([`turnover`](crate::turnover)). All of them are prepared before the first takes the other one for the newest, so that
//! requests which name either are answered by each. What goes is freed by this thread when no request uses it and all workers have let go. So no request waits for any
//! of this, and no worker makes memory or frees any.
//!
//! One change is made at a time. One that fails leaves everything as it was. Nothing is kept over a restart: it serves the generation of
//! `model.directory`.

mod make;
mod view;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;

use rowmill_arena::HugePages;
use rowmill_table::Stage;
use serde::Serialize;
use serde_json::{Value, json};

use crate::deltas;
use crate::listed::Listed;
use crate::mailbox::Mailbox;
use crate::places::{Stand, leave};
use crate::plan::{Choice, bytes_text};
use crate::progress;
use crate::remote::Export;
use crate::service::Sessions;
use crate::warm;

pub use view::{Held, View};

/// Changes that are told of: the one under way and those before it.
const TOLD: usize = 8;

/// What changes are made with.
pub struct Means {
    /// Where the model is that was served first; others lie beside it.
    pub directory: PathBuf,
    /// What is held, for others to see.
    pub view: Arc<View>,
    /// What is offered to other dataplanes, if anything is.
    pub export: Option<Arc<Export>>,
    /// What clients have bound.
    pub sessions: Arc<Sessions>,
    /// The workers'.
    pub mailboxes: Vec<Arc<Mailbox>>,
    /// Tables that are listed in `[[tables]]`, if some are.
    pub listed: Option<Arc<Listed>>,
    /// The model's name.
    pub model: String,
    /// Rows of a generation that were wanted most when it was served before, where a start has found that.
    pub warm: warm::Lists,
    /// Where deltas are kept, if rows can change.
    pub deltas: Option<Arc<deltas::Store>>,
    /// Pages of rows.
    pub huge_pages: HugePages,
    /// Whether checksums are compared while rows are read.
    pub verify: bool,
    /// CPUs of workers, on which no rows are read where there are others.
    pub workers_cpus: Vec<usize>,
}

/// Where a generation is to be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// In a directory beside the one of the model.
    Number(u64),
    /// In this one; one that does not begin with `/` is beside the one of the model.
    Directory(PathBuf),
}

/// What is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// A generation is to be held beside the one that is served.
    Load(Source),
    /// The one of this number, which is held, is to be the newest.
    Activate(u64),
    /// The one that was the newest before is to be that again.
    Rollback,
    /// The one of this number is to go.
    Unload(u64),
}

impl fmt::Display for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wish::Load(Source::Number(number)) => write!(f, "load generation {number}"),
            Wish::Load(Source::Directory(path)) => write!(f, "load {}", path.display()),
            Wish::Activate(number) => write!(f, "activate generation {number}"),
            Wish::Rollback => f.write_str("roll back"),
            Wish::Unload(number) => write!(f, "unload generation {number}"),
        }
    }
}

/// Why a change is not begun.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// Another one is not through yet.
    #[error(
        "another change is under way ({0}); one is made at a time, so try again when it is through"
    )]
    Busy(String),
    /// It can't be made of what is held.
    #[error("{0}")]
    Impossible(String),
}

/// A change that was begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Counted from 1.
    pub number: u64,
    /// What was wanted.
    pub wish: String,
    /// How it stands.
    pub state: Stand,
    /// How far it is, as long as it is under way, if that is known; what came of it, or why nothing did.
    pub detail: String,
}

/// See the module's text.
pub struct Generations {
    view: Arc<View>,
    wanted: SyncSender<Wish>,
    changes: Arc<Mutex<VecDeque<Change>>>,
}

impl Generations {
    /// Starts the thread. `tell` is told of each generation that becomes the newest.
    ///
    /// # Errors
    /// Where there can be no thread.
    pub fn start(
        means: Means,
        tell: impl Fn(Choice) + Send + 'static,
    ) -> io::Result<Arc<Generations>> {
        // One at a time, which `change` sees to.
        let (sender, wanted) = sync_channel(1);
        let changes = Arc::default();
        let generations = Generations {
            view: Arc::clone(&means.view),
            wanted: sender,
            changes: Arc::clone(&changes),
        };
        let work = move || {
            leave(&means.workers_cpus);
            work(&means, &wanted, &changes, &tell);
        };
        thread::Builder::new()
            .name("rowmilld-generations".into())
            .spawn(work)?;
        Ok(Arc::new(generations))
    }

    /// Begins a change. Returns its number, or none where there is nothing to change.
    ///
    /// # Errors
    /// [`ChangeError`]; nothing is begun then.
    ///
    /// # Panics
    /// If the thread is gone.
    pub fn change(&self, wish: Wish) -> Result<Option<u64>, ChangeError> {
        let mut changes = self.changes.lock().expect("a panic ends the process");
        if let Some(last) = changes.back()
            && last.state == Stand::Running
        {
            return Err(ChangeError::Busy(last.wish.clone()));
        }
        if !self.view.allows(&wish).map_err(ChangeError::Impossible)? {
            return Ok(None);
        }
        let number = changes.back().map_or(0, |last| last.number) + 1;
        if changes.len() == TOLD {
            changes.pop_front();
        }
        changes.push_back(Change {
            number,
            wish: wish.to_string(),
            state: Stand::Running,
            detail: String::new(),
        });
        let sent = self.wanted.try_send(wish);
        sent.expect("the thread waits for one, and lives as long as this");
        Ok(Some(number))
    }

    /// The last changes, the newest behind.
    pub(crate) fn changes(&self) -> Vec<Change> {
        let changes = self.changes.lock().expect("a panic ends the process");
        changes.iter().cloned().collect()
    }

    pub(crate) fn status(&self) -> Value {
        json!(self.changes())
    }
}

/// The thread's work, until nobody can want anything any more.
fn work(
    means: &Means,
    wanted: &Receiver<Wish>,
    changes: &Mutex<VecDeque<Change>>,
    tell: &dyn Fn(Choice),
) {
    for wish in wanted {
        tracing::info!("to {wish}");
        let update = |state, detail| {
            let mut changes = changes.lock().expect("a panic ends the process");
            let last = changes.back_mut().expect("the one that was wanted");
            (last.state, last.detail) = (state, detail);
        };
        let running = |detail| update(Stand::Running, detail);
        let logged = progress::logged();
        let progress = |stage: Stage, done: u64, total: u64| {
            logged(stage, done, total);
            let percent = done as f64 * 100.0 / total.max(1) as f64;
            running(format!("{stage}: {percent:.0} % of {}", bytes_text(total)));
        };
        match means.make(&wish, &progress, &running) {
            Ok((detail, choice)) => {
                tracing::info!("{detail}");
                choice.into_iter().for_each(tell);
                update(Stand::Done, detail);
            }
            Err(error) => {
                let detail = format!("{error:#}");
                tracing::warn!("could not {wish}, and everything is as it was: {detail}");
                update(Stand::Failed, detail);
            }
        }
    }
}
