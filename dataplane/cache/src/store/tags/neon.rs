//! NEON (Armv8.0): the 16 tags by two comparisons, or by one of bytes.
#![allow(unsafe_code)]

use core::arch::aarch64::{
    uint8x16_t, uint16x8_t, vceqq_u8, vceqq_u16, vcombine_u8, vdupq_n_u8, vdupq_n_u16,
    vget_lane_u64, vmovn_u16, vreinterpret_u64_u8, vreinterpretq_u16_u8, vshrn_n_u16,
};
use core::arch::asm;
use core::sync::atomic::{AtomicU8, AtomicU16};

use super::super::drawn::Drawn;
use super::super::extent::Sets;
use super::super::key::Tag;
use super::super::memory::SetTags;
use super::pass::{self, Block, Looked, Probe};

/// The proof that the machine has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Neon(());

impl Neon {
    pub(super) fn detect() -> Option<Neon> {
        std::arch::is_aarch64_feature_detected!("neon").then_some(Neon(()))
    }

    pub(super) fn find<T: Tag>(
        self,
        tags: &[SetTags<T>],
        sets: &impl Sets,
        rows: &[u32],
        places: &mut [u32],
        drawn: &mut Drawn,
    ) -> Looked
    where
        Neon: Probe<T>,
    {
        // SAFETY: the machine has it, as `self` proves.
        unsafe { find(self, tags, sets, rows, places, drawn) }
    }
}

#[target_feature(enable = "neon")]
fn find<T: Tag>(
    probe: Neon,
    tags: &[SetTags<T>],
    sets: &impl Sets,
    rows: &[u32],
    places: &mut [u32],
    drawn: &mut Drawn,
) -> Looked
where
    Neon: Probe<T>,
{
    pass::find(probe, tags, sets, rows, places, drawn)
}

impl Probe<AtomicU8> for Neon {
    #[inline(always)]
    unsafe fn look_at(
        self,
        tags: &[SetTags<AtomicU8>],
        keys: &Block,
        places: &mut Block,
        next: &Block,
    ) -> u32 {
        // SAFETY: the machine has it, as `self` proves.
        let matches = |tags: &SetTags<AtomicU8>, key| unsafe { matches_of_bytes(tags, key) };
        // SAFETY: the caller's contract.
        unsafe { pass::look_at_each::<4, _>(matches, tags, keys, places, next) }
    }
}

impl Probe<AtomicU16> for Neon {
    #[inline(always)]
    unsafe fn look_at(
        self,
        tags: &[SetTags<AtomicU16>],
        keys: &Block,
        places: &mut Block,
        next: &Block,
    ) -> u32 {
        // SAFETY: the machine has it, as `self` proves.
        let matches = |tags: &SetTags<AtomicU16>, key| unsafe { matches(tags, key) };
        // SAFETY: the caller's contract.
        unsafe { pass::look_at_each::<4, _>(matches, tags, keys, places, next) }
    }
}

/// The ways whose tags are the key's, four bits each.
#[target_feature(enable = "neon")]
#[inline]
fn matches_of_bytes(tags: &SetTags<AtomicU8>, key: u32) -> u64 {
    let of_set: uint8x16_t;
    // SAFETY: as below, of 16 bytes, each an element.
    unsafe {
        asm!(
            "ld1 {{v0.16b}}, [{tags}]",
            tags = in(reg) tags.as_ptr(),
            out("v0") of_set,
            options(readonly, nostack, preserves_flags)
        );
    }
    nibbles(vceqq_u8(of_set, vdupq_n_u8(key as u8)))
}

/// The same of half words.
#[target_feature(enable = "neon")]
#[inline]
fn matches(tags: &SetTags<AtomicU16>, key: u32) -> u64 {
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
    nibbles(vcombine_u8(bytes(a), bytes(b)))
}

/// Four bits of each byte, of which all are the same.
#[target_feature(enable = "neon")]
#[inline]
fn nibbles(ways: uint8x16_t) -> u64 {
    // Of two ways' bytes the inner halves: four bits of each.
    let nibbles = vshrn_n_u16::<4>(vreinterpretq_u16_u8(ways));
    vget_lane_u64::<0>(vreinterpret_u64_u8(nibbles))
}
