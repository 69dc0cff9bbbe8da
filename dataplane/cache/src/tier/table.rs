//! A table's file, opened for single rows.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rowmill_arena::{ArenaError, DirectFile, PageCache};
use rowmill_table::{Compared, Generation, PageChecksums, TableError, TableInfo};

use super::failures::FileFailures;
use super::reads::FileReads;

/// A table's file and all that is needed to read rows of it: where they lie, and the checksums of their pages.
///
/// The file stays the one that was opened: one that is renamed into its place is not seen, one that is truncated or overwritten
/// is found by its size and its checksums when rows are read.
#[derive(Debug)]
pub struct FileTable {
    pub(super) info: TableInfo,
    pub(super) file: DirectFile,
    pub(super) checksums: Arc<PageChecksums>,
    pub(super) failures: Arc<FileFailures>,
    pub(super) reads: Arc<FileReads>,
}

impl FileTable {
    /// Opens the table of that name and reads its checksums. For a thread that may wait.
    ///
    /// # Errors
    /// [`TableError::UnknownTable`]; [`TableError::Memory`] where the file can't be opened, or not past the page cache and
    /// `page_cache` says to refuse that; [`TableError::WrongFileSize`]; as [`Generation::page_checksums`].
    pub fn open(
        generation: &Generation,
        name: &str,
        page_cache: PageCache,
    ) -> Result<FileTable, TableError> {
        let info = generation.table(name)?.clone();
        let checksums = Arc::new(generation.page_checksums(name)?);
        let file = open(generation.path(&info), info.file_bytes, page_cache)?;
        Ok(FileTable {
            info,
            file,
            checksums,
            failures: Arc::default(),
            reads: Arc::default(),
        })
    }

    /// A copy of the table in another folder, under the same name. Rows of it are compared with this table's checksums, so a page of
    /// other rows gives none.
    ///
    /// # Errors
    /// As [`FileTable::open`], but for the name and the checksums, and as [`Generation::check_copy`].
    pub fn copy_in(
        &self,
        generation: &Generation,
        folder: &Path,
        page_cache: PageCache,
    ) -> Result<FileTable, TableError> {
        let (info, checksums) = (self.info.clone(), Arc::clone(&self.checksums));
        let path = folder.join(&info.file);
        let file = open(path.clone(), info.file_bytes, page_cache)?;
        generation.check_copy(&info, &checksums, &path)?;
        Ok(FileTable {
            info,
            file,
            checksums,
            failures: Arc::default(),
            reads: Arc::default(),
        })
    }

    /// Compares some of its pages with their checksums.
    ///
    /// # Errors
    /// As [`Generation::compare_pages`].
    pub fn compare_pages(&self, generation: &Generation) -> Result<Compared, TableError> {
        generation.compare_pages(&self.info, &self.checksums)
    }

    /// The same for another worker: the checksums and what failed are shared, the descriptor and what it asks for are its own.
    ///
    /// # Errors
    /// [`ArenaError::File`] where there are no more descriptors.
    pub fn for_another(&self) -> Result<FileTable, ArenaError> {
        Ok(FileTable {
            info: self.info.clone(),
            file: self.file.for_another()?,
            checksums: Arc::clone(&self.checksums),
            failures: Arc::clone(&self.failures),
            reads: Arc::default(),
        })
    }

    /// What it fails to give is counted where that of another file of the table was before.
    pub fn fails_in(&mut self, failures: Arc<FileFailures>) {
        self.failures = failures;
    }

    /// What the worker that has it in a tier asks of it is counted where that of another file of the table was before.
    pub fn reads_in(&mut self, reads: Arc<FileReads>) {
        self.reads = reads;
    }

    /// What the table is.
    pub fn info(&self) -> &TableInfo {
        &self.info
    }

    /// The file, which tells how it can be read.
    pub fn file(&self) -> &DirectFile {
        &self.file
    }

    /// What it failed to give to any worker, which goes on when the table is in a tier.
    pub fn failures(&self) -> &Arc<FileFailures> {
        &self.failures
    }

    /// What the worker that has it in a tier asks of it.
    pub fn reads(&self) -> &Arc<FileReads> {
        &self.reads
    }

    /// Bytes of memory that the checksums take, once for all workers.
    pub fn checksum_bytes(&self) -> u64 {
        self.checksums.page_count() * size_of::<u32>() as u64
    }
}

/// Opens a file of so many bytes.
fn open(path: PathBuf, bytes: u64, page_cache: PageCache) -> Result<DirectFile, TableError> {
    let file = DirectFile::open(&path, page_cache)?;
    if file.bytes() != bytes {
        return Err(TableError::WrongFileSize {
            path,
            promised: bytes,
            found: file.bytes(),
        });
    }
    Ok(file)
}
