//! NEON (Armv8.0, as on Cortex-A72: f16 is converted, never computed with): four dimensions a register,
//! a tile of 64 dimensions.
#![allow(unsafe_code)]

use crate::kernel::{Simd, entry};
use crate::{Output, RowFormat, scalar};
use core::arch::aarch64::*;

/// Advanced SIMD, which every AArch64 has.
struct Neon;

entry!(Neon, "neon", 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16);

// Dimensions are multiples of four, so registers are always whole.
impl Simd for Neon {
    type Vector = float32x4_t;

    const LANES: usize = 4;
    const REGISTERS: usize = 16;

    #[inline(always)]
    unsafe fn splat(x: f32) -> float32x4_t {
        // SAFETY: the trait's contract.
        unsafe { vdupq_n_f32(x) }
    }

    #[inline(always)]
    unsafe fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: the trait's contract.
        unsafe { vfmaq_f32(c, a, b) }
    }

    #[inline(always)]
    unsafe fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: the trait's contract.
        unsafe { vaddq_f32(a, b) }
    }

    #[inline(always)]
    unsafe fn div(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: the trait's contract.
        unsafe { vdivq_f32(a, b) }
    }

    #[inline(always)]
    unsafe fn canonical(x: float32x4_t) -> float32x4_t {
        // SAFETY: the trait's contract.
        unsafe { vbslq_f32(vceqq_f32(x, x), x, vdupq_n_f32(scalar::NAN)) }
    }

    #[inline(always)]
    unsafe fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // FMAX gives a NaN where there is one, and +0 for zeros of both signs.
        // SAFETY: the trait's contract.
        unsafe { vmaxq_f32(a, b) }
    }

    #[inline(always)]
    unsafe fn f16_pair(word: u32) -> (f32, f32) {
        // SAFETY: the trait's contract.
        unsafe {
            let pair = vcvt_f32_f16(vcreate_f16(u64::from(word)));
            (vgetq_lane_f32::<0>(pair), vgetq_lane_f32::<1>(pair))
        }
    }

    #[inline(always)]
    unsafe fn load(
        format: RowFormat,
        _registers: usize,
        row: *const u8,
        i: usize,
        _rest: usize,
    ) -> float32x4_t {
        // SAFETY: the trait's contract: four dimensions are there.
        unsafe {
            match format {
                RowFormat::F32 => vreinterpretq_f32_u8(vld1q_u8(row.wrapping_add(16 * i))),
                RowFormat::F16 => {
                    vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(row.wrapping_add(8 * i))))
                }
                RowFormat::Bf16 => {
                    let halves = vreinterpret_u16_u8(vld1_u8(row.wrapping_add(8 * i)));
                    vreinterpretq_f32_u32(vshll_n_u16::<16>(halves))
                }
                RowFormat::Int8 | RowFormat::Int8F16 => {
                    let codes = row.wrapping_add(4 * i).cast::<u32>().read_unaligned();
                    let codes = vmovl_u8(vcreate_u8(u64::from(codes)));
                    vcvtq_f32_u32(vmovl_u16(vget_low_u16(codes)))
                }
                RowFormat::Int4 => {
                    let codes = row.wrapping_add(2 * i).cast::<u16>().read_unaligned();
                    // Shifts to the left by negative numbers are shifts to the right.
                    let shifts = vld1q_s32([0, -4, -8, -12].as_ptr());
                    let codes = vshlq_u32(vdupq_n_u32(u32::from(codes)), shifts);
                    vcvtq_f32_u32(vandq_u32(codes, vdupq_n_u32(0xf)))
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store(x: float32x4_t, output: Output, at: *mut u8, _lanes: usize) {
        // SAFETY: the trait's contract: there is room for four dimensions.
        unsafe {
            let halves = match output {
                Output::F32 => return vst1q_u8(at, vreinterpretq_u8_f32(x)),
                Output::F16 => vreinterpret_u8_f16(vcvt_f16_f32(x)),
                Output::Bf16 => {
                    // To nearest, ties to even; canonical NaNs stay NaNs.
                    let bits = vreinterpretq_u32_f32(x);
                    let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
                    let half = vaddq_u32(odd, vdupq_n_u32(0x7fff));
                    vreinterpret_u8_u16(vshrn_n_u32::<16>(vaddq_u32(bits, half)))
                }
            };
            vst1_u8(at, halves);
        }
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn pin(mut x: float32x4_t) -> float32x4_t {
        // SAFETY: there is no instruction in it.
        unsafe {
            core::arch::asm!("/* {x:v} */", x = inout(vreg) x, options(nostack, preserves_flags));
        }
        x
    }

    #[inline(always)]
    fn prefetch(at: *const u8) {
        // `_prefetch` is not stable. To the second level: the first of an A72 has few places for misses.
        // SAFETY: a prefetch has no effect that can be observed, whatever the address.
        unsafe {
            core::arch::asm!(
                "prfm pldl2keep, [{at}]",
                at = in(reg) at,
                options(readonly, nostack, preserves_flags)
            );
        }
    }
}
