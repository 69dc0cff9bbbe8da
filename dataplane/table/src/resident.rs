//! Tables in memory.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use rowmill_arena::{Arena, Backing, FrozenArena, HugePages};

use crate::blocks::{BLOCK_BYTES, Meter, in_parallel};
use crate::format::RowFormat;
use crate::generate::Generated;
use crate::index::{BUCKET_BYTES, Found, Index, entries};
use crate::index_build::Scratch;
use crate::manifest::TableInfo;
use crate::spec::{Missing, TableKind, TableSpec, check_specs};
use crate::verify::check_zero_row;
use crate::writer::TableRows;
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
        let rows_of = |table| TableRows {
            source: &source,
            table,
            info: &tables[table],
        };
        let total = tables.iter().map(TableInfo::resident_bytes).sum();
        let meter = Meter::new(progress, Stage::Filling, total);
        let mut jobs = Vec::new();
        for (index, body) in layout.split(arena.as_mut_slice()).into_iter().enumerate() {
            let info = &tables[index];
            let (rows, rest) = body.split_at_mut(info.row_region_bytes() as usize);
            let (gap, index_bytes) = rest.split_at_mut(rest.len() - info.index_bytes() as usize);
            gap.fill(0);
            if !index_bytes.is_empty() {
                let mut scratch = Scratch::Memory(Vec::new());
                rows_of(index).index(seed, &mut scratch, &mut |at, bytes| {
                    index_bytes[at as usize..][..bytes.len()].copy_from_slice(bytes);
                    Ok(())
                })?;
            }
            meter.add((gap.len() + index_bytes.len()) as u64);
            let parts = rows.chunks_mut(BLOCK_BYTES).enumerate();
            jobs.extend(parts.map(|(part, bytes)| (index, (part * BLOCK_BYTES) as u64, bytes)));
        }
        in_parallel(jobs.into_iter(), Vec::new, |row, (index, from, bytes)| {
            rows_of(index).fill(from, bytes, row)?;
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

    /// Bytes of the arena: all rows and indexes, and the padding between tables.
    pub fn arena_bytes(&self) -> usize {
        self.arena.len()
    }
}

/// One table in memory. Cheap to clone; keeps its arena alive.
#[derive(Clone, Debug)]
pub struct ResidentTable {
    name: String,
    dim: usize,
    /// Rows that ids lead to.
    ids: u32,
    /// Those, and the one for missing ids where there is one.
    rows: u32,
    format: RowFormat,
    kind: TableKind,
    stride: usize,
    offset: usize,
    len: usize,
    /// What a hashed table is looked up with, and where its bytes lie.
    index: Option<(Index, Range<usize>)>,
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

    /// Stored rows, below 2^31; row numbers are smaller. Those of ids come first, and behind them lies the
    /// one for missing ids where these are answered.
    pub fn row_count(&self) -> u32 {
        self.rows
    }

    /// Ids that there are: those of a dense table are smaller, a hashed one has as many keys.
    pub fn lookup_count(&self) -> u32 {
        self.ids
    }

    /// How ids lead to rows.
    pub fn kind(&self) -> TableKind {
        self.kind
    }

    /// How a row is stored.
    pub fn format(&self) -> RowFormat {
        self.format
    }

    /// Bytes from one row to the next.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// All stored rows, one after another.
    pub fn bytes(&self) -> &[u8] {
        &self.arena[self.offset..self.offset + self.len]
    }

    /// Writes the row number of each of `ids` to the same place of `out`; an id that is missing gets the
    /// row for such ids. Allocates nothing; the work for an id is bounded.
    ///
    /// # Errors
    /// The position of the first id that leads to no row: outside a dense table, or missing in one that
    /// refuses such ids. What is in `out` then means nothing.
    ///
    /// # Panics
    /// If `ids` and `out` have different lengths.
    pub fn resolve(&self, ids: &[u64], out: &mut [u32]) -> Result<(), usize> {
        let Some((index, bytes)) = &self.index else {
            assert_eq!(ids.len(), out.len(), "a row for each id");
            let mut outside = false;
            for (row, &id) in out.iter_mut().zip(ids) {
                outside |= id >= u64::from(self.ids);
                *row = id as u32;
            }
            if !outside {
                return Ok(());
            }
            return match ids.iter().position(|&id| id >= u64::from(self.ids)) {
                Some(position) => Err(position),
                None => Ok(()),
            };
        };
        let missing = (self.kind.missing() != Missing::Error).then_some(self.ids);
        index.resolve(&self.arena[bytes.clone()], ids, out, missing)
    }

    /// The keys of a hashed table with the rows that they lead to, in the order of the index; nothing for a
    /// dense table.
    pub fn entries(&self) -> impl Iterator<Item = (u64, u32)> {
        let bytes = self.index.as_ref().map_or(0..0, |(_, bytes)| bytes.clone());
        let (lines, _) = self.arena[bytes].as_chunks::<BUCKET_BYTES>();
        lines.iter().skip(1).flat_map(entries)
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
    /// Offset and length of each table's rows and index, ascending.
    places: Vec<(usize, usize)>,
    bytes: usize,
}

impl Layout {
    pub(crate) fn new(tables: &[TableInfo]) -> Result<Layout, TableError> {
        let mut end = 0u64;
        let mut places = Vec::with_capacity(tables.len());
        for table in tables {
            let len = table.resident_bytes();
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

    /// The rows and index of each table as slices of their own.
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

    /// Freezes the filled arena, checks the rows of zeros and the indexes in it, and gives it out as tables.
    pub(crate) fn finish(
        &self,
        arena: Arena,
        generation: u64,
        tables: &[TableInfo],
    ) -> Result<Resident, TableError> {
        let arena = Arc::new(arena.freeze()?);
        let row = |count| u32::try_from(count).expect("checked: below 2^31");
        let table = |(info, &(offset, len)): (&TableInfo, &(usize, usize))| {
            let index = match info.kind {
                TableKind::Dense => None,
                TableKind::Hashed(_) => {
                    let rows = &arena[offset..][..info.row_region_bytes() as usize];
                    check_zero_row(info, &rows[rows.len() - info.stride..])?;
                    let bytes = offset + info.index_at() as usize..offset + len;
                    let index = check_index(info, &arena[bytes.clone()])?;
                    Some((index, bytes))
                }
            };
            Ok(ResidentTable {
                name: info.name.clone(),
                dim: info.dim,
                ids: row(info.rows),
                rows: row(info.stored_rows()),
                format: info.format,
                kind: info.kind,
                stride: info.stride,
                offset,
                len: info.row_region_bytes() as usize,
                index,
                arena: Arc::clone(&arena),
            })
        };
        let tables: Result<Vec<ResidentTable>, TableError> =
            tables.iter().zip(&self.places).map(table).collect();
        Ok(Resident {
            generation,
            tables: tables?,
            arena,
        })
    }
}

/// Checks an index in memory, a part at a time by several threads.
fn check_index(info: &TableInfo, bytes: &[u8]) -> Result<Index, TableError> {
    const BUCKETS_A_JOB: usize = BLOCK_BYTES / BUCKET_BYTES;
    let bad = |reason| TableError::BadIndex {
        table: info.name.clone(),
        reason,
    };
    let (lines, _) = bytes.as_chunks::<BUCKET_BYTES>();
    let (first, buckets) = lines.split_first().expect("its first line");
    let index = Index::parse(first, info.rows).map_err(bad)?;
    let all = Mutex::new(Found::default());
    let jobs = (0..buckets.len()).step_by(BUCKETS_A_JOB);
    in_parallel(
        jobs,
        || (),
        |(), from| {
            let part = &buckets[from..buckets.len().min(from + BUCKETS_A_JOB)];
            let previous = from.checked_sub(1).map(|before| &buckets[before]);
            let found = index
                .check_buckets(part, from as u64, previous, info.rows)
                .map_err(bad)?;
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            *all = all.with(found);
            Ok(())
        },
    )?;
    let all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    index.checked(all, info.rows).map_err(bad)
}
