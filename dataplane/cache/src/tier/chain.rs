//! Several tiers, of which each has some tables: what one fails to give is asked of the next that has the table.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use super::breaker::Breaker;
use super::link::{Asked, Book, Link, part_ns};
use super::{EachRow, FetchesFull, FileReads, Tier, TierCounts, TierError, Wanted};
use crate::quotas::Quotas;

/// Tokens from here on are of probes, of which nobody is told: one for each table.
const PROBES: u64 = 1 << 32;

/// Tiers that are tried in their order, each for its own tables.
///
/// A tier has an equal part of what is left of a fetch's time, the last one that has the table all of it: so one that never answers takes
/// no more than its part, one that fails at once leaves all to those behind it, and a table that only one tier has is fetched as if there
/// were no other. A fetch fails with what the last tier of its table says, or once its time is over.
///
/// Nor does one take any time that has not answered for a table lately. After 8 fetches in a row that were late, those behind it are asked at once, and
/// it is asked for one row now and then, once in a fetch's time, of which nobody hears but this: it counts again from when it answers. The same
/// where it has taken no more of a table, and answered nothing for it, for such a part of a fetch's time.
pub struct Chain {
    links: Vec<Link>,
    book: Book,
    /// Of the first tier of each table.
    breakers: Box<[Breaker]>,
    passed_on: u64,
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
    /// Without tiers, and with room for so many fetches over all that come, of tables with numbers below `tables`.
    pub fn new(fetches: u32, tables: u32) -> Chain {
        Chain {
            links: Vec::new(),
            book: Book {
                fetches: vec![None; fetches as usize].into_boxed_slice(),
                free: (0..fetches).rev().collect(),
                quotas: Quotas::new(fetches, 1, &vec![true; tables as usize]),
            },
            breakers: (0..tables).map(|_| Breaker::default()).collect(),
            passed_on: 0,
        }
    }

    /// The same with one more tier behind the others. `tables` has the tier's number of each table by the chain's number, and nothing
    /// for those that are not to be asked of it.
    ///
    /// # Panics
    /// If it has not as many tables as the chain.
    pub fn then(mut self, tier: Box<dyn Tier + Send>, tables: Vec<Option<u32>>) -> Chain {
        assert_eq!(tables.len(), self.breakers.len(), "tables of the chain");
        self.links.push(Link {
            tier,
            is_passed: vec![false; tables.len()].into_boxed_slice(),
            tables: tables.into(),
            // Each fetch stands in one queue at most.
            waiting: VecDeque::with_capacity(self.book.fetches.len()),
        });
        self
    }

    /// The same, which shows in these files' reads whether tables' first tiers are passed by. In the order of the chain's tables.
    pub fn shown_in(self, reads: Vec<Arc<FileReads>>) -> Chain {
        Chain {
            breakers: reads.into_iter().map(Breaker::shown_in).collect(),
            ..self
        }
    }

    /// Asks the first tier of a table that is passed by for a row, if that is due: for nobody.
    fn probe(&mut self, now_ns: u64, wanted: Wanted, left: u32) {
        let breaker = &mut self.breakers[wanted.table as usize];
        let Some(row) = breaker.probe(now_ns, wanted.deadline_ns) else {
            return;
        };
        let token = PROBES + u64::from(wanted.table);
        let first = self.links.iter_mut().find(|link| link.has(wanted.table));
        let first = first.expect("a table of one of the tiers");
        let taken = first.ask(now_ns, token, Wanted { row, ..wanted }, left);
        breaker.set_probed(taken.is_ok());
    }
}

impl Tier for Chain {
    fn fetch(&mut self, now_ns: u64, wanted: Wanted) -> Result<(), FetchesFull> {
        let table = wanted.table as usize;
        self.book.quotas.lets(table, 1)?;
        let &number = self.book.free.last().expect("one is free");
        let having = self.links.iter().filter(|link| link.has(wanted.table));
        let left = having.count() as u32;
        let mut asked = Asked {
            wanted,
            left,
            is_first: true,
        };
        let is_passed_by = left > 1 && self.breakers[table].is_open();
        if is_passed_by {
            self.probe(now_ns, wanted, left);
        }
        let mut having = self.links.iter_mut().filter(|link| link.has(wanted.table));
        let first = having.next().expect("a table of one of the tiers");
        let breaker = &mut self.breakers[table];
        let taken = match is_passed_by {
            true => Err(FetchesFull::ForTable),
            false => first.ask(now_ns, number.into(), wanted, left),
        };
        match taken {
            Ok(()) => breaker.took(),
            Err(full) => {
                let part_ns = part_ns(now_ns, wanted, left);
                let is_stuck =
                    is_passed_by || now_ns.saturating_sub(breaker.refused(now_ns)) >= part_ns;
                let next = having.next().filter(|_| is_stuck);
                next.ok_or(full)?.waiting.push_back(number);
                breaker.open(wanted.row, wanted.deadline_ns);
                (asked.left, asked.is_first) = (left - 1, false);
                self.passed_on += 1;
            }
        }
        self.book.quotas.take(table, 1);
        self.book.free.pop();
        self.book.fetches[number as usize] = Some(asked);
        Ok(())
    }

    fn poll(&mut self, now_ns: u64, each: EachRow<'_>) {
        let Chain {
            links,
            book,
            breakers,
            passed_on,
        } = self;
        for at in 0..links.len() {
            let (own, behind) = links[at..].split_first_mut().expect("one of them");
            own.take_waiting(now_ns, book, each);
            own.tier.poll(now_ns, &mut |token, outcome| {
                let is_late = outcome == Err(TierError::Late);
                if let Some(table) = token.checked_sub(PROBES) {
                    let breaker = &mut breakers[table as usize];
                    match is_late {
                        true => breaker.set_probed(false),
                        false => breaker.answered(),
                    }
                    return;
                }
                let number = token as u32;
                let asked = book.asked(number);
                let wanted = asked.wanted;
                if asked.is_first {
                    let breaker = &mut breakers[wanted.table as usize];
                    match is_late {
                        true => breaker.was_late(wanted.row, wanted.deadline_ns),
                        false => breaker.answered(),
                    }
                }
                let has_time = wanted.deadline_ns > now_ns;
                if outcome.is_ok() || asked.left == 1 || !has_time {
                    return each(book.end(number), outcome);
                }
                (asked.left, asked.is_first) = (asked.left - 1, false);
                let next = behind.iter_mut().find(|link| link.has(wanted.table));
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
        tiers.fold(Chain::new(fetches, 1), |chain, tier| {
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
        let mut chain = Chain::new(9, 2)
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
        let mut chain = (Chain::new(9, 3))
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

    #[test]
    fn a_tier_that_is_late_again_and_again_is_probed_until_it_answers() {
        use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
        let is_well = Arc::new(AtomicBool::new(false));
        let asked_well = Arc::clone(&is_well);
        let script = move |_: &Wanted| match asked_well.load(Relaxed) {
            true => AT_ONCE,
            false => Answer::Never,
        };
        let first = ScriptedTier::new(99, |_: &Wanted| vec![1], script);
        let reads = Arc::<FileReads>::default();
        let mut chain = Chain::new(99, 1)
            .then(Box::new(first), vec![Some(0)])
            .then(tier(2, 99, |_| AT_ONCE), vec![Some(0)])
            .shown_in(vec![Arc::clone(&reads)]);
        for row in 0..8 {
            chain.fetch(0, wanted(row, 100)).unwrap();
        }
        assert_eq!(poll(&mut chain, 49), []);
        assert!(!reads.is_bypassed());
        let late = poll(&mut chain, 50);
        assert!(late.len() == 8 && late.iter().all(|(_, row)| *row == Ok(vec![2])));
        assert!(reads.is_bypassed());
        // From now on rows come at once, whether there is a probe or not: one in a fetch's time, and two requests in this one.
        let mut asked = chain.links[0].tier.unanswered();
        for now_ns in (60..1000).step_by(20) {
            chain.fetch(now_ns, wanted(7, now_ns + 100)).unwrap();
            let row = poll(&mut chain, now_ns);
            assert_eq!(row, [(1007, Ok(vec![2]))], "at {now_ns}");
            asked += chain.links[0].tier.unanswered();
        }
        // A probe has half of a fetch's time, and is seen in three of five polls.
        assert_eq!(asked, 27);
        is_well.store(true, Relaxed);
        let first = (1000..2000).step_by(20).find(|&now_ns| {
            chain.fetch(now_ns, wanted(7, now_ns + 100)).unwrap();
            poll(&mut chain, now_ns) == [(1007, Ok(vec![1]))]
        });
        assert!(first.is_some_and(|now_ns| now_ns <= 1200), "{first:?}");
        assert!(!reads.is_bypassed());
        assert_eq!(chain.unanswered(), 0);
    }

    #[test]
    fn a_table_that_a_tier_takes_no_more_of_keeps_no_others_back() {
        let slow = |wanted: &Wanted| match wanted.table {
            0 => Answer::Never,
            _ => AT_ONCE,
        };
        let gone = |_: &Wanted| fails(0, TierError::Gone);
        let second = Box::new(ByTable(tier(2, 99, slow)));
        let both = vec![Some(0), Some(1)];
        let mut chain = Chain::new(40, 2)
            .then(tier(1, 99, gone), both.clone())
            .then(second, both);
        let of = |table, row| Wanted {
            table,
            ..wanted(row, 1000)
        };
        let hung = (0..40).take_while(|&row| chain.fetch(0, of(0, row)).is_ok());
        assert_eq!(hung.count(), 31);
        for now_ns in 1..100 {
            assert_eq!(poll(&mut chain, now_ns), []);
            chain.fetch(now_ns, of(1, 50)).unwrap();
            assert_eq!(poll(&mut chain, now_ns), [(1050, Ok(vec![2]))]);
        }
        assert_eq!(poll(&mut chain, 1000).len(), 31);
    }

    /// Takes one fetch of table 0 at a time.
    struct ByTable(Box<dyn Tier + Send>);

    impl Tier for ByTable {
        fn fetch(&mut self, now_ns: u64, wanted: Wanted) -> Result<(), FetchesFull> {
            match wanted.table == 0 && self.0.unanswered() > 0 {
                true => Err(FetchesFull::ForTable),
                false => self.0.fetch(now_ns, wanted),
            }
        }

        fn poll(&mut self, now_ns: u64, each: EachRow<'_>) {
            self.0.poll(now_ns, each);
        }

        fn unanswered(&self) -> usize {
            self.0.unanswered()
        }
    }
}
