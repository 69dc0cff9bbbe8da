//! From files into memory.

use rowmill_arena::HugePages;

use crate::blocks::{
    Meter, block_count, block_range, body_range, in_parallel, open_regular, read_at,
};
use crate::header::HEADER_BYTES;
use crate::manifest::TableInfo;
use crate::resident::{Layout, Resident};
use crate::{Generation, Progress, Stage, TableError};

/// How tables are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// Whether the checksums are compared while the rows are read.
    pub verify: bool,
}

impl Default for LoadOptions {
    fn default() -> LoadOptions {
        LoadOptions { verify: true }
    }
}

/// One block of one table, and where its rows and its part of the index go.
struct Job<'a> {
    table: &'a TableInfo,
    block: u64,
    checksum: Option<u32>,
    rows: &'a mut [u8],
}

pub(crate) fn load(
    generation: &Generation,
    huge_pages: HugePages,
    progress: Progress<'_>,
    options: LoadOptions,
) -> Result<Resident, TableError> {
    let checksums = if options.verify {
        Some(generation.checksums()?)
    } else {
        None
    };
    let layout = Layout::new(generation.tables())?;
    let mut arena = layout.allocate(huge_pages, progress)?;
    let mut jobs = Vec::new();
    for (table, mut rows) in generation
        .tables()
        .iter()
        .zip(layout.split(arena.as_mut_slice()))
    {
        for block in 0..block_count(table.file_bytes) {
            let range = body_range(table.file_bytes, table.resident_bytes(), block);
            let (part, rest) = rows.split_at_mut((range.end - range.start) as usize);
            rows = rest;
            let checksum = checksums.as_ref().map(|list| list[jobs.len()]);
            jobs.push(Job {
                table,
                block,
                checksum,
                rows: part,
            });
        }
    }
    let meter = Meter::new(progress, Stage::Loading, generation.resident_bytes());
    in_parallel(
        jobs.into_iter(),
        || (),
        |(), job| {
            let bytes = job.rows.len() as u64;
            read_block(generation, job)?;
            meter.add(bytes);
            Ok(())
        },
    )?;
    layout.finish(arena, generation.number(), generation.tables())
}

fn read_block(generation: &Generation, job: Job<'_>) -> Result<(), TableError> {
    let Job {
        table,
        block,
        checksum,
        rows,
    } = job;
    let path = generation.path(table);
    let file = open_regular(&path).map_err(TableError::io(&path))?;
    let range = block_range(table.file_bytes, block);
    let rows_at = range.start.max(HEADER_BYTES as u64);
    read_at(&file, &path, rows, rows_at)?;
    let Some(checksum) = checksum else {
        return Ok(());
    };
    // What surrounds the rows in their block is at most a header in front and a page of padding behind.
    let mut around = [0; HEADER_BYTES];
    let mut hasher = crc32fast::Hasher::new();
    let mut add = |hasher: &mut crc32fast::Hasher, from: u64, to: u64| {
        let part = &mut around[..(to - from) as usize];
        read_at(&file, &path, part, from)?;
        hasher.update(part);
        Ok::<(), TableError>(())
    };
    add(&mut hasher, range.start, rows_at)?;
    hasher.update(rows);
    add(&mut hasher, rows_at + rows.len() as u64, range.end)?;
    if hasher.finalize() == checksum {
        return Ok(());
    }
    Err(TableError::DamagedBlock {
        table: table.name.clone(),
        path,
        block,
        from: range.start,
        to: range.end,
        others: 0,
    })
}
