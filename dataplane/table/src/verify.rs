//! Comparing every block with its checksum, and looking at rows of zeros and indexes.

use std::sync::{Mutex, PoisonError};

use crate::blocks::{
    BLOCK_BYTES, Meter, block_count, block_range, in_parallel, open_regular, read_at,
};
use crate::header::HEADER_BYTES;
use crate::index::{BUCKET_BYTES, Found, Index};
use crate::manifest::TableInfo;
use crate::spec::{Missing, TableKind};
use crate::{Generation, Progress, Stage, TableError};

pub(crate) fn verify(generation: &Generation, progress: Progress<'_>) -> Result<(), TableError> {
    // The manifest and headers were checked when the generation was opened; open it again, since
    // that may be long ago.
    let generation = Generation::open(generation.dir())?;
    let checksums = generation.checksums()?;
    let tables = generation.tables();
    let jobs = tables.iter().enumerate().flat_map(|(index, table)| {
        (0..block_count(table.file_bytes)).map(move |block| (index, block))
    });
    let meter = Meter::new(
        progress,
        Stage::Verifying,
        tables.iter().map(|table| table.file_bytes).sum(),
    );
    let damaged = Mutex::new(Vec::new());
    in_parallel(
        jobs.zip(checksums),
        || vec![0; BLOCK_BYTES],
        |buffer, ((index, block), checksum)| {
            let table = &tables[index];
            let path = generation.path(table);
            let file = open_regular(&path).map_err(TableError::io(&path))?;
            let range = block_range(table.file_bytes, block);
            let bytes = &mut buffer[..(range.end - range.start) as usize];
            read_at(&file, &path, bytes, range.start)?;
            if crc32fast::hash(bytes) != checksum {
                damaged
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push((index, block));
            }
            meter.add(bytes.len() as u64);
            Ok(())
        },
    )?;
    let damaged = damaged.into_inner().unwrap_or_else(PoisonError::into_inner);
    let Some(&(index, block)) = damaged.iter().min() else {
        return tables
            .iter()
            .try_for_each(|table| verify_hashed(&generation, table));
    };
    let table = &tables[index];
    let range = block_range(table.file_bytes, block);
    Err(TableError::DamagedBlock {
        table: table.name.clone(),
        path: generation.path(table),
        block,
        from: range.start,
        to: range.end,
        others: damaged.len() as u64 - 1,
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
    let path = generation.path(info);
    let file = open_regular(&path).map_err(TableError::io(&path))?;
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
