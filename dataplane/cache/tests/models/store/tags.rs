//! The pass over tags, by the portable comparison.

#[path = "../../../src/store/tags/pass.rs"]
mod pass;
#[path = "../../../src/store/tags/portable.rs"]
mod portable;

use super::drawn::Drawn;
use super::extent::Sets;
use super::key::Tag;
use super::memory::SetTags;
pub(crate) use pass::MISS;

pub(super) fn find<T: Tag>(
    tags: &[SetTags<T>],
    sets: &impl Sets,
    rows: &[u32],
    places: &mut [u32],
) {
    pass::find(
        portable::Portable,
        tags,
        sets,
        rows,
        places,
        &mut Drawn::nothing(),
    );
}
