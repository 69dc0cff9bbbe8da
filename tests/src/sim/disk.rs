//! The disk of the simulated world, with the files from which the service's own file tier reads rows of cached tables: reads that take
//! their time and come in any order, some late, some not at all and some with bits that have changed; files that are cut short or become
//! others for a while; and pages that are damaged for good.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use rowmill_arena::{ArenaError, ReadError};
use rowmill_cache::tier::{
    Device, EachRead, EachRow, Failures, FetchesFull, FileFailures, FileTier, MIN_READ_BYTES, Tier,
    TierCounts, Wanted,
};
use rowmill_table::{PAGE_BYTES, PageChecksums, Resident, ResidentTable, TableInfo, TableSpec};

use super::shelf::Lacks;

/// A table's file.
struct File {
    info: TableInfo,
    checksums: Arc<PageChecksums>,
    whole: Vec<u8>,
    /// What takes its place for a while: another generation's, of the same size, or the same pages the other way round.
    other: Vec<u8>,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.info.name)
    }
}

/// What a file is at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Whole,
    /// It ends behind so many pages.
    Cut(u64),
    Other,
}

/// How well the disk is.
#[derive(Clone, Debug)]
pub(super) struct Health {
    pub(super) delay_ns: RangeInclusive<u64>,
    /// Of 10,000 reads, how many fail, and in how many a bit has changed.
    pub(super) failing: u32,
    /// Of 10,000 reads, how many come very late.
    pub(super) late: u32,
    /// Rows that are lacking, and files that hang.
    pub(super) lacks: Lacks,
}

/// All files of all generations, and how they are read.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    files: Arc<BTreeMap<u64, Vec<File>>>,
    /// Reads of a worker's device at a time, and the pages of the longest.
    pub(super) reads: u32,
    read_pages: usize,
    /// How long a file stays as it is.
    spell_ns: u64,
    /// Of 1000 times that the device is asked, how often it can't be.
    stalls: u32,
    seed: u64,
    failures: Arc<FileFailures>,
    /// Whether files are cut, and others take their places.
    is_meddled_with: bool,
    /// Checksums are those of what took the files' places.
    is_trusting: bool,
}

impl Disk {
    /// With the tables of these generations.
    pub(super) fn draw(rng: &mut Rng, generations: &[Arc<Resident>], is_trusting: bool) -> Disk {
        let images: Vec<Vec<(TableInfo, Vec<u8>)>> = (generations.iter())
            .map(|tables| tables.tables().iter().map(image).collect())
            .collect();
        let other = |generation: usize, table: usize| {
            let (_, whole) = &images[generation][table];
            let (_, next) = &images[(generation + 1) % images.len()][table];
            match images.len() > 1 && next.len() == whole.len() {
                true => next.clone(),
                false => whole.rchunks(PAGE_BYTES).flatten().copied().collect(),
            }
        };
        let file = |generation: usize, table: usize| {
            let (info, whole) = &images[generation][table];
            let other = other(generation, table);
            File {
                info: info.clone(),
                checksums: Arc::new(PageChecksums::of(if is_trusting { &other } else { whole })),
                whole: whole.clone(),
                other,
            }
        };
        let files = generations.iter().enumerate().map(|(at, tables)| {
            let all = (0..tables.tables().len()).map(|table| file(at, table));
            (tables.generation(), all.collect())
        });
        Disk {
            files: Arc::new(files.collect()),
            reads: rng.u32(2..=20),
            read_pages: MIN_READ_BYTES / PAGE_BYTES + rng.usize(0..=5),
            spell_ns: rng.u64(20_000..=2_000_000),
            stalls: rng.u32(0..=50),
            seed: rng.u64(..),
            failures: Arc::default(),
            is_meddled_with: is_trusting || rng.bool(),
            is_trusting,
        }
    }

    /// Where each row of a table lies, by the tables' numbers: the same in all generations, as far as they may be cached.
    pub(super) fn places(&self) -> Arc<[TableInfo]> {
        let first = self.files.values().next();
        let infos = first.into_iter().flatten().map(|file| file.info.clone());
        infos.collect()
    }

    /// Rows that it failed to give.
    pub(super) fn failures(&self) -> Failures {
        self.failures.read()
    }

    /// A worker's file tier, of all tables of a generation, with room for so many rows.
    pub(super) fn tier(
        &self,
        generation: u64,
        fetches: u32,
        budget_ns: u64,
        (health, rng): (Health, Rng),
    ) -> impl Tier + Send + use<> {
        let now_ns = Arc::<AtomicU64>::default();
        let files = &self.files[&generation];
        let device = Reads {
            disk: self.clone(),
            generation,
            health,
            rng,
            now_ns: Arc::clone(&now_ns),
            asked: vec![],
            bytes: vec![],
        };
        let mut tier = FileTier::over(device, fetches, files.len() as u32, budget_ns);
        for (number, file) in files.iter().enumerate() {
            let (info, checksums) = (file.info.clone(), Arc::clone(&file.checksums));
            let failures = Arc::clone(&self.failures);
            tier.add_file(info, checksums, failures, Arc::default(), number);
        }
        OfFiles { tier, now_ns }
    }

    /// What a table's file of so many pages is now: the same for all workers.
    fn state(&self, table: usize, pages: u64, now_ns: u64) -> State {
        let spell = now_ns / self.spell_ns;
        let mut rng = Rng::with_seed(self.seed ^ spell.rotate_left(20) ^ (table as u64) << 56);
        match rng.u8(0..8) {
            _ if self.is_trusting => State::Other,
            _ if !self.is_meddled_with => State::Whole,
            0 | 1 => State::Cut(rng.u64(0..=pages)),
            2 => State::Other,
            _ => State::Whole,
        }
    }
}

/// A table's file, as far as the tier reads it: rows in their places.
fn image(table: &ResidentTable) -> (TableInfo, Vec<u8>) {
    let spec = TableSpec {
        name: table.name().into(),
        rows: table.lookup_count().into(),
        dim: table.dim(),
        format: table.format(),
        kind: table.kind(),
    };
    let info = TableInfo::new(&spec, format!("{}.rows", spec.name));
    let mut bytes = vec![0; info.file_bytes as usize];
    let rows = &table.bytes()[..table.row_count() as usize * table.stride()];
    let from = info.row_place(0).offset as usize;
    bytes[from..from + rows.len()].copy_from_slice(rows);
    (info, bytes)
}

/// The file tier, which tells its device the time.
struct OfFiles {
    tier: FileTier<Reads>,
    now_ns: Arc<AtomicU64>,
}

impl Tier for OfFiles {
    fn fetch(&mut self, now_ns: u64, wanted: Wanted) -> Result<(), FetchesFull> {
        self.tier.fetch(now_ns, wanted)
    }

    fn poll(&mut self, now_ns: u64, each: EachRow<'_>) {
        self.now_ns.store(now_ns, Ordering::Relaxed);
        self.tier.poll(now_ns, each);
    }

    fn unanswered(&self) -> usize {
        self.tier.unanswered()
    }

    fn counts(&self) -> TierCounts {
        self.tier.counts()
    }
}

/// A read under way.
#[derive(Clone, Copy, Debug)]
struct Read {
    due_ns: u64,
    table: usize,
    offset: usize,
    len: usize,
    token: u64,
}

/// Stands in for a worker's reads of a disk.
#[derive(Debug)]
struct Reads {
    disk: Disk,
    generation: u64,
    health: Health,
    rng: Rng,
    now_ns: Arc<AtomicU64>,
    asked: Vec<Read>,
    /// Where a read's bytes come to.
    bytes: Vec<u8>,
}

impl Reads {
    fn file(&self, table: usize) -> &File {
        &self.disk.files[&self.generation][table]
    }

    /// Whether a table's rows may fail to come at any time.
    fn may_fail(&self, table: usize) -> bool {
        self.health.lacks.may_fail(table) && !self.health.lacks.some_of(table)
    }

    /// What a read comes to now, in `bytes`.
    fn outcome(&mut self, read: Read) -> Result<(), ReadError> {
        let Read {
            table, offset, len, ..
        } = read;
        let may_fail = self.may_fail(table);
        let now_ns = self.now_ns.load(Ordering::Relaxed);
        let size = self.file(table).info.page_count();
        let state = match may_fail {
            true => self.disk.state(table, size, now_ns),
            false => State::Whole,
        };
        if may_fail && self.rng.u32(0..10_000) < self.health.failing {
            return Err(ReadError::Os(5));
        }
        let page = PAGE_BYTES as u64;
        let pages = offset as u64 / page..(offset + len) as u64 / page;
        if matches!(state, State::Cut(end) if end < pages.end) {
            return Err(ReadError::Truncated);
        }
        // Some of the damaged pages can't be read at all, nor can what is read with them.
        let is_bad = |page: u64| self.health.lacks.page(table, page) && page % 2 == 1;
        if pages.clone().any(is_bad) {
            return Err(ReadError::Os(5));
        }
        let file = self.file(table);
        let from = match state {
            State::Other => &file.other,
            _ => &file.whole,
        };
        let read = from[offset..offset + len].to_vec();
        self.bytes = read;
        if may_fail && self.rng.u32(0..10_000) < self.health.failing {
            let at = self.rng.usize(0..len);
            self.bytes[at] ^= 1 << self.rng.u8(0..8);
        }
        for (number, page) in pages.zip(self.bytes.chunks_exact_mut(PAGE_BYTES)) {
            if self.health.lacks.page(table, number) {
                page[7] ^= 0x10;
            }
        }
        Ok(())
    }
}

impl Device for Reads {
    type File = usize;

    fn slots(&self) -> u32 {
        self.disk.reads
    }

    fn read_bytes(&self) -> usize {
        self.disk.read_pages * PAGE_BYTES
    }

    fn submit(&mut self, table: usize, offset: u64, len: usize, token: u64) {
        let now_ns = self.now_ns.load(Ordering::Relaxed);
        let delay_ns = self.rng.u64(self.health.delay_ns.clone());
        let is_late = self.rng.u32(0..10_000) < self.health.late;
        let due_ns = match is_late {
            _ if self.health.lacks.hangs(table) => u64::MAX,
            true => now_ns + self.rng.u64(0..=LATE_NS),
            false => now_ns + delay_ns,
        };
        assert!(self.asked.len() < self.disk.reads as usize, "a slot for it");
        self.asked.push(Read {
            due_ns,
            table,
            offset: offset as usize,
            len,
            token,
        });
    }

    fn poll(&mut self, most: usize, each: EachRead<'_>) -> Result<usize, ArenaError> {
        if self.rng.u32(0..1000) < self.disk.stalls {
            return Err(ArenaError::ImpossibleSize { bytes: 0 });
        }
        self.rng.shuffle(&mut self.asked);
        let now_ns = self.now_ns.load(Ordering::Relaxed);
        let is_due = |read: &mut Read| read.due_ns <= now_ns;
        let due: Vec<Read> = self.asked.extract_if(.., is_due).take(most).collect();
        for &read in &due {
            let outcome = self.outcome(read);
            each(read.token, outcome.map(|()| &self.bytes[..]));
        }
        Ok(due.len())
    }
}

/// The longest time that a late read takes.
const LATE_NS: u64 = 20_000_000;
