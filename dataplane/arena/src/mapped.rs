//! Files mapped for tools: read without loading them, and without dying when they are truncated.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::mm::ProtFlags;

use crate::mapping::{Mapping, page_bytes, round_up};
use crate::sigbus::Watched;
use crate::{ArenaError, window};

/// Opens a file for reading, and says what it is. Opening a pipe would wait for a writer, so it is told not
/// to; regular files are read as always.
///
/// # Errors
/// The kernel's.
pub fn open_at_once(path: &Path) -> io::Result<(File, Metadata)> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(path)?;
    let metadata = file.metadata()?;
    Ok((file, metadata))
}

/// A read-only mapping of a whole file.
///
/// Others may change the file while it is mapped, so its bytes are copied out, never borrowed. The
/// service does not use this: a read may wait for the disk.
#[derive(Debug)]
pub struct MappedFile {
    watched: Watched,
    bytes: usize,
    path: PathBuf,
    file: File,
}

impl MappedFile {
    /// Maps the file at `path` as long as it is now.
    ///
    /// # Errors
    /// [`ArenaError::File`] if it can't be opened, [`ArenaError::ImpossibleSize`] if it is empty,
    /// [`ArenaError::TooManyMappings`], [`ArenaError::Os`].
    pub fn open(path: impl AsRef<Path>) -> Result<MappedFile, ArenaError> {
        let path = path.as_ref().to_owned();
        let file_error = |source| ArenaError::File {
            path: path.clone(),
            source,
        };
        let (file, metadata) = open_at_once(&path).map_err(file_error)?;
        if !metadata.is_file() {
            return Err(file_error(io::Error::other("it is no regular file")));
        }
        let size = metadata.len();
        let bytes =
            usize::try_from(size).map_err(|_| ArenaError::ImpossibleSize { bytes: size })?;
        let mapping = Mapping::shared(
            file.as_fd(),
            round_up(bytes, page_bytes())?,
            ProtFlags::READ,
        )
        .map_err(|errno| ArenaError::os("mmap of a file", errno))?;
        Ok(MappedFile {
            watched: Watched::new(mapping)?,
            bytes,
            path,
            file,
        })
    }

    /// Bytes of the file when it was mapped.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Never true: an empty file can't be mapped.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Copies the bytes at `offset` to `out`.
    ///
    /// # Errors
    /// [`ArenaError::OutsideFile`] if they lie outside, [`ArenaError::FileLost`] if the file was
    /// truncated or could not be read; `out` then has no meaning.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), ArenaError> {
        if offset > self.bytes || out.len() > self.bytes - offset {
            return Err(ArenaError::OutsideFile {
                path: self.path.clone(),
                offset: offset as u64,
                len: out.len() as u64,
                size: self.bytes as u64,
            });
        }
        // SAFETY: offset + out.len() <= bytes (checked), which lie inside the readable mapping; `out`
        // is private memory that can't overlap a mapping of ours.
        unsafe {
            let from = self.watched.mapping().start().as_ptr().add(offset);
            window::copy(from, out.as_mut_ptr(), out.len());
        }
        // The end of a file's last page reads as zeros without a fault, so the size is asked too.
        let whole = self
            .file
            .metadata()
            .is_ok_and(|metadata| metadata.len() >= self.bytes as u64);
        if self.is_lost() || !whole {
            return Err(ArenaError::FileLost {
                path: self.path.clone(),
            });
        }
        Ok(())
    }

    /// Whether a read has met missing bytes; all reads fail from then on.
    pub fn is_lost(&self) -> bool {
        self.watched.is_lost()
    }
}
