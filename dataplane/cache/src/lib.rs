//! The cache of tables whose rows don't all fit the arena.
//!
//! [`store`] keeps rows in slots of the arena, found by all workers without a lock and changed by one writer a shard. [`fetch`]
//! knows which rows are on their way and which bags wait for them, and [`tier`] fetches them. Which rows are
//! kept is said by [`rowmill_policy`]. [`Worker`] is all of it for one worker; [`workers()`] makes those of a dataplane, which ask one another for rows of
//! shards that they don't write. [`warm`] keeps a list of the rows that are there for the next start.
//!
//! Nothing here knows requests, ports or clocks.
#![deny(unsafe_code, unsafe_op_in_unsafe_fn)]

mod ahead;
pub mod fetch;
pub mod figures;
mod home;
mod later;
mod moves;
mod owners;
mod parker;
mod pins;
mod quotas;
mod samples;
mod sides;
pub mod store;
mod table;
pub mod tier;
mod touching;
pub mod warm;
mod warming;
mod worker;
mod workers;

pub use parker::Parker;
pub use pins::{Pins, Rules};
pub use samples::{Sample, Samples};
pub use sides::SIDES;
pub use table::{CachedTable, OnFailure};
pub use warming::WarmRows;
pub use worker::{Counters, Worker};
pub use workers::{Options, Parts, Shares, TableOptions, workers, workers_with_shares};
