//! What the control threads of ports have in common: queues to and from the lanes, wake-ups, schemas that are being bound,
//! bounded logs.

mod bell;
mod bind_call;
mod inbox;
mod letters;
mod log_limit;

pub(crate) use bell::Bell;
pub(crate) use bind_call::{BIND_LOOK, BindCall};
pub(crate) use inbox::{LaneSet, LaneShared};
pub(crate) use letters::Letters;
pub(crate) use log_limit::LogLimit;
