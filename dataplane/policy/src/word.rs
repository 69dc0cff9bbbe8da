//! What is known of a cached row, in 16 bits: how often it was used, and when last.

use super::draw::Draw;

/// Classes of rows, by how often they were used.
pub const CLASSES: usize = 16;

/// Uses that a class begins with. A row's first use counts.
const USES: [u32; CLASSES] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];

/// Of the 2^32 words that a draw may give, those with which a class is left: one in the uses that it covers.
const LEAVING: [u64; CLASSES] = {
    let mut leaving = [0; CLASSES];
    let mut class = 0;
    while class + 1 < CLASSES {
        leaving[class] = (u32::MAX / (USES[class + 1] - USES[class])) as u64 + 1;
        class += 1;
    }
    leaving
};

const STAMP_BITS: u32 = 12;
const STAMP: u16 = (1 << STAMP_BITS) - 1;
const _: () = assert!(CLASSES == 1 << (u16::BITS - STAMP_BITS));

/// Ticks after which a word that was not touched seems to be new again: a stamp has 12 bits.
pub const TICKS: u16 = 1 << STAMP_BITS;

/// A moment of the policy's coarse clock, which goes with the lookups and wraps around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tick(u16);

impl Tick {
    /// The low bits of a count of ticks.
    #[inline]
    pub fn new(ticks: u64) -> Tick {
        Tick(ticks as u16 & STAMP)
    }
}

/// The meta word of a slot: the class of its row (4 bits), and the tick of its last use (12 bits).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Word(u16);

impl Word {
    /// Of a row that is used for the first time.
    #[inline]
    pub fn new(tick: Tick) -> Word {
        Word(tick.0)
    }

    /// As it lies in a meta word; any value is one.
    #[inline]
    pub fn from_bits(bits: u16) -> Word {
        Word(bits)
    }

    /// As it is to lie in a meta word.
    #[inline]
    pub fn bits(self) -> u16 {
        self.0
    }

    /// After another use. A class that covers many uses is left by a draw, on average after so many; so the word stays as it
    /// is for most uses within a tick.
    ///
    /// Without a branch: it would be guessed from a word that has still to come from memory, and mostly wrongly.
    #[inline]
    #[must_use]
    pub fn touched(self, tick: Tick, draw: &mut Draw) -> Word {
        let class = self.class();
        let more = u64::from(draw.word()) < LEAVING[class];
        let class = class as u16 + u16::from(more);
        Word(class << STAMP_BITS | tick.0)
    }

    /// How often its row was used: below [`CLASSES`], more is more.
    #[inline]
    pub fn class(self) -> usize {
        (self.0 >> STAMP_BITS).into()
    }

    /// Ticks since its last use, below [`TICKS`].
    #[inline]
    pub fn age(self, now: Tick) -> u16 {
        now.0.wrapping_sub(self.0) & STAMP
    }

    /// The same with an age of three quarters of what a stamp can tell, if it is older.
    pub(super) fn kept_from_wrapping(self, now: Tick) -> Word {
        const OLDEST: u16 = TICKS / 4 * 3;
        if self.age(now) <= OLDEST {
            return self;
        }
        Word((self.0 & !STAMP) | (now.0.wrapping_sub(OLDEST) & STAMP))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_wrap_around() {
        for from in [0, 1, 4000, 4095, 4096, 1 << 40] {
            let word = Word::new(Tick::new(from));
            for age in [0, 1, 95, 4095] {
                assert_eq!(u64::from(word.age(Tick::new(from + age))), age);
            }
            assert_eq!(word.age(Tick::new(from + 4096)), 0);
        }
    }

    #[test]
    fn old_words_are_kept_from_wrapping() {
        let word = Word::from_bits(0x7123);
        let at = |age| word.kept_from_wrapping(Tick::new(0x123 + age));
        assert_eq!(at(3072), word);
        for age in [3073, 4095] {
            assert_eq!(at(age).age(Tick::new(0x123 + age)), 3072);
            assert_eq!(at(age).class(), 7);
        }
    }

    #[test]
    fn classes_are_reached_after_their_uses() {
        let mut draw = Draw::new(1);
        let mut reached = [0u32; CLASSES];
        const ROWS: u32 = 4_000;
        for _ in 0..ROWS {
            let mut word = Word::new(Tick::new(0));
            let mut uses = 1;
            reached[0] += uses;
            while word.class() + 1 < CLASSES {
                let class = word.class();
                word = word.touched(Tick::new(9), &mut draw);
                uses += 1;
                if word.class() > class {
                    reached[word.class()] += uses;
                }
            }
            assert_eq!(word.touched(Tick::new(9), &mut draw), word);
        }
        for (class, (uses, reached)) in USES.iter().zip(reached).enumerate() {
            let mean = f64::from(reached) / f64::from(ROWS);
            let expected = f64::from(*uses);
            assert!(
                (mean / expected - 1.0).abs() < 0.03,
                "{class}: {mean}, {expected}"
            );
        }
    }
}
