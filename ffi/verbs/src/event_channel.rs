//! Ids of the connection manager, and the channel that its events come by.

use core::mem;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU64, Ordering};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use crate::device::Context;
use crate::error::{Call, Error};
use crate::listener::Request;
use crate::live;
use crate::netdev::{CAddress, from_c};
use crate::private_data::PeerData;
use crate::sys;
use crate::sys::rdma_cm_event_type as raw;

/// Tells an id of the connection manager from all others of the process, former ones included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdToken(u64);

static NEXT_TOKEN: AtomicU64 = AtomicU64::new(1);

/// A channel by which events of ids come, whose calls never block. Cloning it is cheap; ids keep it open.
///
/// An event is copied out and acknowledged in one go, and no id of the channel is destroyed meanwhile. So destroying
/// an id never waits for an event that somebody holds, and no event is of an id that is gone when it is taken. One
/// that is taken and then outlives its id names a token that leads nowhere.
#[derive(Clone)]
pub struct EventChannel {
    inner: Arc<Channel>,
}

struct Channel {
    raw: NonNull<sys::rdma_event_channel>,
    // Held while an event is taken and while an id is destroyed.
    taking: Mutex<()>,
}

// SAFETY: librdmacm allows calls on one channel from any thread; the two that must not meet are under the lock.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

/// What an event says.
#[derive(Debug)]
#[non_exhaustive]
pub enum CmEventKind {
    /// The address leads to a device.
    AddressResolved,
    /// It does not.
    AddressError,
    /// The way to the peer is known.
    RouteResolved,
    /// There is none.
    RouteError,
    /// A peer wants to connect to a listener.
    ConnectRequest(Box<Request>),
    /// The peer accepts; this side is to make its queue pair ready and confirm.
    ConnectResponse,
    /// Connecting failed.
    ConnectError,
    /// The peer does not answer.
    Unreachable,
    /// The peer refuses; the status is the reason. Of a connection that this side has confirmed it means that the
    /// peer is gone without having seen that.
    Rejected,
    /// The connection stands.
    Established,
    /// The peer has ended the connection, or has died. It may come before [`Established`](CmEventKind::Established),
    /// late, or never; and before the peer's queue pair is gone, so that WRITEs may still succeed for a moment.
    Disconnected,
    /// The device is being taken away.
    DeviceRemoval,
    /// The address has moved to another network device.
    AddressChange,
    /// Nothing of the connection can be under way any more. It may never come.
    TimewaitExit,
    /// Something else.
    Other(u32),
}

impl CmEventKind {
    /// The event's name in C.
    pub fn name(&self) -> &'static str {
        match self {
            CmEventKind::AddressResolved => "RDMA_CM_EVENT_ADDR_RESOLVED",
            CmEventKind::AddressError => "RDMA_CM_EVENT_ADDR_ERROR",
            CmEventKind::RouteResolved => "RDMA_CM_EVENT_ROUTE_RESOLVED",
            CmEventKind::RouteError => "RDMA_CM_EVENT_ROUTE_ERROR",
            CmEventKind::ConnectRequest(_) => "RDMA_CM_EVENT_CONNECT_REQUEST",
            CmEventKind::ConnectResponse => "RDMA_CM_EVENT_CONNECT_RESPONSE",
            CmEventKind::ConnectError => "RDMA_CM_EVENT_CONNECT_ERROR",
            CmEventKind::Unreachable => "RDMA_CM_EVENT_UNREACHABLE",
            CmEventKind::Rejected => "RDMA_CM_EVENT_REJECTED",
            CmEventKind::Established => "RDMA_CM_EVENT_ESTABLISHED",
            CmEventKind::Disconnected => "RDMA_CM_EVENT_DISCONNECTED",
            CmEventKind::DeviceRemoval => "RDMA_CM_EVENT_DEVICE_REMOVAL",
            CmEventKind::AddressChange => "RDMA_CM_EVENT_ADDR_CHANGE",
            CmEventKind::TimewaitExit => "RDMA_CM_EVENT_TIMEWAIT_EXIT",
            CmEventKind::Other(_) => "another event",
        }
    }

    fn from_raw(number: u32) -> CmEventKind {
        match number {
            raw::RDMA_CM_EVENT_ADDR_RESOLVED => CmEventKind::AddressResolved,
            raw::RDMA_CM_EVENT_ADDR_ERROR => CmEventKind::AddressError,
            raw::RDMA_CM_EVENT_ROUTE_RESOLVED => CmEventKind::RouteResolved,
            raw::RDMA_CM_EVENT_ROUTE_ERROR => CmEventKind::RouteError,
            raw::RDMA_CM_EVENT_CONNECT_RESPONSE => CmEventKind::ConnectResponse,
            raw::RDMA_CM_EVENT_CONNECT_ERROR => CmEventKind::ConnectError,
            raw::RDMA_CM_EVENT_UNREACHABLE => CmEventKind::Unreachable,
            raw::RDMA_CM_EVENT_REJECTED => CmEventKind::Rejected,
            raw::RDMA_CM_EVENT_ESTABLISHED => CmEventKind::Established,
            raw::RDMA_CM_EVENT_DISCONNECTED => CmEventKind::Disconnected,
            raw::RDMA_CM_EVENT_DEVICE_REMOVAL => CmEventKind::DeviceRemoval,
            raw::RDMA_CM_EVENT_ADDR_CHANGE => CmEventKind::AddressChange,
            raw::RDMA_CM_EVENT_TIMEWAIT_EXIT => CmEventKind::TimewaitExit,
            other => CmEventKind::Other(other),
        }
    }
}

/// What a peer asks for or grants when it connects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// READs that the peer wants to have in flight.
    pub reads_wanted: u8,
    /// READs of this side that the peer answers at a time.
    pub reads_answered: u8,
    /// Retries that it asks this side for. 7 means for ever on some devices: refuse it, or set one's own.
    pub retries: u8,
    /// Retries to a receiver that is not ready; 7 means for ever.
    pub rnr_retries: u8,
    /// Its queue pair.
    pub queue_pair: u32,
}

/// An event of the connection manager, copied out and acknowledged.
#[derive(Debug)]
pub struct CmEvent {
    /// The id it is about; for a request to connect, the listener's.
    pub id: IdToken,
    /// What it says.
    pub kind: CmEventKind,
    /// 0, a negative errno, or for a rejection its reason.
    pub status: i32,
    /// What the peer asks for or grants; zeros where the event has nothing to do with it.
    pub offer: Offer,
    /// What the peer sent along, perhaps with zeros behind.
    pub private_data: PeerData,
}

impl CmEvent {
    /// The event as an error, for who expected another.
    pub fn as_error(&self) -> Error {
        Error::CmEvent {
            event: self.kind.name(),
            status: self.status,
        }
    }
}

impl EventChannel {
    /// A new channel.
    ///
    /// # Errors
    /// A failed call: there is no RDMA device, or /dev/infiniband/rdma_cm can't be opened.
    pub fn new() -> Result<EventChannel, Error> {
        // SAFETY: the call has no arguments.
        let raw = sys::pointer(Call::CreateEventChannel, unsafe {
            sys::rdma_create_event_channel()
        })?;
        let taking = Mutex::new(());
        let inner = Arc::new(Channel { raw, taking });
        let channel = EventChannel { inner };
        sys::set_nonblocking(channel.as_fd())?;
        Ok(channel)
    }

    /// The next event; `None` where there is none.
    ///
    /// # Errors
    /// A failed call.
    pub fn take_event(&self) -> Result<Option<CmEvent>, Error> {
        let _taking = self.lock();
        let mut event = ptr::null_mut();
        // SAFETY: the channel is open and the place is valid.
        let answer = unsafe { sys::rdma_get_cm_event(self.inner.raw.as_ptr(), &mut event) };
        match sys::check(Call::GetCmEvent, answer) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => return Ok(None),
            Err(error) => return Err(error),
        }
        // SAFETY: the event was just taken and is acknowledged once, after it was copied. Its ids exist: they are
        // destroyed under the lock only.
        unsafe {
            let copied = self.copy(&*event);
            sys::rdma_ack_cm_event(event);
            Ok(Some(copied))
        }
    }

    /// Copies an event.
    ///
    /// # Safety
    /// It must have been taken and not been acknowledged, and its ids must exist.
    unsafe fn copy(&self, event: &sys::rdma_cm_event) -> CmEvent {
        // SAFETY: all events of connections have this variant of the union; its pointer is null or leads to as many
        // bytes as it says.
        let (offer, private_data) = unsafe {
            let conn = &event.param.conn;
            let offer = Offer {
                // What the peer calls its initiator depth comes as this side's responder resources.
                reads_wanted: conn.responder_resources,
                reads_answered: conn.initiator_depth,
                retries: conn.retry_count,
                rnr_retries: conn.rnr_retry_count,
                queue_pair: conn.qp_num,
            };
            (offer, peer_data(conn))
        };
        let (about, kind) = match event.event {
            raw::RDMA_CM_EVENT_CONNECT_REQUEST => {
                let raw = NonNull::new(event.id).expect("a request has an id");
                let id = CmId::adopt(raw, self.clone());
                let request = Box::new(Request::new(id, offer, private_data));
                (event.listen_id, CmEventKind::ConnectRequest(request))
            }
            other => (event.id, CmEventKind::from_raw(other)),
        };
        CmEvent {
            // SAFETY: the id exists by the caller's promise; its word was set when it was made.
            id: IdToken(unsafe { (*about).context }.addr() as u64),
            kind,
            status: event.status,
            offer,
            private_data,
        }
    }

    fn lock(&self) -> impl Drop {
        let taking = self.inner.taking.lock();
        taking.unwrap_or_else(PoisonError::into_inner)
    }
}

/// What came with an event.
///
/// # Safety
/// The pointer must be null or lead to as many bytes as the length says.
unsafe fn peer_data(conn: &sys::rdma_conn_param) -> PeerData {
    let start = conn.private_data.cast::<u8>();
    if start.is_null() {
        return PeerData::none();
    }
    // SAFETY: by the caller's promise.
    let bytes = unsafe { core::slice::from_raw_parts(start, conn.private_data_len.into()) };
    PeerData::new(bytes).unwrap_or(PeerData::none())
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open while the channel is.
        unsafe { BorrowedFd::borrow_raw(self.inner.raw.as_ref().fd) }
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventChannel({:?})", self.as_fd())
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed here only; ids hold an `Arc` of it, and events are acknowledged at once.
        unsafe { sys::rdma_destroy_event_channel(self.raw.as_ptr()) };
    }
}

/// An id of the connection manager, destroyed when dropped: whatever it was doing is given up, and a connection
/// ends. Destroying it does not wait for the peer.
pub(crate) struct CmId {
    raw: NonNull<sys::rdma_cm_id>,
    token: IdToken,
    channel: EventChannel,
}

// SAFETY: librdmacm allows calls on an id from any thread; methods that change it take it mutably.
unsafe impl Send for CmId {}
// SAFETY: shared references allow reading what does not change any more.
unsafe impl Sync for CmId {}

impl CmId {
    pub(crate) fn new(channel: &EventChannel) -> Result<CmId, Error> {
        let token = IdToken(NEXT_TOKEN.fetch_add(1, Ordering::Relaxed));
        let word = ptr::without_provenance_mut(token.0 as usize);
        let mut id = ptr::null_mut();
        // SAFETY: the channel is open; `id` is a place for the pointer; the id's own word is a number.
        sys::check(Call::CreateId, unsafe {
            let space = sys::rdma_port_space::RDMA_PS_TCP;
            sys::rdma_create_id(channel.inner.raw.as_ptr(), &mut id, word, space)
        })?;
        let raw = sys::pointer(Call::CreateId, id)?;
        let channel = channel.clone();
        live::IDS.made();
        Ok(CmId {
            raw,
            token,
            channel,
        })
    }

    /// Takes over the id of a request to connect, which has its listener's word.
    fn adopt(raw: NonNull<sys::rdma_cm_id>, channel: EventChannel) -> CmId {
        let token = IdToken(NEXT_TOKEN.fetch_add(1, Ordering::Relaxed));
        // SAFETY: the id was made for the event that is being copied; nobody else has it.
        unsafe { (*raw.as_ptr()).context = ptr::without_provenance_mut(token.0 as usize) };
        live::IDS.made();
        CmId {
            raw,
            token,
            channel,
        }
    }

    pub(crate) fn token(&self) -> IdToken {
        self.token
    }

    pub(crate) fn raw(&self) -> *mut sys::rdma_cm_id {
        self.raw.as_ptr()
    }

    /// Whether it is on this device, so that its connection can use queue pairs of it.
    pub(crate) fn is_on(&self, context: &Context) -> bool {
        // SAFETY: the id exists.
        unsafe { self.raw.as_ref().verbs == context.raw() }
    }

    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        // SAFETY: the id exists, and its route has room for any address.
        unsafe { from_c(&raw const (*self.raw()).route.addr.src_addr_union.src_addr) }
    }

    pub(crate) fn peer_address(&self) -> Option<SocketAddr> {
        // SAFETY: as above.
        unsafe { from_c(&raw const (*self.raw()).route.addr.dst_addr_union.dst_addr) }
    }

    /// Binds it to a local address.
    pub(crate) fn bind(&mut self, address: SocketAddr) -> Result<(), Error> {
        let mut c = CAddress::from(address);
        // SAFETY: id and address are valid for the call.
        sys::check(Call::BindAddr, unsafe {
            sys::rdma_bind_addr(self.raw(), c.as_ptr())
        })
        .map_err(|error| error.context(address))
    }

    /// Sets an option of the id.
    pub(crate) fn set_option<V>(&mut self, option: i32, mut value: V) -> Result<(), Error> {
        // SAFETY: the value is as long as the call is told, and is copied by it.
        sys::check(Call::SetOption, unsafe {
            let place = (&raw mut value).cast();
            let level = sys::RDMA_OPTION_ID;
            sys::rdma_set_option(self.raw(), level, option, place, mem::size_of::<V>())
        })
    }
}

impl fmt::Debug for CmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (local, peer) = (self.local_address(), self.peer_address());
        write!(f, "id {} from {local:?} to {peer:?}", self.token.0)
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        let _taking = self.channel.lock();
        // SAFETY: made in `new` or taken over in `adopt`, destroyed here only. No event of it is held by anybody: they
        // are taken and acknowledged under the lock.
        let answer = unsafe { sys::rdma_destroy_id(self.raw()) };
        match sys::check(Call::DestroyId, answer) {
            Ok(()) => live::IDS.gone(),
            Err(error) => tracing::warn!(%error, "an id of the connection manager is left behind"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_the_future_are_known_as_such() {
        assert!(matches!(CmEventKind::from_raw(9), CmEventKind::Established));
        assert!(matches!(CmEventKind::from_raw(99), CmEventKind::Other(99)));
    }
}
