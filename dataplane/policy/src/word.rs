//! What is known of a cached row, in 16 bits: how often it was used, whether the last use came soon, and when that was.

use super::clock::TICKS_PER_TURNOVER;
use super::draw::Draw;

/// Classes of rows: by how often they were used, and of rows used two times and more, but for the most used, by whether they lay unused for a
/// turnover or longer before the last one.
///
/// How long a row lay unused says much: of rows used twice those that came again soon are used up to four times as often from then on as others. Where rows are
/// looked up while they are new, or come again in turns, hit rates are up to two points higher for it (bench/RESULTS.md).
pub const CLASSES: usize = 2 * LEVELS - 2;

const LEVELS: usize = 17;

/// Uses that a level begins with. A row's first use counts. What is kept of thousands of turnovers differs by how often popular rows are used: with
/// nine levels up to 64 Zipf loses up to two points of hits.
const USES: [u32; LEVELS] = [
    1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384,
];

/// Of the 2^32 words that a draw may give, those with which a class is left for the next level: one in the uses that it covers.
const LEAVING: [u64; CLASSES] = {
    let mut leaving = [0; CLASSES];
    let mut class = 0;
    while level(class) + 1 < LEVELS {
        let level = level(class);
        leaving[class] = (u32::MAX / (USES[level + 1] - USES[level])) as u64 + 1;
        class += 1;
    }
    leaving
};

/// The class after another use: by whether the level is left, and whether the use came soon.
const NEXT: [[[u8; 2]; 2]; CLASSES] = {
    let mut next = [[[0; 2]; 2]; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        let mut more = 0;
        while more < 2 {
            next[class][more] = of_level(level(class) + more);
            more += 1;
        }
        class += 1;
    }
    next
};

/// The level of a class. Classes 2n - 1 and 2n are of level n: of the latter the last use came soon.
const fn level(class: usize) -> usize {
    class.div_ceil(2)
}

/// The classes of a level: of rows that lay unused for long, and of others. The first and the last level have one class.
const fn of_level(level: usize) -> [u8; 2] {
    match level {
        0 => [0, 0],
        level if level + 1 < LEVELS => [2 * level as u8 - 1, 2 * level as u8],
        _ => [CLASSES as u8 - 1, CLASSES as u8 - 1],
    }
}

/// The class of rows of the level below that came as soon. Rows of the highest class are compared with those that came soon.
pub(super) fn below(class: usize) -> Option<usize> {
    match level(class) {
        0 => None,
        1 => Some(0),
        _ if class + 1 == CLASSES => Some(class - 1),
        _ => Some(class - 2),
    }
}

/// The class with half the uses, or that of rows used twice.
const HALVED: [u8; CLASSES] = {
    let mut halved = [0; CLASSES];
    let mut class = 1;
    while class < CLASSES {
        // From the fourth use on two levels are half the uses.
        let level = level(class).saturating_sub(2);
        let of_level = of_level(if level == 0 { 1 } else { level });
        halved[class] = of_level[if class + 1 == CLASSES {
            1
        } else {
            1 - class % 2
        }];
        class += 1;
    }
    halved
};

const STAMP_BITS: u32 = 11;
const STAMP: u16 = (1 << STAMP_BITS) - 1;
const _: () = assert!(CLASSES == 1 << (u16::BITS - STAMP_BITS));

/// Ticks after which a word that was not touched seems to be new again: a stamp has 11 bits.
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

/// Ticks since all counts of uses were halved, as far as a stamp can tell. What was not used since has to be halved still: see [`Word::halved`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalvedAgo(u16);

impl HalvedAgo {
    pub(super) fn new(ticks: u64) -> HalvedAgo {
        // A word that is older than a stamp can tell seems to be younger, so that it can't be known of it.
        let ticks = u16::try_from(ticks).unwrap_or(u16::MAX);
        HalvedAgo(if ticks < TICKS { ticks } else { u16::MAX })
    }
}

/// The meta word of a slot: the class of its row (5 bits), and the tick of its last use (11 bits).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Word(u16);

impl Word {
    /// Of a row that is used for the first time.
    #[inline]
    pub fn new(tick: Tick) -> Word {
        Word(tick.0)
    }

    /// Of a row of a class, which is below [`CLASSES`], that was used last at a tick.
    #[inline]
    pub fn of(class: usize, tick: Tick) -> Word {
        debug_assert!(class < CLASSES, "class {class}");
        Word((class as u16) << STAMP_BITS | tick.0)
    }

    /// Of a row that was used about so often, soon each time, and last at a tick.
    pub fn of_uses(uses: u32, tick: Tick) -> Word {
        let level = USES.partition_point(|&from| from <= uses);
        Word::of(of_level(level.saturating_sub(1))[1].into(), tick)
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

    /// After another use. A level that covers many uses is left by a draw, on average after so many; so the word stays as it
    /// is for most uses within a tick.
    ///
    /// Without a branch: it would be guessed from a word that has still to come from memory, and mostly wrongly.
    #[inline]
    #[must_use]
    pub fn touched(self, tick: Tick, draw: &mut Draw) -> Word {
        let class = self.class();
        let more = u64::from(draw.word()) < LEAVING[class];
        let soon = u64::from(self.age(tick)) < TICKS_PER_TURNOVER;
        let class = NEXT[class][usize::from(more)][usize::from(soon)];
        Word::of(class.into(), tick)
    }

    /// As it is since counts were halved: a row that was not used since is of the class with half the uses. Whoever looks at a word that lay in a slot does this first.
    #[inline]
    #[must_use]
    pub fn halved(self, now: Tick, ago: HalvedAgo) -> Word {
        // In the tick itself there are uses before and behind it, and none is halved twice.
        let class = match self.age(now) <= ago.0 {
            true => self.class(),
            false => HALVED[self.class()].into(),
        };
        Word::of(class, Tick(self.0 & STAMP))
    }

    /// The classes that have half the uses, by class.
    pub(super) fn halved_classes() -> impl Iterator<Item = usize> {
        HALVED.into_iter().map(usize::from)
    }

    /// What it tells of its row but the time: below [`CLASSES`]. More is used more often, or else sooner after the use before.
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
        for from in [0, 1, 2000, 2047, 2048, 1 << 40] {
            let word = Word::new(Tick::new(from));
            for age in [0, 1, 95, 2047] {
                assert_eq!(u64::from(word.age(Tick::new(from + age))), age);
            }
            assert_eq!(word.age(Tick::new(from + 2048)), 0);
        }
    }

    #[test]
    fn old_words_are_kept_from_wrapping() {
        let word = Word::of(7, Tick::new(0x123));
        let at = |age| word.kept_from_wrapping(Tick::new(0x123 + age));
        assert_eq!(at(1536), word);
        for age in [1537, 2047] {
            assert_eq!(at(age).age(Tick::new(0x123 + age)), 1536);
            assert_eq!(at(age).class(), 7);
        }
    }

    #[test]
    fn levels_are_reached_after_their_uses() {
        let mut draw = Draw::new(1);
        let mut random = fastrand::Rng::with_seed(3);
        let mut reached = [0u32; LEVELS];
        const ROWS: u32 = 4_000;
        for _ in 0..ROWS {
            let mut word = Word::new(Tick::new(0));
            let mut uses = 1;
            reached[0] += uses;
            let mut now = 9;
            while word.class() + 1 < CLASSES {
                let before = level(word.class());
                // Rows that come late rise as fast.
                now += [3, 40][usize::from(random.bool())];
                word = word.touched(Tick::new(now), &mut draw);
                uses += 1;
                if level(word.class()) > before {
                    reached[level(word.class())] += uses;
                }
            }
            assert_eq!(word.touched(Tick::new(now), &mut draw), word);
        }
        for (level, (uses, reached)) in USES.iter().zip(reached).enumerate() {
            let mean = f64::from(reached) / f64::from(ROWS);
            let expected = f64::from(*uses);
            assert!(
                (mean / expected - 1.0).abs() < 0.03,
                "{level}: {mean}, {expected}"
            );
        }
    }

    #[test]
    fn classes_tell_rows_that_come_soon_from_others() {
        let mut draw = Draw::new(2);
        // Once soon and once late in turn, and whatever came before says nothing.
        for waits in [[3, 32], [31, 900], [2047, 0]] {
            let mut word = Word::new(Tick::new(7));
            let mut now = 7;
            while word.class() + 1 < CLASSES {
                for wait in waits {
                    now += wait;
                    word = word.touched(Tick::new(now), &mut draw);
                    let came_soon = wait < TICKS_PER_TURNOVER;
                    let is_soon = word.class().is_multiple_of(2);
                    assert!(
                        is_soon == came_soon || word.class() + 1 == CLASSES,
                        "{wait}: {word:?}"
                    );
                }
            }
        }
        // The most used are not told apart.
        let most = Word::of(CLASSES - 1, Tick::new(0));
        for wait in [0, 32, 2000] {
            assert_eq!(
                most.touched(Tick::new(wait), &mut draw).class(),
                CLASSES - 1
            );
        }
    }

    #[test]
    fn half_the_uses_are_half_and_came_as_soon() {
        for (class, halved) in Word::halved_classes().enumerate() {
            let (uses, half) = (USES[level(class)], USES[level(halved)]);
            // Rows that were used again are not new ones.
            let expected = if class == 0 { 1 } else { (uses / 2).max(2) };
            assert_eq!(half, expected, "{class}");
            let is_told = class > 0 && class + 1 < CLASSES;
            assert!(!is_told || class % 2 == halved % 2, "{class}");
        }
    }

    #[test]
    fn what_is_below_a_class_is_used_less_and_came_as_soon() {
        assert_eq!([0, 1, 2].map(below), [None, Some(0), Some(0)]);
        for class in 3..CLASSES {
            let other = below(class).unwrap();
            assert_eq!(level(other) + 1, level(class));
            // Of the most used, those that came soon.
            assert_eq!(other % 2, if class + 1 == CLASSES { 0 } else { class % 2 });
        }
    }
}
