//! The log of deltas: files with rows that are to become others, kept for the dataplanes of their model.
//!
//! Those of generation N of a model are `MODEL/gen-N/SEQUENCE.delta` in the log's directory, as each dataplane keeps them, too. A file has that
//! name when it was read whole, comes next, and is on the disk; only then is it acknowledged. Until then it is `incoming.tmp`, and one that is
//! found at a start is of a process that died meanwhile. Nothing is ever changed or removed here: an operator who does not need the deltas of a
//! generation any more removes their directory, and starts the control plane anew.
//!
//! Dataplanes ask for the delta after their last one, a piece at a time. What they apply is decided by themselves, from what they have.

mod stream;
mod watch;

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::{Context, ensure};
use rowmill_table::{DeltaFile, DeltaHead, TableError, delta_chain};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::config::Deltas;

pub(crate) use stream::Reader;
pub(crate) use watch::watch;

/// Bytes of a delta that a dataplane is given at a time.
pub const PIECE_BYTES: u64 = 1 << 20;

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
pub(crate) enum NotTaken {
    /// It is damaged, or none.
    #[error(transparent)]
    Bad(#[from] TableError),
    /// It does not come next.
    #[error("{0}")]
    Conflict(String),
    /// Another one is on its way.
    #[error("another delta is being taken: try again in a second")]
    Busy,
    /// It can't be kept, or read.
    #[error("cannot write or read in {}: {source}", directory.display())]
    Io {
        directory: PathBuf,
        source: io::Error,
    },
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
    /// How it stands with each place that deltas come from by themselves, a sentence.
    sources: Mutex<BTreeMap<&'static str, String>>,
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
        make(directory).with_context(|| format!("cannot make {}", directory.display()))?;
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
                if let Some((of, last)) = found(&generation)? {
                    tracing::info!(
                        "{} deltas of generation {} of model {} are kept",
                        last.sequence(),
                        of.1,
                        of.0
                    );
                    log.kept().insert(of, last);
                }
            }
        }
        Ok(log)
    }

    fn kept(&self) -> MutexGuard<'_, BTreeMap<(String, u64), Last>> {
        self.kept.lock().expect("a panic ends the process")
    }

    /// How it stands with a place that deltas come from by themselves. It is logged where it is another sentence than before.
    pub(crate) fn says(&self, source: &'static str, text: String) {
        let mut sources = self.sources.lock().expect("a panic ends the process");
        if sources.get(source) != Some(&text) {
            tracing::info!("deltas: {text}");
            sources.insert(source, text);
        }
    }

    /// All that was said so last.
    pub(crate) fn sources(&self) -> Vec<String> {
        let sources = self.sources.lock().expect("a panic ends the process");
        sources.values().cloned().collect()
    }

    /// Takes a delta that is in memory, once others that come in have.
    pub(crate) fn give(&self, bytes: &[u8]) -> Result<Taken, NotTaken> {
        let alone = self.alone();
        let taken = self.begin(&alone).and_then(|mut draft| {
            let written = io::Write::write_all(&mut draft, bytes);
            written.map_err(|source| self.unkept(source))?;
            self.take(&draft, &alone)
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
    pub(crate) fn list(&self) -> Vec<Kept> {
        let kept = self.kept();
        let view = |((model, generation), last): (&(String, u64), &Last)| Kept {
            model: model.clone(),
            generation: *generation,
            fingerprint: format!("{:08x}", last.base),
            last: last.sequence(),
            bytes: last.bytes,
        };
        kept.iter().map(view).collect()
    }

    fn path(&self, model: &str, generation: u64, sequence: u64) -> PathBuf {
        let model = self.directory.join(name_of(model));
        let generation = model.join(format!("gen-{generation}"));
        generation.join(file_name(sequence))
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
            _ if sequence > next => Err(NotTaken::Conflict(format!(
                "the delta has sequence number {sequence}, and {next} comes next of {of}"
            ))),
            _ if sequence == next => Ok(Stands::Next),
            _ => Ok(Stands::Before),
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
    fn has(&self, delta: &DeltaFile) -> Result<bool, NotTaken> {
        let head = delta.head();
        let path = self.path(&head.model, head.generation, head.sequence);
        match DeltaFile::open(&path)?.crc32() == delta.crc32() {
            true => Ok(true),
            false => Err(NotTaken::Conflict(format!(
                "the delta has sequence number {} of generation {} of model {}, which another one has that is kept",
                head.sequence, head.generation, head.model
            ))),
        }
    }

    /// Takes the draft, which is whole, into the log.
    pub(crate) fn take(
        &self,
        draft: &File,
        _alone: &MutexGuard<'_, ()>,
    ) -> Result<Taken, NotTaken> {
        let delta = DeltaFile::open(self.draft())?;
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
            // Whoever was told of it first may have died before its name was on the disk.
            let synced = sync(path.parent().expect("in a directory"));
            synced.map_err(|source| self.unkept(source))?;
            return Ok(taken(false));
        }
        let directory = path.parent().expect("in a directory");
        let keep = || {
            make(directory)?;
            draft.sync_all()?;
            fs::rename(self.draft(), &path)?;
            sync(directory)
        };
        keep().map_err(|source| self.unkept(source))?;
        let mut kept = self.kept();
        let of = (head.model.clone(), head.generation);
        kept.entry(of)
            .or_insert_with(|| Last::of(head.base))
            .push(&delta);
        tracing::info!(
            "delta {} of generation {} of model {} is kept, with {} rows",
            head.sequence,
            head.generation,
            head.model,
            head.rows()
        );
        Ok(taken(true))
    }

    /// The draft is no longer of use.
    pub(crate) fn drop_draft(&self, _alone: &MutexGuard<'_, ()>) {
        // It may have become one that is kept. What stays is written over.
        let _gone = fs::remove_file(self.draft());
    }

    /// A piece of a delta from one of its bytes on: fewer than [`PIECE_BYTES`] at its end. None where there is no such delta. `chain`: what
    /// tells the deltas that who asks has applied from any others, which have to be those before it here.
    ///
    /// # Errors
    /// Where it can't be read, or who asks has applied others.
    pub(crate) fn piece(
        &self,
        (model, generation, sequence): (&str, u64, u64),
        chain: Option<u32>,
        at: u64,
    ) -> Result<Option<Vec<u8>>, NotTaken> {
        {
            let kept = self.kept();
            let last = kept.get(&(model.to_owned(), generation));
            let Some((last, before)) = last.zip(sequence.checked_sub(1)) else {
                return Ok(None);
            };
            let own = last.chain(before);
            if own.is_some() && chain.is_some_and(|chain| own != Some(chain)) {
                return Err(NotTaken::Conflict(format!(
                    "the dataplane has applied other deltas to generation {generation} of model {model} than the {before} that are kept here, or serves \
                     another generation of that number: it gets none after them; move away its deltas, or those that are kept here, and start it anew"
                )));
            }
            if sequence > last.sequence() {
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

fn file_name(sequence: u64) -> String {
    format!("{sequence:020}.delta")
}

/// Directories in a directory.
fn folders(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let unread = || format!("cannot look into {}", directory.display());
    let mut found = Vec::new();
    for entry in directory.read_dir().with_context(unread)? {
        let entry = entry.with_context(unread)?;
        if entry.file_type().with_context(unread)?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// What a generation's directory has.
fn found(directory: &Path) -> anyhow::Result<Option<((String, u64), Last)>> {
    let unread = || format!("cannot look into {}", directory.display());
    let mut count = 0;
    for entry in directory.read_dir().with_context(unread)? {
        let entry = entry.with_context(unread)?;
        if entry.file_name().to_string_lossy().ends_with(".delta") {
            count += 1;
        }
    }
    if count == 0 {
        return Ok(None);
    }
    let mut found: Option<((String, u64), Last)> = None;
    for sequence in 1..=count {
        let path = directory.join(file_name(sequence));
        // With as many files, each of which has a number of its own, one that lacks tells of a gap.
        ensure!(
            path.try_exists().with_context(unread)?,
            "{} has {count} deltas, which are to be those from 1 on without a gap, and lacks {sequence}: bring it back, or remove all after it",
            directory.display()
        );
        let delta = DeltaFile::open(&path)?;
        let head = delta.head();
        let (of, last) = found.get_or_insert_with(|| {
            let of = (head.model.clone(), head.generation);
            (of, Last::of(head.base))
        });
        let named = format!("gen-{}", of.1);
        let is_there = directory
            .file_name()
            .is_some_and(|name| name.to_str() == Some(&named));
        ensure!(
            is_there
                && (&head.model, head.generation, head.base, head.sequence)
                    == (&of.0, of.1, last.base, sequence),
            "{} is delta {} of generation {} of model {} (fingerprint {:08x}): it does not belong there",
            path.display(),
            head.sequence,
            head.generation,
            head.model,
            head.base
        );
        last.push(&delta);
    }
    // One of them may have got its name right before a kill.
    sync(directory).with_context(unread)?;
    Ok(found)
}

/// Makes a directory, with those above it that there are not, for nobody else to look into; its name is on the disk then.
fn make(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let above = directory.parent().filter(|above| *above != Path::new(""));
    if let Some(above) = above {
        make(above)?;
    }
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => above.map_or(Ok(()), sync),
    }
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// A model's name as that of a directory: bytes that may mean something else are written as `%` and two hexadecimal digits.
fn name_of(model: &str) -> String {
    let mut name = String::new();
    for (at, byte) in model.bytes().enumerate() {
        let is_plain =
            byte.is_ascii_alphanumeric() || b"_-".contains(&byte) || (byte == b'.' && at > 0);
        match is_plain {
            true => name.push(char::from(byte)),
            false => name += &format!("%{byte:02x}"),
        }
    }
    name
}
