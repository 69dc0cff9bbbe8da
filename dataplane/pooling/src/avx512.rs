//! AVX-512: sixteen dimensions a register, the last one masked, a tile of 256 dimensions.
#![allow(unsafe_code)]

use crate::kernel::{Simd, entry};
use crate::order::in_order;
use crate::{Output, RowFormat, scalar};
use core::arch::x86_64::*;

/// AVX-512 F, BW, DQ and VL.
struct Avx512;

entry!(Avx512, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c", 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16);

/// The mask of the first `lanes` of sixteen.
#[inline(always)]
fn first(lanes: usize) -> __mmask16 {
    ((1u32 << lanes) - 1) as __mmask16
}

// SAFETY (all methods): the trait's contract; reads and writes are of the dimensions that are there, and
// masked lanes are not accessed.
impl Simd for Avx512 {
    type Vector = __m512;

    const LANES: usize = 16;
    const REGISTERS: usize = 16;
    const INT4_GROUPS: [usize; 2] = [EIGHT, 2];
    const INT4_DECODERS_AHEAD: bool = true;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn canonical(x: __m512) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe {
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
            _mm512_mask_blend_ps(nan, x, _mm512_set1_ps(scalar::NAN))
        }
    }

    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        // Negative numbers with their other bits flipped are ordered as integers.
        // SAFETY: the trait's contract.
        let flip = |x: __m512i| unsafe {
            _mm512_xor_si512(x, _mm512_srli_epi32::<1>(_mm512_srai_epi32::<31>(x)))
        };
        // SAFETY: the trait's contract.
        unsafe {
            let greater =
                _mm512_max_epi32(flip(_mm512_castps_si512(a)), flip(_mm512_castps_si512(b)));
            _mm512_castsi512_ps(flip(greater))
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
        registers: usize,
        row: *const u8,
        i: usize,
        rest: usize,
    ) -> __m512 {
        let whole = rest >= Self::LANES;
        // SAFETY: the trait's contract.
        unsafe {
            match format {
                RowFormat::F32 => {
                    let at = row.wrapping_add(64 * i);
                    if whole {
                        _mm512_loadu_ps(at.cast())
                    } else {
                        _mm512_maskz_loadu_ps(first(rest), at.cast())
                    }
                }
                RowFormat::F16 => _mm512_cvtph_ps(load_u16(row.wrapping_add(32 * i), rest)),
                RowFormat::Bf16 => {
                    let halves = _mm512_cvtepu16_epi32(load_u16(row.wrapping_add(32 * i), rest));
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves))
                }
                RowFormat::Int8 | RowFormat::Int8F16 => {
                    let at = row.wrapping_add(16 * i);
                    let codes = if whole {
                        _mm_loadu_si128(at.cast())
                    } else {
                        _mm_maskz_loadu_epi8(first(rest), at.cast())
                    };
                    _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes))
                }
                RowFormat::Int4 => _mm512_castsi512_ps(if in_eight(registers, i) {
                    load_eight(row.wrapping_add(8 * i), rest)
                } else {
                    load_pair(row.wrapping_add(8 * i), rest)
                }),
            }
        }
    }

    #[inline(always)]
    unsafe fn decoder(format: RowFormat, registers: usize, scale: f32, bias: f32) -> [__m512; 2] {
        // SAFETY: the trait's contract.
        unsafe {
            let [scale, bias] = [_mm512_set1_ps(scale), _mm512_set1_ps(bias)];
            if has_table(format, registers) {
                [_mm512_fmadd_ps(scale, codes_of_four_bits(), bias); 2]
            } else {
                [scale, bias]
            }
        }
    }

    #[inline(always)]
    unsafe fn value(
        format: RowFormat,
        registers: usize,
        loaded: __m512,
        i: usize,
        [scale, bias]: [__m512; 2],
        weighted: bool,
    ) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe {
            if !format.has_codes() {
                return loaded;
            }
            if !matches!(format, RowFormat::Int4) {
                return _mm512_fmadd_ps(scale, loaded, bias);
            }
            let loaded = _mm512_castps_si512(loaded);
            let codes = if in_eight(registers, i) {
                codes_of_eight(loaded, i % EIGHT, weighted)
            } else {
                codes_of_pair(loaded, i % 2)
            };
            if has_table(format, registers) {
                _mm512_permutexvar_ps(codes, scale)
            } else {
                let codes = _mm512_permutexvar_ps(codes, codes_of_four_bits());
                _mm512_fmadd_ps(scale, codes, bias)
            }
        }
    }

    #[inline(always)]
    unsafe fn untangle<const N: usize>(vectors: &mut [__m512; N]) {
        // Written out, so that registers stay registers.
        // SAFETY: the trait's contract.
        unsafe {
            in_order!(N, i => {
                if in_eight(N, i) {
                    if i.is_multiple_of(EIGHT) {
                        untangle_eight(vectors, i);
                    }
                } else if i % 2 == 1 {
                    untangle_pair(vectors, i - 1);
                }
            });
        }
    }

    #[inline(always)]
    unsafe fn store(x: __m512, output: Output, at: *mut u8, lanes: usize) {
        // SAFETY: the trait's contract.
        unsafe {
            let halves = match output {
                Output::F32 if lanes == Self::LANES => return _mm512_storeu_ps(at.cast(), x),
                Output::F32 => return _mm512_mask_storeu_ps(at.cast(), first(lanes), x),
                Output::F16 => _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x),
                Output::Bf16 => to_bf16(x),
            };
            if lanes == Self::LANES {
                _mm256_storeu_si256(at.cast(), halves);
            } else {
                _mm256_mask_storeu_epi16(at.cast(), first(lanes), halves);
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn pin(mut x: __m512) -> __m512 {
        // SAFETY: there is no instruction in it.
        unsafe {
            core::arch::asm!("/* {x} */", x = inout(zmm_reg) x, options(nostack, preserves_flags));
        }
        x
    }

    #[inline(always)]
    fn prefetch(at: *const u8) {
        // SAFETY: a prefetch has no effect that can be observed, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
}

/// Sixteen 16-bit values, or the first `rest` of them.
///
/// # Safety
/// The machine has the instruction set, and as many values are at `at`.
#[inline(always)]
unsafe fn load_u16(at: *const u8, rest: usize) -> __m256i {
    // SAFETY: the caller's contract; masked lanes are not accessed.
    unsafe {
        if rest >= 16 {
            _mm256_loadu_si256(at.cast())
        } else {
            _mm256_maskz_loadu_epi16(first(rest), at.cast())
        }
    }
}

/// Whether a row's decoder is a table of the values of all its codes, to choose from: that saves a product a
/// register and costs one a row. (From memory, M rows/s with and without, of registers in pairs whose row
/// waited for its decoder: dim 32 177 and 208, dim 64 134 and 146, dim 128 114 and 102, dim 256 60 and 50.
/// In eights, with decoders made a row ahead, all of it in cache, before and after: dim 128 122 and 181, dim
/// 256 65 and 107, dim 512 29 and 45. Zen 4.)
const fn has_table(format: RowFormat, registers: usize) -> bool {
    matches!(format, RowFormat::Int4) && registers > 4
}

/// The sixteen int4 codes as numbers.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
unsafe fn codes_of_four_bits() -> __m512 {
    // SAFETY: the caller's contract.
    unsafe {
        _mm512_setr_ps(
            0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
        )
    }
}

/// Registers whose int4 codes are 64 bytes, which fill a register.
const EIGHT: usize = 8;

/// Whether int4 register `i` of a row of `registers` is one of eight that share 64 bytes.
#[inline(always)]
const fn in_eight(registers: usize, i: usize) -> bool {
    i < registers / EIGHT * EIGHT
}

/// The bytes of 128 int4 codes at `at`, of which the first `rest` are there.
///
/// # Safety
/// The machine has the instruction set, and as many codes are at `at`.
#[inline(always)]
unsafe fn load_eight(at: *const u8, rest: usize) -> __m512i {
    // SAFETY: the caller's contract; masked lanes are not accessed.
    unsafe {
        if rest >= 128 {
            _mm512_loadu_si512(at.cast())
        } else {
            _mm512_maskz_loadu_epi8((1 << (rest / 2)) - 1, at.cast())
        }
    }
}

/// The codes of register `j` of eight, in the lowest four bits of lanes: lane l, shifted right by 4j bits, has
/// dimension 8l + j there. What is in the other bits doesn't matter.
///
/// Zen 4 shifts in the units that add, and multiplies integers in those that multiply floats. So before a
/// sum, shifts are the high halves of products: of 16 bits, since no other is as fast. (Dim 128 and 256 in
/// cache, M rows/s: 181 and 107, with shifts 152 and 84. Weighted rows with shifts: 182 and 92.)
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
unsafe fn codes_of_eight(loaded: __m512i, j: usize, weighted: bool) -> __m512i {
    // SAFETY: the caller's contract.
    unsafe {
        let shifted = |bits: usize| _mm512_srl_epi32(loaded, _mm_cvtsi32_si128(bits as i32));
        if j == 0 {
            loaded
        } else if weighted || j == EIGHT / 2 {
            shifted(4 * j)
        } else {
            let half = if j < EIGHT / 2 { loaded } else { shifted(16) };
            // Only of the lower 16 bits of lanes: of all, the compiler would make a shift again.
            _mm512_mulhi_epi16(half, _mm512_set1_epi32(1 << (16 - 4 * (j % 4))))
        }
    }
}

/// The bytes of 32 int4 codes at `at`, of which the first `rest` are there, in each quarter of a register.
///
/// # Safety
/// The machine has the instruction set, and as many codes are at `at`.
#[inline(always)]
unsafe fn load_pair(at: *const u8, rest: usize) -> __m512i {
    // SAFETY: the caller's contract; masked lanes are not accessed.
    unsafe {
        _mm512_broadcast_i32x4(if rest >= 32 {
            _mm_loadu_si128(at.cast())
        } else {
            _mm_maskz_loadu_epi8(first(rest / 2), at.cast())
        })
    }
}

/// The codes of half of a pair of registers, in the lowest four bits of lanes: quarter k of the register is
/// shifted right by 4k bits, and 16 more for the second half, so that dimension 8j + k, and 8j + 4 + k, is in
/// its lane j.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
unsafe fn codes_of_pair(loaded: __m512i, half: usize) -> __m512i {
    // SAFETY: the caller's contract.
    unsafe {
        let quarters = _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
        let shifts = _mm512_add_epi32(quarters, _mm512_set1_epi32(16 * half as i32));
        _mm512_srlv_epi32(loaded, shifts)
    }
}

/// Puts the dimensions of the two registers from `i` on into order: lane 4k + j of the first holds dimension
/// 8j + k, that of the second dimension 8j + 4 + k.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
unsafe fn untangle_pair<const N: usize>(vectors: &mut [__m512; N], i: usize) {
    let [a, b] = [vectors[i], vectors[i + 1]];
    // SAFETY: the caller's contract.
    unsafe {
        let low = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
        let high = _mm512_setr_epi32(2, 6, 10, 14, 18, 22, 26, 30, 3, 7, 11, 15, 19, 23, 27, 31);
        vectors[i] = _mm512_permutex2var_ps(a, low, b);
        vectors[i + 1] = _mm512_permutex2var_ps(a, high, b);
    }
}

/// Puts the dimensions of the eight registers from `i` on into order: lane l of register j holds dimension
/// 8l + j.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
unsafe fn untangle_eight<const N: usize>(vectors: &mut [__m512; N], i: usize) {
    // By value: registers that a closure borrows are in memory.
    // SAFETY: the caller's contract.
    let couple = |a: __m512, b: __m512| unsafe {
        let (a, b) = (_mm512_castps_pd(a), _mm512_castps_pd(b));
        (
            _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
            _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)),
        )
    };
    let (a, b) = couple(vectors[i], vectors[i + 1]);
    let (c, d) = couple(vectors[i + 2], vectors[i + 3]);
    let (e, f) = couple(vectors[i + 4], vectors[i + 5]);
    let (g, h) = couple(vectors[i + 6], vectors[i + 7]);
    // In each quarter of these are lanes 0 and 1 of that quarter of two registers, or lanes 2 and 3: the
    // former are for even registers, the latter for odd ones.
    // SAFETY: the caller's contract.
    unsafe {
        let [p, q, r, s] = transpose_quarters([a, c, e, g]);
        (vectors[i], vectors[i + 2], vectors[i + 4], vectors[i + 6]) = (p, q, r, s);
        let [p, q, r, s] = transpose_quarters([b, d, f, h]);
        (
            vectors[i + 1],
            vectors[i + 3],
            vectors[i + 5],
            vectors[i + 7],
        ) = (p, q, r, s);
    }
}

/// Of four registers, each with quarters of `a a' b b'`, the first quarters of all as `a b c d e f g h a' b' ...`,
/// then the second quarters, the third and the fourth.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
unsafe fn transpose_quarters([ab, cd, ef, gh]: [__m512; 4]) -> [__m512; 4] {
    // SAFETY: the caller's contract.
    unsafe {
        let first = _mm512_setr_epi32(0, 2, 8, 10, 16, 18, 24, 26, 1, 3, 9, 11, 17, 19, 25, 27);
        let second = _mm512_setr_epi32(4, 6, 12, 14, 20, 22, 28, 30, 5, 7, 13, 15, 21, 23, 29, 31);
        // Halves of two registers.
        let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(ab, cd);
        let low_2 = _mm512_shuffle_f32x4::<0b01_00_01_00>(ef, gh);
        let high = _mm512_shuffle_f32x4::<0b11_10_11_10>(ab, cd);
        let high_2 = _mm512_shuffle_f32x4::<0b11_10_11_10>(ef, gh);
        [
            _mm512_permutex2var_ps(low, first, low_2),
            _mm512_permutex2var_ps(low, second, low_2),
            _mm512_permutex2var_ps(high, first, high_2),
            _mm512_permutex2var_ps(high, second, high_2),
        ]
    }
}

/// Rounds to bfloat16, to nearest, ties to even. Canonical NaNs stay NaNs. The instruction for this flushes
/// subnormal numbers to zero.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
unsafe fn to_bf16(x: __m512) -> __m256i {
    // SAFETY: the caller's contract.
    unsafe {
        let bits = _mm512_castps_si512(x);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
        _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_add_epi32(bits, half)))
    }
}
