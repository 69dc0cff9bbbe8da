//! Deltas that appear in a directory: they come into the log in the order of their numbers.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rowmill_table::DeltaFile;
use tokio::sync::watch::Receiver;

use super::{Log, NotTaken, Source, Stands};

/// How often the directory is looked into.
const LOOK: Duration = Duration::from_secs(1);
/// Files whose fate is remembered; beyond that all are looked at anew.
const REMEMBERED: usize = 100_000;

/// What tells whether a file is another one by now.
type Seen = (u64, Option<SystemTime>);

/// Looks into a directory until the end. A file whose name ends in `.delta` is complete: who writes it renames it to that. It stays
/// where it is, whatever becomes of it.
pub(crate) async fn watch(log: Arc<Log>, directory: PathBuf, mut stopped: Receiver<bool>) {
    let mut watcher = Watcher {
        log,
        directory,
        done: BTreeMap::new(),
        damaged: Vec::new(),
    };
    while !watcher.log.has_heard() && !*stopped.borrow() {
        tokio::time::sleep(LOOK / 10).await;
    }
    loop {
        let looked = tokio::task::spawn_blocking(move || {
            watcher.look();
            watcher
        });
        // A panic ends the process.
        let Ok(again) = looked.await else { return };
        watcher = again;
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            _ = stopped.wait_for(|stopped| *stopped) => return,
        }
    }
}

struct Watcher {
    log: Arc<Log>,
    directory: PathBuf,
    /// Files that need not be looked at again, unless they change: taken, known, or bad.
    done: BTreeMap<PathBuf, Seen>,
    /// Deltas of the log that were damaged when it was looked last: those that are found damaged later may be here.
    damaged: Vec<(String, u64, u64)>,
}

impl Watcher {
    fn look(&mut self) {
        let damaged: Vec<_> = self.log.damaged().keys().cloned().collect();
        if damaged.iter().any(|of| !self.damaged.contains(of)) {
            self.done.clear();
        }
        self.damaged = damaged;
        let files = match self.files() {
            Ok(files) => files,
            Err(error) => {
                let directory = self.directory.display();
                let text =
                    format!("cannot look into {directory}: {error}; trying again each second");
                return self.log.sources().says(Source::Watch, &text);
            }
        };
        let (mut found, mut unread) = (Vec::new(), None);
        for (path, seen) in files {
            match DeltaFile::open(&path).map_err(NotTaken::from) {
                Ok(delta) => {
                    let head = delta.head();
                    let place = (head.model.clone(), head.generation, head.sequence);
                    found.push((place, path, seen));
                }
                Err(error) if error.may_pass() => unread = Some(error),
                Err(error) => self.refuse(path, seen, &error.to_string()),
            }
        }
        found.sort();
        let mut waiting = 0;
        for (_, path, seen) in found {
            match take(&self.log, &path) {
                Ok(true) => {
                    self.log.sources().took(Source::Watch);
                    self.done.insert(path, seen);
                }
                // One before it may come yet.
                Ok(false) => waiting += 1,
                Err(error) if error.may_pass() => {
                    let text = format!("{}: {error}; trying again each second", path.display());
                    return self.log.sources().says(Source::Watch, &text);
                }
                Err(error) => self.refuse(path, seen, &error.to_string()),
            }
        }
        let mut text = format!("directory {} is watched", self.directory.display());
        if waiting > 0 {
            text += &format!(", and {waiting} deltas in it wait for others before them");
        }
        if let Some(error) = unread {
            text += &format!("; {error}; trying again each second");
        }
        self.log.sources().says(Source::Watch, &text);
    }

    fn refuse(&mut self, path: PathBuf, seen: Seen, why: &str) {
        let name = path.display().to_string();
        self.log.sources().refused(Source::Watch, &name, why);
        self.done.insert(path, seen);
    }

    /// Files that are to be looked at.
    fn files(&mut self) -> io::Result<Vec<(PathBuf, Seen)>> {
        let (mut files, mut there) = (Vec::new(), BTreeMap::new());
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if path.extension().is_none_or(|end| end != "delta") {
                continue;
            }
            // Who takes it away is not waited for.
            let Ok(meta) = fs::metadata(&path) else {
                continue;
            };
            let seen = (meta.len(), meta.modified().ok());
            if self.done.get(&path) == Some(&seen) && there.len() < REMEMBERED {
                there.insert(path, seen);
            } else {
                files.push((path, seen));
            }
        }
        self.done = there;
        Ok(files)
    }
}

/// Takes a file into the log. Whether it is there then: not where another has to come before it.
fn take(log: &Log, path: &Path) -> Result<bool, NotTaken> {
    let delta = DeltaFile::open(path)?;
    if log.is_ahead(delta.head()) {
        return Ok(false);
    }
    if delta.head().file_bytes() > log.most {
        return Err(NotTaken::Conflict(format!(
            "it has {} bytes, and deltas.max_bytes is {}",
            delta.head().file_bytes(),
            log.most
        )));
    }
    if log.stands(delta.head())? == Stands::Before && !log.is_damaged(delta.head()) {
        log.has(&delta)?;
        return Ok(true);
    }
    let alone = log.alone();
    let taken = log.begin(&alone).and_then(|mut draft: File| {
        delta.bytes(&mut |piece| io::Write::write_all(&mut draft, piece))?;
        log.take(&draft, delta.path(), &alone)
    });
    log.drop_draft(&alone);
    taken.map(|_| true)
}
