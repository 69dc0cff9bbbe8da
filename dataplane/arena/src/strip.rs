//! The geometry of results: which bytes of a region they fill, and where they are stored until then.

use arrayvec::ArrayVec;

/// Most strips that are staged together; bounds the lists of them on the stack.
pub const MAX_STRIPS: usize = 32;

/// Vectors at equal distances in a region: vector `i` fills `bytes` bytes from `offset + i * stride` on.
/// What lies between them belongs to somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strip {
    /// Byte of the region at which the first vector starts.
    pub offset: u64,
    /// Bytes of a vector, at most `stride`.
    pub bytes: u64,
    /// Bytes from one vector to the next.
    pub stride: u64,
    /// How many there are, at least 1.
    pub count: u64,
}

impl Strip {
    /// The byte just after the last vector, or `None` where that overflows.
    pub fn end(&self) -> Option<u64> {
        let last = self.stride.checked_mul(self.count - 1)?;
        self.offset.checked_add(last)?.checked_add(self.bytes)
    }

    /// The bytes of all vectors together.
    pub fn total(&self) -> u64 {
        self.bytes * self.count
    }

    /// The contiguous pieces, each as its offset in the region and its length: one where the vectors
    /// touch, else one a vector.
    pub fn pieces(self) -> impl Iterator<Item = (u64, u64)> {
        let (pieces, bytes) = if self.stride == self.bytes {
            (1, self.total())
        } else {
            (self.count, self.bytes)
        };
        (0..pieces).map(move |i| (self.offset + i * self.stride, bytes))
    }
}

/// Where a strip's vectors are stored in a staging window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Laid {
    /// Byte of the window at which the first vector starts.
    pub at: u64,
    /// Bytes from one vector to the next.
    pub stride: u64,
}

/// How strips lie in a staging window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// As in the region, of which the window begins at this byte.
    InPlace(u64),
    /// One after another without holes.
    Packed,
}

/// A place in which strips are stored until they are placed. Whoever gave it takes it back: it can be
/// neither copied nor, unless somebody forgets it, given back twice.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "staging has to be placed or given back"]
pub struct Staging {
    /// How the strips lie in it.
    pub layout: Layout,
    /// Its length in bytes.
    pub len: u64,
    /// Its number with whoever gave it.
    pub block: u32,
}

impl Staging {
    /// Staging in the region itself: the window from the lowest byte of the strips to past the highest.
    /// `None` where there are no strips or they overflow.
    pub fn in_place(strips: &[Strip]) -> Option<Staging> {
        let low = strips.iter().map(|strip| strip.offset).min()?;
        let ends = strips.iter().map(Strip::end);
        let high = ends.reduce(|a, b| Some(a?.max(b?)))??;
        Some(Staging {
            layout: Layout::InPlace(low),
            len: high - low,
            block: 0,
        })
    }

    /// Where each of the strips for which it was given lies in it.
    pub fn lay(&self, strips: &[Strip]) -> ArrayVec<Laid, MAX_STRIPS> {
        let mut packed = 0;
        let lay = |strip: &Strip| match self.layout {
            Layout::InPlace(low) => Laid {
                at: strip.offset - low,
                stride: strip.stride,
            },
            Layout::Packed => {
                let at = packed;
                packed += strip.total();
                Laid {
                    at,
                    stride: strip.bytes,
                }
            }
        };
        strips.iter().map(lay).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn strip(offset: u64, bytes: u64, stride: u64, count: u64) -> Strip {
        Strip {
            offset,
            bytes,
            stride,
            count,
        }
    }

    #[test]
    fn pieces_are_as_few_as_can_be() {
        let pieces = |s: Strip| s.pieces().collect::<Vec<_>>();
        assert_eq!(pieces(strip(8, 4, 4, 5)), [(8, 20)]);
        assert_eq!(pieces(strip(8, 4, 6, 3)), [(8, 4), (14, 4), (20, 4)]);
        assert_eq!(pieces(strip(8, 4, 6, 1)), [(8, 4)]);
    }

    #[test]
    fn strips_lie_in_place_or_packed() {
        let strips = [strip(100, 8, 16, 3), strip(90, 4, 4, 2)];
        let staging = Staging::in_place(&strips).unwrap();
        assert_eq!(staging.layout, Layout::InPlace(90));
        assert_eq!(staging.len, 140 - 90);
        let laid = |at, stride| Laid { at, stride };
        assert_eq!(staging.lay(&strips)[..], [laid(10, 16), laid(0, 4)]);
        let staging = Staging {
            layout: Layout::Packed,
            len: 32,
            block: 3,
        };
        assert_eq!(staging.lay(&strips)[..], [laid(0, 8), laid(24, 4)]);
    }

    #[test]
    fn ends_that_overflow_are_none() {
        assert_eq!(strip(u64::MAX - 3, 4, 4, 1).end(), None);
        assert_eq!(strip(0, 4, u64::MAX, 3).end(), None);
        assert_eq!(strip(u64::MAX - 4, 4, 4, 1).end(), Some(u64::MAX));
        assert_eq!(Staging::in_place(&[strip(u64::MAX, 4, 4, 1)]), None);
        assert_eq!(Staging::in_place(&[]), None);
    }
}
