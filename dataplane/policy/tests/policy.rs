//! The policy from outside: which row goes, that nothing is allocated, that the same is the same.

use proptest::prelude::*;
use rowmill_policy::{
    CLASSES, Draw, Lookahead, Policy, Resident, Reuses, TICKS, Tick, Usage, Word,
};

const SLOTS: u32 = 1024;

/// A policy for which rows of class `c` were used `3 c` times in a hundred after each tick, in 100,000 lookups.
fn experienced() -> Policy {
    let mut policy = Policy::new(SLOTS, SLOTS, 7);
    let mut reuses = Reuses::new();
    let mut draw = Draw::new(1);
    let usage = Usage::new();
    for _ in 0..100_000 / 32 {
        let now = policy.now();
        for _ in 0..32 {
            // As many rows of each class and age as `words` below shows.
            let word = aged(
                draw.below(CLASSES as u32) as u16,
                draw.below(64) as u16,
                now,
            );
            if draw.below(100) < 3 * word.class() as u32 {
                reuses.count(0, word, now);
            }
        }
        let mut seen = draw.clone();
        policy.advance(32, &mut reuses, 1, &usage, |_| {
            let words: Vec<Word> = (0..16)
                .map(|_| {
                    let class = seen.below(CLASSES as u32) as u16;
                    aged(class, seen.below(64) as u16, now)
                })
                .collect();
            words.into_iter()
        });
    }
    policy
}

/// The word of a row of a class that was used so many ticks ago.
fn aged(class: u16, age: u16, now: Tick) -> Word {
    let then = Word::new(now).bits().wrapping_sub(age);
    Word::of(class.into(), Tick::new(then.into()))
}

/// Residents of the slots from 0 on, with rows from 100 on.
fn residents(words: &[Word]) -> Vec<Resident> {
    let resident = |(slot, &word)| Resident {
        slot: slot as u32,
        row: 100 + slot as u32,
        word,
    };
    words.iter().enumerate().map(resident).collect()
}

#[test]
fn rows_of_classes_that_are_used_less_go_first() {
    let policy = experienced();
    let mut newcomers = policy.clone();
    let newcomer = newcomers.newcomer(1, true);
    let now = policy.now();
    for class in 1..8 {
        let words = [
            aged(class + 8, 9, now),
            aged(class, 9, now),
            aged(31, 9, now),
        ];
        let wanted = |row| (row == 1).then_some(0);
        let victim = policy.victim(&newcomer, residents(&words).into_iter(), wanted);
        assert_eq!(victim, Some(1), "class {class}");
    }
    // What was never used again is worth less than all that is there.
    let words = [aged(18, 9, now), aged(10, 9, now)];
    let victim = policy.victim(&newcomer, residents(&words).into_iter(), |_| None);
    assert_eq!(victim, None);
}

#[test]
fn a_row_that_was_away_is_known() {
    let mut policy = experienced();
    let now = policy.now();
    policy.evicted(5, aged(9, 3, now));
    let known = policy.newcomer(5, true);
    assert!(known.word.class() >= 10);
    assert_eq!(known.word.age(policy.now()), 0);
    let words = [aged(2, 1, now); 4];
    let victim = |policy: &Policy, newcomer| {
        policy.victim(newcomer, residents(&words).into_iter(), |_| None)
    };
    assert!(victim(&policy, &known).is_some());
    // It was taken out of the ghost, so the second time it is new; refused, it is remembered.
    let forgotten = policy.newcomer(5, true);
    assert_eq!(
        (forgotten.word.class(), victim(&policy, &forgotten)),
        (0, None)
    );
    policy.refused(forgotten);
    // Used twice, and soon.
    assert_eq!(policy.newcomer(5, true).word.class(), 2);
}

#[test]
fn rows_of_a_list_are_worth_what_was_told_of_them() {
    let mut policy = experienced();
    let comes = |policy: &mut Policy, row, uses| policy.in_advance(row, uses).word.class();
    let classes = [300, 40, 5, 2, 1, 0].map(|uses| comes(&mut policy, 7, uses));
    assert!(classes.is_sorted_by(|a, b| a >= b), "{classes:?}");
    assert_eq!(
        (&classes[3..], classes[0] > classes[2]),
        (&[2, 0, 0][..], true)
    );
    let stranger = policy.in_advance(10, 0);
    let now = policy.now();
    let words = [Word::of(classes[3], now), Word::of(classes[0], now)];
    let victim = policy.victim(&stranger, residents(&words).into_iter(), |_| None);
    assert_eq!(victim, None, "it takes no place of theirs");
    // What is known of a row counts for more, and that it comes is no use of it, however often.
    for _ in 0..3 {
        policy.evicted(5, aged(9, 40, policy.now()));
        let known = policy.in_advance(5, 300);
        assert_eq!((known.word.class(), known.word.age(policy.now())), (9, 0));
    }
}

#[test]
fn counts_are_halved_for_all_workers_at_once() {
    let usage = Usage::new();
    let mut reuses = Reuses::new();
    let half = |seed| Policy::new(SLOTS / 2, SLOTS, seed);
    let (mut first, mut second) = (half(1), half(2));
    let never = first.halved_ago();
    // All rows of the first worker's shards are used most, and to be halved.
    let mut lookups = 0;
    while first.halved_ago() == never {
        let now = first.now();
        let most_used = |_| std::iter::repeat_n(Word::of(CLASSES - 1, now), 16);
        first.advance(32, &mut reuses, 1, &usage, most_used);
        lookups += 32;
        assert!(lookups < 200_000);
    }
    // No oftener than stamps can tell: 32 ticks are as many lookups as there are slots.
    assert!(lookups >= u64::from(SLOTS) / 32 * u64::from(TICKS));
    assert_eq!(second.halved_ago(), never);
    let is_halved = |policy: &Policy| {
        let long_ago = Word::of(20, Tick::new(lookups / 32 - 100));
        long_ago.halved(policy.now(), policy.halved_ago()).class() == 16
    };
    assert!(is_halved(&first));
    // The second has seen none of it, and hears of it.
    second.advance(64, &mut reuses, 1, &usage, |_| None.into_iter());
    assert!(is_halved(&second));
    assert_eq!(usage.lookups(), lookups + 64);
}

proptest! {
    /// Slots whose rows are not known to be used go by rank; a newcomer that is known to be used takes any of those. Where all
    /// rows are known to be used, the last goes, if it is later than the newcomer.
    #[test]
    fn rows_that_are_wanted_stay(
        classes in prop::collection::vec(0..CLASSES as u16, 1..32),
        lookups in prop::collection::vec(99..132u32, 0..60),
    ) {
        let mut policy = Policy::new(SLOTS, SLOTS, 7);
        let newcomer = policy.newcomer(99, true);
        let words: Vec<Word> = classes.iter().map(|&class| aged(class, 0, policy.now())).collect();
        let mut lookahead = Lookahead::new(64);
        lookahead.extend(5, &lookups);
        let next = |row: u32| lookups.iter().position(|&at| at == row);
        let rows = residents(&words);
        let victim = policy.victim(&newcomer, rows.iter().copied(), |row| lookahead.next_use(5, row));
        let unwanted: Vec<&Resident> = rows.iter().filter(|r| next(r.row).is_none()).collect();
        if unwanted.is_empty() {
            let last = rows.iter().max_by_key(|r| next(r.row)).expect("residents");
            let sooner = next(99).is_some_and(|at| Some(at) < next(last.row));
            prop_assert_eq!(victim, sooner.then_some(last.slot));
        } else if next(99).is_some() {
            prop_assert!(unwanted.iter().any(|r| Some(r.slot) == victim));
        } else if let Some(victim) = victim {
            prop_assert!(unwanted.iter().any(|r| r.slot == victim));
        }
    }
}

#[test]
fn nothing_is_allocated_and_the_same_is_the_same() {
    let mut policies = [Policy::new(SLOTS, SLOTS, 3), Policy::new(SLOTS, SLOTS, 3)];
    let mut lookahead = Lookahead::new(80);
    let mut reuses = Reuses::new();
    let mut outcomes = [0u64; 2];
    for (policy, outcome) in policies.iter_mut().zip(&mut outcomes) {
        let mut draw = Draw::new(11);
        let usage = Usage::new();
        let info = allocation_counter::measure(|| {
            for turn in 0..2_000u32 {
                lookahead.clear();
                (0..80).for_each(|at| lookahead.extend(0, &[at * turn % 97]));
                let now = policy.now();
                let word = |at: u32| aged((at % 16) as u16, (at % 900) as u16, now);
                let newcomer = policy.newcomer(draw.below(5_000), true);
                let rows = (0..32).map(|slot| Resident {
                    slot,
                    row: draw.below(97),
                    word: word(slot * turn),
                });
                match policy.victim(&newcomer, rows, |row| lookahead.next_use(0, row)) {
                    Some(slot) => policy.evicted(slot + turn, word(slot)),
                    None => policy.refused(newcomer),
                }
                reuses.count(0, word(turn), now);
                policy.advance(u64::from(turn % 100), &mut reuses, 2, &usage, |set| {
                    (0..16).map(move |way| word(set + way))
                });
                let bits = u64::from(newcomer.word.bits());
                *outcome = outcome.wrapping_mul(31).wrapping_add(bits);
            }
        });
        assert_eq!(info.count_total, 0);
    }
    assert_eq!(outcomes[0], outcomes[1]);
}

#[test]
fn a_policy_of_many_slots_looks_at_a_few_lines_of_words() {
    for (slots, lines) in [(1 << 16, 2048.0), (1 << 17, 512.0)] {
        let mut policy = Policy::new(slots, slots, 7);
        let (mut reuses, usage) = (Reuses::new(), Usage::new());
        let mut sets = 0;
        for _ in 0..10 * slots / 32 {
            policy.advance(32, &mut reuses, 1, &usage, |_| {
                sets += 1;
                std::iter::empty()
            });
        }
        // Of five lines four are of rows that are away, and it has done ten turnovers.
        let found = f64::from(sets) / 10.0 * 5.0 / lines;
        assert!((0.9..1.1).contains(&found), "{slots} slots: {found}");
    }
}
