//! One worker's way to the rows of cached tables.

use core::fmt;

use rowmill_arena::ReadWindow;

use crate::fetch::{self, BagId, Fetches, Limits, Ready, Ticket};
use crate::store::{self, Found, MISS, Turn};
use crate::table::{CachedTable, Counters, OnFailure};
use crate::tier::{EachRow, FetchesFull, Tier, Wanted};

/// No tier, for a worker without cached tables.
struct Nowhere;

impl Tier for Nowhere {
    fn fetch(&mut self, _: u64, _: Wanted) -> Result<(), FetchesFull> {
        unreachable!("only rows of cached tables are fetched")
    }

    fn poll(&mut self, _: u64, _: EachRow<'_>) {}

    fn unanswered(&self) -> usize {
        0
    }
}

/// What one worker knows of cached tables: the rows that are there, and the fetches that it has begun.
pub struct Worker {
    /// By the table's number; `None` for resident ones.
    tables: Box<[Option<CachedTable>]>,
    fetches: Fetches,
    /// The slots that were taken for rows on their way, by the number of their fetch.
    slots: Box<[Option<store::Ticket>]>,
    tier: Box<dyn Tier + Send>,
    /// Of all tables.
    counters: Counters,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Worker");
        out.field("tables", &self.tables);
        out.field("fetches", &self.fetches);
        out.finish_non_exhaustive()
    }
}

/// What parks bags of a table whose rows were just looked up.
#[derive(Debug)]
pub struct Parker<'w> {
    fetches: &'w mut Fetches,
    table: usize,
}

impl Parker<'_> {
    /// Parks the bag whose rows are those of `found` from a position on. Each row is replaced by its place in staging. `None`
    /// where there is no room now.
    pub fn park(
        &mut self,
        now_ns: u64,
        rows: &mut [u32],
        found: &Found<'_>,
        from: usize,
    ) -> Option<BagId> {
        (from..from + rows.len()).for_each(|position| found.prefetch_row(position));
        let places = found.places();
        let row_bytes = found.row_bytes();
        self.fetches
            .park(now_ns, self.table as u32, rows, |position, out| {
                let hit = places[from + position] != MISS;
                if hit {
                    found.copy_row(from + position, &mut out[..row_bytes]);
                }
                hit
            })
    }
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
        Worker::new(Box::default(), limits, Box::new(Nowhere), 0)
    }

    /// The tables of a model by their numbers, `None` for those that are resident. The others' rows come from `tier`. `seed` is as
    /// [`Fetches::new`] has it.
    ///
    /// # Panics
    /// If a table has longer rows than the limits say.
    pub(crate) fn new(
        tables: Box<[Option<CachedTable>]>,
        limits: Limits,
        tier: Box<dyn Tier + Send>,
        seed: u64,
    ) -> Worker {
        for table in tables.iter().flatten() {
            assert!(
                table.row_bytes() <= limits.row_bytes,
                "staging has room for any row"
            );
        }
        let fetches = Fetches::new(limits, seed);
        Worker {
            tables,
            slots: (0..fetches.most()).map(|_| None).collect(),
            fetches,
            tier,
            counters: Counters::default(),
        }
    }

    /// Whether a table's rows are to be looked for here.
    pub fn is_cached(&self, table: usize) -> bool {
        self.tables.get(table).is_some_and(Option::is_some)
    }

    /// What becomes of bags of a cached table whose rows could not all be fetched.
    pub fn on_failure(&self, table: usize) -> OnFailure {
        let cached = self.tables[table].as_ref().expect("a cached table");
        cached.when_it_fails()
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
    pub fn fetch_counters(&self) -> &fetch::Counters {
        self.fetches.counters()
    }

    /// What was counted of all cached tables.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Looks rows of a cached table up: the slot of each, or [`MISS`], and what parks bags that miss some.
    pub fn find<'t>(
        &'t mut self,
        turn: Turn<'t>,
        table: usize,
        rows: &[u32],
        places: &'t mut [u32],
    ) -> (Found<'t>, Parker<'t>) {
        let cached = self.tables[table].as_mut().expect("a cached table");
        let found = cached.find(turn, rows, places, &mut self.counters);
        let fetches = &mut self.fetches;
        (found, Parker { fetches, table })
    }

    /// The slots of a cached table, the bytes from one to the next, and how many there are.
    pub fn slots(&self, table: usize) -> (ReadWindow<'_>, usize, u32) {
        let cached = self.tables[table].as_ref().expect("a cached table");
        cached.slots()
    }

    /// Places of parked bags' rows: the bytes, from one place to the next, and how many places there are.
    pub fn staging(&self) -> (ReadWindow<'_>, usize, u32) {
        let fetches = &self.fetches;
        let window = ReadWindow::over(fetches.staging());
        (window, fetches.stride(), fetches.limits().staged)
    }

    /// Takes what has come, and asks for what is wanted. Between two turns.
    pub fn poll(&mut self, now_ns: u64) {
        let Worker {
            tables,
            fetches,
            slots,
            tier,
            counters,
        } = self;
        tier.poll(now_ns, &mut |token, outcome| {
            let ticket = Ticket::of(token);
            let Some(table) = fetches.arrived(ticket, outcome) else {
                return;
            };
            let slot = slots[ticket.number()].take();
            match (slot, outcome) {
                (Some(slot), Ok(bytes)) => cached(tables, table).publish(slot, bytes, counters),
                (Some(slot), Err(_)) => cached(tables, table).abandon(slot),
                (None, _) => {}
            }
        });
        while let Some((ticket, table)) = fetches.expire(now_ns) {
            if let Some(slot) = slots[ticket.number()].take() {
                cached(tables, table).abandon(slot);
            }
        }
        while let Some(read) = fetches.next_read() {
            let table = cached(tables, read.table);
            let wanted = Wanted {
                table: table.in_tier(),
                row: read.row,
                token: read.ticket.token(),
                deadline_ns: read.deadline_ns,
            };
            if let Err(FetchesFull) = tier.fetch(now_ns, wanted) {
                fetches.put_back(read);
                break;
            }
            slots[read.ticket.number()] = table.begin(read.row, counters);
        }
        for table in tables.iter_mut().flatten() {
            table.advance();
        }
    }

    /// Whether a bag of so many rows can be parked now.
    pub fn has_room(&self, rows: usize) -> bool {
        self.fetches.has_room(rows)
    }

    /// The next parked bag that waits for nothing any more.
    pub fn next_ready(&mut self) -> Option<Ready> {
        self.fetches.next_ready()
    }

    /// A parked bag is pooled or given up. `places` is what [`Parker::park`] has made of its rows.
    pub fn release(&mut self, bag: BagId, places: &[u32]) {
        self.fetches.release(bag, places);
    }
}

/// The table of a row that is fetched.
fn cached(tables: &mut [Option<CachedTable>], table: u32) -> &mut CachedTable {
    let table = tables[table as usize].as_mut();
    table.expect("rows of cached tables are fetched")
}
