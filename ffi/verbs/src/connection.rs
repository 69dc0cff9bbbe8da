//! The side that connects, and connections of both sides.
//!
//! Queue pairs are made and moved through their states here, not by librdmacm: so every attribute is set before
//! the first packet, where librdmacm would begin with a receiver-not-ready timer of 655 ms and infinite retries.

use core::ffi::c_int;
use core::mem;
use core::ptr;
use std::net::SocketAddr;
use std::time::Duration;

use crate::attributes::State;
use crate::device::Context;
use crate::error::{Call, Error};
use crate::event_channel::{CmEvent, CmEventKind, CmId, EventChannel, IdToken, Offer};
use crate::netdev::CAddress;
use crate::parameters::Parameters;
use crate::private_data::RequestData;
use crate::queue_pair::QueuePair;
use crate::sys;
use crate::sys::ibv_qp_attr_mask as mask;

/// An attempt to connect whose address and route are being resolved.
#[derive(Debug)]
pub struct Resolving {
    id: CmId,
    timeout: Duration,
}

/// How far an attempt has got.
#[derive(Debug)]
pub enum Resolution {
    /// Another event is needed.
    Waiting(Resolving),
    /// The peer can be connected to.
    Ready(Resolved),
}

impl Resolving {
    /// Begins to look for the way to `to`, from `from` where that is given, with `timeout` for each of the two steps.
    ///
    /// # Errors
    /// A failed call: no RDMA device leads there.
    pub fn start(
        channel: &EventChannel,
        from: Option<SocketAddr>,
        to: SocketAddr,
        timeout: Duration,
        parameters: &Parameters,
    ) -> Result<Resolving, Error> {
        let mut id = CmId::new(channel)?;
        if let Some(class) = parameters.traffic_class {
            id.set_option(sys::RDMA_OPTION_ID_TOS, class)?;
        }
        // It is set on the queue pair as well; here it makes the peer's side, if it takes the connection manager's
        // word for it, and the manager's own retries follow. Older kernels don't have the option.
        let exponent = parameters.ack_timeout.exponent();
        if let Err(error) = id.set_option(sys::RDMA_OPTION_ID_ACK_TIMEOUT, exponent) {
            tracing::debug!(%error, "the connection manager keeps its own ACK timeout");
        }
        let mut from = from.map(CAddress::from);
        let mut c = CAddress::from(to);
        // SAFETY: the id and both addresses are valid for the call; the first may be null.
        sys::check(Call::ResolveAddr, unsafe {
            let from = from.as_mut().map_or(ptr::null_mut(), CAddress::as_ptr);
            sys::rdma_resolve_addr(id.raw(), from, c.as_ptr(), milliseconds(timeout))
        })
        .map_err(|error| error.context(to))?;
        Ok(Resolving { id, timeout })
    }

    /// What events about it name.
    pub fn token(&self) -> IdToken {
        self.id.token()
    }

    /// Takes the next step with an event about it.
    ///
    /// # Errors
    /// [`Error::CmEvent`] if a step has failed; a failed call.
    ///
    /// # Panics
    /// If the event is about another id.
    pub fn advance(self, event: &CmEvent) -> Result<Resolution, Error> {
        assert_eq!(event.id, self.id.token(), "an event about this id");
        match event.kind {
            CmEventKind::AddressResolved => {
                // SAFETY: the id's address is resolved.
                sys::check(Call::ResolveRoute, unsafe {
                    sys::rdma_resolve_route(self.id.raw(), milliseconds(self.timeout))
                })?;
                Ok(Resolution::Waiting(self))
            }
            CmEventKind::RouteResolved => Ok(Resolution::Ready(Resolved { id: self.id })),
            _ => Err(event.as_error()),
        }
    }
}

/// A way to a peer that can be connected to, once.
///
/// ```compile_fail,E0382
/// use rowmill_verbs::*;
/// fn twice(way: Resolved, qp: &mut QueuePair<u8>, parameters: &Parameters) -> Result<(), Error> {
///     let first = way.connect(qp, parameters, &RequestData::none())?;
///     let second = way.connect(qp, parameters, &RequestData::none())?;
///     Ok(())
/// }
/// ```
/// ```
/// use rowmill_verbs::*;
/// fn twice(
///     way: Resolved,
///     other: Resolved,
///     qp: &mut QueuePair<u8>,
///     parameters: &Parameters,
/// ) -> Result<(), Error> {
///     let first = way.connect(qp, parameters, &RequestData::none())?;
///     let second = other.connect(qp, parameters, &RequestData::none())?;
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Resolved {
    id: CmId,
}

impl Resolved {
    /// What events about it, and about the connection that it becomes, name.
    pub fn token(&self) -> IdToken {
        self.id.token()
    }

    /// The address that it goes out from: what to open the device by where `from` was not given.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.id.local_address()
    }

    /// Whether it goes out by this device.
    pub fn is_on(&self, context: &Context) -> bool {
        self.id.is_on(context)
    }

    /// Makes a queue pair ready for receives to be posted, which has to happen before it connects.
    ///
    /// # Errors
    /// A failed call.
    ///
    /// # Panics
    /// If the queue pair is of another device or not in the state [`State::Reset`].
    pub fn initialise<T>(
        &mut self,
        qp: &mut QueuePair<T>,
        parameters: &Parameters,
    ) -> Result<(), Error> {
        initialise(&self.id, qp, parameters)
    }

    /// Asks the peer to connect with a queue pair that was initialised.
    ///
    /// # Errors
    /// A failed call.
    ///
    /// # Panics
    /// If the queue pair is of another device or not in the state [`State::Init`].
    pub fn connect<T>(
        self,
        qp: &mut QueuePair<T>,
        parameters: &Parameters,
        private_data: &RequestData,
    ) -> Result<Connecting, Error> {
        assert_eq!(
            qp.state(),
            State::Init,
            "receives are posted before connecting"
        );
        assert!(self.id.is_on(qp.context()), "one device");
        let agreed = Agreed::of(parameters);
        let mut c = agreed.to_c(qp.number(), private_data.as_slice());
        // SAFETY: the id is resolved; the parameters and the bytes they point to are valid.
        sys::check(Call::Connect, unsafe {
            sys::rdma_connect(self.id.raw(), &mut c)
        })?;
        Ok(Connecting { id: self.id })
    }
}

/// A request to connect that the peer has not answered yet. Its retries take about a minute: have a deadline of one's
/// own. Dropped, it is given up.
#[derive(Debug)]
pub struct Connecting {
    id: CmId,
}

impl Connecting {
    /// What events about it name.
    pub fn token(&self) -> IdToken {
        self.id.token()
    }

    /// Ends connecting with the peer's answer: makes the queue pair ready and confirms.
    ///
    /// # Errors
    /// [`Error::CmEvent`] if the peer does not accept; a failed call. The id is gone; destroy the queue pair.
    ///
    /// # Panics
    /// If the event is about another id, or the queue pair not the one it was begun with.
    pub fn establish<T>(
        mut self,
        event: &CmEvent,
        qp: &mut QueuePair<T>,
        parameters: &Parameters,
    ) -> Result<Connection, Error> {
        assert_eq!(event.id, self.id.token(), "an event about this id");
        if !matches!(event.kind, CmEventKind::ConnectResponse) {
            return Err(event.as_error());
        }
        bring_up(&mut self.id, qp, &answer_to(&event.offer, parameters))?;
        // SAFETY: the id has the peer's answer.
        sys::check(Call::Establish, unsafe {
            sys::rdma_establish(self.id.raw())
        })?;
        Ok(Connection { id: self.id })
    }
}

/// A connection. Dropped, it ends, which the peer is told; a queue pair that was not failed before goes on until then.
///
/// Any event about it but [`Established`](CmEventKind::Established), [`AddressChange`](CmEventKind::AddressChange) and
/// [`TimewaitExit`](CmEventKind::TimewaitExit) is its end. A peer that dies early is told of by [`Rejected`](CmEventKind::Rejected) instead of
/// [`Disconnected`](CmEventKind::Disconnected); one that loses its network by nothing at all.
#[derive(Debug)]
pub struct Connection {
    id: CmId,
}

impl Connection {
    pub(crate) fn new(id: CmId) -> Connection {
        Connection { id }
    }

    /// What events about it name.
    pub fn token(&self) -> IdToken {
        self.id.token()
    }

    /// Where the peer is.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.id.peer_address()
    }

    /// This side's address.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.id.local_address()
    }

    /// Tells the peer that it ends. Fail the queue pair first: this does not. It is fine to say it twice, or after the
    /// peer has.
    ///
    /// # Errors
    /// A failed call.
    pub fn disconnect(&mut self) -> Result<(), Error> {
        // SAFETY: the id exists.
        let answer = unsafe { sys::rdma_disconnect(self.id.raw()) };
        match sys::check(Call::Disconnect, answer) {
            // It has ended already.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
            other => other,
        }
    }
}

fn milliseconds(timeout: Duration) -> c_int {
    c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX)
}

/// What a connection's queue pair is set to: this side's parameters, with as many READs as the peer agrees to.
pub(crate) struct Agreed<'p> {
    parameters: &'p Parameters,
    reads_in_flight: u8,
    reads_answered: u8,
}

impl<'p> Agreed<'p> {
    fn of(parameters: &'p Parameters) -> Agreed<'p> {
        Agreed {
            parameters,
            reads_in_flight: parameters.reads_in_flight,
            reads_answered: parameters.reads_answered,
        }
    }

    pub(crate) fn to_c(&self, queue_pair: u32, private_data: &[u8]) -> sys::rdma_conn_param {
        sys::rdma_conn_param {
            private_data: match private_data {
                [] => ptr::null(),
                bytes => bytes.as_ptr().cast(),
            },
            private_data_len: private_data.len() as u8,
            responder_resources: self.reads_answered,
            initiator_depth: self.reads_in_flight,
            flow_control: 1,
            retry_count: self.parameters.retries.count(),
            rnr_retry_count: self.parameters.rnr_retries.count(),
            srq: 0,
            qp_num: queue_pair,
        }
    }
}

/// This side's parameters with the peer's offer.
pub(crate) fn answer_to<'p>(offer: &Offer, parameters: &'p Parameters) -> Agreed<'p> {
    Agreed {
        parameters,
        reads_in_flight: parameters.reads_in_flight.min(offer.reads_answered),
        reads_answered: parameters.reads_answered.min(offer.reads_wanted),
    }
}

/// What the connection manager knows of the attributes for a state.
fn attributes(id: &CmId, state: u32) -> Result<(sys::ibv_qp_attr, c_int), Error> {
    // SAFETY: attributes are plain numbers, for which zero is valid.
    let mut attr: sys::ibv_qp_attr = unsafe { mem::zeroed() };
    let mut known = 0;
    attr.qp_state = state;
    // SAFETY: the id exists, both places are valid.
    sys::check(Call::InitQpAttr, unsafe {
        sys::rdma_init_qp_attr(id.raw(), &mut attr, &mut known)
    })?;
    attr.qp_state = state;
    Ok((attr, known))
}

/// Reset to Init, with no more rights for the peer than the parameters say.
pub(crate) fn initialise<T>(
    id: &CmId,
    qp: &mut QueuePair<T>,
    parameters: &Parameters,
) -> Result<(), Error> {
    assert_eq!(qp.state(), State::Reset, "a new queue pair");
    assert!(id.is_on(qp.context()), "one device");
    let (mut attr, known) = attributes(id, sys::ibv_qp_state::IBV_QPS_INIT)?;
    let write = if parameters.remote_write { 2 } else { 0 };
    let read = if parameters.reads_answered > 0 { 4 } else { 0 };
    // IBV_ACCESS_REMOTE_WRITE and IBV_ACCESS_REMOTE_READ; local writing is always allowed.
    attr.qp_access_flags = write | read;
    qp.modify(&mut attr, known | mask::IBV_QP_ACCESS_FLAGS.0 as c_int)
}

/// Init to ready to receive to ready to send, then reads back what the device made of it.
pub(crate) fn bring_up<T>(
    id: &mut CmId,
    qp: &mut QueuePair<T>,
    agreed: &Agreed<'_>,
) -> Result<(), Error> {
    assert_eq!(
        qp.state(),
        State::Init,
        "a queue pair with its receives posted"
    );
    assert!(id.is_on(qp.context()), "one device");
    let parameters = agreed.parameters;
    let (mut attr, known) = attributes(id, sys::ibv_qp_state::IBV_QPS_RTR)?;
    if let Some(most) = parameters.path_mtu {
        attr.path_mtu = attr.path_mtu.min(most as u32);
    }
    if let Some(class) = parameters.traffic_class {
        attr.ah_attr.grh.traffic_class = class;
    }
    attr.min_rnr_timer = parameters.rnr_timer.code();
    attr.max_dest_rd_atomic = agreed.reads_answered;
    let ours = mask::IBV_QP_MIN_RNR_TIMER | mask::IBV_QP_MAX_DEST_RD_ATOMIC;
    qp.modify(&mut attr, known | ours.0 as c_int)?;

    let (mut attr, known) = attributes(id, sys::ibv_qp_state::IBV_QPS_RTS)?;
    attr.timeout = parameters.ack_timeout.exponent();
    attr.retry_cnt = parameters.retries.count();
    attr.rnr_retry = parameters.rnr_retries.count();
    attr.max_rd_atomic = agreed.reads_in_flight;
    let ours = mask::IBV_QP_TIMEOUT
        | mask::IBV_QP_RETRY_CNT
        | mask::IBV_QP_RNR_RETRY
        | mask::IBV_QP_MAX_QP_RD_ATOMIC;
    qp.modify(&mut attr, known | ours.0 as c_int)?;

    let is = qp.query()?;
    tracing::debug!(number = qp.number(), ?is, "queue pair connected");
    let as_asked = is.ack_timeout == parameters.ack_timeout.exponent()
        && is.retries == parameters.retries.count()
        && is.rnr_retries == parameters.rnr_retries.count()
        && is.rnr_timer == parameters.rnr_timer.code();
    if !as_asked {
        tracing::warn!(number = qp.number(), asked = ?parameters, ?is, "the device changed timeouts or retries");
    }
    Ok(())
}
