//! The cache: what stands between a lookup and rows that are not all in memory.
#![deny(unsafe_code)]

pub mod fetch;
mod worker;

pub use worker::{Arrived, MISS, Tier, Worker};
