//! What comparing the tags of a set means.

use super::super::memory::Line;
use super::super::sync::Ordering;
use super::pass::Probe;

/// A tag after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Portable;

impl Probe for Portable {
    #[inline(always)]
    fn matches(self, line: &Line, row: u32) -> u32 {
        line.iter().enumerate().fold(0, |matches, (way, tag)| {
            matches | u32::from(tag.load(Ordering::Relaxed) == row) << way
        })
    }
}
