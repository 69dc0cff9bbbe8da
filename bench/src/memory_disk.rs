//! A disk in memory, with a file system. Reads of it are done on the reader's CPU while they are submitted: there are no interrupts and no
//! calls of a hypervisor for them, but neither is there a block queue, a driver or a wait; instead each page is copied. So it shows whether
//! a figure needs a device's interrupts or delays to be bad.

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
        let keeper = keeper(bytes, folder.path())
            .stdin(Stdio::piped())
            .spawn()
            .context("running sh")?;
        // From here on it ends with this.
        let mut disk = MemoryDisk { keeper, folder };
        let mut said = String::new();
        let out = disk.keeper.stdout.as_mut().context("its output")?;
        BufReader::new(out).read_line(&mut said)?;
        if said.trim() != "ready" {
            let why = disk.end()?;
            bail!("no disk in memory can be made: {}", why.trim());
        }
        Ok(disk)
    }

    /// The folder where its file system is.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Takes it away. Returns what went wrong with it.
    fn end(&mut self) -> Result<String> {
        let mut wrong = String::new();
        drop(self.keeper.stdin.take());
        if let Some(mut errors) = self.keeper.stderr.take() {
            errors.read_to_string(&mut wrong)?;
        }
        self.keeper.wait()?;
        Ok(wrong)
    }
}

impl Drop for MemoryDisk {
    fn drop(&mut self) {
        match self.end() {
            Ok(wrong) if wrong.is_empty() => {}
            Ok(wrong) => eprintln!("taking a disk in memory away: {}", wrong.trim()),
            Err(why) => eprintln!("taking a disk in memory away: {why:#}"),
        }
    }
}

/// What makes the disk, and takes it away when its standard input ends.
fn keeper(bytes: u64, folder: &Path) -> Command {
    let mut keeper = Command::new("sh");
    keeper
        .args(["-c", PROGRAM, "memory_disk.sh", &bytes.to_string()])
        .arg(folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Whatever ends this process and all of its group leaves it to take the disk away.
        .process_group(0);
    keeper
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const BYTES: u64 = 64 << 20;

    /// A disk, or nothing where the kernel, this user's rights or the machine's programs let none be made.
    fn disk() -> Option<MemoryDisk> {
        let why = match MemoryDisk::new(BYTES) {
            Ok(disk) => return Some(disk),
            Err(why) => format!("{why:#}"),
        };
        let known = ["hot_remove", "are left", "mkfs.ext4: not found", "mount: "];
        assert!(known.iter().any(|known| why.contains(known)), "{why}");
        eprintln!("not tested: {why}");
        None
    }

    /// The device that is mounted on a folder.
    fn device_on(folder: &Path) -> Option<String> {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
        let mut fields = mounts.lines().map(|line| line.split(' '));
        fields.find_map(|mut line| {
            let (device, on) = (line.next()?, line.next()?);
            (Path::new(on) == folder).then(|| device.to_owned())
        })
    }

    #[test]
    fn a_disk_in_memory_takes_files_and_goes_with_what_holds_it() {
        let Some(disk) = disk() else {
            return;
        };
        let folder = disk.path().to_owned();
        assert!(device_on(&folder).is_some(), "a disk of its own");
        fs::write(folder.join("file"), [7; 1 << 20]).expect("a disk takes files");
        drop(disk);
        assert_eq!(device_on(&folder), None);
        // It is removed when the device has gone, whose number another test may have by now.
        assert!(!folder.exists(), "{}", folder.display());
    }

    #[test]
    fn a_disk_whose_process_has_gone_goes_too() {
        if disk().is_none() {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder").keep();
        let mut keeper = keeper(BYTES, &folder);
        let mut keeper = keeper.stdin(Stdio::null()).spawn().expect("sh");
        // Nobody hears that it is ready.
        drop((keeper.stdout.take(), keeper.stderr.take()));
        keeper.wait().expect("it ends");
        assert_eq!(device_on(&folder), None);
        assert!(!folder.exists(), "{}", folder.display());
    }

    #[test]
    fn a_disk_that_memory_has_no_room_for_is_refused() {
        let refused = MemoryDisk::new(1 << 60).err().expect("nobody has so much");
        assert!(refused.to_string().contains("are left"), "{refused}");
    }
}
