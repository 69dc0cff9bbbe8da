//! Several tiers with the same tables: what one fails to give is asked of the next.

use std::collections::VecDeque;
use std::fmt;

use super::{EachRow, FetchesFull, Tier, TierCounts, TierError, Wanted};

/// Tiers that are tried in their order. All know each table by the same number.
///
/// A tier has an equal part of what is left of a fetch's time, the last one all of it: so one that never answers takes no more than its
/// part, and one that fails at once leaves all to those behind it. A fetch fails with what the last tier says, or once its time is over.
pub struct Chain {
    tiers: Box<[Link]>,
    book: Book,
    passed_on: u64,
}

struct Link {
    tier: Box<dyn Tier + Send>,
    /// Fetches that the tier before has failed and that this one has not taken yet, in the order in which they came.
    waiting: VecDeque<u32>,
}

/// What was asked of the chain, by the number that is the token for its tiers.
struct Book {
    fetches: Box<[Option<Wanted>]>,
    free: Vec<u32>,
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chain")
            .field("tiers", &self.tiers.len())
            .field("unanswered", &self.unanswered())
            .finish_non_exhaustive()
    }
}

impl Chain {
    /// With room for so many fetches over all tiers.
    ///
    /// # Panics
    /// If there is no tier.
    pub fn new(tiers: Vec<Box<dyn Tier + Send>>, fetches: u32) -> Chain {
        assert!(!tiers.is_empty(), "there is a tier to ask");
        let link = |tier| Link {
            tier,
            // Each fetch stands in one queue at most.
            waiting: VecDeque::with_capacity(fetches as usize),
        };
        Chain {
            tiers: tiers.into_iter().map(link).collect(),
            book: Book {
                fetches: vec![None; fetches as usize].into_boxed_slice(),
                free: (0..fetches).rev().collect(),
            },
            passed_on: 0,
        }
    }
}

impl Book {
    fn wanted(&self, number: u32) -> &Wanted {
        let wanted = self.fetches[number as usize].as_ref();
        wanted.expect("a fetch is asked of one tier at a time")
    }

    /// A fetch is answered. Returns the token that it came with.
    fn end(&mut self, number: u32) -> u64 {
        let token = self.wanted(number).token;
        self.fetches[number as usize] = None;
        self.free.push(number);
        token
    }
}

impl Link {
    /// Asks the tier, the first of so many that are left.
    fn ask(
        &mut self,
        now_ns: u64,
        number: u32,
        wanted: &Wanted,
        left: usize,
    ) -> Result<(), FetchesFull> {
        let left_ns = wanted.deadline_ns.saturating_sub(now_ns);
        let asked = Wanted {
            token: number.into(),
            deadline_ns: now_ns + left_ns / left as u64,
            ..*wanted
        };
        self.tier.fetch(now_ns, asked)
    }

    /// Asks for what waits, as far as the tier takes it.
    fn take_waiting(&mut self, now_ns: u64, left: usize, book: &mut Book, each: EachRow<'_>) {
        self.waiting.retain(|&number| {
            let is_late = book.wanted(number).deadline_ns <= now_ns;
            if is_late {
                each(book.end(number), Err(TierError::Late));
            }
            !is_late
        });
        while let Some(&number) = self.waiting.front() {
            if self.ask(now_ns, number, book.wanted(number), left).is_err() {
                return;
            }
            self.waiting.pop_front();
        }
    }
}

impl Tier for Chain {
    fn fetch(&mut self, now_ns: u64, wanted: Wanted) -> Result<(), FetchesFull> {
        let &number = self.book.free.last().ok_or(FetchesFull)?;
        let tiers = self.tiers.len();
        self.tiers[0].ask(now_ns, number, &wanted, tiers)?;
        self.book.free.pop();
        self.book.fetches[number as usize] = Some(wanted);
        Ok(())
    }

    fn poll(&mut self, now_ns: u64, each: EachRow<'_>) {
        let Chain {
            tiers,
            book,
            passed_on,
        } = self;
        let all = tiers.len();
        for at in 0..all {
            let (own, behind) = tiers[at..].split_first_mut().expect("one of them");
            own.take_waiting(now_ns, all - at, book, each);
            own.tier.poll(now_ns, &mut |token, outcome| {
                let number = token as u32;
                match (outcome, behind.first_mut()) {
                    (Err(_), Some(next)) if book.wanted(number).deadline_ns > now_ns => {
                        *passed_on += 1;
                        next.waiting.push_back(number);
                    }
                    _ => each(book.end(number), outcome),
                }
            });
        }
    }

    fn unanswered(&self) -> usize {
        self.book.fetches.len() - self.book.free.len()
    }

    fn counts(&self) -> TierCounts {
        let own = TierCounts {
            passed_on: self.passed_on,
            ..TierCounts::default()
        };
        let tiers = self.tiers.iter().map(|link| link.tier.counts());
        tiers.fold(own, TierCounts::and)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::{Answer, ScriptedTier};

    /// A tier with room for so many fetches, whose rows are one byte.
    fn tier(byte: u8, room: usize, script: fn(&Wanted) -> Answer) -> Box<dyn Tier + Send> {
        let row = move |_: &Wanted| vec![byte];
        Box::new(ScriptedTier::new(room, row, script))
    }

    const AT_ONCE: Answer = Answer::Row { after_ns: 0 };

    fn fails(after_ns: u64, error: TierError) -> Answer {
        Answer::Error { after_ns, error }
    }

    fn wanted(row: u32, deadline_ns: u64) -> Wanted {
        Wanted {
            table: 0,
            row,
            token: 1000 + u64::from(row),
            deadline_ns,
        }
    }

    type Answered = Vec<(u64, Result<Vec<u8>, TierError>)>;

    fn poll(chain: &mut Chain, now_ns: u64) -> Answered {
        let mut answered = vec![];
        chain.poll(now_ns, &mut |token, outcome| {
            answered.push((token, outcome.map(<[u8]>::to_vec)));
        });
        answered.sort_by_key(|(token, _)| *token);
        answered
    }

    #[test]
    fn the_first_tier_that_gives_a_row_answers() {
        let gone = |wanted: &Wanted| match wanted.row {
            0 => AT_ONCE,
            _ => fails(0, TierError::Gone),
        };
        let damaged = |wanted: &Wanted| match wanted.row {
            0 | 1 => AT_ONCE,
            _ => fails(0, TierError::Corrupt { page: 7 }),
        };
        let tiers = vec![tier(1, 9, gone), tier(2, 9, damaged)];
        let mut chain = Chain::new(tiers, 9);
        for row in 0..3 {
            chain.fetch(0, wanted(row, 100)).unwrap();
        }
        let answers = [
            Ok(vec![1]),
            Ok(vec![2]),
            Err(TierError::Corrupt { page: 7 }),
        ];
        let answers = (1000..).zip(answers).collect::<Answered>();
        assert_eq!(poll(&mut chain, 1), answers);
        assert_eq!(chain.counts().passed_on, 2);
        assert_eq!(chain.unanswered(), 0);
    }

    #[test]
    fn a_tier_has_an_equal_part_of_the_time_that_is_left() {
        let tiers = vec![
            tier(1, 9, |_| Answer::Never),
            tier(2, 9, |wanted| match wanted.row {
                0 => fails(10, TierError::Gone),
                _ => Answer::Never,
            }),
            tier(3, 9, |_| Answer::Row { after_ns: 150 }),
        ];
        let mut chain = Chain::new(tiers, 9);
        chain.fetch(0, wanted(0, 300)).unwrap();
        chain.fetch(0, wanted(1, 300)).unwrap();
        // The second tier is asked at 100, and the third, of row 0, at 110: there are 190 left.
        for now_ns in [0, 99, 100, 110, 199, 200, 259] {
            assert_eq!(poll(&mut chain, now_ns), [], "at {now_ns}");
        }
        assert_eq!(poll(&mut chain, 260), [(1000, Ok(vec![3]))]);
        // That of row 1 was asked at 200.
        assert_eq!(poll(&mut chain, 299), []);
        assert_eq!(poll(&mut chain, 300), [(1001, Err(TierError::Late))]);
    }

    #[test]
    fn a_full_tier_is_waited_for_until_the_time_is_over() {
        let slow = |_: &Wanted| Answer::Row { after_ns: 50 };
        let tiers = vec![tier(1, 9, |_| fails(0, TierError::Gone)), tier(2, 1, slow)];
        let mut chain = Chain::new(tiers, 4);
        for (row, deadline_ns) in [(0, 1000), (1, 1000), (2, 80), (3, 1000)] {
            chain.fetch(0, wanted(row, deadline_ns)).unwrap();
        }
        assert_eq!(chain.fetch(0, wanted(4, 1000)), Err(FetchesFull));
        assert_eq!(poll(&mut chain, 0), []);
        assert_eq!(chain.unanswered(), 4);
        assert_eq!(poll(&mut chain, 50), [(1000, Ok(vec![2]))]);
        assert_eq!(poll(&mut chain, 60), []);
        assert_eq!(poll(&mut chain, 80), [(1002, Err(TierError::Late))]);
        assert_eq!(poll(&mut chain, 110), [(1001, Ok(vec![2]))]);
        assert_eq!(poll(&mut chain, 111), []);
        assert_eq!(poll(&mut chain, 161), [(1003, Ok(vec![2]))]);
        assert_eq!(chain.unanswered(), 0);
        // Where the first tier is full, so is the chain.
        let mut chain = Chain::new(vec![tier(1, 1, slow), tier(2, 9, slow)], 9);
        chain.fetch(0, wanted(0, 1000)).unwrap();
        assert_eq!(chain.fetch(0, wanted(1, 1000)), Err(FetchesFull));
        assert_eq!(chain.unanswered(), 1);
    }
}
