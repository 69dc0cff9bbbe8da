//! The atomics, fences and queues of the files on which two threads depend for being woken and for seeing what the other
//! wrote: `shm/handoff.rs`, `shm/rings.rs`, `control/letters.rs`.
//!
//! They are named here only, so that a model checker's can take their place: `tests/models` compiles those very files
//! with a `sync` of its own.

pub(crate) use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
pub(crate) use crossbeam_queue::ArrayQueue;
