//! A delta in a file: opened, checked whole, and read row by row.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rowmill_arena::open_at_once;

use crate::delta::{CRC_AT, DeltaHead, ENTRY_BYTES, HEAD_BYTES, parse_delta_head, sections_of};
use crate::{Resident, ResidentTable, TableError};

/// Ids and rows are read in pieces of about so many bytes.
const PIECE_BYTES: usize = 4 << 20;

/// Takes rows by their numbers in a table, with their bytes.
pub type EachRows<'e> = dyn FnMut(&[u32], &[u8]) -> Result<(), TableError> + 'e;

/// A delta in a file, of which header and list are checked.
#[derive(Debug)]
pub struct DeltaFile {
    path: PathBuf,
    file: File,
    head: DeltaHead,
    crc32: u32,
}

impl DeltaFile {
    /// Opens a delta without reading its rows.
    ///
    /// # Errors
    /// [`TableError::Io`], and [`TableError::BadDelta`] for what is no delta or not a whole one.
    pub fn open(path: impl AsRef<Path>) -> Result<DeltaFile, TableError> {
        let path = path.as_ref();
        DeltaFile::open_called(path, path)
    }

    /// The same, named so in errors instead of by its path: for a copy, whose damage is that of what it was made of.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_called(
        path: impl AsRef<Path>,
        name: impl AsRef<Path>,
    ) -> Result<DeltaFile, TableError> {
        let (file, metadata) =
            open_at_once(path.as_ref()).map_err(TableError::io(path.as_ref()))?;
        let path = name.as_ref();
        let bad = |reason: String| bad(path, reason);
        if !metadata.is_file() {
            return Err(bad("is no regular file".into()));
        }
        let mut bytes = vec![0; metadata.len().min(HEAD_BYTES as u64) as usize];
        let read = |out: &mut [u8], at| file.read_exact_at(out, at).map_err(TableError::io(path));
        read(&mut bytes, 0)?;
        if let Some(head) = bytes.first_chunk() {
            let sections = sections_of(head).map_err(bad)?;
            let list = (sections * ENTRY_BYTES) as u64;
            bytes.resize((HEAD_BYTES as u64 + list).min(metadata.len()) as usize, 0);
            read(&mut bytes[HEAD_BYTES..], HEAD_BYTES as u64)?;
        }
        let head = parse_delta_head(&bytes).map_err(bad)?;
        if head.file_bytes() != metadata.len() {
            return Err(bad(format!(
                "says that it has {} bytes and has {}; it was not written or copied whole",
                head.file_bytes(),
                metadata.len()
            )));
        }
        let crc32 = u32::from_le_bytes(bytes[CRC_AT..HEAD_BYTES].try_into().expect("4 bytes"));
        Ok(DeltaFile {
            path: path.to_owned(),
            file,
            head,
            crc32,
        })
    }

    /// What it says of itself.
    pub fn head(&self) -> &DeltaHead {
        &self.head
    }

    /// Where it is, or what it was [called](Self::open_called).
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The checksum of its header, in which those of all parts are: deltas that say something else have another, but for one in 2^32.
    pub fn crc32(&self) -> u32 {
        self.crc32
    }

    /// Gives all of its bytes in their order, a piece at a time, as the file that was opened has them, whatever its path leads to by now.
    ///
    /// # Errors
    /// [`TableError::Io`]; those of `each`, as such.
    pub fn bytes(
        &self,
        each: &mut dyn FnMut(&[u8]) -> std::io::Result<()>,
    ) -> Result<(), TableError> {
        let (mut piece, mut at, all) = (vec![0; PIECE_BYTES], 0, self.head.file_bytes());
        while at < all {
            let len = (all - at).min(PIECE_BYTES as u64);
            let piece = &mut piece[..len as usize];
            let read = self.file.read_exact_at(piece, at);
            read.and_then(|()| each(piece))
                .map_err(TableError::io(&self.path))?;
            at += len;
        }
        Ok(())
    }

    /// That it is not what it should be.
    pub fn bad(&self, reason: String) -> TableError {
        bad(&self.path, reason)
    }

    /// Reads all of it: whether it is what was written. What its tables are is not looked at.
    ///
    /// # Errors
    /// [`TableError::Io`], and [`TableError::BadDelta`] where a part does not match its checksum.
    pub fn check(&self) -> Result<(), TableError> {
        (0..self.head.sections.len()).try_for_each(|section| self.check_crc(section))
    }

    /// Reads all of it: whether it is sound, and its rows are of these tables. Afterwards [`rows`](Self::rows) gives what is good, unless the
    /// file changes.
    ///
    /// # Errors
    /// [`TableError::Io`], and [`TableError::BadDelta`] with the first thing that is wrong.
    pub fn verify(&self, tables: &Resident) -> Result<(), TableError> {
        let bad = |reason| self.bad(reason);
        self.head.check_tables(tables).map_err(bad)?;
        for section in 0..self.head.sections.len() {
            let name = &self.head.sections[section].table;
            let table = tables.table(name).expect("checked");
            let mut last = None;
            self.check_crc(section)?;
            self.rows(section, table, u32::MAX, &mut |_, _| Ok(()))?;
            self.ids(section, &mut |ids| {
                for &id in ids {
                    if last.is_some_and(|last| last >= id) {
                        return Err(self.bad(format!(
                            "has the ids of table {name} out of order, or {id} twice"
                        )));
                    }
                    last = Some(id);
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Gives the rows of a section with their numbers in the table, at most `most` at a time.
    ///
    /// # Errors
    /// [`TableError::Io`], and [`TableError::BadDelta`] for ids that the table lacks and values that are no numbers; those of `each`.
    pub fn rows(
        &self,
        section: usize,
        table: &ResidentTable,
        most: u32,
        each: &mut EachRows<'_>,
    ) -> Result<(), TableError> {
        let (info, stride) = (&self.head.sections[section], table.stride());
        let rows_at = self.body(section) + info.rows * 8;
        let most = (most as usize).min((PIECE_BYTES / stride).max(1)) as u64;
        let mut values = vec![0.0; info.dim];
        let mut first = 0;
        while first < info.rows {
            let count = most.min(info.rows - first) as usize;
            let ids = self.ids_from(section, first, count)?;
            let numbers = self.numbers_of(&ids, table)?;
            let mut bytes = vec![0; count * stride];
            self.read(&mut bytes, rows_at + first * stride as u64)?;
            for (row, &id) in bytes.chunks_exact(stride).zip(&ids) {
                info.format.decode(row, &mut values);
                if values.iter().any(|value| !value.is_finite()) {
                    return Err(self.bad(format!(
                        "has a value for id {id} of table {} that is not finite",
                        info.table
                    )));
                }
            }
            each(&numbers, &bytes)?;
            first += count as u64;
        }
        Ok(())
    }

    /// Gives the numbers that rows of a section have in the table, some at a time.
    ///
    /// # Errors
    /// [`TableError::Io`], and [`TableError::BadDelta`] for ids that the table lacks.
    pub fn numbers(
        &self,
        section: usize,
        table: &ResidentTable,
        each: &mut dyn FnMut(&[u32]),
    ) -> Result<(), TableError> {
        self.ids(section, &mut |ids| {
            each(&self.numbers_of(ids, table)?);
            Ok(())
        })
    }

    fn numbers_of(&self, ids: &[u64], table: &ResidentTable) -> Result<Vec<u32>, TableError> {
        let mut numbers = vec![0; ids.len()];
        let lacking = match table.resolve(ids, &mut numbers) {
            Err(position) => Some(position),
            // The row for ids that there are not.
            Ok(()) => numbers.iter().position(|&row| row >= table.lookup_count()),
        };
        match lacking {
            None => Ok(numbers),
            Some(position) => Err(self.bad(format!(
                "has a row of id {} for table {}, which lacks it: rows are changed by deltas, and neither added nor removed",
                ids[position],
                table.name()
            ))),
        }
    }

    fn body(&self, section: usize) -> u64 {
        self.head.bodies().nth(section).expect("a section")
    }

    fn read(&self, out: &mut [u8], at: u64) -> Result<(), TableError> {
        self.file
            .read_exact_at(out, at)
            .map_err(TableError::io(&self.path))
    }

    fn ids_from(&self, section: usize, first: u64, count: usize) -> Result<Vec<u64>, TableError> {
        let mut raw = vec![0; count * 8];
        self.read(&mut raw, self.body(section) + first * 8)?;
        let (ids, _) = raw.as_chunks::<8>();
        Ok(ids.iter().map(|&id| u64::from_le_bytes(id)).collect())
    }

    fn ids(
        &self,
        section: usize,
        each: &mut dyn FnMut(&[u64]) -> Result<(), TableError>,
    ) -> Result<(), TableError> {
        let rows = self.head.sections[section].rows;
        let most = PIECE_BYTES as u64 / 8;
        let mut first = 0;
        while first < rows {
            let count = most.min(rows - first);
            each(&self.ids_from(section, first, count as usize)?)?;
            first += count;
        }
        Ok(())
    }

    fn check_crc(&self, section: usize) -> Result<(), TableError> {
        let (info, body) = (&self.head.sections[section], self.body(section));
        let mut hasher = crc32fast::Hasher::new();
        let mut piece = vec![0; PIECE_BYTES.min(info.body_bytes() as usize)];
        let mut done = 0;
        while done < info.body_bytes() {
            let piece_bytes = (info.body_bytes() - done).min(piece.len() as u64);
            let piece = &mut piece[..piece_bytes as usize];
            self.read(piece, body + done)?;
            hasher.update(piece);
            done += piece_bytes;
        }
        if hasher.finalize() != info.crc32 {
            return Err(self.bad(format!(
                "is damaged: the rows of table {} do not match their checksum; copy it again, or make it again",
                info.table
            )));
        }
        Ok(())
    }
}

pub(crate) fn bad(path: &Path, reason: String) -> TableError {
    TableError::BadDelta {
        path: path.to_owned(),
        reason,
    }
}
