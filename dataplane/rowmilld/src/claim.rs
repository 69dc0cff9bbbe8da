//! That of all processes one at a time keeps a file.
//!
//! Who keeps it holds a lock of a file beside it: of the file itself nobody could, since each that is written takes the place of the one
//! before. The kernel ends a lock with the process that holds it, however it ends. The lock's file stays: if it were removed, two could
//! hold locks of one name.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{anyhow, ensure};
use rustix::fs::OFlags;

/// How often a lock is tried for before it is another's, and the time between: `--check` holds it for a moment.
const TRIES: u32 = 20;
const BETWEEN: Duration = Duration::from_millis(10);

/// A file that this process keeps, as long as this lives.
#[derive(Debug)]
pub(crate) struct Claim {
    /// Whether others are kept from it: some file systems have no locks.
    pub(crate) is_locked: bool,
    _lock: File,
}

/// Why a file is not to be kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimError {
    /// Another process keeps it.
    #[error("{file} is kept by another rowmilld, which has {lock} locked")]
    Taken {
        /// The file.
        file: String,
        /// The lock beside it.
        lock: String,
    },
    /// There can be no lock.
    #[error("{lock} can't be opened: {source}")]
    Io {
        /// The lock.
        lock: String,
        /// Why.
        source: io::Error,
    },
}

impl Claim {
    /// Takes the file for this process.
    ///
    /// # Errors
    /// [`ClaimError`].
    pub(crate) fn take(file: &Path) -> Result<Claim, ClaimError> {
        let path = lock_of(file);
        // One that another user's process has made can be read.
        let lock = open(&path, true).or_else(|why| open(&path, false).map_err(|_| why));
        let lock = lock.map_err(|source| ClaimError::Io {
            lock: path.display().to_string(),
            source,
        })?;
        for _ in 0..TRIES {
            let is_locked = match lock.try_lock() {
                Err(TryLockError::WouldBlock) => {
                    thread::sleep(BETWEEN);
                    continue;
                }
                outcome => outcome.is_ok(),
            };
            return Ok(Claim {
                is_locked,
                _lock: lock,
            });
        }
        Err(taken(file))
    }

    /// Whether another process keeps the file, found out without leaving a trace.
    ///
    /// # Errors
    /// [`ClaimError::Taken`].
    pub(crate) fn look(file: &Path) -> Result<(), ClaimError> {
        let lock = match open(&lock_of(file), false) {
            Err(_) => return Ok(()),
            Ok(lock) => lock,
        };
        match lock.try_lock_shared() {
            Err(TryLockError::WouldBlock) => Err(taken(file)),
            _ => Ok(()),
        }
    }
}

/// The file by the name that its lock goes by: what a link leads to has one lock by whatever link it is named.
///
/// # Errors
/// Where it has other names, each of which would have a lock of its own, while what is written takes its place under one of them
/// alone; or where a link leads nowhere.
pub(crate) fn only_name(file: PathBuf) -> anyhow::Result<PathBuf> {
    let about = file.symlink_metadata();
    let file = match about.is_ok_and(|about| about.is_symlink()) {
        false => file,
        true => file.canonicalize().map_err(|error| {
            anyhow!("the link {} leads to no file: {error}; name the file itself, which need not be there yet", file.display())
        })?,
    };
    let about = file.metadata().ok().filter(Metadata::is_file);
    let names = about.map_or(1, |about| about.nlink());
    ensure!(
        names == 1,
        "{} has {names} names (hard links), and another rowmilld could keep it by another one: remove the others, or copy it",
        file.display()
    );
    Ok(file)
}

fn lock_of(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// Opens a lock's file, or makes it. In a folder that all may write, another's link would lead elsewhere, and a pipe would be waited for.
fn open(path: &Path, makes: bool) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut options = OpenOptions::new();
    options.read(true).write(makes).create(makes);
    options.mode(0o644).custom_flags(flags).open(path)
}

fn taken(file: &Path) -> ClaimError {
    ClaimError::Taken {
        file: file.display().to_string(),
        lock: lock_of(file).display().to_string(),
    }
}

impl ClaimError {
    /// Whether it is another's, and not only without a lock.
    pub(crate) fn is_taken(&self) -> bool {
        matches!(self, ClaimError::Taken { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_keeps_a_file_however_often_it_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kept");
        Claim::look(&file).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let own = Claim::take(&file).unwrap();
        assert!(own.is_locked);
        for _ in 0..2 {
            let next = folder.path().join("next");
            std::fs::write(&next, "list").unwrap();
            std::fs::rename(&next, &file).unwrap();
            let said = Claim::take(&file).unwrap_err();
            assert!(said.is_taken(), "{said}");
            assert!(Claim::look(&file).unwrap_err().is_taken());
        }
        drop(own);
        Claim::look(&file).unwrap();
        Claim::take(&file).unwrap();
    }

    #[test]
    fn who_looks_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kept");
        drop(Claim::take(&file).unwrap());
        let looks = File::open(lock_of(&file)).unwrap();
        looks.try_lock_shared().unwrap();
        let ends = thread::spawn(move || {
            thread::sleep(2 * BETWEEN);
            drop(looks);
        });
        Claim::take(&file).unwrap();
        ends.join().unwrap();
    }

    #[test]
    fn a_lock_that_cannot_be_opened_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let said = Claim::take(&folder.path().join("none/kept")).unwrap_err();
        assert!(!said.is_taken(), "{said}");
        assert!(said.to_string().contains("none/kept.lock can't be opened"));
        let link = folder.path().join("kept.lock");
        std::os::unix::fs::symlink(folder.path().join("elsewhere"), link).unwrap();
        assert!(Claim::take(&folder.path().join("kept")).is_err());
        assert!(!folder.path().join("elsewhere").exists());
    }

    #[test]
    fn a_link_is_followed_and_a_file_with_two_names_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let said = |name: &str| only_name(at(name)).unwrap_err().to_string();
        assert_eq!(only_name(at("kept")).unwrap(), at("kept"));
        std::os::unix::fs::symlink(at("kept"), at("link")).unwrap();
        let leads = said("link");
        assert!(leads.contains("link leads to no file"), "{leads}");
        std::fs::write(at("kept"), "a list").unwrap();
        let kept = at("kept").canonicalize().unwrap();
        assert_eq!(only_name(at("link")).unwrap(), kept);
        std::fs::hard_link(at("kept"), at("twin")).unwrap();
        for name in ["kept", "twin", "link"] {
            let said = said(name);
            assert!(said.contains("has 2 names"), "{said}");
        }
    }
}
