//! A file system whose reads are as slow, silent or wrong as a fault wants: a folder seen through FUSE, of the kernel's protocol 7.31.
//!
//! It is mounted in a name space of the service's own, so that it goes with the service. Only what reading a folder of files takes is
//! answered; all else is refused.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rowmill_table::PAGE_BYTES;
use rustix::io::Errno;

use super::site::Site;

/// How reads of the files are answered that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// At once.
    Good,
    /// Each after [`SLOW`], one after another.
    Slow,
    /// Not before the manner is another one.
    Silent,
    /// With an error, but for the header: where that can't be read there is no table.
    Failing,
    /// With a bit that is another one.
    Wrong,
}

/// How long a slow read takes: that of a disk that has to move its heads.
const SLOW: Duration = Duration::from_millis(5);

/// Bytes of a message's head, to us and from us.
const HEAD_BYTES: usize = 40;
const REPLY_BYTES: usize = 16;
/// The root's number; the files' follow.
const ROOT: u64 = 1;

/// A file system with a manner.
pub(super) struct Disk(Arc<Server>);

/// What answers the kernel. Its thread ends when the file system is mounted nowhere any more.
struct Server {
    device: File,
    /// The folder, then its files: each is known by its place here, from [`ROOT`] on.
    nodes: Vec<PathBuf>,
    /// The numbers of the files that the manner is about.
    special: Vec<u64>,
    state: Mutex<(Manner, Vec<Wanted>)>,
}

/// A read.
#[derive(Clone, Copy)]
struct Wanted {
    unique: u64,
    node: u64,
    offset: u64,
    bytes: usize,
}

/// Why there can't be one here; `None` where there can.
///
/// # Errors
/// Where a folder can't be made.
pub(super) fn why_not(site: &Site) -> Result<Option<String>> {
    let folder = mount_point(site)?;
    let Ok(device) = open() else {
        return Ok(Some("needs /dev/fuse: be root".into()));
    };
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", MOUNT, "sh"]).arg(&folder);
    let output = command.stdin(device).output().context("unshare")?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Ok((!output.status.success()).then(|| format!("needs to mount with FUSE: {said}")))
}

/// Mounts standard input, a FUSE device, at the first argument.
const MOUNT: &str = "mount -i -t fuse -o fd=0,rootmode=40000,user_id=0,group_id=0 none \"$1\"";

fn open() -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/fuse")
}

/// Where it is mounted.
pub(super) fn mount_point(site: &Site) -> Result<PathBuf> {
    let folder = site.path("disk");
    fs::create_dir_all(&folder).context("a folder")?;
    Ok(folder)
}

impl Disk {
    /// Shows the files of `folder`; reads of `files` have a manner. With it comes the command that mounts it and then becomes the program
    /// called `name`, leashed.
    ///
    /// # Errors
    /// Where there is no FUSE.
    pub(super) fn over(
        site: &Site,
        folder: &Path,
        files: &[PathBuf],
        name: &str,
    ) -> Result<(Disk, Command)> {
        let device = open().context("/dev/fuse")?;
        let mut nodes = vec![folder.to_owned()];
        for entry in fs::read_dir(folder).context("the folder")? {
            nodes.push(entry.context("the folder")?.path());
        }
        let number = |file: &PathBuf| {
            let place = nodes.iter().position(|path| path == file);
            anyhow::Ok(ROOT + place.context("a file of the folder")? as u64)
        };
        let server = Arc::new(Server {
            device: device.try_clone()?,
            special: files.iter().map(number).collect::<Result<_>>()?,
            nodes,
            state: Mutex::new((Manner::Good, Vec::new())),
        });
        let serving = Arc::clone(&server);
        std::thread::spawn(move || serving.run());
        let mut command = site.programs.leashed("/usr/bin/env");
        let script = format!("{MOUNT} && shift && exec \"$@\" </dev/null");
        command.args(["unshare", "-m", "sh", "-c", &script, "sh"]);
        command
            .arg(mount_point(site)?)
            .arg(site.programs.path(name));
        command.stdin(device);
        Ok((Disk(server), command))
    }

    /// Changes the manner; reads that were held are answered in the new one.
    ///
    /// # Errors
    /// Where the file system is gone.
    pub(super) fn be(&self, manner: Manner) -> Result<()> {
        let held = {
            let mut state = self.0.state();
            state.0 = manner;
            std::mem::take(&mut state.1)
        };
        held.into_iter().try_for_each(|wanted| self.0.read(wanted))
    }

    /// Reads that are not answered before the manner changes.
    pub(super) fn held(&self) -> usize {
        self.0.state().1.len()
    }
}

impl Server {
    fn state(&self) -> MutexGuard<'_, (Manner, Vec<Wanted>)> {
        self.state.lock().expect("nobody panics with it")
    }

    fn run(&self) {
        let mut message = vec![0; 64 << 10];
        // Read until ENODEV: it is mounted no more. Another failure shows as reads that are never answered.
        loop {
            match (&self.device).read(&mut message) {
                Ok(len) if self.answer(&message[..len]).is_ok() => {}
                // It is not mounted yet.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                // A request that was taken back.
                Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                _ => break,
            }
        }
    }

    /// Answers a message; the numbers are those of linux/fuse.h.
    fn answer(&self, message: &[u8]) -> Result<()> {
        let word = |at: usize| u32::from_le_bytes(message[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().expect("8 bytes"));
        let (unique, node) = (long(8), long(16));
        match word(4) {
            // LOOKUP of a name in the folder.
            1 => {
                let name = message[HEAD_BYTES..].split(|byte| *byte == 0).next();
                let of = |path: &PathBuf| path.file_name().map(OsStrExt::as_bytes) == name;
                let found = self.nodes.iter().skip(1).position(of);
                let Some(found) = found.map(|place| ROOT + 1 + place as u64) else {
                    return self.reply(unique, Err(Errno::NOENT));
                };
                let mut entry = [0; 40];
                entry[..8].copy_from_slice(&found.to_le_bytes());
                self.reply(unique, Ok(&[&entry[..], &self.attributes(found)?].concat()))
            }
            // GETATTR
            3 => self.reply(
                unique,
                Ok(&[&[0; 16][..], &self.attributes(node)?].concat()),
            ),
            // OPEN and OPENDIR, RELEASE and RELEASEDIR, FLUSH
            14 | 27 => self.reply(unique, Ok(&[0; 16])),
            18 | 29 | 25 => self.reply(unique, Ok(&[])),
            15 => self.wanted(Wanted {
                unique,
                node,
                offset: long(HEAD_BYTES + 8),
                bytes: word(HEAD_BYTES + 16) as usize,
            }),
            // STATFS
            17 => self.reply(unique, Ok(&[0; 80])),
            // INIT: protocol 7.31, reads ahead and many at a time, as direct ones too.
            26 => {
                let flags = 1u32 | 1 << 15;
                let mut init = [0; 64];
                init[..4].copy_from_slice(&7u32.to_le_bytes());
                init[4..8].copy_from_slice(&31u32.to_le_bytes());
                init[12..16].copy_from_slice(&flags.to_le_bytes());
                init[16..18].copy_from_slice(&1024u16.to_le_bytes());
                init[18..20].copy_from_slice(&1024u16.to_le_bytes());
                init[20..24].copy_from_slice(&4096u32.to_le_bytes());
                init[24..28].copy_from_slice(&1u32.to_le_bytes());
                self.reply(unique, Ok(&init))
            }
            // FORGET, INTERRUPT and BATCH_FORGET have no answer.
            2 | 36 | 42 => Ok(()),
            _ => self.reply(unique, Err(Errno::NOSYS)),
        }
    }

    /// Answers a read, or holds it.
    fn wanted(&self, wanted: Wanted) -> Result<()> {
        {
            let mut state = self.state();
            if state.0 == Manner::Silent && self.special.contains(&wanted.node) {
                state.1.push(wanted);
                return Ok(());
            }
        }
        self.read(wanted)
    }

    fn read(&self, wanted: Wanted) -> Result<()> {
        let manner = match self.special.contains(&wanted.node) {
            true => self.state().0,
            false => Manner::Good,
        };
        if manner == Manner::Failing && wanted.offset >= PAGE_BYTES as u64 {
            return self.reply(wanted.unique, Err(Errno::IO));
        }
        let file = File::open(self.path(wanted.node)?)?;
        let mut bytes = vec![0; wanted.bytes];
        let mut len = 0;
        while len < bytes.len() {
            match file.read_at(&mut bytes[len..], wanted.offset + len as u64)? {
                0 => break,
                more => len += more,
            }
        }
        match manner {
            Manner::Slow => std::thread::sleep(SLOW),
            // In each page.
            Manner::Wrong => bytes[..len].iter_mut().step_by(4096).for_each(|b| *b ^= 1),
            _ => {}
        }
        self.reply(wanted.unique, Ok(&bytes[..len]))
    }

    fn path(&self, node: u64) -> Result<&PathBuf> {
        let place = node.checked_sub(ROOT).context("a node")?;
        self.nodes.get(place as usize).context("a node")
    }

    /// `struct fuse_attr`.
    fn attributes(&self, node: u64) -> Result<[u8; 88]> {
        let metadata = fs::metadata(self.path(node)?)?;
        let mut attributes = [0; 88];
        for (at, value) in [(0, node), (8, metadata.size()), (16, metadata.blocks())] {
            attributes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        for (at, value) in [(60, metadata.mode()), (64, 1), (80, 4096)] {
            attributes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        Ok(attributes)
    }

    fn reply(&self, unique: u64, outcome: Result<&[u8], Errno>) -> Result<()> {
        let (error, body) = match outcome {
            Ok(body) => (0, body),
            Err(errno) => (-errno.raw_os_error(), &[][..]),
        };
        let len = (REPLY_BYTES + body.len()) as u32;
        let head = [&len.to_le_bytes()[..], &error.to_le_bytes()].concat();
        let message = [&head[..], &unique.to_le_bytes(), body].concat();
        match (&self.device).write(&message) {
            // Nobody waits for it any more.
            Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => Ok(()),
            written => {
                ensure!(
                    written.context("an answer")? == message.len(),
                    "half an answer"
                );
                Ok(())
            }
        }
    }
}
