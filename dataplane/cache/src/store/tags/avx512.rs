//! AVX-512 F: all 16 tags by one comparison.
#![allow(unsafe_code)]

use core::arch::asm;
use core::arch::x86_64::_mm512_set1_epi32;

use super::super::memory::Line;
use super::super::spread::Spread;
use super::pass::{self, Probe};

/// The proof that the machine has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx512(());

impl Avx512 {
    pub(super) fn detect() -> Option<Avx512> {
        is_x86_feature_detected!("avx512f").then_some(Avx512(()))
    }

    pub(super) fn find(
        self,
        lines: &[Line],
        spread: &Spread,
        rows: &[u32],
        places: &mut [u32],
    ) -> usize {
        // SAFETY: the machine has it, as `self` proves.
        unsafe { find(self, lines, spread, rows, places) }
    }
}

#[target_feature(enable = "avx512f")]
fn find(probe: Avx512, lines: &[Line], spread: &Spread, rows: &[u32], places: &mut [u32]) -> usize {
    pass::find(probe, lines, spread, rows, places)
}

impl Probe for Avx512 {
    #[inline(always)]
    fn matches(self, line: &Line, row: u32) -> u32 {
        // SAFETY: the machine has it, as `self` proves.
        unsafe { matches(line, row) }
    }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn matches(line: &Line, row: u32) -> u32 {
    let mask: u16;
    // SAFETY: 64 bytes that are borrowed are read, of any alignment, and nothing else is touched. They are atomics that others
    // may store to meanwhile: the load is the instruction's, of which the compiler knows nothing that it could take for
    // granted, and the CPU loads each of the tags, which are words on their own boundaries, at once.
    unsafe {
        asm!(
            "vpcmpeqd {mask}, {row}, zmmword ptr [{line}]",
            mask = out(kreg) mask,
            row = in(zmm_reg) _mm512_set1_epi32(row as i32),
            line = in(reg) line.as_ptr(),
            options(readonly, nostack, preserves_flags)
        );
    }
    mask.into()
}
