//! AVX2: the 16 tags by one comparison, of 32 bytes or of 16.
#![allow(unsafe_code)]

use core::arch::asm;
use core::arch::x86_64::{
    __m128i, __m256i, _mm_movemask_epi8, _mm_set1_epi32, _mm256_movemask_epi8, _mm256_set1_epi32,
};
use core::sync::atomic::{AtomicU8, AtomicU16};

use super::super::drawn::Drawn;
use super::super::extent::Sets;
use super::super::key::Tag;
use super::super::memory::SetTags;
use super::pass::{self, Block, Looked, Probe};

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

    pub(super) fn find<T: Tag>(
        self,
        tags: &[SetTags<T>],
        sets: &impl Sets,
        rows: &[u32],
        places: &mut [u32],
        drawn: &mut Drawn,
    ) -> Looked
    where
        Avx2: Probe<T>,
    {
        // SAFETY: the machine has it, as `self` proves.
        unsafe { find(self, tags, sets, rows, places, drawn) }
    }
}

#[target_feature(enable = "avx2,bmi1,popcnt")]
fn find<T: Tag>(
    probe: Avx2,
    tags: &[SetTags<T>],
    sets: &impl Sets,
    rows: &[u32],
    places: &mut [u32],
    drawn: &mut Drawn,
) -> Looked
where
    Avx2: Probe<T>,
{
    pass::find(probe, tags, sets, rows, places, drawn)
}

impl Probe<AtomicU8> for Avx2 {
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
        unsafe { pass::look_at_each::<1, _>(matches, tags, keys, places, next) }
    }
}

impl Probe<AtomicU16> for Avx2 {
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
        unsafe { pass::look_at_each::<2, _>(matches, tags, keys, places, next) }
    }
}

/// The ways whose tags are the key's, a bit each.
#[target_feature(enable = "avx2,bmi1,popcnt")]
#[inline]
fn matches_of_bytes(tags: &SetTags<AtomicU8>, key: u32) -> u64 {
    let key = _mm_set1_epi32(key as i32);
    let equal: __m128i;
    // SAFETY: as below, of 16 bytes.
    unsafe {
        asm!(
            "vpcmpeqb {equal}, {key}, xmmword ptr [{tags}]",
            equal = lateout(xmm_reg) equal,
            key = in(xmm_reg) key,
            tags = in(reg) tags.as_ptr(),
            options(readonly, nostack, preserves_flags)
        );
    }
    u64::from(_mm_movemask_epi8(equal) as u32)
}

/// The same, two bits each.
#[target_feature(enable = "avx2,bmi1,popcnt")]
#[inline]
fn matches(tags: &SetTags<AtomicU16>, key: u32) -> u64 {
    let key = _mm256_set1_epi32(key as i32);
    let equal: __m256i;
    // SAFETY: 32 bytes that are borrowed are read, of any alignment, and nothing else is touched. They are atomics that others
    // may store to meanwhile: the load is the instruction's, of which the compiler knows nothing that it could take for
    // granted, and the CPU loads each of the tags, which are half words on their own boundaries, at once.
    unsafe {
        asm!(
            "vpcmpeqw {equal}, {key}, ymmword ptr [{tags}]",
            equal = lateout(ymm_reg) equal,
            key = in(ymm_reg) key,
            tags = in(reg) tags.as_ptr(),
            options(readonly, nostack, preserves_flags)
        );
    }
    u64::from(_mm256_movemask_epi8(equal) as u32)
}
