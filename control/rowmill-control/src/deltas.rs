//! The log of deltas: files with rows that are to become others, kept for the dataplanes of their model.
//!
//! Those of generation N of a model are `MODEL/gen-N/SEQUENCE.delta` in the log's directory, as each dataplane keeps them, too. A file has that
//! name when it was read whole, comes next, and is on the disk; only then is it acknowledged. Until then it is `incoming.tmp`, and one that is
//! found at a start is of a process that died meanwhile. Nothing is ever changed or removed here: an operator who does not need the deltas of a
//! generation any more removes their directory, and starts the control plane anew.
//!
//! Dataplanes ask for the delta after their last one, a piece at a time. What they apply is decided by themselves, from what they have.

mod files;
mod followers;
mod sources;
mod stream;
mod watch;

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::Context;
use rowmill_table::{
    DeltaFile, DeltaHead, TableError, delta_chain, delta_file_name, delta_folder, make_private,
    sync_directory,
};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::config::Deltas;
use files::{Found, extend, folders, found};
use followers::Followers;
use sources::Sources;

pub use followers::Holds;
pub(crate) use sources::Source;
pub(crate) use stream::Reader;
pub(crate) use watch::watch;

/// What a delta is called that has no path here.
pub(crate) const SENT: &str = "that was sent";
/// Bytes of a delta that a dataplane is given at a time.
pub const PIECE_BYTES: u64 = 1 << 20;
/// After so long each dataplane that is there has reported: it tries again after 5 s at most.
const HEARD: Duration = Duration::from_secs(7);

/// Deltas of a generation that are kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// The model.
    pub model: String,
    /// The generation's number.
    pub generation: u64,
    /// What tells it from others of that number, as `rowmill delta show` prints it.
    pub fingerprint: String,
    /// The last one's sequence number. There are all from 1 on.
    pub last: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Sequence numbers of those that are damaged, and not sent until they are given again.
    #[serde(default)]
    pub damaged: Vec<u64>,
}

/// What became of a delta that was given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Taken {
    /// The model.
    pub model: String,
    /// The generation's number.
    pub generation: u64,
    /// Its sequence number.
    pub sequence: u64,
    /// Whether it was not there before.
    pub is_new: bool,
}

/// Why a delta was not taken.
#[derive(Debug, thiserror::Error)]
pub enum NotTaken {
    /// It is damaged, or none.
    #[error(transparent)]
    Bad(TableError),
    /// Its file can't be read.
    #[error("{}: {}", .0, .0.source().map(ToString::to_string).unwrap_or_default())]
    Unread(TableError),
    /// Another one has its number, or it is another generation's.
    #[error("{0}")]
    Conflict(String),
    /// Others have to come before it.
    #[error("{0}")]
    Ahead(String),
    /// It is damaged where it is kept.
    #[error("{0}")]
    Damaged(String),
    /// Another one is on its way.
    #[error("another delta is being taken: try again in a second")]
    Busy,
    /// It can't be kept, or read.
    #[error("cannot write or read in {}: {source}", directory.display())]
    Io {
        /// Where.
        directory: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl From<TableError> for NotTaken {
    fn from(error: TableError) -> NotTaken {
        match error {
            TableError::Io { .. } => NotTaken::Unread(error),
            _ => NotTaken::Bad(error),
        }
    }
}

impl NotTaken {
    /// Whether it says nothing of the delta, which may be taken another time.
    fn may_pass(&self) -> bool {
        matches!(self, NotTaken::Io { .. } | NotTaken::Unread(_))
    }
}

/// Of a generation.
#[derive(Clone, Debug)]
struct Last {
    base: u32,
    /// What tells the deltas up to each from any others: see [`delta_chain`].
    chains: Vec<u32>,
    bytes: u64,
}

impl Last {
    fn of(base: u32) -> Last {
        Last {
            base,
            chains: Vec::new(),
            bytes: 0,
        }
    }

    fn sequence(&self) -> u64 {
        self.chains.len() as u64
    }

    /// What tells the first so many from any others, if there are as many.
    fn chain(&self, sequence: u64) -> Option<u32> {
        match usize::try_from(sequence).ok()?.checked_sub(1) {
            None => Some(self.base),
            Some(at) => self.chains.get(at).copied(),
        }
    }

    fn push(&mut self, delta: &DeltaFile) {
        let before = self.chain(self.sequence()).expect("there are as many");
        self.chains.push(delta_chain(before, delta.crc32()));
        self.bytes += delta.head().file_bytes();
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct Log {
    directory: PathBuf,
    /// Most bytes of a delta.
    pub(crate) most: u64,
    kept: Mutex<BTreeMap<(String, u64), Last>>,
    /// Held by who takes one.
    taking: Mutex<()>,
    sources: Mutex<Sources>,
    /// Deltas that are damaged where they are kept, by model, generation and sequence number, with a sentence.
    damaged: Mutex<BTreeMap<(String, u64, u64), String>>,
    followers: Mutex<Followers>,
    opened: Instant,
    _claim: File,
}

impl Log {
    /// That of the configuration, if deltas are taken.
    ///
    /// # Errors
    /// Where the directory can't be read or written, is another's, or has what does not belong together.
    pub fn configured(config: &Deltas) -> anyhow::Result<Option<Arc<Log>>> {
        let Some(directory) = config.directory.as_deref() else {
            return Ok(None);
        };
        let log = Log::open(directory, config.max_bytes);
        log.context("deltas.directory")
            .map(|log| Some(Arc::new(log)))
    }

    fn open(directory: &Path, most: u64) -> anyhow::Result<Log> {
        make_private(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let claim = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(directory.join("lock"))
            .with_context(|| format!("cannot write in {}", directory.display()))?;
        flock(&claim, FlockOperation::NonBlockingLockExclusive).with_context(|| {
            format!(
                "{} is another control plane's, or a file system without locks: give each its own",
                directory.display()
            )
        })?;
        let log = Log {
            directory: directory.to_owned(),
            most,
            kept: Mutex::default(),
            taking: Mutex::new(()),
            sources: Mutex::default(),
            damaged: Mutex::default(),
            followers: Mutex::default(),
            opened: Instant::now(),
            _claim: claim,
        };
        match fs::remove_file(log.draft()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error)
                    .with_context(|| format!("cannot remove {}", log.draft().display()));
            }
            _ => {}
        }
        for model in folders(directory)? {
            for generation in folders(&model)? {
                if let Some(found) = found(&generation)? {
                    log.found(found);
                }
            }
        }
        Ok(log)
    }

    /// Takes what a generation's directory has. Others are served whatever one of them lacks.
    fn found(&self, Found { of, last, broken }: Found) {
        let (model, generation) = of.clone();
        if let Some((sequence, why)) = broken {
            let told = format!(
                "delta {sequence} of generation {generation} of model {model} can't be used where it is kept, and none from it on is sent: publish \
                 it again ({why})"
            );
            tracing::error!("{told}");
            self.damaged()
                .insert((model.clone(), generation, sequence), told);
        }
        if let Some(last) = last {
            let count = last.sequence();
            tracing::info!("{count} deltas of generation {generation} of model {model} are kept");
            self.kept().insert(of, last);
        }
    }

    fn kept(&self) -> MutexGuard<'_, BTreeMap<(String, u64), Last>> {
        self.kept.lock().expect("a panic ends the process")
    }

    fn followers(&self) -> MutexGuard<'_, Followers> {
        self.followers.lock().expect("a panic ends the process")
    }

    fn damaged(&self) -> MutexGuard<'_, BTreeMap<(String, u64, u64), String>> {
        self.damaged.lock().expect("a panic ends the process")
    }

    /// Reads all that was kept before the start, for what was damaged meanwhile, which is told and not sent. What is taken later is
    /// checked then.
    pub fn check(&self) {
        let kept: Vec<Kept> = self.list();
        for Kept {
            model,
            generation,
            last,
            ..
        } in kept
        {
            for sequence in 1..=last {
                let path = self.path(&model, generation, sequence);
                let checked = DeltaFile::open(path).and_then(|delta| delta.check());
                let Err(why) = checked else { continue };
                let told = format!(
                    "delta {sequence} of generation {generation} of model {model} can't be read where it is kept, and is not sent: publish it again ({why})"
                );
                tracing::error!("{told}");
                let of = (model.clone(), generation, sequence);
                self.damaged().insert(of, told);
            }
        }
    }

    /// A dataplane has reported.
    pub fn reported(&self, dataplane: &str, holds: Holds) {
        let now = Instant::now();
        self.followers().reported(dataplane, holds, now);
    }

    /// That the deltas of a dataplane are others than those that are kept, a sentence for each generation of the model.
    pub(crate) fn diverged_of(&self, dataplane: &str, model: &str) -> Vec<String> {
        let followers = self.followers();
        let own = followers
            .diverged()
            .filter(|(of, its, _)| (*of, *its) == (dataplane, model));
        own.map(|(.., why)| format!("it {why}")).collect()
    }

    /// The same of all dataplanes that there are, each a sentence.
    fn diverged(&self, is_there: impl Fn(&str) -> bool) -> Vec<String> {
        let followers = self.followers();
        let there = followers.diverged().filter(|(of, ..)| is_there(of));
        there
            .map(|(of, _, why)| format!("dataplane `{of}` {why}"))
            .collect()
    }

    /// Whether dataplanes that are there have been heard of: nothing is taken by itself before that, since what they hold tells what is wrong.
    fn has_heard(&self) -> bool {
        self.opened.elapsed() >= HEARD
    }

    /// What is said of the places that deltas come from by themselves.
    pub(crate) fn sources(&self) -> MutexGuard<'_, Sources> {
        self.sources.lock().expect("a panic ends the process")
    }

    /// What whoever runs this should know: how it stands with those places, which deltas are damaged, dataplanes whose deltas are
    /// others than those that are kept, and those to which the next one can't be applied; each a sentence.
    pub(crate) fn told(&self, is_there: impl Fn(&str) -> bool) -> Vec<String> {
        let mut told = self.sources().told();
        told.extend(self.damaged().values().cloned());
        told.extend(self.diverged(&is_there));
        let followers = self.followers();
        let failed = followers.failed(Instant::now());
        let failed = failed.filter(|(dataplane, ..)| is_there(dataplane));
        told.extend(failed.map(|(dataplane, model, why)| {
            format!("dataplane `{dataplane}` takes no deltas of this generation of model {model} until this is mended: {why}")
        }));
        told
    }

    /// Takes a delta that is in memory, once others that come in have.
    pub fn give(&self, bytes: &[u8]) -> Result<Taken, NotTaken> {
        let alone = self.alone();
        let taken = self.begin(&alone).and_then(|mut draft| {
            let written = io::Write::write_all(&mut draft, bytes);
            written.map_err(|source| self.unkept(source))?;
            self.take(&draft, SENT.as_ref(), &alone)
        });
        self.drop_draft(&alone);
        taken
    }

    /// Where one that comes in is written; see [`alone`](Self::alone).
    pub(crate) fn draft(&self) -> PathBuf {
        self.directory.join("incoming.tmp")
    }

    /// Keeps others out while one comes in.
    pub(crate) fn alone(&self) -> MutexGuard<'_, ()> {
        self.taking.lock().expect("a panic ends the process")
    }

    /// The same, where nobody is to wait for that.
    pub(crate) fn try_alone(&self) -> Result<MutexGuard<'_, ()>, NotTaken> {
        self.taking.try_lock().map_err(|_| NotTaken::Busy)
    }

    /// A file for one that comes in.
    ///
    /// # Errors
    /// Why there can be none.
    pub(crate) fn begin(&self, _alone: &MutexGuard<'_, ()>) -> Result<File, NotTaken> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let file = options.open(self.draft());
        file.map_err(|source| self.unkept(source))
    }

    pub(crate) fn unkept(&self, source: io::Error) -> NotTaken {
        NotTaken::Io {
            directory: self.directory.clone(),
            source,
        }
    }

    /// All that is kept, by model and generation.
    pub fn list(&self) -> Vec<Kept> {
        let (kept, damaged) = (self.kept(), self.damaged());
        let view = |((model, generation), last): (&(String, u64), &Last)| Kept {
            model: model.clone(),
            generation: *generation,
            fingerprint: format!("{:08x}", last.base),
            last: last.sequence(),
            bytes: last.bytes,
            damaged: damaged
                .keys()
                .filter(|of| (&of.0, of.1) == (model, *generation))
                .map(|of| of.2)
                .collect(),
        };
        kept.iter().map(view).collect()
    }

    fn path(&self, model: &str, generation: u64, sequence: u64) -> PathBuf {
        let model = self.directory.join(delta_folder(model));
        let generation = model.join(format!("gen-{generation}"));
        generation.join(delta_file_name(sequence))
    }

    /// Whether a delta with this head comes next: what is wrong otherwise, or that there is one of this number.
    pub(crate) fn stands(&self, head: &DeltaHead) -> Result<Stands, NotTaken> {
        let kept = self.kept();
        let last = kept.get(&(head.model.clone(), head.generation));
        let (of, sequence) = (
            format!("generation {} of model {}", head.generation, head.model),
            head.sequence,
        );
        let next = last.map_or(0, Last::sequence) + 1;
        if let Some(last) = last
            && last.base != head.base
        {
            return Err(NotTaken::Conflict(format!(
                "the delta was made for another {of} (fingerprint {:08x}) than those that are kept ({:08x}): where the generation was made anew under \
                 its number, move {} away and start the control plane anew",
                head.base,
                last.base,
                self.path(&head.model, head.generation, sequence)
                    .with_file_name("")
                    .display()
            )));
        }
        match sequence {
            _ if sequence > next => {
                return Err(NotTaken::Ahead(format!(
                    "the delta has sequence number {sequence}, and {next} comes next of {of}"
                )));
            }
            _ if sequence < next => return Ok(Stands::Before),
            _ => {}
        }
        let followers = self.followers();
        let place = (&*head.model, head.generation);
        match followers.other(place, head.base, Instant::now()) {
            Some((dataplane, held)) => Err(NotTaken::Conflict(format!(
                "the delta was made for another {of} (fingerprint {:08x}) than dataplane `{dataplane}` holds ({held:08x}), and no dataplane holds that \
                 one: make it from the generation that is held, or give it again once the other one is",
                head.base
            ))),
            None => Ok(Stands::Next),
        }
    }

    /// Whether others have to come before a delta with this head.
    fn is_ahead(&self, head: &DeltaHead) -> bool {
        let kept = self.kept();
        let last = kept.get(&(head.model.clone(), head.generation));
        last.is_none_or(|last| last.base == head.base)
            && head.sequence > last.map_or(0, Last::sequence) + 1
    }

    /// Whether this very delta is kept under its number, which some delta has.
    fn has(&self, delta: &DeltaFile) -> Result<(), NotTaken> {
        let head = delta.head();
        let kept = self.kept();
        let last = kept.get(&(head.model.clone(), head.generation));
        let same = last.is_some_and(|last| {
            let before = last.chain(head.sequence.saturating_sub(1));
            before.map(|before| delta_chain(before, delta.crc32())) == last.chain(head.sequence)
        });
        match same {
            true => Ok(()),
            false => Err(NotTaken::Conflict(format!(
                "the delta has sequence number {} of generation {} of model {}, which another one has that is kept",
                head.sequence, head.generation, head.model
            ))),
        }
    }

    /// Whether the delta that is kept under the number of this one was found damaged.
    fn is_damaged(&self, head: &DeltaHead) -> bool {
        let of = (head.model.clone(), head.generation, head.sequence);
        self.damaged().contains_key(&of)
    }

    /// Takes the draft, which is whole, into the log. `name`: what it is called in errors.
    pub(crate) fn take(
        &self,
        draft: &File,
        name: &Path,
        _alone: &MutexGuard<'_, ()>,
    ) -> Result<Taken, NotTaken> {
        let delta = DeltaFile::open_called(self.draft(), name)?;
        delta.check()?;
        let head = delta.head().clone();
        let taken = |is_new| Taken {
            model: head.model.clone(),
            generation: head.generation,
            sequence: head.sequence,
            is_new,
        };
        let path = self.path(&head.model, head.generation, head.sequence);
        if self.stands(&head)? == Stands::Before {
            self.has(&delta)?;
            let of = (head.model.clone(), head.generation, head.sequence);
            // It may have been damaged since it was looked at last.
            let is_whole = || DeltaFile::open(&path).and_then(|kept| kept.check()).is_ok();
            if self.is_damaged(&head) || !is_whole() {
                let mend = || {
                    draft.sync_all()?;
                    fs::rename(self.draft(), &path)
                };
                mend().map_err(|source| self.unkept(source))?;
                self.damaged().remove(&of);
                tracing::info!(
                    "delta {} of generation {} of model {} is whole again",
                    head.sequence,
                    head.generation,
                    head.model
                );
            }
            // Whoever was told of it first may have died before its name was on the disk.
            let synced = sync_directory(path.parent().expect("in a directory"));
            synced.map_err(|source| self.unkept(source))?;
            return Ok(taken(false));
        }
        let directory = path.parent().expect("in a directory");
        let keep = || {
            make_private(directory)?;
            draft.sync_all()?;
            fs::rename(self.draft(), &path)?;
            sync_directory(directory)
        };
        keep().map_err(|source| self.unkept(source))?;
        let of = (head.model.clone(), head.generation);
        self.kept()
            .entry(of)
            .or_insert_with(|| Last::of(head.base))
            .push(&delta);
        tracing::info!(
            "delta {} of generation {} of model {} is kept, with {} rows",
            head.sequence,
            head.generation,
            head.model,
            head.rows()
        );
        self.mended(&head, directory);
        Ok(taken(true))
    }

    /// A delta was taken: if it stands for one that could not be used, those behind that one can be now.
    fn mended(&self, head: &DeltaHead, directory: &Path) {
        let of = (head.model.clone(), head.generation);
        let place = (of.0.clone(), of.1, head.sequence);
        if self.damaged().remove(&place).is_none() {
            return;
        }
        let mut last = self.kept().get(&of).cloned();
        let mut sequence = head.sequence + 1;
        while directory.join(delta_file_name(sequence)).exists() {
            if let Err(why) = extend(directory, &of, &mut last, sequence) {
                let broken = Some((sequence, why));
                self.found(Found { of, last, broken });
                return;
            }
            sequence += 1;
        }
        let broken = None;
        self.found(Found { of, last, broken });
    }

    /// The draft is no longer of use.
    pub(crate) fn drop_draft(&self, _alone: &MutexGuard<'_, ()>) {
        // It may have become one that is kept. What stays is written over.
        let _gone = fs::remove_file(self.draft());
    }

    /// Why a dataplane gets no delta of this number, a phrase that continues "the dataplane ...": it has applied others than those before it here.
    /// Of a generation of which none is kept there is nothing to compare with.
    fn diverges(
        &self,
        (model, generation, sequence): (&str, u64, u64),
        chain: Option<u32>,
    ) -> Option<String> {
        let kept = self.kept();
        let last = kept.get(&(model.to_owned(), generation))?;
        let (before, chain, of) = (
            sequence.checked_sub(1)?,
            chain?,
            format!("generation {generation} of model {model}"),
        );
        match last.chain(before) {
            Some(own) if own == chain => None,
            // What tells none from any others is the generation's fingerprint.
            Some(own) if before == 0 => Some(format!(
                "serves another {of} (fingerprint {chain:08x}) than the deltas that are kept here were made for ({own:08x}): it gets none of them; \
                 load the generation there that they were made for, or move away those that are kept here and start the control plane anew"
            )),
            Some(_) => Some(format!(
                "has applied other deltas to {of} than the first {before} that are kept here, or serves another generation of that number: it gets none \
                 after them; move away its deltas, or those that are kept here, and start it anew"
            )),
            None => Some(format!(
                "has applied {before} deltas to {of}, and {} are kept here: publish those that are lacking, which tells whether it has the same ones, \
                 or move away its deltas and start it anew",
                last.sequence()
            )),
        }
    }

    /// A piece of a delta from one of its bytes on: fewer than [`PIECE_BYTES`] at its end. None where there is no such delta. `chain`: what
    /// tells the deltas that the dataplane has applied from any others, which have to be those before it here.
    ///
    /// # Errors
    /// Where it can't be read, or the dataplane has applied others.
    pub fn piece(
        &self,
        dataplane: &str,
        (model, generation, sequence): (&str, u64, u64),
        chain: Option<u32>,
        at: u64,
    ) -> Result<Option<Vec<u8>>, NotTaken> {
        let diverges = self.diverges((model, generation, sequence), chain);
        if chain.is_some() {
            let of = (dataplane, model, generation);
            let is_news = self.followers().asked(of, diverges.as_deref());
            match &diverges {
                Some(why) if is_news => tracing::warn!("dataplane `{dataplane}` {why}"),
                None if is_news => tracing::info!(
                    "dataplane `{dataplane}` has the deltas of generation {generation} of model {model} that are kept here"
                ),
                _ => {}
            }
        }
        if let Some(why) = diverges {
            return Err(NotTaken::Conflict(format!("the dataplane {why}")));
        }
        let of = (model.to_owned(), generation, sequence);
        if let Some(why) = self.damaged().get(&of) {
            return Err(NotTaken::Damaged(why.clone()));
        }
        {
            let kept = self.kept();
            let last = kept.get(&(model.to_owned(), generation));
            let last = last.map_or(0, Last::sequence);
            if sequence == 0 || sequence > last {
                return Ok(None);
            }
        }
        let path = self.path(model, generation, sequence);
        let read = || {
            let file = File::open(path)?;
            let left = file.metadata()?.len().saturating_sub(at);
            let mut piece = vec![0; left.min(PIECE_BYTES) as usize];
            file.read_exact_at(&mut piece, at)?;
            Ok(Some(piece))
        };
        read().map_err(|source| self.unkept(source))
    }
}

/// Where a delta's number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stands {
    /// It comes next.
    Next,
    /// There is one with it.
    Before,
}
