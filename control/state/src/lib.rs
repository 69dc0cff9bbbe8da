//! What the control plane has to know after it was killed: records of a few kinds, in a file of redb's.
//!
//! Each change is one transaction: after a kill at any moment all of it is there or nothing, and what [`State::change`] has returned
//! from is there. A record is JSON with the version of its kind ([`Record`]), so that later versions read what earlier ones wrote. One
//! process at a time has a file open.
//!
//! Each start has an [epoch](State::epoch) larger than all before it: what is told to dataplanes is in the order of epochs, then of what
//! is counted within one.
#![forbid(unsafe_code)]

#[cfg(feature = "development")]
pub mod disk;
mod record;
mod state;

pub use record::{Fault, Record};
pub use state::{Change, State, StateError};
