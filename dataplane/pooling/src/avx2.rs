//! AVX2 with FMA and F16C: eight dimensions a register, four in the last one where eight don't divide,
//! a tile of 64 dimensions.
#![allow(unsafe_code)]

use crate::kernel::{Simd, entry};
use crate::{Output, RowFormat, scalar};
use core::arch::x86_64::*;

/// AVX2, FMA and F16C.
struct Avx2;

entry!(Avx2, "avx2,fma,f16c", 1 2 3 4 5 6 7 8);

/// The greatest of some ids; 0 of none.
#[target_feature(enable = "avx2")]
pub(crate) fn greatest(ids: &[u32]) -> u32 {
    ids.iter().fold(0, |max, &id| id.max(max))
}

// Dimensions are multiples of four, so a register has all eight of them, or four.
impl Simd for Avx2 {
    type Vector = __m256;

    const LANES: usize = 8;
    const REGISTERS: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn div(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_div_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn canonical(x: __m256) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe {
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x);
            _mm256_blendv_ps(x, _mm256_set1_ps(scalar::NAN), nan)
        }
    }

    #[inline(always)]
    unsafe fn max(a: __m256, b: __m256) -> __m256 {
        // Negative numbers with their other bits flipped are ordered as integers.
        // SAFETY: the trait's contract.
        let flip = |x: __m256i| unsafe {
            _mm256_xor_si256(x, _mm256_srli_epi32::<1>(_mm256_srai_epi32::<31>(x)))
        };
        // SAFETY: the trait's contract.
        unsafe {
            let greater =
                _mm256_max_epi32(flip(_mm256_castps_si256(a)), flip(_mm256_castps_si256(b)));
            _mm256_castsi256_ps(flip(greater))
        }
    }

    #[inline(always)]
    unsafe fn f16_pair(word: u32) -> (f32, f32) {
        // SAFETY: the trait's contract.
        unsafe {
            let pair = _mm_cvtph_ps(_mm_cvtsi32_si128(word as i32));
            (_mm_cvtss_f32(pair), _mm_cvtss_f32(_mm_movehdup_ps(pair)))
        }
    }

    #[inline(always)]
    unsafe fn load(
        format: RowFormat,
        _registers: usize,
        row: *const u8,
        i: usize,
        rest: usize,
    ) -> __m256 {
        let whole = rest >= Self::LANES;
        // SAFETY: the trait's contract: eight dimensions are there, or four.
        unsafe {
            match format {
                RowFormat::F32 => {
                    let at = row.wrapping_add(32 * i);
                    if whole {
                        _mm256_loadu_ps(at.cast())
                    } else {
                        _mm256_castps128_ps256(_mm_loadu_ps(at.cast()))
                    }
                }
                RowFormat::F16 => _mm256_cvtph_ps(load_u16(row.wrapping_add(16 * i), whole)),
                RowFormat::Bf16 => {
                    let halves = _mm256_cvtepu16_epi32(load_u16(row.wrapping_add(16 * i), whole));
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
                }
                RowFormat::Int8 | RowFormat::Int8F16 => {
                    let at = row.wrapping_add(8 * i);
                    let codes = if whole {
                        _mm_loadl_epi64(at.cast())
                    } else {
                        _mm_cvtsi32_si128(at.cast::<i32>().read_unaligned())
                    };
                    _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(codes))
                }
                RowFormat::Int4 => {
                    let at = row.wrapping_add(4 * i);
                    let codes = if whole {
                        at.cast::<i32>().read_unaligned()
                    } else {
                        i32::from(at.cast::<u16>().read_unaligned())
                    };
                    let shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
                    let codes = _mm256_srlv_epi32(_mm256_set1_epi32(codes), shifts);
                    _mm256_cvtepi32_ps(_mm256_and_si256(codes, _mm256_set1_epi32(0xf)))
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store(x: __m256, output: Output, at: *mut u8, lanes: usize) {
        let whole = lanes == Self::LANES;
        // SAFETY: the trait's contract: there is room for eight dimensions, or four.
        unsafe {
            let halves = match output {
                Output::F32 if whole => return _mm256_storeu_ps(at.cast(), x),
                Output::F32 => return _mm_storeu_ps(at.cast(), _mm256_castps256_ps128(x)),
                Output::F16 => _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x),
                Output::Bf16 => to_bf16(x),
            };
            if whole {
                _mm_storeu_si128(at.cast(), halves);
            } else {
                _mm_storel_epi64(at.cast(), halves);
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn pin(mut x: __m256) -> __m256 {
        // SAFETY: there is no instruction in it.
        unsafe {
            core::arch::asm!("/* {x} */", x = inout(ymm_reg) x, options(nostack, preserves_flags));
        }
        x
    }

    #[inline(always)]
    fn prefetch(at: *const u8) {
        // SAFETY: a prefetch has no effect that can be observed, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
}

/// Eight 16-bit values, or four.
///
/// # Safety
/// The machine has the instruction set, and as many values are at `at`.
#[inline(always)]
unsafe fn load_u16(at: *const u8, whole: bool) -> __m128i {
    // SAFETY: the caller's contract.
    unsafe {
        if whole {
            _mm_loadu_si128(at.cast())
        } else {
            _mm_loadl_epi64(at.cast())
        }
    }
}

/// Rounds to bfloat16, to nearest, ties to even. Canonical NaNs stay NaNs.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
unsafe fn to_bf16(x: __m256) -> __m128i {
    // SAFETY: the caller's contract.
    unsafe {
        let bits = _mm256_castps_si256(x);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
        let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, half));
        let low = _mm256_castsi256_si128(rounded);
        _mm_packus_epi32(low, _mm256_extracti128_si256::<1>(rounded))
    }
}
