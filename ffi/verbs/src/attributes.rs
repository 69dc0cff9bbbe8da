//! What a queue pair can hold, its states, and its attributes.

use core::ffi::c_int;
use core::mem;

use crate::error::{Call, Error};
use crate::parameters::PathMtu;
use crate::sys;

/// What a queue pair is asked to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Work requests in the send queue: WRITEs, READs and SENDs that are not known to be done.
    pub sends: u32,
    /// Receives.
    pub receives: u32,
    /// Pieces of local memory that one WRITE, READ or SEND can name; at least 1.
    pub pieces: u32,
    /// Bytes that can be sent without registered memory. Where the device grants fewer it is asked for 64, then
    /// for none; [`QueuePair::inline_bytes`](crate::QueuePair::inline_bytes) tells.
    pub inline_bytes: u32,
}

/// The states of a queue pair that this crate uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Just made.
    Reset,
    /// Receives can be posted.
    Init,
    /// Receives; sends can't be posted yet.
    ReadyToReceive,
    /// Sends and receives.
    ReadyToSend,
    /// Failed: what was posted, and what is posted now, completes as flushed.
    Error,
    /// One that is not used here.
    Other(u32),
}

impl State {
    pub(crate) fn from_raw(raw: u32) -> State {
        match raw {
            sys::ibv_qp_state::IBV_QPS_RESET => State::Reset,
            sys::ibv_qp_state::IBV_QPS_INIT => State::Init,
            sys::ibv_qp_state::IBV_QPS_RTR => State::ReadyToReceive,
            sys::ibv_qp_state::IBV_QPS_RTS => State::ReadyToSend,
            sys::ibv_qp_state::IBV_QPS_ERR => State::Error,
            other => State::Other(other),
        }
    }
}

/// What the device has a queue pair's attributes at, read back from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Its state: the device may know of an error before the program does.
    pub state: State,
    /// Exponent of the ACK timeout.
    pub ack_timeout: u8,
    /// Retries without an acknowledgement.
    pub retries: u8,
    /// Retries to a receiver that is not ready.
    pub rnr_retries: u8,
    /// Code of the timer that senders are asked to wait when this side is not ready.
    pub rnr_timer: u8,
    /// The path's MTU.
    pub path_mtu: Option<PathMtu>,
    /// READs that may be in flight.
    pub reads_in_flight: u8,
    /// READs of the peer that may be in flight.
    pub reads_answered: u8,
    /// The traffic class of its packets.
    pub traffic_class: u8,
    /// The peer's queue pair.
    pub peer: u32,
}

impl Attributes {
    /// Asks the device.
    ///
    /// # Safety
    /// The queue pair must be valid.
    pub(crate) unsafe fn query(raw: *mut sys::ibv_qp) -> Result<Attributes, Error> {
        use sys::ibv_qp_attr_mask as mask;
        let wanted = mask::IBV_QP_STATE
            | mask::IBV_QP_TIMEOUT
            | mask::IBV_QP_RETRY_CNT
            | mask::IBV_QP_RNR_RETRY
            | mask::IBV_QP_MIN_RNR_TIMER
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_MAX_QP_RD_ATOMIC
            | mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | mask::IBV_QP_AV
            | mask::IBV_QP_DEST_QPN;
        // SAFETY: both structs are plain numbers and null pointers, for which zero is valid; the queue
        // pair is valid by the caller's promise.
        let attr = unsafe {
            let mut attr: sys::ibv_qp_attr = mem::zeroed();
            let mut init: sys::ibv_qp_init_attr = mem::zeroed();
            let wanted = wanted.0 as c_int;
            let answer = sys::ibv_query_qp(raw, &mut attr, wanted, &mut init);
            sys::check(Call::QueryQp, answer)?;
            attr
        };
        Ok(Attributes {
            state: State::from_raw(attr.qp_state),
            ack_timeout: attr.timeout,
            retries: attr.retry_cnt,
            rnr_retries: attr.rnr_retry,
            rnr_timer: attr.min_rnr_timer,
            path_mtu: PathMtu::from_raw(attr.path_mtu),
            reads_in_flight: attr.max_rd_atomic,
            reads_answered: attr.max_dest_rd_atomic,
            traffic_class: attr.ah_attr.grh.traffic_class,
            peer: attr.dest_qp_num,
        })
    }
}
