//! What is still known of rows that are not cached.

use rowmill_arena::prefetch_line;

use super::draw::mixed;
use super::word::{Tick, Word};

/// Entries of a line: as many as a cache line holds.
const LINE: usize = 16;

/// An entry for a row is a fingerprint of 16 bits and its word; 0 is no entry.
type Entry = u32;

/// Words of rows that are away. A row has entries in one line; another row with the same fingerprint passes for it, once in 4,096
/// rows where a line is full.
#[derive(Clone, Debug)]
pub(super) struct Ghost {
    /// As many as there may ever be; those behind the last line are not touched, so that they take no memory.
    entries: Vec<Entry>,
    lines: usize,
}

impl Ghost {
    /// Room for so many rows, rounded up to whole lines, and for at most as many as `most` some time.
    pub(super) fn new(rows: usize, most: usize) -> Ghost {
        Ghost {
            entries: vec![0; lines(rows.max(most)) * LINE],
            lines: lines(rows),
        }
    }

    /// It has room for about so many rows from now on, as far as there may be so much. What it knew is as good as forgotten then, and makes
    /// room for what it learns; so it stays as it is where it has room for up to half as many more or less.
    pub(super) fn resize(&mut self, rows: usize) {
        let wanted = lines(rows).min(self.entries.len() / LINE);
        if 2 * wanted > 3 * self.lines || 2 * wanted < self.lines {
            self.lines = wanted;
        }
    }

    /// Its lines.
    pub(super) fn lines(&self) -> usize {
        self.lines
    }

    /// Asks for what is known of a row to be on its way.
    pub(super) fn prefetch(&self, row: u32) {
        let (line, _) = self.place(row);
        prefetch_line(&self.entries[line * LINE]);
    }

    /// What was known of a row. It is forgotten.
    pub(super) fn take(&mut self, row: u32) -> Option<Word> {
        let (line, fingerprint) = self.place(row);
        let known = |entry: &&mut Entry| **entry >> 16 == fingerprint;
        let entry = self.line_mut(line).iter_mut().find(known)?;
        Some(word(std::mem::take(entry)))
    }

    /// Remembers a row. Where its line is full, the row of the lowest rank is forgotten.
    pub(super) fn put(&mut self, row: u32, known: Word, rank: impl Fn(Word) -> f32) {
        let (line, fingerprint) = self.place(row);
        let line = self.line_mut(line);
        let at = line
            .iter()
            .position(|&entry| entry == 0)
            .unwrap_or_else(|| {
                let ranks = line.iter().map(|&entry| rank(word(entry))).enumerate();
                let lowest = ranks.min_by(|a, b| a.1.total_cmp(&b.1));
                lowest.expect("a line has entries").0
            });
        line[at] = fingerprint << 16 | u32::from(known.bits());
    }

    /// The words of a line, which are kept from wrapping around.
    pub(super) fn words(&mut self, line: usize, now: Tick) -> impl Iterator<Item = Word> {
        let entries = self.line_mut(line).iter_mut();
        entries.filter(|entry| **entry != 0).map(move |entry| {
            let kept = word(*entry).kept_from_wrapping(now);
            *entry = *entry & 0xffff_0000 | u32::from(kept.bits());
            kept
        })
    }

    fn line_mut(&mut self, line: usize) -> &mut [Entry] {
        &mut self.entries[line * LINE..][..LINE]
    }

    /// The line of a row and its fingerprint, which is not 0.
    fn place(&self, row: u32) -> (usize, u32) {
        let bits = mixed(row.into());
        let line = (u64::from(bits as u32) * self.lines() as u64) >> 32;
        (line as usize, ((bits >> 48) as u32).max(1))
    }
}

fn lines(rows: usize) -> usize {
    rows.div_ceil(LINE).max(1)
}

fn word(entry: Entry) -> Word {
    Word::from_bits(entry as u16)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn while_there_is_room_it_is_a_map(acts in prop::collection::vec((any::<bool>(), 0..40u32, any::<u16>()), 0..200)) {
            let mut ghost = Ghost::new(4096, 4096);
            let mut known = HashMap::new();
            for (put, row, bits) in acts {
                prop_assert_eq!(ghost.take(row).map(Word::bits), known.remove(&row));
                if put {
                    ghost.put(row, Word::from_bits(bits), |_| unreachable!("there is room"));
                    known.insert(row, bits);
                }
            }
            let all: usize = (0..ghost.lines()).map(|line| ghost.words(line, Tick::new(0)).count()).sum();
            prop_assert_eq!(all, known.len());
        }
    }

    #[test]
    fn another_size_has_room_for_other_rows() {
        let mut ghost = Ghost::new(LINE, 64 * LINE);
        let rank = |word: Word| f32::from(word.bits());
        let known = |ghost: &mut Ghost| {
            let rows = 0..32 * LINE as u32;
            rows.clone()
                .for_each(|row| ghost.put(row, Word::from_bits(row as u16 + 1), rank));
            rows.filter(|&row| ghost.take(row).is_some()).count()
        };
        assert_eq!(known(&mut ghost), LINE);
        ghost.resize(64 * LINE);
        assert!(known(&mut ghost) > 30 * LINE);
        for (rows, lines) in [(1000, 64), (40, 64), (31, 31), (46, 31), (47, 47)] {
            ghost.resize(rows * LINE);
            assert_eq!(ghost.lines(), lines);
        }
        ghost.resize(2 * LINE);
        assert!((LINE + 1..=2 * LINE).contains(&known(&mut ghost)));
    }

    #[test]
    fn the_lowest_rank_is_forgotten() {
        let mut ghost = Ghost::new(LINE, 0);
        let rank = |word: Word| f32::from(word.bits());
        for row in 0..17 {
            let bits = if row == 5 { 3 } else { 100 + row as u16 };
            ghost.put(row, Word::from_bits(bits), rank);
        }
        for row in 0..17 {
            let expected = (row != 5).then_some(100 + row as u16);
            assert_eq!(ghost.take(row).map(Word::bits), expected, "row {row}");
        }
    }
}
