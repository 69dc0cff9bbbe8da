//! Several tiers, of which each has some tables: what one fails to give is asked of the next that has the table.

use std::collections::VecDeque;
use std::fmt;

use super::{EachRow, FetchesFull, Tier, TierCounts, TierError, Wanted};

/// Tiers that are tried in their order, each for its own tables.
///
/// A tier has an equal part of what is left of a fetch's time, the last one that has the table all of it: so one that never answers takes
/// no more than its part, one that fails at once leaves all to those behind it, and a table that only one tier has is fetched as if there
/// were no other. Nor does one that has taken all it can and answers nothing: after such a part of a fetch's time fetches are asked of
/// those behind it, until it answers again or takes one. A fetch fails with what the last tier of its table says, or once its time is over.
pub struct Chain {
    links: Vec<Link>,
    book: Book,
    passed_on: u64,
}

struct Link {
    tier: Box<dyn Tier + Send>,
    /// By the chain's number of a table, the tier's; none for those that it does not have.
    tables: Box<[Option<u32>]>,
    /// Fetches that a tier before has failed and that this one has not taken yet, in the order in which they came.
    waiting: VecDeque<u32>,
    /// Since when it has taken nothing and answered nothing.
    stuck_since_ns: Option<u64>,
}

/// What was asked of the chain, by the number that is the token for its tiers.
struct Book {
    fetches: Box<[Option<Asked>]>,
    free: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Asked {
    wanted: Wanted,
    /// Tiers that may still give the row, with the one that is asked.
    left: u32,
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chain")
            .field("tiers", &self.links.len())
            .field("unanswered", &self.unanswered())
            .finish_non_exhaustive()
    }
}

impl Chain {
    /// Without tiers, and with room for so many fetches over all that come.
    pub fn new(fetches: u32) -> Chain {
        Chain {
            links: Vec::new(),
            book: Book {
                fetches: vec![None; fetches as usize].into_boxed_slice(),
                free: (0..fetches).rev().collect(),
            },
            passed_on: 0,
        }
    }

    /// The same with one more tier behind the others. `tables` has the tier's number of each table by the chain's number, and nothing
    /// for those that are not to be asked of it.
    pub fn then(mut self, tier: Box<dyn Tier + Send>, tables: Vec<Option<u32>>) -> Chain {
        self.links.push(Link {
            tier,
            tables: tables.into(),
            // Each fetch stands in one queue at most.
            waiting: VecDeque::with_capacity(self.book.fetches.len()),
            stuck_since_ns: None,
        });
        self
    }
}

impl Book {
    fn asked(&mut self, number: u32) -> &mut Asked {
        let asked = self.fetches[number as usize].as_mut();
        asked.expect("a fetch is asked of one tier at a time")
    }

    /// A fetch is answered. Returns the token that it came with.
    fn end(&mut self, number: u32) -> u64 {
        let token = self.asked(number).wanted.token;
        self.fetches[number as usize] = None;
        self.free.push(number);
        token
    }
}

impl Link {
    /// Whether it has a table.
    fn has(&self, table: u32) -> bool {
        self.tables.get(table as usize).is_some_and(Option::is_some)
    }

    /// Asks the tier, which has the table.
    fn ask(&mut self, now_ns: u64, number: u32, asked: Asked) -> Result<(), FetchesFull> {
        let Asked { wanted, left } = asked;
        let left_ns = wanted.deadline_ns.saturating_sub(now_ns);
        let table = self.tables[wanted.table as usize];
        let wanted = Wanted {
            table: table.expect("a table of the tier"),
            token: number.into(),
            deadline_ns: now_ns + left_ns / u64::from(left),
            ..wanted
        };
        let taken = self.tier.fetch(now_ns, wanted);
        match taken {
            Ok(()) => self.stuck_since_ns = None,
            Err(_) => _ = self.stuck_since_ns.get_or_insert(now_ns),
        }
        taken
    }

    /// Whether it has taken and answered nothing for its part of a fetch's time.
    fn is_stuck(&self, now_ns: u64, asked: Asked) -> bool {
        let left_ns = asked.wanted.deadline_ns.saturating_sub(now_ns);
        let since_ns = self.stuck_since_ns.unwrap_or(now_ns);
        now_ns.saturating_sub(since_ns) >= left_ns / u64::from(asked.left)
    }

    /// Asks for what waits, as far as the tier takes it.
    fn take_waiting(&mut self, now_ns: u64, book: &mut Book, each: EachRow<'_>) {
        self.waiting.retain(|&number| {
            let is_late = book.asked(number).wanted.deadline_ns <= now_ns;
            if is_late {
                each(book.end(number), Err(TierError::Late));
            }
            !is_late
        });
        while let Some(&number) = self.waiting.front() {
            if self.ask(now_ns, number, *book.asked(number)).is_err() {
                return;
            }
            self.waiting.pop_front();
        }
    }
}

impl Tier for Chain {
    fn fetch(&mut self, now_ns: u64, wanted: Wanted) -> Result<(), FetchesFull> {
        let &number = self.book.free.last().ok_or(FetchesFull::ForAll)?;
        let having = self.links.iter().filter(|link| link.has(wanted.table));
        let left = having.count() as u32;
        let mut having = self.links.iter_mut().filter(|link| link.has(wanted.table));
        let first = having.next().expect("a table of one of the tiers");
        let mut asked = Asked { wanted, left };
        if let Err(full) = first.ask(now_ns, number, asked) {
            let next = having.next().filter(|_| first.is_stuck(now_ns, asked));
            next.ok_or(full)?.waiting.push_back(number);
            asked.left -= 1;
            self.passed_on += 1;
        }
        self.book.free.pop();
        self.book.fetches[number as usize] = Some(asked);
        Ok(())
    }

    fn poll(&mut self, now_ns: u64, each: EachRow<'_>) {
        let Chain {
            links,
            book,
            passed_on,
        } = self;
        for at in 0..links.len() {
            let (own, behind) = links[at..].split_first_mut().expect("one of them");
            own.take_waiting(now_ns, book, each);
            let stuck_since_ns = &mut own.stuck_since_ns;
            own.tier.poll(now_ns, &mut |token, outcome| {
                if outcome != Err(TierError::Late) {
                    *stuck_since_ns = None;
                }
                let number = token as u32;
                let asked = book.asked(number);
                let has_time = asked.wanted.deadline_ns > now_ns;
                if outcome.is_ok() || asked.left == 1 || !has_time {
                    return each(book.end(number), outcome);
                }
                asked.left -= 1;
                let table = asked.wanted.table;
                let next = behind.iter_mut().find(|link| link.has(table));
                let next = next.expect("there is one left");
                next.waiting.push_back(number);
                *passed_on += 1;
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
        let tiers = self.links.iter().map(|link| link.tier.counts());
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

    /// All have the one table.
    fn chain<const N: usize>(tiers: [Box<dyn Tier + Send>; N], fetches: u32) -> Chain {
        let tiers = tiers.into_iter();
        tiers.fold(Chain::new(fetches), |chain, tier| {
            chain.then(tier, vec![Some(0)])
        })
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
        let mut chain = chain([tier(1, 9, gone), tier(2, 9, damaged)], 9);
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
        let tiers = [
            tier(1, 9, |_| Answer::Never),
            tier(2, 9, |wanted| match wanted.row {
                0 => fails(10, TierError::Gone),
                _ => Answer::Never,
            }),
            tier(3, 9, |_| Answer::Row { after_ns: 150 }),
        ];
        let mut chain = chain(tiers, 9);
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
        let gone = |_: &Wanted| fails(0, TierError::Gone);
        let mut full = chain([tier(1, 9, gone), tier(2, 1, slow)], 4);
        for (row, deadline_ns) in [(0, 1000), (1, 1000), (2, 80), (3, 1000)] {
            full.fetch(0, wanted(row, deadline_ns)).unwrap();
        }
        assert_eq!(full.fetch(0, wanted(4, 1000)), Err(FetchesFull::ForAll));
        assert_eq!(poll(&mut full, 0), []);
        assert_eq!(full.unanswered(), 4);
        assert_eq!(poll(&mut full, 50), [(1000, Ok(vec![2]))]);
        assert_eq!(poll(&mut full, 60), []);
        assert_eq!(poll(&mut full, 80), [(1002, Err(TierError::Late))]);
        assert_eq!(poll(&mut full, 110), [(1001, Ok(vec![2]))]);
        assert_eq!(poll(&mut full, 111), []);
        assert_eq!(poll(&mut full, 161), [(1003, Ok(vec![2]))]);
        assert_eq!(full.unanswered(), 0);
        // Where the first tier is full, so is the chain.
        let mut chain = chain([tier(1, 1, slow), tier(2, 9, slow)], 9);
        chain.fetch(0, wanted(0, 1000)).unwrap();
        assert_eq!(chain.fetch(0, wanted(1, 1000)), Err(FetchesFull::ForAll));
        assert_eq!(chain.unanswered(), 1);
    }

    #[test]
    fn a_tier_that_is_full_and_answers_nothing_is_passed_by_after_its_part_of_the_time() {
        // Row 0 is given up by the tier itself, and keeps its room: as reads do that the kernel never ends.
        let stuck = Box::new(Stuck { room: 1 });
        let mut chain = Chain::new(9)
            .then(stuck, vec![Some(0), Some(1)])
            .then(tier(2, 9, |_| AT_ONCE), vec![Some(0), None]);
        let at = |row, now_ns| wanted(row, now_ns + 300);
        chain.fetch(0, at(0, 0)).unwrap();
        for now_ns in [0, 100, 149] {
            assert_eq!(chain.fetch(now_ns, at(1, now_ns)), Err(FetchesFull::ForAll));
        }
        chain.fetch(150, at(1, 150)).unwrap();
        let answered = poll(&mut chain, 150);
        assert_eq!(answered, [(1001, Ok(vec![2]))]);
        // At once, now that it is known; but not a table that only the first tier has.
        chain.fetch(151, at(2, 151)).unwrap();
        let only = Wanted {
            table: 1,
            ..at(3, 151)
        };
        assert_eq!(chain.fetch(151, only), Err(FetchesFull::ForAll));
        assert_eq!(poll(&mut chain, 151), [(1002, Ok(vec![2]))]);
        assert_eq!((chain.counts().passed_on, chain.unanswered()), (2, 1));
    }

    /// Stands in for a tier that never answers, and never has room again.
    struct Stuck {
        room: usize,
    }

    impl Tier for Stuck {
        fn fetch(&mut self, _: u64, _: Wanted) -> Result<(), FetchesFull> {
            self.room = self.room.checked_sub(1).ok_or(FetchesFull::ForAll)?;
            Ok(())
        }

        fn poll(&mut self, _: u64, _: EachRow<'_>) {}

        fn unanswered(&self) -> usize {
            0
        }

        fn counts(&self) -> TierCounts {
            TierCounts::default()
        }
    }

    #[test]
    fn a_table_is_asked_of_the_tiers_that_have_it() {
        let never = |_: &Wanted| Answer::Never;
        // The rows of the last tier say by which number it knows their table.
        let row = |wanted: &Wanted| vec![wanted.table as u8];
        let last = Box::new(ScriptedTier::new(9, row, |_: &Wanted| AT_ONCE));
        let mut chain = (Chain::new(9))
            .then(tier(1, 9, never), vec![Some(0), Some(1), Some(2)])
            .then(tier(2, 9, never), vec![None, None, Some(0)])
            .then(last, vec![Some(40), None, Some(42)]);
        for table in 0..3 {
            let token = table.into();
            let wanted = wanted(0, 300);
            chain
                .fetch(
                    0,
                    Wanted {
                        table,
                        token,
                        ..wanted
                    },
                )
                .unwrap();
        }
        // Half of the time for each of two tiers, all of it for one, a third for each of three.
        let answers = [
            (100, vec![]),
            (149, vec![]),
            (150, vec![(0, Ok(vec![40]))]),
            (199, vec![]),
            (200, vec![(2, Ok(vec![42]))]),
            (299, vec![]),
            (300, vec![(1, Err(TierError::Late))]),
        ];
        for (now_ns, answered) in answers {
            assert_eq!(poll(&mut chain, now_ns), answered, "at {now_ns}");
        }
        assert_eq!(chain.counts().passed_on, 3);
        assert_eq!(chain.unanswered(), 0);
    }
}
