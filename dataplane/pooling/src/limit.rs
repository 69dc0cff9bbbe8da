//! What the memory gives: the ceilings that the kernels are measured against.
//!
//! A pooling kernel that nothing but memory holds back reads each cache line of the rows that its ids
//! name, and waits for none. [`gather`] does that and nothing else: one load and one add a line, no
//! stores, in any [`Way`] of loading and prefetching; the best of [`ways`] is the limit.
//! [`sequential`] does the same to all lines in order.
#![allow(unsafe_code)]

use crate::ahead::{LINE_BYTES, lines_touched};
use crate::order::{PARTS_MAX, in_order, in_shuffled_order};
use crate::{Isa, Rows};
use core::arch::x86_64::*;
use rowmill_arena::ReadWindow;

/// The most cache lines that a row may touch for [`gather`].
pub const ROW_LINES_MAX: usize = PARTS_MAX;

/// The cache that prefetches bring lines to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The first level.
    L1,
    /// The second level.
    L2,
}

/// A way to load and to prefetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Load all 64 bytes of a line, with AVX-512, or else 16 of them.
    pub whole_lines: bool,
    /// The cache to prefetch to.
    pub level: Level,
    /// How far ahead: rows for [`gather`], lines for [`sequential`], where 0 prefetches nothing or in vain.
    pub distance: usize,
}

/// The ways to try on this machine.
pub fn ways() -> Vec<Way> {
    let widths: &[bool] = if Isa::Avx512.is_available() {
        &[true, false]
    } else {
        &[false]
    };
    let mut ways = Vec::new();
    for &whole_lines in widths {
        for level in [Level::L1, Level::L2] {
            for distance in [0, 4, 8, 16, 32, 48, 64, 96, 128] {
                ways.push(Way {
                    whole_lines,
                    level,
                    distance,
                });
            }
        }
    }
    ways
}

/// Reads all cache lines of the rows that `ids` name, in the order of the ids, and gives a sum of what
/// it read.
///
/// # Panics
/// If an id names no row, the rows' bytes don't start and end on cache lines, a row can touch more
/// than [`ROW_LINES_MAX`] lines, or the machine can't load whole lines and is told to.
pub fn gather(rows: &Rows<'_>, ids: &[u32], way: Way) -> u64 {
    assert!(
        crate::check_ids(ids, rows.count()).is_ok(),
        "an id that names no row"
    );
    assert_possible(rows.window(), way);
    let lines = lines_touched(
        rows.window().as_ptr().addr(),
        rows.stride(),
        rows.row_bytes(),
    );
    macro_rules! by_lines {
        ($($lines:literal)*) => {
            match (lines, way.whole_lines, way.level) {
                $(
                    // SAFETY: ids name rows, all rows' lines lie inside the rows' bytes, $lines is how
                    // many a row touches, and the machine has AVX-512 where it is asked for.
                    ($lines, true, Level::L1) => unsafe {
                        whole::gather::<$lines, true>(rows, ids, way.distance)
                    },
                    // SAFETY: likewise.
                    ($lines, true, Level::L2) => unsafe {
                        whole::gather::<$lines, false>(rows, ids, way.distance)
                    },
                    // SAFETY: likewise.
                    ($lines, false, Level::L1) => unsafe {
                        part::gather::<$lines, true>(rows, ids, way.distance)
                    },
                    // SAFETY: likewise.
                    ($lines, false, Level::L2) => unsafe {
                        part::gather::<$lines, false>(rows, ids, way.distance)
                    },
                )*
                _ => panic!("rows of {lines} lines, {ROW_LINES_MAX} at most"),
            }
        };
    }
    by_lines!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16)
}

/// Reads all cache lines of `bytes` in order and gives a sum of what it read.
///
/// # Panics
/// If the bytes don't start and end on cache lines, or the machine can't load whole lines and is told
/// to.
pub fn sequential(bytes: &[u8], way: Way) -> u64 {
    assert_possible(ReadWindow::over(bytes), way);
    if way.whole_lines {
        // SAFETY: the bytes are whole lines, and the machine has AVX-512.
        unsafe { whole::sequential(bytes, way) }
    } else {
        // SAFETY: the bytes are whole lines.
        unsafe { part::sequential(bytes, way) }
    }
}

fn assert_possible(bytes: ReadWindow<'_>, way: Way) {
    assert!(
        bytes.as_ptr().addr().is_multiple_of(LINE_BYTES),
        "bytes that start on a cache line"
    );
    assert!(
        bytes.len().is_multiple_of(LINE_BYTES),
        "bytes that end on a cache line"
    );
    assert!(
        !way.whole_lines || Isa::Avx512.is_available(),
        "loads of whole lines need AVX-512"
    );
}

/// The two loops for one width of loads.
macro_rules! loops {
    ($module:ident, $features:literal, $vector:ty, $zero:ident, $load:ident, $add:ident) => {
        mod $module {
            use super::*;

            /// # Safety
            /// Every id names a row, the rows' bytes are whole lines, and a row touches `LINES` lines
            /// or one less.
            #[target_feature(enable = $features)]
            #[inline(never)]
            pub(super) unsafe fn gather<const LINES: usize, const TO_L1: bool>(
                rows: &Rows<'_>,
                ids: &[u32],
                distance: usize,
            ) -> u64 {
                let base = rows.window().as_ptr();
                let (stride, last_byte) = (rows.stride(), rows.row_bytes() - 1);
                let line_of = |at: *const u8| at.wrapping_sub(at.addr() % LINE_BYTES);
                let row_of = |id: u32| base.wrapping_add((id as usize).wrapping_mul(stride));
                let mut sums = [$zero(); 4];
                let mut k = 0;
                while k < ids.len() {
                    let row = row_of(ids[k.wrapping_add(distance).min(ids.len() - 1)]);
                    in_order!(LINES, i => {
                        let offset = if i + 1 == LINES { last_byte } else { i * LINE_BYTES };
                        prefetch::<TO_L1>(row.wrapping_add(offset));
                    });
                    let row = row_of(ids[k]);
                    in_shuffled_order!(LINES, i => {
                        let offset = if i + 1 == LINES { last_byte } else { i * LINE_BYTES };
                        // SAFETY: the line holds a byte of a row, and the rows' bytes are whole lines.
                        let x = unsafe { $load(line_of(row.wrapping_add(offset)).cast()) };
                        sums[i % 4] = $add(sums[i % 4], x);
                    });
                    k += 1;
                }
                sum_of_words($add($add(sums[0], sums[1]), $add(sums[2], sums[3])))
            }

            /// # Safety
            /// The bytes are whole lines.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn sequential(bytes: &[u8], way: Way) -> u64 {
                let mut sums = [$zero(); 8];
                for lines in bytes.chunks(8 * LINE_BYTES) {
                    in_order!(8, i => {
                        if i * LINE_BYTES < lines.len() {
                            let line = lines.as_ptr().wrapping_add(i * LINE_BYTES);
                            if way.distance > 0 && way.level == Level::L1 {
                                prefetch::<true>(line.wrapping_add(way.distance * LINE_BYTES));
                            } else if way.distance > 0 {
                                prefetch::<false>(line.wrapping_add(way.distance * LINE_BYTES));
                            }
                            // SAFETY: the line lies inside the bytes, which start on a line.
                            sums[i] = $add(sums[i], unsafe { $load(line.cast()) });
                        }
                    });
                }
                sum_of_words(sums.into_iter().fold($zero(), |sum, x| $add(sum, x)))
            }

            #[inline]
            #[target_feature(enable = $features)]
            fn prefetch<const TO_L1: bool>(at: *const u8) {
                if TO_L1 {
                    _mm_prefetch::<_MM_HINT_T0>(at.cast());
                } else {
                    _mm_prefetch::<_MM_HINT_T1>(at.cast());
                }
            }

            #[target_feature(enable = $features)]
            fn sum_of_words(x: $vector) -> u64 {
                // SAFETY: a vector is as many words, and any bits are a word.
                let words: [u64; size_of::<$vector>() / 8] = unsafe { core::mem::transmute(x) };
                words.into_iter().fold(0, u64::wrapping_add)
            }
        }
    };
}

loops!(
    whole,
    "avx512f",
    __m512i,
    _mm512_setzero_si512,
    _mm512_load_si512,
    _mm512_add_epi64
);
loops!(
    part,
    "sse2",
    __m128i,
    _mm_setzero_si128,
    _mm_load_si128,
    _mm_add_epi64
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RowFormat;

    #[repr(align(64))]
    struct Lines([u8; 64 * 200]);

    #[test]
    fn every_line_is_read_once() {
        let mut memory = Lines([0; _]);
        for (line, bytes) in memory.0.chunks_mut(LINE_BYTES).enumerate() {
            // The first word of each line is its number; the others are zeros.
            bytes[..8].copy_from_slice(&(line as u64).to_le_bytes());
        }
        for way in ways() {
            assert_eq!(sequential(&memory.0, way), (0..200).sum(), "{way:?}");
            for (dim, format) in [
                (16, RowFormat::F32),
                (256, RowFormat::F32),
                (128, RowFormat::Int8),
            ] {
                let row_bytes = format.row_bytes(dim);
                let rows = Rows::new(&memory.0, row_bytes, 12, dim, format).unwrap();
                let ids = [0, 11, 5, 5, 7];
                let lines = |id: u32| {
                    let start = id as usize * row_bytes;
                    (start / 64..=(start + row_bytes - 1) / 64).sum::<usize>() as u64
                };
                assert_eq!(
                    gather(&rows, &ids, way),
                    ids.into_iter().map(lines).sum(),
                    "{way:?} {dim}"
                );
                assert_eq!(gather(&rows, &[], way), 0);
            }
        }
    }
}
