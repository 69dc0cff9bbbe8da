//! AVX-512 F, BW, CD, DQ and VL: all 16 tags of a set by one comparison.
#![allow(unsafe_code)]

use core::arch::asm;
use core::arch::x86_64::*;
use core::sync::atomic::{AtomicU8, AtomicU16};

use super::super::drawn::Drawn;
use super::super::extent::Sets;
use super::super::key::Tag;
use super::super::memory::SetTags;
use super::pass::{self, BLOCK, Block, Looked, MISS, Probe};

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

    pub(super) fn find<T: Tag>(
        self,
        tags: &[SetTags<T>],
        sets: &impl Sets,
        rows: &[u32],
        places: &mut [u32],
        drawn: &mut Drawn,
    ) -> Looked
    where
        Avx512: Probe<T>,
    {
        // SAFETY: the machine has it, as `self` proves.
        unsafe { find(self, tags, sets, rows, places, drawn) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,bmi1,popcnt")]
fn find<T: Tag>(
    probe: Avx512,
    tags: &[SetTags<T>],
    sets: &impl Sets,
    rows: &[u32],
    places: &mut [u32],
    drawn: &mut Drawn,
) -> Looked
where
    Avx512: Probe<T>,
{
    pass::find(probe, tags, sets, rows, places, drawn)
}

/// How four sets' tags of a type are compared.
trait Four: Sized {
    /// The ways whose tags are the key's, 16 bits each, of four keys from `i` on. Meanwhile the tags of as many sets of `next` are asked for.
    ///
    /// # Safety
    /// The machine has what [`Avx512`] proves, and each of `places` is the number of one of `tags`.
    unsafe fn matches(
        tags: &[SetTags<Self>],
        keys: &Block,
        places: &Block,
        next: &Block,
        i: usize,
    ) -> u64;
}

impl<T: Four> Probe<T> for Avx512 {
    #[inline(always)]
    unsafe fn look_at(
        self,
        tags: &[SetTags<T>],
        keys: &Block,
        places: &mut Block,
        next: &Block,
    ) -> u32 {
        // SAFETY: the machine has it, as `self` proves; the caller's contract.
        unsafe { look_at(tags, keys, places, next) }
    }
}

/// As [`Probe::look_at`] says.
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,bmi1,popcnt")]
#[inline]
unsafe fn look_at<T: Four>(
    tags: &[SetTags<T>],
    keys: &Block,
    places: &mut Block,
    next: &Block,
) -> u32 {
    let mut matches = [0; BLOCK / 4];
    for (i, matches) in matches.iter_mut().enumerate() {
        // SAFETY: the caller's contract.
        *matches = unsafe { T::matches(tags, keys, places, next, 4 * i) };
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

/// [`Four`] for tags of so many bytes, by an instruction that compares those of a set: the tags of a set begin `1 << $shift` bytes behind those
/// of the one before.
///
/// All of it is in assembly: the compiler loads all numbers of a block first, for which it has not enough registers, and some of what it
/// then does is to store and load them. That took a tenth more of a lookup (Zen 4).
macro_rules! four {
    ($tag:ty, $shift:literal, $compare:literal, $register:literal, $memory:literal) => {
        impl Four for $tag {
            #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,bmi1,popcnt")]
            #[inline]
            unsafe fn matches(
                tags: &[SetTags<$tag>],
                keys: &Block,
                places: &Block,
                next: &Block,
                i: usize,
            ) -> u64 {
                const { assert!(size_of::<SetTags<$tag>>() == 1 << $shift) };
                let four = |block: &Block| -> *const u32 { block[i..i + 4].as_ptr() };
                let matches: u64;
                // Of a type: of a register without one the compiler may print another's name.
                let _key: __m256i;
                // SAFETY: of each of four sets, which are there by the caller's contract, the tags are read, and four words each of three
                // blocks that are borrowed; nothing else is touched: what is asked for may be anywhere, and faults nowhere. The tags are
                // atomics that others may store to meanwhile: the loads are the instructions', of which the compiler knows nothing that it
                // could take for granted, and the CPU loads each of the tags, which are bytes, or half words on their own boundaries, at once.
                unsafe {
                    asm!(
                        "mov {asked:e}, dword ptr [{next}]",
                        "mov {set:e}, dword ptr [{places}]",
                        concat!("shl {asked}, ", $shift),
                        concat!("shl {set}, ", $shift),
                        "prefetcht1 byte ptr [{tags} + {asked}]",
                        "vpbroadcastd {key:y}, dword ptr [{keys}]",
                        concat!($compare, " {first}, {key:", $register, "}, ", $memory, " ptr [{tags} + {set}]"),
                        "mov {asked:e}, dword ptr [{next} + 4]",
                        "mov {set:e}, dword ptr [{places} + 4]",
                        concat!("shl {asked}, ", $shift),
                        concat!("shl {set}, ", $shift),
                        "prefetcht1 byte ptr [{tags} + {asked}]",
                        "vpbroadcastd {key:y}, dword ptr [{keys} + 4]",
                        concat!($compare, " {second}, {key:", $register, "}, ", $memory, " ptr [{tags} + {set}]"),
                        "kunpckwd {first}, {second}, {first}",
                        "mov {asked:e}, dword ptr [{next} + 8]",
                        "mov {set:e}, dword ptr [{places} + 8]",
                        concat!("shl {asked}, ", $shift),
                        concat!("shl {set}, ", $shift),
                        "prefetcht1 byte ptr [{tags} + {asked}]",
                        "vpbroadcastd {key:y}, dword ptr [{keys} + 8]",
                        concat!($compare, " {third}, {key:", $register, "}, ", $memory, " ptr [{tags} + {set}]"),
                        "mov {asked:e}, dword ptr [{next} + 12]",
                        "mov {set:e}, dword ptr [{places} + 12]",
                        concat!("shl {asked}, ", $shift),
                        concat!("shl {set}, ", $shift),
                        "prefetcht1 byte ptr [{tags} + {asked}]",
                        "vpbroadcastd {key:y}, dword ptr [{keys} + 12]",
                        concat!($compare, " {second}, {key:", $register, "}, ", $memory, " ptr [{tags} + {set}]"),
                        "kunpckwd {third}, {second}, {third}",
                        "kunpckdq {first}, {third}, {first}",
                        "kmovq {matches}, {first}",
                        key = out(ymm_reg) _key,
                        first = out(kreg) _,
                        second = out(kreg) _,
                        third = out(kreg) _,
                        matches = lateout(reg) matches,
                        asked = out(reg) _,
                        set = out(reg) _,
                        next = in(reg) four(next),
                        places = in(reg) four(places),
                        tags = in(reg) tags.as_ptr(),
                        keys = in(reg) four(keys),
                        options(readonly, nostack)
                    );
                }
                matches
            }
        }
    };
}

four!(AtomicU8, 4, "vpcmpeqb", "x", "xmmword");
four!(AtomicU16, 5, "vpcmpeqw", "y", "ymmword");
