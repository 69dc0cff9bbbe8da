//! A disk in memory, with a file system: to see what is rowmill's own of what is measured on a disk. Reads go the same way through the
//! kernel, but are done when it has been told of them: no interrupt comes to a CPU that somebody uses, and no hypervisor is called.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use rowmill_arena::available_bytes;
use tempfile::TempDir;

/// Makes it, and takes it away when its standard input ends.
const PROGRAM: &str = include_str!("../memory_disk.sh");
/// What has to be left of the memory for everything else.
const SPARE_BYTES: u64 = 2 << 30;

/// See above. It is there until this is dropped or the process ends.
pub(crate) struct MemoryDisk {
    keeper: Child,
    folder: TempDir,
}

impl MemoryDisk {
    /// A disk of so many bytes, which take memory as they are written.
    ///
    /// # Errors
    /// Where this user may not make one, the kernel has none (zram), or memory is short.
    pub(crate) fn new(bytes: u64) -> Result<MemoryDisk> {
        let (available, of) = available_bytes();
        ensure!(
            available >= bytes + SPARE_BYTES,
            "a disk in memory of {bytes} bytes, and {SPARE_BYTES} for everything else, are more than the {available} bytes {of} that are left"
        );
        let folder = tempfile::tempdir()?;
        let keeper = Command::new("sh")
            .args(["-c", PROGRAM, "memory_disk.sh", &bytes.to_string()])
            .arg(folder.path())
            // Whatever ends this process and all of its group leaves it to take the disk away.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("running sh")?;
        // From here on it ends with this.
        let mut disk = MemoryDisk { keeper, folder };
        let mut said = String::new();
        let out = disk.keeper.stdout.as_mut().context("its output")?;
        BufReader::new(out).read_line(&mut said)?;
        if said.trim() != "ready" {
            let mut why = String::new();
            let errors = disk.keeper.stderr.as_mut().context("its errors")?;
            errors.read_to_string(&mut why)?;
            bail!("no disk in memory can be made: {}", why.trim());
        }
        Ok(disk)
    }

    /// The folder where its file system is.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for MemoryDisk {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        // What it says there has no reader; it ends anyway.
        let _ = self.keeper.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_disk_in_memory_takes_files_and_goes_with_what_holds_it_or_says_why_there_is_none() {
        match MemoryDisk::new(64 << 20) {
            Ok(disk) => {
                let folder = disk.path().to_owned();
                let mounts = || fs::read_to_string("/proc/self/mounts").expect("mounts");
                let is_mounted = || mounts().contains(folder.to_str().expect("a plain name"));
                fs::write(folder.join("file"), [7; 1 << 20]).expect("a disk takes files");
                assert!(is_mounted(), "a disk of its own");
                drop(disk);
                assert!(!is_mounted() && !folder.exists(), "nothing stays behind");
            }
            // Not every kernel has them, nor may every user make one.
            Err(why) => assert!(why.to_string().contains("disk in memory"), "{why:#}"),
        }
    }

    #[test]
    fn a_disk_that_memory_has_no_room_for_is_refused() {
        let refused = MemoryDisk::new(1 << 60).err().expect("nobody has so much");
        assert!(refused.to_string().contains("are left"), "{refused}");
    }
}
