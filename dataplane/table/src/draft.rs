//! The directory that a generation is written into: beside its place, whose name it gets when all is on
//! disk.
//!
//! Its name is drawn at random, and its writer holds a lock on it (`flock`) for as long as it writes. The
//! kernel gives the lock back however the writer ends, and knows it across PID namespaces, so who can
//! lock a draft may remove it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Access, CWD, FlockOperation, Mode, OFlags, RenameFlags, access, renameat_with};
use rustix::io::Errno;

use crate::blocks::Meter;
use crate::manifest::TableInfo;
use crate::mix::random_seed;
use crate::{Progress, Stage, TableError};

/// Room left for directories and the file system's own bookkeeping.
const DISK_RESERVE_BYTES: u64 = 16 << 20;
/// How often a directory is made. One is lost to a clean-up only where that comes between making it and
/// locking it.
const ATTEMPTS: usize = 16;

/// A directory that is removed again unless it is published.
#[derive(Debug)]
pub(crate) struct Draft {
    temporary: PathBuf,
    target: PathBuf,
    parent: PathBuf,
    /// The directory, locked until this is closed.
    _lock: File,
}

impl Draft {
    pub(crate) fn begin(target: &Path, bytes: u64) -> Result<Draft, TableError> {
        if target.symlink_metadata().is_ok() {
            return Err(TableError::AlreadyExists {
                path: target.to_owned(),
            });
        }
        let name = target
            .file_name()
            .ok_or_else(|| TableError::AlreadyExists {
                path: target.to_owned(),
            })?;
        let parent = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let not_writable = |source| TableError::NotWritable {
            path: parent.clone(),
            source,
        };
        fs::create_dir_all(&parent).map_err(not_writable)?;
        access(&parent, Access::WRITE_OK | Access::EXEC_OK)
            .map_err(|errno| not_writable(errno.into()))?;
        let mut prefix = OsString::from(".");
        prefix.push(name);
        prefix.push(".partial-");
        remove_abandoned(&parent, &prefix);
        check_room(&parent, bytes)?;
        let (temporary, lock) = make_locked(&parent, &prefix).map_err(not_writable)?;
        Ok(Draft {
            temporary,
            target: target.to_owned(),
            parent,
            _lock: lock,
        })
    }

    /// The path of a file in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.temporary.join(name)
    }

    pub(crate) fn write_file(&self, name: &str, bytes: &[u8]) -> Result<(), TableError> {
        let path = self.path(name);
        let file = File::create_new(&path).map_err(TableError::io(&path))?;
        file.write_all_at(bytes, 0).map_err(TableError::io(&path))?;
        file.sync_all().map_err(TableError::io(&path))
    }

    pub(crate) fn sync(
        &self,
        tables: &[TableInfo],
        progress: Progress<'_>,
        stop: &AtomicBool,
    ) -> Result<(), TableError> {
        let meter = Meter::new(
            progress,
            Stage::Syncing,
            tables.iter().map(|table| table.file_bytes).sum(),
        );
        for table in tables {
            let path = self.path(&table.file);
            File::open(&path)
                .and_then(|file| file.sync_all())
                .map_err(TableError::io(&path))?;
            meter.add(table.file_bytes);
            if stop.load(Ordering::Relaxed) {
                return Err(TableError::Interrupted);
            }
        }
        Ok(())
    }

    /// Gives the directory its name, which must not exist. Whoever sees the name sees all of the contents.
    pub(crate) fn publish(self) -> Result<(), TableError> {
        let sync = |path: &Path| {
            File::open(path)
                .and_then(|dir| dir.sync_all())
                .map_err(TableError::io(path))
        };
        sync(&self.temporary)?;
        rename_to_new(&self.temporary, &self.target).map_err(|source| match source.kind() {
            io::ErrorKind::DirectoryNotEmpty
            | io::ErrorKind::AlreadyExists
            | io::ErrorKind::NotADirectory => TableError::AlreadyExists {
                path: self.target.clone(),
            },
            _ => TableError::Io {
                path: self.target.clone(),
                source,
            },
        })?;
        sync(&self.parent)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After publishing there is nothing of this name; after an error whatever stays is harmless,
        // since it has no manifest, and the next attempt removes it. The lock is closed after this.
        let _ = fs::remove_dir_all(&self.temporary);
    }
}

/// Renames a directory to a name that nothing has.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // The file system can't, NFS for one. Of all that `to` may be, this replaces an empty directory.
        Err(Errno::INVAL | Errno::NOSYS) => fs::rename(from, to),
        result => Ok(result?),
    }
}

/// Makes a directory of a new name and locks it. Where the file system has no locks of directories, it
/// stays without one: then nobody gets one, and nobody removes it.
fn make_locked(parent: &Path, prefix: &OsStr) -> io::Result<(PathBuf, File)> {
    for _ in 0..ATTEMPTS {
        let mut name = prefix.to_owned();
        name.push(format!("{:016x}", random_seed()));
        let path = parent.join(name);
        fs::create_dir(&path)?;
        match lock_made(&path) {
            Ok(Some(lock)) => return Ok((path, lock)),
            Ok(None) => {}
            Err(error) => {
                let _ = fs::remove_dir(&path);
                return Err(error);
            }
        }
    }
    Err(io::Error::other(
        "others that write there removed each new directory; try again",
    ))
}

/// Locks a directory that was made; none where a clean-up came first, and has locked or removed it.
fn lock_made(path: &Path) -> io::Result<Option<File>> {
    let lock = match open_directory(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let taken = try_lock(&lock) == Err(Errno::WOULDBLOCK);
    // It may have been removed after it was opened and before it was locked.
    Ok((!taken && lies_at(&lock, path)).then_some(lock))
}

fn open_directory(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

fn try_lock(directory: &File) -> Result<(), Errno> {
    rustix::fs::flock(directory, FlockOperation::NonBlockingLockExclusive)
}

/// Whether the opened directory is what `path` names.
fn lies_at(directory: &File, path: &Path) -> bool {
    let (Ok(opened), Ok(named)) = (directory.metadata(), path.symlink_metadata()) else {
        return false;
    };
    (opened.dev(), opened.ino()) == (named.dev(), named.ino())
}

/// Removes the drafts that nobody writes any more.
fn remove_abandoned(parent: &Path, prefix: &OsStr) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(end) = name.as_bytes().strip_prefix(prefix.as_bytes()) else {
            continue;
        };
        if !ends_draft(end) {
            continue;
        }
        let path = entry.path();
        let Ok(lock) = open_directory(&path) else {
            continue;
        };
        // What was locked may have been published since it was listed: then it has another name.
        if try_lock(&lock).is_ok() && lies_at(&lock, &path) {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// Whether a draft's name may end so: 16 hexadecimal digits, or a process's number as in those of
/// earlier versions.
fn ends_draft(end: &[u8]) -> bool {
    let hexadecimal = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    match end.len() {
        16 => end.iter().all(hexadecimal),
        1..=10 => end.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

fn check_room(parent: &Path, bytes: u64) -> Result<(), TableError> {
    let stat = rustix::fs::statvfs(parent).map_err(|errno| TableError::Io {
        path: parent.to_owned(),
        source: errno.into(),
    })?;
    if stat.f_blocks == 0 {
        // No information: a file system without files of one's own, such as /proc, or one without a
        // bound. What comes next tells them apart.
        return Ok(());
    }
    let available = stat.f_bavail.saturating_mul(stat.f_frsize);
    let needed = bytes.saturating_add(DISK_RESERVE_BYTES);
    if needed > available {
        return Err(TableError::TooLittleDisk {
            path: parent.to_owned(),
            needed,
            available,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name();
        let names = fs::read_dir(folder).unwrap().map(name);
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn writers_of_one_target_leave_each_other_alone() {
        let temp = tempfile::tempdir().unwrap();
        let target = temp.path().join("model");
        let first = Draft::begin(&target, 0).unwrap();
        first.write_file("who", b"first").unwrap();
        let second = Draft::begin(&target, 0).unwrap();
        second.write_file("who", b"second").unwrap();
        let third = Draft::begin(&target, 0).unwrap();
        assert_eq!(names(temp.path()).len(), 3);
        drop(third);
        assert_eq!(names(temp.path()).len(), 2, "only its own is removed");
        second.publish().unwrap();
        let error = first.publish().unwrap_err();
        assert!(matches!(error, TableError::AlreadyExists { .. }), "{error}");
        assert_eq!(names(temp.path()), ["model"]);
        assert_eq!(fs::read(target.join("who")).unwrap(), b"second");
    }

    #[test]
    fn whatever_is_at_the_target_stays() {
        let temp = tempfile::tempdir().unwrap();
        let target = temp.path().join("model");
        let make: [fn(&Path); 3] = [
            |path| fs::create_dir(path).unwrap(),
            |path| fs::write(path, "").unwrap(),
            |path| std::os::unix::fs::symlink("nowhere", path).unwrap(),
        ];
        for make in make {
            let draft = Draft::begin(&target, 0).unwrap();
            make(&target);
            let before = target.symlink_metadata().unwrap().ino();
            let error = draft.publish().unwrap_err();
            assert!(matches!(error, TableError::AlreadyExists { .. }), "{error}");
            assert_eq!(target.symlink_metadata().unwrap().ino(), before);
            let _ = fs::remove_file(&target).or_else(|_| fs::remove_dir(&target));
        }
    }

    #[test]
    fn only_drafts_that_nobody_writes_are_removed() {
        let temp = tempfile::tempdir().unwrap();
        let make = |name: &str| fs::create_dir(temp.path().join(name)).unwrap();
        // The process of the second number lives, but has nothing to do with it.
        let own = format!(".model.partial-{}", std::process::id());
        let abandoned = [".model.partial-0123456789abcdef", &own];
        let others = [
            ".model.partial-",
            ".model.partial-0123456789ABCDEF",
            ".model.partial-notes",
            ".models.partial-1",
        ];
        abandoned.into_iter().chain(others).for_each(make);
        // A writer in another PID namespace, whose number means nothing here.
        make(".model.partial-4294967295");
        let lock = open_directory(&temp.path().join(".model.partial-4294967295")).unwrap();
        try_lock(&lock).unwrap();
        let draft = Draft::begin(&temp.path().join("model"), 0).unwrap();
        drop(draft);
        let mut expected = others.to_vec();
        expected.push(".model.partial-4294967295");
        expected.sort();
        assert_eq!(names(temp.path()), expected);
    }

    #[test]
    fn a_draft_that_a_clean_up_has_come_to_is_not_taken() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("draft");
        assert!(lock_made(&path).unwrap().is_none(), "removed");
        fs::create_dir(&path).unwrap();
        let clean_up = open_directory(&path).unwrap();
        try_lock(&clean_up).unwrap();
        assert!(lock_made(&path).unwrap().is_none(), "locked");
        drop(clean_up);
        let lock = lock_made(&path).unwrap().expect("nobody has it");
        assert!(lies_at(&lock, &path));
        fs::remove_dir(&path).unwrap();
        assert!(!lies_at(&lock, &path), "removed after it was opened");
        fs::create_dir(&path).unwrap();
        assert!(!lies_at(&lock, &path), "another one has its name");
    }
}
