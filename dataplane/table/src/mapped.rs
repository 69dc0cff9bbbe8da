//! One table mapped from its file, for tools that look at some rows.

use rowmill_arena::MappedFile;

use crate::header::HEADER_BYTES;
use crate::manifest::TableInfo;
use crate::{Generation, TableError};

/// A table whose rows are read from its file when they are asked for. The service does not use this.
#[derive(Debug)]
pub struct MappedTable {
    info: TableInfo,
    file: MappedFile,
}

impl Generation {
    /// Maps one table.
    ///
    /// # Errors
    /// [`TableError::UnknownTable`], [`TableError::WrongFileSize`] if the file has changed since the
    /// generation was opened, [`TableError::Memory`].
    pub fn open_mapped(&self, name: &str) -> Result<MappedTable, TableError> {
        let info = self.table(name)?.clone();
        let path = self.path(&info);
        let file = MappedFile::open(&path)?;
        let found = file.len() as u64;
        if found != info.file_bytes {
            return Err(TableError::WrongFileSize {
                path,
                promised: info.file_bytes,
                found,
            });
        }
        Ok(MappedTable { info, file })
    }
}

impl MappedTable {
    /// What the table is.
    pub fn info(&self) -> &TableInfo {
        &self.info
    }

    /// Reads and decodes one row.
    ///
    /// # Errors
    /// [`TableError::NoSuchRow`]; [`TableError::Memory`] if the file was truncated meanwhile.
    ///
    /// # Panics
    /// If `out` does not have as many places as the table has dimensions.
    pub fn row_f32(&self, row: u64, out: &mut [f32]) -> Result<(), TableError> {
        assert_eq!(out.len(), self.info.dim, "one place a dimension");
        if row >= self.info.stored_rows() {
            return Err(TableError::NoSuchRow {
                table: self.info.name.clone(),
                row,
                rows: self.info.stored_rows(),
            });
        }
        let mut bytes = vec![0; self.info.stride];
        self.file
            .read(HEADER_BYTES + row as usize * self.info.stride, &mut bytes)?;
        self.info.format.decode(&bytes, out);
        Ok(())
    }
}
