//! The atomics of [`bell`](super::bell), named here only, so that a model checker's can take their place in `tests/models`.

pub(super) use core::sync::atomic::{AtomicU8, Ordering};
