//! Tiers that share a book of what is being fetched, so that a row is seen to be fetched once, by the worker that writes its shard.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use rowmill_cache::tier::{EachRow, FetchesFull, Tier, TierError, Wanted};

pub(crate) const ROW_BYTES: usize = 16;
pub(crate) const TABLES: u32 = 2;

/// The bytes of a row.
pub(crate) fn bytes(table: u32, row: u32) -> [u8; ROW_BYTES] {
    let number = u64::from(table) << 32 | u64::from(row);
    let mut bytes = [0; ROW_BYTES];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..].copy_from_slice(&(!number).to_le_bytes());
    bytes
}

/// What becomes of a row.
pub(crate) fn fate(row: u32) -> Fate {
    match row % 10 {
        3 => Fate::Fails,
        7 => Fate::Never,
        _ => Fate::Comes,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Comes,
    Fails,
    Never,
}

/// What the tiers of all workers fetch.
#[derive(Debug, Default)]
pub(crate) struct Book {
    /// Rows on their way, and whose tier fetches them.
    pub(crate) fetching: HashMap<(u32, u32), usize>,
    /// The worker that fetches a shard's rows, which is always the same one. By table and row.
    owners: HashMap<(u32, u32), usize>,
    /// Fetches that were begun.
    pub(crate) begun: usize,
    /// When one was last answered, but for being late.
    pub(crate) answered: u64,
    /// Whether rows of tables that are not cached come from memory: a tier may then be asked for a row that it still reads for nobody.
    pub(crate) has_resident: bool,
    /// Whether none is answered any more.
    pub(crate) is_dead: bool,
}

impl Book {
    /// Has room for all rows that a test may want.
    pub(crate) fn reserve(&mut self) {
        self.fetching.reserve(2000);
        self.owners.reserve(2000);
    }

    fn begin(&mut self, worker: usize, wanted: Wanted) {
        let key = (wanted.table, wanted.row);
        let before = self.fetching.insert(key, worker);
        let may_be = before.is_none() || self.has_resident;
        assert!(may_be, "row {key:?} is on its way already");
        let owner = *self.owners.entry(key).or_insert(worker);
        assert_eq!(owner, worker, "row {key:?} is fetched by its owner");
        self.begun += 1;
    }
}

/// The tier of a worker.
#[derive(Debug)]
pub(crate) struct Shelf {
    worker: usize,
    book: Arc<Mutex<Book>>,
    room: usize,
    pending: Vec<Wanted>,
    random: fastrand::Rng,
}

impl Shelf {
    pub(crate) fn new(worker: usize, book: Arc<Mutex<Book>>, room: usize, seed: u64) -> Shelf {
        Shelf {
            worker,
            book,
            room,
            pending: Vec::with_capacity(room),
            random: fastrand::Rng::with_seed(seed),
        }
    }
}

impl Tier for Shelf {
    fn fetch(&mut self, _: u64, wanted: Wanted) -> Result<(), FetchesFull> {
        if self.pending.len() == self.room {
            return Err(FetchesFull::ForAll);
        }
        self.book.lock().unwrap().begin(self.worker, wanted);
        self.pending.push(wanted);
        Ok(())
    }

    fn poll(&mut self, now_ns: u64, each: EachRow<'_>) {
        self.random.shuffle(&mut self.pending);
        let random = &mut self.random;
        let is_dead = self.book.lock().unwrap().is_dead;
        let due = |wanted: &mut Wanted| {
            let comes = fate(wanted.row) != Fate::Never && !is_dead && random.bool();
            comes || wanted.deadline_ns <= now_ns
        };
        for wanted in self.pending.extract_if(.., due) {
            let key = (wanted.table, wanted.row);
            let mut book = self.book.lock().unwrap();
            book.fetching.remove(&key);
            if wanted.deadline_ns > now_ns {
                book.answered = now_ns;
            }
            drop(book);
            match fate(wanted.row) {
                _ if wanted.deadline_ns <= now_ns => each(wanted.token, Err(TierError::Late)),
                Fate::Comes => each(wanted.token, Ok(&bytes(wanted.table, wanted.row))),
                Fate::Fails => each(wanted.token, Err(TierError::Gone)),
                Fate::Never => unreachable!("it is late first"),
            }
        }
    }

    fn unanswered(&self) -> usize {
        self.pending.len()
    }
}
