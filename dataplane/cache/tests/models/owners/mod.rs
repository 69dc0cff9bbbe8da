//! The bell of `src/owners`.

#[path = "../../../src/owners/bell.rs"]
pub(crate) mod bell;
mod sync;
