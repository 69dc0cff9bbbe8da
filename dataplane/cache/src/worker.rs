//! One worker's way to the rows of cached tables.

use crate::fetch::{BagId, Counters, Failure, Fetches, Limits, Read, Ready, Ticket};

/// In the place of a row's place: it is not in the cache.
pub const MISS: u32 = u32::MAX;

/// Takes what came of a read: a row's bytes, or why there are none.
pub type Arrived<'a> = dyn FnMut(Ticket, Result<&[u8], Failure>) + 'a;

/// Where rows are that the cache does not have.
///
/// A read that was taken is answered once, in any order, and the answer is checked against a checksum where there is one.
pub trait Tier: core::fmt::Debug + Send {
    /// Begins to read a row. Returns whether it was taken: not so where as much is being read as can be.
    fn read(&mut self, now_ns: u64, read: Read) -> bool;

    /// Tells what came of reads that were taken.
    fn poll(&mut self, now_ns: u64, arrived: &mut Arrived<'_>);
}

/// No tier, for a worker without cached tables.
#[derive(Debug)]
struct Nowhere;

impl Tier for Nowhere {
    fn read(&mut self, _: u64, _: Read) -> bool {
        unreachable!("only rows of cached tables are read")
    }

    fn poll(&mut self, _: u64, _: &mut Arrived<'_>) {}
}

/// What one worker knows of cached tables: which there are, and the fetches that it has begun.
#[derive(Debug)]
pub struct Worker {
    /// By the table's number: whether it is cached.
    cached: Box<[bool]>,
    fetches: Fetches,
    tier: Box<dyn Tier>,
}

impl Worker {
    /// No table is cached.
    pub fn none() -> Worker {
        let limits = Limits {
            staged: 0,
            prefetched: 0,
            bags: 0,
            row_bytes: 0,
            budget_ns: 0,
        };
        Worker {
            cached: Box::default(),
            fetches: Fetches::new(limits, 0),
            tier: Box::new(Nowhere),
        }
    }

    /// Those tables are cached whose place in `cached` says so; their rows come from `tier`. `seed` is as [`Fetches::new`] has it.
    pub fn new(cached: Box<[bool]>, limits: Limits, tier: Box<dyn Tier>, seed: u64) -> Worker {
        Worker {
            cached,
            fetches: Fetches::new(limits, seed),
            tier,
        }
    }

    /// Whether a table's rows are to be looked for here.
    pub fn is_cached(&self, table: usize) -> bool {
        self.cached.get(table).is_some_and(|&cached| cached)
    }

    /// Most bags that are parked at a time.
    pub fn bags(&self) -> u32 {
        self.fetches.limits().bags
    }

    /// Whether nothing is parked and no row on its way.
    pub fn is_idle(&self) -> bool {
        self.fetches.on_the_way() == 0 && self.fetches.parked() == 0
    }

    /// Rows on their way, and rows in staging.
    pub fn held(&self) -> (usize, usize) {
        (self.fetches.on_the_way(), self.fetches.staged())
    }

    /// What was counted of fetches.
    pub fn counters(&self) -> &Counters {
        self.fetches.counters()
    }

    /// Puts the place of each row, or [`MISS`], into `places`. Returns how many misses there are.
    pub fn find(&mut self, _table: usize, rows: &[u32], places: &mut [u32]) -> usize {
        places.fill(MISS);
        rows.len()
    }

    /// Parks a bag of rows of which [`Worker::find`] has just missed some. Each row is replaced by its place in staging. `None` where
    /// there is no room now.
    pub fn park(&mut self, now_ns: u64, table: usize, rows: &mut [u32]) -> Option<BagId> {
        self.fetches
            .park(now_ns, table as u32, rows, |_, _| false)
    }

    /// Places of parked bags' rows: the bytes, from one place to the next, and how many places there are.
    pub fn staging(&self) -> (&[u8], usize, u32) {
        let fetches = &self.fetches;
        (fetches.staging(), fetches.stride(), fetches.limits().staged)
    }

    /// Asks for what is wanted, and takes what has come.
    pub fn poll(&mut self, now_ns: u64) {
        let fetches = &mut self.fetches;
        self.tier.poll(now_ns, &mut |ticket, outcome| {
            fetches.arrived(ticket, outcome);
        });
        fetches.expire(now_ns);
        while let Some(read) = fetches.next_read() {
            if !self.tier.read(now_ns, read) {
                fetches.put_back(read);
                break;
            }
        }
    }

    /// The next parked bag that waits for nothing any more.
    pub fn next_ready(&mut self) -> Option<Ready> {
        self.fetches.next_ready()
    }

    /// A parked bag is pooled or given up. `places` is what [`Worker::park`] has made of its rows.
    pub fn release(&mut self, bag: BagId, places: &[u32]) {
        self.fetches.release(bag, places);
    }
}
