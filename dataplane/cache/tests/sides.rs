//! Two generations of a table: each has its own rows in the cache and comes from a tier of its own, which goes when nothing is asked of it.

use rowmill_arena::HugePages;
use rowmill_cache::fetch::{Lane, Limits};
use rowmill_cache::figures::Count;
use rowmill_cache::store::{Shape, Tags, Worker as Turns};
use rowmill_cache::tier::{Answer, ScriptedTier, Tier, TierError};
use rowmill_cache::{OnFailure, Options, Parts, Shares, TableOptions, Worker, workers_with_shares};

const ROW_BYTES: usize = 8;
/// The table's number on a side, of two tables of which the other is not listed.
const HOMES: [usize; 2] = [1, 3];
/// When a tier answers.
const AFTER_NS: u64 = 50;

const LIMITS: Limits = Limits {
    staged: 12,
    longest: 5,
    prefetched: 3,
    asked: 3,
    bags: 6,
    row_bytes: ROW_BYTES,
    budget_ns: 1000,
};

/// The bytes of a row of a side.
fn bytes(side: usize, row: u32) -> [u8; ROW_BYTES] {
    (((side as u64) << 32) | u64::from(row)).to_le_bytes()
}

fn tier(side: usize) -> Box<dyn Tier + Send> {
    let script = |_: &_| Answer::Row { after_ns: AFTER_NS };
    Box::new(ScriptedTier::new(
        8,
        move |wanted| bytes(side, wanted.row).into(),
        script,
    ))
}

type Seat = (Turns, Worker);

/// Two workers that have the table on the first side.
fn made() -> (Vec<Seat>, Shares) {
    let shape = Shape::new(64, 2, ROW_BYTES, ROW_BYTES).expect("a shape");
    let listed = TableOptions {
        shape,
        most_sets: shape.shard_sets(),
        most_patched: 0,
        in_tier: 0,
        on_failure: OnFailure::Error,
        begins_cached: true,
    };
    let options = Options {
        limits: LIMITS,
        limbo: 4,
        tags: Tags::detect(),
        huge_pages: HugePages::Off,
        seed: 5,
    };
    let parts = (0..2).map(|_| Parts {
        tier: tier(0),
        wake: Box::new(|| ()),
    });
    let made = workers_with_shares(&options, &[None, Some(listed)], parts.collect());
    made.expect("memory")
}

/// Brings the table on the second side.
fn bring(seats: &mut [Seat], shares: &Shares) {
    let parts = shares.table(HOMES[1]).expect("memory");
    for ((_, worker), part) in seats.iter_mut().zip(parts) {
        let mut new = Some(tier(1));
        assert!(worker.replace_tier(1, &mut new) && new.is_none());
        assert!(worker.replace(HOMES[1], Some(part)).is_none());
    }
}

fn poll(seats: &mut [Seat], now_ns: u64) {
    for (turns, worker) in seats {
        turns.pass();
        if worker.has_work() {
            worker.poll(now_ns);
        }
    }
}

/// Looks a row up at a worker, and waits for it. Returns whether it was there, and the row or why there is none.
fn look_up(
    seats: &mut [Seat],
    at: usize,
    side: usize,
    row: u32,
    now_ns: &mut u64,
) -> (bool, Result<[u8; ROW_BYTES], TierError>) {
    let (mut places, mut staged, mut copy) = ([0], [row], [0; ROW_BYTES]);
    let (turns, worker) = &mut seats[at];
    let (found, mut parker) = worker.find(turns.turn(), HOMES[side], &[row], &mut places);
    if found.misses() == 0 {
        found.copy_row(0, &mut copy);
        return (true, Ok(copy));
    }
    let parked = parker.park(*now_ns, Lane::default(), &mut staged, &found, 0);
    let bag = parked.expect("there is room");
    loop {
        poll(seats, *now_ns);
        let (_, worker) = &mut seats[at];
        if let Some(ready) = worker.next_ready() {
            assert_eq!(ready.bag, bag);
            let (staging, stride, _) = worker.staging();
            let place = staging.part(staged[0] as usize * stride, ROW_BYTES);
            place.expect("a place").read(0, &mut copy);
            worker.release(bag, &staged);
            return (false, ready.outcome.map(|()| copy));
        }
        *now_ns += 10;
        assert!(*now_ns < 1_000_000, "nothing comes");
    }
}

#[test]
fn each_side_has_rows_of_its_own() {
    let (mut seats, shares) = made();
    let on_sides = HOMES.map(|home| seats[0].1.is_cached(home));
    assert_eq!((seats[0].1.tables(), on_sides), (4, [true, false]));
    assert_eq!([0, 1].map(|side| seats[0].1.on_side(side, 1)), HOMES);
    bring(&mut seats, &shares);
    let mut now_ns = 0;
    let mut hits = 0;
    // What a worker has brought in the other finds; the sides share nothing, though rows have the same numbers.
    for round in 0..2 {
        for row in 0..20 {
            for side in 0..2 {
                let at = (row as usize + round) % 2;
                let (is_hit, found) = look_up(&mut seats, at, side, row, &mut now_ns);
                assert_eq!(found, Ok(bytes(side, row)), "row {row} of side {side}");
                assert!(round > 0 || !is_hit, "row {row} of side {side}");
                hits += u32::from(is_hit);
            }
        }
    }
    assert!(hits > 20, "{hits} of 40 rows were kept");
}

#[test]
fn a_tier_goes_when_it_has_answered_all_and_nobody_waits_for_one_that_is_gone() {
    let (mut seats, shares) = made();
    bring(&mut seats, &shares);
    // Rows are on their way, for nobody any more.
    let mut lost = 0;
    for (turns, worker) in &mut seats {
        for row in 0..4 {
            let (mut places, mut staged) = ([0], [row]);
            let (found, mut parker) = worker.find(turns.turn(), HOMES[1], &[row], &mut places);
            let bag = parker.park(0, Lane::default(), &mut staged, &found, 0);
            worker.release(bag.expect("there is room"), &staged);
            lost += 1;
        }
    }
    (0..4).for_each(|_| poll(&mut seats, 10));
    // One worker gives the table up before the other asks it for a row.
    let (_, first) = &mut seats[0];
    let before = first.replace(HOMES[1], None);
    let mut none = None;
    assert!(!first.replace_tier(1, &mut none) && none.is_none());
    let mut now_ns = 100;
    poll(&mut seats, now_ns);
    poll(&mut seats, now_ns);
    let (_, first) = &mut seats[0];
    assert!(
        first.replace_tier(1, &mut none) && none.is_some(),
        "all {lost} are answered"
    );
    let (mut gone, mut there) = (0, 0);
    for row in 100..120 {
        match look_up(&mut seats, 1, 1, row, &mut now_ns) {
            (false, Err(TierError::Unreached)) => gone += 1,
            (_, Ok(found)) if found == bytes(1, row) => there += 1,
            other => panic!("{other:?}"),
        }
        // Those of the other side still come.
        let (_, found) = look_up(&mut seats, 0, 0, row, &mut now_ns);
        assert_eq!(found, Ok(bytes(0, row)));
    }
    assert!(
        gone > 0 && there > 0,
        "{gone} of the first worker's shards, {there} of the second's"
    );
    drop(before);
    // It comes again, as another generation.
    let parts = shares.table(HOMES[1]).expect("memory");
    for ((_, worker), part) in seats.iter_mut().zip(parts) {
        worker.replace(HOMES[1], Some(part));
        let mut new = Some(tier(7));
        assert!(worker.replace_tier(1, &mut new));
    }
    let (is_hit, found) = look_up(&mut seats, 1, 1, 100, &mut now_ns);
    assert_eq!((is_hit, found), (false, Ok(bytes(7, 100))));
}

#[test]
fn rows_of_a_side_are_kept_before_they_are_wanted() {
    let (mut seats, shares) = made();
    let rows: Vec<u32> = (0..10).collect();
    let all: Vec<u8> = rows.iter().flat_map(|&row| bytes(1, row)).collect();
    // There is nowhere to keep them yet.
    seats[0].1.keep(HOMES[1], &rows, &[2; 10], &all);
    bring(&mut seats, &shares);
    let mut now_ns = 0;
    // What is on its way, or there, is not kept twice.
    let (_, before) = look_up(&mut seats, 0, 1, 3, &mut now_ns);
    assert_eq!(before, Ok(bytes(1, 3)));
    for _ in 0..2 {
        for (_, worker) in &mut seats {
            worker.keep(HOMES[1], &rows, &[2; 10], &all);
        }
    }
    poll(&mut seats, now_ns);
    for row in 0..10 {
        let found = look_up(&mut seats, row as usize % 2, 1, row, &mut now_ns);
        assert_eq!(found, (true, Ok(bytes(1, row))), "row {row}");
    }
    let (is_hit, _) = look_up(&mut seats, 0, 0, 0, &mut now_ns);
    assert!(!is_hit, "the other side has nothing of it");
}

#[test]
fn hints_of_the_side_that_goes_are_dropped_and_those_of_the_other_stay() {
    let (mut seats, shares) = made();
    bring(&mut seats, &shares);
    // One that is on its way keeps the tier there for a while.
    let (turns, second) = &mut seats[1];
    let (mut places, mut staged) = ([0], [1]);
    let (found, mut parker) = second.find(turns.turn(), HOMES[1], &[1], &mut places);
    let bag = parker.park(0, Lane::default(), &mut staged, &found, 0);
    second.release(bag.expect("there is room"), &staged);
    (0..2).for_each(|_| poll(&mut seats, 0));
    // As many as there is room for, of the shards of the second worker.
    let (_, second) = &mut seats[1];
    second.prefetch(HOMES[1], &[5]);
    second.prefetch(HOMES[0], &[7, 9]);
    let dropped = |seats: &[Seat], side: usize| {
        let figures = seats[1].1.figures(HOMES[side]).expect("a listed table");
        figures.get(Count::HintsDropped)
    };
    assert_eq!([0, 1].map(|side| dropped(&seats, side)), [0, 0]);
    let (_, second) = &mut seats[1];
    let _before = second.replace(HOMES[1], None);
    // However often it is tried.
    for _ in 0..3 {
        assert!(!second.replace_tier(1, &mut None));
    }
    assert_eq!([0, 1].map(|side| dropped(&seats, side)), [0, 1]);
    let mut now_ns = AFTER_NS;
    while !seats[1].1.replace_tier(1, &mut None) {
        poll(&mut seats, now_ns);
        now_ns += 10;
        assert!(now_ns < 10_000, "it never goes");
    }
    for _ in 0..20 {
        poll(&mut seats, now_ns);
        now_ns += 10;
    }
    for row in [7, 9] {
        let (is_hit, found) = look_up(&mut seats, 1, 0, row, &mut now_ns);
        assert_eq!((is_hit, found), (true, Ok(bytes(0, row))), "row {row}");
    }
}
