//! Workers on threads of their own, which sleep when they have nothing to do until another one wakes them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};

use super::{BAG, Fate, LIMITS, Limits, ROWS, Seat, fate, made};
use crate::shelf::TABLES;

const WORKERS: usize = 3;
const LOOKUPS: usize = 4000;

#[test]
fn workers_on_threads_give_one_another_their_rows() {
    let threads: Arc<[OnceLock<Thread>; WORKERS]> = Arc::default();
    let wake = |number: usize| {
        let threads = Arc::clone(&threads);
        let wake = move || {
            if let Some(thread) = threads[number].get() {
                thread.unpark();
            }
        };
        Box::new(wake) as Box<dyn Fn() + Send + Sync>
    };
    let limits = Limits {
        budget_ns: u64::MAX,
        ..LIMITS
    };
    let (made, book, _) = made(WORKERS, limits, 4, 6, (0..WORKERS).map(wake).collect());
    let (working, book) = (&AtomicUsize::new(WORKERS), &book);
    let threads = &threads;
    thread::scope(|scope| {
        for (number, (turns, worker)) in made.into_iter().enumerate() {
            scope.spawn(move || {
                threads[number].set(thread::current()).expect("once");
                let seat = Seat {
                    turns,
                    worker,
                    parked: HashMap::new(),
                    asleep: false,
                    woken: Arc::default(),
                    book: Arc::clone(book),
                };
                let seat = work(
                    seat,
                    number as u64,
                    || {
                        if working.fetch_sub(1, Ordering::AcqRel) == 1 {
                            // The others may sleep for good now.
                            threads
                                .iter()
                                .filter_map(OnceLock::get)
                                .for_each(Thread::unpark);
                        }
                    },
                    || working.load(Ordering::Acquire) > 0,
                );
                assert_eq!(seat.worker.held(), (0, 0));
            });
        }
    });
    let book = book.lock().unwrap();
    assert!(book.fetching.is_empty());
    println!("{} rows were fetched", book.begun);
}

/// Looks bags up, one after the other; then goes on for the others, until these are done too.
fn work(mut seat: Seat, seed: u64, done: impl FnOnce(), others_work: impl Fn() -> bool) -> Seat {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut hits, mut pooled) = (0, 0);
    while hits + pooled < LOOKUPS {
        let mut rows = vec![0; random.usize(1..=BAG)];
        rows.fill_with(|| random.u32(0..ROWS));
        rows.retain(|&row| fate(row) == Fate::Comes);
        hits += usize::from(seat.look_up(0, random.u32(0..TABLES), &rows));
        while !seat.parked.is_empty() {
            let (more, failed) = seat.poll(0);
            assert_eq!(failed, 0);
            pooled += more;
            if more == 0 {
                thread::yield_now();
            }
        }
        if random.u8(0..20) == 0 {
            sleep(&mut seat, true);
        }
    }
    done();
    while others_work() {
        sleep(&mut seat, false);
    }
    // What was asked last may still be on its way to it.
    while !seat.worker.is_idle() {
        seat.poll(0);
        thread::yield_now();
    }
    seat
}

/// Sleeps until it is woken, if it has nothing to do; else does that.
fn sleep(seat: &mut Seat, is_short: bool) {
    seat.poll(0);
    if seat.worker.has_work() || !seat.worker.rest() {
        thread::yield_now();
        return;
    }
    seat.turns.rest();
    if is_short {
        thread::yield_now();
    } else {
        thread::park();
    }
}
