//! What rows of each generation were, and when they became others: the oracle's own book of deltas.
//!
//! It counts *moments* of each generation, one more each time that some rows are found as others. A worker's turn is one step of a simulated
//! world, so all rows of one bag are of one moment, but for those that it waited for; other vectors of the same answer may be of others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard};

/// How often rows of a generation have become others.
pub type Moment = u64;

/// How far a generation is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stand {
    /// The moment that it is now: no older row is found from now on.
    pub moment: Moment,
    /// The last delta that was acknowledged.
    pub delta: u64,
}

/// A row's bytes, from a moment on.
type Versions = Vec<(Moment, Vec<u8>)>;

#[derive(Debug, Default)]
struct Chronicle {
    stand: Stand,
    /// By table and row, those that have become others: each version later than the one before.
    rows: BTreeMap<(usize, u32), Versions>,
    /// From which moment on all rows of each delta are found; deltas are counted from 1.
    through: Vec<Moment>,
}

/// See the module's text. Whoever clones it has the same book.
#[derive(Clone, Debug, Default)]
pub struct History {
    generations: Arc<Mutex<BTreeMap<u64, Chronicle>>>,
}

impl History {
    fn book(&self) -> MutexGuard<'_, BTreeMap<u64, Chronicle>> {
        self.generations.lock().expect("a panic ends the run")
    }

    /// How far a generation is now.
    pub fn stand(&self, generation: u64) -> Stand {
        let book = self.book();
        book.get(&generation)
            .map_or(Stand::default(), |chronicle| chronicle.stand)
    }

    /// How far all of them are of which rows have become others, by their numbers.
    pub fn stands(&self) -> BTreeMap<u64, Stand> {
        let book = self.book();
        book.iter()
            .map(|(&generation, chronicle)| (generation, chronicle.stand))
            .collect()
    }

    /// From now on these rows of a table are found, with these bytes, one behind the other.
    pub(super) fn show(&self, generation: u64, table: usize, rows: &[u32], bytes: &[u8]) {
        let mut book = self.book();
        let chronicle = book.entry(generation).or_default();
        chronicle.stand.moment += 1;
        let stride = bytes.len() / rows.len();
        for (&row, bytes) in rows.iter().zip(bytes.chunks_exact(stride)) {
            let versions = chronicle.rows.entry((table, row)).or_default();
            versions.push((chronicle.stand.moment, bytes.to_vec()));
        }
    }

    /// From now on a delta is acknowledged, of which all rows were shown.
    pub(super) fn acknowledge(&self, generation: u64, delta: u64) {
        let mut book = self.book();
        let chronicle = book.entry(generation).or_default();
        chronicle.through.push(chronicle.stand.moment);
        assert_eq!(chronicle.through.len() as u64, delta, "one after the other");
        chronicle.stand.delta = delta;
    }

    /// The moments that rows of an answer may be of which began when the generation stood so, ends now, and names this delta.
    ///
    /// # Errors
    /// If it can't name that, as a sentence.
    pub(super) fn span(
        &self,
        generation: u64,
        begun: Stand,
        delta: u64,
    ) -> Result<RangeInclusive<Moment>, String> {
        let book = self.book();
        let nothing = Chronicle::default();
        let chronicle = book.get(&generation).unwrap_or(&nothing);
        let (from, to) = (begun.delta, chronicle.stand.delta);
        if !(from..=to).contains(&delta) {
            return Err(format!(
                "an answer of delta {delta}; {from} was acknowledged when it began, and {to} is now"
            ));
        }
        // Whoever is told of a delta has no older rows.
        let of_delta = (delta.checked_sub(1)).map_or(0, |at| chronicle.through[at as usize]);
        Ok(begun.moment.max(of_delta)..=chronicle.stand.moment)
    }

    /// Those moments of the span at which some of these rows of a table are others than before, and its first.
    pub(super) fn moments(
        &self,
        (generation, table): (u64, usize),
        rows: &[u32],
        span: &RangeInclusive<Moment>,
    ) -> BTreeSet<Moment> {
        let book = self.book();
        let chronicle = book.get(&generation).filter(|_| span.start() < span.end());
        let of_row = |row: &u32| chronicle.and_then(|c| c.rows.get(&(table, *row)));
        let later = rows.iter().filter_map(of_row).flatten();
        let later = later.map(|(moment, _)| *moment);
        let later = later.filter(|moment| span.contains(moment));
        core::iter::once(*span.start()).chain(later).collect()
    }

    /// Rows of a table that are others by now, and what they are, one behind the other.
    pub(super) fn others(&self, generation: u64, table: usize) -> (Vec<u32>, Vec<u8>) {
        let book = self.book();
        let rows = book.get(&generation).into_iter().flat_map(|c| &c.rows);
        let own = rows.filter(|((of, _), _)| *of == table);
        let last = own.filter_map(|((_, row), versions)| Some((*row, &versions.last()?.1)));
        let (rows, bytes): (Vec<u32>, Vec<&Vec<u8>>) = last.unzip();
        (rows, bytes.into_iter().flatten().copied().collect())
    }

    /// A row's bytes at a moment, if they are others than at first.
    pub(super) fn row(
        &self,
        (generation, table): (u64, usize),
        row: u32,
        moment: Moment,
    ) -> Option<Vec<u8>> {
        let book = self.book();
        let versions = book.get(&generation)?.rows.get(&(table, row))?;
        let later = versions.partition_point(|&(from, _)| from <= moment);
        let (_, bytes) = &versions[later.checked_sub(1)?];
        Some(bytes.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_what_they_were_at_each_moment() {
        let history = History::default();
        assert_eq!(history.span(7, Stand::default(), 0), Ok(0..=0));
        let begun = history.stand(7);
        history.show(7, 1, &[4, 2], &[40, 40, 20, 20]);
        history.show(7, 1, &[2], &[21, 21]);
        assert_eq!(history.row((7, 1), 2, 0), None);
        assert_eq!(history.row((7, 1), 2, 1), Some(vec![20, 20]));
        assert_eq!(history.row((7, 1), 2, 2), Some(vec![21, 21]));
        assert_eq!(history.row((7, 1), 4, 2), Some(vec![40, 40]));
        assert_eq!(history.row((7, 0), 4, 2), None);
        let moments = |span| Vec::from_iter(history.moments((7, 1), &[4, 5], &span));
        assert_eq!((moments(0..=2), moments(1..=2)), (vec![0, 1], vec![1]));
        // Not acknowledged: no answer names it, and rows may be of any moment.
        assert!(history.span(7, begun, 1).is_err());
        assert_eq!(history.span(7, begun, 0), Ok(0..=2));
        history.acknowledge(7, 1);
        assert_eq!(history.span(7, begun, 0), Ok(0..=2));
        assert_eq!(history.span(7, begun, 1), Ok(2..=2));
        let later = history.stand(7);
        assert_eq!((later.moment, later.delta), (2, 1));
        assert!(history.span(7, later, 0).is_err(), "an older row");
        assert_eq!(history.span(7, later, 1), Ok(2..=2));
    }
}
