//! `rowmilld`, the polling service: configuration, workers, metrics, and the start and end of it all.
//!
//! [`worker`] is the loop between the pure engine and a port, [`service`] answers control messages,
//! [`serve`] puts a service together and takes it down. A worker's thread shares nothing with the
//! others but its [`mailbox`] (in) and its [`figures`] (out), both without locks.
//!
//! Not here, by intent: how a policy comes about ([`control`] does what one says), async runtimes. What a client may do to the service is
//! decided in the engine and the port.
#![forbid(unsafe_code)]

pub mod admin;
pub mod cache;
pub mod cache_view;
mod change_page;
mod claim;
pub mod clock;
pub mod config;
pub mod control;
pub mod deltas;
pub mod descriptors;
pub mod figures;
mod files;
pub mod generations;
mod interrupts;
pub mod listed;
pub mod log;
pub mod mailbox;
mod metrics;
pub mod overview;
mod own_parts;
pub mod places;
pub mod plan;
pub mod ports;
mod progress;
pub mod remote;
mod room;
mod seats;
pub mod serve;
pub mod service;
pub mod share;
mod tiers;
pub mod turnover;
mod waiting;
pub mod warm;
pub mod worker;
