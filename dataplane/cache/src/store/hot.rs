//! Which rows are there, those first that were used often.

use core::sync::atomic::Ordering;

use rowmill_policy::{CLASSES, Word};

use super::Store;
use super::extent::{Sets, View};
use super::memory::WAYS;
use super::spread::ROWS_END;
use super::sweep::slots_in;

impl Store {
    /// Rows that are there, at most so many: those first that were used more often, by the classes of their
    /// [words](Word), and of a class in the order of their numbers. Nobody waits for it, and what comes
    /// and goes meanwhile may be missing, or be told twice. For a thread that is no worker: it reads all numbers and meta words.
    pub fn hot(&self, most: usize) -> Vec<u32> {
        // What is there stays there while it is looked at.
        let _resizing = self.lock();
        let mut counts = [0; CLASSES];
        self.held().for_each(|(_, class)| counts[class] += 1);
        // Where the rows of each class begin, from the highest class on, and where they end.
        let (mut from, mut ends) = ([0; CLASSES], [0; CLASSES]);
        let mut end = 0;
        for class in (0..CLASSES).rev() {
            from[class] = end;
            end = most.min(end + counts[class]);
            ends[class] = end;
        }
        let mut rows = vec![ROWS_END; end];
        let mut next = from;
        for (row, class) in self.held() {
            if next[class] < ends[class] {
                rows[next[class]] = row;
                next[class] += 1;
            }
        }
        for (from, end) in from.into_iter().zip(ends) {
            rows[from..end].sort_unstable();
        }
        // Some may have gone between the two looks.
        rows.retain(|&row| row != ROWS_END);
        rows
    }

    /// How many of these rows are there, and which are not, as far as that is known to who waits for nobody: what comes and goes meanwhile
    /// may be told as not there. For a thread that is no worker.
    pub fn lacking(&self, rows: &[u32]) -> (usize, Vec<u32>) {
        let _resizing = self.lock();
        let holds = |slot, row| self.memory.number(slot).load(Ordering::Relaxed) == row;
        let is_in = |sets: &dyn Fn(u32) -> [u32; 2], row| {
            let mut slots = slots_in(sets(row));
            slots.any(|slot| holds(slot, row))
        };
        let is_there = |row| match self.extent.view(&self.spread) {
            View::Still(spread) => is_in(&|row| both(&spread, row), row),
            View::Moving(moving) => is_in(&|row| both(&moving, row), row),
        };
        let lacking: Vec<u32> = rows.iter().copied().filter(|&row| !is_there(row)).collect();
        (rows.len() - lacking.len(), lacking)
    }

    /// Rows that are there, with the classes of their words.
    fn held(&self) -> impl Iterator<Item = (u32, usize)> {
        let (old, new) = self.extent.shard_sets();
        let sets = self.most().over(old.max(new)).sets();
        let numbers = &self.memory.numbers()[..sets as usize * WAYS];
        let held = numbers.iter().zip(self.memory.metas());
        let held = held.map(|(number, meta)| {
            let (row, meta) = (number.load(Ordering::Relaxed), meta.load(Ordering::Relaxed));
            (row, Word::from_bits(meta).class())
        });
        held.filter(|&(row, _)| row < ROWS_END)
    }
}

/// Both sets of a row.
fn both(sets: &impl Sets, row: u32) -> [u32; 2] {
    [sets.primary(row), sets.secondary(row)]
}

#[cfg(test)]
mod tests {
    use rowmill_arena::HugePages;
    use rowmill_policy::Tick;

    use super::*;
    use crate::store::{Epochs, Held, Shape, Tags};

    #[test]
    fn rows_that_were_used_often_come_first() {
        let (epochs, _) = Epochs::new(1);
        let shape = Shape::new(512, 2, 4, 4).unwrap();
        let (store, mut writers) =
            Store::new(shape, 1, 4, &epochs, Tags::detect(), HugePages::Off).unwrap();
        assert_eq!(store.hot(10), [0; 0]);
        let class = |row: u32| row % 5 * 3;
        for row in 0..200 {
            let writer = &mut writers[store.spread().shard(row) as usize];
            let mut slots = writer.candidates(row);
            let empty = slots.find(|candidate| candidate.held == Held::Nothing);
            drop(slots);
            let (ticket, _) = writer.begin(row, empty.unwrap().slot).unwrap();
            writer.publish(
                ticket,
                &[0; 4],
                Word::of(class(row) as usize, Tick::default()).bits(),
            );
        }
        let mut expected: Vec<u32> = (0..200).collect();
        expected.sort_by_key(|&row| (core::cmp::Reverse(class(row)), row));
        assert_eq!(store.hot(1000), expected);
        let (there, lacking) = store.lacking(&[5, 700, 199, 200]);
        assert_eq!((there, lacking), (2, vec![700, 200]));
        // Of the last class that has room, any.
        let most = store.hot(90);
        assert_eq!(most[..80], expected[..80]);
        assert!(most[80..].iter().all(|&row| class(row) == 6));
        assert_eq!((most.len(), store.hot(0).len()), (90, 0));
    }
}
