//! The built-in policy with the store that it is made for, in one thread: rows are there as soon as they are asked for.

use std::num::NonZeroU32;
use std::sync::Arc;

use anyhow::{Context, Result};
use rowmill_arena::HugePages;
use rowmill_cache::policy::{Draw, Lookahead, Policy, Resident, Reuses, Word};
use rowmill_cache::store::{
    Candidate, Epochs, Held, MISS, Sample, Shape, Store, Tags, WAYS, Worker, Writer,
};

use super::reference;

/// Slots besides those of the sets, for rows that are passed on without being taken in. One is used here, for rows come one
/// by one; what is left over from whole sets is counted as held all the same.
const FETCH_SLOTS: usize = 8;
/// A row is its number.
const ROW_BYTES: usize = 4;
/// Of hash functions and draws.
const SEED: u64 = 1;

/// A cache of a table.
pub(crate) struct Adaptive {
    store: Arc<Store>,
    writer: Writer,
    worker: Worker,
    policy: Policy,
    reuses: Reuses,
    all: Sample,
    draw: Draw,
    lookahead: Lookahead,
}

impl Adaptive {
    /// A cache that holds at most `capacity` rows, slots for fetching included, and knows up to `ahead` lookups before they are done.
    ///
    /// # Errors
    /// Where there can be none of that size.
    pub(crate) fn new(capacity: usize, ahead: usize) -> Result<Adaptive> {
        let slots = (capacity - FETCH_SLOTS) / WAYS * WAYS;
        let shape = Shape::new(slots as u32, 1, ROW_BYTES, ROW_BYTES).context("--rows")?;
        let (epochs, mut workers) = Epochs::new(1);

        let (store, mut writers) =
            Store::new(shape, SEED, 1, &epochs, Tags::detect(), HugePages::Off)
                .context("the store")?;
        Ok(Adaptive {
            store,
            writer: writers.pop().context("a shard")?,
            worker: workers.pop().context("a worker")?,
            policy: Policy::new(shape.slots(), SEED),
            reuses: Reuses::new(),
            all: Sample::new(NonZeroU32::MIN, SEED),
            draw: Draw::new(SEED),
            lookahead: Lookahead::new(ahead),
        })
    }

    /// Hits of a trace that comes in batches of so many lookups, each known as a whole when its first is done, and `waiting`
    /// batches after it, too.
    pub(crate) fn hits_of_batches(
        &mut self,
        trace: &[u32],
        lookups: usize,
        waiting: usize,
    ) -> usize {
        let mut hits = 0;
        for from in (0..trace.len()).step_by(lookups) {
            let known = trace[from..].iter().take(lookups * (1 + waiting));
            self.lookahead.load(known.copied());
            for (at, &row) in trace[from..].iter().take(lookups).enumerate() {
                self.lookahead.done(at);
                hits += usize::from(reference::Cache::access(self, row));
            }
        }
        hits
    }

    /// Whether the row was there, which is then noted.
    fn hit(&mut self, row: u32) -> bool {
        let mut place = [MISS];
        let found = self
            .store
            .find(self.worker.turn(), std::slice::from_ref(&row), &mut place);
        let now = self.policy.now();
        let mut noted = |bits| {
            let word = Word::from_bits(bits);
            self.reuses.count(word, now);
            word.touched(now, &mut self.draw).bits()
        };
        found.draw(&mut self.all, &mut noted);
        found.touch(&mut self.all, &mut noted);
        found.misses() == 0
    }

    /// Fetches a row, and takes it in or passes it on.
    fn miss(&mut self, row: u32) {
        let newcomer = self.policy.newcomer(row);
        let empty = |slot: &Candidate| slot.held == Held::Nothing;
        let empty = self.writer.candidates(row).find(empty).map(|c| c.slot);
        let residents = self.writer.candidates(row).filter_map(resident);
        let slot = empty.or_else(|| self.policy.victim(&newcomer, residents, &self.lookahead));
        let Some(slot) = slot else {
            self.policy.refused(newcomer);
            return;
        };
        let (ticket, evicted) = self.writer.begin(row, slot).expect("limbo is empty");
        if let Some(evicted) = evicted {
            let word = Word::from_bits(evicted.meta);
            self.policy.evicted(evicted.row, word);
        }
        // The worker itself is the only one who might have found the row that was there.
        self.writer.advance();
        self.worker.pass();
        self.writer.advance();
        let bytes = row.to_ne_bytes();
        self.writer.publish(ticket, &bytes, newcomer.word.bits());
    }
}

impl reference::Cache for Adaptive {
    fn access(&mut self, row: u32) -> bool {
        let hit = self.hit(row);
        if !hit {
            self.miss(row);
        }
        let words = |set| self.writer.set(set).filter_map(resident).map(|r| r.word);
        self.policy.advance(1, &mut self.reuses, 1, words);
        hit
    }
}

/// The row in a slot, if there is one.
fn resident(slot: Candidate) -> Option<Resident> {
    match slot.held {
        Held::Row(row) => Some(Resident {
            slot: slot.slot,
            row,
            word: Word::from_bits(slot.meta),
        }),
        Held::Nothing | Held::Taken => None,
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

    #[test]
    fn it_is_as_good_as_the_best_of_the_known_policies() {
        for name in ["zipf-0.8", "scan", "weak-recency"] {
            let trace = part(name);
            let hits = |policy: &str| {
                let mut cache = reference::online(policy, 5_000, ROWS).expect("a policy");
                reference::hits(&mut *cache, &trace)
            };
            let best = reference::ONLINE.map(hits).into_iter().max();
            let mut cache = Adaptive::new(5_000, 0).expect("a cache");
            let found = reference::hits(&mut cache, &trace);
            // Half a point less is allowed.
            let least = best.expect("policies") - trace.len() / 200;
            assert!(found >= least, "{name}: {found} hits, {least} are needed");
        }
    }

    #[test]
    fn batches_that_are_known_hit_more_often() {
        let trace = part("weak-recency");
        let mut single = Adaptive::new(1_000, 0).expect("a cache");
        let single = reference::hits(&mut single, &trace);
        let batches = |waiting: usize| {
            let mut cache = Adaptive::new(1_000, 5_120 * (1 + waiting)).expect("a cache");
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
