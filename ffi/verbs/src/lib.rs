//! A safe layer over libibverbs and librdmacm, through the crate `rdma-sys`.
//!
//! * [`Context`] is a device, chosen by [`Selector`]: the network device or address that it stands on. [`DeviceWatch`]
//!   reads its asynchronous events.
//! * [`Registered`] owns memory that peers may access, in a [`ProtectionDomain`]. A [`Slab`] has [`Block`]s for what this
//!   side sends and receives.
//! * [`QueuePair`] takes blocks by a [`Batch`] of requests, and gives them back when a [`CompletionQueue`] has told
//!   that the device is done with them.
//! * [`EventChannel`], [`Listener`] and [`Resolving`] lead to a [`Connection`], with [`Parameters`] that are set before
//!   the first packet.
//!
//! What can be said in types is: a buffer that the device may touch is moved away and comes back when it
//! no longer may. What can't be is asserted. Every limit is asked for, read back and logged
//! ([`Limits`]); nothing is taken for granted because soft-RoCE has it.
//!
//! Posting, polling and taking back allocate nothing, take no lock of this crate and log nothing.
#![deny(unsafe_op_in_unsafe_fn)]

mod attributes;
mod completion;
mod connection;
mod create;
mod device;
mod domain;
mod error;
mod event_channel;
mod events;
mod export;
mod flight;
mod gid;
mod health;
mod host_memory;
mod limits;
mod list;
mod listener;
mod live;
mod memory;
mod netdev;
mod parameters;
mod peer;
mod post;
mod private_data;
mod queue;
mod queue_pair;
mod receive;
mod slab;
mod status;
mod sys;
mod work_id;

pub use attributes::{Attributes, Capacity, State};
pub use completion::{
    Completion, CompletionChannel, CompletionQueue, CompletionQueueHandle, CompletionQueueId,
};
pub use connection::{Connecting, Connection, Resolution, Resolved, Resolving};
pub use device::{Context, Selector};
pub use domain::ProtectionDomain;
pub use error::{Call, Error};
pub use event_channel::{CmEvent, CmEventKind, EventChannel, IdToken, Offer};
pub use events::{DeviceWatch, EventCounts};
pub use export::{Exported, Immutable};
pub use gid::{GidEntry, GidKind, GidWanted, NoGid, choose_gid};
pub use health::{Health, Trouble};
pub use host_memory::{HostMemory, Pages};
pub use limits::Limits;
pub use listener::{Listener, Request};
pub use live::Live;
pub use memory::{Access, Backing, Registered, RegisteredDmaBuf, Remote, dmabuf_support};
pub use parameters::{AckTimeout, Parameters, PathMtu, RetryCount, RnrTimer};
pub use peer::RegisteredPeer;
pub use post::{BATCH, Batch, Full, Local, Operation, Piece, Signal};
pub use private_data::{PeerData, PrivateData, RejectData, ReplyData, RequestData};
pub use queue::{Remains, Retired};
pub use queue_pair::{Foreign, LocalKey, QueuePair};
pub use slab::{Block, Slab, SlabRegistration};
pub use status::Status;
pub use work_id::{Kind, WorkId};
