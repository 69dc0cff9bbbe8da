//! Fetches beside a slow oracle: every bag gets the bytes of its rows, or hears why not, and all memory comes back.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use rowmill_cache::fetch::{BagId, Fetches, Lane, Limits, READ_AHEAD, Read, Source};
use rowmill_cache::tier::TierError;

const LIMITS: Limits = Limits {
    staged: 12,
    longest: 6,
    prefetched: 3,
    asked: 0,
    bags: 4,
    row_bytes: 8,
    budget_ns: 100,
};
const TABLES: u32 = 2;
/// Rows that other workers ask for at a time.
const ASKS: u32 = 2;

/// Which rows other workers have.
fn source(row: u32) -> Source {
    if row.is_multiple_of(3) {
        Source::Owner
    } else {
        Source::Tier
    }
}

/// The bytes of a row.
fn row(table: u32, row: u32) -> [u8; 8] {
    (u64::from(table) << 32 | u64::from(row)).to_le_bytes()
}

#[derive(Clone, Debug)]
enum Op {
    /// A bag of rows of a table, by some client; whether the cache has each.
    Park(u32, u32, Vec<(u32, bool)>),
    Prefetch(u32, u32),
    /// Another worker asks for a row, if it can.
    Ask(u32, u32),
    /// Takes out what is to be read; some is put back.
    TakeReads(usize, bool),
    /// One of those that were taken out comes, or fails.
    Arrive(prop::sample::Index, Option<TierError>),
    /// Time passes.
    Wait(u64),
    /// Bags that are ready are pooled.
    Pool,
    /// A parked bag is given up.
    GiveUp(prop::sample::Index),
}

fn op() -> impl Strategy<Value = Op> {
    let rows = prop::collection::vec((0..20u32, prop::bool::weighted(0.3)), 0..=6);
    let failure = prop::option::weighted(
        0.2,
        prop::sample::select(&[TierError::Gone, TierError::Os(5)][..]),
    );
    prop_oneof![
        4 => (0..3u32, 0..TABLES, rows).prop_map(|(client, table, rows)| Op::Park(client, table, rows)),
        2 => (0..TABLES, 0..20u32).prop_map(|(table, row)| Op::Prefetch(table, row)),
        2 => (0..TABLES, 0..20u32).prop_map(|(table, row)| Op::Ask(table, row)),
        3 => (0..6usize, prop::bool::weighted(0.2)).prop_map(|(most, back)| Op::TakeReads(most, back)),
        6 => (any::<prop::sample::Index>(), failure).prop_map(|(which, failure)| Op::Arrive(which, failure)),
        1 => (0..60u64).prop_map(Op::Wait),
        3 => Just(Op::Pool),
        1 => any::<prop::sample::Index>().prop_map(Op::GiveUp),
    ]
}

/// A parked bag as the oracle sees it.
struct Parked {
    table: u32,
    rows: Vec<u32>,
    places: Vec<u32>,
    /// Rows that it waits for.
    missing: HashSet<u32>,
    outcome: Result<(), TierError>,
}

/// A row on its way.
#[derive(Clone, Copy)]
struct Fetching {
    /// Since when it waits for its turn, or was taken out.
    since: u64,
    /// Whether a bag has wanted it.
    wanted: bool,
    is_out: bool,
}

#[derive(Default)]
struct Oracle {
    fetching: HashMap<(u32, u32), Fetching>,
    /// When the tier last answered, of each table too, whether a row of it was late since, and when the other workers' tiers answered.
    heard: u64,
    heard_of: [u64; TABLES as usize],
    is_silent: [bool; TABLES as usize],
    others_heard: u64,
    bags: HashMap<BagId, Parked>,
    /// The row of each ask that waits.
    asks: HashMap<u32, (u32, u32)>,
}

impl Oracle {
    /// Those who asked for one of these rows are told, and no others.
    fn tell(&mut self, fetches: &mut Fetches, keys: &[(u32, u32)]) {
        while let Some(ask) = fetches.next_told() {
            let key = self.asks.remove(&ask).expect("an ask is told once");
            assert!(keys.contains(&key), "ask {ask} is for another row");
        }
        let waits = self.asks.values().any(|key| keys.contains(key));
        assert!(!waits, "all who asked for it are told");
    }

    fn end(&mut self, key: (u32, u32), outcome: Result<(), TierError>) {
        self.fetching.remove(&key);
        for bag in self.bags.values_mut().filter(|bag| bag.table == key.0) {
            if bag.missing.remove(&key.1) {
                bag.outcome = bag.outcome.and(outcome);
            }
        }
    }

    /// From when on a row can be given up.
    fn hopeless(&self, key: (u32, u32), row: Fetching) -> u64 {
        let budget = LIMITS.budget_ns;
        match (source(key.1), row.is_out) {
            (Source::Owner, false) => row.since.max(self.others_heard) + budget,
            (Source::Owner, true) => row.since.max(self.others_heard) + 3 * budget,
            (_, false) if self.is_silent[key.0 as usize] => {
                row.since.max(self.heard_of[key.0 as usize]) + budget
            }
            (_, false) => row.since.max(self.heard) + budget,
            // That is the tier's to say.
            (_, true) => u64::MAX,
        }
    }

    /// Rows for which there is no hope any more, for so long.
    fn without_hope(&self, now: u64, is_owners: bool) -> usize {
        let is_over = |(&key, &row): (&(u32, u32), &Fetching)| {
            (source(key.1) == Source::Owner) == is_owners && self.hopeless(key, row) <= now
        };
        self.fetching
            .iter()
            .filter(|&(key, row)| is_over((key, row)))
            .count()
    }

    /// Both give up what waits in vain, some at a time.
    fn expire(&mut self, now: u64, fetches: &mut Fetches) {
        loop {
            let (before, mut left) = (self.fetching.len(), 2);
            let others_heard = self.others_heard;
            let late = fetches.next_late(now, &mut left, |_, _| (others_heard, false));
            let Some(ticket) = late else {
                if left == 0 {
                    continue;
                }
                break;
            };
            let key = fetches.row(ticket).expect("it is on its way");
            fetches.give_up(ticket);
            let row = self.fetching[&key];
            assert!(self.hopeless(key, row) <= now, "there is hope for {key:?}");
            self.tell(fetches, &[key]);
            self.end(key, Err(TierError::Late));
            assert_eq!(self.fetching.len(), before - 1);
        }
        assert_eq!(self.without_hope(now, false), 0, "all is given up in time");
        // Those of others are looked at once a budget, and here not all the time.
        let long = now.saturating_sub(2 * LIMITS.budget_ns);
        assert_eq!(self.without_hope(long, true), 0, "all is given up in time");
    }

    /// A row is wanted: from then on it has its time.
    fn want(&mut self, now: u64, key: (u32, u32)) {
        let new = Fetching {
            since: now,
            wanted: true,
            is_out: false,
        };
        let row = self.fetching.entry(key).or_insert(new);
        if !row.wanted {
            row.wanted = true;
            if !row.is_out {
                row.since = now;
            }
        }
    }

    /// What the tier has not answered in time is late.
    fn answer_late(&mut self, now: u64, fetches: &mut Fetches, reads: &mut Vec<Read>) {
        let is_late = |read: &mut Read| source(read.row) == Source::Tier && read.deadline_ns <= now;
        for read in reads.extract_if(.., is_late) {
            let outcome = Err(TierError::Late);
            let key = (read.table, read.row);
            fetches.heard(now, read.table, outcome.map(|_| ()));
            self.is_silent[read.table as usize] = true;
            let silent_since = fetches.silent_since(read.table);
            assert_eq!(silent_since, Some(self.heard_of[read.table as usize]));
            assert_eq!(fetches.arrived(read.ticket, outcome), Some(read.table));
            self.tell(fetches, &[key]);
            self.end(key, Err(TierError::Late));
        }
    }

    /// Rows that nobody wants yet, of all tables and of one.
    fn prefetched(&self, table: u32) -> (u32, u32) {
        let unwanted = || self.fetching.iter().filter(|(_, row)| !row.wanted);
        let own = unwanted().filter(|(key, _)| key.0 == table);
        (unwanted().count() as u32, own.count() as u32)
    }
}

/// Pools what is ready: as the oracle expects, with the bytes of its rows.
fn pool(fetches: &mut Fetches, oracle: &mut Oracle) {
    while let Some(ready) = fetches.next_ready() {
        let bag = oracle.bags.remove(&ready.bag).expect("a parked bag");
        assert!(bag.missing.is_empty(), "it waits for nothing");
        assert_eq!(ready.outcome.is_ok(), bag.outcome.is_ok());
        if ready.outcome.is_ok() {
            for (&number, &place) in bag.rows.iter().zip(&bag.places) {
                let at = place as usize * fetches.stride();
                assert_eq!(&fetches.staging()[at..at + 8], &row(bag.table, number));
            }
        }
        fetches.release(ready.bag, &bag.places);
    }
    assert!(
        oracle.bags.values().all(|bag| !bag.missing.is_empty()),
        "who waits for nothing is ready"
    );
}

fn run(ops: Vec<Op>) {
    let mut fetches = Fetches::new(LIMITS, ASKS, &[true; TABLES as usize], 3);
    let (mut oracle, mut reads, mut now) = (Oracle::default(), Vec::<Read>::new(), 0);
    for op in ops {
        match op {
            Op::Park(client, table, rows) => {
                let numbers: Vec<u32> = rows.iter().map(|&(number, _)| number).collect();
                let mut places = numbers.clone();
                let bag = fetches.park(
                    now,
                    Lane::of(client),
                    table,
                    &mut places,
                    |at, asked, out| {
                        let (number, hit) = rows[at];
                        assert_eq!(asked, number);
                        if !hit {
                            return source(number);
                        }
                        out.copy_from_slice(&row(table, number));
                        Source::Store
                    },
                );
                let Some(bag) = bag else {
                    assert_eq!(places, numbers, "nothing has changed");
                    assert!(
                        !oracle.bags.is_empty() || fetches.staged() > 0,
                        "an empty one has room"
                    );
                    continue;
                };
                let missing: HashSet<u32> = rows
                    .iter()
                    .filter(|(_, hit)| !hit)
                    .map(|&(number, _)| number)
                    .collect();
                for &number in &missing {
                    oracle.want(now, (table, number));
                }
                let parked = Parked {
                    table,
                    rows: numbers,
                    places,
                    missing,
                    outcome: Ok(()),
                };
                assert!(
                    oracle.bags.insert(bag, parked).is_none(),
                    "no two have one name"
                );
            }
            Op::Prefetch(table, number) => {
                if source(number) == Source::Owner {
                    continue; // That is for its owner to do.
                }
                let (all, own) = oracle.prefetched(table);
                let has_any = all < LIMITS.prefetched;
                assert_eq!(fetches.can_prefetch(), has_any);
                let known = oracle.fetching.contains_key(&(table, number));
                // One is each table's own, and the third either's.
                let room = own == 0 || (own == 1 && all - own <= 1);
                assert_eq!(fetches.prefetch(now, table, number), known || room);
                if !known && room {
                    let row = Fetching {
                        since: now,
                        wanted: false,
                        is_out: false,
                    };
                    oracle.fetching.insert((table, number), row);
                }
            }
            Op::Ask(table, number) => {
                let free = (0..ASKS).find(|ask| !oracle.asks.contains_key(ask));
                if let Some(ask) = free.filter(|_| source(number) != Source::Owner) {
                    fetches.ask(now, Lane::of(ask), table, number, ask);
                    oracle.asks.insert(ask, (table, number));
                    oracle.want(now, (table, number));
                }
            }
            Op::TakeReads(most, back) => {
                for number in 0..most {
                    let is_asked = number % 2 == 0;
                    let read = if is_asked {
                        fetches.next_ask(now)
                    } else {
                        fetches.next_read(now)
                    };
                    let Some(read) = read else {
                        continue;
                    };
                    assert_eq!(source(read.row) == Source::Owner, is_asked);
                    let key = (read.table, read.row);
                    let waits = oracle.fetching[&key];
                    assert!(!waits.is_out, "a row is taken out once");
                    let others = oracle.fetching.iter().any(|(&(_, row), fetching)| {
                        fetching.wanted && !fetching.is_out && source(row) == Source::Tier
                    });
                    assert!(waits.wanted || !others, "what bags wait for goes first");
                    assert_eq!(read.deadline_ns, now + LIMITS.budget_ns);
                    if back {
                        fetches.put_back(read);
                        break;
                    }
                    let row = oracle.fetching.get_mut(&key).expect("it is to be read");
                    row.is_out = true;
                    if is_asked {
                        row.since = now;
                    }
                    // One of another worker can be asked for again while the first answer has still to come.
                    reads.push(read);
                }
            }
            Op::Arrive(which, failure) => {
                if reads.is_empty() {
                    continue;
                }
                let read = reads.swap_remove(which.index(reads.len()));
                let bytes = row(read.table, read.row);
                let outcome = failure.map_or(Ok(&bytes[..]), Err);
                if source(read.row) == Source::Owner {
                    oracle.others_heard = now;
                    fetches.heard_owner(now);
                } else {
                    let table = read.table as usize;
                    fetches.heard(now, read.table, outcome.map(|_| ()));
                    oracle.heard = now;
                    (oracle.heard_of[table], oracle.is_silent[table]) = (now, false);
                }
                if let Some(table) = fetches.arrived(read.ticket, outcome) {
                    assert_eq!(table, read.table);
                    oracle.tell(&mut fetches, &[(read.table, read.row)]);
                    oracle.end((read.table, read.row), outcome.map(|_| ()));
                }
                assert!(
                    fetches.arrived(read.ticket, outcome).is_none(),
                    "an answer counts once"
                );
            }
            Op::Wait(time) => {
                now += time;
                oracle.answer_late(now, &mut fetches, &mut reads);
                oracle.expire(now, &mut fetches);
            }
            Op::Pool => pool(&mut fetches, &mut oracle),
            Op::GiveUp(which) => {
                let mut bags: Vec<BagId> = oracle.bags.keys().copied().collect();
                bags.sort_by_key(|bag| format!("{bag:?}"));
                if !bags.is_empty() {
                    let bag = bags[which.index(bags.len())];
                    let parked = oracle.bags.remove(&bag).expect("it is parked");
                    fetches.release(bag, &parked.places);
                }
            }
        }
        assert_eq!(fetches.on_the_way(), oracle.fetching.len());
        let wanted = oracle.fetching.values().filter(|row| row.wanted).count();
        let staged = fetches.staged() + oracle.asks.len();
        assert!(staged >= wanted, "each that a bag waits for has a place");
    }
    // All that waits in vain is given up, and nothing is held any more.
    for _ in 0..5 {
        now += LIMITS.budget_ns;
        oracle.answer_late(now, &mut fetches, &mut reads);
        oracle.expire(now, &mut fetches);
    }
    assert!(oracle.asks.is_empty(), "all asks are told");
    pool(&mut fetches, &mut oracle);
    assert!(oracle.bags.is_empty());
    assert_eq!((fetches.staged(), fetches.on_the_way()), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn bags_get_their_rows_or_hear_why_not(ops in prop::collection::vec(op(), 0..120)) {
        run(ops);
    }
}

#[test]
fn a_row_is_read_once_however_many_bags_want_it() {
    let mut fetches = Fetches::new(LIMITS, ASKS, &[true; TABLES as usize], 1);
    let (mut first, mut second) = ([5, 6, 5], [6, 7]);
    let tier = |_, _, _: &mut [u8]| Source::Tier;
    let a = fetches
        .park(0, Lane::default(), 0, &mut first, tier)
        .expect("room");
    let b = fetches
        .park(0, Lane::default(), 0, &mut second, tier)
        .expect("room");
    let reads: Vec<Read> = core::iter::from_fn(|| fetches.next_read(0)).collect();
    assert_eq!(
        reads.iter().map(|read| read.row).collect::<Vec<_>>(),
        [5, 6, 7]
    );
    assert_eq!(
        (first[0], first[1]),
        (first[2], second[0]),
        "they share the places"
    );
    assert_eq!(fetches.staged(), 3);
    for read in &reads[..2] {
        assert_eq!(fetches.arrived(read.ticket, Ok(&row(0, read.row))), Some(0));
    }
    let ready = fetches.next_ready().expect("the first has all its rows");
    assert_eq!((ready.bag, ready.outcome), (a, Ok(())));
    assert_eq!(fetches.next_ready(), None, "the other waits for one");
    fetches.release(a, &first);
    fetches.release(b, &second);
    assert_eq!(fetches.staged(), 1, "what is still read keeps its place");
}

#[test]
fn few_rows_that_nobody_wants_are_read_at_a_time() {
    let limits = Limits {
        prefetched: 4 * READ_AHEAD,
        ..LIMITS
    };
    let mut fetches = Fetches::new(limits, ASKS, &[true, false], 1);
    for row in 0..3 * READ_AHEAD {
        assert!(fetches.prefetch(0, 0, row));
    }
    let mut reads: Vec<Read> = std::iter::from_fn(|| fetches.next_read(0)).collect();
    assert_eq!(reads.len(), READ_AHEAD as usize);
    // What came, and what somebody wants by now, makes room for one each; so does what is put back, for itself.
    let came = reads.pop().expect("a read");
    fetches.arrived(came.ticket, Ok(&row(0, came.row)));
    let tier = |_, _, _: &mut [u8]| Source::Tier;
    let bag = fetches.park(0, Lane::default(), 0, &mut [reads[0].row], tier);
    assert!(bag.is_some());
    let more: Vec<Read> = std::iter::from_fn(|| fetches.next_read(0)).collect();
    assert_eq!(more.len(), 2);
    fetches.put_back(more[1]);
    assert_eq!(fetches.next_read(0).map(|read| read.row), Some(more[1].row));
    assert!(fetches.next_read(0).is_none());
    // What is wanted is read all the same.
    fetches.ask(0, Lane::default(), 0, 1000, 0);
    let wanted = fetches.next_read(0).expect("a read");
    assert!(wanted.is_wanted && wanted.row == 1000);
}

#[test]
fn nothing_is_allocated_after_the_start() {
    let mut fetches = Fetches::new(LIMITS, ASKS, &[true; TABLES as usize], 2);
    let mut asks: Vec<u32> = (0..ASKS).collect();
    let counted = allocation_counter::measure(|| {
        for round in 0..5000u32 {
            let now = u64::from(round);
            let mut rows = [round, round / 2, round + 1];
            let bag = fetches.park(
                now,
                Lane::of(round),
                round % TABLES,
                &mut rows,
                |at, row, _| match at {
                    0 => Source::Store,
                    _ => source(row),
                },
            );
            if source(round) == Source::Tier {
                fetches.prefetch(now, 0, round);
                if let Some(ask) = asks.pop() {
                    fetches.ask(now, Lane::of(round), 1, round, ask);
                }
            }
            // Sometimes nothing is read for longer than the budget.
            while round % 600 > 200
                && let Some(read) = fetches.next_read(now).or_else(|| fetches.next_ask(now))
            {
                fetches.heard(now, read.table, Ok(()));
                fetches.arrived(read.ticket, Ok(&row(read.table, read.row)));
                asks.extend(std::iter::from_fn(|| fetches.next_told()));
            }
            // Ready or not, it is given up before anybody looks.
            if let Some(bag) = bag {
                fetches.release(bag, &rows);
            }
            while let Some(late) = fetches.next_late(now, &mut 100, |_, _| (0, false)) {
                fetches.give_up(late);
                asks.extend(std::iter::from_fn(|| fetches.next_told()));
            }
        }
    });
    assert_eq!(counted.count_total, 0);
    assert!(fetches.counters().late > 50 && fetches.counters().arrived > 5000);
}

/// Rows of tables that are not taken out, and others that are.
#[test]
fn tables_that_give_no_rows_leave_room_to_others() {
    let limits = Limits {
        staged: 100,
        prefetched: 100,
        bags: 100,
        ..LIMITS
    };
    let mut fetches = Fetches::new(limits, ASKS, &[true; 4], 4);
    let tier = |_, _, _: &mut [u8]| Source::Tier;
    let park = |fetches: &mut Fetches, now, table, row| {
        let mut rows = [row];
        let bag = fetches.park(now, Lane::default(), table, &mut rows, tier)?;
        Some((bag, rows))
    };
    // Three take all that they may, one after another.
    let mut hung = vec![];
    for (table, most) in [(0, 73), (1, 14), (2, 7)] {
        let before = hung.len();
        hung.extend((0..100).map_while(|row| park(&mut fetches, 0, table, row)));
        let mut hints = 1000..1000 + limits.prefetched;
        let hinted = hints.position(|row| !fetches.prefetch(0, table, row));
        assert_eq!((hung.len() - before, hinted), (most, Some(most)));
    }
    // They are asked for some rows, and answer nothing; of the fourth there are some to be had at a time.
    let mut reads: Vec<Read> = (0..4).filter_map(|_| fetches.next_read(0)).collect();
    for table in [1, 2, 0] {
        let passed = fetches.next_read(0).expect("there are more");
        assert_eq!(passed.table, table);
        fetches.pass_by(passed);
    }
    for row in 0..100 {
        let (bag, places) = park(&mut fetches, 0, 3, row).expect("room for another table");
        assert!(fetches.prefetch(0, 3, 1000 + row % 6));
        let read = fetches.next_read(0).expect("it is not kept back");
        assert_eq!((read.table, read.row), (3, row));
        fetches.heard(0, 3, Ok(()));
        fetches.arrived(read.ticket, Ok(&[row as u8; 8]));
        assert_eq!(fetches.next_ready().map(|ready| ready.bag), Some(bag));
        fetches.release(bag, &places);
    }
    // Those of it that nobody waits for come next, as many as may be read.
    let ahead = std::iter::from_fn(|| fetches.next_read(0)).map(|read| read.table);
    assert!(ahead.eq(vec![3; 6]));
    // Once rows of the hung tables are late, only they count what they answer: those that wait are given up, however often others come.
    let late = |fetches: &mut Fetches, now| {
        fetches.heard(now, 3, Ok(()));
        let late = fetches.next_late(now, &mut 1000, |_, _| (0, false))?;
        let (table, _) = fetches.row(late).expect("it waits");
        fetches.give_up(late);
        Some(table)
    };
    assert_eq!(late(&mut fetches, limits.budget_ns), None);
    for table in 0..3 {
        fetches.heard(limits.budget_ns, table, Err(TierError::Late));
    }
    for read in reads.drain(..) {
        fetches.arrived(read.ticket, Err(TierError::Late));
    }
    let given_up: Vec<u32> = std::iter::from_fn(|| late(&mut fetches, limits.budget_ns)).collect();
    assert_eq!(given_up.len(), 94 - 4 + 94);
    assert!(!given_up.contains(&3));
    for (bag, places) in hung {
        fetches.release(bag, &places);
    }
    assert_eq!(fetches.on_the_way(), 6);
    fetches.pass_none();
    assert!(fetches.next_read(0).is_none());
}
