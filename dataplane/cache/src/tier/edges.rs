//! Where reads begin and end, so that those that touch some pages are found quickly among hundreds.

use super::fetches::Span;

/// Reads that are compared at a time: few enough that the compiler does it without a branch.
const RUN: usize = 16;

/// The first and the last place of each read; a place is a table's page.
#[derive(Debug)]
pub(super) struct Edges {
    starts: Box<[u64]>,
    ends: Box<[u64]>,
}

impl Edges {
    /// For reads with numbers below `reads`, none of which is under way.
    pub(super) fn new(reads: usize) -> Edges {
        Edges {
            starts: vec![u64::MAX; reads].into(),
            ends: vec![0; reads].into(),
        }
    }

    /// A read has these pages from now on.
    pub(super) fn set(&mut self, read: u32, span: &Span) {
        let (start, end) = places(span);
        self.starts[read as usize] = start;
        self.ends[read as usize] = end;
    }

    /// A read is no longer under way.
    pub(super) fn clear(&mut self, read: u32) {
        self.starts[read as usize] = u64::MAX;
        self.ends[read as usize] = 0;
    }

    /// The reads that have pages of `span`, or such beside it, the lowest number first.
    pub(super) fn touching(&self, span: &Span) -> impl Iterator<Item = u32> {
        let (start, end) = places(span);
        let touches = move |(&from, &to): (&u64, &u64)| from <= end && start <= to;
        let runs = self.starts.chunks(RUN).zip(self.ends.chunks(RUN));
        (0..).step_by(RUN).zip(runs).flat_map(move |(first, run)| {
            let (starts, ends) = run;
            let any = starts
                .iter()
                .zip(ends)
                .map(touches)
                .fold(false, |a, b| a | b);
            let all = if any { starts.len() } else { 0 };
            let those = (first..).zip(starts.iter().zip(ends)).take(all);
            those
                .filter(move |&(_, edges)| touches(edges))
                .map(|(number, _)| number)
        })
    }
}

/// Behind the end of one table's pages is a gap before the next one's: they don't touch.
fn places(span: &Span) -> (u64, u64) {
    // Files have less than 2^44 pages, and tables' numbers are small.
    let from = (u64::from(span.table) << 44) + 1;
    (from + span.pages.start, from + span.pages.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_a_search_of_all_finds() {
        let mut draws = fastrand::Rng::with_seed(1);
        let span = |draws: &mut fastrand::Rng| {
            let start = draws.u64(0..60);
            Span {
                table: draws.u32(0..3),
                pages: start..start + draws.u64(1..5),
            }
        };
        let mut edges = Edges::new(37);
        let mut spans: Vec<Option<Span>> = vec![None; 37];
        for _ in 0..2000 {
            let read = draws.usize(0..37);
            spans[read] = draws.bool().then(|| span(&mut draws));
            match &spans[read] {
                Some(span) => edges.set(read as u32, span),
                None => edges.clear(read as u32),
            }
            let wanted = span(&mut draws);
            let touches = |span: &Span| {
                span.table == wanted.table
                    && span.pages.start <= wanted.pages.end
                    && wanted.pages.start <= span.pages.end
            };
            let expected = (0..)
                .zip(&spans)
                .filter(|(_, span)| span.as_ref().is_some_and(touches));
            let expected: Vec<u32> = expected.map(|(number, _)| number).collect();
            assert_eq!(edges.touching(&wanted).collect::<Vec<_>>(), expected);
        }
    }
}
