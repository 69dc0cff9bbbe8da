//! Hits of a turn that are touched when its answers have gone, and not before: of a large table each one's meta word is a line from
//! far away, and together they take as long as pooling the rows.

use crate::store::Found;

/// Lookups that are put off, at most: those of a turn's request, mostly. Touching one takes 40 ns (320 of them 13 us, beside misses, with
/// a million slots), all together less than a micro-batch. What is more than that is touched before the answer.
const PLACES: usize = 1024;
/// Pieces that they are of, at most: as many as a micro-batch has.
const PIECES: usize = 64;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Later {
    /// One piece behind the other.
    places: Vec<u32>,
    pieces: Vec<Piece>,
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
    /// With room for one turn's, if there is anything to put off.
    pub(crate) fn new(is_needed: bool) -> Later {
        let [places, pieces] = [PLACES, PIECES].map(|room| if is_needed { room } else { 0 });
        Later {
            places: Vec::with_capacity(places),
            pieces: Vec::with_capacity(pieces),
        }
    }

    /// Lookups that were put off.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is room for a piece of so many lookups.
    pub(crate) fn has_room(&self, lookups: usize) -> bool {
        let free = self.places.capacity() - self.places.len();
        lookups <= free && self.pieces.len() < self.pieces.capacity()
    }

    /// Puts a piece off, for which there [is room](Self::has_room).
    pub(crate) fn put(&mut self, table: usize, found: &Found<'_>) {
        debug_assert!(self.has_room(found.places().len()), "nothing allocates");
        self.places.extend_from_slice(found.places());
        let piece = Piece {
            table,
            end: self.places.len(),
            misses: found.misses(),
        };
        self.pieces.push(piece);
    }

    /// Calls `each` with all that was put off, in its order: the table, the places of a piece, and how many of these are misses.
    pub(crate) fn take(&mut self, mut each: impl FnMut(usize, &[u32], usize)) {
        let mut begin = 0;
        for piece in self.pieces.drain(..) {
            each(piece.table, &self.places[begin..piece.end], piece.misses);
            begin = piece.end;
        }
        self.places.clear();
    }
}
