//! Lookups that policies are told of when a turn's answers have gone: of a large table each hit's meta word is a line from far away, and
//! touching them takes as long as pooling the rows.

use crate::store::Found;

/// Lookups that are put off, at most. Touching one takes 40 ns (320 of them 13 us, beside misses, with a million slots), all together
/// less than a micro-batch, whose time it counts as. What is more is touched before the answer.
const PLACES: usize = 1024;
/// Pieces that they are of, at most: some for each of a model's tables, in a turn.
const PIECES: usize = 64;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Later {
    /// One piece behind the other.
    places: Vec<u32>,
    pieces: Vec<Piece>,
    /// How many places there may be.
    most: usize,
}

/// Rows of a table that were looked up together.
#[derive(Clone, Copy, Debug)]
struct Piece {
    table: usize,
    /// Where its places end, which begin where those of the one before end.
    end: usize,
    misses: usize,
}

impl Later {
    /// With room for a turn's, if there is anything to put off.
    pub(crate) fn new(is_needed: bool) -> Later {
        let most = if is_needed { PLACES } else { 0 };
        Later {
            places: Vec::with_capacity(most),
            pieces: Vec::with_capacity(most.min(PIECES)),
            most,
        }
    }

    /// Lookups that were put off.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether some are a table's.
    pub(crate) fn has(&self, table: usize) -> bool {
        self.pieces.iter().any(|piece| piece.table == table)
    }

    /// Whether there is room for a piece of so many lookups.
    pub(crate) fn has_room(&self, lookups: usize) -> bool {
        lookups <= self.most - self.places.len() && self.pieces.len() < self.most.min(PIECES)
    }

    /// Puts a piece off.
    ///
    /// # Panics
    /// If there is [no room](Self::has_room) for it.
    pub(crate) fn put(&mut self, table: usize, found: &Found<'_>) {
        assert!(self.has_room(found.places().len()), "nothing is allocated");
        self.places.extend_from_slice(found.places());
        let piece = Piece {
            table,
            end: self.places.len(),
            misses: found.misses(),
        };
        self.pieces.push(piece);
    }

    /// Calls `each` with all that was put off, in its order: the table, the places of a piece, and how many of these are misses. Returns
    /// whether there was something.
    pub(crate) fn take(&mut self, mut each: impl FnMut(usize, &[u32], usize)) -> bool {
        let has_some = !self.pieces.is_empty();
        let mut begin = 0;
        for piece in self.pieces.drain(..) {
            each(piece.table, &self.places[begin..piece.end], piece.misses);
            begin = piece.end;
        }
        self.places.clear();
        has_some
    }
}

#[cfg(test)]
mod tests {
    use rowmill_arena::HugePages;

    use super::*;
    use crate::store::{Drawn, Epochs, MISS, Shape, Store, Tags};

    #[test]
    fn pieces_come_out_as_they_were_put_and_no_more_than_there_is_room_for() {
        let (epochs, mut workers) = Epochs::new(1);
        let shape = Shape::new(64, 1, 4, 4).unwrap();
        let (store, mut writers) =
            Store::new(shape, 1, 4, &epochs, Tags::detect(), HugePages::Off).unwrap();
        let empty = writers[0].candidates(7).next().expect("a slot").slot;
        let (ticket, _) = writers[0].begin(7, empty).unwrap();
        writers[0].publish(ticket, &[0; 4], 0);
        let mut later = Later::new(true);
        let mut put = |table, rows: &[u32], later: &mut Later| {
            let mut places = vec![0; rows.len()];
            let turn = workers[0].turn();
            let found = store.find_and_draw(turn, rows, &mut places, &mut Drawn::nothing());
            later.put(table, &found);
        };
        put(3, &[7, 8, 7, 9], &mut later);
        put(0, &[7], &mut later);
        put(3, &[], &mut later);
        assert_eq!((later.len(), later.has(3), later.has(1)), (5, true, false));
        let mut all = Vec::new();
        let mut take = |later: &mut Later| {
            later.take(|table, places, misses| all.push((table, places.to_vec(), misses)))
        };
        assert!(take(&mut later) && !take(&mut later));
        let (hits, one) = (vec![empty, MISS, empty, MISS], vec![empty]);
        assert_eq!(all, [(3, hits, 2), (0, one, 0), (3, vec![], 0)]);
        assert_eq!((later.len(), later.has(3)), (0, false));
        assert!(later.has_room(PLACES) && !later.has_room(PLACES + 1));
        put(0, &[7; PLACES - 1], &mut later);
        assert!(later.has_room(1) && !later.has_room(2));
        for _ in 1..PIECES {
            put(1, &[], &mut later);
        }
        assert!(!later.has_room(0));
        assert!(!Later::new(false).has_room(0));
    }
}
