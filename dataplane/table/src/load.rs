//! From files into memory.

use rowmill_arena::HugePages;

use crate::blocks::{
    Meter, block_count, block_range, body_range, in_parallel, open_regular, read_at,
};
use crate::header::HEADER_BYTES;
use crate::manifest::TableInfo;
use crate::pages::{BLOCK_PAGES, Checksums, PAGE_BYTES, damage, page_crcs};
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
    /// The number of the block's first page, those of the tables before it counted too.
    first_page: u64,
    rows: &'a mut [u8],
}

pub(crate) fn load(
    generation: &Generation,
    huge_pages: HugePages,
    progress: Progress<'_>,
    options: LoadOptions,
) -> Result<Resident, TableError> {
    let layout = Layout::new(generation.tables())?;
    let mut arena = layout.allocate(huge_pages, progress)?;
    let checksums = if options.verify {
        Some(Checksums::open(generation)?)
    } else {
        None
    };
    let mut jobs = Vec::new();
    let mut pages_before = 0;
    for (table, mut rows) in generation
        .tables()
        .iter()
        .zip(layout.split(arena.as_mut_slice()))
    {
        for block in 0..block_count(table.file_bytes) {
            let range = body_range(table.file_bytes, table.resident_bytes(), block);
            let (part, rest) = rows.split_at_mut((range.end - range.start) as usize);
            rows = rest;
            jobs.push(Job {
                table,
                block,
                first_page: pages_before + block * BLOCK_PAGES,
                rows: part,
            });
        }
        pages_before += table.page_count();
    }
    let meter = Meter::new(progress, Stage::Loading, generation.resident_bytes());
    in_parallel(
        jobs.into_iter(),
        || (),
        |(), job| {
            let bytes = job.rows.len() as u64;
            read_block(generation, checksums.as_ref(), job)?;
            meter.add(bytes);
            Ok(())
        },
    )?;
    layout.finish(arena, generation.number(), generation.tables())
}

fn read_block(
    generation: &Generation,
    checksums: Option<&Checksums>,
    job: Job<'_>,
) -> Result<(), TableError> {
    let Job {
        table,
        block,
        first_page,
        rows,
    } = job;
    let path = generation.path(table);
    let file = open_regular(&path).map_err(TableError::io(&path))?;
    let range = block_range(table.file_bytes, block);
    let rows_at = range.start.max(HEADER_BYTES as u64);
    read_at(&file, &path, rows, rows_at)?;
    let Some(checksums) = checksums else {
        return Ok(());
    };
    // What surrounds the rows in their block is at most a header in front and a page of padding behind.
    let (mut head, mut tail) = ([0; HEADER_BYTES], [0; PAGE_BYTES]);
    let rows_end = rows_at + rows.len() as u64;
    let head = &mut head[..(rows_at - range.start) as usize];
    let tail = &mut tail[..(range.end - rows_end) as usize];
    read_at(&file, &path, head, range.start)?;
    read_at(&file, &path, tail, rows_end)?;
    let pages = (range.end - range.start) / PAGE_BYTES as u64;
    let promised = checksums.read(first_page, pages)?;
    let Some(damage) = damage(page_crcs(head, rows, tail), &promised) else {
        return Ok(());
    };
    Err(TableError::DamagedPage {
        table: table.name.clone(),
        path,
        page: block * BLOCK_PAGES + damage.first,
        others: damage.count - 1,
    })
}
