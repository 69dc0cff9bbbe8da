//! Fetches of rows, and the reads of pages that serve them: one read for all rows that lie together.
//!
//! A read *waits* from when it is needed until a poll begins it, and can be made longer while it does; then it is *asked for*, until
//! the device has answered. A fetch belongs to one read until the read is answered or the fetch's deadline is over. A read whose
//! fetches were all given up goes on, since a device can't be stopped, and keeps its slot; who asks for its pages meanwhile joins
//! it like any other. So a file that hangs keeps what its table may have of reads and fetches ([`Quotas`]), and no more.
//!
//! A read that fails says nothing of rows that lie in a part of its pages. For them it waits again, *narrowed* to the pages of one of
//! them at a time: a page that can't be read fails its own rows and no others.

use std::collections::VecDeque;
use std::ops::Range;

use rowmill_table::PAGE_BYTES;

use super::FetchesFull;
use super::edges::Edges;
use crate::quotas::Quotas;

/// How often a read is left to wait for more rows: four pages of rows of 256 bytes, 16 of which are fetched at a time, take three times, and who wants
/// the first of them waits for some polls more, each up to as long as a turn takes, of a read that takes as long as some.
const HOLDS: u8 = 4;
/// The end of a list.
const NONE: u32 = u32::MAX;

/// One row that somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fetch {
    pub(super) token: u64,
    pub(super) row: u32,
    pub(super) asked_ns: u64,
    pub(super) deadline_ns: u64,
}

/// Pages of a table's file that are read together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) table: u32,
    pub(super) pages: Range<u64>,
}

impl Span {
    /// Its pages.
    pub(super) fn len(&self) -> u64 {
        self.pages.end - self.pages.start
    }

    /// Where it begins in the file, and its bytes.
    pub(super) fn bytes(&self) -> (u64, usize) {
        let offset = self.pages.start * PAGE_BYTES as u64;
        (offset, self.len() as usize * PAGE_BYTES)
    }

    fn covers(&self, other: &Span) -> bool {
        self.table == other.table && self.has(&other.pages)
    }

    /// Whether all these pages of its table are its own.
    fn has(&self, pages: &Range<u64>) -> bool {
        self.pages.start <= pages.start && pages.end <= self.pages.end
    }

    /// Both together, if there is no gap between them.
    fn with(&self, other: &Span) -> Option<Span> {
        let touch = self.table == other.table
            && self.pages.start <= other.pages.end
            && other.pages.start <= self.pages.end;
        touch.then(|| Span {
            table: self.table,
            pages: self.pages.start.min(other.pages.start)..self.pages.end.max(other.pages.end),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Free,
    Waiting,
    Asked,
}

#[derive(Clone, Debug)]
struct Read {
    stage: Stage,
    span: Span,
    /// Whether it was asked for in place of a longer one, and is not to be one again.
    is_narrowed: bool,
    /// Whether other rows have joined it since it was last looked at, and how often it was left to wait for that.
    has_grown: bool,
    holds: u8,
    /// The first of its fetches.
    first: u32,
}

/// A place for a fetch, in the list of its read.
#[derive(Clone, Debug)]
struct Place {
    fetch: Fetch,
    /// Where its row lies.
    pages: Range<u64>,
    next: u32,
}

/// How a fetch was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// By a read of its own.
    Alone,
    /// By a read that others wait for too.
    Joined,
}

/// All fetches and reads of a tier. Nothing is allocated after [`Fetches::new`].
#[derive(Debug)]
pub(super) struct Fetches {
    places: Box<[Place]>,
    free_places: Vec<u32>,
    reads: Box<[Read]>,
    edges: Edges,
    free_reads: Vec<u32>,
    /// The reads that wait, in the order in which they were needed.
    waiting: VecDeque<u32>,
    /// Who holds the places, and the reads.
    place_quotas: Quotas,
    read_quotas: Quotas,
    read_pages: u64,
    /// No fetch has a deadline before this.
    soonest_ns: u64,
}

impl Fetches {
    /// Room for `fetches` rows and `reads` reads of `read_pages` pages each, of tables with numbers below `tables`.
    pub(super) fn new(fetches: u32, reads: u32, read_pages: u64, tables: u32) -> Fetches {
        assert!(fetches > 0 && fetches < NONE && reads > 0 && reads < NONE);
        let sharing = vec![true; tables as usize];
        let none = Place {
            fetch: Fetch {
                token: 0,
                row: 0,
                asked_ns: 0,
                deadline_ns: 0,
            },
            pages: 0..0,
            next: NONE,
        };
        let free = Read {
            stage: Stage::Free,
            span: Span {
                table: 0,
                pages: 0..0,
            },
            is_narrowed: false,
            has_grown: false,
            holds: 0,
            first: NONE,
        };
        Fetches {
            places: vec![none; fetches as usize].into(),
            free_places: (0..fetches).rev().collect(),
            reads: vec![free; reads as usize].into(),
            edges: Edges::new(reads as usize),
            free_reads: (0..reads).rev().collect(),
            waiting: VecDeque::with_capacity(reads as usize),
            place_quotas: Quotas::new(fetches, 1, &sharing),
            read_quotas: Quotas::new(reads, 1, &sharing),
            read_pages,
            soonest_ns: u64::MAX,
        }
    }

    /// Fetches that are not answered.
    pub(super) fn unanswered(&self) -> usize {
        self.places.len() - self.free_places.len()
    }

    /// Reads that wait or were asked for.
    pub(super) fn reads(&self) -> usize {
        self.reads.len() - self.free_reads.len()
    }

    /// Whether a table is being read.
    pub(super) fn is_read(&self, table: u32) -> bool {
        self.read_quotas.held(table as usize) > 0
    }

    /// Takes a fetch of a row that lies in `span`.
    pub(super) fn take(&mut self, fetch: Fetch, span: Span) -> Result<Taken, FetchesFull> {
        assert!(span.len() <= self.read_pages, "a row fits a read");
        let (table, pages) = (span.table as usize, span.pages.clone());
        self.place_quotas.lets(table, 1)?;
        let (read, taken) = match self.joinable(&span) {
            Some((read, joined)) => {
                self.edges.set(read, &joined);
                let joins = &mut self.reads[read as usize];
                (joins.span, joins.has_grown) = (joined, true);
                (read, Taken::Joined)
            }
            None => {
                self.read_quotas.lets(table, 1)?;
                self.read_quotas.take(table, 1);
                let read = self.free_reads.pop().expect("one is free");
                self.edges.set(read, &span);
                self.reads[read as usize] = Read {
                    stage: Stage::Waiting,
                    span,
                    is_narrowed: false,
                    has_grown: false,
                    holds: 0,
                    first: NONE,
                };
                self.waiting.push_back(read);
                (read, Taken::Alone)
            }
        };
        self.place_quotas.take(table, 1);
        let place = self.free_places.pop().expect("one is free");
        let first = &mut self.reads[read as usize].first;
        self.places[place as usize] = Place {
            fetch,
            pages,
            next: std::mem::replace(first, place),
        };
        self.soonest_ns = self.soonest_ns.min(fetch.deadline_ns);
        Ok(taken)
    }

    /// A read that has all pages of `span`, or else one that can be made to, and what it then reads.
    fn joinable(&self, span: &Span) -> Option<(u32, Span)> {
        let mut longer = None;
        for number in self.edges.touching(span) {
            let read = &self.reads[number as usize];
            if read.span.covers(span) {
                return Some((number, read.span.clone()));
            }
            if read.stage == Stage::Waiting
                && !read.is_narrowed
                && longer.is_none()
                && let Some(both) = read.span.with(span)
                && both.len() <= self.read_pages
            {
                longer = Some((number, both));
            }
        }
        longer
    }

    /// Reads that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The reads that are to be asked for now, `most` of those that wait, each with its number, the first needed first. The last one of all
    /// is left to wait some times as long as it grows: rows are fetched some at a time, and those of a table that is gone through come by a
    /// page or two.
    pub(super) fn begin(&mut self, most: usize, mut ask: impl FnMut(u32, &Span)) {
        let mut begun = self.waiting.len().min(most);
        if begun > 0 && begun == self.waiting.len() {
            let last = &mut self.reads[self.waiting[begun - 1] as usize];
            let has_grown = std::mem::take(&mut last.has_grown);
            let may_grow = !last.is_narrowed && last.span.len() < self.read_pages;
            if has_grown && may_grow && last.holds < HOLDS {
                last.holds += 1;
                begun -= 1;
            }
        }
        for number in self.waiting.drain(..begun) {
            let read = &mut self.reads[number as usize];
            read.stage = Stage::Asked;
            ask(number, &read.span);
        }
    }

    /// Takes the outcome of a read that was asked for: hands to `each` those of its fetches that it answers, with what it read. It ends
    /// when there are no others.
    pub(super) fn finish(
        &mut self,
        number: u32,
        has_failed: bool,
        mut each: impl FnMut(&Span, Fetch),
    ) {
        let read = &mut self.reads[number as usize];
        assert_eq!(read.stage, Stage::Asked, "a read that was asked for");
        let table = read.span.table as usize;
        let mut others = NONE;
        let mut next = std::mem::replace(&mut read.first, NONE);
        while next != NONE {
            let place = &mut self.places[next as usize];
            let is_answered = match has_failed {
                true => place.pages == read.span.pages,
                false => read.span.has(&place.pages),
            };
            let (fetch, behind) = (place.fetch, place.next);
            if is_answered {
                self.free_places.push(next);
                self.place_quotas.give_back(table, 1);
                each(&read.span, fetch);
            } else {
                place.next = others;
                others = next;
            }
            next = behind;
        }
        if others == NONE {
            read.stage = Stage::Free;
            self.read_quotas.give_back(table, 1);
            self.edges.clear(number);
            self.free_reads.push(number);
            return;
        }
        read.span.pages = self.places[others as usize].pages.clone();
        (read.stage, read.is_narrowed, read.first) = (Stage::Waiting, true, others);
        self.edges.set(number, &read.span);
        self.waiting.push_front(number);
    }

    /// Gives up the fetches whose deadline is `now_ns` or before, and hands them to `each`.
    pub(super) fn expire(&mut self, now_ns: u64, mut each: impl FnMut(&Span, Fetch)) {
        if now_ns < self.soonest_ns {
            return;
        }
        self.soonest_ns = u64::MAX;
        for read in &mut self.reads {
            let mut kept = NONE;
            let mut next = std::mem::replace(&mut read.first, NONE);
            while next != NONE {
                let place = &self.places[next as usize];
                let (fetch, behind) = (place.fetch, place.next);
                if fetch.deadline_ns <= now_ns {
                    self.free_places.push(next);
                    self.place_quotas.give_back(read.span.table as usize, 1);
                    each(&read.span, fetch);
                } else {
                    self.soonest_ns = self.soonest_ns.min(fetch.deadline_ns);
                    self.places[next as usize].next = kept;
                    kept = next;
                }
                next = behind;
            }
            read.first = kept;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER_NS: u64 = 1000;

    fn span(table: u32, pages: Range<u64>) -> Span {
        Span { table, pages }
    }

    fn fetch(token: u64) -> Fetch {
        Fetch {
            token,
            row: token as u32,
            asked_ns: 0,
            deadline_ns: LATER_NS,
        }
    }

    fn begun(fetches: &mut Fetches) -> Vec<(u32, Span)> {
        let mut all = Vec::new();
        fetches.begin(usize::MAX, |number, span| all.push((number, span.clone())));
        all
    }

    fn finished(fetches: &mut Fetches, number: u32) -> Vec<u64> {
        let mut tokens = Vec::new();
        fetches.finish(number, false, |_, fetch| tokens.push(fetch.token));
        tokens.sort_unstable();
        tokens
    }

    #[test]
    fn the_last_read_waits_while_it_grows() {
        let mut fetches = Fetches::new(64, 8, 4, 2);
        let take = |fetches: &mut Fetches, token, table, page| {
            fetches
                .take(fetch(token), span(table, page..page + 1))
                .unwrap()
        };
        // Another one waits before it, and is asked for.
        take(&mut fetches, 0, 1, 9);
        for page in 5..9 {
            take(&mut fetches, page, 0, page);
            take(&mut fetches, 10 + page, 0, page);
            let asked = begun(&mut fetches);
            match page {
                5 => assert_eq!(asked, [(0, span(1, 9..10))]),
                6 | 7 => assert_eq!(asked, []),
                // As long as one can be.
                _ => assert_eq!(asked, [(1, span(0, 5..9))]),
            }
        }
        assert_eq!(finished(&mut fetches, 1), [5, 6, 7, 8, 15, 16, 17, 18]);
        // One that stays as it is waits for nothing, and one that two rows want once more.
        take(&mut fetches, 1, 0, 1);
        assert_eq!(begun(&mut fetches).len(), 1);
        take(&mut fetches, 2, 0, 20);
        take(&mut fetches, 3, 0, 20);
        assert_eq!(begun(&mut fetches), []);
        assert_eq!(begun(&mut fetches).len(), 1);
        // And none for ever.
        take(&mut fetches, 19, 0, 40);
        let waits = (0..).take_while(|&token| {
            take(&mut fetches, 20 + token, 0, 40);
            begun(&mut fetches).is_empty()
        });
        assert_eq!(waits.count(), usize::from(HOLDS));
    }

    #[test]
    fn a_read_that_fails_is_asked_for_again_for_rows_of_a_part_of_it() {
        let mut fetches = Fetches::new(8, 4, 4, 1);
        // One lies in two pages, and another one in all that are read together.
        for (token, pages) in [(0, 5..6), (1, 6..7), (2, 6..8), (3, 6..7), (4, 4..8)] {
            fetches.take(fetch(token), span(0, pages)).unwrap();
        }
        let fails = |fetches: &mut Fetches, number| {
            let mut tokens = Vec::new();
            fetches.finish(number, true, |_, fetch| tokens.push(fetch.token));
            tokens.sort_unstable();
            tokens
        };
        let [(number, read)] = &begun(&mut fetches)[..] else {
            panic!("one read");
        };
        let number = *number;
        assert_eq!(read, &span(0, 4..8));
        assert_eq!(fails(&mut fetches, number), [4]);
        assert_eq!((fetches.reads(), fetches.waiting()), (1, 1));
        // While it waits it is joined by rows of its pages, and not made longer.
        assert_eq!(fetches.reads[number as usize].span, span(0, 5..6));
        let other = fetches.take(fetch(5), span(0, 4..5));
        assert_eq!(other, Ok(Taken::Alone));
        let mut answered = Vec::new();
        // The page 6 fails, and those that need it.
        while fetches.reads() > 0 {
            for (number, read) in begun(&mut fetches) {
                answered.push((
                    read.pages.clone(),
                    match read.pages.contains(&6) {
                        true => fails(&mut fetches, number),
                        false => finished(&mut fetches, number),
                    },
                ));
            }
        }
        let failed = answered.iter().filter(|(pages, _)| pages.contains(&6));
        let mut failed: Vec<u64> = failed.flat_map(|(_, tokens)| tokens.clone()).collect();
        failed.sort_unstable();
        assert_eq!(failed, [1, 2, 3], "{answered:?}");
        let all: usize = answered.iter().map(|(_, tokens)| tokens.len()).sum();
        assert_eq!((all, fetches.unanswered()), (5, 0), "{answered:?}");
        assert_eq!(fetches.free_reads.len(), 4);
    }

    #[test]
    fn rows_of_one_page_are_one_read() {
        let mut fetches = Fetches::new(8, 4, 4, 2);
        assert_eq!(fetches.take(fetch(0), span(0, 5..6)), Ok(Taken::Alone));
        assert_eq!(fetches.take(fetch(1), span(0, 5..6)), Ok(Taken::Joined));
        assert_eq!(fetches.take(fetch(2), span(1, 5..6)), Ok(Taken::Alone));
        let reads = begun(&mut fetches);
        let spans: Vec<&Span> = reads.iter().map(|(_, span)| span).collect();
        assert_eq!(spans, [&span(0, 5..6), &span(1, 5..6)]);
        // The page is on its way, so who wants it now waits for the same read.
        assert_eq!(fetches.take(fetch(3), span(0, 5..6)), Ok(Taken::Joined));
        assert!(begun(&mut fetches).is_empty());
        assert_eq!(finished(&mut fetches, reads[0].0), [0, 1, 3]);
        assert_eq!(finished(&mut fetches, reads[1].0), [2]);
        assert_eq!((fetches.unanswered(), fetches.reads()), (0, 0));
    }

    #[test]
    fn reads_grow_as_long_as_they_wait() {
        let mut fetches = Fetches::new(8, 4, 4, 1);
        fetches.take(fetch(0), span(0, 10..11)).unwrap();
        assert_eq!(fetches.take(fetch(1), span(0, 11..13)), Ok(Taken::Joined));
        assert_eq!(fetches.take(fetch(2), span(0, 9..10)), Ok(Taken::Joined));
        // A fifth page does not fit, and behind a gap there is nothing to join.
        assert_eq!(fetches.take(fetch(3), span(0, 13..14)), Ok(Taken::Alone));
        assert_eq!(fetches.take(fetch(4), span(0, 20..21)), Ok(Taken::Alone));
        let reads = begun(&mut fetches);
        let spans: Vec<&Span> = reads.iter().map(|(_, span)| span).collect();
        assert_eq!(spans, [&span(0, 9..13), &span(0, 13..14), &span(0, 20..21)]);
        // What is asked for does not grow.
        assert_eq!(fetches.take(fetch(5), span(0, 21..22)), Ok(Taken::Alone));
    }

    #[test]
    fn a_full_tier_refuses_and_changes_nothing() {
        let mut fetches = Fetches::new(3, 2, 1, 1);
        fetches.take(fetch(0), span(0, 0..1)).unwrap();
        fetches.take(fetch(1), span(0, 1..2)).unwrap();
        assert_eq!(
            fetches.take(fetch(2), span(0, 2..3)),
            Err(FetchesFull::ForAll)
        );
        fetches.take(fetch(2), span(0, 1..2)).unwrap();
        assert_eq!(
            fetches.take(fetch(3), span(0, 1..2)),
            Err(FetchesFull::ForAll)
        );
        let reads = begun(&mut fetches);
        assert_eq!(finished(&mut fetches, reads[1].0), [1, 2]);
        fetches.take(fetch(3), span(0, 2..3)).unwrap();
        assert_eq!((fetches.unanswered(), fetches.reads()), (2, 2));
        assert!(fetches.is_read(0));
    }

    #[test]
    fn late_fetches_are_given_up_and_their_read_goes_on() {
        let mut fetches = Fetches::new(4, 1, 1, 1);
        let late = |token, deadline_ns| Fetch {
            deadline_ns,
            ..fetch(token)
        };
        for (token, deadline_ns) in [(0, 30), (1, 10), (2, 20)] {
            fetches
                .take(late(token, deadline_ns), span(0, 0..1))
                .unwrap();
        }
        let reads = begun(&mut fetches);
        let expired = |fetches: &mut Fetches, now_ns| {
            let mut tokens = Vec::new();
            fetches.expire(now_ns, |_, fetch| tokens.push(fetch.token));
            tokens
        };
        assert!(expired(&mut fetches, 9).is_empty());
        assert_eq!(expired(&mut fetches, 10), [1]);
        assert!(expired(&mut fetches, 19).is_empty());
        assert_eq!(expired(&mut fetches, 1000), [0, 2]);
        assert_eq!((fetches.unanswered(), fetches.reads()), (0, 1));
        assert_eq!(
            fetches.take(fetch(3), span(0, 1..2)),
            Err(FetchesFull::ForAll)
        );
        fetches.take(fetch(4), span(0, 0..1)).unwrap();
        assert_eq!(finished(&mut fetches, reads[0].0), [4]);
        fetches.take(fetch(3), span(0, 1..2)).unwrap();
    }

    #[test]
    fn tables_whose_reads_hang_leave_some_for_the_last() {
        let mut fetches = Fetches::new(64, 8, 1, 4);
        // Three take all reads that they may, one after another.
        let held: Vec<usize> = (0..3)
            .map(|table| {
                let mut pages = (0..).map(|page| 2 * page..2 * page + 1);
                let mut take = |pages| fetches.take(fetch(0), span(table, pages));
                let full = pages.find_map(|pages| take(pages).err());
                assert_eq!(full, Some(FetchesFull::ForTable));
                fetches.reads()
            })
            .collect();
        assert_eq!(held, [4, 6, 7]);
        begun(&mut fetches);
        // They are given up, and their reads are not answered: of other pages there is none.
        let mut hung = 0;
        fetches.expire(LATER_NS, |_, _| hung += 1);
        assert_eq!((hung, fetches.unanswered()), (7, 0));
        for table in 0..3 {
            let again = fetches.take(fetch(90), span(table, 90..91));
            assert_eq!(again, Err(FetchesFull::ForTable));
        }
        // The last one's rows come through what is its own, one after another.
        for token in 100..200 {
            let page = token..token + 1;
            assert_eq!(fetches.take(fetch(token), span(3, page)), Ok(Taken::Alone));
            let next = fetches.take(fetch(token), span(3, 0..1));
            assert_eq!(next, Err(FetchesFull::ForAll));
            let reads = begun(&mut fetches);
            assert_eq!(finished(&mut fetches, reads[0].0), [token]);
        }
        // Rows of pages that hang are waited for by as many as may wait, and no more.
        let mut token = 200;
        while fetches.take(fetch(token), span(0, 0..1)).is_ok() {
            token += 1;
        }
        let next = fetches.take(fetch(token), span(0, 2..3));
        assert_eq!(next, Err(FetchesFull::ForTable));
        assert_eq!(fetches.unanswered(), 46);
        assert_eq!(fetches.take(fetch(300), span(3, 0..1)), Ok(Taken::Alone));
    }
}
