//! Which rows of a table are kept. A policy of the shards that one worker writes; it learns from what happens, and has nothing to set.
//!
//! - A hit changes the meta word of its slot at most ([`Word::touched`]), by whoever found the row.
//! - A row that was missed is a [`Newcomer`]. It takes the place of the row with the lowest rank of those whose slots it may have, or
//!   of none, if its own rank is lower ([`Policy::victim`]). Ranks are expected uses a tick; `model.rs` says how they are learnt.
//! - Rows that requests in hand or waiting ask for are known to be used, and when ([`Lookahead`]); they go last, and the one
//!   that is used last goes first.
//! - Of rows that are away a ghost remembers words, so that a row's class is known when it comes again.
//! - Counts of uses are halved when there are many rows that were used most: `halving.rs`.
//! - A scan is seen by its rows' not being used again, and then new rows are refused.
//! - Where rows ranked by when they were used last would have had more hits than those ranked by what was learnt, they are ranked so
//!   for some time: `contest.rs` says when, `stack.rs` how that is known.
//!
//! What one worker tells others goes by [`Usage`]; all else is its own.
//!
//! Pure: time is the number of lookups, draws follow from a seed, and nothing is allocated after [`Policy::new`].
#![forbid(unsafe_code)]

mod ages;
mod ahead;
mod clock;
mod contest;
mod draw;
mod ghost;
mod halving;
mod lookahead;
mod model;
mod newcomers;
mod reuses;
mod stack;
mod usage;
mod word;

pub use clock::Clock;
pub use draw::Draw;
pub use lookahead::Lookahead;
pub use reuses::Reuses;
pub use usage::Usage;
pub use word::{CLASSES, HalvedAgo, TICKS, Tick, Word};

use ages::{BANDS, band};
use contest::Contest;
use ghost::Ghost;
use halving::Halving;
use model::Model;
use newcomers::Newcomers;
use stack::Stack;

/// Words that are looked at together: those of a set, or as many.
const WAYS: usize = 16;
/// Rows that the ghost remembers for each slot, 4 bytes each. It matters where popularity is nearly even: on Zipf 0.6 with 5,000 slots
/// twice as many have 0.1 points more, half as many 0.4 less.
const GHOST_ROWS_PER_SLOT: usize = 4;
/// Slots up to which the policy learns by [`PACE_NEAR`]. A line of more is one from memory, and they have more lookups before counts fade.
const SLOTS_NEAR: u64 = 1 << 16;
/// Half a word a lookup. Eight times as many words changed hit rates by less than 0.1 points.
const PACE_NEAR: Pace = Pace {
    lookups: 32,
    lines: 1,
};
/// How often in as many lookups as there are slots one of more slots learns: some microseconds in hundreds or thousands of lookups.
const TIMES_FAR: u64 = 128;
/// And at how many lines it looks each time. With one line 100,000 slots have up to 1.0 points less beside a loop, and 0.1 where popularity is uneven;
/// sixteen times as many lines gain nothing more. No other number of slots was tried.
const LINES_FAR: u64 = 4;
/// Lines looked at in one call at most.
const LINES_MAX: u64 = 16;
/// What is left of counts when they fade. With 0.85 `scan` has 0.3 points less with 25,000 slots.
const FADING: f64 = 0.8;
/// The part of as many lookups as there are slots in which the ranks of all classes are computed anew: ages that rows come to for the first time have to be ranked before these
/// are gone. With all of it, 110,000 rows again and again in other orders have 3 points less with 25,000 slots (bench/RESULTS.md); with a sixteenth 0.4 more.
const RANKED_IN: u64 = 4;
/// And lookups in which they are at least: a class takes up to a microsecond.
const RANKED_LEAST: u64 = 2048;
/// While fewer than so many lookups a slot were done, ranks are computed oftener.
const EARLY: u64 = 4;
/// How much oftener.
const EARLY_FACTOR: u64 = 8;

/// A row that was missed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Newcomer {
    /// The row.
    pub row: u32,
    /// The word that its slot is to get.
    pub word: Word,
    rank: f32,
}

/// A row in a slot that a newcomer may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// The slot.
    pub slot: u32,
    /// The row.
    pub row: u32,
    /// Its word.
    pub word: Word,
}

/// After how many lookups of its shards a policy learns, and how many lines of words it looks at then.
#[derive(Clone, Copy, Debug)]
struct Pace {
    lookups: u64,
    lines: u64,
}

impl Pace {
    fn of(slots: u64) -> Pace {
        if slots <= SLOTS_NEAR {
            return PACE_NEAR;
        }
        Pace {
            lookups: slots / TIMES_FAR,
            lines: LINES_FAR,
        }
    }
}

/// The policy of the shards of a table that one worker writes.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Slots of its shards, and of all shards of the table.
    slots: u64,
    of_slots: u64,
    pace: Pace,
    /// Lookups of the whole table, by which time goes, as far as is known.
    now: u64,
    clock: Clock,
    /// Lookups that others don't know of.
    untold: u64,
    /// When it learnt last.
    learnt: u64,
    /// Lookups of its shards until then.
    lookups: u64,
    /// Uses that it has learnt of.
    known: [[u64; BANDS]; CLASSES],
    model: Model,
    ghost: Ghost,
    newcomers: Newcomers,
    stack: Stack,
    contest: Contest,
    halving: Halving,
    /// The class whose ranks are computed next, and after how many lookups.
    next_class: usize,
    ranks_due: u64,
    fading_due: u64,
    draw: Draw,
}

impl Policy {
    /// A policy that knows nothing, for so many slots of the table's `of_slots`; for none it only keeps the time. The same seed and the
    /// same calls have the same results.
    ///
    /// # Panics
    /// If the table has fewer slots than a set, or fewer than the policy.
    pub fn new(slots: u32, of_slots: u32, seed: u64) -> Policy {
        Policy::with_room(slots, of_slots, slots, seed)
    }

    /// The same for a policy that may be given `most` slots some time, by [`resize`](Self::resize).
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn with_room(slots: u32, of_slots: u32, most: u32, seed: u64) -> Policy {
        assert!(
            of_slots as usize >= WAYS && of_slots >= slots,
            "{slots} slots of {of_slots}"
        );
        let clock = Clock::new(of_slots);
        let (slots, of_slots) = (u64::from(slots), u64::from(of_slots));
        Policy {
            slots,
            of_slots,
            pace: Pace::of(slots),
            now: 0,
            clock,
            untold: 0,
            learnt: 0,
            lookups: 0,
            known: [[0; BANDS]; CLASSES],
            model: Model::new(),
            ghost: Ghost::new(
                GHOST_ROWS_PER_SLOT * slots as usize,
                GHOST_ROWS_PER_SLOT * most as usize,
            ),
            newcomers: Newcomers::new(slots as usize),
            stack: Stack::new(slots as usize),
            contest: Contest::new(slots as usize),
            halving: Halving::new(),
            next_class: 0,
            ranks_due: 0,
            fading_due: fading_period(slots),
            draw: Draw::new(seed),
        }
    }

    /// The coarse time, for touching words. It is that of the whole table.
    #[inline]
    pub fn now(&self) -> Tick {
        Tick::new(self.clock.ticks(self.now))
    }

    /// How long ago counts of uses were halved, for words that lay in slots.
    #[inline]
    pub fn halved_ago(&self) -> HalvedAgo {
        self.halving.ago(self.clock.ticks(self.now))
    }

    /// The table has another number of slots from now on, and the policy's shards the same part of them as before. `clock` is the same for
    /// all policies of the table. What it has learnt of classes it keeps; rows that are away it gets to know anew where the change is large, about
    /// as many as a policy does that has as many slots from the beginning.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn resize(&mut self, slots: u32, of_slots: u32, clock: Clock) {
        assert!(
            of_slots as usize >= WAYS && of_slots >= slots,
            "{slots} slots of {of_slots}"
        );
        (self.slots, self.of_slots) = (slots.into(), of_slots.into());
        self.pace = Pace::of(self.slots);
        self.clock = clock;
        self.newcomers.resize(slots as usize);
        self.stack.resize(slots as usize);
        self.contest.resize(slots as usize);
        self.ghost.resize(GHOST_ROWS_PER_SLOT * slots as usize);
    }

    /// This worker did so many more lookups of the table, hits and misses, in whatever shard. `reuses` has hits among them, one in
    /// `one_in`; it is emptied now or in a later call. `usage` is what the workers tell one another. `words` gives the words of rows in
    /// a set of the policy's shards; it is asked for a few sets.
    ///
    /// Time stands still between calls, and rows that are used twice meanwhile seem to be used at once. So call it for each piece:
    /// with 80 lookups a call hit rates are what they are with one, with five times as many lookups a call as there are slots
    /// more than a third of the hits can be lost. Of drawing one hit in 2 comes a loss of up to 1.3 points, of one in 8, up to 3.
    #[inline]
    pub fn advance<I: Iterator<Item = Word>>(
        &mut self,
        lookups: u64,
        reuses: &mut Reuses,
        one_in: u32,
        usage: &Usage,
        words: impl FnMut(u32) -> I,
    ) {
        self.now += lookups;
        self.untold += lookups;
        if self.untold >= self.pace.lookups {
            self.catch_up(reuses, one_in, usage, words);
        }
    }

    /// Tells other workers of the lookups done here, and learns from what they told, as [`advance`](Self::advance) does now and then:
    /// for a worker that has rows to choose and may have looked up none for long.
    // Where the code of lookups lies depends on it: without these int8 lookups had 0.59 to 0.61 of the resident rate, with them 0.64.
    #[cold]
    #[inline(never)]
    pub fn catch_up<I: Iterator<Item = Word>>(
        &mut self,
        reuses: &mut Reuses,
        one_in: u32,
        usage: &Usage,
        words: impl FnMut(u32) -> I,
    ) {
        self.now = usage.add(std::mem::take(&mut self.untold), reuses, one_in);
        // Of its shards' lookups as many as its slots are of the table's: rows are spread evenly.
        let done = u128::from(self.now) * u128::from(self.slots) / u128::from(self.of_slots);
        let passed = done as u64 - self.lookups;
        if passed < self.pace.lookups {
            return;
        }
        let since = self.now - self.learnt;
        (self.lookups, self.learnt) = (done as u64, self.now);
        self.newcomers.pass(passed as f64);
        self.learn(usage);
        if let Some(uses) = self.stack.pass(passed as f64, self.clock.ticks(self.now)) {
            self.contest.learn(uses);
        }
        self.look(passed, since, words);
        self.fade();
        self.halve(usage);
        self.rank_classes();
    }

    /// Asks for what is known of a row to be on its way, before [`newcomer`](Self::newcomer).
    pub fn prefetch(&self, row: u32) {
        self.ghost.prefetch(row);
    }

    /// What is known of a row that was missed; the miss is counted as a use of it. To be called once for all who want the row. One that
    /// may not come whatever it is worth is none that another order of rows would have had.
    pub fn newcomer(&mut self, row: u32, may_come: bool) -> Newcomer {
        let now = self.now();
        let Some(known) = self.ghost.take(row) else {
            return self.unknown(row);
        };
        let known = known.halved(now, self.halved_ago());
        let age = known.age(now);
        self.reused(known.class(), band(age), 1.0);
        if may_come {
            self.stack.missed(self.clock.ticks(self.now), age);
        }
        let word = known.touched(now, &mut self.draw);
        let rank = self.rank(word, now);
        Newcomer { row, word, rank }
    }

    /// A newcomer of which nothing is known.
    fn unknown(&mut self, row: u32) -> Newcomer {
        let now = self.now();
        self.newcomers.came();
        let word = Word::new(now);
        let rank = match self.is_by_recency() {
            true => self.rank(word, now),
            false => self.rank(word, now) * self.newcomers.discount(),
        };
        Newcomer { row, word, rank }
    }

    /// The slot whose row a newcomer is to replace. `None`: all of them are worth more, and the newcomer is only passed on to
    /// who asked for it. Where a slot is empty there is nothing to ask. `next_use` says when a row is looked up next, where that is
    /// known: see [`Lookahead`].
    pub fn victim(
        &self,
        newcomer: &Newcomer,
        residents: impl Iterator<Item = Resident>,
        next_use: impl Fn(u32) -> Option<u32>,
    ) -> Option<u32> {
        let now = self.now();
        let ago = self.halved_ago();
        let mut last_wanted: Option<(u32, u32)> = None;
        let mut lowest: Option<(f32, u32)> = None;
        for resident in residents {
            if let Some(next) = next_use(resident.row) {
                if last_wanted.is_none_or(|(last, _)| next > last) {
                    last_wanted = Some((next, resident.slot));
                }
                continue;
            }
            let rank = self.rank(resident.word.halved(now, ago), now);
            if lowest.is_none_or(|(least, _)| rank < least) {
                lowest = Some((rank, resident.slot));
            }
        }
        match (next_use(newcomer.row), lowest, last_wanted) {
            (Some(_), Some((_, slot)), _) => Some(slot),
            (None, Some((rank, slot)), _) => (newcomer.rank >= rank).then_some(slot),
            (Some(next), None, Some((last, slot))) => (next < last).then_some(slot),
            (None, None, _) | (_, None, None) => None,
        }
    }

    /// A row that is there and needs another slot, with the rank that it has.
    pub fn mover(&self, resident: Resident) -> Newcomer {
        let Resident { row, word, .. } = resident;
        let now = self.now();
        let rank = self.rank(word.halved(now, self.halved_ago()), now);
        Newcomer { row, word, rank }
    }

    /// A row was taken out of its slot.
    pub fn evicted(&mut self, row: u32, word: Word) {
        let now = self.now();
        let (model, is_by_recency, ago) = (&self.model, self.is_by_recency(), self.halved_ago());
        let rank = |word: Word| rank(model, is_by_recency, word.halved(now, ago), now);
        self.ghost.put(row, word, rank);
    }

    /// A row that was taken out is in its slot again.
    pub fn restored(&mut self, row: u32) {
        self.ghost.take(row);
    }

    /// A newcomer was not taken in.
    pub fn refused(&mut self, newcomer: Newcomer) {
        self.evicted(newcomer.row, newcomer.word);
    }

    /// Whether rows go by when they were used last at present, and not by what is learnt of them.
    #[inline]
    pub fn is_by_recency(&self) -> bool {
        self.contest.is_by_recency()
    }

    fn rank(&self, word: Word, now: Tick) -> f32 {
        rank(&self.model, self.is_by_recency(), word, now)
    }

    fn reused(&mut self, class: usize, band: usize, times: f64) {
        self.model.reused(class, band, times);
        if class == 0 {
            self.newcomers.again(times);
        }
    }

    /// Takes its share of the uses that all workers have counted: hits are spread as evenly as rows are.
    fn learn(&mut self, usage: &Usage) {
        let share = self.slots as f64 / self.of_slots as f64;
        let (model, newcomers, stack) = (&mut self.model, &mut self.newcomers, &mut self.stack);
        usage.since(&mut self.known, |class, band, uses| {
            let uses = uses as f64 * share;
            model.reused(class, band, uses);
            stack.hit(band, uses);
            if class == 0 {
                newcomers.again(uses);
            }
        });
    }

    /// Looks at some lines of words, of slots and of the ghost, drawn at random: in order, it would be long before the first words of
    /// rows that are away were seen. They stand for all lines, and for all the time that has passed: ages are those of moments
    /// drawn from it, lest it be always the beginning of a tick, or the end of a batch. `passed` lookups of the policy's shards were
    /// done, and `since` of the table.
    fn look<I: Iterator<Item = Word>>(
        &mut self,
        passed: u64,
        since: u64,
        mut words: impl FnMut(u32) -> I,
    ) {
        let (now, halved_ago) = (self.now(), self.halved_ago());
        let sets = (self.slots / WAYS as u64) as u32;
        let lines = sets + self.ghost.lines() as u32;
        let looks = (passed * self.pace.lines / self.pace.lookups).min(LINES_MAX);
        let ticks = since as f64 / self.clock.lookups_per_tick() as f64;
        let row_ticks = ticks * f64::from(lines) / looks as f64;
        for _ in 0..looks {
            let line = self.draw.below(lines);
            let ago = self.draw.below(u32::try_from(since).unwrap_or(u32::MAX));
            let then = self.now.saturating_sub(ago.into());
            let ticks_ago = self.clock.ticks(self.now) - self.clock.ticks(then);
            let mut seen = |word: Word| {
                let word = word.halved(now, halved_ago);
                // A row that was used since was, for all that is known, used shortly before, too.
                let age = u64::from(word.age(now)).saturating_sub(ticks_ago);
                self.model.seen(word.class(), band(age as u16), row_ticks);
                word.class()
            };
            match line.checked_sub(sets) {
                None => words(line).for_each(|word| self.halving.looked(seen(word))),
                Some(line) => self.ghost.words(line as usize, now).for_each(|word| {
                    seen(word);
                }),
            }
        }
    }

    /// Lets counts fade when it is time.
    fn fade(&mut self) {
        while self.fading_due <= self.lookups {
            self.fading_due += fading_period(self.slots);
            self.model.fade(FADING);
            self.halving.fade(FADING);
        }
    }

    /// Halves counts of uses where it is time, or where another worker has.
    fn halve(&mut self, usage: &Usage) {
        let ticks = self.clock.ticks(self.now);
        if self.halving.is_due(ticks) {
            usage.halve(self.halving.at(), ticks);
        }
        if self.halving.follow(usage.halved()) {
            self.model.halve();
        }
    }

    /// Computes the ranks of the classes whose turn it is: of each once in a part of as many lookups as there are slots, [`RANKED_IN`].
    fn rank_classes(&mut self) {
        let (first, mut count) = (self.next_class, 0);
        while count < CLASSES && self.ranks_due <= self.lookups {
            count += 1;
            let early = self.lookups < EARLY * self.slots;
            let oftener = if early { EARLY_FACTOR } else { 1 };
            self.ranks_due +=
                ((self.slots / RANKED_IN).max(RANKED_LEAST) / CLASSES as u64 / oftener).max(1);
        }
        if count == 0 {
            return;
        }
        if count == CLASSES {
            self.ranks_due = self.lookups + 1;
        }
        self.next_class = (first + count) % CLASSES;
        let classes = (first..first + count).map(|class| class % CLASSES);
        self.model.rank_classes(classes);
    }
}

/// Of two rows the one of the lower rank goes.
fn rank(model: &Model, is_by_recency: bool, word: Word, now: Tick) -> f32 {
    if is_by_recency {
        -f32::from(word.age(now))
    } else {
        model.rank(word, now)
    }
}

/// Lookups after which counts fade: enough to have counted some thousand uses, and for a shard that is large, to have looked at
/// some thousand of its words.
fn fading_period(slots: u64) -> u64 {
    (slots * 4).min(20_000).max(slots / 2)
}
