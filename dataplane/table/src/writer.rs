//! Making generations: rows and keys from a source become files, a block at a time.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::blocks::{
    BLOCK_BYTES, Meter, block_count, block_range, body_range, in_parallel, read_at,
};
use crate::draft::Draft;
use crate::header::{HEADER_BYTES, Header};
use crate::index_build::{self, DEALT_BYTES, Scratch};
use crate::manifest::{CHECKSUM_FILE, MANIFEST_FILE, Manifest, TableInfo};
pub(crate) use crate::mix::random_seed;
use crate::mix::word;
use crate::pages::{BLOCK_PAGES, CHECKSUM_BYTES, PAGE_BYTES, crc_of_file, page_crcs};
use crate::spec::{Missing, TableKind, TableSpec, check_specs};
use crate::{Progress, Stage, TableError};

/// A file in the draft's directory that is gone before it is published.
const SCRATCH_FILE: &str = "keys.scratch";

/// Where rows come from when a generation is made.
pub(crate) trait RowSource: Sync {
    /// Fills `out`, a whole number of encoded rows of table number `table`, from row `first` on. Rows are
    /// asked for by several threads at a time, in any order, and at the borders of blocks more than once.
    fn rows(&self, table: usize, first: u64, out: &mut [u8]) -> Result<(), TableError>;

    /// Fills `out` with the keys of rows from `first` on, of a hashed table. All keys are asked for two
    /// times or more, before any rows.
    fn keys(&self, table: usize, first: u64, out: &mut [u64]) -> Result<(), TableError> {
        let _ = (first, out);
        panic!("the source has no keys for table {table}");
    }

    /// Encodes the row for missing ids of a table that has one of its own; `out` comes as zeros.
    fn default_row(&self, table: usize, out: &mut [u8]) -> Result<(), TableError> {
        let _ = out;
        panic!("the source has no row for missing ids of table {table}");
    }
}

/// A source that gives nothing more once `stop` is set. Every piece of work begins with asking it.
struct Stoppable<'a> {
    source: &'a dyn RowSource,
    stop: &'a AtomicBool,
}

impl Stoppable<'_> {
    fn check(&self) -> Result<(), TableError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(TableError::Interrupted);
        }
        Ok(())
    }
}

impl RowSource for Stoppable<'_> {
    fn rows(&self, table: usize, first: u64, out: &mut [u8]) -> Result<(), TableError> {
        self.check()?;
        self.source.rows(table, first, out)
    }

    fn keys(&self, table: usize, first: u64, out: &mut [u64]) -> Result<(), TableError> {
        self.check()?;
        self.source.keys(table, first, out)
    }

    fn default_row(&self, table: usize, out: &mut [u8]) -> Result<(), TableError> {
        self.check()?;
        self.source.default_row(table, out)
    }
}

/// One table of a source: its stored rows, as bytes from anywhere to anywhere.
pub(crate) struct TableRows<'a> {
    pub(crate) source: &'a dyn RowSource,
    pub(crate) table: usize,
    pub(crate) info: &'a TableInfo,
}

impl TableRows<'_> {
    /// Fills `out` with the bytes from byte `from` of the table's rows on; `from` and the end may lie
    /// within a row. `row` is scratch.
    pub(crate) fn fill(
        &self,
        from: u64,
        out: &mut [u8],
        row: &mut Vec<u8>,
    ) -> Result<(), TableError> {
        let stride = self.info.stride;
        row.resize(stride, 0);
        let (mut first, into_row) = (from / stride as u64, (from % stride as u64) as usize);
        let mut out = out;
        if into_row > 0 {
            let (head, rest) = out.split_at_mut(out.len().min(stride - into_row));
            self.rows(first, row)?;
            head.copy_from_slice(&row[into_row..into_row + head.len()]);
            (first, out) = (first + 1, rest);
        }
        let (whole, tail) = out.split_at_mut(out.len() - out.len() % stride);
        self.rows(first, whole)?;
        if !tail.is_empty() {
            self.rows(first + (whole.len() / stride) as u64, row)?;
            tail.copy_from_slice(&row[..tail.len()]);
        }
        Ok(())
    }

    /// Whole rows, the one for missing ids among them if it lies there.
    fn rows(&self, first: u64, out: &mut [u8]) -> Result<(), TableError> {
        let stride = self.info.stride as u64;
        let with_ids = self
            .info
            .rows
            .saturating_sub(first)
            .min(out.len() as u64 / stride);
        let (rows, extra) = out.split_at_mut((with_ids * stride) as usize);
        if !rows.is_empty() {
            self.source.rows(self.table, first, rows)?;
        }
        extra.fill(0);
        if !extra.is_empty() && self.info.kind.missing() == Missing::Default {
            self.source.default_row(self.table, extra)?;
        }
        Ok(())
    }

    /// Builds the table's index and hands it to `sink`.
    pub(crate) fn index(
        &self,
        seed: u64,
        scratch: &mut Scratch,
        sink: index_build::Sink<'_>,
    ) -> Result<(), TableError> {
        let keys = |first, out: &mut [u64]| self.source.keys(self.table, first, out);
        let seed = word(seed, self.table as u64);
        index_build::build(&self.info.name, self.info.rows, seed, &keys, scratch, sink)
    }
}

/// Makes generation `number` at `dir`, which must not exist. Memory use is bounded, whatever the size.
/// `seed` is what the indexes of hashed tables are seeded from. Once `stop` is set, what was written is
/// removed, and that is [`TableError::Interrupted`].
pub(crate) fn write_generation(
    dir: &Path,
    number: u64,
    specs: &[TableSpec],
    source: &dyn RowSource,
    seed: u64,
    progress: Progress<'_>,
    stop: &AtomicBool,
) -> Result<(), TableError> {
    check_specs(specs)?;
    let source = &Stoppable { source, stop };
    let tables: Vec<TableInfo> = specs
        .iter()
        .enumerate()
        .map(|(index, spec)| TableInfo::new(spec, format!("{index:05}.rows")))
        .collect();
    let hashed = tables.iter().filter(|table| table.kind != TableKind::Dense);
    let scratch_bytes = hashed.map(|table| table.rows * DEALT_BYTES).max();
    let bytes = tables.iter().map(|table| table.file_bytes).sum::<u64>();
    let sum_bytes = bytes / PAGE_BYTES as u64 * CHECKSUM_BYTES;
    let draft = Draft::begin(dir, bytes + sum_bytes + scratch_bytes.unwrap_or(0))?;
    create_files(&draft, &tables)?;
    write_indexes(&draft, &tables, source, seed, progress)?;
    let sum_path = draft.path(CHECKSUM_FILE);
    let sums = create(&sum_path, sum_bytes)?;
    write_tables(&draft, &tables, source, &sums, progress)?;
    let checksum_crc = crc_of_file(&sums, &sum_path, sum_bytes)?;
    sums.sync_all().map_err(TableError::io(&sum_path))?;
    let manifest = Manifest {
        generation: number,
        checksum_file: CHECKSUM_FILE.into(),
        checksum_crc,
        tables,
    };
    draft.sync(&manifest.tables, progress, stop)?;
    draft.write_file(MANIFEST_FILE, &manifest.to_bytes())?;
    draft.publish()
}

/// Makes all table files in their full size, as holes.
fn create_files(draft: &Draft, tables: &[TableInfo]) -> Result<(), TableError> {
    for table in tables {
        create(&draft.path(&table.file), table.file_bytes)?;
    }
    Ok(())
}

/// Makes a file in its full size, as a hole.
fn create(path: &Path, bytes: u64) -> Result<File, TableError> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).open(path);
    let file = file.map_err(TableError::io(path))?;
    file.set_len(bytes).map_err(TableError::io(path))?;
    Ok(file)
}

/// Writes the indexes of hashed tables to their places in the files.
fn write_indexes(
    draft: &Draft,
    tables: &[TableInfo],
    source: &dyn RowSource,
    seed: u64,
    progress: Progress<'_>,
) -> Result<(), TableError> {
    let total = tables.iter().map(TableInfo::index_bytes).sum();
    if total == 0 {
        return Ok(());
    }
    let meter = Meter::new(progress, Stage::Indexing, total);
    for (index, info) in tables.iter().enumerate() {
        if info.kind == TableKind::Dense {
            continue;
        }
        let scratch_path = draft.path(SCRATCH_FILE);
        let scratch = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&scratch_path)
            .map_err(TableError::io(&scratch_path))?;
        // A file without a name takes its room only as long as it is open.
        std::fs::remove_file(&scratch_path).map_err(TableError::io(&scratch_path))?;
        let mut scratch = Scratch::File(scratch, scratch_path);
        let path = draft.path(&info.file);
        let file = open_to_write(&path)?;
        let at = HEADER_BYTES as u64 + info.index_at();
        let mut written = 0;
        let rows = TableRows {
            source,
            table: index,
            info,
        };
        rows.index(seed, &mut scratch, &mut |place, bytes| {
            file.write_all_at(bytes, at + place)
                .map_err(TableError::io(&path))?;
            // Another seed starts at the beginning again; what is reported only grows.
            let end = place + bytes.len() as u64;
            meter.add(end.saturating_sub(written));
            written = written.max(end);
            Ok(())
        })?;
    }
    Ok(())
}

fn open_to_write(path: &Path) -> Result<File, TableError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(TableError::io(path))
}

/// Writes headers and rows, and the checksums of all pages, table after table, to `sums`.
fn write_tables(
    draft: &Draft,
    tables: &[TableInfo],
    source: &dyn RowSource,
    sums: &File,
    progress: Progress<'_>,
) -> Result<(), TableError> {
    let mut jobs = Vec::new();
    let mut pages = 0;
    for (index, table) in tables.iter().enumerate() {
        let blocks = 0..block_count(table.file_bytes);
        jobs.extend(blocks.map(|block| (index, block, pages + block * BLOCK_PAGES)));
        pages += table.page_count();
    }
    let meter = Meter::new(
        progress,
        Stage::Writing,
        tables.iter().map(|table| table.file_bytes).sum(),
    );
    let sum_path = draft.path(CHECKSUM_FILE);
    let writing = Mutex::new(());
    let start = || (vec![0; BLOCK_BYTES], Vec::new());
    in_parallel(
        jobs.into_iter(),
        start,
        |(buffer, row), (index, block, first_page)| {
            let info = &tables[index];
            let range = block_range(info.file_bytes, block);
            let bytes = &mut buffer[..(range.end - range.start) as usize];
            let path = draft.path(&info.file);
            let file = open_to_write(&path)?;
            let rows = TableRows {
                source,
                table: index,
                info,
            };
            let made = compose(&rows, block, &file, &path, bytes, row)?;
            let crcs: Vec<u8> = page_crcs(bytes, &[], &[])
                .flat_map(u32::to_le_bytes)
                .collect();
            // Two writers of one file spin on its lock in the kernel; here the second one sleeps.
            let _turn = writing.lock().unwrap_or_else(PoisonError::into_inner);
            file.write_all_at(&bytes[..made], range.start)
                .map_err(TableError::io(&path))?;
            sums.write_all_at(&crcs, first_page * CHECKSUM_BYTES)
                .map_err(TableError::io(&sum_path))?;
            meter.add(bytes.len() as u64);
            Ok(())
        },
    )
}

/// Puts together the bytes of one block: header, rows, index, padding. Gives how many of them, from the
/// first on, are not in the file yet: the index and what follows are.
fn compose(
    rows: &TableRows<'_>,
    block: u64,
    file: &File,
    path: &Path,
    bytes: &mut [u8],
    row: &mut Vec<u8>,
) -> Result<usize, TableError> {
    let info = rows.info;
    let mut rest = bytes;
    let mut made = rest.len();
    if block == 0 {
        let (header, behind) = rest.split_at_mut(HEADER_BYTES);
        header.copy_from_slice(&Header { spec: info.spec() }.to_bytes());
        rest = behind;
    }
    let before = made - rest.len();
    let body = body_range(info.file_bytes, info.resident_bytes(), block);
    let row_end = info.row_region_bytes().clamp(body.start, body.end);
    let index_start = info.index_at().clamp(body.start, body.end);
    let (row_bytes, rest) = rest.split_at_mut((row_end - body.start) as usize);
    let (gap, rest) = rest.split_at_mut((index_start - row_end) as usize);
    let (index, padding) = rest.split_at_mut((body.end - index_start) as usize);
    if !row_bytes.is_empty() {
        rows.fill(body.start, row_bytes, row)?;
    }
    gap.fill(0);
    padding.fill(0);
    if !index.is_empty() {
        read_at(file, path, index, HEADER_BYTES as u64 + index_start)?;
        made = before + row_bytes.len() + gap.len();
    }
    Ok(made)
}
