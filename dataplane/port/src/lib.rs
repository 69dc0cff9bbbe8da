//! The port contract: what a dataplane worker and a client ask of a transport, and the transports.
//!
//! All ports have the same one-sided meaning: place bytes at an offset of a region that the client
//! registered, then announce. A port never looks into rows; it moves frames, grants access to
//! registered memory and announces completions. [`ServerPort`] is one worker's half, [`ClientPort`]
//! one session's. [`conformance`] is the suite that every pair has to pass.
//!
//! Ordering, the same for every port: what a client wrote to its regions before [`ClientPort::submit`]
//! is visible to the worker after the [`Event::Request`] (where data are fetched, after
//! [`Event::Fetched`]); what the worker placed before [`ServerPort::complete`] is visible to the client after [`ClientPort::poll`] gave that record.
#![deny(unsafe_op_in_unsafe_fn)]

mod calls;
pub mod conformance;
mod contract;
mod control;
mod fork;
mod patience;
mod quiet;
#[cfg(feature = "rdma")]
pub mod rdma;
mod reconnect;
mod rest;
pub mod shm;
pub mod sim;
mod slots;
mod sync;
mod ticks;

pub use contract::{
    Bound, ClientPort, ConnId, Event, Extent, Fetch, Foreign, Idle, Lost, MAX_EXTENTS, PeerMemory,
    PendingBind, PortError, RegionError, RegionId, RoomError, ServerPort, Service, Waker,
};
pub use fork::{MAX_LISTED, ParentFd, Process};
pub use patience::Interrupt;
pub use quiet::spawn_quiet;
pub use reconnect::Backoff;
pub use rest::{Rest, WakeFds};
