//! The atomics of the file on which readers of rows that change depend for seeing what was written.
//!
//! They are named here only, so that a model checker's can take their place: the models of the crate `cache` compile that very file
//! with a `sync` of their own.

pub(super) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
