//! The engine: one worker's requests from frame to completion, pure.
//!
//! It has no sockets, no clock and no threads, and after [`Engine::new`] it does not allocate. Events
//! come in as method calls with the time as an argument, memory of clients is reached through the
//! [`Memory`] given to each call, and completions are taken out with [`Engine::poll_completion`]. So
//! the same engine serves every port and the seeded simulation.
//!
//! A request passes through: [`accept`](Engine::request) (parse, check against schema and limits,
//! copy the lengths), checking (copy the ids, bound those of dense tables and resolve those of hashed ones
//! to rows, in bounded steps), pooling (micro-batches straight into the target), completion. A request
//! that is refused is refused before any row is read. Ids that come inline are checked when the frame is
//! accepted, others while the request before theirs is pooled: so keys are looked up a request ahead.
#![forbid(unsafe_code)]

mod accept;
mod batch;
mod bind;
mod copy;
mod engine;
mod limits;
mod memory;
mod rows;
mod schedule;
mod slot;

pub use bind::{BoundFeature, BoundSchema, bind};
pub use engine::{Counters, Engine, ProtocolError, Turn};
pub use limits::Limits;
pub use memory::{Conn, Memory};
pub use rows::rows;
