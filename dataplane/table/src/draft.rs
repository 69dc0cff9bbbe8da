//! The directory that a generation is written into: beside its place, whose name it gets when all is on
//! disk.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process;

use rustix::fs::{Access, access};

use crate::blocks::Meter;
use crate::manifest::TableInfo;
use crate::{Progress, Stage, TableError};

/// Room left for directories and the file system's own bookkeeping.
const DISK_RESERVE_BYTES: u64 = 16 << 20;

/// A directory that is removed again unless it is published.
pub(crate) struct Draft {
    temporary: PathBuf,
    target: PathBuf,
    parent: PathBuf,
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
        let mut partial = prefix;
        partial.push(process::id().to_string());
        let temporary = parent.join(partial);
        fs::create_dir(&temporary).map_err(not_writable)?;
        Ok(Draft {
            temporary,
            target: target.to_owned(),
            parent,
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
        }
        Ok(())
    }

    /// Gives the directory its name. Whoever sees the name sees all of the contents.
    pub(crate) fn publish(self) -> Result<(), TableError> {
        let sync = |path: &Path| {
            File::open(path)
                .and_then(|dir| dir.sync_all())
                .map_err(TableError::io(path))
        };
        sync(&self.temporary)?;
        // An empty directory would be replaced, one with contents is refused by the kernel.
        fs::rename(&self.temporary, &self.target).map_err(|source| match source.kind() {
            std::io::ErrorKind::DirectoryNotEmpty | std::io::ErrorKind::AlreadyExists => {
                TableError::AlreadyExists {
                    path: self.target.clone(),
                }
            }
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
        // since it has no manifest, and the next attempt removes it.
        let _ = fs::remove_dir_all(&self.temporary);
    }
}

/// Removes what attempts of processes that are gone have left behind.
fn remove_abandoned(parent: &Path, prefix: &OsString) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let (Some(name), Some(prefix)) = (name.to_str(), prefix.to_str()) else {
            continue;
        };
        let Some(pid) = name
            .strip_prefix(prefix)
            .and_then(|rest| rest.parse::<u32>().ok())
        else {
            continue;
        };
        if pid == process::id() || !Path::new(&format!("/proc/{pid}")).exists() {
            let _ = fs::remove_dir_all(entry.path());
        }
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
