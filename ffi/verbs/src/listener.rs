//! The side that is connected to: listening, and answering requests.

use core::ptr;
use std::net::SocketAddr;

use crate::connection::{Connection, answer_to, bring_up, initialise};
use crate::device::Context;
use crate::error::{Call, Error};
use crate::event_channel::{CmId, EventChannel, IdToken, Offer};
use crate::parameters::Parameters;
use crate::private_data::{PeerData, RejectData, ReplyData};
use crate::queue_pair::QueuePair;
use crate::sys;

/// Listens at an address of a device.
#[derive(Debug)]
pub struct Listener {
    id: CmId,
}

impl Listener {
    /// Listens at `address`, a concrete one, so that the device is known. Port 0 takes any free one. Up to `backlog`
    /// requests wait for an answer; further ones are dropped, and their senders try again.
    ///
    /// # Errors
    /// A failed call: the address is in use, or belongs to no RDMA device.
    pub fn bind(
        channel: &EventChannel,
        address: SocketAddr,
        backlog: u16,
    ) -> Result<Listener, Error> {
        let mut id = CmId::new(channel)?;
        // Connections of a former process that are not quite over are no obstacle.
        id.set_option(sys::RDMA_OPTION_ID_REUSEADDR, 1i32)?;
        id.bind(address)?;
        // SAFETY: the id is bound.
        sys::check(Call::Listen, unsafe {
            sys::rdma_listen(id.raw(), backlog.into())
        })
        .map_err(|error| error.context(address))?;
        Ok(Listener { id })
    }

    /// What events about it name.
    pub fn token(&self) -> IdToken {
        self.id.token()
    }

    /// The address, with the port that was taken.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.id.local_address()
    }

    /// Whether it is on this device.
    pub fn is_on(&self, context: &Context) -> bool {
        self.id.is_on(context)
    }
}

/// A peer's request to connect, to be accepted or refused. Dropped, it is refused without a word.
#[derive(Debug)]
pub struct Request {
    id: CmId,
    offer: Offer,
    private_data: PeerData,
}

impl Request {
    pub(crate) fn new(id: CmId, offer: Offer, private_data: PeerData) -> Request {
        Request {
            id,
            offer,
            private_data,
        }
    }

    /// What events about it, and about the connection that it becomes, name.
    pub fn token(&self) -> IdToken {
        self.id.token()
    }

    /// What the peer asks for.
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// What the peer sent along, perhaps with zeros behind.
    pub fn private_data(&self) -> &[u8] {
        self.private_data.as_slice()
    }

    /// Where the peer is.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.id.peer_address()
    }

    /// The address that the peer asked for.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.id.local_address()
    }

    /// Whether it came in by this device; refuse it otherwise.
    pub fn is_on(&self, context: &Context) -> bool {
        self.id.is_on(context)
    }

    /// Makes a queue pair ready for receives to be posted, which has to happen before the request is accepted: the
    /// peer's first message may come before anything else.
    ///
    /// # Errors
    /// A failed call.
    ///
    /// # Panics
    /// If the queue pair is of another device or not in the state [`State::Reset`](crate::State::Reset).
    pub fn initialise<T>(
        &mut self,
        qp: &mut QueuePair<T>,
        parameters: &Parameters,
    ) -> Result<(), Error> {
        initialise(&self.id, qp, parameters)
    }

    /// Accepts with a queue pair that was initialised. The connection stands when
    /// [`Established`](crate::CmEventKind::Established) comes; the peer's messages may come before.
    ///
    /// Retry counts are this side's own, whatever the peer asks for.
    ///
    /// # Errors
    /// A failed call; the request is gone.
    ///
    /// # Panics
    /// If the queue pair is of another device or not in the state [`State::Init`](crate::State::Init).
    pub fn accept<T>(
        mut self,
        qp: &mut QueuePair<T>,
        parameters: &Parameters,
        private_data: &ReplyData,
    ) -> Result<Connection, Error> {
        let agreed = answer_to(&self.offer, parameters);
        bring_up(&mut self.id, qp, &agreed)?;
        let mut c = agreed.to_c(qp.number(), private_data.as_slice());
        // SAFETY: the id is that of a request; the parameters and the bytes they point to are valid.
        sys::check(Call::Accept, unsafe {
            sys::rdma_accept(self.id.raw(), &mut c)
        })?;
        Ok(Connection::new(self.id))
    }

    /// Refuses, with a word to the peer.
    ///
    /// # Errors
    /// A failed call: the peer is gone.
    pub fn reject(self, private_data: &RejectData) -> Result<(), Error> {
        let bytes = private_data.as_slice();
        let start = match bytes {
            [] => ptr::null(),
            _ => bytes.as_ptr().cast(),
        };
        // SAFETY: the id is that of a request; the bytes are valid.
        sys::check(Call::Reject, unsafe {
            sys::rdma_reject(self.id.raw(), start, private_data.len())
        })
    }
}
