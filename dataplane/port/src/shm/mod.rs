//! The `shm` port: client and dataplane on one host, over sealed memfds.
//!
//! A client connects to the endpoint's Unix socket and talks to the server's control thread in the
//! messages of [`rowmill_wire::control`]. It gets a memfd with rings and request slots for every lane
//! (see [`layout`]), and registers memfds of its own as regions. From then on client and workers meet in
//! memory only: no locks, no allocation, and no system call but to wake a side that sleeps.
//!
//! `SPEC.md` in this folder has all of it for a second implementation.
//!
//! Who may touch what, and until when:
//! * A worker reaches a client's memory only through what it holds of the connection. It lets go in the
//!   poll after [`Event::RegionGone`](crate::Event::RegionGone) or
//!   [`Event::Detached`](crate::Event::Detached), and tells the control thread.
//! * `Unregistered` is answered when every worker has let go of the region and it is unmapped.
//! * The stream is closed when every worker has let go of the connection and its regions are unmapped,
//!   also when the client was cut off; if the process dies, the kernel closes it after its last thread
//!   has ended. So a client that sees its stream closed owns all its memory again, and one that does not,
//!   after whatever time, does not.
//! * Nothing that a client does to its memory, its rings, its descriptors or its stream can block a
//!   worker or the control thread, or show in another client's memory.

mod answer;
mod block;
mod client;
mod control;
mod dispose;
mod endpoint;
mod handoff;
mod inbox;
mod lane;
pub mod layout;
mod rings;
mod server;
mod session;
mod stream;
mod wake;

pub use client::{RawLane, ShmClient, ShmClientConfig};
pub use endpoint::socket_path;
pub use lane::ShmLane;
pub use server::{ConnectionInfo, ShmConfig, ShmCounters, ShmServer};
