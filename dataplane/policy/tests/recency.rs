//! When rows go by their last use: what counts for it, and that it begins and ends also where the clock's pace changes.

use rowmill_policy::{Clock, Policy, Reuses, Usage};

const SLOTS: u32 = 1024;
/// Lookups after which a row comes again.
const LATER: u32 = SLOTS / 2;

/// A policy whose rows all come twice and are never taken in.
struct Refusing {
    policy: Policy,
    reuses: Reuses,
    usage: Usage,
    done: u64,
}

impl Refusing {
    fn new() -> Refusing {
        Refusing {
            policy: Policy::with_room(SLOTS, SLOTS, 4 * SLOTS, 5),
            reuses: Reuses::new(),
            usage: Usage::new(),
            done: 0,
        }
    }

    /// So many lookups. Returns in how many of them rows went by their last use.
    fn pass(&mut self, lookups: u32, may_come: bool) -> u32 {
        let mut by_recency = 0;
        for _ in 0..lookups {
            let (turn, at) = (self.done as u32 / (2 * LATER), self.done as u32 % LATER);
            let newcomer = self.policy.newcomer(turn * LATER + at, may_come);
            self.policy.refused(newcomer);
            by_recency += u32::from(self.policy.is_by_recency());
            self.policy
                .advance(1, &mut self.reuses, 1, &self.usage, |_| None.into_iter());
            self.done += 1;
        }
        by_recency
    }
}

#[test]
fn rows_that_come_again_and_were_refused_count() {
    let mut refusing = Refusing::new();
    let by_recency = refusing.pass(20 * SLOTS, true);
    assert!(by_recency > 10 * SLOTS, "{by_recency}");
}

#[test]
fn rows_that_may_not_come_do_not() {
    let mut refusing = Refusing::new();
    assert_eq!(refusing.pass(20 * SLOTS, false), 0);
    // As soon as they may they count.
    assert!(refusing.pass(20 * SLOTS, true) > 10 * SLOTS);
}

#[test]
fn bouts_begin_and_end_where_a_table_of_another_size_sets_the_clock_back_or_forward() {
    let mut refusing = Refusing::new();
    assert!(refusing.pass(20 * SLOTS, true) > 0);
    let mut clock = Clock::new(SLOTS);
    for (times, behind) in [(2, 3_000), (4, 20_000), (1, 20_000)] {
        // Who decides of the size has not heard of the last lookups: they pass again, at the new pace.
        let before = refusing.policy.now();
        clock = clock.over(times * SLOTS, refusing.done - behind);
        refusing.policy.resize(times * SLOTS, times * SLOTS, clock);
        assert!(before != refusing.policy.now(), "it is another time");
        // The longest bout has 64 turnovers, and 64 more if it begins with other rows.
        let lookups = 300 * times * SLOTS;
        let by_recency = refusing.pass(lookups, true);
        assert!(
            (1..lookups).contains(&by_recency),
            "{times} times: {by_recency} of {lookups}"
        );
    }
}
