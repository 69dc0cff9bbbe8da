//! What a cache would have that drops the least recently used row, reckoned from what the policy learns anyway.
//!
//! Such a cache holds the rows at the top of a stack on which each row is laid when it is used (Mattson, Gecsei, Slutz and Traiger,
//! "Evaluation techniques for storage hierarchies", 1970). So it is counted how many rows were used last in each of some cells of time: a
//! lookup adds a row to the newest, and takes one from that of the use before, if the row is known. As far back as there are as many
//! rows as slots it would have them all.
//!
//! Of hits only bands of age are known, within which they are taken to be spread evenly. A row that was forgotten stays in its cell and
//! comes again as another, so it rather says less of such a cache than more.

use super::ages::{BANDS, first, ticks};
use super::word::TICKS;

/// Ticks of a cell: a sixteenth of what it takes to look up as many rows as there are slots.
const CELL: u64 = 2;
/// Cells that are kept, of 16 turnovers. Where fewer rows than there are slots were used in these, all ages are within reach.
const CELLS: usize = 256;
/// Lookups that are learnt together at least. With 1,000 slots each time takes some 2,700 instructions (callgrind).
const TOGETHER: f64 = 128.0;
/// Of its slots the part that a row may have whose place is one of 32: what is between a cache of sets and one in which any slot will do. From 0.95
/// to 1, hit rates of some traces were the same within 0.1 points.
const REACHED: f64 = 0.97;

/// Uses among some lookups.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Uses {
    /// All lookups.
    pub(super) lookups: f64,
    /// Of rows that were there.
    pub(super) had: f64,
    /// Of rows that a cache by recency would have had.
    pub(super) by_recency: f64,
}

/// See the module's text. Of the shards of one policy.
#[derive(Clone, Debug)]
pub(super) struct Stack {
    slots: f64,
    /// Rows by the cell of their last use: a ring.
    rows: [f32; CELLS],
    /// The newest cell: its number since the beginning.
    newest: u64,
    /// What was not learnt yet: lookups, hits by band, and misses within reach.
    lookups: f64,
    hits: [f64; BANDS],
    missed: f64,
    /// Ages below it are within reach.
    reach: f64,
}

impl Stack {
    pub(super) fn new(slots: usize) -> Stack {
        Stack {
            slots: slots as f64,
            rows: [0.0; CELLS],
            newest: 0,
            lookups: 0.0,
            hits: [0.0; BANDS],
            missed: 0.0,
            reach: f64::from(TICKS),
        }
    }

    /// There are so many slots from now on.
    pub(super) fn resize(&mut self, slots: usize) {
        self.slots = slots as f64;
    }

    /// Rows that were there were used at an age in a band.
    pub(super) fn hit(&mut self, band: usize, times: f64) {
        self.hits[band] += times;
    }

    /// A row that is known and was not there was used at this age, which is in ticks, as `now` is.
    pub(super) fn missed(&mut self, now: u64, age: u16) {
        if f64::from(age) < self.reach {
            self.missed += 1.0;
        }
        let cell = now.saturating_sub(age.into()) / CELL;
        self.take(self.newest.saturating_sub(cell), 1.0);
    }

    /// So many lookups were done, until this tick. Tells of some lookups now and then.
    pub(super) fn pass(&mut self, lookups: f64, now: u64) -> Option<Uses> {
        self.lookups += lookups;
        let cell = now / CELL;
        // Where the pace of ticks changes, it may become a little earlier for once.
        if cell <= self.newest || self.lookups < TOGETHER {
            return None;
        }
        let lookups = std::mem::take(&mut self.lookups);
        let mut uses = Uses {
            lookups,
            had: 0.0,
            by_recency: std::mem::take(&mut self.missed),
        };
        let passed = (cell - self.newest).min(CELLS as u64);
        for cell in cell - passed..cell {
            self.rows[at(cell)] += (lookups / passed as f64) as f32;
            self.rows[at(cell + 1)] = 0.0;
        }
        for band in 0..BANDS {
            let hits = std::mem::take(&mut self.hits[band]);
            if hits > 0.0 {
                uses.had += hits;
                uses.by_recency += hits * self.within_reach(band);
                self.take_band(band, hits);
            }
        }
        self.newest = cell;
        self.reach = self.reach_now();
        Some(uses)
    }

    /// The part of a band that is within reach.
    fn within_reach(&self, band: usize) -> f64 {
        ((self.reach - f64::from(first(band))) / ticks(band)).clamp(0.0, 1.0)
    }

    /// Takes rows that were used again from the cells of their last use: those of a band, on average half a cell ago.
    fn take_band(&mut self, band: usize, rows: f64) {
        let half = CELL as f64 / 2.0;
        let mut from = f64::from(first(band)) + half;
        let end = from + ticks(band);
        while from < end {
            let back = (from / CELL as f64) as u64;
            let next = end.min(((back + 1) * CELL) as f64);
            self.take(back, rows * (next - from) / ticks(band));
            from = next;
        }
    }

    /// Takes rows from the cell so far back, if it is still kept.
    fn take(&mut self, back: u64, rows: f64) {
        if back < CELLS as u64 && back <= self.newest {
            self.rows[at(self.newest - back)] -= rows as f32;
        }
    }

    /// The age up to which there are as many rows as a cache by recency has.
    fn reach_now(&self) -> f64 {
        let mut room = self.slots * REACHED;
        let kept = self.newest.min(CELLS as u64 - 1);
        for back in 1..=kept {
            // Bands are coarse, and more may have been taken from a cell than there was.
            let rows = f64::from(self.rows[at(self.newest - back)].max(0.0));
            if rows >= room {
                // On average it is half a cell since the newest began.
                return CELL as f64 * (back as f64 - 0.5 + room / rows);
            }
            room -= rows;
        }
        f64::from(TICKS)
    }
}

/// The place of a cell in the ring.
fn at(cell: u64) -> usize {
    (cell % CELLS as u64) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::ages::{BANDS, band};
    use crate::clock::TICKS_PER_TURNOVER;

    const SLOTS: usize = 2048;
    const TICK: u64 = SLOTS as u64 / TICKS_PER_TURNOVER;

    /// Rows looked up one by one, half of them found. Returns what a cache by recency had in fact of as many slots as are reached, and what was
    /// reckoned, after as many lookups as there are slots.
    fn had_and_reckoned(trace: impl Iterator<Item = u32>) -> (f64, f64) {
        let (mut stack, mut used) = (Stack::new(SLOTS), HashMap::<u32, u64>::new());
        // From the row that was used last on.
        let mut order: Vec<u32> = Vec::new();
        let (mut had, mut reckoned) = (0.0, 0.0);
        for (at, row) in trace.enumerate() {
            let now = at as u64 / TICK;
            let depth = order.iter().rev().position(|&other| other == row);
            if let Some(depth) = depth {
                order.remove(order.len() - 1 - depth);
                let age = (now - used[&row]).min(TICKS.into()) as u16;
                match row % 2 {
                    0 => stack.hit(band(age), 1.0),
                    _ => stack.missed(now, age),
                }
            }
            order.push(row);
            used.insert(row, now);
            let uses = stack.pass(1.0, (at as u64 + 1) / TICK).unwrap_or_default();
            if at >= SLOTS {
                let is_reached = |depth| (depth as f64) < REACHED * SLOTS as f64;
                had += f64::from(u8::from(depth.is_some_and(is_reached)));
                reckoned += uses.by_recency;
            }
        }
        (had, reckoned)
    }

    #[test]
    fn what_is_reckoned_is_what_such_a_cache_has() {
        const LOOKUPS: usize = 40_000;
        let mut random = fastrand::Rng::with_seed(3);
        // Popular rows; new rows that are used while they are new; back and forth; in a loop that is too long.
        let popular = |random: &mut fastrand::Rng| (20_000.0 * random.f64().powi(4)) as u32;
        let popular: Vec<u32> = (0..LOOKUPS).map(|_| popular(&mut random)).collect();
        let newer = |at| 40_000 + at as u32 / 4 - random.u32(..1_500).min(random.u32(..1_500));
        let new: Vec<u32> = (0..LOOKUPS).map(newer).collect();
        let there = || 0..6_000;
        let sweeps: Vec<u32> = there().chain(there().rev()).cycle().take(LOOKUPS).collect();
        let in_order: Vec<u32> = there().cycle().take(LOOKUPS).collect();
        for (name, trace) in [
            ("popular", popular),
            ("new", new),
            ("sweeps", sweeps),
            ("loop", in_order),
        ] {
            let (had, reckoned) = had_and_reckoned(trace.into_iter());
            let off = (reckoned - had).abs() / LOOKUPS as f64;
            assert!(off < 0.03, "{name}: {had} hits, {reckoned} reckoned");
        }
    }

    #[test]
    fn lookups_are_told_of_together_and_none_twice() {
        let mut stack = Stack::new(SLOTS);
        let mut told = 0.0;
        for at in 1..=10_000u64 {
            if let Some(uses) = stack.pass(1.0, at / TICK) {
                assert!(
                    uses.lookups >= TOGETHER
                        && uses.lookups <= TOGETHER + CELL as f64 * TICK as f64
                );
                told += uses.lookups;
            }
        }
        assert!(told > 9_500.0 && told <= 10_000.0, "{told}");
    }

    #[test]
    fn time_may_go_back_when_its_pace_changes() {
        let mut stack = Stack::new(SLOTS);
        assert!(stack.pass(1_000.0, 400).is_some());
        assert_eq!(stack.pass(1_000.0, 300), None);
        stack.missed(300, 5);
        let uses = stack.pass(1_000.0, 500).expect("it is later");
        assert_eq!((uses.lookups, uses.by_recency), (2_000.0, 1.0));
    }

    proptest! {
        /// Whatever is told of, no more is reckoned than there were uses of known rows, and nothing goes wrong where time jumps.
        #[test]
        fn no_more_is_reckoned_than_was_used(
            acts in prop::collection::vec((0..3u8, 0..BANDS, any::<u16>(), 0..3000u64), 0..200),
        ) {
            let mut stack = Stack::new(SLOTS);
            let (mut now, mut used, mut told) = (0, 0.0, Uses::default());
            for (act, band, age, ticks) in acts {
                match act {
                    0 => stack.hit(band, 1.0),
                    1 => stack.missed(now, age),
                    _ => {
                        now += ticks;
                        if let Some(uses) = stack.pass(ticks as f64 * 10.0, now) {
                            prop_assert!((0.0..=used + 1e-9).contains(&uses.by_recency));
                            told = uses;
                            used = 0.0;
                        }
                        continue;
                    }
                }
                used += 1.0;
            }
            prop_assert!(told.had >= 0.0);
        }
    }
}
