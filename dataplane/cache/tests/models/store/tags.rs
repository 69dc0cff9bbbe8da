//! The pass over tags, by the portable comparison.

#[path = "../../../src/store/tags/pass.rs"]
mod pass;
#[path = "../../../src/store/tags/portable.rs"]
mod portable;

use super::drawn::Drawn;
use super::extent::Sets;
use super::memory::Line;
pub(crate) use pass::MISS;

pub(super) fn find(lines: &[Line], sets: &impl Sets, rows: &[u32], places: &mut [u32]) -> usize {
    pass::find(
        portable::Portable,
        lines,
        sets,
        rows,
        places,
        &mut Drawn::nothing(),
    )
}
