//! Cached tables of the simulated world: a store that all workers share, and for each a tier that gives rows out late, in
//! any order, and in some worlds not all of them. In two of three it is the service's own file tier, over a [disk](super::disk).

use std::ops::RangeInclusive;
use std::sync::Arc;

use fastrand::Rng;
use rowmill_arena::HugePages;
use rowmill_cache::store::{self, Shape, Tags, WAYS, Width};
use rowmill_cache::tier::{Chain, EachRow, Failures, FetchesFull, Tier, TierError, Wanted};
use rowmill_cache::{
    OnFailure, Options, Parts, Shares, TableOptions, Worker, fetch, workers_with_shares,
};
use rowmill_table::{Resident, TableInfo};

use super::disk::{Disk, Health};
use super::exporter::{Exporter, Figures};
use super::watched::{Watch, Watched};

/// The time that rows have where tables' files hang: others' come within a fraction of it, however long a worker does other things. (One
/// that does for 5 ms takes that for a pause.)
const HUNG_BUDGET_NS: u64 = 20_000_000;
/// Sets of a shard that a store may have, at first and later.
pub(super) const MOST_SETS: u32 = 12;

/// Which tables may be cached, and how little there is of everything.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    /// By the table's number: sets of each worker's shard; none where the table is always resident.
    sets: Vec<Option<u32>>,
    limits: fetch::Limits,
    /// Rows that a tier fetches at a time.
    fetches: usize,
    delay_ns: RangeInclusive<u64>,
    /// Of 10,000 rows, how many can't be read.
    bad: u32,
    /// Rows that can never be read, and are taken for zeros.
    lacks: Lacks,
    /// Of 10,000 rows, how many never come. None where rows have all the time that they need.
    lost: u32,
    limbo: usize,
    /// Where rows are read from files.
    disk: Option<Disk>,
    exporter: Option<Exporter>,
    /// What becomes of all that is asked for.
    watch: Arc<Watch>,
}

/// Rows that can never be read, of tables whose rows are taken for zeros then; and the tables whose files hang.
#[derive(Clone, Debug, Default)]
pub(super) struct Lacks {
    hung: Vec<usize>,
    tables: Vec<bool>,
    /// Of 10,000 rows, how many; or of as many pages, where rows are read from files.
    rows: u64,
    seed: u64,
    places: Option<Arc<[TableInfo]>>,
}

impl Lacks {
    /// Whether such a table's rows are taken for zeros.
    pub(super) fn some_of(&self, table: usize) -> bool {
        self.tables.get(table) == Some(&true)
    }

    /// Whether a request may be refused for a row of a table: where some tables' files hang, all rows of the others come.
    pub(super) fn may_fail(&self, table: usize) -> bool {
        self.hung.is_empty() || self.hangs(table)
    }

    /// Whether a table's file hangs.
    pub(super) fn hangs(&self, table: usize) -> bool {
        self.hung.contains(&table)
    }

    /// Whether a row can't be read, from no tier.
    pub(super) fn row(&self, table: usize, row: u32) -> bool {
        match &self.places {
            _ if !self.some_of(table) => false,
            Some(places) => {
                let mut pages = places[table].row_place(row).pages();
                pages.any(|page| self.page(table, page))
            }
            None => self.draws(row.into()),
        }
    }

    /// Whether a page of a table's file is damaged for good.
    pub(super) fn page(&self, table: usize, page: u64) -> bool {
        self.some_of(table) && self.draws(page)
    }

    fn draws(&self, number: u64) -> bool {
        let draw = (number ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        draw % 10_000 < self.rows
    }
}

impl Drawn {
    /// For requests of at most so many ids.
    pub(super) fn draw(rng: &mut Rng, tables: usize, max_ids: u32) -> Drawn {
        let none = rng.bool();
        let set = |_| (!none && rng.bool()).then(|| rng.u32(2..=8));
        let sets: Vec<Option<u32>> = (0..tables).map(set).collect();
        // Most worlds' tiers are well, so that requests come far.
        let bad = (rng.u8(0..4) == 0).then(|| rng.u32(1..=2000));
        let hurried = rng.u8(0..4) == 0;
        let drawn = Drawn {
            bad: bad.unwrap_or(0),
            lost: if hurried { rng.u32(0..=50) } else { 0 },
            limits: fetch::Limits {
                staged: max_ids + rng.u32(0..=100),
                longest: max_ids,
                prefetched: 0,
                asked: rng.u32(1..=40),
                bags: rng.u32(1..=60),
                row_bytes: 4 * 256,
                budget_ns: match hurried {
                    true => rng.u64(100_000..=3_000_000),
                    false => u64::MAX,
                },
            },
            fetches: rng.usize(1..=40),
            delay_ns: 0..=rng.u64(0..=300_000),
            limbo: rng.usize(1..=20),
            // What is late by chance can't be told before: where rows are taken for zeros, they have all their time.
            lacks: Lacks {
                tables: (sets.iter())
                    .map(|sets| sets.is_some() && !hurried && rng.u8(0..3) == 0)
                    .collect(),
                hung: vec![],
                rows: rng.u64(1..=3000),
                seed: rng.u64(..),
                places: None,
            },
            sets,
            disk: None,
            exporter: None,
            watch: Arc::default(),
        };
        drawn.with_hung()
    }

    /// In half of the worlds rows come from another dataplane's memory, too: of some of the tables of which all rows can be read.
    pub(super) fn with_exporter(self, is_hasty: bool) -> Drawn {
        let mut rng = Rng::with_seed(self.lacks.seed.rotate_left(32));
        let cached = (0..self.sets.len()).filter(|&table| self.sets[table].is_some());
        let whole = cached.filter(|&table| !self.lacks.some_of(table));
        Drawn {
            exporter: Exporter::draw(&mut rng, whole, is_hasty),
            ..self
        }
    }

    /// In two of three worlds rows are read from files, those of the tables of these generations. If it is `trusting`, pages are compared
    /// with checksums of others.
    pub(super) fn with_disk(mut self, generations: &[Arc<Resident>], is_trusting: bool) -> Drawn {
        let mut rng = Rng::with_seed(self.lacks.seed.rotate_left(16));
        if rng.u8(0..3) > 0 || is_trusting {
            let mut disk = Disk::draw(&mut rng, generations, is_trusting);
            if !self.lacks.hung.is_empty() {
                // Enough for each table to have some of its own.
                let least = fetch::room_for(self.sets.len() as u32, 1);
                self.fetches = self.fetches.max(least as usize);
                disk.reads = disk.reads.max(least);
            }
            if is_trusting {
                self.lacks = Lacks::default();
            }
            self.lacks.places = Some(disk.places());
            self.disk = Some(disk);
        }
        self
    }

    /// In some worlds tables' files hang beside others, of which each row comes in time: all others' or one's, or any number.
    fn with_hung(mut self) -> Drawn {
        let mut rng = Rng::with_seed(self.lacks.seed);
        let cached = (0..self.sets.len()).filter(|&table| self.sets[table].is_some());
        let (all, lacks) = (cached.clone().count(), &self.lacks);
        let mut hung: Vec<usize> = cached.filter(|&table| !lacks.some_of(table)).collect();
        let is_drawn = rng.choice(&hung).is_some_and(|_| all > 1) && rng.u8(0..3) == 0;
        if !is_drawn {
            return self;
        }
        rng.shuffle(&mut hung);
        hung.truncate(rng.usize(1..all));
        self.lacks.hung = hung;
        (self.bad, self.lost) = (0, 0);
        self.fetches = self.fetches.max(4);
        let limits = &mut self.limits;
        limits.staged *= 2;
        (limits.asked, limits.bags) = (limits.asked.max(8), limits.bags.max(16));
        limits.budget_ns = HUNG_BUDGET_NS;
        self
    }

    /// With room to load so many rows at a time that nobody wants.
    pub(super) fn with_prefetched(mut self, rows: u32) -> Drawn {
        self.limits.prefetched = rows;
        self
    }

    /// The same where there is none.
    pub(super) fn with_prefetched_least(self, rows: u32) -> Drawn {
        match self.limits.prefetched {
            0 => self.with_prefetched(rows),
            _ => self,
        }
    }

    /// Rows that are taken for zeros.
    pub(super) fn lacks(&self) -> &Lacks {
        &self.lacks
    }

    /// What workers read of another dataplane's memory, where they do.
    pub(super) fn far_rows(&self) -> Option<&Arc<Figures>> {
        self.exporter.as_ref().map(Exporter::figures)
    }

    /// What became of all that was asked for.
    pub(super) fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    /// Rows that files failed to give.
    pub(super) fn failures(&self) -> Failures {
        self.disk
            .as_ref()
            .map_or_else(Failures::default, Disk::failures)
    }

    /// Of each table, whether it may be cached.
    pub(super) fn tables(&self) -> Vec<bool> {
        self.sets.iter().map(Option::is_some).collect()
    }

    /// What each worker knows of the tables, of which `begin_cached` says whether they are cached at first, if they may be; and what
    /// makes tables anew.
    pub(super) fn workers(
        &self,
        rng: &mut Rng,
        tables: &Arc<Resident>,
        begin_cached: &[Option<bool>],
        workers: usize,
    ) -> (Vec<(store::Worker, Worker)>, Shares) {
        let options = Options {
            limits: self.limits,
            limbo: self.limbo,
            tags: Tags::detect(),
            huge_pages: HugePages::Off,
            seed: rng.u64(..),
        };
        let cached = |(number, sets): (usize, &Option<u32>)| {
            let (shards, row_bytes) = (workers as u32, tables.tables()[number].stride());
            let shape =
                |sets| Shape::new(sets * WAYS as u32 * shards, shards, row_bytes, row_bytes);
            sets.map(|sets| TableOptions {
                begins_cached: begin_cached[number] == Some(true),
                shape: shape(sets)
                    .expect("at least two sets a shard")
                    .of_table(tables.tables()[number].row_count().into())
                    .with_tags(match (number + sets as usize) % 2 {
                        0 => Width::One,
                        _ => Width::Two,
                    }),
                most_sets: MOST_SETS,
                most_patched: tables.tables()[number].row_count(),
                in_tier: number as u32,
                on_failure: match self.lacks.some_of(number) {
                    true => OnFailure::DefaultRow,
                    false => OnFailure::Error,
                },
            })
        };
        let cached: Vec<Option<TableOptions>> = self.sets.iter().enumerate().map(cached).collect();
        let parts = |_| {
            Parts {
                tier: self.tier(tables, rng.fork()),
                // Workers of the simulation look themselves whether there is something for them.
                wake: Box::new(|| ()),
            }
        };
        let parts = (0..workers).map(parts).collect();
        workers_with_shares(&options, &cached, parts).expect("little memory")
    }
}

impl Drawn {
    /// What a worker reads rows of these tables from: a tier; the next one of a quarter of the tables where rows can't be read, which knows
    /// them by other numbers and gives half of these rows; and another dataplane's memory before both or behind them.
    pub(super) fn tier(&self, files: &Arc<Resident>, rng: Rng) -> Box<dyn Tier + Send> {
        Box::new(Watched::new(self.tiers(files, rng), &self.watch))
    }

    fn tiers(&self, files: &Arc<Resident>, mut rng: Rng) -> Box<dyn Tier + Send> {
        let tables = self.sets.len();
        let exporter = self.exporter.as_ref();
        let exporter = exporter.map(|it| (it, it.tier(files, tables, rng.fork())));
        let is_passed_on = |&table: &usize| self.lacks.seed.rotate_right(table as u32) & 3 == 3;
        let own: Vec<usize> = (0..tables).filter(is_passed_on).collect();
        let has_next = self.bad > 0 && !own.is_empty();
        let next = has_next.then(|| Shelf {
            bad: 5000,
            lost: 0,
            ..self.shelf(files, own.clone(), rng.fork())
        });
        let first = self.first(files, rng);
        if next.is_none() && exporter.is_none() {
            return first;
        }
        let number = |table| own.iter().position(|&t| t == table).map(|at| at as u32);
        let all = (0..tables as u32).map(Some).collect();
        // More than the first one takes, so that rows wait for the second, too.
        let mut chain = Chain::new(2 * self.fetches as u32, tables as u32);
        let (before, after) = match exporter {
            Some((it, tier)) if it.is_first => (Some(tier), None),
            other => (None, other.map(|(_, tier)| tier)),
        };
        if let Some((tier, numbers)) = before {
            chain = chain.then(Box::new(tier), numbers);
        }
        chain = chain.then(first, all);
        if let Some(next) = next {
            chain = chain.then(Box::new(next), (0..tables).map(number).collect());
        }
        if let Some((tier, numbers)) = after {
            chain = chain.then(Box::new(tier), numbers);
        }
        Box::new(chain)
    }

    /// The tables' own files, or what stands in for them.
    fn first(&self, files: &Arc<Resident>, rng: Rng) -> Box<dyn Tier + Send> {
        let Some(disk) = &self.disk else {
            return Box::new(self.shelf(files, (0..self.sets.len()).collect(), rng));
        };
        let health = Health {
            delay_ns: self.delay_ns.clone(),
            failing: self.bad,
            late: self.lost,
            lacks: self.lacks.clone(),
        };
        let (fetches, budget_ns) = (self.fetches as u32, self.limits.budget_ns);
        Box::new(disk.tier(files.generation(), fetches, budget_ns, (health, rng)))
    }

    fn shelf(&self, files: &Arc<Resident>, numbers: Vec<usize>, rng: Rng) -> Shelf {
        Shelf {
            tables: Arc::clone(files),
            numbers,
            rng,
            fetches: self.fetches,
            delay_ns: self.delay_ns.clone(),
            bad: self.bad,
            lacks: self.lacks.clone(),
            lost: self.lost,
            held: 0,
            wanted: vec![],
        }
    }
}

/// Stands in for a tier: it has the rows of resident tables.
struct Shelf {
    tables: Arc<Resident>,
    /// Its tables, by the number that they are asked for by.
    numbers: Vec<usize>,
    rng: Rng,
    fetches: usize,
    delay_ns: RangeInclusive<u64>,
    bad: u32,
    lacks: Lacks,
    lost: u32,
    /// Reads that the tables hold for ever whose files hang.
    held: usize,
    /// When each comes, `u64::MAX` for never, and whether it can be read then.
    wanted: Vec<(u64, Wanted, bool)>,
}

impl Tier for Shelf {
    fn fetch(&mut self, now_ns: u64, wanted: Wanted) -> Result<(), FetchesFull> {
        let table = self.numbers[wanted.table as usize];
        let hangs = self.lacks.hangs(table);
        let of_hung = |(due_ns, ..): &&(u64, Wanted, bool)| *due_ns == u64::MAX;
        let held = self.held + self.wanted.iter().filter(of_hung).count();
        if self.wanted.len() + self.held == self.fetches {
            return Err(FetchesFull::ForAll);
        }
        if hangs && held + 3 > self.fetches {
            return Err(FetchesFull::ForTable);
        }
        let due_ns = match hangs || self.rng.u32(0..10_000) < self.lost {
            true => u64::MAX,
            false => now_ns + self.rng.u64(self.delay_ns.clone()),
        };
        let is_bad = match self.lacks.some_of(table) {
            true => self.lacks.row(table, wanted.row),
            false => self.rng.u32(0..10_000) < self.bad,
        };
        self.wanted.push((due_ns, wanted, is_bad));
        Ok(())
    }

    fn poll(&mut self, now_ns: u64, each: EachRow<'_>) {
        self.rng.shuffle(&mut self.wanted);
        let is_over = |(due_ns, wanted, _): &mut (u64, Wanted, bool)| {
            *due_ns <= now_ns || wanted.deadline_ns <= now_ns
        };
        for (due_ns, wanted, is_bad) in self.wanted.extract_if(.., is_over) {
            let table = &self.tables.tables()[self.numbers[wanted.table as usize]];
            let from = wanted.row as usize * table.stride();
            self.held += usize::from(!self.lacks.hung.is_empty() && due_ns == u64::MAX);
            let outcome = match is_bad {
                _ if due_ns > now_ns => Err(TierError::Late),
                true => Err(TierError::Os(5)),
                false => Ok(&table.bytes()[from..from + table.stride()]),
            };
            each(wanted.token, outcome);
        }
    }

    fn unanswered(&self) -> usize {
        self.wanted.len()
    }
}
