//! How packed strips become WRITEs: contiguous vectors as one, and vectors that are neighbours at the client, but not in
//! the block, gathered into one as far as a request can name so many pieces.

use arrayvec::ArrayVec;
use rowmill_arena::Strip;
use rowmill_verbs::Piece;

/// Most pieces of a request. Devices have 30 and more; of those that have fewer, as many are used.
pub(super) const PIECES: usize = 30;

/// One WRITE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Write {
    /// Where it goes, in the region.
    pub(super) offset: u64,
    /// What it takes from the block.
    pub(super) pieces: ArrayVec<Piece, PIECES>,
}

/// How far the WRITEs of some strips have been made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Scatter {
    /// The strip at which the chain begins that is being written.
    strip: usize,
    /// The vector that is next.
    vector: u64,
    /// Where that strip begins in the block.
    at: u64,
}

impl Scatter {
    /// The next WRITE, of at most `pieces` pieces, and how far things are then; `None` where all are made.
    pub(super) fn next(&self, strips: &[Strip], pieces: usize) -> Option<(Write, Scatter)> {
        let mut place = *self;
        while strips.get(place.strip)?.total() == 0 {
            place.strip += 1;
        }
        let first = strips[place.strip];
        let mut write = Write {
            offset: first.offset + place.vector * first.stride,
            pieces: ArrayVec::new(),
        };
        if first.stride == first.bytes || first.count == 1 {
            write.pieces.push(piece(place.at, first.total()));
            let next = Scatter {
                strip: place.strip + 1,
                vector: 0,
                at: place.at + first.total(),
            };
            return Some((write, next));
        }
        let chain = chain(&strips[place.strip..], pieces.clamp(1, PIECES));
        let mut at = place.at;
        for strip in &strips[place.strip..][..chain] {
            write
                .pieces
                .push(piece(at + place.vector * strip.bytes, strip.bytes));
            at += strip.total();
        }
        let next = if place.vector + 1 < first.count {
            Scatter {
                vector: place.vector + 1,
                ..place
            }
        } else {
            Scatter {
                strip: place.strip + chain,
                vector: 0,
                at,
            }
        };
        Some((write, next))
    }
}

fn piece(at: u64, len: u64) -> Piece {
    Piece {
        offset: at as usize,
        len: len as usize,
    }
}

/// How many strips, from the first on, have their vectors side by side.
fn chain(strips: &[Strip], most: usize) -> usize {
    let pairs = strips.windows(2).take(most - 1);
    let neighbours = pairs.take_while(|pair| {
        let [a, b] = pair else { return false };
        b.bytes > 0 && (a.stride, a.count) == (b.stride, b.count) && a.offset + a.bytes == b.offset
    });
    1 + neighbours.count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn strip(offset: u64, bytes: u64, stride: u64, count: u64) -> Strip {
        Strip {
            offset,
            bytes,
            stride,
            count,
        }
    }

    fn writes(strips: &[Strip], pieces: usize) -> Vec<Write> {
        let mut all = Vec::new();
        let mut scatter = Scatter::default();
        while let Some((write, next)) = scatter.next(strips, pieces) {
            all.push(write);
            scatter = next;
        }
        all
    }

    #[test]
    fn few_writes_do() {
        let count = |strips: &[Strip], pieces| writes(strips, pieces).len();
        assert_eq!(count(&[strip(8, 4, 4, 500)], 16), 1);
        assert_eq!(count(&[strip(8, 4, 6, 5)], 16), 5);
        // Three features side by side in a matrix: a WRITE a row.
        let rows = [
            strip(0, 512, 2048, 9),
            strip(512, 256, 2048, 9),
            strip(768, 64, 2048, 9),
        ];
        assert_eq!(count(&rows, 16), 9);
        assert_eq!(count(&rows, 2), 18);
        assert_eq!(count(&rows, 1), 27);
        // A gap, or another count, and they are not neighbours.
        assert_eq!(count(&[strip(0, 8, 64, 4), strip(16, 8, 64, 4)], 16), 8);
        assert_eq!(count(&[strip(0, 8, 64, 4), strip(8, 8, 64, 3)], 16), 7);
        assert_eq!(count(&[strip(0, 0, 8, 4), strip(0, 8, 8, 4)], 16), 1);
        assert_eq!(count(&[], 16), 0);
    }

    proptest! {
        #[test]
        fn every_byte_goes_where_it_belongs_once(
            shapes in proptest::collection::vec((0u64..40, 1u64..9, 0u64..9, 1u64..6, any::<bool>()), 0..8),
            pieces in 1usize..20,
        ) {
            let mut strips: Vec<Strip> = Vec::new();
            for (gap, bytes, beyond, count, neighbour) in shapes {
                let made = match strips.last() {
                    Some(&before) if neighbour => strip(before.offset + before.bytes, bytes, before.stride, before.count),
                    _ => strip(gap * 1000, bytes, bytes + beyond, count),
                };
                strips.push(made);
            }
            // Byte i of the block is i, where each strip says that it belongs.
            let mut wanted = Vec::new();
            let mut packed = 0;
            for s in &strips {
                for vector in 0..s.count {
                    for byte in 0..s.bytes {
                        wanted.push((s.offset + vector * s.stride + byte, packed));
                        packed += 1;
                    }
                }
            }
            let mut got = Vec::new();
            for write in writes(&strips, pieces) {
                prop_assert!(write.pieces.len() <= pieces.min(PIECES));
                let mut to = write.offset;
                for piece in write.pieces {
                    for byte in 0..piece.len {
                        got.push((to, (piece.offset + byte) as u64));
                        to += 1;
                    }
                }
            }
            wanted.sort_unstable();
            got.sort_unstable();
            prop_assert_eq!(got, wanted);
        }
    }
}
