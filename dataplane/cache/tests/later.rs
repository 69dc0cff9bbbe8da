//! Policies that are told of lookups when a turn's answers have gone know the same as those that are told at once.

mod common;

use std::sync::Arc;

use rowmill_cache::figures::Count;
use rowmill_cache::store::{self, Shape, Turn, Width};
use rowmill_cache::{Worker, fetch};

/// Slots of the first table, whose meta words are more than stay in a core's cache, and of the second, whose are not.
const SLOTS: [u32; 2] = [1 << 17, 1 << 10];
/// Rows of each.
const ROWS: u32 = 400_000;
/// Ids of a piece at most, and pieces of a turn: more than are put off, now and then.
const LONGEST: usize = 300;
const PIECES: usize = 90;

/// When policies are told of a turn's lookups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// Of each piece before the next.
    AtOnce,
    AtTheEnd,
    /// By the poll that follows, if there is any.
    InThePoll,
}

struct Alone {
    turns: store::Worker,
    worker: Worker,
    when: When,
    now_ns: u64,
}

/// Pieces, each of a table.
type Pieces = Vec<(usize, Vec<u32>)>;

impl Alone {
    fn new(when: When) -> Alone {
        let table = |slots| {
            let shape = Shape::new(slots, 1, 4, 4).unwrap().of_table(ROWS.into());
            let shape = shape.with_tags(Width::One);
            common::table(shape, shape.shard_sets() * 2)
        };
        // Either table has half of the room.
        let bags = 2 * PIECES as u32;
        let (turns, worker) =
            common::alone(&SLOTS.map(table), bags, LONGEST as u32, u32::to_le_bytes);
        Alone {
            turns,
            worker,
            when,
            now_ns: 0,
        }
    }

    /// Looks pieces up in a turn, and fetches what they lack: their places, and how many lookups were put off at last.
    fn turn(&mut self, pieces: &Pieces) -> (Vec<u32>, usize) {
        self.now_ns += 1000;
        let (mut all, mut parked) = (Vec::new(), Vec::new());
        let turn = self.turns.turn();
        for (table, rows) in pieces {
            let mut places = vec![0; rows.len()];
            let (found, mut parker) = self.worker.find(turn, *table, rows, &mut places);
            let mut bag = rows.clone();
            if found.misses() > 0 {
                let lane = fetch::Lane::default();
                let id = parker.park(self.now_ns, lane, &mut bag, &found, 0);
                parked.push((id.expect("there is room for a bag"), bag));
            }
            all.extend_from_slice(&places);
            if self.when == When::AtOnce {
                self.worker.touch_hits();
            }
        }
        let untouched = self.worker.untouched();
        if self.when != When::InThePoll || parked.is_empty() {
            assert_eq!(self.worker.touch_hits(), untouched > 0);
        }
        while !parked.is_empty() {
            self.worker.poll(self.now_ns);
            assert_eq!(self.worker.untouched(), 0);
            while let Some(ready) = self.worker.next_ready() {
                assert_eq!(ready.outcome, Ok(()));
                let at = parked.iter().position(|(id, _)| *id == ready.bag);
                let (id, bag) = parked.swap_remove(at.expect("a parked bag"));
                self.worker.release(id, &bag);
            }
            self.turns.pass();
        }
        (all, untouched)
    }
}

#[test]
fn the_policy_knows_the_same_of_lookups_that_are_put_off() {
    let mut random = fastrand::Rng::with_seed(5);
    // In a third of the turns none is missed, so that few hits are touched for a while.
    let row = |random: &mut fastrand::Rng, turn| match turn % 90 {
        60.. => random.u32(0..40),
        // The first are asked for often.
        _ => (random.f64().powi(5) * f64::from(ROWS)) as u32,
    };
    let mut all = [When::AtOnce, When::AtTheEnd, When::InThePoll].map(Alone::new);
    let (mut most, mut none) = (0, 0);
    for turn in 0..180 {
        let pieces = random.usize(1..=PIECES);
        let pieces: Pieces = (0..pieces)
            .map(|_| {
                // The small table's policy is told at once.
                let table = usize::from(random.u32(0..5) == 0);
                let rows = random.usize(1..=LONGEST);
                (table, (0..rows).map(|_| row(&mut random, turn)).collect())
            })
            .collect();
        let found = all.each_mut().map(|alone| alone.turn(&pieces));
        let [(at_once, zero), (at_the_end, put_off), (in_the_poll, same)] = found;
        assert!(at_once == at_the_end && at_once == in_the_poll, "{turn}");
        assert_eq!((zero, put_off), (0, same));
        most = most.max(put_off);
        none += usize::from(put_off == 0);
    }
    assert!(most > 500, "{most} were put off");
    assert!(none > 30, "few hits are touched in {none} turns");
    for table in 0..SLOTS.len() {
        let [at_once, at_the_end, in_the_poll] = all.each_ref().map(|alone| {
            let figures = alone.worker.figures(table).unwrap();
            let counts = [Count::Admitted, Count::Evicted, Count::Refused];
            let counts = counts.map(|what| figures.get(what));
            let store = Arc::clone(alone.worker.store(table).unwrap());
            // In the order of how often they were used.
            (counts, store.hot(ROWS as usize))
        });
        assert!(
            at_once == at_the_end && at_once == in_the_poll,
            "table {table}"
        );
        let [admitted, evicted, _] = at_once.0;
        assert!(admitted > 0 && evicted > 0, "{:?}", at_once.0);
    }
}

#[test]
fn nothing_is_put_off_beyond_what_changes_a_table_or_puts_rows_there() {
    let mut alone = Alone::new(When::AtTheEnd);
    alone.turn(&vec![(0, (0..200).collect())]);
    let Alone { turns, worker, .. } = &mut alone;
    let puts_off = |worker: &mut Worker, turn: Turn<'_>| {
        worker.find(turn, 0, &[5, 6, 7], &mut [0; 3]);
        assert_eq!(worker.untouched(), 3);
    };
    puts_off(worker, turns.turn());
    worker.keep(0, &[9], &[2], &[0; 4]);
    assert_eq!(worker.untouched(), 0, "rows are put there");
    puts_off(worker, turns.turn());
    let store = Arc::clone(worker.store(0).unwrap());
    let resize = store.resize(store.shape().shard_sets() * 2).unwrap();
    worker.resize(0, resize.expect("another size"));
    assert_eq!(worker.untouched(), 0, "it has another size");
    puts_off(worker, turns.turn());
    assert!(worker.replace(0, None).is_some());
    assert_eq!(worker.untouched(), 0, "it is another's");
}

#[test]
fn what_is_told_later_is_told_in_order_and_no_other_table_hurries_it() {
    let Alone {
        mut turns,
        mut worker,
        ..
    } = Alone::new(When::AtTheEnd);
    let (turn, mut places) = (turns.turn(), vec![0; 2000]);
    let mut find = |worker: &mut Worker, table, rows: usize| {
        let (ids, places) = (vec![7; rows], &mut places[..rows]);
        worker.find(turn, table, &ids, places);
        worker.untouched()
    };
    assert_eq!(find(&mut worker, 0, 3), 3);
    assert_eq!(find(&mut worker, 1, 3), 3, "the small table's is told");
    assert_eq!(find(&mut worker, 0, 700), 703);
    assert_eq!(find(&mut worker, 0, 700), 700, "those before are told");
    assert_eq!(find(&mut worker, 0, 1025), 0, "all are told at once");
    for one in 1..=64 {
        assert_eq!(find(&mut worker, 0, 1), one);
    }
    assert_eq!(find(&mut worker, 0, 1), 1, "of so many pieces");
    // Another thread makes it small, of which the worker knows nothing yet.
    let store = Arc::clone(worker.store(0).unwrap());
    let resize = store.resize(store.shape().shard_sets() / 2).unwrap();
    assert_eq!(find(&mut worker, 0, 1), 0, "the one before, and then this");
    worker.resize(0, resize.expect("another size"));
}
