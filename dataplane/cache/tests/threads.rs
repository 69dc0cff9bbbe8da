//! Writers and workers at the same time: whatever a worker finds is the row that it asked for, whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rowmill_arena::HugePages;
use rowmill_cache::store::{
    Epochs, Held, MISS, Sample, Shape, Store, Tags, Ticket, Turn, Width, Worker, Writer,
};

const SHARDS: u32 = 2;
const WORKERS: usize = 3;
const ROWS: u32 = 4000;
const ROW_BYTES: usize = 200;
/// Rows that each writer publishes.
const COMINGS: usize = 30_000;
/// Rows that are fetched by a writer at once.
const FETCHES: usize = 24;
/// Rows that a worker looks up in a turn: no multiple of anything.
const PIECE: usize = 333;

/// The bytes of a row, no two words alike.
fn bytes(row: u32) -> [u8; ROW_BYTES] {
    core::array::from_fn(|i| {
        let word = row.wrapping_mul(0x9e37_79b1) ^ (i as u32 / 4).wrapping_mul(0x85eb_ca6b);
        word.to_le_bytes()[i % 4]
    })
}

/// Lets rows of a shard come and go.
fn write(mut writer: Writer, store: &Store, random: &mut fastrand::Rng) {
    let of_shard = |row: &u32| store.spread().shard(*row) == writer.shard();
    let rows: Vec<u32> = (0..ROWS).filter(of_shard).collect();
    let (mut coming, mut came): (Vec<Ticket>, usize) = (Vec::new(), 0);
    while came < COMINGS {
        let row = rows[random.usize(0..rows.len())];
        let begun = coming.iter().any(|ticket| ticket.row() == row);
        if coming.len() < FETCHES && !begun && writer.slot_of(row).is_none() {
            let free = writer.candidates(row).filter(|one| one.held != Held::Taken);
            let slots: Vec<u32> = free.map(|one| one.slot).collect();
            if let Some(slot) = random.choice(slots) {
                let (ticket, _) = writer.begin(row, slot).expect("as much limbo as fetches");
                coming.push(ticket);
            }
        }
        writer.advance();
        let free: Vec<Ticket>;
        (free, coming) = coming
            .into_iter()
            .partition(|ticket| writer.is_free(ticket));
        for ticket in free {
            let bytes = bytes(ticket.row());
            writer.publish(ticket, &bytes, 0);
            came += 1;
        }
        if coming.len() == FETCHES {
            thread::yield_now();
        }
    }
    for ticket in coming {
        writer.abandon(ticket);
    }
}

/// Looks rows up and checks them; tells how many were there.
fn read(turn: Turn<'_>, store: &Store, rows: &[u32], sample: &mut Sample) -> usize {
    let mut places = [0; PIECE];
    let found = store.find(turn, rows, &mut places);
    let stride = store.shape().stride();
    let mut copy = [0; ROW_BYTES];
    for (position, (&row, &place)) in rows.iter().zip(found.places()).enumerate() {
        if place != MISS {
            found.copy_row(position, &mut copy);
            assert!(copy == bytes(row), "row {row} in slot {place}");
        }
    }
    // Once more, as late in the turn as can be.
    for (&row, &place) in rows.iter().zip(found.places()) {
        if place != MISS {
            let slot = store.slots().part(place as usize * stride, ROW_BYTES);
            slot.expect("a slot").read(0, &mut copy);
            assert!(copy == bytes(row), "row {row} in slot {place}, later");
        }
    }
    found.touch(sample, |_, word| word.wrapping_add(1));
    rows.len() - found.misses()
}

#[test]
fn rows_come_and_go_while_workers_read() {
    for width in [Width::One, Width::Two] {
        rows_come_and_go(width);
    }
}

fn rows_come_and_go(width: Width) {
    let (epochs, workers) = Epochs::new(WORKERS);
    let shape = Shape::new(ROWS / 4, SHARDS, ROW_BYTES, ROW_BYTES).expect("a shape");
    let shape = shape.of_table(ROWS.into()).with_tags(width);
    let made = Store::new(shape, 3, FETCHES, &epochs, Tags::detect(), HugePages::Off);
    let (store, writers) = made.expect("memory");
    let writing = AtomicUsize::new(writers.len());
    let hits = AtomicUsize::new(0);
    let serve = &|mut worker: Worker, store: Arc<Store>, number: u64| {
        let mut random = fastrand::Rng::with_seed(number);
        let mut sample = Sample::new(3.try_into().expect("not 0"), number);
        while writing.load(Ordering::Relaxed) > 0 {
            let rows: Vec<u32> = (0..PIECE).map(|_| random.u32(0..ROWS)).collect();
            let found = read(worker.turn(), &store, &rows, &mut sample);
            hits.fetch_add(found, Ordering::Relaxed);
            if random.u32(0..8) == 0 {
                worker.rest();
                thread::yield_now();
            }
        }
    };
    thread::scope(|scope| {
        for (number, worker) in workers.into_iter().enumerate() {
            let store = Arc::clone(&store);
            scope.spawn(move || serve(worker, store, number as u64));
        }
        for writer in writers {
            let (store, writing) = (Arc::clone(&store), &writing);
            scope.spawn(move || {
                let seed = 100 + u64::from(writer.shard());
                write(writer, &store, &mut fastrand::Rng::with_seed(seed));
                writing.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
    let hits = hits.into_inner();
    println!("{hits} rows were found");
    assert!(hits > PIECE, "{hits}");
}
