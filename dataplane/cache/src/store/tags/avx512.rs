//! AVX-512 F, BW, CD, DQ and VL: all 16 tags of a set by one comparison.
#![allow(unsafe_code)]

use core::arch::asm;
use core::arch::x86_64::*;

use super::super::drawn::Drawn;
use super::super::extent::Sets;
use super::super::memory::Line;
use super::pass::{self, BLOCK, Block, MISS, Probe, ask};

/// The proof that the machine has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx512(());

impl Avx512 {
    pub(super) fn detect() -> Option<Avx512> {
        let there = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512cd")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("popcnt");
        there.then_some(Avx512(()))
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

#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,bmi1,popcnt")]
fn find(
    probe: Avx512,
    lines: &[Line],
    sets: &impl Sets,
    rows: &[u32],
    places: &mut [u32],
    drawn: &mut Drawn,
) -> usize {
    pass::find(probe, lines, sets, rows, places, drawn)
}

impl Probe for Avx512 {
    #[inline(always)]
    unsafe fn look_at(self, lines: &[Line], rows: &Block, places: &mut Block, next: &Block) -> u32 {
        // SAFETY: the machine has it, as `self` proves; the caller's contract.
        unsafe { look_at(lines, rows, places, next) }
    }
}

/// As [`Probe::look_at`] says.
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,bmi1,popcnt")]
#[inline]
unsafe fn look_at(lines: &[Line], rows: &Block, places: &mut Block, next: &Block) -> u32 {
    let mut matches = [0; BLOCK / 4];
    for (i, matches) in matches.iter_mut().enumerate() {
        for &set in &next[4 * i..][..4] {
            ask(lines, set);
        }
        // SAFETY: the caller's contract.
        *matches = unsafe { four_matches(lines, rows, places, 4 * i) };
    }
    // Of each row the ways that match, in a word of its own.
    let [a, b, c, d] = matches.map(|four| four as i64);
    let matches = _mm512_cvtepu16_epi32(_mm256_set_epi64x(d, c, b, a));
    let none = _mm512_setzero_si512();
    let lowest = _mm512_and_si512(matches, _mm512_sub_epi32(none, matches));
    let way = _mm512_sub_epi32(_mm512_set1_epi32(31), _mm512_lzcnt_epi32(lowest));
    // SAFETY: sixteen words are read.
    let sets = unsafe { _mm512_loadu_si512(places.as_ptr().cast()) };
    let slots = _mm512_or_si512(_mm512_slli_epi32::<4>(sets), way);
    let missed = _mm512_cmpeq_epi32_mask(matches, none);
    let slots = _mm512_mask_mov_epi32(slots, missed, _mm512_set1_epi32(MISS as i32));
    // SAFETY: sixteen words are written.
    unsafe { _mm512_storeu_si512(places.as_mut_ptr().cast(), slots) };
    missed.into()
}

/// The ways whose tags are the row, 16 bits each, of four rows from `i` on.
///
/// # Safety
/// Each of `places` is the number of one of `lines`.
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,bmi1,popcnt")]
#[inline]
unsafe fn four_matches(lines: &[Line], rows: &Block, places: &Block, i: usize) -> u64 {
    let at = |i: usize| (places[i] as usize).wrapping_mul(size_of::<Line>());
    let four: &[u32; 4] = rows[i..i + 4].as_array().expect("four of sixteen");
    let matches: u64;
    // Of a type: of a register without one the compiler may print another's name.
    let _row: __m512i;
    // SAFETY: of each of four lines, which are there by the caller's contract, 64 bytes are read, and four words that are
    // borrowed; nothing else is touched. The lines are atomics that others may store to meanwhile: the loads are the
    // instructions', of which the compiler knows nothing that it could take for granted, and the CPU loads each of the tags,
    // which are words on their own boundaries, at once.
    unsafe {
        asm!(
            "vpbroadcastd {row}, dword ptr [{rows}]",
            "vpcmpeqd {first}, {row}, zmmword ptr [{lines} + {a}]",
            "vpbroadcastd {row}, dword ptr [{rows} + 4]",
            "vpcmpeqd {second}, {row}, zmmword ptr [{lines} + {b}]",
            "kunpckwd {first}, {second}, {first}",
            "vpbroadcastd {row}, dword ptr [{rows} + 8]",
            "vpcmpeqd {third}, {row}, zmmword ptr [{lines} + {c}]",
            "vpbroadcastd {row}, dword ptr [{rows} + 12]",
            "vpcmpeqd {second}, {row}, zmmword ptr [{lines} + {d}]",
            "kunpckwd {third}, {second}, {third}",
            "kunpckdq {first}, {third}, {first}",
            "kmovq {matches}, {first}",
            row = out(zmm_reg) _row,
            first = out(kreg) _,
            second = out(kreg) _,
            third = out(kreg) _,
            matches = lateout(reg) matches,
            a = in(reg) at(i),
            b = in(reg) at(i + 1),
            c = in(reg) at(i + 2),
            d = in(reg) at(i + 3),
            lines = in(reg) lines.as_ptr(),
            rows = in(reg) four.as_ptr(),
            options(readonly, nostack, preserves_flags)
        );
    }
    matches
}
