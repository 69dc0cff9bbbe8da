//! The atomics of the files on which workers and writers depend for seeing what the others wrote.
//!
//! They are named here only, so that a model checker's can take their place: `tests/models` compiles those very files with a
//! `sync` and a `memory` of its own.

pub(super) use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering, fence};

/// Which has atomics of its own.
pub(super) use rowmill_table::StandIns;
