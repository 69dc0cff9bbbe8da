//! What comparing the tags of a set means: a tag after the other.
#![allow(unsafe_code)]

use super::super::key::Tag;
use super::super::memory::SetTags;
use super::super::sync::Ordering;
use super::pass::{self, Block, Probe};

/// Any machine's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Portable;

impl<T: Tag> Probe<T> for Portable {
    #[inline(always)]
    unsafe fn look_at(
        self,
        tags: &[SetTags<T>],
        keys: &Block,
        places: &mut Block,
        next: &Block,
    ) -> u32 {
        // SAFETY: the caller's contract.
        unsafe { pass::look_at_each::<1, T>(matches, tags, keys, places, next) }
    }
}

/// The ways whose tags are the key's, a bit each.
#[inline(always)]
fn matches<T: Tag>(tags: &SetTags<T>, key: u32) -> u64 {
    tags.iter().enumerate().fold(0, |matches, (way, tag)| {
        let of_row = tag.key(Ordering::Relaxed).wrapping_mul(T::FILL);
        matches | u64::from(of_row == key) << way
    })
}
