//! The order in which the parts of a row are read: shuffled, on purpose.
//!
//! The rows of a batch lie anywhere, but inside a row lines follow one another. Read in rising,
//! falling or evenly spaced order they seem to pass for the start of a stream, so that the hardware
//! fetches what lies behind the row, which nobody asked for. (That is inferred: these counters can't
//! be read in a virtual machine. The effect is measured.) On Zen 4 it costs up to half of the
//! memory's throughput: rows of 512 bytes were gathered at 14 to 15 GB/s in rising order and at 21 to
//! 27 GB/s in good orders, as quiet as the machine was (2 GiB of rows, prefetched to the second level).

use crate::RowFormat;

/// Sixteen places, in an order that also serves fewer: those below a number, in the order they have
/// here. Found by search: 250 random orders of eight lines, the best extended to sixteen in 40 random
/// ways each, and the best of these tried on rows of 3 to 16 lines. For 6, 8, 14 and 16 lines: 27, 24,
/// 26 and 26 GB/s, against 13, 14, 14 and 15 in rising order in the same run. It does badly for 9 and
/// 12 lines, 14 and 15 GB/s, which is still no worse than rising.
const MANY: [usize; 16] = [4, 9, 13, 1, 6, 0, 7, 15, 14, 12, 3, 10, 8, 5, 2, 11];

/// Up to four places, among the best of all 24 orders for f32 rows of four lines: 22 GB/s, against 20 in
/// the order that the longer one leaves.
const FEW: [usize; 4] = [0, 3, 2, 1];

/// The most parts that a row can be read in.
pub(crate) const PARTS_MAX: usize = MANY.len();

/// The numbers below `n` in the order in which to read them; what is left of the array is `usize::MAX`.
pub(crate) const fn shuffled(n: usize) -> [usize; PARTS_MAX] {
    let longer: &[usize] = if n <= FEW.len() { &FEW } else { &MANY };
    let mut order = [usize::MAX; PARTS_MAX];
    let (mut filled, mut i) = (0, 0);
    while i < longer.len() {
        if longer[i] < n {
            order[filled] = longer[i];
            filled += 1;
        }
        i += 1;
    }
    assert!(filled == n);
    order
}

/// The order in which to read the `n` registers of a row, `a_line` of which lie in a line: line by line,
/// the lines in an order that depends on the format, the registers of a line in rising order.
///
/// Rows of codes start anywhere in a line, and their scale and bias, in the last line, are read before.
/// All 24 orders of four lines were tried for them, three copies of the code each (4 M rows of 264 bytes,
/// Zen 4): ten orders gave 22 to 28 M rows/s, the rising one 42 to 54, the best four 56 to 61. Two lines:
/// 117 M rows/s this way, 98 the other.
pub(crate) const fn reading_order(
    n: usize,
    a_line: usize,
    format: RowFormat,
) -> [usize; PARTS_MAX] {
    let count = n.div_ceil(a_line);
    let mut lines = shuffled(count);
    if format.has_codes() {
        match count {
            2 => [lines[0], lines[1]] = [1, 0],
            4 => [lines[0], lines[1], lines[2], lines[3]] = [0, 3, 1, 2],
            _ => (),
        }
    }
    let mut order = [usize::MAX; PARTS_MAX];
    let (mut filled, mut k) = (0, 0);
    while k < count * a_line {
        let i = lines[k / a_line] * a_line + k % a_line;
        if i < n {
            order[filled] = i;
            filled += 1;
        }
        k += 1;
    }
    assert!(filled == n);
    order
}

/// Runs the body with `i` each of the numbers below the constant `n`, in [`shuffled`] order.
///
/// Written out rather than looped, so that accumulators indexed by `i` stay in registers whatever the
/// compiler thinks of unrolling; and with a fence before each, so that it keeps the order of loads.
#[cfg(target_arch = "x86_64")]
macro_rules! in_shuffled_order {
    ($n:expr, $i:ident => $body:block) => {
        $crate::order::in_order!($n, k => {
            let $i = const { $crate::order::shuffled($n) }[k];
            core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
            $body
        })
    };
}

/// Runs the body with `i` each of the numbers below the constant `n`, written out.
macro_rules! in_order {
    ($n:expr, $i:ident => $body:block) => {
        $crate::order::in_order!(@ $n, $i => $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $n:expr, $i:ident => $body:block, $($k:literal)*) => {$(
        if $k < $n {
            let $i: usize = $k;
            $body
        }
    )*};
}

pub(crate) use in_order;
#[cfg(target_arch = "x86_64")]
pub(crate) use in_shuffled_order;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_read_once() {
        for n in 0..=PARTS_MAX {
            let mut orders = vec![shuffled(n)];
            for a_line in [1, 2, 4, 8] {
                for format in RowFormat::ALL {
                    orders.push(reading_order(n, a_line, format));
                }
            }
            for mut order in orders {
                order.sort();
                assert!(
                    order[..n].iter().enumerate().all(|(i, &part)| i == part),
                    "{n}: {order:?}"
                );
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn parts_are_passed_in_the_shuffled_order() {
        let mut seen = Vec::new();
        in_shuffled_order!(3, i => { seen.push(i) });
        assert_eq!(seen, [0, 2, 1]);
    }
}
