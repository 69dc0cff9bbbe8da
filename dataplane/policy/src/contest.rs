//! Whether rows go by what the model says of them, or by when they were used last.
//!
//! The model learns from what has been, and there are traces of which it learns nothing that is true for long, such as sweeps back and forth,
//! or rows that come for a while as a scan's do and then all come again. There a cache that drops the least recently used row has
//! more. What it would have had is reckoned ([`Stack`](super::stack::Stack)); when the model has fallen behind it by some part of the
//! slots, rows go by recency for some time, and then the model has another chance.
//!
//! What the model was ahead counts, up to as many uses as there are slots: more than that recency can't gain at once, since no more rows
//! are there to be used. So it is for a trace of which the model is worse that rows go by recency, and not for a moment of it.
//!
//! A bout of recency takes some turnovers at first, and longer each time when the model soon falls behind again. And it is long where the bout begins with rows
//! that are not those that it would have: then model and recency have little in common, and what a change from one to the other costs
//! is a whole turnover.

use super::stack::Uses;

/// How far the model may fall behind, as a part of the slots: what is there by chance is less.
const BEHIND: f64 = 1.0 / 32.0;
/// Slots below which it can't be told: such a part of them is a dozen uses.
const LEAST_SLOTS: f64 = 512.0;
/// Of the lookups, what recency may have more at any time: estimates are no better.
const TOLERATED: f64 = 0.005;
/// How far the model may fall behind after a bout, besides, as a part of the slots: it has to get its rows back first. Half of it is too little
/// where half of the lookups go back and forth.
const GRACE: f64 = 0.5;
/// Turnovers of a bout of recency: the first, how many times as many the next has, and the most. A turnover is as many lookups as there are slots.
const FIRST: f64 = 4.0;
const LONGER: f64 = 4.0;
const LONGEST: f64 = 64.0;
/// The model did well if it took so many times as long as the last bout until it fell behind.
const DID_WELL: f64 = 4.0;
/// Turnovers of a bout after which it is judged.
const JUDGED: f64 = 1.0;
/// It goes on if until then there was less than this part of what it should have had. Where popularity shifts it is nine tenths, in sweeps and where rows come twice and no more up to six tenths.
const DISAPPOINTS: f64 = 0.75;
/// And so many turnovers, the first time.
const GOES_ON: f64 = 16.0;

/// See the module's text.
#[derive(Clone, Debug)]
pub(super) struct Contest {
    slots: f64,
    /// By how many uses the model is behind, or ahead, if it is negative.
    behind: f64,
    /// Turnovers of the model since the last bout.
    model: f64,
    bout: Option<Bout>,
    /// Turnovers of the last bout.
    length: f64,
    goes_on: f64,
}

/// Some time in which rows go by recency.
#[derive(Clone, Copy, Debug)]
struct Bout {
    /// Turnovers since it began, and until it ends.
    since: f64,
    until: f64,
    had: f64,
    by_recency: f64,
    is_judged: bool,
}

impl Contest {
    pub(super) fn new(slots: usize) -> Contest {
        Contest {
            slots: slots as f64,
            behind: 0.0,
            model: 0.0,
            bout: None,
            // The first is no shorter.
            length: FIRST / LONGER,
            goes_on: GOES_ON,
        }
    }

    /// There are so many slots from now on.
    pub(super) fn resize(&mut self, slots: usize) {
        self.slots = slots as f64;
    }

    /// Whether rows go by recency.
    #[inline]
    pub(super) fn is_by_recency(&self) -> bool {
        self.bout.is_some()
    }

    /// What came of some lookups.
    pub(super) fn learn(&mut self, uses: Uses) {
        let turnovers = uses.lookups / self.slots;
        match &mut self.bout {
            None => {
                self.model += turnovers;
                let more = uses.by_recency - uses.had - TOLERATED * uses.lookups;
                self.behind = (self.behind + more).max(-self.slots);
                if self.behind > BEHIND * self.slots && self.slots >= LEAST_SLOTS {
                    self.begin();
                }
            }
            Some(bout) => {
                bout.since += turnovers;
                bout.had += uses.had;
                bout.by_recency += uses.by_recency;
                if !bout.is_judged && bout.since >= JUDGED {
                    bout.is_judged = true;
                    if bout.had < DISAPPOINTS * bout.by_recency {
                        bout.until += self.goes_on;
                        self.length = self.length.max(self.goes_on);
                        self.goes_on = (LONGER * self.goes_on).min(LONGEST);
                    }
                }
                if bout.since >= bout.until {
                    (self.bout, self.behind, self.model) = (None, -GRACE * self.slots, 0.0);
                }
            }
        }
    }

    fn begin(&mut self) {
        self.length = if self.model > DID_WELL * self.length {
            (self.length / LONGER).max(FIRST)
        } else {
            (self.length * LONGER).min(LONGEST)
        };
        self.bout = Some(Bout {
            since: 0.0,
            until: self.length,
            had: 0.0,
            by_recency: 0.0,
            is_judged: false,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: usize = 1_000;

    /// Some turnovers, in each of which there were so many hits and would have been so many by recency, as parts of the lookups. Returns
    /// for how many of them rows went by recency.
    fn pass(contest: &mut Contest, turnovers: f64, had: f64, by_recency: f64) -> f64 {
        const STEPS: f64 = 20.0;
        let mut lasted = 0.0;
        for _ in 0..(turnovers * STEPS) as usize {
            let lookups = SLOTS as f64 / STEPS;
            let is_by_recency = contest.is_by_recency();
            contest.learn(Uses {
                lookups,
                had: lookups * if is_by_recency { by_recency } else { had },
                by_recency: lookups * by_recency,
            });
            lasted += f64::from(u8::from(is_by_recency)) / STEPS;
        }
        lasted
    }

    #[test]
    fn the_model_stays_while_it_is_not_behind() {
        let mut contest = Contest::new(SLOTS);
        assert_eq!(pass(&mut contest, 100.0, 0.5, 0.4), 0.0);
        assert_eq!(pass(&mut contest, 100.0, 0.5, 0.504), 0.0);
        // What it was ahead counts for as many uses as there are slots.
        assert_eq!(pass(&mut contest, 4.0, 0.3, 0.53), 0.0);
        assert!(pass(&mut contest, 2.0, 0.3, 0.53) > 0.9);
    }

    #[test]
    fn a_few_slots_tell_nothing() {
        let mut contest = Contest::new(100);
        assert_eq!(pass(&mut contest, 100.0, 0.1, 0.9), 0.0);
    }

    #[test]
    fn bouts_are_longer_while_the_model_falls_behind_and_shorter_when_it_does_well() {
        let mut contest = Contest::new(SLOTS);
        // It has one more chance after 4, 16, 64 turnovers, and loses no more than what it takes to see that.
        let first = pass(&mut contest, FIRST + 1.0, 0.1, 0.4);
        assert!((FIRST - 0.1..FIRST + 0.1).contains(&first), "{first}");
        let lasted = pass(&mut contest, 200.0, 0.1, 0.4);
        assert!((188.0..195.0).contains(&lasted), "{lasted}");
        // One that goes well for long has shorter bouts then.
        pass(&mut contest, LONGEST, 0.5, 0.4);
        for longer in [16.0, 4.0, 4.0] {
            assert_eq!(pass(&mut contest, 1_100.0, 0.5, 0.4), 0.0);
            while !contest.is_by_recency() {
                pass(&mut contest, 0.05, 0.1, 0.4);
            }
            let lasted = pass(&mut contest, 1_100.0, 0.5, 0.4);
            assert!(
                (longer - 0.1..longer + 0.1).contains(&lasted),
                "{lasted} of {longer}"
            );
        }
    }

    #[test]
    fn a_bout_that_begins_with_other_rows_goes_on() {
        let mut contest = Contest::new(SLOTS);
        while !contest.is_by_recency() {
            pass(&mut contest, 0.05, 0.0, 0.5);
        }
        let mut lasted: f64 = 0.0;
        while contest.is_by_recency() {
            let lookups = SLOTS as f64 / 20.0;
            let (had, by_recency) = (0.3 * lookups, 0.5 * lookups);
            contest.learn(Uses {
                lookups,
                had,
                by_recency,
            });
            lasted += 0.05;
        }
        assert!((lasted - FIRST - GOES_ON).abs() < 0.1, "{lasted}");
        assert_eq!(contest.length, GOES_ON);
        assert!(contest.behind < 0.0, "it gets its rows back first");
    }
}
