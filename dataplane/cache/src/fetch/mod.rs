//! Rows on their way: which are asked for, which bags wait for them, and the staging memory that they come to.
//!
//! It reads nothing itself. What has to be read is taken out with [`Fetches::next_read`], what came of it is told with
//! [`Fetches::arrived`], and bags whose rows are all there come out of [`Fetches::next_ready`]. Time is an argument. One
//! worker has one; after [`Fetches::new`] nothing is allocated.
//!
//! A row is read from the worker's tier or asked of the worker that writes its shard ([`Source`]); the others' asks come in by
//! [`Fetches::ask`].
//!
//! A row's time budget counts from when its read is taken out; a tier answers all that it has taken by then. Rows that wait for their turn are
//! given up only where the tier has given no row, and said of none why it can't, for a whole budget: a tier that is busy fails nobody,
//! however many rows wait. Where the last that was heard of a table is that a row of it was late, only answers for that table
//! count: one whose file hangs is not waited for because others' files answer. Nor do others' count where the table's own reads have all that it may
//! have of the tier, which may be reads that nobody waits for any more. So whatever becomes of the tier, a row of its own is here or given up at most
//! two budgets after it was wanted or the tier last answered, whichever is later: one in which it waits for its turn, and one in which it is read. Turns go round
//! among clients (`lanes.rs`).
//!
//! All that there is only so much of is divided among tables (`quotas.rs`): places of staging, bags that wait and what they
//! wait by, rows that nobody wants yet. Each table has a small part of its own, so that others whose files hang leave it some of each.
//!
//! A row of another worker's shard waits for memory to ask with, as long as others answer, then in that one's turns: one more budget, if the tier
//! answers nothing.
//! Since the owner answers all that it is asked in two budgets after its tier's last answer, one who hears nothing for three takes it for stopped.
//!
//! A row is fetched once, however many bags want it while it is on its way, and however many other workers. A bag is parked
//! whole or not at all: its hits are copied to staging, since rows of the cache may be replaced while it waits, and each of its
//! misses has a place there to come to. So a bag that is ready is pooled like any other, over [`Fetches::staging`] with places
//! for ids.

mod ages;
mod bags;
mod lanes;
mod reads;
mod rows;
mod slab;
mod types;

use std::collections::VecDeque;

pub use lanes::Lane;
pub use reads::READ_AHEAD;
pub use types::{BagId, Counters, Kept, Limits, Read, Ready, Source, Ticket};

use ages::Ages;
use lanes::Lanes;
use rows::{RowKey, Rows};
use slab::Slab;

use crate::quotas::Quotas;
pub use crate::quotas::{Room, room_for};
use crate::sides::{SIDES, on_one_side};
use crate::tier::TierError;

/// Where a row stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// Not yet taken out to be read.
    Queued,
    Reading,
}

#[derive(Clone, Copy, Debug)]
struct Fetch {
    key: RowKey,
    state: State,
    /// Whether it is asked of another worker.
    is_asked: bool,
    /// Whether a bag or another worker wants it, or has wanted it.
    is_wanted: bool,
    /// How often a row of a list may have been used.
    listed: Option<u32>,
    turn: u32,
    /// Where the row comes to; [`NONE`] while no bag wants it.
    place: u32,
    /// The first of those that wait, or [`NONE`].
    wait: u32,
    /// Since when it waits for its turn; or, where it is asked of another worker, when it was.
    since_ns: u64,
}

/// A position of a bag that waits for a row, or another worker that does: then there is no bag, and its number tells which ask
/// it is.
#[derive(Clone, Copy, Debug)]
struct Wait {
    bag: BagId,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Bag {
    turn: u32,
    table: u32,
    parked: bool,
    /// Positions that wait.
    pending: u32,
    outcome: Result<(), TierError>,
}

/// What was last heard of a table.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    /// When a row of it was answered.
    last_ns: u64,
    /// Whether one that was asked for later was late.
    is_silent: bool,
}

const NONE: u32 = u32::MAX;

/// See the module's text.
#[derive(Debug)]
pub struct Fetches {
    limits: Limits,
    /// By the number of a table on a side, its number among those that rows are fetched of.
    numbers: Box<[u16]>,
    /// How many there are of these.
    listed: usize,
    slab: Slab,
    rows: Rows,
    fetches: Box<[Fetch]>,
    free_fetches: Vec<u32>,
    waits: Box<[Wait]>,
    free_waits: Vec<u32>,
    /// The wait of the others' ask number 0. Those of the others follow.
    asks_from: u32,
    /// Asks that wait no more.
    told: Vec<u32>,
    wait_quotas: Quotas,
    bags: Box<[Bag]>,
    free_bags: Vec<u32>,
    bag_quotas: Quotas,
    /// To be read, and to be asked of other workers; and tables whose rows are passed by in each.
    queued: Lanes,
    away: Lanes,
    is_passed: Box<[bool]>,
    /// Of those passed by, whether their own reads have all that they may have.
    is_held_back: Box<[bool]>,
    is_away_passed: Box<[bool]>,
    /// Rows on their way that nobody has wanted, and those of them that are being read.
    prefetched: Quotas,
    read_ahead: Quotas,
    /// All that wait for their turn to be read, and some that are being read. The table that is looked at next.
    ages: Ages,
    looked: usize,
    /// All of other workers' shards, with when they are to be looked at, and some that have arrived.
    away_by_age: VecDeque<(Ticket, u64)>,
    /// When the tier last answered, and of each table.
    heard_ns: u64,
    heard: Box<[Heard]>,
    /// When another worker last answered.
    owners_ns: u64,
    ready: VecDeque<BagId>,
    counters: Counters,
}

impl Fetches {
    /// Takes all memory that it will ever use. Rows are fetched of those tables of which `tables` says so, by their numbers, on both [sides](crate::SIDES). Other workers
    /// ask for `others` rows at a time at most. `seed` keeps clients from choosing rows that collide in its hash table.
    ///
    /// # Panics
    /// If there are more than 65,535 such tables, or staging has not room for the longest bag.
    pub fn new(limits: Limits, others: u32, tables: &[bool], seed: u64) -> Fetches {
        assert!(limits.longest <= limits.staged, "any bag can be parked");
        let fetch = Fetch {
            key: RowKey { table: 0, row: 0 },
            state: State::Free,
            is_asked: false,
            is_wanted: false,
            listed: None,
            turn: 0,
            place: NONE,
            wait: NONE,
            since_ns: 0,
        };
        let bag = Bag {
            turn: 0,
            table: 0,
            parked: false,
            pending: 0,
            outcome: Ok(()),
        };
        let wait = Wait {
            bag: BagId { index: 0, turn: 0 },
            next: NONE,
        };
        // One that bags want has a place, so where there are places there are fetches; and each ask has one of its own. Positions of bags
        // that were given up go on waiting for rows on their way, whose places are no longer theirs; so there are more waits than places.
        let fetches = limits.staged + limits.prefetched + others;
        let waits = 2 * limits.staged;
        let mut listed = 0;
        let number = |&is_listed: &bool| {
            listed += u16::from(is_listed);
            listed.saturating_sub(1)
        };
        let numbers = tables.iter().map(number).collect();
        let listed = usize::from(listed);
        let ahead = READ_AHEAD.max(room_for(listed as u32, 1));
        // Twice as much room for what is looked at later, so that what is not true any more is swept out only now and then.
        Fetches {
            limits,
            numbers,
            listed,
            slab: Slab::new(limits.staged, limits.longest, limits.row_bytes, tables),
            rows: Rows::new(fetches, seed),
            fetches: vec![fetch; fetches as usize].into_boxed_slice(),
            free_fetches: (0..fetches).rev().collect(),
            waits: vec![wait; (waits + others) as usize].into_boxed_slice(),
            free_waits: (0..waits).rev().collect(),
            asks_from: waits,
            told: Vec::with_capacity(others as usize),
            wait_quotas: Quotas::new(waits, limits.longest, tables),
            bags: vec![bag; limits.bags as usize].into_boxed_slice(),
            free_bags: (0..limits.bags).rev().collect(),
            bag_quotas: Quotas::new(limits.bags, 1, tables),
            queued: Lanes::new(fetches, SIDES * listed),
            away: Lanes::new(fetches, SIDES * listed),
            is_passed: vec![false; SIDES * listed].into_boxed_slice(),
            is_held_back: vec![false; SIDES * listed].into_boxed_slice(),
            is_away_passed: vec![false; SIDES * listed].into_boxed_slice(),
            prefetched: Quotas::new(limits.prefetched, 1, tables),
            read_ahead: Quotas::new(ahead, 1, &vec![true; listed]),
            ages: Ages::new(fetches, SIDES * listed),
            looked: 0,
            away_by_age: VecDeque::with_capacity(2 * limits.staged as usize),
            heard_ns: 0,
            heard: vec![Heard::default(); SIDES * tables.len()].into_boxed_slice(),
            owners_ns: 0,
            ready: VecDeque::with_capacity(2 * limits.bags as usize),
            counters: Counters::default(),
        }
    }

    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The bounds.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Most rows on their way.
    pub fn most(&self) -> usize {
        self.fetches.len()
    }

    /// Bags that wait, or are ready and not pooled yet.
    pub fn parked(&self) -> usize {
        self.bags.len() - self.free_bags.len()
    }

    /// The staging memory, rows at multiples of [`Fetches::stride`].
    pub fn staging(&self) -> &[u8] {
        self.slab.bytes()
    }

    /// Bytes from one place of staging to the next.
    pub fn stride(&self) -> usize {
        self.slab.stride()
    }

    /// Rows on their way, or waiting to be asked for.
    pub fn on_the_way(&self) -> usize {
        self.fetches.len() - self.free_fetches.len()
    }

    /// Rows in staging, with those that places are kept for.
    pub fn staged(&self) -> usize {
        self.slab.places() as usize - self.slab.free()
    }

    /// Of these, a table's.
    pub fn staged_of(&self, table: usize) -> u32 {
        self.slab.quotas().held(table)
    }

    /// How many more rows a table could have in staging if it had to leave none to others, and how many if nobody had any.
    pub fn room(&self, table: usize) -> (u32, u32) {
        self.slab.quotas().room(table)
    }

    /// Asks for a row that nobody wants yet. Returns whether it is on its way now.
    pub fn prefetch(&mut self, now_ns: u64, table: u32, row: u32) -> bool {
        self.prefetch_listed(now_ns, table, row, None)
    }

    /// The same for a row of a list, which may have been used so often, where that is known.
    pub fn prefetch_listed(
        &mut self,
        now_ns: u64,
        table: u32,
        row: u32,
        listed: Option<u32>,
    ) -> bool {
        let key = RowKey { table, row };
        if self.rows.find(key, &self.fetches).is_some() {
            return true;
        }
        let has_room = self.has_room_ahead(table as usize);
        if has_room {
            let ticket = self.begin(now_ns, key, false, false);
            self.fetches[ticket.index as usize].listed = listed;
            self.prefetched.take(table as usize, 1);
            self.counters.prefetched += 1;
            let number = self.number(table);
            self.queued.push(ticket.index, number, None);
        }
        has_room
    }

    /// Whether one on its way waits for its turn still.
    pub fn is_queued(&self, ticket: Ticket) -> bool {
        is_live(&self.fetches, ticket) && self.fetches[ticket.index as usize].state == State::Queued
    }

    /// Whether a row is on its way.
    pub fn has(&self, table: u32, row: u32) -> bool {
        let key = RowKey { table, row };
        self.rows.find(key, &self.fetches).is_some()
    }

    /// Whether [`Fetches::prefetch`] can begin another row, if only of some tables.
    pub fn can_prefetch(&self) -> bool {
        self.prefetched.left() > 0
    }

    /// The same of a row of this table.
    pub fn has_room_ahead(&self, table: usize) -> bool {
        self.prefetched.lets(table, 1).is_ok()
    }

    /// Another worker asks for a row, which it then waits for until it is told ([`Fetches::next_told`]). `ask` is a number below that of
    /// all asks, of none that waits.
    pub fn ask(&mut self, now_ns: u64, lane: Lane, table: u32, row: u32, ask: u32) {
        let ticket = self.want(now_ns, lane, RowKey { table, row }, false);
        let wait = self.asks_from + ask;
        let fetch = &mut self.fetches[ticket.index as usize];
        self.waits[wait as usize].next = core::mem::replace(&mut fetch.wait, wait);
    }

    /// The next ask for whose row an answer, or none in time, has just come: what [`Fetches::arrived`] was told, or
    /// [`TierError::Late`] after [`Fetches::give_up`]. To be asked for after each of these.
    pub fn next_told(&mut self) -> Option<u32> {
        self.told.pop()
    }

    /// Somebody is about to wait for a row.
    fn want(&mut self, now_ns: u64, lane: Lane, key: RowKey, is_asked: bool) -> Ticket {
        let number = self.number(key.table);
        let Some(index) = self.rows.find(key, &self.fetches) else {
            let ticket = self.begin(now_ns, key, is_asked, true);
            let lanes = match is_asked {
                true => &mut self.away,
                false => &mut self.queued,
            };
            lanes.push(ticket.index, number, Some(lane));
            return ticket;
        };
        self.counters.joined += 1;
        let fetch = &mut self.fetches[index as usize];
        let is_queued = fetch.state == State::Queued;
        let was_wanted = core::mem::replace(&mut fetch.is_wanted, true);
        if is_queued {
            match fetch.is_asked {
                true => self.away.join(index, lane),
                false => self.queued.join(index, lane),
            }
        }
        if !was_wanted {
            self.prefetched.give_back(key.table as usize, 1);
            if is_queued {
                // One that was asked for in advance has as much time as others from now on.
                fetch.since_ns = now_ns;
                self.ages.push(number, index);
            } else {
                self.read_ahead.give_back(number, 1);
            }
        }
        self.ticket(index)
    }

    /// Begins to fetch a row, which is in no lane yet.
    fn begin(&mut self, now_ns: u64, key: RowKey, is_asked: bool, is_wanted: bool) -> Ticket {
        let index = self.free_fetches.pop().expect("room was looked for");
        let fetch = &mut self.fetches[index as usize];
        *fetch = Fetch {
            key,
            state: State::Queued,
            is_asked,
            is_wanted,
            listed: None,
            turn: fetch.turn,
            place: NONE,
            wait: NONE,
            since_ns: now_ns,
        };
        self.rows.insert(key, index, &self.fetches);
        self.counters.fetched += 1;
        self.counters.asked += u64::from(is_asked);
        let ticket = self.ticket(index);
        if is_asked {
            let look_ns = now_ns.saturating_add(self.limits.budget_ns);
            self.look_later(ticket, look_ns);
        } else {
            let number = self.number(key.table);
            self.ages.push(number, index);
        }
        ticket
    }

    /// A table's number among those that rows are fetched of, on both sides.
    fn number(&self, table: u32) -> usize {
        let (table, tables) = (table as usize, self.numbers.len());
        let number = usize::from(self.numbers[on_one_side(table, tables)]);
        number + usize::from(table >= tables) * self.listed
    }

    /// A row of another worker's shard is to be looked at, later than all others.
    fn look_later(&mut self, ticket: Ticket, look_ns: u64) {
        push(&mut self.away_by_age, (ticket, look_ns), |(ticket, _)| {
            is_live(&self.fetches, ticket)
        });
    }

    fn ticket(&self, index: u32) -> Ticket {
        let turn = self.fetches[index as usize].turn;
        Ticket { index, turn }
    }
}

fn is_live(fetches: &[Fetch], ticket: Ticket) -> bool {
    let fetch = &fetches[ticket.index as usize];
    fetch.turn == ticket.turn && fetch.state != State::Free
}

/// Adds to a queue with room for twice of what can be true at a time; what is not true any more makes way.
fn push<T: Copy>(queue: &mut VecDeque<T>, entry: T, is_true: impl Fn(T) -> bool) {
    if queue.len() == queue.capacity() {
        queue.retain(|&entry| is_true(entry));
    }
    queue.push_back(entry);
}
