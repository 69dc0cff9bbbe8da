//! A cached table as a worker has it, with its store, staging and built-in policy; rows come as soon as they are asked for.

use std::iter;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rowmill_arena::HugePages;
use rowmill_cache::store::{self, Shape, Tags, WAYS};
use rowmill_cache::tier::{EachRow, FetchesFull, Tier, Wanted};
use rowmill_cache::{OnFailure, Options, Parts, Pins, Rules, TableOptions, Worker, fetch};

use super::reference;

/// One row in so many can be patched.
pub(crate) const PATCHED_ONE_IN: u32 = 100;

/// Ids of a bag in batches.
const BAG: usize = 80;
/// Bytes of a row: what is in it doesn't matter.
const ROW_BYTES: usize = 4;
/// Of hash functions and draws.
const SEED: u64 = 1;

/// A cache of a table.
pub(crate) struct Adaptive {
    turns: store::Worker,
    worker: Worker,
    places: Vec<u32>,
    bag: Vec<u32>,
}

impl Adaptive {
    /// A cache that holds at most `capacity` rows, where rows are looked up one by one.
    ///
    /// # Errors
    /// Where there can be none of that size.
    pub(crate) fn of_single(capacity: usize) -> Result<Adaptive> {
        Adaptive::new(capacity, 1)
    }

    /// The same where whole bags are looked up.
    ///
    /// # Errors
    /// Where there can be none of that size.
    pub(crate) fn of_bags(capacity: usize) -> Result<Adaptive> {
        Adaptive::new(capacity, BAG)
    }

    /// Bags have at most `ids` ids: for as many rows there is staging, to which they are fetched. Slots are whole sets.
    fn new(capacity: usize, ids: usize) -> Result<Adaptive> {
        ensure!(capacity > ids, "--rows {capacity} is less than a bag has");
        let slots = (capacity - ids) / WAYS * WAYS;
        let shape = Shape::new(slots as u32, 1, ROW_BYTES, ROW_BYTES).context("--rows")?;
        Adaptive::of_shape(shape, ids, HugePages::Off, vec![0; ROW_BYTES])
    }

    /// A cache of that shape where bags of at most so many ids are looked up. Rows are parts of `block`.
    ///
    /// # Errors
    /// Where there is no memory for it.
    pub(crate) fn of_shape(
        shape: Shape,
        ids: usize,
        huge_pages: HugePages,
        block: Vec<u8>,
    ) -> Result<Adaptive> {
        let row_bytes = shape.row_bytes();
        let options = Options {
            limits: fetch::Limits {
                staged: ids as u32,
                longest: ids as u32,
                prefetched: 0,
                asked: 0,
                bags: 1,
                row_bytes,
                budget_ns: u64::MAX,
            },
            limbo: ids,
            tags: Tags::detect(),
            huge_pages,
            seed: SEED,
        };
        let tier = AtOnce {
            block,
            row_bytes,
            wanted: Vec::with_capacity(ids),
        };
        let parts = Parts {
            tier: Box::new(tier),
            wake: Box::new(|| ()),
        };
        let table = TableOptions {
            begins_cached: true,
            shape,
            most_sets: shape.shard_sets(),
            most_patched: shape.slots() / PATCHED_ONE_IN,
            in_tier: 0,
            on_failure: OnFailure::Error,
        };
        let made = rowmill_cache::workers(&options, &[Some(table)], vec![parts]);
        let made = made.context("the store")?.pop();
        let (turns, worker) = made.context("a worker")?;
        Ok(Adaptive {
            turns,
            worker,
            places: vec![0; ids],
            bag: Vec::with_capacity(ids),
        })
    }

    /// Looks rows up: the slot of each, or [`MISS`](store::MISS), which is not fetched. Tells how many are missed.
    pub(crate) fn find(&mut self, rows: &[u32], places: &mut [u32]) -> usize {
        let (found, _) = self.worker.find(self.turns.turn(), 0, rows, places);
        let misses = found.misses();
        self.worker.touch_hits();
        misses
    }

    /// Counts the lookups of the last [`find`](Self::find), which all hit, and takes what was sampled of them.
    pub(crate) fn count(&mut self, lookups: usize) {
        self.worker.count(0, lookups as u64, lookups as u64);
        while self.worker.samples().take().is_some() {}
    }

    /// Takes a policy for so many tables, as a worker does between two of its turns: each is this one.
    pub(crate) fn obey(&mut self, threshold: u32, pins: Vec<Arc<Pins>>) {
        for pins in pins {
            let rules = Rules {
                pins: Some(pins),
                only_pins: false,
            };
            self.worker.sample(0, threshold);
            self.worker.rule(0, &rules);
        }
        self.worker.load_pinned(Arc::new([]));
    }

    /// Rows whose place is below the threshold are sampled from now on.
    pub(crate) fn sample(&mut self, threshold: u32) {
        self.worker.sample(0, threshold);
    }

    /// The worker.
    pub(crate) fn worker(&self) -> &Worker {
        &self.worker
    }

    /// Lookups of a trace without a fetch, where it comes in batches of so many lookups: each is known as a whole when its first is
    /// done, and `waiting` batches after it, too.
    pub(crate) fn hits_of_batches(
        &mut self,
        trace: &[u32],
        lookups: usize,
        waiting: usize,
    ) -> usize {
        for from in (0..trace.len()).step_by(lookups) {
            let end = trace.len().min(from + lookups);
            let known = trace.len().min(from + lookups * (1 + waiting));
            for at in (from..end).step_by(BAG) {
                let next = end.min(at + BAG);
                self.look_up(&trace[at..next], &trace[next..known]);
            }
        }
        trace.len() - self.fetched()
    }

    /// Rows fetched so far.
    fn fetched(&self) -> usize {
        self.worker.fetch_counters().fetched as usize
    }

    /// Looks a bag up, and fetches what it lacks; `ahead` is looked up next.
    pub(crate) fn look_up(&mut self, bag: &[u32], ahead: &[u32]) {
        let places = &mut self.places[..bag.len()];
        let (found, mut parker) = self.worker.find(self.turns.turn(), 0, bag, places);
        if found.misses() == 0 {
            self.worker.touch_hits();
            return;
        }
        self.bag.clear();
        self.bag.extend(bag);
        let parked = parker.park(0, fetch::Lane::default(), &mut self.bag, &found, 0);
        let parked = parked.expect("there is room for a bag");
        loop {
            if self.worker.asks_ahead() {
                self.worker.ahead(iter::once((0, ahead)));
            }
            self.worker.poll(0);
            if let Some(ready) = self.worker.next_ready() {
                assert_eq!((ready.bag, ready.outcome), (parked, Ok(())));
                self.worker.release(parked, &self.bag);
                return;
            }
            self.turns.pass();
        }
    }
}

impl reference::Cache for Adaptive {
    fn access(&mut self, row: u32) -> bool {
        let before = self.fetched();
        self.look_up(&[row], &[]);
        self.fetched() == before
    }
}

/// A tier that has all rows.
struct AtOnce {
    block: Vec<u8>,
    row_bytes: usize,
    wanted: Vec<Wanted>,
}

impl Tier for AtOnce {
    fn fetch(&mut self, _: u64, wanted: Wanted) -> Result<(), FetchesFull> {
        self.wanted.push(wanted);
        Ok(())
    }

    fn poll(&mut self, _: u64, each: EachRow<'_>) {
        let ends = self.block.len() - self.row_bytes + 1;
        for wanted in self.wanted.drain(..) {
            let from = wanted.row as usize * 64 % ends;
            each(wanted.token, Ok(&self.block[from..from + self.row_bytes]));
        }
    }

    fn unanswered(&self) -> usize {
        self.wanted.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::generators::{GENERATORS, ROWS};

    /// A part of a generated trace, and a size of the cache that has to do with more rows than it holds.
    fn part(name: &str) -> Vec<u32> {
        let generator = GENERATORS.iter().find(|g| g.name == name);
        generator.expect("a generator").trace()[100_000..350_000].to_vec()
    }

    /// Hits of a policy in `reference`.
    fn known_hits(policy: &str, trace: &[u32], capacity: usize) -> usize {
        let rows = 1 + *trace.iter().max().expect("a trace") as usize;
        let cache = reference::online(policy, capacity, rows);
        reference::hits(&mut *cache.expect("a policy"), trace)
    }

    /// It has no more than half a point less than the best of the known policies, whose hits these are.
    fn assert_is_as_good(name: &str, trace: &[u32], capacity: usize) -> usize {
        let known = reference::ONLINE.map(|policy| known_hits(policy, trace, capacity));
        let best = known.into_iter().max().expect("policies");
        let mut cache = Adaptive::of_single(capacity).expect("a cache");
        let found = reference::hits(&mut cache, trace);
        let least = best - trace.len() / 200;
        assert!(found >= least, "{name}: {found} hits, {least} are needed");
        best
    }

    #[test]
    fn it_is_as_good_as_the_best_of_the_known_policies() {
        for name in ["zipf-0.8", "scan", "shift", "weak-recency"] {
            assert_is_as_good(name, &part(name), 5_000);
        }
    }

    /// A loop through so many rows in order beside the rows of a generated trace; `parts` of five lookups are of the loop.
    fn loop_beside(name: &str, rows: usize, parts: usize, lookups: usize) -> Vec<u32> {
        let mut popular = part(name).into_iter();
        let mut in_order = (ROWS as u32..(ROWS + rows) as u32).cycle();
        let next = |at| match at % 5 < parts {
            true => in_order.next(),
            false => popular.next(),
        };
        (0..lookups).map_while(next).collect()
    }

    #[test]
    fn a_loop_beside_popular_rows_keeps_its_part() {
        let trace = loop_beside("zipf-0.8", 30_000, 3, 250_000);
        let best = assert_is_as_good("loop", &trace, 10_000);
        let lru = known_hits("lru", &trace, 10_000);
        assert!(best > lru + trace.len() / 20, "the loop is no trial");
    }

    #[test]
    fn a_loop_is_hit_when_it_begins_anew() {
        // It goes round twice. W-TinyLFU holds the first rows that came, whatever they are, and so is better than what learns that they come again.
        let trace = loop_beside("zipf-1.0", 60_000, 3, 200_000);
        let tiny_lfu = known_hits("w-tinylfu", &trace, 20_000);
        let mut cache = Adaptive::of_single(20_000).expect("a cache");
        let found = reference::hits(&mut cache, &trace);
        let least = tiny_lfu - trace.len() / 100;
        assert!(found >= least, "{found} hits, {least} are needed");
        let lru = known_hits("lru", &trace, 20_000);
        assert!(
            tiny_lfu > lru + trace.len() / 20,
            "the loop is no trial: {tiny_lfu}, {lru}"
        );
    }

    #[test]
    fn rows_that_are_used_twice_wait_for_the_second_time_only() {
        // A session begins with each second lookup, and comes again 12,000 to 20,000 lookups later.
        let mut random = fastrand::Rng::with_seed(1);
        let mut trace = vec![u32::MAX; 400_000];
        let mut sessions = ROWS as u32..;
        for at in 0..trace.len() {
            if trace[at] < u32::MAX {
                continue;
            }
            trace[at] = sessions.next().expect("numbers");
            let from = at + 12_000;
            let mut later = (from + random.usize(0..8_000)..trace.len())
                .filter(|&later| trace[later] == u32::MAX);
            if let Some(again) = later.next() {
                trace[again] = trace[at];
            }
        }
        // All that wait have room, but not beside those that came again.
        let mut cache = Adaptive::of_single(10_000).expect("a cache");
        let found = reference::hits(&mut cache, &trace);
        let lru = known_hits("lru", &trace, 10_000);
        assert!(found > trace.len() * 2 / 5, "{found}");
        assert!(lru < trace.len() / 10, "{lru}");
    }

    #[test]
    fn what_looks_like_a_scan_may_be_used_again() {
        // 20,000 rows come one after another, and again in the same order, and never after that.
        let twice = |first: u32| (0..2).flat_map(move |_| first..first + 20_000);
        let trace: Vec<u32> = (0..8).flat_map(|i| twice(20_000 * i)).collect();
        let lru = known_hits("lru", &trace, 25_000);
        assert_eq!(lru, trace.len() / 2);
        // New rows are refused as a scan's the first two times.
        let mut cache = Adaptive::of_single(25_000).expect("a cache");
        let found = reference::hits(&mut cache, &trace);
        assert!(found > lru * 3 / 4, "{found} of {lru}");
    }

    #[test]
    fn of_rows_that_come_together_those_that_are_wanted_sooner_stay() {
        // Any row may be in any slot.
        let slots = 2 * WAYS;
        let shape = Shape::new(slots as u32, 1, ROW_BYTES, ROW_BYTES).expect("a shape");
        let cache = Adaptive::of_shape(shape, BAG, HugePages::Off, vec![0; ROW_BYTES]);
        let mut cache = cache.expect("a cache");
        let bag: Vec<u32> = (0..BAG as u32).collect();
        let ahead: Vec<u32> = bag.iter().rev().copied().collect();
        cache.look_up(&bag, &ahead);
        assert_eq!(cache.fetched(), BAG);
        cache.look_up(&ahead[..slots], &[]);
        assert_eq!(cache.fetched(), BAG);
    }

    #[test]
    fn batches_that_are_known_hit_more_often() {
        let trace = part("weak-recency");
        let mut single = Adaptive::of_single(1_000).expect("a cache");
        let single = reference::hits(&mut single, &trace);
        let batches = |waiting: usize| {
            let mut cache = Adaptive::of_bags(1_000).expect("a cache");
            cache.hits_of_batches(&trace, 5_120, waiting)
        };
        let (known, more_known) = (batches(0), batches(1));
        assert!(
            known > single * 5 / 4,
            "{known} hits, without lookahead {single}"
        );
        assert!(
            more_known > known,
            "{more_known} hits with a batch waiting, else {known}"
        );
    }
}
