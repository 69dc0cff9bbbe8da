//! Tables from the memory of the caller: one generation of what lies there.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use crate::format::RowFormat;
use crate::spec::{TableKind, TableSpec};
use crate::transcode::{Numbers, transcode};
use crate::writer::{RowSource, write_generation};
use crate::{Progress, TableError, Unfit};

/// Memory that rows are copied from, by several threads at a time.
pub trait RowMemory: Sync {
    /// Its size in bytes.
    fn bytes(&self) -> u64;

    /// Copies what lies from byte `at` on. Never asked for more than there is.
    fn read(&self, at: u64, out: &mut [u8]);
}

impl RowMemory for Vec<u8> {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read(&self, at: u64, out: &mut [u8]) {
        out.copy_from_slice(&self[at as usize..][..out.len()]);
    }
}

/// A dense table whose rows lie in memory, one behind the other.
pub struct MemoryTable<'a> {
    /// The table's name and shape, and how rows are to be stored.
    pub spec: TableSpec,
    /// The type of the numbers there: [`RowFormat::F32`], [`RowFormat::F16`] or [`RowFormat::Bf16`].
    pub element: RowFormat,
    /// Where they lie: `rows` times `dim` of them.
    pub memory: &'a dyn RowMemory,
}

impl Numbers for MemoryTable<'_> {
    fn element(&self) -> RowFormat {
        self.element
    }

    fn dim(&self) -> usize {
        self.spec.dim
    }

    fn read_raw(&self, first: u64, raw: &mut [u8]) -> Result<(), TableError> {
        let stride = self.element.row_bytes(self.spec.dim) as u64;
        self.memory.read(first * stride, raw);
        Ok(())
    }

    fn unfit(&self, row: u64, unfit: Unfit) -> TableError {
        TableError::UnfitRow {
            table: self.spec.name.clone(),
            row,
            unfit,
        }
    }
}

struct Tables<'a>(&'a [MemoryTable<'a>]);

impl RowSource for Tables<'_> {
    fn rows(&self, table: usize, first: u64, out: &mut [u8]) -> Result<(), TableError> {
        let table = &self.0[table];
        transcode(table, table.spec.format, first, out)
    }
}

/// Makes generation `number` at `dir`, which must not exist, of tables in memory, unless `stop` is set before it is done.
///
/// Rows are encoded as [`RowFormat::encode`] says, in pieces and by all cores, so that memory use beside the tables' own is
/// bounded. Nothing that opens is left behind if the work is interrupted.
///
/// # Errors
/// [`TableError::UnfitRow`] for a value that can't be stored, [`TableError::Interrupted`] once `stop` is set, and all errors of
/// [`generate`](crate::generate()).
///
/// # Panics
/// If a table is hashed, its numbers are of another type, or its memory is not as large as its rows.
pub fn write_until(
    stop: &AtomicBool,
    dir: impl AsRef<Path>,
    number: u64,
    tables: &[MemoryTable<'_>],
    progress: Progress<'_>,
) -> Result<(), TableError> {
    let specs: Vec<TableSpec> = tables.iter().map(|table| table.spec.clone()).collect();
    crate::check_specs(&specs)?;
    for MemoryTable {
        spec,
        element,
        memory,
    } in tables
    {
        assert_eq!(
            spec.kind,
            TableKind::Dense,
            "{}: rows have no ids",
            spec.name
        );
        assert!(
            matches!(element, RowFormat::F32 | RowFormat::F16 | RowFormat::Bf16),
            "{}: numbers are not {element}",
            spec.name
        );
        let bytes = spec.rows * element.row_bytes(spec.dim) as u64;
        assert_eq!(memory.bytes(), bytes, "{}: memory of its rows", spec.name);
    }
    let seed = 0; // Of indexes, which dense tables have none of.
    write_generation(
        dir.as_ref(),
        number,
        &specs,
        &Tables(tables),
        seed,
        progress,
        stop,
    )
}
