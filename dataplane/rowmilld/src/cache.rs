//! Cached tables: what was configured of them against what the generation has, the memory they take, and what each worker gets.

use core::sync::atomic::AtomicBool;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use anyhow::Context;
use rowmill_arena::HugePages;
use rowmill_cache::store::{self, Shape, Tags};
use rowmill_cache::warm::ROWS_MAX;
use rowmill_cache::{OnFailure, Options, Parts, Samples, Shares, TableOptions, fetch};
use rowmill_engine::{Engine, HELD, Home, Limits, Side};
use rowmill_pooling::Kernels;
use rowmill_port::rdma::remote::ReadLane;
use rowmill_table::{Generation, Keep, Resident, ResidentTable, TableInfo};
use rowmill_wire::limits::MAX_IDS_PER_BAG;

use crate::cache_view::{CacheView, FileView, Kept, TableView, TierView};
use crate::config::{Cache, Config, Failure, Placement, Remote};
use crate::files::TableFile;
use crate::mailbox::Mailbox;
use crate::own_parts;
use crate::plan::{Choice, PlanError, bytes_text};
use crate::room::{self, Needs};
use crate::share::{self, Share};
use crate::tiers::{NAMES, TierReads, Tiers};
use crate::waiting;

/// Rows that a worker asks of other workers at a time, where so many tables are listed: more than their tiers have in flight by default, and
/// some for each table.
pub(crate) fn asked(tables: u32) -> u32 {
    fetch::room_for(tables, 1).max(1024)
}

/// That workers can't have what they read files by.
const UNREAD: &str = "cannot read files of cached tables";

/// A listed table of the generation.
#[derive(Clone, Copy, Debug)]
struct Listed {
    placement: Placement,
    /// The number by which tiers know it.
    in_tier: u32,
    /// Its share of the arena where it is cached, as it is at start, and the largest that it may become.
    shape: Shape,
    most: Shape,
    on_failure: Failure,
    /// Rows that there are addresses for which deltas change, and the bytes that a delta may bring them to, while it is cached.
    most_patched: u32,
    delta_bytes: u64,
}

/// What will be done about tables that are not simply resident.
#[derive(Clone, Debug)]
pub struct CachePlan {
    /// By the table's number in the generation that is served first.
    tables: Vec<Option<Listed>>,
    /// Their names, also of those that are not listed.
    names: Vec<String>,
    cache: Cache,
    remote: Option<Remote>,
    arena_bytes: u64,
    workers: u64,
    row_bytes: usize,
    /// Whether rows can become others.
    changing: bool,
}

/// A worker's part.
#[derive(Debug)]
pub struct Part {
    /// What tells others that it reads a row no more.
    turns: store::Worker,
    /// Its way to rows of cached tables.
    pub(crate) worker: rowmill_cache::Worker,
    /// What is counted of the tiers that rows are fetched from, for the generations of each side.
    reads: [Vec<TierReads>; HELD],
    /// Listed tables that are resident at start, with their rows.
    resident: Vec<(usize, ResidentTable)>,
}

impl Part {
    /// What the worker samples.
    pub fn samples(&self) -> Arc<Samples> {
        Arc::clone(self.worker.samples())
    }

    /// That of a worker for which no table is listed.
    pub fn without_tables(turns: store::Worker) -> Part {
        Part {
            turns,
            worker: rowmill_cache::Worker::none(),
            reads: Default::default(),
            resident: Vec::new(),
        }
    }

    /// A listed table that is resident at start.
    fn resident(&self, number: usize) -> Option<&ResidentTable> {
        let mut resident = self.resident.iter();
        resident.find_map(|(of, table)| (*of == number).then_some(table))
    }

    /// The worker's engine.
    pub fn engine(self, limits: Limits, kernels: Kernels) -> Engine {
        let mut engine = Engine::with_cache(limits, kernels, self.turns, self.worker);
        for (number, table) in self.resident {
            let mut home = Home {
                resident: Some(Box::new(table)),
                cached: None,
            };
            engine.place(number, &mut home);
        }
        engine
    }
}

/// What workers count of the tiers that rows are fetched from: of each side's generations, of each worker.
#[derive(Clone, Debug, Default)]
pub struct Reads(pub(crate) [Vec<Vec<TierReads>>; HELD]);

/// What [`CachePlan::open`] has made.
#[derive(Debug)]
pub struct Opened {
    /// Of each worker; none where no table is listed.
    pub parts: Vec<Part>,
    /// What makes tables for them while they serve, where some are listed.
    pub shares: Option<Shares>,
    /// Of each worker, what is counted of the tiers that rows are fetched from, for the generations of each side.
    pub reads: Reads,
    /// What was found out about the files.
    pub choices: Vec<Choice>,
    /// The files of listed tables, and copies.
    pub files: Vec<TableFile>,
}

impl CachePlan {
    /// Compares what is configured with what the generation has.
    ///
    /// # Errors
    /// [`PlanError::Tables`].
    pub fn make(
        config: &Config,
        generation: &Generation,
        workers: usize,
    ) -> Result<CachePlan, PlanError> {
        let mut tables = vec![None; generation.tables().len()];
        let arena_bytes = config.arena_bytes();
        for (in_tier, table) in config.tables.iter().enumerate() {
            let number = generation
                .tables()
                .iter()
                .position(|t| t.name == table.name);
            let Some(number) = number else {
                let names: Vec<&str> = generation.tables().iter().map(|t| &*t.name).collect();
                return Err(PlanError::Tables(format!(
                    "tables.name: the generation has no table `{}`; it has {}",
                    table.name,
                    names.join(", ")
                )));
            };
            let info = &generation.tables()[number];
            let shape = share::shape(info, table.cache_bytes, workers as u32).map_err(|least| {
                let given = match table.cache_bytes {
                    0 => "0, or not set".to_owned(),
                    bytes => bytes.to_string(),
                };
                PlanError::Tables(format!(
                    "tables.cache_bytes: of `{}` is {given}; {least}",
                    table.name
                ))
            })?;
            tables[number] = Some(Listed {
                placement: table.placement,
                in_tier: in_tier as u32,
                shape,
                most: share::most(info, shape, arena_bytes, config.may_change()),
                on_failure: table.on_failure,
                most_patched: match config.takes_deltas() {
                    true => share::most_patched(info),
                    false => 0,
                },
                delta_bytes: table.delta_bytes.unwrap_or(table.cache_bytes),
            });
        }
        let listed = |(table, info): (&Option<Listed>, &TableInfo)| table.map(|_| info.stride);
        let strides = tables.iter().zip(generation.tables()).filter_map(listed);
        let row_bytes = strides.max().unwrap_or(0);
        Ok(CachePlan {
            cache: config.cache.clone(),
            remote: config.remote.clone(),
            arena_bytes,
            workers: workers as u64,
            row_bytes,
            changing: config.takes_deltas(),
            names: generation
                .tables()
                .iter()
                .map(|info| info.name.clone())
                .collect(),
            tables,
        })
    }

    /// Whether no table is listed.
    pub(crate) fn is_empty(&self) -> bool {
        self.row_bytes == 0
    }

    /// Tables that are listed.
    fn count(&self) -> u32 {
        self.listed().count() as u32
    }

    fn listed(&self) -> impl Iterator<Item = (usize, &Listed)> {
        let numbered = self.tables.iter().enumerate();
        numbered.filter_map(|(number, table)| Some((number, table.as_ref()?)))
    }

    /// Where a table's rows are at start, if it is listed.
    pub fn placement(&self, table: usize) -> Option<Placement> {
        self.tables[table].map(|listed| listed.placement)
    }

    /// What of a table comes into memory.
    pub fn keep(&self, table: usize) -> Keep {
        match self.placement(table) {
            None if self.changing => Keep::Changing,
            None => Keep::All,
            Some(Placement::Resident) => self.keep_apart(),
            Some(Placement::Cached) => Keep::Index,
        }
    }

    /// What of a listed table that is resident comes into memory.
    pub(crate) fn keep_apart(&self) -> Keep {
        match self.changing {
            true => Keep::ChangingApart,
            false => Keep::RowsApart,
        }
    }

    /// Whether rows can become others.
    pub(crate) fn is_changing(&self) -> bool {
        self.changing
    }

    /// The memory of all tables: the rows and indexes that are kept and the shares, and beside them checksums, and what workers have for
    /// cached ones.
    pub(crate) fn needs(&self, generation: &Generation) -> Needs {
        let tables = generation.tables();
        let mut arenas = generation.arenas_bytes(|number| self.keep(number));
        let cached = self
            .listed()
            .filter(|(_, listed)| listed.placement == Placement::Cached);
        let mut areas = Vec::new();
        for (_, &Listed { shape, most, .. }) in cached {
            match shape == most {
                true => arenas.push(shape.bytes() as u64),
                false => areas.extend(room::areas(most, None, shape)),
            }
        }
        let checksums: u64 = (self.listed())
            .map(|(number, _)| tables[number].page_count() * size_of::<u32>() as u64)
            .sum();
        let workers = match self.row_bytes {
            0 => 0,
            bytes => self.workers * self.worker_bytes(bytes as u64),
        };
        Needs {
            arenas,
            areas,
            beside: checksums + workers + self.warm_bytes(),
        }
    }

    /// Whether the rows that are wanted most are listed in a file.
    pub(crate) fn keeps_warm_rows(&self) -> bool {
        self.cache.warm_file.is_some()
    }

    /// Bytes for the list of warm rows, for the file that it becomes, and for those of a start's list that found no slot.
    fn warm_bytes(&self) -> u64 {
        if !self.keeps_warm_rows() {
            return 0;
        }
        let slots = self
            .listed()
            .map(|(_, listed)| u64::from(listed.shape.slots()));
        let rows: u64 = slots.sum();
        rows.min(ROWS_MAX as u64) * 3 * size_of::<u32>() as u64
    }

    /// What was chosen of each listed table, and of what workers have for them.
    pub(crate) fn choices(&self, generation: &Generation) -> Vec<Choice> {
        let about = |(number, listed): (usize, &Listed)| {
            describe(generation, number, listed, (listed.placement, listed.shape))
        };
        let mut choices: Vec<Choice> = self.listed().map(about).collect();
        if self.row_bytes > 0 {
            let cache = &self.cache;
            let bytes = self.worker_bytes(self.row_bytes as u64);
            choices.push(Choice::new(
                "cached tables",
                format!(
                    "{} reads of up to {} and {} staged rows a worker",
                    cache.reads,
                    bytes_text(cache.read_bytes.into()),
                    cache.staged_rows
                ),
                format!(
                    "{} a worker; a row that takes more than {} ms is given up",
                    bytes_text(bytes),
                    cache.budget_ms
                ),
            ));
        }
        choices.extend(own_parts::lacking(&self.cache, self.count()));
        choices.extend(self.next_tier(generation));
        choices
    }

    /// Which tables are read from the next tier, where there is one.
    fn next_tier(&self, generation: &Generation) -> Option<Choice> {
        let folder = self.cache.next_tier.as_ref()?.display();
        let passing = self.listed().filter(|(_, l)| l.on_failure.next_tier);
        let names: Vec<&str> = passing
            .map(|(number, _)| &*generation.tables()[number].name)
            .collect();
        if names.is_empty() {
            let why = "no table's on_failure says so; write [\"next-tier\", \"error\"] there, or leave cache.next_tier out";
            return Some(Choice::warning(
                "next tier",
                format!("{folder} is not read"),
                why,
            ));
        }
        let why = "their on_failure says so: rows that can't be read from the model's own files are read there";
        Some(Choice::new(
            "next tier",
            format!("{folder} for {}", names.join(", ")),
            why,
        ))
    }

    /// Bytes that each worker has for tables whose longest rows have so many bytes.
    fn worker_bytes(&self, row_bytes: u64) -> u64 {
        let tiers = self.tier_count();
        let own = self
            .cache
            .worker_bytes(self.count(), row_bytes, self.workers, tiers);
        own + self.landing_bytes()
    }

    /// Bytes that rows of another dataplane's memory come to, of each worker, for a generation.
    fn landing_bytes(&self) -> u64 {
        let rows = self.remote.as_ref().map_or(0, |r| u64::from(r.reads));
        rows * (self.row_bytes as u64).next_multiple_of(64)
    }

    /// What is chosen of a listed table that is at this place, with such a share.
    pub(crate) fn choice(
        &self,
        generation: &Generation,
        number: usize,
        place: (Placement, Shape),
    ) -> Choice {
        let name = &generation.tables()[number].name;
        let listed = self
            .listed()
            .find(|(number, _)| self.names[*number] == *name);
        let (_, listed) = listed.expect("a listed table");
        describe(generation, number, listed, place)
    }

    /// Opens the files of listed tables as a start does, for all workers, and says what was found out about them.
    ///
    /// # Errors
    /// Where one is not to be had, or is no copy, or where what workers read into can't be locked.
    pub fn check(&self, generation: &Generation) -> anyhow::Result<Vec<Choice>> {
        if self.row_bytes == 0 {
            return Ok(Vec::new());
        }
        let tiers = self.tiers(generation)?;
        let of_worker = |_| tiers.for_worker(None, None);
        let all: anyhow::Result<Vec<_>> = (0..self.workers).map(of_worker).collect();
        all.context(UNREAD)?;
        Ok(tiers.choices())
    }

    /// Memory for listed tables of a generation that comes beside the newest, other than for their rows and indexes: checksums, and what each
    /// worker reads into.
    pub(crate) fn side_bytes(&self, generation: &Generation) -> u64 {
        let listed: Vec<&String> = self
            .listed()
            .map(|(number, _)| &self.names[number])
            .collect();
        let is_listed = |info: &&TableInfo| listed.contains(&&info.name);
        let listed = generation.tables().iter().filter(is_listed);
        let checksums: u64 = listed
            .map(|info| info.page_count() * size_of::<u32>() as u64)
            .sum();
        let buffers = u64::from(self.cache.reads) * u64::from(self.cache.read_bytes);
        checksums + self.workers * (self.tier_count() * buffers + self.landing_bytes())
    }

    /// The model's own files, and copies where there are some.
    fn tier_count(&self) -> u64 {
        1 + u64::from(self.listed().any(|(_, listed)| listed.on_failure.next_tier))
    }

    /// The dataplane that rows of listed tables are read from, too.
    pub(crate) fn remote(&self) -> Option<&Remote> {
        self.remote.as_ref()
    }

    /// The files of a generation's listed tables, opened.
    ///
    /// # Errors
    /// Where one is not to be had.
    pub(crate) fn tiers(&self, generation: &Generation) -> anyhow::Result<Tiers<'_>> {
        let mut by_tier: Vec<(usize, &Listed)> = self.listed().collect();
        by_tier.sort_by_key(|(_, listed)| listed.in_tier);
        let tables = by_tier
            .into_iter()
            .map(|(number, listed)| (&*self.names[number], listed.on_failure));
        waiting::told(|tell| Tiers::open(&self.cache, generation, tables, tell))
    }

    /// Opens the files of listed tables and makes each worker's part. `tables` are what was loaded as [`keep`](Self::keep) says;
    /// the rows of listed ones go from there to the parts.
    ///
    /// # Errors
    /// Where a file or the memory is not to be had.
    pub fn open(
        &self,
        generation: &Generation,
        tables: &mut Resident,
        huge_pages: HugePages,
        mailboxes: &[Arc<Mailbox>],
        lanes: Vec<ReadLane>,
    ) -> anyhow::Result<Opened> {
        if self.row_bytes == 0 {
            return Ok(Opened {
                parts: Vec::new(),
                shares: None,
                reads: Reads::default(),
                choices: Vec::new(),
                files: Vec::new(),
            });
        }
        let tiers = self.tiers(generation)?;
        let mut lanes = lanes.into_iter();
        let part = |mailbox: &Arc<Mailbox>| -> anyhow::Result<(Parts, Vec<TierReads>)> {
            let remote = self.remote.as_ref().zip(lanes.next());
            let (tier, reads) = tiers.for_worker(remote, None)?;
            let mailbox = Arc::clone(mailbox);
            let wake = Box::new(move || mailbox.wake());
            Ok((Parts { tier, wake }, reads))
        };
        let parts = mailboxes
            .iter()
            .map(part)
            .collect::<anyhow::Result<Vec<_>>>();
        let parts = parts.context(UNREAD)?;
        let (parts, reads): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        let other = TierReads::of_other_side(&reads);
        let reads = Reads([reads, other]);
        let options = Options {
            limits: fetch::Limits {
                staged: self.cache.staged_rows,
                longest: MAX_IDS_PER_BAG,
                asked: asked(self.count()),
                prefetched: self.cache.prefetched_rows,
                bags: self.cache.parked_bags,
                row_bytes: self.row_bytes,
                budget_ns: self.cache.budget_ns(),
            },
            limbo: self.cache.staged_rows as usize,
            tags: Tags::detect(),
            huge_pages,
            // Clients who could tell which rows share a set could keep others' out of it.
            seed: RandomState::new().hash_one(0),
        };
        let table = |table: &Option<Listed>| {
            table.map(|listed| TableOptions {
                shape: listed.shape,
                most_sets: listed.most.shard_sets(),
                most_patched: listed.most_patched,
                in_tier: listed.in_tier,
                on_failure: listed.on_failure.then,
                begins_cached: listed.placement == Placement::Cached,
            })
        };
        let listed: Vec<Option<TableOptions>> = self.tables.iter().map(table).collect();
        let workers = rowmill_cache::workers_with_shares(&options, &listed, parts);
        let (workers, shares) = workers.context("no memory for cached tables")?;
        let resident = self
            .listed()
            .filter(|(_, l)| l.placement == Placement::Resident);
        let resident = resident.map(|(number, _)| (number, tables.take_rows(number)));
        let resident: Vec<(usize, ResidentTable)> = resident.collect();
        let [first, other] = reads.0.clone();
        let of_workers = first.into_iter().zip(other).map(|(a, b)| [a, b]);
        let part = |((turns, worker), reads)| Part {
            turns,
            worker,
            reads,
            resident: resident.clone(),
        };
        Ok(Opened {
            parts: workers.into_iter().zip(of_workers).map(part).collect(),
            shares: Some(shares),
            reads,
            choices: tiers.choices(),
            files: tiers.files(),
        })
    }

    /// Listed tables as others see them, counted by these workers.
    pub fn view(&self, generation: &Generation, parts: &[Part]) -> CacheView {
        let figures = |number| {
            Side::ALL.map(|side| {
                let figures = |part: &Part| {
                    let home = part.worker.on_side(side.index(), number);
                    part.worker.figures(home)
                };
                parts.iter().filter_map(figures).collect()
            })
        };
        // Of each tier that there is, what each worker counts for each side.
        let tiers = || {
            let of = |at: usize| {
                let sides = parts.iter().flat_map(|part| &part.reads);
                let reads: Vec<&TierReads> = sides.filter_map(|reads| reads.get(at)).collect();
                (reads.first().map_or(NAMES[0], |reads| reads.name), reads)
            };
            (0..NAMES.len())
                .map(of)
                .filter(|(_, reads)| !reads.is_empty())
        };
        let files = |in_tier: u32| {
            tiers().filter_map(move |(tier, workers)| {
                let of_table = |worker: &&TierReads| worker.files[in_tier as usize].clone();
                let (reads, mut failures): (Vec<_>, Vec<_>) =
                    workers.iter().filter_map(of_table).unzip();
                // The first worker's of each side are those of all.
                failures.truncate(HELD);
                (!reads.is_empty()).then(|| FileView {
                    tier,
                    reads,
                    failures,
                    is_starved: AtomicBool::new(false),
                    is_failing: AtomicBool::new(false),
                })
            })
        };
        let table = |(number, listed): (usize, &Listed)| {
            let info = &generation.tables()[number];
            let store = parts.first().and_then(|part| part.worker.store(number));
            let resident = parts.first().and_then(|part| part.resident(number));
            let kept = Kept::of(info, store.map(Arc::clone), resident);
            let share = Share {
                shape: listed.shape,
                wanted: None,
                most: listed.most,
            };
            TableView::new(
                (number, generation.tables().len()),
                (info.name.clone(), listed.delta_bytes),
                kept,
                share,
                figures(number),
                files(listed.in_tier).collect(),
            )
        };
        CacheView {
            arena_bytes: self.arena_bytes,
            tables: self.listed().map(table).collect(),
            tiers: tiers()
                .map(|(name, workers)| TierView {
                    name,
                    figures: workers
                        .iter()
                        .map(|worker| Arc::clone(&worker.figures))
                        .collect(),
                })
                .collect(),
        }
    }
}

fn describe(
    generation: &Generation,
    number: usize,
    listed: &Listed,
    (placement, shape): (Placement, Shape),
) -> Choice {
    let info = &generation.tables()[number];
    let what = format!("table {}", info.name);
    let all = bytes_text(info.row_region_bytes());
    if placement == Placement::Resident {
        let why = format!("all {all} in memory of its own");
        return Choice::new(&what, "resident", why);
    }
    let rows = shape.slots();
    let chosen = format!(
        "cached, {} for {rows} of {} rows",
        bytes_text(shape.bytes() as u64),
        info.stored_rows()
    );
    if u64::from(rows) >= info.stored_rows() {
        let why = format!("all {all} would fit, and resident they are found faster");
        return Choice::warning(&what, chosen, why);
    }
    let why = format!(
        "the rest of {all} stays in {}; {}",
        generation.path(info).display(),
        describe_failure(listed.on_failure)
    );
    Choice::new(&what, chosen, why)
}

fn describe_failure(on_failure: Failure) -> &'static str {
    match (on_failure.next_tier, on_failure.then) {
        (false, OnFailure::Error) => "what wants a row that can't be read is refused",
        (false, OnFailure::DefaultRow) => "a row that can't be read is taken for zeros",
        (true, OnFailure::Error) => {
            "a row that can't be read is read from the next tier, and what wants it is refused if that fails too"
        }
        (true, OnFailure::DefaultRow) => {
            "a row that can't be read is read from the next tier, and taken for zeros if that fails too"
        }
    }
}
