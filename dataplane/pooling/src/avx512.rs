//! AVX-512: sixteen dimensions a register, the last one masked, a tile of 256 dimensions in half of
//! the register file.
#![allow(unsafe_code)]

use crate::ahead::{Ahead, LINE_BYTES, Run, Runs};
use crate::order::{PARTS_MAX, in_order, in_shuffled_order, lines_of_codes};
use crate::{Bags, Mode, RowFormat, scalar};
use core::arch::x86_64::*;
use rowmill_arena::Window;

/// Dimensions a register.
const LANES: usize = 16;
/// Registers that a line of int8 codes fills.
const CODES_A_LINE: usize = LINE_BYTES / LANES;
/// The mask of a whole register.
const ALL: __mmask16 = 0xffff;
/// Dimensions of the largest tile: sixteen registers of sums leave as many for everything else.
const TILE: usize = PARTS_MAX * LANES;

/// Pools a batch into a target.
///
/// # Safety
/// Every feature of the batch has passed [`Bags::assert_sound`] for the target's length.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(crate) unsafe fn pool(batch: &[Bags<'_>], target: &Window<'_>) {
    let mut ahead = Ahead::new(batch, TILE);
    for run in Runs::new(batch, TILE) {
        let full = run.columns.len().is_multiple_of(LANES);
        macro_rules! by_registers {
            ($($n:literal)*) => {
                match (run.columns.len().div_ceil(LANES), full) {
                    // SAFETY: the caller's contract, and the run's columns fill $n registers, the
                    // last one wholly where `full` is so.
                    $(($n, true) => unsafe { pool_run::<$n, true>(&run, &mut ahead, target) },
                    // SAFETY: likewise.
                    ($n, false) => unsafe { pool_run::<$n, false>(&run, &mut ahead, target) },)*
                    (n, _) => unreachable!("{n} registers for a tile of {PARTS_MAX}"),
                }
            };
        }
        by_registers!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16);
    }
}

/// Pools a run whose columns fill `N` registers, the last one wholly with `FULL`.
///
/// # Safety
/// As [`pool`], with a run of the batch that has such columns.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn pool_run<const N: usize, const FULL: bool>(
    run: &Run<'_>,
    ahead: &mut Ahead<'_>,
    target: &Window<'_>,
) {
    let weighted = run.weights.is_some();
    // SAFETY: the caller's contract; format and weights are the run's.
    unsafe {
        match (run.bags.rows.format(), weighted) {
            (RowFormat::F32, false) => pool_rows::<N, FULL, false, false>(run, ahead, target),
            (RowFormat::F32, true) => pool_rows::<N, FULL, false, true>(run, ahead, target),
            (RowFormat::Int8, false) => pool_rows::<N, FULL, true, false>(run, ahead, target),
            (RowFormat::Int8, true) => pool_rows::<N, FULL, true, true>(run, ahead, target),
        }
    }
}

/// Pools a run, all that can be constant being so.
///
/// # Safety
/// As [`pool_run`]; `INT8` and `WEIGHTED` are as the run is.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn pool_rows<const N: usize, const FULL: bool, const INT8: bool, const WEIGHTED: bool>(
    run: &Run<'_>,
    ahead: &mut Ahead<'_>,
    target: &Window<'_>,
) {
    let place = run.place();
    let likely_lines = if INT8 {
        (N * LANES + 8).div_ceil(LINE_BYTES)
    } else {
        N
    };
    // A constant where it can be: a masked load is slower, even with a mask of ones.
    let last = if FULL {
        ALL
    } else {
        ALL >> (N * LANES - run.columns.len())
    };
    let mut steps = ahead.steps;
    let mut ids = run.ids;
    let mut weights = run.weights.unwrap_or_default();
    let mut out = target.as_ptr().wrapping_add(run.offset);
    for &length in run.lengths {
        let (bag, bag_weights);
        (bag, ids) = ids.split_at(length as usize);
        (bag_weights, weights) = weights.split_at(if WEIGHTED { length as usize } else { 0 });
        let mut sums = [_mm512_setzero_ps(); N];
        let mut biases = 0.0f32;
        let mut k = 0;
        while k < bag.len() {
            let prefetch = |line: *const u8| _mm_prefetch::<_MM_HINT_T1>(line.cast());
            steps.pass(&mut ahead.runs, &place, likely_lines, prefetch);
            let row = place.of_row(bag[k]);
            let weight = WEIGHTED.then(|| bag_weights[k]);
            // SAFETY: the id names a row, so codes or values of all columns lie inside the rows'
            // bytes at `row`, and scale and bias of an int8 row `trailer` bytes behind it.
            unsafe {
                if INT8 {
                    let trailer = row.wrapping_add(place.trailer);
                    add_int8(&mut sums, &mut biases, row, trailer, last, weight);
                } else {
                    add_f32(&mut sums, row, last, weight);
                }
            }
            k += 1;
        }
        let divisor = (run.bags.mode == Mode::Mean && length > 0).then_some(length as f32);
        for (i, &sum) in sums.iter().enumerate() {
            let sum = if INT8 {
                _mm512_add_ps(sum, _mm512_set1_ps(biases))
            } else {
                sum
            };
            let (at, sum) = (out.wrapping_add(4 * i * LANES), finish(sum, divisor));
            // SAFETY: the bag's vector lies inside the target, which is mapped and writable; masked
            // lanes are not accessed.
            unsafe { _mm512_mask_storeu_ps(at.cast(), if i + 1 == N { last } else { ALL }, sum) };
        }
        out = out.wrapping_add(run.bags.stride);
    }
    ahead.steps = steps;
}

/// Adds the values at `row`.
///
/// # Safety
/// There are sixteen for each of the sums, but for the last only those of the mask `last`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn add_f32<const N: usize>(
    sums: &mut [__m512; N],
    row: *const u8,
    last: __mmask16,
    weight: Option<f32>,
) {
    in_shuffled_order!(N, i => {
        let (at, mask) = (row.wrapping_add(4 * i * LANES), if i + 1 == N { last } else { ALL });
        // SAFETY: the caller's contract; masked lanes are not accessed.
        let x = unsafe { _mm512_maskz_loadu_ps(mask, at.cast()) };
        sums[i] = match weight {
            Some(weight) => _mm512_fmadd_ps(_mm512_set1_ps(weight), x, sums[i]),
            None => _mm512_add_ps(sums[i], x),
        };
    });
}

/// Adds the scaled codes at `row` to the sums and the row's bias to theirs; scale and bias are at
/// `trailer`.
///
/// # Safety
/// There are sixteen codes for each of the sums, but for the last only those of the mask `last`; scale
/// and bias may have any alignment.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn add_int8<const N: usize>(
    sums: &mut [__m512; N],
    biases: &mut f32,
    row: *const u8,
    trailer: *const u8,
    last: __mmask16,
    weight: Option<f32>,
) {
    // SAFETY: the caller's contract.
    let (scale, bias) = unsafe {
        let scale = trailer.cast::<f32>();
        (
            scale.read_unaligned(),
            scale.wrapping_add(1).read_unaligned(),
        )
    };
    let scale = match weight {
        Some(weight) => {
            *biases = weight.mul_add(bias, *biases);
            weight * scale
        }
        None => {
            *biases += bias;
            scale
        }
    };
    let scale = _mm512_set1_ps(scale);
    in_order!(N, k => {
        let i = const { lines_of_codes(N, CODES_A_LINE) }[k];
        if i % CODES_A_LINE == 0 {
            // Lines are read in this order, whatever the compiler would like.
            core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
        }
        let at = row.wrapping_add(i * LANES);
        // SAFETY: the caller's contract: sixteen codes for each sum, and masked lanes are not accessed.
        let codes = unsafe {
            if i + 1 == N {
                _mm_maskz_loadu_epi8(last, at.cast())
            } else {
                _mm_loadu_si128(at.cast())
            }
        };
        let x = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes));
        sums[i] = _mm512_fmadd_ps(scale, x, sums[i]);
    });
}

/// What is stored of a sum: divided for a mean, and with the one NaN for any.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn finish(sum: __m512, divisor: Option<f32>) -> __m512 {
    let x = divisor.map_or(sum, |divisor| _mm512_div_ps(sum, _mm512_set1_ps(divisor)));
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
    _mm512_mask_blend_ps(nan, x, _mm512_set1_ps(scalar::NAN))
}
