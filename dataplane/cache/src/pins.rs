//! Rows that stay: what is known of them without waiting.

/// A set of rows that is made once. Whoever looks a row up reads a line of memory or two.
#[derive(Clone, PartialEq, Eq)]
pub struct Pins {
    /// Rows, each at its place or behind it, the first free one; [`NONE`] where there is none. At most half of them are taken.
    slots: Box<[u32]>,
    shift: u32,
    count: usize,
}

/// No row has this number.
const NONE: u32 = u32::MAX;

impl core::fmt::Debug for Pins {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Pins")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl Pins {
    /// These rows, of which each counts once.
    pub fn new(rows: &[u32]) -> Pins {
        let slots = (2 * rows.len()).next_power_of_two().max(2);
        let mut pins = Pins {
            slots: vec![NONE; slots].into_boxed_slice(),
            shift: 32 - slots.trailing_zeros(),
            count: 0,
        };
        for &row in rows {
            let at = pins.find(row);
            pins.count += usize::from(pins.slots[at] == NONE);
            pins.slots[at] = row;
        }
        pins
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether a row is one of them.
    pub fn has(&self, row: u32) -> bool {
        self.slots[self.find(row)] == row && row != NONE
    }

    /// Where a row is, or would be.
    fn find(&self, row: u32) -> usize {
        let mut at = (row.wrapping_mul(0x9e37_79b9) >> self.shift) as usize;
        while self.slots[at] != NONE && self.slots[at] != row {
            at = (at + 1) % self.slots.len();
        }
        at
    }
}

/// Which rows of a table come into the cache, and which stay there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Rows that no others take the place of; none where there is no set.
    pub pins: Option<std::sync::Arc<Pins>>,
    /// Whether no others come into the cache.
    pub only_pins: bool,
}

impl Rules {
    /// Whether a row stays.
    pub fn is_pinned(&self, row: u32) -> bool {
        self.pins.as_ref().is_some_and(|pins| pins.has(row))
    }

    /// When a row is looked up next as far as victims are concerned: those that stay as if at once, so that each other one goes before.
    pub(crate) fn next_use(&self, row: u32, known: impl Fn(u32) -> Option<u32>) -> Option<u32> {
        match self.is_pinned(row) {
            true => Some(0),
            false => known(row),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rowmill_arena::HugePages;

    use super::*;
    use crate::figures::Count;
    use crate::store::{Epochs, Shape, Store, Tags};
    use crate::table::CachedTable;

    #[test]
    fn rows_that_are_to_stay_come_and_no_others_take_their_places() {
        let (epochs, mut workers) = Epochs::new(1);
        let shape = Shape::new(64, 1, 4, 4).unwrap();
        let (store, writers) =
            Store::new(shape, 1, 4, &epochs, Tags::detect(), HugePages::Off).unwrap();
        let mut table = CachedTable::new(0, Arc::clone(&store), writers, 1);
        let mut come = |table: &mut CachedTable, row: u32, next: Option<u32>| {
            let taken = table.begin(row, None, |asked| next.filter(|_| asked == row));
            table.advance();
            workers[0].pass();
            table.advance();
            taken.map(|taken| table.publish(taken, &row.to_le_bytes()))
        };
        for row in 0..1000 {
            let _any = come(&mut table, row, None);
        }
        let pinned: Vec<u32> = (500..520).collect();
        let rules = |only_pins| Rules {
            pins: Some(Arc::new(Pins::new(&pinned))),
            only_pins,
        };
        table.rule(rules(false));
        for &row in &pinned {
            let outcome = come(&mut table, row, None);
            assert!(
                matches!(outcome, Ok(()) | Err(Count::Unkept)),
                "{row}: {outcome:?}"
            );
        }
        // Not even for those that are known to be wanted.
        for row in 2000..4000 {
            let _any = come(&mut table, row, (row % 2 == 0).then_some(1));
            assert_eq!(store.lacking(&pinned), (20, vec![]), "after {row}");
        }
        table.rule(rules(true));
        assert_eq!(come(&mut table, 1, Some(1)), Err(Count::Refused));
        table.rule(Rules::default());
        for row in 4000..9000 {
            let _any = come(&mut table, row, Some(1));
        }
        assert!(store.lacking(&pinned).0 < 20, "they are rows as others");
    }

    #[test]
    fn those_that_were_put_in_are_found_and_no_others() {
        let none = Pins::new(&[]);
        assert!(none.is_empty() && !(0..100).any(|row| none.has(row)) && !none.has(u32::MAX));
        // Rows that follow one another, and rows that a bad hash would put together.
        let rows: Vec<u32> = (0..1000).chain((0..1000).map(|n| n << 16)).collect();
        let pins = Pins::new(&rows);
        assert_eq!(pins.len(), 1999, "row 0 is there twice");
        assert!(rows.iter().all(|&row| pins.has(row)));
        assert!((1000..60_000).all(|row| !pins.has(row)));
        let one = Pins::new(&[7, 7]);
        assert!(one.len() == 1 && one.has(7) && !one.has(8));
    }
}
