//! AVX-512: sixteen dimensions a register, the last one masked, a tile of 256 dimensions in half of
//! the register file.
#![allow(unsafe_code)]

use crate::ahead::{Ahead, Run, Runs};
use crate::order::{PARTS_MAX, in_shuffled_order};
use crate::{Bags, Mode, RowFormat, scalar};
use core::arch::x86_64::*;
use rowmill_arena::Window;

/// Dimensions a register.
const LANES: usize = 16;
/// Dimensions of the largest tile: sixteen registers of sums leave as many for everything else.
const TILE: usize = PARTS_MAX * LANES;
/// The mask of a whole register.
const ALL: __mmask16 = 0xffff;

/// Pools a batch into a target.
///
/// # Safety
/// Every feature of the batch has passed [`Bags::assert_sound`] for the target's length.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(crate) unsafe fn pool(batch: &[Bags<'_>], target: &Window<'_>) {
    let mut ahead = Ahead::new(batch, TILE);
    for run in Runs::new(batch, TILE) {
        macro_rules! by_registers {
            ($($n:literal)*) => {
                match run.columns.len().div_ceil(LANES) {
                    // SAFETY: the caller's contract, and the run's columns fit $n registers.
                    $($n => unsafe { pool_run::<$n>(&run, &mut ahead, target) },)*
                    n => unreachable!("{n} registers for a tile of {PARTS_MAX}"),
                }
            };
        }
        by_registers!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16);
    }
}

/// Pools a run whose columns need `N` registers.
///
/// # Safety
/// As [`pool`], with a run of the batch, and `N` registers are just enough.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn pool_run<const N: usize>(run: &Run<'_>, ahead: &mut Ahead<'_>, target: &Window<'_>) {
    let weighted = run.weights.is_some();
    // SAFETY: the caller's contract; format and weights are the run's.
    unsafe {
        match (run.bags.rows.format(), weighted) {
            (RowFormat::F32, false) => pool_rows::<N, false, false>(run, ahead, target),
            (RowFormat::F32, true) => pool_rows::<N, false, true>(run, ahead, target),
            (RowFormat::Int8, false) => pool_rows::<N, true, false>(run, ahead, target),
            (RowFormat::Int8, true) => pool_rows::<N, true, true>(run, ahead, target),
        }
    }
}

/// Pools a run, all that can be constant being so.
///
/// # Safety
/// As [`pool_run`]; `INT8` and `WEIGHTED` are as the run is.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn pool_rows<const N: usize, const INT8: bool, const WEIGHTED: bool>(
    run: &Run<'_>,
    ahead: &mut Ahead<'_>,
    target: &Window<'_>,
) {
    let place = run.place();
    // The last register holds what the others leave, at least one dimension.
    let last = ALL >> (N * LANES - run.columns.len());
    let mask = |i| if i + 1 == N { last } else { ALL };
    let mut ids = run.ids;
    let mut weights = run.weights.unwrap_or_default();
    let mut out = target.as_ptr().wrapping_add(run.offset);
    for &length in run.lengths {
        let (bag, bag_weights);
        (bag, ids) = ids.split_at(length as usize);
        (bag_weights, weights) = weights.split_at(if WEIGHTED { length as usize } else { 0 });
        let mut sums = [_mm512_setzero_ps(); N];
        let mut k = 0;
        while k < bag.len() {
            ahead.pass(&place, |line| _mm_prefetch::<_MM_HINT_T1>(line.cast()));
            let row = place.of_row(bag[k]);
            let weight = _mm512_set1_ps(if WEIGHTED { bag_weights[k] } else { 0.0 });
            // SAFETY: the id names a row, so codes or values of all columns lie inside the rows'
            // bytes at `row`, and scale and bias of an int8 row `trailer` bytes behind it; masked
            // lanes are not accessed.
            unsafe {
                let trailer = row.wrapping_add(place.trailer).cast::<f32>();
                let scale = if INT8 {
                    broadcast(trailer)
                } else {
                    _mm512_setzero_ps()
                };
                let bias = if INT8 {
                    broadcast(trailer.wrapping_add(1))
                } else {
                    _mm512_setzero_ps()
                };
                in_shuffled_order!(N, i => {
                    let x = if INT8 {
                        let codes = _mm_maskz_loadu_epi8(mask(i), row.wrapping_add(i * LANES).cast());
                        _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes)), bias)
                    } else {
                        _mm512_maskz_loadu_ps(mask(i), row.wrapping_add(4 * i * LANES).cast())
                    };
                    sums[i] = if WEIGHTED {
                        _mm512_fmadd_ps(weight, x, sums[i])
                    } else {
                        _mm512_add_ps(sums[i], x)
                    };
                });
            }
            k += 1;
        }
        let divisor = (run.bags.mode == Mode::Mean && length > 0).then_some(length as f32);
        for (i, &sum) in sums.iter().enumerate() {
            let sum = finish(sum, divisor);
            // SAFETY: the bag's vector lies inside the target, which is mapped and writable; masked
            // lanes are not accessed.
            unsafe { _mm512_mask_storeu_ps(out.wrapping_add(4 * i * LANES).cast(), mask(i), sum) };
        }
        out = out.wrapping_add(run.bags.stride);
    }
}

/// What is stored of a sum: divided for a mean, and with the one NaN for any.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn finish(sum: __m512, divisor: Option<f32>) -> __m512 {
    let x = divisor.map_or(sum, |divisor| _mm512_div_ps(sum, _mm512_set1_ps(divisor)));
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
    _mm512_mask_blend_ps(nan, x, _mm512_set1_ps(scalar::NAN))
}

/// The f32 at any address in all lanes.
///
/// # Safety
/// Its four bytes are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn broadcast(at: *const f32) -> __m512 {
    // SAFETY: the caller's contract.
    _mm512_set1_ps(unsafe { at.read_unaligned() })
}
