//! Comparing every page with its checksum, and looking at rows of zeros and indexes.

use std::sync::{Mutex, PoisonError};

use crate::blocks::{BLOCK_BYTES, Meter, block_count, block_range, in_parallel, read_at};
use crate::header::HEADER_BYTES;
use crate::index::{BUCKET_BYTES, Found, Index};
use crate::manifest::TableInfo;
use crate::pages::{BLOCK_PAGES, Checksums, Damage, PAGE_BYTES, damage, page_crcs};
use crate::spec::{Missing, TableKind};
use crate::{Generation, Progress, Stage, TableError};

pub(crate) fn verify(generation: &Generation, progress: Progress<'_>) -> Result<(), TableError> {
    // The manifest and headers were checked when the generation was opened; open it again, since
    // that may be long ago.
    let generation = Generation::open(generation.dir())?;
    let checksums = Checksums::open(&generation)?;
    let tables = generation.tables();
    let mut pages_before = 0;
    let starts = tables.iter().enumerate().map(|(index, table)| {
        let before = pages_before;
        pages_before += table.page_count();
        (index, before)
    });
    let jobs = starts.flat_map(|(index, before)| {
        (0..block_count(tables[index].file_bytes)).map(move |block| (index, before, block))
    });
    let meter = Meter::new(
        progress,
        Stage::Verifying,
        tables.iter().map(|table| table.file_bytes).sum(),
    );
    // The first damaged page with its table, and how many there are.
    let damaged: Mutex<Option<((usize, u64), u64)>> = Mutex::new(None);
    in_parallel(
        jobs,
        || vec![0; BLOCK_BYTES],
        |buffer, (index, before, block)| {
            let table = &tables[index];
            let (file, path) = generation.sized_file(&table.file, table.file_bytes)?;
            let range = block_range(table.file_bytes, block);
            let bytes = &mut buffer[..(range.end - range.start) as usize];
            read_at(&file, &path, bytes, range.start)?;
            let first_page = block * BLOCK_PAGES;
            let pages = (bytes.len() / PAGE_BYTES) as u64;
            let promised = checksums.read(before + first_page, pages)?;
            if let Some(Damage { first, count }) = damage(page_crcs(bytes, &[], &[]), &promised) {
                let found = ((index, first_page + first), count);
                let mut damaged = damaged.lock().unwrap_or_else(PoisonError::into_inner);
                *damaged = Some(match *damaged {
                    Some((least, others)) => (least.min(found.0), others + count),
                    None => found,
                });
            }
            meter.add(bytes.len() as u64);
            Ok(())
        },
    )?;
    let damaged = damaged.into_inner().unwrap_or_else(PoisonError::into_inner);
    let Some(((index, page), count)) = damaged else {
        return tables
            .iter()
            .try_for_each(|table| verify_hashed(&generation, table));
    };
    Err(TableError::DamagedPage {
        table: tables[index].name.clone(),
        path: generation.path(&tables[index]),
        page,
        others: Some(count - 1),
    })
}

/// Checks a row of zeros and an index in their file, the index a part at a time.
fn verify_hashed(generation: &Generation, info: &TableInfo) -> Result<(), TableError> {
    if info.kind == TableKind::Dense {
        return Ok(());
    }
    let bad = |reason| TableError::BadIndex {
        table: info.name.clone(),
        reason,
    };
    let (file, path) = generation.sized_file(&info.file, info.file_bytes)?;
    let mut row = vec![0; info.stride];
    let row_at = HEADER_BYTES as u64 + info.row_region_bytes() - info.stride as u64;
    read_at(&file, &path, &mut row, row_at)?;
    check_zero_row(info, &row)?;
    let mut at = HEADER_BYTES as u64 + info.index_at();
    let end = at + info.index_bytes();
    let mut line = [0; BUCKET_BYTES];
    read_at(&file, &path, &mut line, at)?;
    at += line.len() as u64;
    let index = Index::parse(&line, info.rows).map_err(bad)?;
    let (mut first, mut previous, mut all) = (0, None, Found::default());
    let mut buffer = vec![0; BLOCK_BYTES];
    while at < end {
        let bytes = &mut buffer[..(end - at).min(BLOCK_BYTES as u64) as usize];
        read_at(&file, &path, bytes, at)?;
        let (buckets, _) = bytes.as_chunks();
        let found = index
            .check_buckets(buckets, first, previous.as_ref(), info.rows)
            .map_err(bad)?;
        all = all.with(found);
        first += buckets.len() as u64;
        previous = buckets.last().copied();
        at += bytes.len() as u64;
    }
    index.checked(all, info.rows).map(|_| ()).map_err(bad)
}

/// Checks the last of a table's stored rows, which is all zeros where missing ids stand for such a row.
pub(crate) fn check_zero_row(info: &TableInfo, row: &[u8]) -> Result<(), TableError> {
    if info.kind.missing() == Missing::Zero && row.iter().any(|&byte| byte != 0) {
        return Err(TableError::BadZeroRow {
            table: info.name.clone(),
        });
    }
    Ok(())
}

/// Checks an index in memory, a part at a time by several threads.
pub(crate) fn check_index(info: &TableInfo, bytes: &[u8]) -> Result<Index, TableError> {
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
