//! Messages of the rowmill protocol as checked views and plain values.
//!
//! `SPEC.md` beside this crate gives every byte. A message that comes from a peer is a claim: `parse`
//! functions check everything that can be checked from the bytes alone and return a [`Refusal`] that
//! names the status to answer with. Whatever can be constructed can be encoded and parsed back.
//!
//! - [`request`]: frames of the data path, at most [`limits::SLOT_BYTES`] long
//! - [`completion`]: the status record that announces a result, and its 32-bit immediate
//! - [`control`]: connection set-up, schemas, regions
#![forbid(unsafe_code)]

mod codec;
pub mod completion;
pub mod control;
pub mod immediate;
pub mod limits;
pub mod request;
pub mod schema;
pub mod split;
pub mod status;

pub use completion::{Completion, CompletionKind};
pub use immediate::Immediate;
pub use request::{Element, FeatureSpan, Op, Place, Request, Segment};
pub use schema::{Feature, Output, Pooling, Schema};
pub use split::SplitRule;
pub use status::{Refusal, Status};
