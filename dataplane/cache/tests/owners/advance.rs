//! Rows that are fetched before anybody wants them: hints, and what was warm before a restart.

use std::sync::Arc;

use rowmill_cache::WarmRows;
use rowmill_cache::fetch::Limits;
use rowmill_cache::figures::Count;

use super::{LIMITS, Seat, seats, settle};
use crate::shelf::{Fate, TABLES, fate};

#[test]
fn what_is_hinted_is_fetched_by_its_owner_as_far_as_there_is_room() {
    let (mut seats, book) = seats(2, LIMITS, 100, 4);
    let rows: Vec<u32> = (0..100).filter(|&row| fate(row) == Fate::Comes).collect();
    let counters = |seats: &[Seat]| {
        let sums = seats.iter().map(|seat| {
            let figures = seat.worker.figures(0).expect("a cached table");
            let begun = seat.worker.fetch_counters().prefetched;
            let told = figures.get(Count::Hinted);
            (told, figures.get(Count::HintsDropped), begun)
        });
        sums.fold((0, 0, 0), |a, b| (a.0 + b.0, a.1 + b.1, a.2 + b.2))
    };
    seats[0].worker.prefetch(0, &rows);
    let waiting = 2 * u64::from(LIMITS.prefetched);
    let hinted = rows.len() as u64;
    assert_eq!(counters(&seats), (hinted, hinted - waiting, 0));
    seats.iter_mut().for_each(|seat| _ = seat.poll(0));
    // The last place of each worker is for another table.
    let own = LIMITS.prefetched - 1;
    let begun = 2 * u64::from(own);
    assert_eq!(counters(&seats), (hinted, hinted - begun, begun));
    assert_eq!(seats[0].worker.held().0, own as usize);
    settle(&mut seats, &mut 0, 0);
    assert_eq!(book.lock().unwrap().begun as u64, begun);
    // What is there is not fetched again.
    let there: Vec<u32> = rows
        .into_iter()
        .filter(|&row| seats[1].look_up(0, 0, &[row]))
        .collect();
    assert_eq!(there.len() as u64, begun);
    for row in there {
        seats[1].worker.prefetch(0, &[row]);
        settle(&mut seats, &mut 0, 0);
    }
    assert_eq!(counters(&seats).2, begun);
}

#[test]
fn a_row_that_is_named_often_takes_the_room_of_one_and_without_room_all_are_dropped() {
    let told = |limits, rows: &[u32]| {
        let (mut seats, book) = seats(1, limits, 100, 4);
        seats[0].worker.prefetch(0, rows);
        settle(&mut seats, &mut 0, 0);
        let figures = seats[0].worker.figures(0).expect("a cached table");
        let counts = [Count::Hinted, Count::HintsDropped].map(|what| figures.get(what));
        (counts, book.lock().unwrap().begun)
    };
    assert_eq!(told(LIMITS, &[3; 100]), ([1, 0], 1));
    let rows = [3, 4].repeat(50);
    assert_eq!(told(LIMITS, &rows), ([2, 0], 2));
    let none = Limits {
        prefetched: 0,
        ..LIMITS
    };
    assert_eq!(told(none, &rows), ([2, 2], 0));
}

#[test]
fn what_is_hinted_comes_also_where_new_rows_are_refused() {
    let (mut seats, _) = seats(1, LIMITS, 100, 4);
    // Rows that are used again and again, and others that never are.
    let mut now = 0;
    for round in 0..100 {
        for i in 0..60 {
            for row in [i * 10, 1000 + (round * 60 + i) * 10] {
                seats[0].look_up(now, 0, &[row]);
                settle(&mut seats, &mut now, 0);
            }
        }
    }
    for row in (0..20).map(|i| i * 10 + 5) {
        seats[0].worker.prefetch(0, &[row]);
        settle(&mut seats, &mut now, 0);
        assert!(seats[0].look_up(now, 0, &[row]), "row {row}");
    }
}

#[test]
fn of_more_rows_than_there_is_room_for_the_first_are_warm() {
    let (mut seats, book) = seats(1, LIMITS, 100, 4);
    let rows: Vec<u32> = (0..300).filter(|&row| fate(row) == Fate::Comes).collect();
    let warm = WarmRows {
        table: 0,
        rows: rows.clone(),
    };
    seats[0].worker.warm(&[warm].into());
    settle(&mut seats, &mut 0, 0);
    let slots = 64;
    let most = slots + LIMITS.prefetched as usize;
    assert!((slots..=most).contains(&book.lock().unwrap().begun));
    let there = rows.iter().filter(|&&row| seats[0].look_up(0, 0, &[row]));
    let there: Vec<&u32> = there.collect();
    assert_eq!(there.len(), slots);
    // Those on their way when it was full have each taken the place of one.
    let first = rows[..40].iter().filter(|row| there.contains(row)).count();
    assert!(first >= 40 - LIMITS.prefetched as usize, "{there:?}");
}

#[test]
fn neither_hints_nor_what_was_warm_takes_all_room_from_the_other() {
    let (mut seats, _) = seats(1, LIMITS, 100, 4);
    let warm = WarmRows {
        table: 0,
        rows: (0..400).filter(|&row| fate(row) == Fate::Comes).collect(),
    };
    seats[0].worker.warm(&[warm].into());
    let mut hints = (1000..).filter(|&row| fate(row) == Fate::Comes);
    let mut now = 0;
    while seats[0].worker.is_warming() {
        let hints: Vec<u32> = hints.by_ref().take(10).collect();
        seats[0].worker.prefetch(0, &hints);
        seats[0].poll(now);
        now += 1;
        assert!(now < 2000, "what was warm has no turn");
    }
    let figures = seats[0].worker.figures(0).expect("a cached table");
    let [told, dropped] = [Count::Hinted, Count::HintsDropped].map(|what| figures.get(what));
    let taken = told - dropped;
    assert!(taken > 20, "{taken} hints had a turn in {now} polls");
}

#[test]
fn what_was_warm_is_loaded_by_its_owners() {
    let (mut seats, book) = seats(3, LIMITS, 100, 9);
    // As many as fit, of tables 1 and 0, some of which can't be read any more.
    let warm: Arc<[WarmRows]> = [(1, 0..60), (0, 100..130)]
        .map(|(table, rows)| WarmRows {
            table,
            rows: rows.collect(),
        })
        .into();
    for seat in &mut seats {
        seat.worker.warm(&warm);
        assert!(seat.worker.has_work());
    }
    // What somebody wants comes all the same, and is not fetched a second time.
    seats[0].look_up(0, 1, &[50, 120]);
    let mut now = 0;
    settle(&mut seats, &mut now, 10);
    assert!(seats.iter().all(|seat| !seat.worker.is_warming()));
    assert_eq!(book.lock().unwrap().begun, 60 + 30 + 1);
    for WarmRows { table, rows } in &*warm {
        let comes = rows.iter().filter(|&&row| fate(row) == Fate::Comes);
        for &row in comes {
            let seat = &mut seats[row as usize % 3];
            assert!(seat.look_up(now, *table as u32, &[row]), "row {row}");
        }
    }
    // And is found by who writes the list for the next start.
    let store = seats[0].worker.store(0).expect("a cached table");
    let mut hot = store.hot(1000);
    hot.sort_unstable();
    let expected: Vec<u32> = (100..130).filter(|&row| fate(row) == Fate::Comes).collect();
    assert_eq!(hot, expected);
    assert!(seats[0].worker.store(TABLES as usize).is_none());
}

/// Loads so many rows of the first table, all of which come. Returns them.
fn loaded(seats: &mut [Seat], now: &mut u64, count: usize) -> Vec<u32> {
    let comes = (0..).filter(|&row| fate(row) == Fate::Comes);
    let rows: Vec<u32> = comes.take(count).collect();
    for row in &rows {
        seats[0].worker.prefetch(0, &[*row]);
        settle(seats, now, 0);
    }
    assert!(rows.iter().all(|&row| seats[0].look_up(*now, 0, &[row])));
    rows
}

#[test]
fn a_poll_looks_at_some_hints_and_the_next_ones_at_the_others() {
    let limits = Limits {
        prefetched: 200,
        ..LIMITS
    };
    let (mut seats, book) = seats(1, limits, 100, 4);
    let mut now = 0;
    let there = loaded(&mut seats, &mut now, 20);
    let begun = book.lock().unwrap().begun;
    let dropped = |seats: &[Seat]| {
        let figures = seats[0].worker.figures(0).expect("a cached table");
        figures.get(Count::HintsDropped)
    };
    // As many as there is room for, of rows that are there.
    let hint = |seats: &mut [Seat]| {
        for _ in 0..10 {
            seats[0].worker.prefetch(0, &there);
        }
    };
    hint(&mut seats);
    assert_eq!(dropped(&seats), 0);
    seats[0].poll(now);
    hint(&mut seats);
    assert_eq!(dropped(&seats), 200 - 64, "a poll has taken 64");
    let mut polls = 0;
    while seats[0].worker.has_work() {
        assert!(!seats[0].worker.rest(), "it is waited for");
        seats[0].poll(now);
        polls += 1;
    }
    assert_eq!((polls, book.lock().unwrap().begun), (4, begun));
    assert!(seats[0].worker.rest());
}

#[test]
fn a_poll_looks_at_some_of_the_rows_of_lists_that_are_there() {
    let limits = Limits {
        prefetched: 200,
        ..LIMITS
    };
    let (mut seats, book) = seats(1, limits, 100, 4);
    let mut now = 0;
    let there = loaded(&mut seats, &mut now, 20);
    let begun = book.lock().unwrap().begun;
    let list = |table, times| WarmRows {
        table,
        rows: there.repeat(times),
    };
    seats[0].worker.warm(&[list(0, 10)].into());
    seats[0].worker.load_pinned([list(0, 5)].into());
    let mut polls = 0;
    while !seats[0].worker.is_idle() {
        seats[0].poll(now);
        polls += 1;
    }
    assert_eq!(polls, 300_usize.div_ceil(32));
    assert_eq!(book.lock().unwrap().begun, begun);
}
