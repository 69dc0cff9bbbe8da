//! AVX2 with FMA: eight dimensions a register and four in a half, a tile of 64 dimensions in half of
//! the register file.
#![allow(unsafe_code)]

use crate::ahead::{Ahead, LINE_BYTES, Run, Runs};
use crate::order::in_shuffled_order;
use crate::{Bags, Mode, RowFormat, scalar};
use core::arch::x86_64::*;
use rowmill_arena::Window;

/// Dimensions a register.
const LANES: usize = 8;
/// Dimensions of the largest tile: eight registers of sums leave as many for everything else.
const TILE: usize = 8 * LANES;

/// Pools a batch into a target.
///
/// # Safety
/// Every feature of the batch has passed [`Bags::assert_sound`] for the target's length.
#[target_feature(enable = "avx2,fma")]
pub(crate) unsafe fn pool(batch: &[Bags<'_>], target: &Window<'_>) {
    let mut ahead = Ahead::new(batch, TILE);
    for run in Runs::new(batch, TILE) {
        let half = !run.columns.len().is_multiple_of(LANES);
        macro_rules! by_registers {
            ($($n:literal)*) => {
                match (run.columns.len() / LANES, half) {
                    // SAFETY: the caller's contract, and the run's columns fill $n registers, and
                    // half of another where `half` is so.
                    $(($n, false) => unsafe { pool_run::<$n, false>(&run, &mut ahead, target) },
                    // SAFETY: likewise.
                    ($n, true) => unsafe { pool_run::<$n, true>(&run, &mut ahead, target) },)*
                    (n, _) => unreachable!("{n} registers for a tile of 8"),
                }
            };
        }
        by_registers!(0 1 2 3 4 5 6 7 8);
    }
}

/// Pools a run whose columns fill `N` registers, and half of another with `HALF`.
///
/// # Safety
/// As [`pool`], with a run of the batch that has just as many columns.
#[target_feature(enable = "avx2,fma")]
#[inline(never)]
unsafe fn pool_run<const N: usize, const HALF: bool>(
    run: &Run<'_>,
    ahead: &mut Ahead<'_>,
    target: &Window<'_>,
) {
    let weighted = run.weights.is_some();
    // SAFETY: the caller's contract; format and weights are the run's.
    unsafe {
        match (run.bags.rows.format(), weighted) {
            (RowFormat::F32, false) => pool_rows::<N, HALF, false, false>(run, ahead, target),
            (RowFormat::F32, true) => pool_rows::<N, HALF, false, true>(run, ahead, target),
            (RowFormat::Int8, false) => pool_rows::<N, HALF, true, false>(run, ahead, target),
            (RowFormat::Int8, true) => pool_rows::<N, HALF, true, true>(run, ahead, target),
        }
    }
}

/// Pools a run, all that can be constant being so.
///
/// # Safety
/// As [`pool_run`]; `INT8` and `WEIGHTED` are as the run is.
#[target_feature(enable = "avx2,fma")]
unsafe fn pool_rows<const N: usize, const HALF: bool, const INT8: bool, const WEIGHTED: bool>(
    run: &Run<'_>,
    ahead: &mut Ahead<'_>,
    target: &Window<'_>,
) {
    let place = run.place();
    let dims = N * LANES + if HALF { LANES / 2 } else { 0 };
    let likely_lines = if INT8 { dims + 8 } else { 4 * dims }.div_ceil(LINE_BYTES);
    let mut steps = ahead.steps;
    let mut ids = run.ids;
    let mut weights = run.weights.unwrap_or_default();
    let mut out = target.as_ptr().wrapping_add(run.offset);
    for &length in run.lengths {
        let (bag, bag_weights);
        (bag, ids) = ids.split_at(length as usize);
        (bag_weights, weights) = weights.split_at(if WEIGHTED { length as usize } else { 0 });
        let mut sums = [_mm256_setzero_ps(); N];
        let mut half = _mm_setzero_ps();
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
                    add_int8::<N, HALF>(&mut sums, &mut half, &mut biases, row, trailer, weight);
                } else {
                    add_f32::<N, HALF>(&mut sums, &mut half, row, weight);
                }
            }
            k += 1;
        }
        let divisor = (run.bags.mode == Mode::Mean && length > 0).then_some(length as f32);
        for (i, &sum) in sums.iter().enumerate() {
            let sum = if INT8 {
                _mm256_add_ps(sum, _mm256_set1_ps(biases))
            } else {
                sum
            };
            let sum = finish(sum, divisor);
            // SAFETY: the bag's vector lies inside the target, which is mapped and writable.
            unsafe { _mm256_storeu_ps(out.wrapping_add(4 * i * LANES).cast(), sum) };
        }
        if HALF {
            let half = if INT8 {
                _mm_add_ps(half, _mm_set1_ps(biases))
            } else {
                half
            };
            let sum = _mm256_castps256_ps128(finish(_mm256_castps128_ps256(half), divisor));
            // SAFETY: as above.
            unsafe { _mm_storeu_ps(out.wrapping_add(4 * N * LANES).cast(), sum) };
        }
        out = out.wrapping_add(run.bags.stride);
    }
    ahead.steps = steps;
}

/// Adds the values at `row`.
///
/// # Safety
/// There are eight for each of the sums, and four more with `HALF`.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn add_f32<const N: usize, const HALF: bool>(
    sums: &mut [__m256; N],
    half: &mut __m128,
    row: *const u8,
    weight: Option<f32>,
) {
    in_shuffled_order!(N, i => {
        // SAFETY: the caller's contract.
        let x = unsafe { _mm256_loadu_ps(row.wrapping_add(4 * i * LANES).cast()) };
        sums[i] = match weight {
            Some(weight) => _mm256_fmadd_ps(_mm256_set1_ps(weight), x, sums[i]),
            None => _mm256_add_ps(sums[i], x),
        };
    });
    if HALF {
        // SAFETY: the caller's contract.
        let x = unsafe { _mm_loadu_ps(row.wrapping_add(4 * N * LANES).cast()) };
        *half = match weight {
            Some(weight) => _mm_fmadd_ps(_mm_set1_ps(weight), x, *half),
            None => _mm_add_ps(*half, x),
        };
    }
}

/// Adds the scaled codes at `row` to the sums and the row's bias to theirs; scale and bias are at
/// `trailer`.
///
/// # Safety
/// There are eight codes for each of the sums, and four more with `HALF`; scale and bias may have any
/// alignment.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn add_int8<const N: usize, const HALF: bool>(
    sums: &mut [__m256; N],
    half: &mut __m128,
    biases: &mut f32,
    row: *const u8,
    trailer: *const u8,
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
    in_shuffled_order!(N, i => {
        // SAFETY: the caller's contract.
        let codes = unsafe { _mm_loadl_epi64(row.wrapping_add(i * LANES).cast()) };
        let x = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(codes));
        sums[i] = _mm256_fmadd_ps(_mm256_set1_ps(scale), x, sums[i]);
    });
    if HALF {
        // SAFETY: the caller's contract.
        let codes = unsafe { row.wrapping_add(N * LANES).cast::<i32>().read_unaligned() };
        let x = _mm_cvtepi32_ps(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(codes)));
        *half = _mm_fmadd_ps(_mm_set1_ps(scale), x, *half);
    }
}

/// What is stored of a sum: divided for a mean, and with the one NaN for any.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn finish(sum: __m256, divisor: Option<f32>) -> __m256 {
    let x = divisor.map_or(sum, |divisor| _mm256_div_ps(sum, _mm256_set1_ps(divisor)));
    let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x);
    _mm256_blendv_ps(x, _mm256_set1_ps(scalar::NAN), nan)
}
