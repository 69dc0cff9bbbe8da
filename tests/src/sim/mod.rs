//! The seeded simulation of the whole service.
//!
//! Workers (`rowmilld`'s own steps around the engine) and clients (the client library, clients that
//! speak the protocol by hand, and hostile ones) live on one fake clock over the port `sim`. A seed
//! decides everything. The [`ledger`] follows the port's log and knows who owns which bytes; every
//! answer is compared with the scalar reference, from what the worker has read and again from what the
//! client has sent. Half of the worlds have workers that can't reach the memory of clients, over links that place late,
//! fall silent and fail (`rowmill_port::sim::Link` says what is simulated of them and what is not): there every byte that
//! reaches a client is checked when it does. In some worlds tables become cached and resident again, generations come and go, [`policies`] say what is kept, rows come from another dataplane's
//! memory that can be reached only at times, and deltas
//! change rows of tables that are resident ([`deltas`]); in some the [`process`] is killed, and another takes its place, which loads the rows that were hot ([`warm`]); the [`history`] knows what each row may be by then. At the end nothing may be left: no request, slot, block or fetched data.
//! [`planted`] mistakes show that the checks find what they are for.

mod books;
mod crowd;
pub mod dataplane;
pub mod deltas;
mod disk;
mod draws;
mod exporter;
pub mod flight;
pub mod frames;
pub mod generations;
pub mod history;
pub mod ledger;
pub mod model;
pub mod moves;
pub mod patron;
pub mod planted;
pub mod policies;
pub mod process;
pub mod records;
pub mod service;
mod shelf;
pub mod story;
mod strand;
pub mod stranger;
pub mod warm;
mod watched;
pub mod world;

pub use planted::Mistake;
pub use process::{Changes, Kills, Strains};
pub use warm::WarmTally;
pub use world::{Failed, Outcome, run};
