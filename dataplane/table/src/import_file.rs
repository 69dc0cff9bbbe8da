//! Files that tables are imported from: what they promise is checked before anything is read, and they
//! are read in pieces.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rowmill_arena::open_at_once;

use crate::format::RowFormat;
use crate::transcode::Numbers;
use crate::{TableError, Unfit};

/// A regular file, opened for reading.
#[derive(Debug)]
pub(crate) struct SourceFile {
    pub(crate) path: PathBuf,
    /// Its size when it was opened.
    pub(crate) bytes: u64,
    file: File,
}

impl SourceFile {
    pub(crate) fn open(path: &Path) -> Result<Arc<SourceFile>, TableError> {
        let (file, metadata) = open_at_once(path).map_err(TableError::io(path))?;
        let source = SourceFile {
            path: path.to_owned(),
            bytes: metadata.len(),
            file,
        };
        if !metadata.is_file() {
            return Err(source.bad(
                "is no regular file; rows are read more than once and by several threads, so save \
                 them to a file first",
            ));
        }
        Ok(Arc::new(source))
    }

    /// That this file can't be imported, with what is wrong and what to do.
    pub(crate) fn bad(&self, reason: impl Into<String>) -> TableError {
        TableError::BadSource {
            path: self.path.clone(),
            reason: reason.into(),
        }
    }

    /// Reads the whole of `out` at `at`.
    pub(crate) fn read_at(&self, out: &mut [u8], at: u64) -> Result<(), TableError> {
        self.file.read_exact_at(out, at).map_err(|error| {
            if error.kind() == ErrorKind::UnexpectedEof {
                self.bad(format!(
                    "had {} bytes and ended before byte {} while it was read; import it when nobody \
                     writes it any more",
                    self.bytes,
                    at + out.len() as u64
                ))
            } else {
                TableError::io(&self.path)(error)
            }
        })
    }

    /// The first bytes, `most` at most.
    pub(crate) fn start(&self, most: u64) -> Result<Vec<u8>, TableError> {
        let mut out = vec![0; self.bytes.min(most) as usize];
        self.read_at(&mut out, 0)?;
        Ok(out)
    }
}

/// Rows of numbers of one type, one behind the other.
#[derive(Clone, Debug)]
pub(crate) struct Values {
    pub(crate) file: Arc<SourceFile>,
    /// The byte of the first one.
    pub(crate) at: u64,
    pub(crate) rows: u64,
    pub(crate) dim: u64,
    /// Their type: f32, f16 or bf16, as a row of it is stored.
    pub(crate) element: RowFormat,
}

impl Numbers for Values {
    fn element(&self) -> RowFormat {
        self.element
    }

    fn dim(&self) -> usize {
        self.dim as usize // Checked dimensions.
    }

    fn read_raw(&self, first: u64, raw: &mut [u8]) -> Result<(), TableError> {
        let stride = self.element.row_bytes(self.dim()) as u64;
        self.file.read_at(raw, self.at + first * stride)
    }

    fn unfit(&self, row: u64, unfit: Unfit) -> TableError {
        let path = self.file.path.clone();
        if unfit.value.is_finite() {
            return TableError::Unfit { path, row, unfit };
        }
        TableError::NotFinite {
            path,
            row,
            column: unfit.dim as u64,
            value: unfit.value,
        }
    }
}

/// Keys of 64 bits, one behind the other; those of a signed type are taken by their bits.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    pub(crate) file: Arc<SourceFile>,
    /// The byte of the first one.
    pub(crate) at: u64,
    pub(crate) count: u64,
}

impl Keys {
    /// Reads keys from number `first` on.
    pub(crate) fn read(&self, first: u64, out: &mut [u64]) -> Result<(), TableError> {
        /// Keys read at a time: 64 KiB.
        const PIECE: usize = 8 << 10;
        let mut raw = vec![0; out.len().min(PIECE) * 8];
        let mut at = self.at + first * 8;
        for piece in out.chunks_mut(PIECE) {
            let raw = &mut raw[..piece.len() * 8];
            self.file.read_at(raw, at)?;
            for (key, bytes) in piece.iter_mut().zip(raw.chunks_exact(8)) {
                *key = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
            }
            at += raw.len() as u64;
        }
        Ok(())
    }
}

/// A table as it lies in files.
#[derive(Clone, Debug)]
pub(crate) struct Contents {
    pub(crate) rows: Values,
    /// The key of each row, where rows are named by keys and not by their number.
    pub(crate) keys: Option<Keys>,
}

impl Contents {
    /// Rows of which each has a key, or none has.
    pub(crate) fn new(rows: Values, keys: Option<Keys>) -> Result<Contents, TableError> {
        if let Some(keys) = &keys
            && keys.count != rows.rows
        {
            return Err(keys.file.bad(format!(
                "has {} keys for the {} rows of {}; there must be one for each row",
                keys.count,
                rows.rows,
                rows.file.path.display()
            )));
        }
        Ok(Contents { rows, keys })
    }
}
