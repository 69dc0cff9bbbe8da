//! AVX2: the 16 tags by two comparisons.
#![allow(unsafe_code)]

use core::arch::asm;
use core::arch::x86_64::{__m256i, _mm256_castsi256_ps, _mm256_movemask_ps, _mm256_set1_epi32};

use super::super::drawn::Drawn;
use super::super::extent::Sets;
use super::super::memory::Line;
use super::pass::{self, Block, Probe};

/// The proof that the machine has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx2(());

impl Avx2 {
    pub(super) fn detect() -> Option<Avx2> {
        let there = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("popcnt");
        there.then_some(Avx2(()))
    }

    pub(super) fn find(
        self,
        lines: &[Line],
        sets: &impl Sets,
        rows: &[u32],
        places: &mut [u32],
        drawn: &mut Drawn,
    ) -> usize {
        // SAFETY: the machine has it, as `self` proves.
        unsafe { find(self, lines, sets, rows, places, drawn) }
    }
}

#[target_feature(enable = "avx2,bmi1,popcnt")]
fn find(
    probe: Avx2,
    lines: &[Line],
    sets: &impl Sets,
    rows: &[u32],
    places: &mut [u32],
    drawn: &mut Drawn,
) -> usize {
    pass::find(probe, lines, sets, rows, places, drawn)
}

impl Probe for Avx2 {
    #[inline(always)]
    unsafe fn look_at(self, lines: &[Line], rows: &Block, places: &mut Block, next: &Block) -> u32 {
        // SAFETY: the machine has it, as `self` proves.
        let matches = |line: &Line, row| unsafe { matches(line, row) };
        // SAFETY: the caller's contract.
        unsafe { pass::look_at_each(matches, lines, rows, places, next) }
    }
}

#[target_feature(enable = "avx2,bmi1,popcnt")]
#[inline]
fn matches(line: &Line, row: u32) -> u32 {
    let row = _mm256_set1_epi32(row as i32);
    let (low, high): (__m256i, __m256i);
    // SAFETY: 64 bytes that are borrowed are read, of any alignment, and nothing else is touched. They are atomics that others
    // may store to meanwhile: the loads are the instructions', of which the compiler knows nothing that it could take for
    // granted, and the CPU loads each of the tags, which are words on their own boundaries, at once.
    unsafe {
        asm!(
            "vpcmpeqd {low}, {row}, ymmword ptr [{line}]",
            "vpcmpeqd {high}, {row}, ymmword ptr [{line} + 32]",
            low = out(ymm_reg) low,
            high = lateout(ymm_reg) high,
            row = in(ymm_reg) row,
            line = in(reg) line.as_ptr(),
            options(readonly, nostack, preserves_flags)
        );
    }
    let mask = |lanes| _mm256_movemask_ps(_mm256_castsi256_ps(lanes)) as u32;
    mask(low) | mask(high) << 8
}
