//! Several workers: a row is fetched once, by the worker that writes its shard, and all who want it hear of it.

mod advance;
mod shelf;
mod silence;
mod threads;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use proptest::prelude::*;
use proptest::sample::Index;
use rowmill_arena::HugePages;
use rowmill_cache::fetch::{BagId, Lane, Limits};
use rowmill_cache::store::{MISS, Shape, Tags, Worker as Turns};
use rowmill_cache::tier::TierError;
use rowmill_cache::{
    CachedTable, OnFailure, Options, Parts, Shares, TableOptions, Worker, workers_with_shares,
};
use shelf::{Book, Fate, ROW_BYTES, Shelf, TABLES, bytes, fate};

const ROWS: u32 = 300;
const BAG: usize = 5;
/// Sets of a shard that a store may have.
const MOST_SETS: u32 = 12;

const LIMITS: Limits = Limits {
    staged: 12,
    longest: 5,
    prefetched: 3,
    asked: 3,
    bags: 6,
    row_bytes: ROW_BYTES,
    budget_ns: 1000,
};

/// Workers over tiers that fetch `room` rows at a time, and how often each was woken.
fn made(
    count: usize,
    limits: Limits,
    room: usize,
    seed: u64,
    wakes: Vec<Box<dyn Fn() + Send + Sync>>,
) -> (Vec<(Turns, Worker)>, Arc<Mutex<Book>>, Shares) {
    // Two shards for one of the workers.
    let shards = count as u32 + 1;
    let shape = Shape::new(32 * shards, shards, ROW_BYTES, ROW_BYTES).expect("a shape");
    let tables: Vec<Option<TableOptions>> = (0..TABLES + 1)
        .map(|in_tier| {
            (in_tier < TABLES).then_some(TableOptions {
                // One is not, with some seeds.
                begins_cached: in_tier != 1 || !seed.is_multiple_of(4),
                shape,
                most_sets: MOST_SETS,
                most_patched: 0,
                in_tier,
                on_failure: OnFailure::Error,
            })
        })
        .collect();
    let options = Options {
        limits,
        limbo: 4,
        tags: Tags::detect(),
        huge_pages: HugePages::Off,
        seed,
    };
    let book = Arc::new(Mutex::new(Book::default()));
    let parts = wakes.into_iter().enumerate();
    let parts = parts.map(|(worker, wake)| Parts {
        tier: Box::new(Shelf::new(worker, Arc::clone(&book), room, seed)),
        wake,
    });
    let made = workers_with_shares(&options, &tables, parts.collect());
    let (made, shares) = made.expect("memory");
    (made, book, shares)
}

fn no_wakes(count: usize) -> Vec<Box<dyn Fn() + Send + Sync>> {
    (0..count).map(|_| Box::new(|| ()) as _).collect()
}

#[derive(Clone, Debug)]
enum Op {
    /// Looks a bag of a table up; parks it if it misses rows.
    LookUp(Index, u32, Vec<u32>),
    Poll(Index),
    Wait(u64),
    /// A parked bag is given up.
    GiveUp(Index, Index),
    Prefetch(Index, u32, Vec<u32>),
    /// Sleeps until it is woken, if it may.
    Sleep(Index),
    /// A table becomes cached, or is so no more, unless workers are still to hear of a change of it.
    Change(u32),
    /// A worker hears of it.
    Hear(Index, u32),
}

fn op() -> impl Strategy<Value = Op> {
    let index = any::<Index>;
    // Few, so that many want the same.
    let rows = || prop::collection::vec(prop_oneof![2 => 0..20u32, 1 => 0..ROWS], 0..=BAG);
    prop_oneof![
        6 => (index(), 0..TABLES, rows()).prop_map(|(w, table, rows)| Op::LookUp(w, table, rows)),
        10 => index().prop_map(Op::Poll),
        1 => (0..200u64).prop_map(Op::Wait),
        1 => (index(), index()).prop_map(|(w, bag)| Op::GiveUp(w, bag)),
        1 => (index(), 0..TABLES, rows()).prop_map(|(w, table, rows)| Op::Prefetch(w, table, rows)),
        1 => index().prop_map(Op::Sleep),
        1 => (0..TABLES).prop_map(Op::Change),
        4 => (index(), 0..TABLES).prop_map(|(w, table)| Op::Hear(w, table)),
    ]
}

struct Parked {
    rows: Vec<u32>,
    places: Vec<u32>,
    table: u32,
    since: u64,
}

/// The rows of tables that are not cached.
fn resident() -> &'static HashMap<(u32, u32), [u8; ROW_BYTES]> {
    static ROWS_THERE: LazyLock<HashMap<(u32, u32), [u8; ROW_BYTES]>> = LazyLock::new(|| {
        let keys = (0..TABLES).flat_map(|table| (0..ROWS).map(move |row| (table, row)));
        keys.map(|(table, row)| ((table, row), bytes(table, row)))
            .collect()
    });
    &ROWS_THERE
}

/// A worker as a test has it.
struct Seat {
    turns: Turns,
    worker: Worker,
    parked: HashMap<BagId, Parked>,
    asleep: bool,
    woken: Arc<AtomicUsize>,
    book: Arc<Mutex<Book>>,
}

impl Seat {
    /// Looks a bag up. Returns whether it misses no row.
    fn look_up(&mut self, now: u64, table: u32, rows: &[u32]) -> bool {
        let mut places = vec![0; rows.len()];
        let turn = self.turns.turn();
        let (found, mut parker) = self.worker.find(turn, table as usize, rows, &mut places);
        let mut copy = [0; ROW_BYTES];
        for (position, (&row, &place)) in rows.iter().zip(found.places()).enumerate() {
            if place != MISS {
                found.copy_row(position, &mut copy);
                assert_eq!(copy, bytes(table, row), "row {row} in slot {place}");
            }
        }
        if found.misses() == 0 {
            return true;
        }
        let mut staged = rows.to_vec();
        if let Some(bag) = parker.park(now, Lane::default(), &mut staged, &found, 0) {
            let parked = Parked {
                rows: rows.to_vec(),
                places: staged,
                table,
                since: now,
            };
            self.parked.insert(bag, parked);
        }
        false
    }

    /// Polls, and pools what is ready. Returns how many bags had all their rows, and how many not.
    fn poll(&mut self, now: u64) -> (usize, usize) {
        self.turns.pass();
        let (mut pooled, mut failed) = (0, 0);
        if !self.worker.has_work() {
            return (0, 0);
        }
        let has_resident = self.book.lock().unwrap().has_resident;
        if has_resident {
            self.worker.answer_resident(|table, row, out| {
                let bytes = resident().get(&(table as u32, row))?;
                out[..bytes.len()].copy_from_slice(bytes);
                Some(bytes.len())
            });
        }
        self.worker.poll(now);
        while let Some(ready) = self.worker.next_ready() {
            let bag = self.parked.remove(&ready.bag).expect("it is parked");
            let some = |wanted: Fate| bag.rows.iter().any(|&row| fate(row) == wanted);
            match ready.outcome {
                Ok(()) => {
                    let comes = !some(Fate::Fails) && !some(Fate::Never);
                    assert!(comes || has_resident, "{:?}", bag.rows);
                    let (staging, stride, _) = self.worker.staging();
                    for (&row, &place) in bag.rows.iter().zip(&bag.places) {
                        let mut copy = [0; ROW_BYTES];
                        let staged = staging.part(place as usize * stride, ROW_BYTES);
                        staged.expect("a place").read(0, &mut copy);
                        assert_eq!(copy, bytes(bag.table, row), "row {row}");
                    }
                    pooled += 1;
                }
                Err(TierError::Gone) => {
                    assert!(some(Fate::Fails), "{:?}", bag.rows);
                    failed += 1;
                }
                // Somebody may have wanted a row of it before.
                Err(error) => {
                    assert_eq!(error, TierError::Late);
                    assert!(some(Fate::Never) || now >= LIMITS.budget_ns);
                    failed += 1;
                }
            }
            self.worker.release(ready.bag, &bag.places);
        }
        // For its turn to be asked for, and for the answer, each looked at once a budget.
        let most = 6 * LIMITS.budget_ns;
        let answered = self.book.lock().unwrap().answered;
        let late = |bag: &Parked| now >= bag.since.max(answered) + most;
        assert!(!self.parked.values().any(late), "nobody waits for longer");
        (pooled, failed)
    }
}

fn seats(count: usize, limits: Limits, room: usize, seed: u64) -> (Vec<Seat>, Arc<Mutex<Book>>) {
    let (seats, book, _) = seats_with_shares(count, limits, room, seed);
    (seats, book)
}

fn seats_with_shares(
    count: usize,
    limits: Limits,
    room: usize,
    seed: u64,
) -> (Vec<Seat>, Arc<Mutex<Book>>, Shares) {
    let woken: Vec<Arc<AtomicUsize>> = (0..count).map(|_| Arc::default()).collect();
    let wake = |woken: &Arc<AtomicUsize>| {
        let woken = Arc::clone(woken);
        let wake = move || _ = woken.fetch_add(1, Ordering::Relaxed);
        Box::new(wake) as Box<dyn Fn() + Send + Sync>
    };
    let (made, book, shares) = made(count, limits, room, seed, woken.iter().map(wake).collect());
    let seat = |((turns, worker), woken)| Seat {
        turns,
        worker,
        parked: HashMap::new(),
        asleep: false,
        woken,
        book: Arc::clone(&book),
    };
    let seats = made.into_iter().zip(woken).map(seat).collect();
    (seats, book, shares)
}

/// Polls all of them, each time `step` nanoseconds later, until nothing is left to do.
fn settle(seats: &mut [Seat], now: &mut u64, step: u64) {
    for _ in 0..1000 {
        if seats.iter().all(|seat| seat.worker.is_idle()) {
            return;
        }
        *now += step;
        seats.iter_mut().for_each(|seat| _ = seat.poll(*now));
    }
    panic!("there is always something left to do");
}

/// A change of where a table is, that some workers have heard of.
#[derive(Default)]
struct Change {
    /// What each worker is to have, until it has it.
    parts: Vec<Option<Option<CachedTable>>>,
    /// What they had.
    old: Vec<Option<CachedTable>>,
}

impl Change {
    fn begin(&mut self, shares: &Shares, table: u32, seats: &[Seat]) {
        if self.parts.iter().any(Option::is_some) {
            return;
        }
        self.old.clear();
        let is_cached = seats[0].worker.is_cached(table as usize);
        self.parts = match is_cached {
            true => seats.iter().map(|_| Some(None)).collect(),
            false => {
                let tables = shares.table(table as usize).expect("memory");
                tables.into_iter().map(|part| Some(Some(part))).collect()
            }
        };
    }

    fn hear(&mut self, worker: usize, table: u32, seat: &mut Seat) {
        if let Some(part) = self.parts.get_mut(worker).and_then(Option::take) {
            self.old.push(seat.worker.replace(table as usize, part));
        }
    }
}

fn run(count: usize, room: usize, seed: u64, ops: Vec<Op>) {
    let (mut seats, book, shares) = seats_with_shares(count, LIMITS, room, seed);
    book.lock().unwrap().has_resident = seed.is_multiple_of(3);
    let mut changes: Vec<Change> = (0..TABLES).map(|_| Change::default()).collect();
    let mut now = 0;
    for op in ops {
        for seat in &mut seats {
            seat.asleep &= seat.woken.load(Ordering::Relaxed) == 0;
        }
        let seat = |which: Index| which.index(count);
        match op {
            Op::LookUp(worker, table, rows) => {
                let seat = &mut seats[seat(worker)];
                if seat.worker.is_cached(table as usize) {
                    seat.asleep = false;
                    seat.look_up(now, table, &rows);
                }
            }
            Op::Poll(worker) => {
                let seat = &mut seats[seat(worker)];
                if !seat.asleep {
                    seat.poll(now);
                }
            }
            Op::Wait(time) => {
                now += time;
                // A worker that others wait for is not away for long.
                let awake = seats.iter_mut().filter(|seat| !seat.asleep);
                awake.for_each(|seat| _ = seat.poll(now));
            }
            Op::GiveUp(worker, bag) => {
                let seat = &mut seats[seat(worker)];
                let mut bags: Vec<BagId> = seat.parked.keys().copied().collect();
                bags.sort_by_key(|bag| bag.number());
                if !bags.is_empty() {
                    let bag = bags[bag.index(bags.len())];
                    let parked = seat.parked.remove(&bag).expect("it is parked");
                    seat.worker.release(bag, &parked.places);
                }
            }
            Op::Prefetch(worker, table, rows) => {
                let seat = &mut seats[seat(worker)];
                if seat.worker.is_cached(table as usize) {
                    seat.worker.prefetch(table as usize, &rows);
                }
            }
            Op::Change(table) => changes[table as usize].begin(&shares, table, &seats),
            Op::Hear(worker, table) => {
                let worker = seat(worker);
                changes[table as usize].hear(worker, table, &mut seats[worker]);
            }
            Op::Sleep(worker) => {
                let seat = &mut seats[seat(worker)];
                if !seat.worker.has_work() && seat.worker.rest() {
                    seat.turns.rest();
                    seat.asleep = true;
                    seat.woken.store(0, Ordering::Relaxed);
                }
            }
        }
        // Who sleeps has nothing to do, or was woken once.
        for seat in seats.iter().filter(|seat| seat.asleep) {
            let woken = seat.woken.load(Ordering::Relaxed);
            assert_eq!(woken, usize::from(!seat.worker.is_idle()));
        }
    }
    // What comes, comes now; what does not is late then.
    for _ in 0..100 {
        seats.iter_mut().for_each(|seat| _ = seat.poll(now));
    }
    settle(&mut seats, &mut now, LIMITS.budget_ns / 10);
    for seat in &seats {
        assert!(seat.parked.is_empty());
        assert_eq!((seat.worker.held(), seat.worker.asked()), ((0, 0), 0));
    }
    let is_nothing_read = book.lock().unwrap().fetching.is_empty();
    assert!(is_nothing_read || book.lock().unwrap().has_resident);
    silence::assert_counted_once(&seats);
    let asked: u64 = seats.iter().map(|s| s.worker.fetch_counters().asked).sum();
    let taken: u64 = seats.iter().map(|s| s.worker.counters().asked).sum();
    assert!(taken <= asked, "{taken} of {asked}");
    assert!(count > 1 || asked == 0);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) })]
    #[test]
    fn a_row_is_fetched_once_whoever_wants_it(
        count in 1..5usize, room in 1..9usize, seed: u64, ops in prop::collection::vec(op(), 0..200),
    ) {
        run(count, room, seed, ops);
    }
}

#[test]
fn what_all_want_at_once_is_fetched_once_and_all_have_it_then() {
    let limits = Limits {
        staged: 100,
        asked: 100,
        bags: 100,
        ..LIMITS
    };
    let (mut seats, book) = seats(4, limits, 100, 5);
    let rows: Vec<u32> = (0..60).filter(|&row| fate(row) == Fate::Comes).collect();
    for seat in &mut seats {
        for bag in rows.chunks(BAG) {
            assert!(!seat.look_up(0, 1, bag));
        }
    }
    settle(&mut seats, &mut 0, 0);
    assert_eq!(book.lock().unwrap().begun, rows.len());
    let wanted = 4 * rows.len() as u64;
    let fetched = |seat: &Seat| {
        let counters = seat.worker.fetch_counters();
        (counters.fetched, counters.joined)
    };
    let sums = seats.iter().map(fetched);
    let (fetched, joined) = sums.fold((0, 0), |sums, one| (sums.0 + one.0, sums.1 + one.1));
    let asked: u64 = seats.iter().map(|s| s.worker.fetch_counters().asked).sum();
    assert_eq!((fetched - asked, fetched), (rows.len() as u64, wanted));
    assert_eq!(asked, 3 * rows.len() as u64);
    assert!(
        joined > rows.len() as u64,
        "{joined} asks found a row on its way"
    );
    // They are in the store now, whoever asks.
    for seat in &mut seats {
        let there = rows.chunks(BAG).filter(|bag| seat.look_up(0, 1, bag));
        assert!(there.count() > 0);
    }
}

#[test]
fn more_is_asked_than_one_poll_takes() {
    let limits = Limits {
        staged: 600,
        asked: 500,
        bags: 120,
        ..LIMITS
    };
    let (mut seats, book) = seats(2, limits, 400, 3);
    let rows: Vec<u32> = (0..400).map(|i| i * 10).collect();
    // The first worker writes two of three shards.
    for bag in rows.chunks(BAG) {
        seats[1].look_up(0, 0, bag);
    }
    settle(&mut seats, &mut 0, 0);
    assert!(seats[1].worker.fetch_counters().asked > 150);
    assert_eq!(book.lock().unwrap().begun, rows.len());
}

/// Workers whose staging is full of bags that wait for one another's rows go on, and others' asks find room.
#[test]
fn workers_that_wait_for_one_another_go_on() {
    let limits = Limits { asked: 1, ..LIMITS };
    let (mut seats, _) = seats(3, limits, 1, 8);
    let (mut pooled, mut parked) = (0, 0);
    for round in 0..200u32 {
        for seat in &mut seats {
            // As many bags as there is room for, of rows that are with all workers.
            for bag in 0..4 {
                let row = |i: u32| (round * 13 + bag * 5 + i * 7) % 500 * 10;
                let rows: Vec<u32> = (0..3).map(row).collect();
                let before = seat.parked.len();
                seat.look_up(0, 0, &rows);
                parked += seat.parked.len() - before;
            }
        }
        // Rows are asked for, and get their slots.
        for seat in [0, 1, 2, 0, 1, 2] {
            pooled += seats[seat].poll(0).0;
        }
    }
    settle(&mut seats, &mut 0, 0);
    assert!(seats.iter().all(|seat| seat.parked.is_empty()));
    assert!(parked > 100 && pooled > parked / 2, "{pooled} of {parked}");
}

#[test]
fn a_failure_reaches_all_who_want_the_row() {
    let (mut seats, book) = seats(3, LIMITS, 8, 2);
    for seat in &mut seats {
        seat.look_up(0, 0, &[13]);
        seat.look_up(0, 0, &[7]);
        seat.look_up(0, 0, &[1]);
    }
    let mut outcomes = [(0, 0); 3];
    for now in [0; 50].into_iter().chain([1000, 1000, 1000]) {
        for (seat, sums) in seats.iter_mut().zip(&mut outcomes) {
            let (pooled, failed) = seat.poll(now);
            *sums = (sums.0 + pooled, sums.1 + failed);
        }
    }
    assert_eq!(outcomes, [(1, 2); 3]);
    assert_eq!(book.lock().unwrap().begun, 3);
    settle(&mut seats, &mut 1000, 100);
}

#[test]
fn nothing_is_allocated_after_the_start() {
    let (mut made, book, _) = made(2, LIMITS, 8, 1, no_wakes(2));
    // What the book notes is not the cache's.
    book.lock().unwrap().reserve();
    let (mut pooled, mut parked) = (0, 0);
    let counted = allocation_counter::measure(|| {
        for round in 0..6000u32 {
            for (turns, worker) in &mut made {
                let rows = [round % 500 * 10, round * 7 % 500 * 10];
                let (mut places, mut staged) = ([0; 2], rows);
                let turn = turns.turn();
                let (found, mut parker) = worker.find(turn, 0, &rows, &mut places);
                pooled += usize::from(found.misses() == 0);
                let bag = (found.misses() > 0)
                    .then(|| parker.park(0, Lane::default(), &mut staged, &found, 0));
                // Ready or not, it is given up at once, and its rows come.
                if let Some(bag) = bag.flatten() {
                    worker.release(bag, &staged);
                    parked += 1;
                }
                worker.prefetch(1, &rows);
                if worker.has_work() {
                    worker.poll(u64::from(round));
                }
            }
        }
    });
    let asked: u64 = made.iter().map(|(_, w)| w.fetch_counters().asked).sum();
    assert!(
        pooled > 100 && parked > 500 && asked > 500,
        "{pooled}, {parked}, {asked}"
    );
    assert_eq!(counted.count_total, 0);
}
