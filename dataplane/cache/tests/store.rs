//! A store beside a map that says the same: whatever is found is there, is whole, and stays so until the turn has ended.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use rowmill_arena::HugePages;
use rowmill_cache::store::{
    Candidate, Drawn, Epochs, Evicted, Held, Isa, Judge, LimboFull, MISS, PatchError, ResizeError,
    Room, Shape, Store, Swept, Tags, Ticket, Width, Worker, Writer,
};

/// Rows that there are: some three for each slot, so that sets are full and rows come again.
const ROWS: u32 = 300;
/// Slots that may be in limbo in each of the two shards.
const LIMBO: usize = 6;
const SHARDS: u32 = 2;
/// Sets that a shard may have.
const MOST_SETS: u32 = 40;
/// Slots for rows that are patched.
const PATCHED: u32 = 50;
const WORKERS: usize = 3;
const ROW_BYTES: usize = 24;

/// What happens next; numbers choose among what there is.
#[derive(Clone, Debug)]
enum Act {
    /// A slot is taken for a row, if it is not there.
    Begin { row: u32, way: usize },
    /// A row comes that was waited for, if its slot is free.
    Publish { ticket: usize },
    /// A row does not come, and its slot becomes empty.
    Abandon { ticket: usize },
    /// A row does not come, and its slot is that of the row before again, unless that came by another.
    Restore { ticket: usize },
    /// A row is taken away.
    Remove { row: u32 },
    /// A writer looks what is free.
    Advance { shard: u32 },
    /// The store is to have another size.
    Resize { shard_sets: u32 },
    /// A writer moves some rows for that.
    Sweep { shard: u32 },
    /// It is looked whether that is done.
    Settle,
    /// So many rows become others, from this one on.
    Patch { first: u32, rows: u32 },
    /// A worker begins a turn and looks everything up.
    Turn { worker: usize },
    /// A worker has nothing to do.
    Rest { worker: usize },
}

fn act() -> impl Strategy<Value = Act> {
    let (row, worker) = (0..ROWS, 0..WORKERS);
    prop_oneof![
        8 => (row.clone(), 0_usize..32).prop_map(|(row, way)| Act::Begin { row, way }),
        5 => (0_usize..64).prop_map(|ticket| Act::Publish { ticket }),
        1 => (0_usize..64).prop_map(|ticket| Act::Abandon { ticket }),
        2 => (0_usize..64).prop_map(|ticket| Act::Restore { ticket }),
        1 => row.clone().prop_map(|row| Act::Remove { row }),
        3 => (0..SHARDS).prop_map(|shard| Act::Advance { shard }),
        1 => (2..=MOST_SETS).prop_map(|shard_sets| Act::Resize { shard_sets }),
        12 => (0..SHARDS).prop_map(|shard| Act::Sweep { shard }),
        2 => Just(Act::Settle),
        2 => (row, 1..20_u32).prop_map(|(first, rows)| Act::Patch { first, rows }),
        2 => worker.clone().prop_map(|worker| Act::Turn { worker }),
        1 => worker.prop_map(|worker| Act::Rest { worker }),
    ]
}

/// The bytes of a row that came as number so and so.
fn bytes(row: u32, coming: u32) -> [u8; ROW_BYTES] {
    let word = (u64::from(row) << 32 | u64::from(coming)).to_le_bytes();
    core::array::from_fn(|i| word[i % 8])
}

/// A worker, and the slots that it has found in its turn with what was in them.
struct Reader {
    worker: Worker,
    found: Vec<(u32, [u8; ROW_BYTES])>,
}

/// Lets rows make way for others now and then, and notes which have gone.
#[derive(Default)]
struct Draws {
    gone: Vec<Evicted>,
}

impl Judge for Draws {
    fn victim(&self, mover: Candidate, others: &mut dyn Iterator<Item = Candidate>) -> Option<u32> {
        let Held::Row(row) = mover.held else {
            panic!("{mover:?} has no row");
        };
        let others: Vec<Candidate> = others.collect();
        assert!(
            others
                .iter()
                .all(|other| matches!(other.held, Held::Row(other) if other != row))
        );
        let other = others.get(row as usize % 48)?;
        Some(other.slot)
    }

    fn evicted(&mut self, evicted: Evicted) {
        self.gone.push(evicted);
    }
}

/// Everything, and what must be so.
struct World {
    store: Arc<Store>,
    writers: Vec<Writer>,
    readers: Vec<Reader>,
    /// Which rows can be found, and what they are.
    rows: HashMap<u32, [u8; ROW_BYTES]>,
    /// Rows that were patched, and are that whatever comes.
    patched: HashMap<u32, [u8; ROW_BYTES]>,
    tickets: Vec<Taken>,
    comings: u32,
}

/// A slot that was taken, and what the row is that it held.
struct Taken {
    ticket: Ticket,
    former: Option<[u8; ROW_BYTES]>,
}

impl World {
    fn new(seed: u64, tags: Tags) -> World {
        let (epochs, workers) = Epochs::new(WORKERS);
        let shape = Shape::new(2 * 16 * 3, SHARDS, ROW_BYTES, ROW_BYTES + 8).expect("a shape");
        // By tags alone, or by numbers too.
        let shape = match seed % 2 {
            0 => shape.of_table(ROWS.into()),
            _ => shape,
        };
        let shape = match seed / 2 % 2 {
            0 => shape.with_tags(Width::One),
            _ => shape.with_tags(Width::Two),
        };
        let room = Room {
            sets: MOST_SETS,
            patched: PATCHED,
        };
        let made = Store::with_room(shape, room, seed, LIMBO, &epochs, tags, HugePages::Off);
        let (store, writers) = made.expect("memory");
        let reader = |worker| Reader {
            worker,
            found: Vec::new(),
        };
        World {
            store,
            writers,
            readers: workers.into_iter().map(reader).collect(),
            rows: HashMap::new(),
            patched: HashMap::new(),
            tickets: Vec::new(),
            comings: 0,
        }
    }

    fn act(&mut self, act: &Act) {
        match *act {
            Act::Begin { row, way } => self.begin(row, way),
            Act::Publish { ticket } => self.publish(ticket),
            Act::Abandon { ticket } => {
                if let Some(Taken { ticket, .. }) = self.take(ticket) {
                    self.writer(ticket.row()).abandon(ticket);
                }
            }
            Act::Restore { ticket } => self.restore(ticket),
            Act::Remove { row } => {
                let there = self.rows.contains_key(&row);
                match self.writer(row).remove(row) {
                    Ok(evicted) => _ = self.leave(there.then_some(row), evicted),
                    Err(LimboFull) => {
                        assert!(there);
                        assert_eq!(self.writer(row).counts().limbo, LIMBO as u32);
                    }
                }
            }
            Act::Advance { shard } => self.writers[shard as usize].advance(),
            Act::Resize { shard_sets } => match self.store.resize(shard_sets) {
                Ok(_) => assert_eq!(self.store.shape().shard_sets(), shard_sets),
                Err(error) => assert!(matches!(error, ResizeError::Busy), "{error}"),
            },
            Act::Sweep { shard } => _ = self.sweep(shard),
            Act::Settle => _ = self.store.settle().expect("memory is taken back"),
            Act::Patch { first, rows } => self.patch(first, rows),
            Act::Turn { worker } => self.turn(worker),
            Act::Rest { worker } => {
                self.readers[worker].found.clear();
                self.readers[worker].worker.rest();
            }
        }
    }

    fn writer(&mut self, row: u32) -> &mut Writer {
        let shard = self.store.spread().shard(row);
        &mut self.writers[shard as usize]
    }

    fn sweep(&mut self, shard: u32) -> Swept {
        let mut draws = Draws::default();
        let swept = self.writers[shard as usize].sweep(&mut draws);
        for evicted in draws.gone {
            self.leave(Some(evicted.row), Some(evicted));
        }
        swept
    }

    fn begin(&mut self, row: u32, way: usize) {
        let writer = self.writer(row);
        if writer.slot_of(row).is_some() {
            return;
        }
        let count = writer.candidates(row).count();
        assert!(count == 32 || count == 16, "{count} candidates");
        let candidate = writer.candidates(row).nth(way % count);
        let candidate = candidate.expect("one of them");
        if candidate.held == Held::Taken {
            return;
        }
        match (candidate.held, writer.begin(row, candidate.slot)) {
            (Held::Nothing, Ok((ticket, None))) => {
                assert!(writer.is_free(&ticket));
                assert_eq!(ticket.former(), None);
                self.tickets.push(Taken {
                    ticket,
                    former: None,
                });
            }
            (Held::Row(old), Ok((ticket, evicted))) => {
                assert!(!writer.is_free(&ticket));
                assert_eq!(ticket.former(), Some(old));
                let former = self.leave(Some(old), evicted);
                self.tickets.push(Taken { ticket, former });
            }
            (Held::Row(_), Err(LimboFull)) => {
                assert_eq!(writer.counts().limbo, LIMBO as u32);
            }
            (held, outcome) => panic!("{held:?}: {outcome:?}"),
        }
    }

    /// A row is no longer there.
    fn leave(&mut self, row: Option<u32>, evicted: Option<Evicted>) -> Option<[u8; ROW_BYTES]> {
        assert_eq!(evicted.map(|evicted| evicted.row), row);
        let Evicted { row, meta } = evicted?;
        assert_eq!(meta, row as u16, "the meta word that it came with");
        let bytes = self.rows.remove(&row);
        Some(bytes.expect("a row that was there"))
    }

    /// A row is there again, as it was.
    fn restore(&mut self, number: usize) {
        let Some(Taken { ticket, former }) = self.take(number) else {
            return;
        };
        let writer = self.writer(ticket.row());
        match ticket.former() {
            Some(row) if writer.slot_of(row).is_none() && writer.may_hold(ticket.slot(), row) => {
                writer.restore(ticket);
                self.rows.insert(row, former.expect("its bytes"));
            }
            _ => writer.abandon(ticket),
        }
    }

    fn take(&mut self, number: usize) -> Option<Taken> {
        let count = self.tickets.len();
        (count > 0).then(|| self.tickets.swap_remove(number % count))
    }

    fn publish(&mut self, number: usize) {
        let Some(Taken { ticket, former }) = self.take(number) else {
            return;
        };
        let row = ticket.row();
        let writer = self.writer(row);
        if writer.slot_of(row).is_some() {
            writer.abandon(ticket); // It came by another ticket.
        } else if !writer.may_hold(ticket.slot(), row) {
            writer.abandon(ticket); // The slot is another set's now.
        } else if writer.is_free(&ticket) {
            self.comings += 1;
            let bytes = bytes(row, self.comings);
            self.writer(row).publish(ticket, &bytes, row as u16);
            self.rows.insert(row, bytes);
        } else {
            self.tickets.push(Taken { ticket, former });
        }
    }

    fn patch(&mut self, first: u32, count: u32) {
        let rows: Vec<u32> = (first..ROWS.min(first + count)).collect();
        self.comings += 1;
        let each: Vec<_> = rows.iter().map(|&row| bytes(row, self.comings)).collect();
        let (store, readers) = (&self.store, &mut self.readers);
        let (room, more) = (store.patch_room(), store.unpatched(&rows));
        let mut pass = || {
            for reader in &mut *readers {
                reader.found.clear();
                reader.worker.pass();
            }
        };
        match store.patch(&rows, each.as_flattened(), &mut pass) {
            Ok(()) => {
                assert!(more <= room as usize);
                self.patched.extend(rows.into_iter().zip(each));
            }
            Err(PatchError::Full { most }) => {
                assert_eq!(most, PATCHED);
                assert!(more > room as usize, "{room} rows have room");
            }
            Err(error) => panic!("{error}"),
        }
        assert_eq!(self.store.patched() as usize, self.patched.len());
    }

    /// A worker finds all that is there and nothing else.
    fn turn(&mut self, worker: usize) {
        let rows: Vec<u32> = (0..ROWS).collect();
        let mut places = vec![0; rows.len()];
        let mut kept = Vec::new();
        let turn = self.readers[worker].worker.turn();
        let found = self.store.find(turn, &rows, &mut places);
        for (position, &row) in rows.iter().enumerate() {
            let place = found.places()[position];
            let there = self.patched.get(&row).or_else(|| self.rows.get(&row));
            assert_eq!(place != MISS, there.is_some(), "row {row}");
            if let Some(bytes) = there {
                let mut copy = [0; ROW_BYTES];
                found.copy_row(position, &mut copy);
                assert_eq!(copy, *bytes, "row {row}");
                kept.push((place, copy));
            }
        }
        assert_eq!(found.misses(), ROWS as usize - kept.len());
        self.readers[worker].found = kept;
    }

    fn check(&self) {
        for reader in &self.readers {
            for (place, bytes) in &reader.found {
                let at = *place as usize * self.store.shape().stride();
                let mut copy = [0; ROW_BYTES];
                self.store
                    .slots()
                    .part(at, ROW_BYTES)
                    .expect("a slot")
                    .read(0, &mut copy);
                assert_eq!(copy, *bytes, "slot {place} changed in a turn");
            }
        }
        let counts: Vec<_> = self.writers.iter().map(Writer::counts).collect();
        let rows: u32 = counts.iter().map(|counts| counts.rows).sum();
        let tickets: u32 = counts.iter().map(|counts| counts.tickets).sum();
        assert_eq!(rows as usize, self.rows.len());
        assert_eq!(tickets as usize, self.tickets.len());
        assert!(counts.iter().all(|counts| counts.limbo as usize <= LIMBO));
    }

    /// Once all workers rest and nobody waits for rows, every slot holds a row or nothing.
    fn settle(&mut self) {
        while let Some(Taken { ticket, .. }) = self.take(0) {
            self.writer(ticket.row()).abandon(ticket);
        }
        for reader in &mut self.readers {
            reader.found.clear();
            reader.worker.rest();
        }
        self.writers.iter_mut().for_each(Writer::advance);
        for shard in 0..SHARDS {
            let mut left = 1000;
            while self.sweep(shard) == Swept::More {
                self.check();
                left -= 1;
                assert!(left > 0, "it comes to an end");
            }
        }
        assert!(self.store.settle().expect("memory is taken back"));
        let shape = self.store.shape();
        let present = self.store.present();
        let most = shape.bytes()
            + self.store.patch_bytes(0).max(1 << 16)
            + 4 * 4096
            + (PATCHED as usize + 21) * shape.stride();
        assert!((shape.bytes()..most).contains(&present));
        self.turn(0);
        self.readers[0].found.clear();
        self.readers[0].worker.rest();
        for writer in &mut self.writers {
            writer.advance();
            assert_eq!((writer.counts().limbo, writer.counts().tickets), (0, 0));
        }
        for row in 0..ROWS {
            let there = self.rows.contains_key(&row);
            let writer = self.writer(row);
            assert_eq!(writer.slot_of(row).is_some(), there);
            let taken = writer.candidates(row).any(|one| one.held == Held::Taken);
            assert!(!taken, "a slot that belongs to nobody and is not empty");
        }
    }
}

proptest! {
    #[test]
    fn a_store_is_a_map(
        acts in proptest::collection::vec(act(), 1..600),
        seed: u64,
        isa in 0_usize..4,
    ) {
        let tags = Tags::new(Isa::ALL[isa]).unwrap_or_else(Tags::detect);
        let mut world = World::new(seed, tags);
        for act in &acts {
            world.act(act);
            world.check();
        }
        world.settle();
    }
}

/// Rows that are all of one set fill it and the sets of their second choice, and then take one another's slots.
#[test]
fn rows_of_one_set_are_kept_as_far_as_there_is_room() {
    let (epochs, mut workers) = Epochs::new(1);
    let shape = Shape::new(16 * 64, 1, 8, 8).expect("a shape");
    let made = Store::new(shape, 5, 16, &epochs, Tags::detect(), HugePages::Off);
    let (store, mut writers) = made.expect("memory");
    let writer = &mut writers[0];
    let of_one = |row: &u32| store.spread().primary(*row) == 7;
    let rows: Vec<u32> = (0..1 << 20).filter(of_one).take(2000).collect();
    let mut evictions = 0;
    for &row in &rows {
        let nothing = writer.candidates(row).find(|one| one.held == Held::Nothing);
        let slot = nothing.or_else(|| writer.candidates(row).nth(row as usize % 32));
        let (ticket, evicted) = writer
            .begin(row, slot.expect("32 candidates").slot)
            .expect("room");
        evictions += usize::from(evicted.is_some());
        writer.advance();
        workers[0].pass();
        writer.advance();
        writer.publish(ticket, &u64::from(row).to_le_bytes(), 0);
    }
    let kept = writer.counts().rows as usize;
    assert_eq!(kept + evictions, rows.len());
    assert!(kept > 900, "{kept} of 1024 slots are in use");
    let mut places = vec![0; rows.len()];
    let found = store.find(workers[0].turn(), &rows, &mut places);
    assert_eq!(found.misses(), rows.len() - kept);
}

fn small() -> (Arc<Store>, Writer, Worker) {
    let (epochs, mut workers) = Epochs::new(1);
    let shape = Shape::new(64, 1, 8, 8).expect("a shape");
    let made = Store::new(shape, 5, 1, &epochs, Tags::detect(), HugePages::Off);
    let (store, mut writers) = made.expect("memory");
    (store, writers.remove(0), workers.remove(0))
}

/// Takes the first slot for a row and tells which it is.
fn begin(writer: &mut Writer, row: u32) -> Ticket {
    let slot = writer.candidates(row).next().expect("a candidate").slot;
    writer.begin(row, slot).expect("room in limbo").0
}

#[test]
fn a_worker_in_a_turn_holds_a_slot_and_one_that_rests_or_is_gone_does_not() {
    let (store, mut writer, mut worker) = small();
    let ticket = begin(&mut writer, 1);
    writer.publish(ticket, &[1; 8], 0);
    let turn = worker.turn();
    let mut places = [0];
    assert_eq!(store.find(turn, &[1], &mut places).misses(), 0);
    writer.remove(1).expect("room in limbo");
    writer.advance();
    assert_eq!(writer.counts().limbo, 1, "the worker may read it");
    worker.rest();
    writer.advance();
    assert_eq!(writer.counts().limbo, 0);

    let ticket = begin(&mut writer, 2);
    writer.publish(ticket, &[2; 8], 0);
    worker.pass();
    writer.remove(2).expect("room in limbo");
    writer.advance();
    assert_eq!(writer.counts().limbo, 1, "the worker is in a turn");
    assert_eq!(writer.remove(3), Ok(None));
    drop(worker);
    writer.advance();
    assert_eq!(writer.counts().limbo, 0);
}

/// Puts rows where there is room, and has them looked up, with one that is not there: each is where its writer says.
fn assert_told_apart(slots: u32, table_rows: u64, rows: &[u32], missing: u32) {
    let shape = Shape::new(slots, 1, 8, 8).expect("a shape");
    let shape = shape.of_table(table_rows);
    for width in [Width::One, Width::Two] {
        assert_told_apart_in(shape.with_tags(width), rows, missing);
    }
}

fn assert_told_apart_in(shape: Shape, rows: &[u32], missing: u32) {
    let (epochs, mut workers) = Epochs::new(1);
    let made = Store::new(shape, 5, 1, &epochs, Tags::detect(), HugePages::Off);
    let (store, mut writers) = made.expect("memory");
    for &row in rows {
        let mut slots = writers[0].candidates(row);
        let empty = slots.find(|one| one.held == Held::Nothing);
        drop(slots);
        let begun = writers[0].begin(row, empty.expect("an empty slot").slot);
        writers[0].publish(begun.expect("room").0, &u64::from(row).to_le_bytes(), 0);
    }
    let asked: Vec<u32> = rows.iter().copied().chain([missing]).collect();
    let mut places = vec![0; asked.len()];
    let found = store.find(workers[0].turn(), &asked, &mut places);
    assert_eq!(found.misses(), 1);
    for (&row, place) in asked.iter().zip(places) {
        let slot = writers[0].slot_of(row);
        assert_eq!(place, slot.unwrap_or(MISS), "row {row}");
    }
}

#[test]
fn rows_of_one_set_and_one_tag_are_told_apart() {
    const TABLE: u64 = 1 << 20;
    let (epochs, _) = Epochs::new(1);
    let shape = Shape::new(64, 1, 8, 8).expect("a shape").of_table(TABLE);
    let made = Store::new(shape, 5, 1, &epochs, Tags::detect(), HugePages::Off);
    let spread = *made.expect("memory").0.spread();
    assert!(!spread.is_exact());
    let alike = |row: &u32| spread.tag(*row) == 99 && spread.primary(*row) == 2;
    let rows: Vec<u32> = (0..TABLE as u32).filter(alike).collect();
    assert!(rows.len() > 8, "{}", rows.len());
    assert_told_apart(64, TABLE, &rows[1..8], rows[0]);
}

#[test]
fn rows_beyond_those_that_the_table_had_are_told_apart() {
    const TABLE: u64 = 1 << 15;
    // All of one hash.
    let rows: Vec<u32> = (0..20).map(|number| 7 + (number << 15)).collect();
    // The tags of one byte tell the table's own rows apart in the second only.
    for (slots, is_exact) in [(64, false), (4096, true)] {
        let shape = Shape::new(slots, 1, 8, 8).expect("a shape").of_table(TABLE);
        let spread = shape.with_tags(Width::One).spread(5);
        assert_eq!(spread.is_exact(), is_exact);
        assert_ne!(spread.tag(7), 0, "there are slots for all");
        assert_told_apart(slots, TABLE, &rows[..1], rows[1]);
        for missing in [0, 9] {
            let mut there = rows.clone();
            there.remove(missing);
            assert_told_apart(slots, TABLE, &there, rows[missing]);
        }
    }
}

#[test]
#[should_panic(expected = "may still be read")]
fn a_row_is_not_written_over_one_that_may_be_read() {
    let (_store, mut writer, mut worker) = small();
    let ticket = begin(&mut writer, 1);
    let slot = ticket.slot();
    writer.publish(ticket, &[1; 8], 0);
    worker.pass();
    let other = (2..).find(|&row| writer.candidates(row).any(|one| one.slot == slot));
    let (ticket, _) = writer
        .begin(other.expect("a row"), slot)
        .expect("room in limbo");
    writer.advance();
    writer.publish(ticket, &[2; 8], 0);
}

#[test]
#[should_panic(expected = "is there")]
fn a_row_is_in_one_slot_only() {
    let (_store, mut writer, _worker) = small();
    let ticket = begin(&mut writer, 1);
    writer.publish(ticket, &[1; 8], 0);
    let other = writer.candidates(1).nth(20).expect("a candidate").slot;
    let _ = writer.begin(1, other);
}

#[test]
#[should_panic(expected = "another dataplane")]
fn a_turn_for_which_nobody_waits_finds_nothing() {
    let (store, _writer, _worker) = small();
    let (_, mut others) = Epochs::new(1);
    store.find(others[0].turn(), &[1], &mut [0]);
}

#[test]
fn rows_that_are_patched_are_not_drawn() {
    let (epochs, mut workers) = Epochs::new(1);
    let shape = Shape::new(64, 1, 8, 8).expect("a shape").of_table(1000);
    let room = Room {
        sets: shape.shard_sets(),
        patched: 100,
    };
    let (tags, pages) = (Tags::detect(), HugePages::Off);
    let made = Store::with_room(shape, room, 5, 1, &epochs, tags, pages);
    let (store, _writers) = made.expect("memory");
    let rows: Vec<u32> = (0..200).collect();
    let mut drawn_of = |threshold: u32| {
        let (mut drawn, mut places) = (Drawn::new(300), vec![0; rows.len()]);
        drawn.begin(threshold);
        store.find_and_draw(workers[0].turn(), &rows, &mut places, &mut drawn);
        drawn.rows().iter().map(|drawn| drawn.row).collect()
    };
    let [all, some]: [Vec<u32>; 2] = [u32::MAX, 1 << 31].map(&mut drawn_of);
    assert_eq!(all, rows);
    assert!((50..150).contains(&some.len()), "{some:?}");
    let changed: Vec<u32> = (0..100).map(|number| 2 * number).collect();
    store
        .patch(&changed, &[7; 100 * 8], &mut || {})
        .expect("room for as many");
    let odd = |rows: Vec<u32>| {
        rows.into_iter()
            .filter(|row| row % 2 == 1)
            .collect::<Vec<_>>()
    };
    assert_eq!(drawn_of(u32::MAX), odd(all));
    assert_eq!(drawn_of(1 << 31), odd(some));
}
