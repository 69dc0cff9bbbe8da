//! A file system that is small, so that it can be full.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::Verdict;

/// What is written at a time: less than a page, so that no room is left that a page would find.
const PIECE: [u8; 1024] = [1; 1024];

/// A file system in memory; taken away when dropped.
pub(super) struct SmallDisk(PathBuf);

/// What becomes of a fault where none may be mounted.
pub(super) fn lacking() -> Verdict {
    Verdict::Skipped("mounting a file system is not allowed here".into())
}

impl SmallDisk {
    /// Mounts one of so many bytes; `None` where this process may not.
    pub(super) fn mount(at: PathBuf, bytes: u64) -> Result<Option<SmallDisk>> {
        fs::create_dir(&at)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"]);
        let mounted = mount.arg(&at).output();
        let is_mounted = mounted.is_ok_and(|output| output.status.success());
        Ok(is_mounted.then_some(SmallDisk(at)))
    }

    /// A path there.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Fills it, but for so many bytes.
    pub(super) fn fill(&self, but: u64) -> Result<()> {
        let mut filler = File::create(self.path("filler")).context("a file that fills a disk")?;
        let mut bytes = 0;
        loop {
            match filler.write(&PIECE) {
                Ok(written) => bytes += written as u64,
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => bail!("filling a disk: {error}"),
            }
        }
        ensure!(bytes >= but, "the disk had {bytes} bytes free, not {but}");
        filler.set_len(bytes - but).context("making room")
    }

    /// There is room again.
    pub(super) fn empty(&self) -> Result<()> {
        fs::remove_file(self.path("filler")).context("making room")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _unmounted = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
