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
//! however many rows wait. So whatever becomes of the tier, a row of its own is here or given up at most two budgets after it was wanted
//! or the tier last answered, whichever is later: one in which it waits for its turn, and one in which it is read. Turns go round
//! among clients (`lanes.rs`).
//!
//! A row of another worker's shard waits for memory to ask with, then in that one's turns: one more budget, if the tier answers nothing.
//! Since the owner answers all that it is asked in two budgets after its tier's last answer, one who hears nothing for three takes it for stopped.
//!
//! A row is fetched once, however many bags want it while it is on its way, and however many other workers. A bag is parked
//! whole or not at all: its hits are copied to staging, since rows of the cache may be replaced while it waits, and each of its
//! misses has a place there to come to. So a bag that is ready is pooled like any other, over [`Fetches::staging`] with places
//! for ids.

mod lanes;
mod reads;
mod rows;
mod slab;
mod types;

use std::collections::VecDeque;

pub use lanes::Lane;
pub use reads::READ_AHEAD;
pub use types::{BagId, Counters, Limits, Read, Ready, Source, Ticket};

use lanes::Lanes;
use rows::{RowKey, Rows};
use slab::Slab;

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
    parked: bool,
    /// Positions that wait.
    pending: u32,
    outcome: Result<(), TierError>,
}

const NONE: u32 = u32::MAX;

/// See the module's text.
#[derive(Debug)]
pub struct Fetches {
    limits: Limits,
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
    bags: Box<[Bag]>,
    free_bags: Vec<u32>,
    /// To be read: those that somebody waits for, and in the order in which they were asked for those that are read when none of these
    /// are left.
    wanted: Lanes,
    unwanted: VecDeque<Ticket>,
    /// To be asked of other workers.
    away: Lanes,
    /// Rows on their way that nobody has wanted, and those of them that are being read.
    prefetched: u32,
    read_ahead: u32,
    /// All that wait for their turn to be read, with since when, the first first, and some that wait no more.
    by_age: VecDeque<(Ticket, u64)>,
    /// All of other workers' shards, with when they are to be looked at, and some that have arrived.
    away_by_age: VecDeque<(Ticket, u64)>,
    /// When the tier last answered.
    heard_ns: u64,
    ready: VecDeque<BagId>,
    counters: Counters,
}

impl Fetches {
    /// Takes all memory that it will ever use. Other workers ask for `others` rows at a time at most. `seed` keeps clients from choosing
    /// rows that collide in its hash table.
    pub fn new(limits: Limits, others: u32, seed: u64) -> Fetches {
        let fetch = Fetch {
            key: RowKey { table: 0, row: 0 },
            state: State::Free,
            is_asked: false,
            is_wanted: false,
            turn: 0,
            place: NONE,
            wait: NONE,
            since_ns: 0,
        };
        let bag = Bag {
            turn: 0,
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
        // Twice as much, so that what is not true any more is swept out only now and then.
        let queue = |entries: u32| VecDeque::with_capacity(2 * entries as usize);
        Fetches {
            limits,
            slab: Slab::new(limits.staged, limits.row_bytes),
            rows: Rows::new(fetches, seed),
            fetches: vec![fetch; fetches as usize].into_boxed_slice(),
            free_fetches: (0..fetches).rev().collect(),
            waits: vec![wait; (waits + others) as usize].into_boxed_slice(),
            free_waits: (0..waits).rev().collect(),
            asks_from: waits,
            told: Vec::with_capacity(others as usize),
            bags: vec![bag; limits.bags as usize].into_boxed_slice(),
            free_bags: (0..limits.bags).rev().collect(),
            wanted: Lanes::new(fetches),
            unwanted: queue(limits.prefetched),
            away: Lanes::new(fetches),
            prefetched: 0,
            read_ahead: 0,
            by_age: VecDeque::with_capacity(2 * fetches as usize),
            away_by_age: VecDeque::with_capacity(2 * limits.staged as usize),
            heard_ns: 0,
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

    /// Whether so many bags of so many rows together can be parked now, whichever of them are missing.
    pub fn has_room(&self, rows: u32, bags: u32) -> bool {
        // All of them may be, and different.
        let room = self.slab.free().min(self.free_waits.len());
        room >= rows as usize && self.free_bags.len() >= bags as usize
    }

    /// Counts a bag for which there is no room.
    pub fn refuse(&mut self) {
        self.counters.refused += 1;
    }

    /// Parks a bag, whose rows are read in the turns of `lane`. `rows` are its rows, and each is replaced by its place in staging. `find` is given the
    /// position and the number of each once, copies it if the store has it, and says where others are.
    ///
    /// Returns `None`, with nothing changed, where there is no room for the bag now: some will be when others are ready and
    /// pooled.
    ///
    /// # Panics
    /// If the bag has more rows than staging has places: no room would ever be enough.
    pub fn park(
        &mut self,
        now_ns: u64,
        lane: Lane,
        table: u32,
        rows: &mut [u32],
        mut find: impl FnMut(usize, u32, &mut [u8]) -> Source,
    ) -> Option<BagId> {
        assert!(
            rows.len() <= self.slab.places() as usize,
            "limits let any bag be parked"
        );
        let has_room = self.has_room(rows.len() as u32, 1);
        let index = self.free_bags.pop_if(|_| has_room)?;
        let turn = self.bags[index as usize].turn;
        let bag = BagId { index, turn };
        let mut pending = 0;
        for (position, row) in rows.iter_mut().enumerate() {
            let place = self.slab.take();
            let source = find(position, *row, self.slab.row(place));
            *row = if source == Source::Store {
                place
            } else {
                self.slab.release(place);
                pending += 1;
                let is_asked = source == Source::Owner;
                self.wait(now_ns, lane, bag, RowKey { table, row: *row }, is_asked)
            };
        }
        self.counters.parked += 1;
        self.bags[index as usize] = Bag {
            turn,
            parked: true,
            pending,
            outcome: Ok(()),
        };
        if pending == 0 {
            self.now_ready(bag);
        }
        Some(bag)
    }

    /// Asks for a row that nobody wants yet. Returns whether it is on its way now.
    pub fn prefetch(&mut self, now_ns: u64, table: u32, row: u32) -> bool {
        let key = RowKey { table, row };
        if self.rows.find(key, &self.fetches).is_some() {
            return true;
        }
        let room = self.prefetched < self.limits.prefetched;
        if room {
            let ticket = self.begin(now_ns, key, false);
            self.counters.prefetched += 1;
            push(&mut self.unwanted, ticket, |t| {
                is_unwanted(&self.fetches, t)
            });
        }
        room
    }

    /// Whether [`Fetches::prefetch`] can begin another row.
    pub fn can_prefetch(&self) -> bool {
        self.prefetched < self.limits.prefetched
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

    /// A position of a bag waits for a row. Returns its place.
    fn wait(&mut self, now_ns: u64, lane: Lane, bag: BagId, key: RowKey, is_asked: bool) -> u32 {
        let ticket = self.want(now_ns, lane, key, is_asked);
        let fetch = &mut self.fetches[ticket.index as usize];
        if fetch.place == NONE {
            fetch.place = self.slab.take(); // The fetch's own use of it.
        }
        self.slab.share(fetch.place);
        let wait = self.free_waits.pop().expect("room was looked for");
        let next = core::mem::replace(&mut fetch.wait, wait);
        self.waits[wait as usize] = Wait { bag, next };
        fetch.place
    }

    /// Somebody is about to wait for a row.
    fn want(&mut self, now_ns: u64, lane: Lane, key: RowKey, is_asked: bool) -> Ticket {
        let ticket = match self.rows.find(key, &self.fetches) {
            Some(index) => {
                self.counters.joined += 1;
                self.ticket(index)
            }
            None => self.begin(now_ns, key, is_asked),
        };
        let fetch = &mut self.fetches[ticket.index as usize];
        let lanes = if fetch.is_asked {
            &mut self.away
        } else {
            &mut self.wanted
        };
        if fetch.is_wanted {
            if fetch.state == State::Queued {
                lanes.join(ticket.index, lane);
            }
            return ticket;
        }
        fetch.is_wanted = true;
        self.prefetched -= 1;
        self.read_ahead -= u32::from(fetch.state == State::Reading);
        if fetch.state == State::Queued {
            lanes.push(ticket.index, lane);
            // One that was asked for in advance has as much time as others from now on.
            if fetch.since_ns != now_ns {
                fetch.since_ns = now_ns;
                self.note_age(ticket);
            }
        }
        ticket
    }

    /// Begins to fetch a row, which nobody wants yet.
    fn begin(&mut self, now_ns: u64, key: RowKey, is_asked: bool) -> Ticket {
        let index = self.free_fetches.pop().expect("room was looked for");
        let fetch = &mut self.fetches[index as usize];
        *fetch = Fetch {
            key,
            state: State::Queued,
            is_asked,
            is_wanted: false,
            turn: fetch.turn,
            place: NONE,
            wait: NONE,
            since_ns: now_ns,
        };
        self.rows.insert(key, index, &self.fetches);
        self.prefetched += 1;
        self.counters.fetched += 1;
        self.counters.asked += u64::from(is_asked);
        let ticket = self.ticket(index);
        self.note_age(ticket);
        ticket
    }

    /// A row waits for its turn, no longer than all others do.
    fn note_age(&mut self, ticket: Ticket) {
        let fetch = &self.fetches[ticket.index as usize];
        let since_ns = fetch.since_ns;
        if fetch.is_asked {
            let look_ns = since_ns.saturating_add(self.limits.budget_ns);
            self.look_later(ticket, look_ns);
        } else {
            push(&mut self.by_age, (ticket, since_ns), |entry| {
                waits(&self.fetches, entry)
            });
        }
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

    fn now_ready(&mut self, bag: BagId) {
        push(&mut self.ready, bag, |b| is_parked(&self.bags, b));
    }

    /// The next bag that waits for nothing any more. It keeps its places until it is given to [`Fetches::release`].
    pub fn next_ready(&mut self) -> Option<Ready> {
        while let Some(bag) = self.ready.pop_front() {
            if is_parked(&self.bags, bag) {
                let outcome = self.bags[bag.index as usize].outcome;
                return Some(Ready { bag, outcome });
            }
        }
        None
    }

    /// A parked bag is pooled, or given up: its places are free for others as far as no other bag waits with them. `places` is
    /// what [`Fetches::park`] has made of its rows.
    ///
    /// # Panics
    /// If it is not parked any more.
    pub fn release(&mut self, bag: BagId, places: &[u32]) {
        assert!(is_parked(&self.bags, bag), "a bag is released once");
        let record = &mut self.bags[bag.index as usize];
        record.parked = false;
        record.turn = record.turn.wrapping_add(1);
        self.free_bags.push(bag.index);
        for &place in places {
            self.slab.release(place);
        }
    }
}

fn is_live(fetches: &[Fetch], ticket: Ticket) -> bool {
    let fetch = &fetches[ticket.index as usize];
    fetch.turn == ticket.turn && fetch.state != State::Free
}

fn is_parked(bags: &[Bag], bag: BagId) -> bool {
    let record = &bags[bag.index as usize];
    record.turn == bag.turn && record.parked
}

/// Whether a row is on its way and not yet taken out.
fn is_queued(fetches: &[Fetch], ticket: Ticket) -> bool {
    let fetch = &fetches[ticket.index as usize];
    fetch.turn == ticket.turn && fetch.state == State::Queued
}

/// Whether a row is still to be read for nobody.
fn is_unwanted(fetches: &[Fetch], ticket: Ticket) -> bool {
    is_queued(fetches, ticket) && !fetches[ticket.index as usize].is_wanted
}

/// Whether a row has waited for its turn since then.
fn waits(fetches: &[Fetch], (ticket, since_ns): (Ticket, u64)) -> bool {
    is_queued(fetches, ticket) && fetches[ticket.index as usize].since_ns == since_ns
}

/// Adds to a queue with room for twice of what can be true at a time; what is not true any more makes way.
fn push<T: Copy>(queue: &mut VecDeque<T>, entry: T, is_true: impl Fn(T) -> bool) {
    if queue.len() == queue.capacity() {
        queue.retain(|&entry| is_true(entry));
    }
    queue.push_back(entry);
}
