//! A tier that answers nothing: the rows that are there stay, and every row that was asked for is counted once.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use rowmill_cache::figures::Count;

use super::{LIMITS, Seat, seats, settle};
use crate::shelf::{Book, Fate, fate};

/// How often something was counted, of both tables and by all workers.
fn counted(seats: &[Seat], whats: &[Count]) -> u64 {
    let figures = seats.iter().flat_map(|seat| {
        let tables = 0..seat.worker.tables();
        tables.filter_map(|table| seat.worker.figures(table))
    });
    let sums = figures.map(|table| whats.iter().map(|&what| table.get(what)).sum::<u64>());
    sums.sum()
}

/// All rows that were asked for of the tier have come or not, and all that came were kept or not.
pub(super) fn assert_counted_once(seats: &[Seat]) {
    use Count::{Admitted, Arrived, Crowded, Fetched, Refused, Unkept};
    use Count::{Corrupt, Failed, Gone, Late, Unneeded};
    let kept_or_not = [Admitted, Refused, Crowded, Unkept];
    assert_eq!(
        counted(seats, &[Arrived]),
        counted(seats, &kept_or_not),
        "rows that came"
    );
    let came_or_not = [Arrived, Late, Unneeded, Corrupt, Gone, Failed];
    assert_eq!(
        counted(seats, &[Fetched]),
        counted(seats, &came_or_not),
        "rows that were asked for"
    );
}

fn held(seats: &[Seat]) -> u64 {
    counted(seats, &[Count::Admitted]) - counted(seats, &[Count::Evicted])
}

/// The rows of table 0 of that fate.
fn rows(wanted: Fate) -> impl Iterator<Item = u32> {
    (0..).filter(move |&row| fate(row) == wanted)
}

/// Workers of a tier that reads `room` rows at a time, and whose slots are full.
fn filled(workers: usize, room: usize) -> (Vec<Seat>, Arc<Mutex<Book>>) {
    let (mut seats, book) = seats(workers, LIMITS, room, 6);
    let slots = 32 * (workers + 1);
    for row in rows(Fate::Comes).take(3 * slots) {
        seats[0].look_up(0, 0, &[row]);
        settle(&mut seats, &mut 0, 0);
    }
    assert_eq!(there(&seats).len(), slots);
    (seats, book)
}

/// The rows of table 0 that are there.
fn there(seats: &[Seat]) -> BTreeSet<u32> {
    let store = seats[0].worker.store(0).expect("a cached table");
    store.hot(1000).into_iter().collect()
}

#[test]
fn rows_that_do_not_come_leave_the_others_where_they_are() {
    for lacking in [Fate::Never, Fate::Fails] {
        let (mut seats, _) = filled(2, 4);
        let (before, mut now) = (there(&seats), 0);
        for row in rows(lacking).take(200) {
            assert!(!seats[row as usize % 2].look_up(now, 0, &[row]));
            settle(&mut seats, &mut now, LIMITS.budget_ns / 4);
        }
        assert_eq!(there(&seats), before, "{lacking:?}");
        assert_eq!(held(&seats), before.len() as u64);
        assert_counted_once(&seats);
    }
}

#[test]
fn rows_that_were_there_are_served_where_the_tier_is_dead() {
    // It is asked for them, too; or they are still waiting for that when the others are late, for as long as these or for less.
    for (room, later) in [(4, 0), (2, 0), (2, LIMITS.budget_ns / 2)] {
        serves_what_was_there(room, later);
    }
}

fn serves_what_was_there(room: usize, later: u64) {
    let (mut seats, book) = filled(1, room);
    book.lock().unwrap().is_dead = true;
    let (before, mut now) = (there(&seats), 0);
    let mut never = rows(Fate::Never);
    // In the first round rows that the tier is asked for take the slots of others, and these are waited for.
    for round in 0..10 {
        let (mut pooled, mut failed) = (0, 0);
        for row in never.by_ref().take(2) {
            assert!(!seats[0].look_up(now, 0, &[row]));
        }
        // They are asked for, and get their slots.
        seats[0].poll(now);
        seats[0].poll(now);
        let taken: Vec<u32> = before.difference(&there(&seats)).copied().collect();
        assert_eq!(taken.len(), if round == 0 { 2 } else { 0 });
        for &row in &taken {
            assert!(!seats[0].look_up(now + later, 0, &[row]));
        }
        let asked = counted(&seats, &[Count::Fetched]);
        for _ in 0..20 {
            now += LIMITS.budget_ns / 4;
            let polled = seats[0].poll(now);
            (pooled, failed) = (pooled + polled.0, failed + polled.1);
        }
        assert_eq!((pooled, failed), (taken.len(), 2));
        let asked_for = counted(&seats, &[Count::Fetched]) - asked;
        assert_eq!(asked_for > 0, room > 2 && round == 0);
        assert_eq!(there(&seats), before);
    }
    assert_counted_once(&seats);
    // Once rows come they are taken in again.
    book.lock().unwrap().is_dead = false;
    for row in rows(Fate::Comes).skip(200).take(20) {
        seats[0].look_up(now, 0, &[row]);
        settle(&mut seats, &mut now, 0);
    }
    assert_ne!(there(&seats), before);
}
