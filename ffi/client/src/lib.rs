//! The client of a rowmill dataplane: jagged ids in, pooled vectors out.
//!
//! A [`Session`] is one connection. It binds a [`Schema`], registers memory for results and takes
//! [`Target`]s from it, and sends [`Batch`]es:
//!
//! ```no_run
//! use rowmill_client::{Batch, Client, Division, Options, Pooling, RequestOptions, Schema, Wait};
//!
//! let mut session = Client::connect("shm:/run/rowmill/demo.sock", Options::default())?;
//! let (schema, row_bytes) = Schema::side_by_side(256, [
//!     ("clicked", "items", Pooling::Sum, 128),
//!     ("country", "countries", Pooling::Mean, 128),
//! ]);
//! let schema = session.bind(schema)?;
//! let region = session.region(4 << 20)?;
//! let target = session.target(&region, 2 * row_bytes)?;
//!
//! let mut batch = Batch::new(2)?; // two bags a feature
//! batch.push(Division::Lengths(&[3, 1]), &[17u32, 4, 99, 5][..])?;
//! batch.push(Division::Offsets(&[0, 1, 1]), &[30u32][..])?;
//! let answer = session.lookup(&schema, &batch, target, &RequestOptions::default(), Wait::Block)?;
//! answer.outcome?;
//!
//! let mut vector = [0.0; 128];
//! session.read_vector(&answer.target, &schema, 0, 1, &mut vector);
//! session.release(answer.target);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Pipelined, with as many requests in flight as there are credits; the target of an answer is the
//! token for the next request:
//!
//! ```no_run
//! # use rowmill_client::{Batch, BoundSchema, Client, ClientError, ClientPort, RequestOptions, Session, Target};
//! fn pump<P: ClientPort>(session: &mut Session<P>, schema: &BoundSchema, batches: &[Batch], mut idle: Vec<Target>)
//! -> Result<(), ClientError> {
//!     let mut left = batches.iter();
//!     let mut next = left.next();
//!     while next.is_some() || session.pending() > 0 {
//!         if let (Some(batch), Some(target)) = (next, idle.pop()) {
//!             match session.submit(schema, batch, target, &RequestOptions::default()) {
//!                 Ok(_ticket) => next = left.next(),
//!                 Err(unsent) if unsent.error.would_block() => idle.extend(unsent.target),
//!                 Err(unsent) => return Err(unsent.into()),
//!             }
//!         }
//!         while let Some(answer) = session.poll()? {
//!             // answer.outcome tells whether the vectors lie in answer.target
//!             idle.push(answer.target);
//!         }
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # Who owns a target
//! Submitting moves the [`Target`] into the session. It comes back with the [`Answer`], after the
//! final completions of all parts, or when the connection is gone; a timeout or a cancel alone does
//! not bring it back, since a dataplane that was stopped and wakes may still write to it.
//!
//! # Threads
//! A session is used by one thread at a time. Threads that want to share a connection share a [`Hub`]: it takes results' memory
//! from a pool, and a [`Lease`] on it comes with each [`Reply`]. A [`Bell`] tells an event loop of them.
//!
//! # Memory
//! The session allocates when it connects, binds, registers, and when a request is larger than every
//! one before it; else `submit`, `poll`, `wait` and `lookup` allocate nothing. Ids are copied once, to
//! the frame or to the source region, so a batch can be filled anew as soon as it was submitted. A [`JaggedView`]
//! spares the copy into a batch, where the ids lie in memory of the caller's or of somebody else's.
#![deny(unsafe_code)]

mod answer;
mod batch;
mod connector;
mod device;
mod error;
mod flight;
mod frame;
mod hub;
mod memory;
mod narrow;
mod options;
mod ports;
mod prefetch;
mod requests;
mod schema;
mod session;
mod shape;
mod view;
mod waiting;

#[cfg(test)]
mod stand_in;
#[cfg(test)]
mod tests;

pub use answer::{Answer, Part, Slice, Ticket};
pub use batch::{Batch, Division, IdSlice};
pub use connector::Connector;
pub use device::{Gpu, GpuOptions, GpuOutput, GpuRegion, Staging, StreamFailure, Way};
pub use error::{BatchError, ClientError, Failure, Unsent};
pub use hub::{
    Bell, Canceller, Hub, HubOptions, Ids, Lease, Pending, Place, RegionMemory, Reply, Watcher,
};
pub use memory::{Region, Target};
#[cfg(feature = "rdma")]
pub use options::RdmaOptions;
pub use options::{Backoff, Options, RequestOptions, Retry, Wait};
pub use ports::{AnyPort, Client};
pub use rowmill_arena::{ReadWindow, Window};
/// CUDA's devices, contexts, streams and memory.
pub use rowmill_cuda as cuda;
#[cfg(feature = "rdma")]
pub use rowmill_port::rdma::{AckTimeout, ConnectionParameters, PathMtu, RetryCount, RnrTimer};
pub use rowmill_port::{ClientPort, Interrupt, PeerMemory, PortError, Process, spawn_quiet};
pub use rowmill_wire::control::{TableEntry, Welcome};
pub use rowmill_wire::limits::{MAX_BATCH, MAX_BLOCK_IDS, MAX_FEATURES, MAX_NAME};
pub use rowmill_wire::status::NOWHERE;
pub use rowmill_wire::{Feature, Output, Pooling, Refusal, Schema, Status};
pub use schema::BoundSchema;
pub use session::Session;
pub use view::{FeatureView, JaggedView, Numbers, ViewDivision};
pub use waiting::{RENAMED, has_renamed};
