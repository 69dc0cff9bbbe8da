//! Tables in memory.

use std::sync::Arc;

use rowmill_arena::{Arena, Backing, FrozenArena, HugePages};

use crate::blocks::{BLOCK_BYTES, Meter, in_parallel};
use crate::draft::fill;
use crate::format::{RowFormat, TableSpec, check_specs};
use crate::generate::Generated;
use crate::manifest::TableInfo;
use crate::{Progress, Stage, TableError};

/// Tables start at a page, so that rows of a power of two never cross one more page than they must.
const LARGE_ALIGN: u64 = 4096;
/// Small tables start at a cache line.
const SMALL_ALIGN: u64 = 64;
/// From this size on a page of padding is less than 5 % of a table.
const LARGE_BYTES: u64 = 20 * LARGE_ALIGN;

/// All tables of a generation in one read-only arena.
#[derive(Debug)]
pub struct Resident {
    generation: u64,
    tables: Vec<ResidentTable>,
    arena: Arc<FrozenArena>,
}

impl Resident {
    /// Tables of generated values, the same as [`generate`](crate::generate()) writes to files, without
    /// files. They are generation 0.
    ///
    /// # Errors
    /// As [`check_specs`], and [`TableError::Memory`].
    pub fn in_memory(
        specs: &[TableSpec],
        seed: u64,
        huge_pages: HugePages,
        progress: Progress<'_>,
    ) -> Result<Resident, TableError> {
        check_specs(specs)?;
        let tables: Vec<TableInfo> = specs
            .iter()
            .map(|spec| TableInfo::new(spec, String::new()))
            .collect();
        let layout = Layout::new(&tables)?;
        let mut arena = layout.allocate(huge_pages, progress)?;
        let source = Generated::new(specs, seed);
        let mut jobs = Vec::new();
        for (index, rows) in layout.split(arena.as_mut_slice()).into_iter().enumerate() {
            let parts = rows.chunks_mut(BLOCK_BYTES).enumerate();
            jobs.extend(parts.map(|(part, bytes)| (index, (part * BLOCK_BYTES) as u64, bytes)));
        }
        let meter = Meter::new(
            progress,
            Stage::Filling,
            tables.iter().map(TableInfo::row_region_bytes).sum(),
        );
        in_parallel(jobs.into_iter(), Vec::new, |row, (index, from, bytes)| {
            fill(&source, index, tables[index].stride, from, bytes, row)?;
            meter.add(bytes.len() as u64);
            Ok(())
        })?;
        layout.finish(arena, 0, &tables)
    }

    /// The generation's number; 0 for generated tables that have no files.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The tables; their order is their index.
    pub fn tables(&self) -> &[ResidentTable] {
        &self.tables
    }

    /// The table of that name.
    pub fn table(&self, name: &str) -> Option<&ResidentTable> {
        self.tables.iter().find(|table| table.name == name)
    }

    /// What the memory is made of.
    pub fn backing(&self) -> &Backing {
        self.arena.backing()
    }

    /// Bytes of the arena: all rows, and the padding between tables.
    pub fn arena_bytes(&self) -> usize {
        self.arena.len()
    }
}

/// One table in memory. Cheap to clone; keeps its arena alive.
#[derive(Clone, Debug)]
pub struct ResidentTable {
    name: String,
    dim: usize,
    rows: u32,
    format: RowFormat,
    stride: usize,
    offset: usize,
    len: usize,
    arena: Arc<FrozenArena>,
}

impl ResidentTable {
    /// Name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Dimensions.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Rows, below 2^31; ids are smaller.
    pub fn row_count(&self) -> u32 {
        self.rows
    }

    /// How a row is stored.
    pub fn format(&self) -> RowFormat {
        self.format
    }

    /// Bytes from one row to the next.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// All rows, one after another.
    pub fn bytes(&self) -> &[u8] {
        &self.arena[self.offset..self.offset + self.len]
    }

    /// Decodes one row.
    ///
    /// # Errors
    /// [`TableError::NoSuchRow`].
    ///
    /// # Panics
    /// If `out` does not have `dim()` places.
    pub fn row_f32(&self, row: u32, out: &mut [f32]) -> Result<(), TableError> {
        assert_eq!(out.len(), self.dim, "one place a dimension");
        if row >= self.rows {
            return Err(TableError::NoSuchRow {
                table: self.name.clone(),
                row: row.into(),
                rows: self.rows.into(),
            });
        }
        let at = row as usize * self.stride;
        self.format.decode(&self.bytes()[at..at + self.stride], out);
        Ok(())
    }
}

/// Where each table lies in the arena.
pub(crate) struct Layout {
    /// Offset and length of each table's rows, ascending.
    places: Vec<(usize, usize)>,
    bytes: usize,
}

impl Layout {
    pub(crate) fn new(tables: &[TableInfo]) -> Result<Layout, TableError> {
        let mut end = 0u64;
        let mut places = Vec::with_capacity(tables.len());
        for table in tables {
            let len = table.row_region_bytes();
            let align = if len >= LARGE_BYTES {
                LARGE_ALIGN
            } else {
                SMALL_ALIGN
            };
            // 4096 tables of at most 2^44 bytes stay below 2^57.
            let offset = end.next_multiple_of(align);
            places.push((offset as usize, len as usize));
            end = offset + len;
        }
        Ok(Layout {
            places,
            bytes: end as usize,
        })
    }

    pub(crate) fn allocate(
        &self,
        huge_pages: HugePages,
        progress: Progress<'_>,
    ) -> Result<Arena, TableError> {
        let total = self.bytes as u64;
        progress(Stage::Allocating, 0, total);
        let arena = Arena::allocate_with(self.bytes, huge_pages, &mut |done| {
            progress(Stage::Allocating, total.min(done as u64), total);
        })?;
        Ok(arena)
    }

    /// The rows of each table as slices of their own.
    pub(crate) fn split<'a>(&self, arena: &'a mut [u8]) -> Vec<&'a mut [u8]> {
        let mut rest = arena;
        let mut at = 0;
        let mut slices = Vec::with_capacity(self.places.len());
        for &(offset, len) in &self.places {
            let (_padding, behind) = rest.split_at_mut(offset - at);
            let (rows, behind) = behind.split_at_mut(len);
            slices.push(rows);
            rest = behind;
            at = offset + len;
        }
        slices
    }

    /// Freezes the filled arena and gives it out as tables.
    pub(crate) fn finish(
        &self,
        arena: Arena,
        generation: u64,
        tables: &[TableInfo],
    ) -> Result<Resident, TableError> {
        let arena = Arc::new(arena.freeze()?);
        let tables = tables
            .iter()
            .zip(&self.places)
            .map(|(table, &(offset, len))| ResidentTable {
                name: table.name.clone(),
                dim: table.dim,
                rows: u32::try_from(table.rows).expect("checked: below 2^31"),
                format: table.format,
                stride: table.stride,
                offset,
                len,
                arena: Arc::clone(&arena),
            })
            .collect();
        Ok(Resident {
            generation,
            tables,
            arena,
        })
    }
}
