//! What comparing the tags of a set means: a tag after the other.
#![allow(unsafe_code)]

use super::super::memory::Line;
use super::super::sync::Ordering;
use super::pass::{self, Block, Probe};

/// Any machine's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Portable;

impl Probe for Portable {
    #[inline(always)]
    unsafe fn look_at(self, lines: &[Line], rows: &Block, places: &mut Block, next: &Block) -> u32 {
        // SAFETY: the caller's contract.
        unsafe { pass::look_at_each(matches, lines, rows, places, next) }
    }
}

/// The ways whose tags are `row`, a bit each.
#[inline(always)]
fn matches(line: &Line, row: u32) -> u32 {
    line.iter().enumerate().fold(0, |matches, (way, tag)| {
        matches | u32::from(tag.load(Ordering::Relaxed) == row) << way
    })
}
