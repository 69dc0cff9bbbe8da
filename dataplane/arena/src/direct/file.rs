//! Opening files to be read past the page cache, and finding out whether they can be.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use io_uring::{IoUring, opcode, types};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::DIRECT_ALIGN;
use crate::{Arena, ArenaError, HugePages};

/// What to do with a file whose file system has no O_DIRECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageCache {
    /// Refuse it.
    Refuse,
    /// Read it by way of the page cache, which then takes memory that nobody has counted.
    Allow,
}

/// An opened file, and how it can be read.
///
/// What is read is what was opened: a file that is put in its place by renaming is not seen. One that is truncated
/// gives [`ReadError::Truncated`](crate::ReadError::Truncated), and one that is overwritten gives what is in it.
#[derive(Debug)]
pub struct DirectFile {
    file: File,
    path: PathBuf,
    bytes: u64,
    /// Why it is read by way of the page cache, if it is.
    cached: Option<String>,
    /// Why its device can't be polled, if it can't.
    unpolled: Option<String>,
}

impl DirectFile {
    /// Opens a regular file, and reads its first page both ways that a [`DirectReader`](crate::DirectReader)
    /// may: that alone tells whether O_DIRECT and polling work. For a thread that may wait.
    ///
    /// # Errors
    /// [`ArenaError::File`] if it can't be opened or read, [`ArenaError::NotDirect`] where there is no O_DIRECT
    /// and `page_cache` says to refuse that, [`ArenaError::TooLittleMemory`].
    pub fn open(path: impl AsRef<Path>, page_cache: PageCache) -> Result<DirectFile, ArenaError> {
        let path = path.as_ref().to_owned();
        let file_error = |source| ArenaError::File {
            path: path.clone(),
            source,
        };
        let mut page = Arena::allocate(DIRECT_ALIGN, HugePages::Off)?;
        let (file, cached) = match open_with(&path, OFlags::DIRECT, page.as_mut_slice()) {
            Ok(file) => (file, None),
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                if page_cache == PageCache::Refuse {
                    return Err(ArenaError::NotDirect {
                        path,
                        source: error,
                    });
                }
                let file = open_with(&path, OFlags::empty(), page.as_mut_slice());
                let why = "its file system has no O_DIRECT".to_owned();
                (file.map_err(file_error)?, Some(why))
            }
            Err(error) => return Err(file_error(error)),
        };
        let bytes = file.metadata().map_err(file_error)?.len();
        let unpolled = match &cached {
            Some(why) => Some(why.clone()),
            None => polled_read(&file, page).err(),
        };
        Ok(DirectFile {
            file,
            path,
            bytes,
            cached,
            unpolled,
        })
    }

    /// The same file by another descriptor, for another reader.
    ///
    /// # Errors
    /// [`ArenaError::File`] where there are no more descriptors.
    pub fn for_another(&self) -> Result<DirectFile, ArenaError> {
        let file = self.file.try_clone().map_err(|source| ArenaError::File {
            path: self.path.clone(),
            source,
        })?;
        Ok(DirectFile {
            file,
            path: self.path.clone(),
            cached: self.cached.clone(),
            unpolled: self.unpolled.clone(),
            ..*self
        })
    }

    /// Its path when it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size when it was opened.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Why it is read by way of the page cache, if it is.
    pub fn why_cached(&self) -> Option<&str> {
        self.cached.as_deref()
    }

    /// Why its device can't be polled for completions, if it can't.
    pub fn why_unpolled(&self) -> Option<&str> {
        self.unpolled.as_deref()
    }

    /// A descriptor as a file, of which nothing is known.
    #[cfg(test)]
    pub(super) fn unchecked(file: File) -> DirectFile {
        DirectFile {
            file,
            path: PathBuf::new(),
            bytes: 0,
            cached: None,
            unpolled: Some("nobody tried".into()),
        }
    }
}

impl AsFd for DirectFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Opens a regular file and reads its first page, or less where it is shorter, into `page`.
fn open_with(path: &Path, flags: OFlags, page: &mut [u8]) -> io::Result<File> {
    // Opening a pipe would wait for a writer, so it is told not to. Afterwards it has to be told otherwise, since
    // io_uring takes that flag to mean that a read which would have to wait is to fail.
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags((flags | OFlags::NONBLOCK).bits() as i32)
        .open(path);
    // Of a folder or a pipe the kernel says what it says where there is no O_DIRECT.
    let about = match &opened {
        Ok(file) => file.metadata(),
        Err(_) => path.metadata(),
    };
    if about.is_ok_and(|about| !about.is_file()) {
        return Err(io::Error::other("it is no regular file"));
    }
    let file = opened?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    file.read_at(page, 0)?;
    Ok(file)
}

/// Reads the first page by polling the device.
///
/// # Errors
/// Why that can't be done.
fn polled_read(file: &File, mut page: Arena) -> Result<(), String> {
    let ring = IoUring::builder().setup_iopoll().build(1);
    let mut ring: IoUring = ring.map_err(|error| format!("no ring that polls: {error}"))?;
    let buffer = page.as_mut_slice();
    let len = buffer.len() as u32;
    let read = opcode::Read::new(types::Fd(file.as_raw_fd()), buffer.as_mut_ptr(), len).build();
    // SAFETY: the file is open and the buffer is there, its bytes touched by nobody, until the answer came, which
    // is waited for below; where waiting fails, the buffer is leaked.
    let queued = unsafe { ring.submission().push(&read) };
    queued.expect("a place for one");
    loop {
        match ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                core::mem::forget(page);
                return Err(format!("polling for it fails: {error}"));
            }
        }
        if let Some(answer) = ring.completion().next() {
            return match answer.result() {
                0.. => Ok(()),
                number => Err(io::Error::from_raw_os_error(-number).to_string()),
            };
        }
    }
}
