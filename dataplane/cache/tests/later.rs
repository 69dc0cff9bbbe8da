//! Hits that are touched at a turn's end leave the cache as if each piece's had been touched at once.

use std::sync::Arc;

use rowmill_arena::HugePages;
use rowmill_cache::figures::Count;
use rowmill_cache::store::{self, Shape, Tags};
use rowmill_cache::tier::{EachRow, FetchesFull, Tier, Wanted};
use rowmill_cache::{OnFailure, Options, Parts, TableOptions, Worker, fetch, workers};

/// Slots of the first table, whose meta words are more than stay in a core's cache, and of the second, whose are not.
const SLOTS: [u32; 2] = [1 << 17, 1 << 10];
/// Rows of each.
const ROWS: u32 = 400_000;
/// Ids of a piece at most, and pieces of a turn: more than are put off, now and then.
const LONGEST: usize = 300;
const PIECES: usize = 90;

/// Gives all rows, in the poll after they were asked for.
#[derive(Default)]
struct AtOnce(Vec<Wanted>);

impl Tier for AtOnce {
    fn fetch(&mut self, _: u64, wanted: Wanted) -> Result<(), FetchesFull> {
        self.0.push(wanted);
        Ok(())
    }

    fn poll(&mut self, _: u64, each: EachRow<'_>) {
        for wanted in self.0.drain(..) {
            each(wanted.token, Ok(&wanted.row.to_le_bytes()));
        }
    }

    fn unanswered(&self) -> usize {
        self.0.len()
    }
}

/// A worker alone.
struct Alone {
    turns: store::Worker,
    worker: Worker,
    /// Whether the policies are told of each piece before the next is looked up.
    at_once: bool,
    now_ns: u64,
}

impl Alone {
    fn new(at_once: bool) -> Alone {
        // Either table has half of it.
        let most = (2 * PIECES * LONGEST) as u32;
        let options = Options {
            limits: fetch::Limits {
                staged: most,
                longest: LONGEST as u32,
                prefetched: 0,
                asked: 0,
                bags: 2 * PIECES as u32,
                row_bytes: 4,
                budget_ns: u64::MAX,
            },
            limbo: 64,
            tags: Tags::detect(),
            huge_pages: HugePages::Off,
            seed: 3,
        };
        let table = |slots| {
            let shape = Shape::new(slots, 1, 4, 4).unwrap().of_table(ROWS.into());
            Some(TableOptions {
                shape,
                most_sets: shape.shard_sets(),
                most_patched: 0,
                in_tier: 0,
                on_failure: OnFailure::Error,
                begins_cached: true,
            })
        };
        let parts = Parts {
            tier: Box::new(AtOnce::default()),
            wake: Box::new(|| ()),
        };
        let made = workers(&options, &SLOTS.map(table), vec![parts]).unwrap();
        let (turns, worker) = made.into_iter().next().unwrap();
        Alone {
            turns,
            worker,
            at_once,
            now_ns: 0,
        }
    }

    /// Looks pieces up in a turn, each of a table, and fetches what they lack: their places, and how many lookups were put off.
    fn turn(&mut self, pieces: &[(usize, Vec<u32>)]) -> (Vec<u32>, usize) {
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
            if self.at_once {
                self.worker.touch_hits();
            }
        }
        let untouched = self.worker.untouched();
        self.worker.touch_hits();
        assert_eq!(self.worker.untouched(), 0);
        while !parked.is_empty() {
            self.worker.poll(self.now_ns);
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
fn the_policy_knows_the_same_of_hits_that_are_put_off() {
    let mut random = fastrand::Rng::with_seed(5);
    // The first of a table are asked for often.
    let row = |random: &mut fastrand::Rng| (random.f64().powi(5) * f64::from(ROWS)) as u32;
    let [mut now, mut later] = [true, false].map(Alone::new);
    let mut most = 0;
    for number in 0..250 {
        let pieces = random.usize(1..=PIECES);
        let pieces: Vec<_> = (0..pieces)
            .map(|_| {
                // Few are of the small table, which is told of its hits at once, and of the others' before.
                let table = usize::from(random.u32(0..20) == 0);
                let rows = random.usize(1..=LONGEST);
                (table, (0..rows).map(|_| row(&mut random)).collect())
            })
            .collect();
        let (places, none) = now.turn(&pieces);
        let (put_off, untouched) = later.turn(&pieces);
        assert!(places == put_off, "turn {number} finds other rows");
        assert_eq!(none, 0);
        most = most.max(untouched);
    }
    assert!((900..=1024).contains(&most), "{most} were put off");
    for table in 0..SLOTS.len() {
        let [one, other] = [&now, &later].map(|alone| {
            let figures = alone.worker.figures(table).unwrap();
            let counts =
                [Count::Admitted, Count::Evicted, Count::Refused].map(|what| figures.get(what));
            let store = Arc::clone(alone.worker.store(table).unwrap());
            // In the order of how often they were used.
            (counts, store.hot(ROWS as usize))
        });
        assert!(one == other, "table {table}");
        let (counts, _) = one;
        assert!(counts.iter().all(|&count| count > 0), "{counts:?}");
    }
}
