//! The cache of a table whose rows don't all fit the arena.
//!
//! [`store`] keeps rows in slots of the arena, found by all workers without a lock and changed by one writer a shard.
//! [`policy`] says which rows are kept.
//!
//! Nothing here knows requests, ports or clocks.
#![deny(unsafe_code, unsafe_op_in_unsafe_fn)]

pub mod policy;
pub mod store;
