//! Models of publication and reclamation: `store/writer.rs`, `store/quiescence.rs`, and the pass over tags; and of the bell by which
//! workers tell one another that something came, `owners/bell.rs`.
//!
//! The files of this crate on which workers and writers depend for seeing what the others wrote are compiled a second time here,
//! with the atomics of the model checker loom in place of those that `store/sync.rs` names, and with a memory in which no row may
//! be read and written at once ([`store::memory`]). Loom runs a model in every order of its threads' steps, and lets each load
//! give every value that the memory model of C11 allows it to give. Found are rows that are read before they are published or
//! written while they are read. Each model is also run with planted mistakes that it has to find ([`plant`]).
//!
//! So are the steps by which rows of a resident table become others, with `overlay/stand_ins.rs` of the crate `table`, and by which those of a
//! cached one are patched, `store/patches.rs`.
//!
//! Most preemptions of a run are bounded, by 2 or by `ROWMILL_MODEL_PREEMPTIONS` (`all`: no bound), which
//! `make test-full` raises.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "the files are whole, and the models need parts of them"
)]

mod overlay;
mod owners;
mod plant;
mod store;

use std::sync::Arc;

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;

use owners::bell::Bell;
use plant::{Mistake, is};
use store::Store;
use store::key::Width;
use store::memory::Memory;
use store::patched::{Patched, ROW};
use store::quiescence::{Epochs, Worker};
use store::spread::Spread;
use store::sweep::{Judge, Swept};
use store::tags::MISS;
use store::writer::{Candidate, Evicted, Writer};

/// Preemptions of a run where nothing else is said.
const PREEMPTIONS: usize = 2;
/// Slots in limbo.
const LIMBO: usize = 2;

/// Runs a model in all its orders.
fn check(model: impl Fn() + Send + Sync + 'static) {
    check_within(
        match std::env::var("ROWMILL_MODEL_PREEMPTIONS").ok() {
            None => Some(PREEMPTIONS),
            Some(text) if text == "all" => None,
            Some(text) => Some(
                text.parse()
                    .expect("ROWMILL_MODEL_PREEMPTIONS is a number or `all`"),
            ),
        },
        model,
    );
}

/// Runs it in all orders of so many preemptions.
fn check_within(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 10_000;
    builder.check(model);
}

/// A store as small as can be, its writers, and a worker that rests.
fn made(shards: u32) -> (Store, Vec<Writer>, Worker) {
    made_with_room(shards, 2, 2)
}

/// The same of so many sets a shard, with room for as many.
fn made_with_room(shards: u32, shard_sets: u32, most: u32) -> (Store, Vec<Writer>, Worker) {
    let spread = Spread::new(1, 1 << 15, shards, shard_sets, Width::Two);
    let lost = lost(&spread.over(most));
    let memory = Memory::new(
        spread.over(most).sets(),
        spread.sets(),
        (lost, spread.primary_key(lost)),
    );
    let (epochs, mut workers) = Epochs::new(1);
    let (others, _) = Epochs::new(0);
    let waited_for = if is(Mistake::WaitsForNobody) {
        others
    } else {
        epochs
    };
    let store = Store::new(memory, waited_for, spread);
    let writers = (0..shards).map(|shard| store.writer(shard, LIMBO));
    let writers = writers.collect();
    (store, writers, workers.remove(0))
}

/// A row that is nowhere, but in memory that is not there: one of the last set.
fn lost(most: &Spread) -> u32 {
    let is_last = |row: &u32| most.primary(*row) == most.sets() - 1;
    (0..most.end()).rev().find(is_last).expect("a row")
}

/// What a row is.
fn bytes(row: u32) -> [u8; 4] {
    (row + 1000).to_le_bytes()
}

/// Puts a row into a slot, waiting until that is free.
fn put(writer: &mut Writer, row: u32, slot: u32) {
    let (ticket, _) = writer.begin(row, slot).expect("room in limbo");
    writer.advance();
    while !writer.is_free(&ticket) {
        thread::yield_now();
        writer.advance();
    }
    writer.publish(ticket, &bytes(row), 0);
}

/// The first slot that a row may be in.
fn slot_of(writer: &Writer, row: u32) -> u32 {
    writer.candidates(row).next().expect("a candidate").slot
}

/// Looks rows up in a turn, and reads those that are there.
fn turn(worker: &mut Worker, store: &Store, rows: &[u32]) {
    let _turn = worker.turn();
    look_up(store, rows);
}

/// The same in a turn that has begun.
fn look_up(store: &Store, rows: &[u32]) {
    let mut places = vec![0; rows.len()];
    store.find(rows, &mut places);
    for (&row, place) in rows.iter().zip(places) {
        if place != MISS {
            assert_eq!(store.memory.row(place), bytes(row), "another row");
        }
    }
}

const MISTAKES: [Mistake; 5] = [
    Mistake::RelaxedStore,
    Mistake::RelaxedLoad,
    Mistake::NoFence,
    Mistake::RelaxedExchange,
    Mistake::WaitsForNobody,
];

/// A row takes the slot of one that a worker looks up in two turns.
fn a_row_is_replaced() {
    let (store, mut writers, mut worker) = made(1);
    let mut writer = writers.remove(0);
    let slot = slot_of(&writer, 1);
    put(&mut writer, 1, slot);
    let reader = {
        let store = store.clone();
        thread::spawn(move || {
            turn(&mut worker, &store, &[1]);
            turn(&mut worker, &store, &[2]);
        })
    };
    put(&mut writer, 2, slot);
    reader.join().expect("the reader ends");
}

#[test]
fn no_row_is_read_while_it_is_written() {
    check(a_row_is_replaced);
    plant::assert_found(&MISTAKES, a_row_is_replaced);
}

/// A row is given its slot back, since that for which it was taken does not come, while a worker looks it up that knows nothing of it but
/// its tag.
fn a_row_is_restored() {
    let (store, mut writers, mut worker) = made(1);
    let mut writer = writers.remove(0);
    let slot = slot_of(&writer, 1);
    worker.pass();
    let reader = {
        let store = store.clone();
        thread::spawn(move || {
            look_up(&store, &[1]);
            worker
        })
    };
    put(&mut writer, 1, slot);
    let (ticket, _) = writer.begin(2, slot).expect("room in limbo");
    writer.restore(ticket);
    drop(reader.join().expect("the reader ends"));
}

/// Then it leaves the slot for one that comes.
fn a_row_that_was_restored_is_replaced() {
    let (store, mut writers, mut worker) = made(1);
    let mut writer = writers.remove(0);
    let slot = slot_of(&writer, 1);
    put(&mut writer, 1, slot);
    let reader = {
        let store = store.clone();
        thread::spawn(move || turn(&mut worker, &store, &[1]))
    };
    let (ticket, _) = writer.begin(2, slot).expect("room in limbo");
    writer.restore(ticket);
    put(&mut writer, 3, slot);
    reader.join().expect("the reader ends");
}

#[test]
fn a_row_that_is_restored_is_found_whole() {
    // The reader may see any of the five values that the tag has had; with a second preemption it takes minutes.
    check_within(Some(1), a_row_is_restored);
    let mistakes = [Mistake::RelaxedStore, Mistake::NoFence];
    plant::assert_found(&mistakes, a_row_is_restored);
}

#[test]
fn a_row_that_was_restored_leaves_as_any_other() {
    check(a_row_that_was_restored_is_replaced);
    plant::assert_found(
        &[Mistake::WaitsForNobody],
        a_row_that_was_restored_is_replaced,
    );
}

/// The same while the worker rests between its turns.
fn a_row_is_replaced_in_a_sleep() {
    let (store, mut writers, mut worker) = made(1);
    let mut writer = writers.remove(0);
    let slot = slot_of(&writer, 1);
    put(&mut writer, 1, slot);
    let reader = {
        let store = store.clone();
        thread::spawn(move || {
            turn(&mut worker, &store, &[1]);
            worker.rest();
            turn(&mut worker, &store, &[1]);
        })
    };
    put(&mut writer, 2, slot);
    reader.join().expect("the reader ends");
}

#[test]
fn a_worker_that_wakes_finds_nothing_that_was_taken_away() {
    check(a_row_is_replaced_in_a_sleep);
    let mistakes = [
        Mistake::RelaxedStore,
        Mistake::RelaxedExchange,
        Mistake::WakesByALoad,
        Mistake::WaitsForNobody,
    ];
    plant::assert_found(&mistakes, a_row_is_replaced_in_a_sleep);
}

/// Writers of two shards end epochs at the same time.
fn rows_of_two_shards_are_replaced() {
    let (store, mut writers, mut worker) = made(2);
    let row = |shard, from: u32| (from..).find(|&row| store.spread.shard(row) == shard);
    let rows = [0, 1].map(|shard| row(shard, 0).expect("a row"));
    let others = [0, 1].map(|shard| row(shard, rows[shard as usize] + 1).expect("a row"));
    let slots = [0, 1].map(|shard| slot_of(&writers[shard], rows[shard]));
    for shard in [0, 1] {
        put(&mut writers[shard], rows[shard], slots[shard]);
    }
    let reader = {
        let store = store.clone();
        thread::spawn(move || turn(&mut worker, &store, &rows))
    };
    let mut second = writers.remove(1);
    let other = thread::spawn(move || put(&mut second, others[1], slots[1]));
    put(&mut writers[0], others[0], slots[0]);
    reader.join().expect("the reader ends");
    other.join().expect("the other writer ends");
}

#[test]
fn writers_share_epochs() {
    check(rows_of_two_shards_are_replaced);
    let mistakes = [Mistake::WakesByALoad, Mistake::WaitsForNobody];
    plant::assert_found(&mistakes, rows_of_two_shards_are_replaced);
}

/// The row of a resident table becomes another, and another again in the same overlay, while a worker reads it in turns between which it may rest.
fn a_row_changes(rests: bool) {
    let table = Arc::new(overlay::Table::new());
    let (epochs, mut workers) = Epochs::new(1);
    let mut worker = workers.remove(0);
    let reader = {
        let table = Arc::clone(&table);
        thread::spawn(move || {
            let mut last = 0;
            for _ in 0..2 {
                let _turn = worker.turn();
                for _ in 0..2 {
                    let value = table.read();
                    assert!(value >= last, "the row was {last} and is {value}");
                    last = value;
                }
                if rests {
                    worker.rest();
                }
            }
        })
    };
    let (others, _) = Epochs::new(0);
    let waited_for = if is(Mistake::WaitsForNobody) {
        others
    } else {
        epochs
    };
    for value in [1, 2] {
        table.change(value, || waited_for.pass_all(thread::yield_now));
    }
    reader.join().expect("the reader ends");
}

fn a_row_changes_under_turns() {
    a_row_changes(false);
}

fn a_row_changes_under_rests() {
    a_row_changes(true);
}

#[test]
fn no_row_is_read_while_it_changes_and_none_goes_back() {
    check(a_row_changes_under_turns);
    let mistakes = [
        Mistake::RelaxedStore,
        Mistake::RelaxedLoad,
        Mistake::RelaxedExchange,
        Mistake::WaitsForNobody,
    ];
    plant::assert_found(&mistakes, a_row_changes_under_turns);
}

#[test]
fn a_worker_that_wakes_finds_rows_as_they_are() {
    check(a_row_changes_under_rests);
    let mistakes = [Mistake::WakesByALoad, Mistake::WaitsForNobody];
    plant::assert_found(&mistakes, a_row_changes_under_rests);
}

/// A row of a cached table is patched, twice more while another is patched too, and last in the slot that it had first, while a worker reads it in
/// turns and tells another, which reads it then.
fn a_row_is_patched() {
    let table = Arc::new(Patched::new());
    let (epochs, workers) = Epochs::new(2);
    let told = Arc::new(AtomicU32::new(0));
    let reader = |mut worker: Worker, turns: usize| {
        let (table, told) = (Arc::clone(&table), Arc::clone(&told));
        thread::spawn(move || {
            for _ in 0..turns {
                let last = told.load(Ordering::Acquire);
                let _turn = worker.turn();
                let value = table.read();
                assert!(value >= last, "the row was {last} and is {value}");
                told.store(value, Ordering::Release);
            }
        })
    };
    let readers: Vec<_> = workers.into_iter().zip([2, 1]).collect();
    let readers: Vec<_> = readers
        .into_iter()
        .map(|(worker, turns)| reader(worker, turns))
        .collect();
    let (others, _) = Epochs::new(0);
    let waited_for = if is(Mistake::WaitsForNobody) {
        others
    } else {
        epochs
    };
    let changes: [(&[u32], &[u32]); 3] = [(&[ROW], &[1]), (&[5, ROW], &[9, 2]), (&[ROW], &[3])];
    for (rows, values) in changes {
        table.change(rows, values, || waited_for.pass_all(thread::yield_now));
    }
    for reader in readers {
        reader.join().expect("the reader ends");
    }
}

#[test]
fn a_patched_row_is_whole_and_does_not_go_back() {
    check_within(Some(1), a_row_is_patched);
    let mistakes = [
        Mistake::RelaxedStore,
        Mistake::RelaxedLoad,
        Mistake::WaitsForNobody,
    ];
    plant::assert_found_by(&mistakes, || check_within(Some(1), a_row_is_patched));
}

/// Has nobody make way.
struct Nobody;

impl Judge for Nobody {
    fn victim(&self, _: Candidate, _: &mut dyn Iterator<Item = Candidate>) -> Option<u32> {
        None
    }

    fn evicted(&mut self, _: Evicted) {}
}

/// The first makes way.
struct First;

impl Judge for First {
    fn victim(&self, _: Candidate, others: &mut dyn Iterator<Item = Candidate>) -> Option<u32> {
        Some(others.next()?.slot)
    }

    fn evicted(&mut self, _: Evicted) {}
}

/// Gives a store another size, as a writer and a thread that is no worker do.
fn resize(store: &Store, writer: &mut Writer, old: u32, new: u32, judge: &mut impl Judge) {
    store.resize(old, new);
    // Several steps at a time, as far as they need not wait: to yield is to let the reader end its turns.
    while (0..3).all(|_| writer.sweep(judge) == Swept::More) {
        thread::yield_now();
    }
    store.settle(thread::yield_now);
}

/// The first row from number 2 on that moves when 2 sets become 3.
fn mover(store: &Store) -> u32 {
    let larger = store.spread.over(3);
    let moves = |row: &u32| larger.primary(*row) == 2 && store.spread.primary(*row) == 1;
    (2..).find(moves).expect("a row")
}

/// A store gets a third set while a worker looks for a row that moves to it, and for one that is nowhere.
fn a_store_grows() {
    let (store, mut writers, mut worker) = made_with_room(1, 2, 3);
    let mut writer = writers.remove(0);
    let row = mover(&store);
    let slot = slot_of(&writer, row);
    put(&mut writer, row, slot);
    let lost = lost(&store.spread.over(3));
    let reader = {
        let store = store.clone();
        thread::spawn(move || {
            turn(&mut worker, &store, &[row, lost]);
        })
    };
    resize(&store, &mut writer, 2, 3, &mut Nobody);
    assert_ne!(writer.slot_of(row), Some(slot), "it has moved");
    let other = (2..).find(|&other| other != row && slot_of(&writer, other) == slot);
    put(&mut writer, other.expect("another row"), slot);
    reader.join().expect("the reader ends");
}

/// Runs a model of a store that changes its size: there are so many steps that more than one preemption takes minutes.
fn check_resize(model: fn()) {
    check_within(Some(1), model);
}

#[test]
fn rows_of_a_store_that_grows_are_found_whole() {
    check_resize(a_store_grows);
    let mistakes = [Mistake::RelaxedStore, Mistake::WaitsForNobody];
    plant::assert_found_by(&mistakes, || check_resize(a_store_grows));
}

/// Rows that are looked for while a store loses its third set.
struct Sought {
    /// It makes way for the next.
    victim: u32,
    /// It moves from the third set to the second.
    mover: u32,
    /// It is nowhere, has the tag of the one that moves, and is looked for in the second set as long as there are three.
    double: u32,
    /// It is nowhere but in memory that is not there.
    lost: u32,
}

/// A store loses its third set, and a row of it takes the slot of another, while a worker looks for some.
fn a_store_shrinks(some: impl Fn(Sought) -> Vec<u32>) {
    let (store, mut writers, mut worker) = made_with_room(1, 3, 3);
    let mut writer = writers.remove(0);
    let smaller = store.spread.over(2);
    let of = |set| {
        let larger = store.spread;
        move |row: &u32| smaller.primary(*row) == 1 && larger.primary(*row) == set
    };
    let with_double = |row: u32| {
        let is_double = |other: &u32| *other != row && smaller.tag(*other) == smaller.tag(row);
        let other = (2..smaller.end()).find(is_double)?;
        (store.spread.primary(other) == 1).then_some((row, other))
    };
    let pair = (2..).filter(of(2)).find_map(with_double);
    let (row, double) = pair.expect("a row of the set that goes, and its double");
    let others: Vec<u32> = (2..).filter(of(1)).take(2).collect();
    // Nor is there room elsewhere.
    let first = |row: &u32| smaller.primary(*row) == 0 && store.spread.primary(*row) == 0;
    let of_first: Vec<u32> = (2..).filter(first).take(2).collect();
    for row in of_first.iter().chain(&others).chain([&row]) {
        let mut slots = writer.candidates(*row);
        let empty = slots.find(|slot| slot.held == store::writer::Held::Nothing);
        drop(slots);
        put(&mut writer, *row, empty.expect("an empty slot").slot);
    }
    let reader = {
        let sought = Sought {
            victim: others[0],
            mover: row,
            double,
            lost: lost(&store.spread),
        };
        let (store, rows) = (store.clone(), some(sought));
        thread::spawn(move || turn(&mut worker, &store, &rows))
    };
    resize(&store, &mut writer, 3, 2, &mut First);
    reader.join().expect("the reader ends");
}

fn a_store_shrinks_under_rows_that_move() {
    a_store_shrinks(|sought| vec![sought.victim, sought.mover]);
}

fn a_store_shrinks_under_a_row_with_the_tag_of_another() {
    a_store_shrinks(|sought| vec![sought.double]);
}

fn a_store_shrinks_under_a_row_that_is_lost() {
    a_store_shrinks(|sought| vec![sought.lost]);
}

#[test]
fn rows_of_a_store_that_shrinks_are_found_whole() {
    let model = a_store_shrinks_under_rows_that_move;
    check_resize(model);
    let mistakes = [Mistake::RelaxedStore, Mistake::NoFence];
    plant::assert_found_by(&mistakes, || check_resize(model));
}

#[test]
fn rows_that_are_nowhere_are_not_found_in_a_store_that_shrinks() {
    for model in [
        a_store_shrinks_under_a_row_with_the_tag_of_another as fn(),
        a_store_shrinks_under_a_row_that_is_lost,
    ] {
        check_resize(model);
        plant::assert_found_by(&[Mistake::WaitsForNobody], || check_resize(model));
    }
}

/// A queue with room for what one sender sends, its bell, and what ends the receiver's sleep.
struct Post {
    /// As many as were sent; each sender's on its own, so that nothing but the bell orders them.
    sent: [AtomicU32; 2],
    bell: Bell,
    woken: Mutex<bool>,
    wakes: Condvar,
}

/// Two workers send something to a third, which sleeps when it has seen nothing: it sees both.
fn a_worker_is_sent_something() {
    let post = Arc::new(Post {
        sent: [0, 0].map(AtomicU32::new),
        bell: Bell::new(),
        woken: Mutex::new(false),
        wakes: Condvar::new(),
    });
    let senders = [0, 1].map(|number| {
        let post = Arc::clone(&post);
        thread::spawn(move || {
            post.sent[number].store(1, Ordering::Relaxed);
            if post.bell.ring() {
                *post.woken.lock().expect("nobody panicked") = true;
                post.wakes.notify_one();
            }
        })
    });
    let mut seen = [0, 0];
    while seen != [1, 1] {
        if post.bell.answer() {
            seen = [0, 1].map(|number| post.sent[number].load(Ordering::Relaxed));
        } else if post.bell.lie_down() {
            let mut woken = post.woken.lock().expect("nobody panicked");
            while !*woken {
                woken = post.wakes.wait(woken).expect("nobody panicked");
            }
            *woken = false;
        }
    }
    for sender in senders {
        sender.join().expect("the sender ends");
    }
}

#[test]
fn nobody_sleeps_on_what_was_sent() {
    check(a_worker_is_sent_something);
    let mistakes = [
        Mistake::RelaxedExchange,
        Mistake::RingsByAStore,
        Mistake::LiesDownByAStore,
    ];
    plant::assert_found(&mistakes, a_worker_is_sent_something);
}
