//! Files as blocks: their arithmetic, and work on them by several threads.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;

use rowmill_arena::open_at_once;

use crate::header::HEADER_BYTES;
use crate::pages::PAGE_BYTES;
use crate::{Progress, Stage, TableError};

/// Bytes that are read or written at a time. Large enough that a disk's latency does not count, small
/// enough that sixteen threads need 64 MiB of buffers.
pub(crate) const BLOCK_BYTES: usize = 4 << 20;
/// Most threads at work: past this a disk or the memory is the bound, and buffers stay at 64 MiB.
pub(crate) const MAX_THREADS: usize = 16;

/// Opens a regular file for reading.
///
/// # Errors
/// The kernel's, and one for what is no regular file.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let (file, metadata) = open_at_once(path)?;
    if metadata.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("it is no regular file"))
    }
}

const _: () = assert!(BLOCK_BYTES.is_multiple_of(PAGE_BYTES) && HEADER_BYTES == PAGE_BYTES);

/// The size of a table file whose rows and index have `body_bytes`, below 2^45.
pub(crate) fn file_bytes(body_bytes: u64) -> u64 {
    HEADER_BYTES as u64 + body_bytes.next_multiple_of(PAGE_BYTES as u64)
}

/// Blocks of a file, the last one perhaps short.
pub(crate) fn block_count(file_bytes: u64) -> u64 {
    file_bytes.div_ceil(BLOCK_BYTES as u64)
}

/// The bytes of block `block` in its file.
pub(crate) fn block_range(file_bytes: u64, block: u64) -> Range<u64> {
    let from = block * BLOCK_BYTES as u64;
    from..file_bytes.min(from + BLOCK_BYTES as u64)
}

/// The part of rows and index that block `block` holds, counted from the first row's first byte.
pub(crate) fn body_range(file_bytes: u64, body_bytes: u64, block: u64) -> Range<u64> {
    let range = block_range(file_bytes, block);
    let header = HEADER_BYTES as u64;
    range.start.saturating_sub(header)..body_bytes.min(range.end - header)
}

/// Reads the whole of `out` at `offset`; a file that ends too early gives its own error.
pub(crate) fn read_at(
    file: &File,
    path: &Path,
    out: &mut [u8],
    offset: u64,
) -> Result<(), TableError> {
    file.read_exact_at(out, offset).map_err(|error| {
        let found = file.metadata().map_or(0, |metadata| metadata.len());
        if error.kind() == ErrorKind::UnexpectedEof {
            TableError::EndsEarly {
                path: path.to_owned(),
                wanted: offset + out.len() as u64,
                found,
            }
        } else {
            TableError::Io {
                path: path.to_owned(),
                source: error,
            }
        }
    })
}

/// Counts bytes and reports them, one caller at a time.
pub(crate) struct Meter<'a> {
    progress: Progress<'a>,
    stage: Stage,
    total: u64,
    done: Mutex<u64>,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(progress: Progress<'a>, stage: Stage, total: u64) -> Meter<'a> {
        progress(stage, 0, total);
        Meter {
            progress,
            stage,
            total,
            done: Mutex::new(0),
        }
    }

    pub(crate) fn add(&self, bytes: u64) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        *done += bytes;
        (self.progress)(self.stage, *done, self.total);
    }
}

/// Runs `work` on every job, each thread with a state of its own from `start`. After an error no
/// further jobs are begun, and the first error is returned.
pub(crate) fn in_parallel<J: Send, S>(
    jobs: impl Iterator<Item = J> + Send,
    start: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, J) -> Result<(), TableError> + Sync,
) -> Result<(), TableError> {
    let threads = thread::available_parallelism()
        .map_or(1, usize::from)
        .min(MAX_THREADS);
    let jobs = Mutex::new(jobs.fuse());
    let failure: Mutex<Option<TableError>> = Mutex::new(None);
    let next = || {
        let failed = failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some();
        if failed {
            None
        } else {
            jobs.lock().unwrap_or_else(PoisonError::into_inner).next()
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut state = start();
                while let Some(job) = next() {
                    if let Err(error) = work(&mut state, job) {
                        failure
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .get_or_insert(error);
                    }
                }
            });
        }
    });
    failure
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
        .map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_the_body_once() {
        let block = BLOCK_BYTES as u64;
        for region in [
            1,
            12,
            4096,
            4097,
            block - 4096,
            block - 4095,
            block,
            3 * block,
            3 * block - 4096 + 1,
        ] {
            let size = file_bytes(region);
            assert_eq!(size % PAGE_BYTES as u64, 0);
            let mut next = 0;
            for index in 0..block_count(size) {
                let body = body_range(size, region, index);
                assert_eq!(body.start, next, "region {region} block {index}");
                assert!(body.end > body.start);
                next = body.end;
            }
            assert_eq!(next, region);
            assert_eq!(block_range(size, block_count(size) - 1).end, size);
        }
    }

    #[test]
    fn a_file_that_ends_early_is_told_with_what_was_read() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        io::Write::write_all(&mut file, &[7; 100]).unwrap();
        let mut out = [0; 50];
        read_at(file.as_file(), file.path(), &mut out, 50).unwrap();
        let error = read_at(file.as_file(), file.path(), &mut out, 51).unwrap_err();
        let (wanted, found) = (101, 100);
        assert!(
            matches!(&error, TableError::EndsEarly { path, wanted: w, found: f }
                if (path.as_path(), *w, *f) == (file.path(), wanted, found)),
            "{error}"
        );
    }

    #[test]
    fn first_error_stops_the_work() {
        let result = in_parallel(
            0..1_000_000u64,
            || (),
            |(), job| {
                if job == 3 {
                    Err(TableError::NoTables)
                } else {
                    Ok(())
                }
            },
        );
        assert!(matches!(result, Err(TableError::NoTables)));
    }
}
