//! The port over RDMA: client and dataplane on hosts with RDMA NICs (or soft-RoCE), over reliable connections.
//!
//! A client connects a control stream (SENDs of the messages of [`rowmill_wire::control`]) and one queue pair a lane. It
//! writes requests into the worker's slots with WRITE_WITH_IMM, and gets its results by WRITEs into the regions that
//! it registered, each announced by a status record, which a WRITE_WITH_IMM puts into its record ring behind them.
//!
//! `SPEC.md` in this folder has all of it for a second implementation.
//!
//! Who may touch what, and until when:
//! * A worker's queue pair is the worker's alone from [`Event::Attached`](crate::Event::Attached) until the poll after
//!   [`Event::Detached`](crate::Event::Detached); before and after it is the control thread's. All ids of the connection
//!   manager are the control thread's.
//! * A block that results are staged in is the worker's, then the queue pair's, and free when the WRITEs from it have
//!   completed or the queue pair has been destroyed.
//! * `Unregistered` is answered when every worker has let go of the region and what it had posted before has completed.
//! * A client's regions are its own again when it has destroyed all its queue pairs, which it does before it says
//!   [`PortError::Closed`](crate::PortError::Closed) or [`PortError::Lost`](crate::PortError::Lost), whatever the dataplane does.
//! * Nothing that a client does can block a worker or the control thread, or show in another client's memory: each has a
//!   protection domain of its own, and what it does not take from its queues costs it its connection.

mod admit;
mod answer;
pub mod bounds;
mod client;
mod client_lane;
mod client_open;
mod client_port;
mod client_raw;
mod config;
mod connect;
mod control;
mod ending;
pub mod endpoint;
mod failure;
mod inbox;
mod lane;
mod life;
mod link;
mod memory;
mod pool;
pub mod private_data;
mod progress;
pub mod remote;
mod scatter;
mod seat;
mod seats;
mod serve;
mod server;
mod session;
mod session_lane;
mod sleep;
pub mod stream;
mod turn;
mod watch;

pub use client::RdmaClient;
pub use config::{ConnectionParameters, RdmaClientConfig, RdmaConfig, kept_blocks};
pub use lane::RdmaLane;
pub use rowmill_verbs::{AckTimeout, Live, PathMtu, RetryCount, RnrTimer};
pub use server::{ConnectionInfo, RdmaCounters, RdmaServer};
