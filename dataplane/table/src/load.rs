//! From files into memory.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rowmill_arena::HugePages;

use crate::blocks::{Meter, block_range, in_parallel, read_at};
use crate::header::HEADER_BYTES;
use crate::layout::Layout;
use crate::manifest::TableInfo;
use crate::overlay::Room;
use crate::pages::{BLOCK_PAGES, Checksums, PAGE_BYTES, damage, page_crcs};
use crate::part::{Bytes, Part};
use crate::resident::{Resident, ResidentTable};
use crate::spec::Missing;
use crate::verify::check_zero_row;
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

/// What of a table is brought into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Rows and index, in the arena of all tables.
    All,
    /// The same, and room behind for rows that stand in for others while these [change](ResidentTable::change). A table of nearly 2^31 rows
    /// has none, and its rows can't.
    Changing,
    /// Rows and index, the rows in an arena of their own, which is given back with the last that holds them.
    RowsApart,
    /// The same, with room behind the rows as with [`Changing`](Keep::Changing).
    ChangingApart,
    /// The index alone; nothing of a dense table.
    Index,
}

/// Bytes of a table's file that come into memory together.
struct Region<'a> {
    table: &'a TableInfo,
    /// The number of the file's first page, those of the tables before it counted too.
    first_page: u64,
    /// Counted from the start of the file. It starts with a page; what is in front of the rows, their header, is
    /// checked but not kept.
    bytes: Range<u64>,
    /// What there is behind it, where the rows can change.
    room: Option<Room>,
}

/// The part of a region that is in one block, and where it goes.
struct Job<'a> {
    region: &'a Region<'a>,
    bytes: Range<u64>,
    out: &'a mut [u8],
}

impl<'a> Region<'a> {
    fn rows(table: &'a TableInfo, first_page: u64) -> Region<'a> {
        let from = HEADER_BYTES as u64;
        Region {
            table,
            first_page,
            bytes: from..from + table.row_region_bytes(),
            room: None,
        }
    }

    /// The index, with what else is in its first page.
    fn index(table: &'a TableInfo, first_page: u64) -> Region<'a> {
        let from = HEADER_BYTES as u64 + table.index_at();
        let to = from + table.index_bytes();
        Region {
            table,
            first_page,
            bytes: if from == to {
                from..to
            } else {
                from / PAGE_BYTES as u64 * PAGE_BYTES as u64..to
            },
            room: None,
        }
    }

    fn all(table: &'a TableInfo, first_page: u64) -> Region<'a> {
        let from = HEADER_BYTES as u64;
        Region {
            table,
            first_page,
            bytes: from..from + table.resident_bytes(),
            room: None,
        }
    }

    /// The same with room behind.
    fn changing(self) -> Region<'a> {
        Region {
            room: Room::behind(self.table, self.len()),
            ..self
        }
    }

    /// Its bytes in the arena, with the room behind.
    fn taken(&self) -> u64 {
        (self.room).map_or(self.len(), |room| room.end(self.table.stride))
    }

    /// What of it stays open to be written, where it lies from `start` on.
    fn open(&self, start: usize) -> impl Iterator<Item = Range<usize>> {
        let ranges = self.room.map(|room| room.open(self.table, start));
        ranges.into_iter().flatten()
    }

    fn len(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }

    /// Its parts, block by block.
    fn jobs<'j>(&'j self, mut out: &'j mut [u8]) -> impl Iterator<Item = Job<'j>> {
        let block_bytes = BLOCK_PAGES * PAGE_BYTES as u64;
        let blocks = self.bytes.start / block_bytes..self.bytes.end.div_ceil(block_bytes);
        blocks.map(move |block| {
            let range = block_range(self.table.file_bytes, block);
            let bytes = self.bytes.start.max(range.start)..self.bytes.end.min(range.end);
            let (part, rest) =
                std::mem::take(&mut out).split_at_mut((bytes.end - bytes.start) as usize);
            out = rest;
            Job {
                region: self,
                bytes,
                out: part,
            }
        })
    }
}

/// Brings regions into one arena. The ranges are those of the regions in it.
fn bring(
    generation: &Generation,
    regions: &[Region<'_>],
    huge_pages: HugePages,
    meter: &Meter<'_>,
    progress: Progress<'_>,
    checksums: Option<&Checksums>,
) -> Result<(Bytes, Vec<Range<usize>>), TableError> {
    let layout = Layout::new(regions.iter().map(Region::taken));
    let mut arena = layout.allocate(huge_pages, progress)?;
    // It goes on with reading, which may wait for its disk.
    meter.add(0);
    let parts = layout.split(arena.as_mut_slice());
    let jobs = regions
        .iter()
        .zip(parts)
        .filter(|(region, _)| region.len() > 0)
        .flat_map(|(region, out)| region.jobs(out));
    let jobs: Vec<Job<'_>> = jobs.collect();
    in_parallel(
        jobs.into_iter(),
        || (),
        |(), job| {
            let bytes = job.out.len() as u64;
            read_block(generation, checksums, job)?;
            meter.add(bytes);
            Ok(())
        },
    )?;
    let ranges: Vec<Range<usize>> = layout.ranges().collect();
    let open = regions.iter().zip(&ranges);
    let open: Vec<Range<usize>> = open
        .flat_map(|(region, range)| region.open(range.start))
        .collect();
    let bytes = if open.is_empty() {
        Bytes::Frozen(Arc::new(arena.freeze()?))
    } else {
        Bytes::Live(Arc::new(arena.open(open)))
    };
    Ok((bytes, ranges))
}

/// What of a generation comes into memory.
struct Kept<'a> {
    /// Of each table, into the arena of all.
    common: Vec<Region<'a>>,
    /// Of each table, into an arena of its own.
    apart: Vec<Option<Region<'a>>>,
    keeps: Vec<Keep>,
}

impl Generation {
    fn kept(&self, keep: impl Fn(usize) -> Keep) -> Kept<'_> {
        let tables = self.tables();
        let first_pages: Vec<u64> = (tables.iter())
            .scan(0, |pages, table| {
                let first = *pages;
                *pages += table.page_count();
                Some(first)
            })
            .collect();
        let keeps: Vec<Keep> = (0..tables.len()).map(keep).collect();
        let all = || keeps.iter().zip(tables.iter().zip(&first_pages));
        let common = all().map(|(keep, (table, &first_page))| match keep {
            Keep::All => Region::all(table, first_page),
            Keep::Changing => Region::all(table, first_page).changing(),
            Keep::RowsApart | Keep::ChangingApart | Keep::Index => Region::index(table, first_page),
        });
        let apart = all().map(|(keep, (table, &first_page))| {
            let rows = || Region::rows(table, first_page);
            match keep {
                Keep::RowsApart => Some(rows()),
                Keep::ChangingApart => Some(rows().changing()),
                Keep::All | Keep::Changing | Keep::Index => None,
            }
        });
        Kept {
            common: common.collect(),
            apart: apart.collect(),
            keeps,
        }
    }

    /// Bytes of each arena that [`load_parts`](Generation::load_parts) makes: the one of all tables, if there is something in it, and those
    /// of rows apart.
    pub fn arenas_bytes(&self, keep: impl Fn(usize) -> Keep) -> Vec<u64> {
        let Kept { common, apart, .. } = self.kept(keep);
        let common = Layout::new(common.iter().map(Region::taken)).bytes();
        let apart = apart.iter().flatten().map(Region::taken);
        [common]
            .into_iter()
            .chain(apart)
            .filter(|&bytes| bytes > 0)
            .collect()
    }

    /// Brings of each table what `keep` says, by the table's number, into memory.
    ///
    /// # Errors
    /// As [`Generation::load`].
    pub fn load_parts(
        &self,
        keep: impl Fn(usize) -> Keep,
        huge_pages: HugePages,
        progress: Progress<'_>,
        options: LoadOptions,
    ) -> Result<Resident, TableError> {
        let checksums = options.verify.then(|| Checksums::open(self)).transpose()?;
        let Kept {
            common,
            apart,
            keeps,
        } = self.kept(keep);
        let total = common.iter().chain(apart.iter().flatten()).map(Region::len);
        let meter = Meter::new(progress, Stage::Loading, total.sum());
        let bring = |regions: &[Region<'_>]| {
            bring(
                self,
                regions,
                huge_pages,
                &meter,
                progress,
                checksums.as_ref(),
            )
        };
        let (arena, ranges) = bring(&common)?;
        let (mut largest, mut arena_bytes) = (arena.len(), arena.len());
        let mut backing = *arena.backing();
        let mut tables = Vec::with_capacity(keeps.len());
        for (((keep, apart), region), range) in
            keeps.into_iter().zip(&apart).zip(&common).zip(ranges)
        {
            let info = region.table;
            let part = |range| Part {
                arena: arena.clone(),
                range,
            };
            let index_end = range.start + region.len() as usize;
            let index = part(index_end - info.index_bytes() as usize..index_end);
            let room = apart.as_ref().map_or(region.room, |apart| apart.room);
            let rows = match (keep, apart) {
                (_, Some(apart)) => {
                    let (arena, _) = bring(std::slice::from_ref(apart))?;
                    arena_bytes += arena.len();
                    if arena.len() > largest {
                        (largest, backing) = (arena.len(), *arena.backing());
                    }
                    Some(rows_of(info, arena))
                }
                (Keep::All | Keep::Changing, None) => {
                    let rows = info.row_region_bytes() as usize;
                    Some(part(range.start..range.start + rows))
                }
                _ => {
                    self.check_last_row(info)?;
                    None
                }
            };
            tables.push(ResidentTable::new(info, rows, room, index)?);
        }
        Ok(Resident {
            generation: self.number(),
            fingerprint: self.fingerprint(),
            delta: AtomicU64::new(0),
            tables,
            backing,
            arena_bytes,
        })
    }

    /// Brings the rows of one table into an arena of their own; `table` is what is in memory of it already. With `changing` they can
    /// [change](ResidentTable::change) as those of [`Keep::ChangingApart`].
    ///
    /// # Errors
    /// As [`Generation::load`], and [`TableError::UnknownTable`].
    pub fn load_rows(
        &self,
        table: &ResidentTable,
        changing: bool,
        huge_pages: HugePages,
        progress: Progress<'_>,
        options: LoadOptions,
    ) -> Result<ResidentTable, TableError> {
        let info = self.table(table.name())?;
        let before = self
            .tables()
            .iter()
            .take_while(|other| other.name != info.name);
        let region = Region::rows(info, before.map(TableInfo::page_count).sum());
        let region = match changing {
            true => region.changing(),
            false => region,
        };
        let checksums = options.verify.then(|| Checksums::open(self)).transpose()?;
        let meter = Meter::new(progress, Stage::Loading, region.len());
        let room = region.room;
        let (arena, _) = bring(
            self,
            &[region],
            huge_pages,
            &meter,
            progress,
            checksums.as_ref(),
        )?;
        table.with_rows(info, rows_of(info, arena), room)
    }

    /// Checks the last stored row of a table whose rows stay in their file, where it stands for missing ids. A disk that fails to give it
    /// doesn't keep others of its rows from being served.
    fn check_last_row(&self, info: &TableInfo) -> Result<(), TableError> {
        let (file, path) = self.sized_file(&info.file, info.file_bytes)?;
        if info.kind.missing() != Missing::Zero {
            return Ok(());
        }
        let mut row = vec![0; info.stride];
        let at = HEADER_BYTES as u64 + info.row_region_bytes() - info.stride as u64;
        match read_at(&file, &path, &mut row, at) {
            Err(TableError::Io { .. }) => Ok(()),
            Err(error) => Err(error),
            Ok(()) => check_zero_row(info, &row),
        }
    }
}

/// The rows of a table in an arena of their own.
fn rows_of(info: &TableInfo, arena: Bytes) -> Part {
    let range = 0..info.row_region_bytes() as usize;
    Part { arena, range }
}

fn read_block(
    generation: &Generation,
    checksums: Option<&Checksums>,
    job: Job<'_>,
) -> Result<(), TableError> {
    let Job { region, bytes, out } = job;
    let (file, path) = generation.sized_file(&region.table.file, region.table.file_bytes)?;
    read_at(&file, &path, out, bytes.start)?;
    let Some(checksums) = checksums else {
        return Ok(());
    };
    // What surrounds them in their pages is a header in front, and less than a page behind.
    let header = HEADER_BYTES as u64;
    let from = if bytes.start == header {
        0
    } else {
        bytes.start
    };
    let to = bytes.end.next_multiple_of(PAGE_BYTES as u64);
    let (mut head, mut tail) = ([0; HEADER_BYTES], [0; PAGE_BYTES]);
    let head = &mut head[..(bytes.start - from) as usize];
    let tail = &mut tail[..(to - bytes.end) as usize];
    read_at(&file, &path, head, from)?;
    read_at(&file, &path, tail, bytes.end)?;
    let (first, pages) = (from / PAGE_BYTES as u64, (to - from) / PAGE_BYTES as u64);
    let promised = checksums.read(region.first_page + first, pages)?;
    let Some(damage) = damage(page_crcs(head, out, tail), &promised) else {
        return Ok(());
    };
    Err(TableError::DamagedPage {
        table: region.table.name.clone(),
        path,
        page: first + damage.first,
        // Other parts are not read any more.
        others: None,
    })
}
