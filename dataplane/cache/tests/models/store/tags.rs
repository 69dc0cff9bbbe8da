//! The pass over tags, by the portable comparison.

#[path = "../../../src/store/tags/pass.rs"]
mod pass;
#[path = "../../../src/store/tags/portable.rs"]
mod portable;

use super::memory::Line;
use super::spread::Spread;
pub(crate) use pass::MISS;

pub(crate) fn find(lines: &[Line], spread: &Spread, rows: &[u32], places: &mut [u32]) -> usize {
    pass::find(portable::Portable, lines, spread, rows, places)
}
