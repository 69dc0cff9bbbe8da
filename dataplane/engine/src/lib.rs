//! The engine: one worker's requests from frame to completion, pure.
//!
//! It has no sockets, no clock and no threads, and after [`Engine::new`] it does not allocate. Events
//! come in as method calls with the time as an argument, memory of clients is reached through the
//! [`Memory`] given to each call, and completions are taken out with [`Engine::poll_completion`]. So
//! the same engine serves every port and the seeded simulation.
//!
//! A request passes through: [`accept`](Engine::request) (parse, check against schema and limits),
//! fetching (where what it has in regions of the client is not readable at once; then the lengths are copied),
//! checking (copy the ids, bound those of dense tables and resolve those of hashed ones to rows, in bounded
//! steps), pooling (micro-batches into staging, which is the target itself where that can be stored to, and
//! which is placed run by run), completion. A request that is refused is refused before any row is read. Ids that come inline are checked when the frame is
//! accepted, others while the request before theirs is pooled: so keys are looked up a request ahead.
#![forbid(unsafe_code)]

mod accept;
mod ahead;
mod answer;
mod batch;
mod bind;
mod cached;
mod copy;
mod crowd;
mod engine;
mod fetch;
mod generations;
mod limits;
mod memory;
mod parked;
mod piece;
mod prefetch;
mod ready;
mod rows;
mod schedule;
mod slot;
mod step;
mod turn;

pub use answer::Counters;
pub use bind::{BoundFeature, BoundSchema, bind};
pub use cached::{Home, SideTier};
pub use engine::{Engine, ProtocolError};
pub use generations::{HELD, Side};
pub use limits::Limits;
pub use memory::{Conn, Denied, EXTENTS_MAX, Extent, Fetch, Memory, STAGE_BYTES_MIN};
pub use rows::rows;
pub use turn::Turn;
