//! NEON (Armv8.0): the 16 tags by two comparisons.
#![allow(unsafe_code)]

use core::arch::aarch64::{
    uint16x8_t, vceqq_u16, vcombine_u8, vdupq_n_u16, vget_lane_u64, vmovn_u16, vreinterpret_u64_u8,
    vreinterpretq_u16_u8, vshrn_n_u16,
};
use core::arch::asm;

use super::super::drawn::Drawn;
use super::super::extent::Sets;
use super::super::memory::SetTags;
use super::pass::{self, Block, Looked, Probe};

/// The proof that the machine has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Neon(());

impl Neon {
    pub(super) fn detect() -> Option<Neon> {
        std::arch::is_aarch64_feature_detected!("neon").then_some(Neon(()))
    }

    pub(super) fn find(
        self,
        tags: &[SetTags],
        sets: &impl Sets,
        rows: &[u32],
        places: &mut [u32],
        drawn: &mut Drawn,
    ) -> Looked {
        // SAFETY: the machine has it, as `self` proves.
        unsafe { find(self, tags, sets, rows, places, drawn) }
    }
}

#[target_feature(enable = "neon")]
fn find(
    probe: Neon,
    tags: &[SetTags],
    sets: &impl Sets,
    rows: &[u32],
    places: &mut [u32],
    drawn: &mut Drawn,
) -> Looked {
    pass::find(probe, tags, sets, rows, places, drawn)
}

impl Probe for Neon {
    #[inline(always)]
    unsafe fn look_at(
        self,
        tags: &[SetTags],
        keys: &Block,
        places: &mut Block,
        next: &Block,
    ) -> u32 {
        // SAFETY: the machine has it, as `self` proves.
        let matches = |tags: &SetTags, key| unsafe { matches(tags, key) };
        // SAFETY: the caller's contract.
        unsafe { pass::look_at_each::<4>(matches, tags, keys, places, next) }
    }
}

/// The ways whose tags are the key's, four bits each.
#[target_feature(enable = "neon")]
#[inline]
fn matches(tags: &SetTags, key: u32) -> u64 {
    let (a, b): (uint16x8_t, uint16x8_t);
    // SAFETY: 32 bytes that are borrowed are read, and nothing else is touched. They are atomics that others may store to
    // meanwhile: the load is the instruction's, of which the compiler knows nothing that it could take for granted, and the
    // architecture loads each element, a half word on its own boundary, at once.
    unsafe {
        asm!(
            "ld1 {{v0.8h, v1.8h}}, [{tags}]",
            tags = in(reg) tags.as_ptr(),
            out("v0") a, out("v1") b,
            options(readonly, nostack, preserves_flags)
        );
    }
    let key = vdupq_n_u16(key as u16);
    let bytes = |tags| vmovn_u16(vceqq_u16(tags, key));
    let ways = vcombine_u8(bytes(a), bytes(b));
    // Of two ways' bytes the inner halves: four bits of each.
    let nibbles = vshrn_n_u16::<4>(vreinterpretq_u16_u8(ways));
    vget_lane_u64::<0>(vreinterpret_u64_u8(nibbles))
}
