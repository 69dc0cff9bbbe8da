//! What the memory gives: the ceilings that the kernels are measured against.
//!
//! A pooling kernel that is held back by nothing but memory reads every cache line of the rows that
//! its ids name, once. [`gather`] does that and nothing else: one load and one add a line, no
//! stores, no arithmetic on values, with software prefetch as far ahead as its caller likes.
//! [`sequential`] does the same to every line in order. The best of a sweep of distances is the
//! limit to compare with.
#![allow(unsafe_code)]

use crate::Rows;
use crate::ahead::{LINE_BYTES, lines_touched};
use crate::order::in_shuffled_order;
#[cfg(target_arch = "x86_64")]
use core::arch::x86_64::*;

/// The most cache lines that a row may touch for [`gather`].
pub const LINES_MAX: usize = 16;

/// Which cache a prefetch brings a line to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The first level (and those behind it).
    L1,
    /// The second level.
    L2,
}

/// Reads all cache lines of the rows that `ids` name, and gives the sum of a word of each line.
///
/// Each row's lines are prefetched to `level` when the row `distance` ids before it is read.
///
/// # Panics
/// If an id names no row, if the rows' memory does not start and end on a cache line, or if a row
/// can touch more than [`LINES_MAX`] lines.
pub fn gather(rows: &Rows<'_>, ids: &[u32], level: Level, distance: usize) -> u64 {
    assert!(
        crate::check_ids(ids, rows.count()).is_ok(),
        "ids below the number of rows"
    );
    let bytes = rows.bytes();
    assert!(
        bytes.as_ptr().addr().is_multiple_of(LINE_BYTES),
        "memory that starts on a cache line"
    );
    assert!(
        bytes.len().is_multiple_of(LINE_BYTES),
        "memory that ends on a cache line"
    );
    let lines = lines_touched(bytes.as_ptr().addr(), rows.stride(), rows.row_bytes());
    macro_rules! by_lines {
        ($($lines:literal)*) => {
            match (lines, level) {
                // SAFETY: ids name rows, rows lie inside bytes, and bytes are whole lines; no row
                // touches more than `lines` lines.
                $(($lines, Level::L1) => unsafe { gather_lines::<$lines, true>(rows, ids, distance) },
                ($lines, Level::L2) => unsafe { gather_lines::<$lines, false>(rows, ids, distance) },)*
                _ => panic!("rows of {lines} lines, {LINES_MAX} at most"),
            }
        };
    }
    by_lines!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16)
}

/// # Safety
/// Every id names a row, the rows' memory starts and ends on cache lines, and `LINES` is the number
/// of lines that a row touches at most and at least all but one of.
unsafe fn gather_lines<const LINES: usize, const L1: bool>(
    rows: &Rows<'_>,
    ids: &[u32],
    distance: usize,
) -> u64 {
    let lines_of = |at: usize| {
        let id = ids[at] as usize;
        let row = rows
            .bytes()
            .as_ptr()
            .wrapping_add(id.wrapping_mul(rows.stride()));
        let last = row.wrapping_add(rows.row_bytes() - 1);
        let line = |address: *const u8| address.wrapping_sub(address.addr() % LINE_BYTES);
        let (first, last) = (line(row), line(last));
        core::array::from_fn::<*const u8, LINES, _>(|i| {
            if i + 1 == LINES {
                last
            } else {
                first.wrapping_add(i * LINE_BYTES)
            }
        })
    };
    let mut sums = [unsafe { _mm_setzero_si128() }; 4];
    for at in 0..ids.len() {
        for line in lines_of((at.wrapping_add(distance)).min(ids.len() - 1)) {
            unsafe {
                if L1 {
                    _mm_prefetch::<_MM_HINT_T0>(line.cast());
                } else {
                    _mm_prefetch::<_MM_HINT_T1>(line.cast());
                }
            }
        }
        let lines = lines_of(at);
        in_shuffled_order!(LINES, i => {
            unsafe { sums[i % 4] = _mm_add_epi64(sums[i % 4], _mm_load_si128(lines[i].cast())) };
        });
    }
    unsafe {
        let sum = _mm_add_epi64(
            _mm_add_epi64(sums[0], sums[1]),
            _mm_add_epi64(sums[2], sums[3]),
        );
        _mm_cvtsi128_si64(sum) as u64
    }
}

/// Reads all whole cache lines of `bytes` in order, and gives the sum of a word of each line.
///
/// Lines are prefetched to the first level `distance` bytes ahead, or by the machine alone where
/// that is 0.
///
/// # Panics
/// If the bytes don't start on a cache line.
pub fn sequential(bytes: &[u8], distance: usize) -> u64 {
    assert!(bytes.as_ptr().addr().is_multiple_of(LINE_BYTES));
    let mut sums = [unsafe { _mm_setzero_si128() }; 8];
    let mut at = bytes.as_ptr();
    let end = at.wrapping_add(bytes.len() / 512 * 512);
    while at < end {
        for (i, sum) in sums.iter_mut().enumerate() {
            unsafe {
                let line = at.wrapping_add(64 * i);
                if distance > 0 {
                    _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(distance).cast());
                }
                *sum = _mm_add_epi64(*sum, _mm_load_si128(line.cast()));
            }
        }
        at = at.wrapping_add(512);
    }
    unsafe {
        let mut s = _mm_setzero_si128();
        for sum in sums {
            s = _mm_add_epi64(s, sum);
        }
        _mm_cvtsi128_si64(s) as u64
    }
}
/// x
pub fn reach(n: usize) {
    crate::ahead::LINES_AHEAD.store(n, core::sync::atomic::Ordering::Relaxed)
}
