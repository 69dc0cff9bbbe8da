//! What was found in a turn.

use core::num::NonZeroU32;
use core::sync::atomic::{AtomicU16, Ordering};

use rowmill_arena::prefetch_line;

use super::memory::Memory;
use super::tags::MISS;

/// Hits that are drawn before the first of them is touched: some more lines than a core has on their way at once.
const DRAWN: usize = 64;
/// Where all are touched, hits that are on their way at once.
const AHEAD: usize = 16;

/// The places of a piece's rows, found in a turn and good while it lasts.
#[derive(Clone, Copy, Debug)]
pub struct Found<'t> {
    memory: &'t Memory,
    places: &'t [u32],
    misses: usize,
}

impl<'t> Found<'t> {
    pub(super) fn new(memory: &'t Memory, places: &'t [u32], misses: usize) -> Found<'t> {
        Found {
            memory,
            places,
            misses,
        }
    }

    /// The slot of each row, or [`MISS`].
    pub fn places(&self) -> &'t [u32] {
        self.places
    }

    /// How many rows are missed.
    pub fn misses(&self) -> usize {
        self.misses
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.memory.most().row_bytes()
    }

    /// Copies the row at a position of the piece.
    ///
    /// # Panics
    /// If it is missed, there is no such position, or `out` is not as long as a row.
    pub fn copy_row(&self, position: usize, out: &mut [u8]) {
        let place = self.places[position];
        assert_ne!(place, MISS, "the row at {position}");
        self.memory.read_row(place, out);
    }

    /// Draws hits, and puts `touched(n, word)` into the place of the meta word of each one that is drawn; `n` counts them.
    pub fn touch(&self, sample: &mut Sample, touched: impl FnMut(usize, u16) -> u16) {
        touch(self.memory, self.places, sample, touched);
    }

    /// Asks for the row at a position to be on its way, before [`copy_row`](Self::copy_row). Where it is missed nothing is done.
    pub fn prefetch_row(&self, position: usize) {
        let place = self.places[position];
        if place != MISS {
            self.memory.prefetch_row(place);
        }
    }
}

/// Draws hits, and puts `touched(n, word)` into the place of the meta word of each one that is drawn; `n` counts them.
///
/// A word is stored only where it changes: its line is shared by all workers.
#[inline]
pub(super) fn touch(
    memory: &Memory,
    places: &[u32],
    sample: &mut Sample,
    mut touched: impl FnMut(usize, u16) -> u16,
) {
    let metas = memory.metas();
    let mut touch = |n: usize, meta: &AtomicU16| {
        let old = meta.load(Ordering::Relaxed);
        let new = touched(n, old);
        if new != old {
            meta.store(new, Ordering::Relaxed);
        }
    };
    if sample.every == 1 {
        // Lines are asked for so many hits ahead: they may be far away, and a core begins few touches at once.
        let slots = || places.iter().map(|&place| metas.get(place as usize));
        for meta in slots().take(AHEAD).flatten() {
            prefetch_line(meta);
        }
        let mut ahead = slots().skip(AHEAD);
        for (n, &place) in places.iter().enumerate() {
            if let Some(Some(meta)) = ahead.next() {
                prefetch_line(meta);
            }
            // A miss is no slot.
            if let Some(meta) = metas.get(place as usize) {
                touch(n, meta);
            }
        }
        return;
    }
    let mut position = sample.skip;
    while position < places.len() {
        // Lines are asked for before the first is touched: they are far away.
        let mut count = 0;
        while position < places.len() && count < DRAWN {
            let place = places[position];
            if let Some(meta) = metas.get(place as usize) {
                prefetch_line(meta);
                sample.drawn[count] = place;
                count += 1;
            }
            position += sample.step();
        }
        for (n, &place) in sample.drawn[..count].iter().enumerate() {
            touch(n, &metas[place as usize]);
        }
    }
    sample.skip = position - places.len();
}

/// Draws one hit in so many, evenly over pieces, however short they are.
///
/// Steps are drawn at random, lest positions of a bag be drawn always or never.
#[derive(Clone, Debug)]
pub struct Sample {
    every: u32,
    state: u64,
    /// Positions until the next one that is drawn.
    skip: usize,
    /// The slots that were drawn and are touched next.
    drawn: [u32; DRAWN],
}

impl Sample {
    /// One position in `every`. The seed may be any.
    pub fn new(every: NonZeroU32, seed: u64) -> Sample {
        let mut sample = Sample {
            every: every.get(),
            state: seed,
            skip: 0,
            drawn: [0; DRAWN],
        };
        sample.skip = sample.step() - 1;
        sample
    }

    /// One hit in how many.
    pub fn every(&self) -> NonZeroU32 {
        NonZeroU32::new(self.every).expect("it was made of one")
    }

    /// One in so many from now on.
    pub fn set_every(&mut self, every: NonZeroU32) {
        self.every = every.get();
    }

    /// From one position to the next: 1 to 2 x `every` - 1, all as likely.
    fn step(&mut self) -> usize {
        if self.every == 1 {
            return 1;
        }
        // Knuth's linear congruential generator, of which the upper bits are used.
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let range = u64::from(self.every) * 2 - 1;
        (((self.state >> 32) * range) >> 32) as usize + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::Shape;
    use rowmill_arena::HugePages;

    fn memory() -> Memory {
        let shape = Shape::new(1024, 1, 4, 4).unwrap();
        Memory::allocate(shape, shape.shard_sets(), 0, HugePages::Off).unwrap()
    }

    #[test]
    fn each_hit_is_touched_once_where_all_are_drawn() {
        let memory = memory();
        let places: Vec<u32> = (0..500)
            .map(|i| if i % 3 == 0 { MISS } else { i })
            .collect();
        let mut sample = Sample::new(NonZeroU32::MIN, 1);
        for piece in places.chunks(77) {
            touch(&memory, piece, &mut sample, |_, word| word + 1);
        }
        for slot in 0..1024 {
            let hit = u16::from(slot < 500 && slot % 3 != 0);
            assert_eq!(memory.meta(slot).load(Ordering::Relaxed), hit, "{slot}");
        }
    }

    #[test]
    fn one_hit_in_so_many_is_drawn_however_short_pieces_are() {
        let memory = memory();
        for (every, length) in [(8, 80), (8, 1), (3, 500), (100, 7)] {
            let mut sample = Sample::new(NonZeroU32::new(every).unwrap(), 9);
            let (mut drawn, pieces) = (0, 40_000 / length);
            let places: Vec<u32> = (0..length).collect();
            for _ in 0..pieces {
                let mut count = |_, word| {
                    drawn += 1;
                    word
                };
                touch(&memory, &places, &mut sample, &mut count);
            }
            let expected = f64::from(pieces * length) / f64::from(every);
            // Steps have a standard deviation of less than 0.58 of their mean.
            let deviation = (f64::from(drawn) - expected).abs() / expected.sqrt();
            assert!(deviation < 4.0, "{drawn} of {expected} in {every}");
        }
    }
}
