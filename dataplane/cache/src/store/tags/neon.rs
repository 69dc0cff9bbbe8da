//! NEON (Armv8.0): the 16 tags by four comparisons.
#![allow(unsafe_code)]

use core::arch::aarch64::{
    uint32x4_t, vaddvq_u32, vandq_u32, vceqq_u32, vdupq_n_u32, vld1q_u32, vorrq_u32,
};
use core::arch::asm;

use super::super::drawn::Drawn;
use super::super::extent::Sets;
use super::super::memory::Line;
use super::pass::{self, Block, Probe};

/// The proof that the machine has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Neon(());

impl Neon {
    pub(super) fn detect() -> Option<Neon> {
        std::arch::is_aarch64_feature_detected!("neon").then_some(Neon(()))
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

#[target_feature(enable = "neon")]
fn find(
    probe: Neon,
    lines: &[Line],
    sets: &impl Sets,
    rows: &[u32],
    places: &mut [u32],
    drawn: &mut Drawn,
) -> usize {
    pass::find(probe, lines, sets, rows, places, drawn)
}

impl Probe for Neon {
    #[inline(always)]
    unsafe fn look_at(self, lines: &[Line], rows: &Block, places: &mut Block, next: &Block) -> u32 {
        // SAFETY: the machine has it, as `self` proves.
        let matches = |line: &Line, row| unsafe { matches(line, row) };
        // SAFETY: the caller's contract.
        unsafe { pass::look_at_each(matches, lines, rows, places, next) }
    }
}

/// The bit of each way.
static BITS: [u32; 16] = {
    let (mut bits, mut way) = ([0; 16], 0);
    while way < 16 {
        bits[way] = 1 << way;
        way += 1;
    }
    bits
};

#[target_feature(enable = "neon")]
#[inline]
fn matches(line: &Line, row: u32) -> u32 {
    let (a, b, c, d): (uint32x4_t, uint32x4_t, uint32x4_t, uint32x4_t);
    // SAFETY: 64 bytes that are borrowed are read, and nothing else is touched. They are atomics that others may store to
    // meanwhile: the load is the instruction's, of which the compiler knows nothing that it could take for granted, and the
    // architecture loads each element, a word on its own boundary, at once.
    unsafe {
        asm!(
            "ld1 {{v0.4s, v1.4s, v2.4s, v3.4s}}, [{line}]",
            line = in(reg) line.as_ptr(),
            out("v0") a, out("v1") b, out("v2") c, out("v3") d,
            options(readonly, nostack, preserves_flags)
        );
    }
    let row = vdupq_n_u32(row);
    let bits = |tags, first: usize| {
        // SAFETY: four words from a multiple of four on, of sixteen.
        let bits = unsafe { vld1q_u32(BITS[first..first + 4].as_ptr()) };
        vandq_u32(vceqq_u32(tags, row), bits)
    };
    let halves = [
        vorrq_u32(bits(a, 0), bits(b, 4)),
        vorrq_u32(bits(c, 8), bits(d, 12)),
    ];
    vaddvq_u32(vorrq_u32(halves[0], halves[1]))
}
