//! A safe layer over libibverbs and librdmacm, through the crate `rdma-sys`.
//!
//! * [`Context`] is a device, chosen by [`Selector`]: the network device or address that it stands on.
//!
//! What can be said in types is: a buffer that the device may touch is moved away and comes back when it
//! no longer may. What can't be is asserted. Every limit is asked for, read back and logged
//! ([`Limits`]); nothing is taken for granted because soft-RoCE has it.
#![deny(unsafe_op_in_unsafe_fn)]

mod device;
mod error;
mod gid;
mod limits;
mod netdev;
mod parameters;
mod status;
mod sys;

pub use device::{Context, Selector};
pub use error::{Call, Error};
pub use gid::{GidEntry, GidKind, GidWanted, NoGid, choose_gid};
pub use limits::Limits;
pub use parameters::{AckTimeout, Parameters, PathMtu, RetryCount, RnrTimer};
pub use status::Status;
