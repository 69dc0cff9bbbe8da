//! Connecting: steps of the connection manager, one after the other, under one deadline.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Instant;

use rowmill_verbs::{
    CmEvent, CmEventKind, Connecting, EventChannel, Parameters, Resolution, Resolved, Resolving,
};
use rowmill_wire::Refusal;
use rustix::event::PollFlags;

use super::config::ConnectionParameters;
use super::failure::in_full;
use super::private_data::parse_refusal;
use crate::patience::Patience;
use crate::{Interrupt, PortError, WakeFds};

/// Reasons of a rejection: nobody listens there; the peer takes it for an old connection; the peer's program says why.
const NOBODY_LISTENS: i32 = 8;
const STALE: i32 = 10;
const PROGRAM: i32 = 28;

/// Why an attempt failed.
pub(super) enum Failure {
    /// The peer takes it for a connection that it had, which it has now ended: the next attempt may succeed.
    Stale,
    /// For good.
    Final(PortError),
}

impl From<PortError> for Failure {
    fn from(error: PortError) -> Failure {
        Failure::Final(error)
    }
}

/// An attempt to connect.
pub(super) struct Attempt<'a> {
    pub(super) endpoint: &'a str,
    pub(super) channel: &'a EventChannel,
    pub(super) deadline: Instant,
    pub(super) interrupt: &'a Interrupt,
}

impl Attempt<'_> {
    /// Waits until its deadline.
    pub(super) fn patience(&self) -> Patience {
        let left = self.deadline.saturating_duration_since(Instant::now());
        Patience::new(left, self.interrupt)
    }

    /// The endpoint can't be reached, since.
    pub(super) fn failed(&self, why: impl Into<String>) -> PortError {
        self.unreachable(io::Error::other(why.into()))
    }

    pub(super) fn unreachable(&self, source: io::Error) -> PortError {
        PortError::Connect {
            endpoint: self.endpoint.to_owned(),
            source,
        }
    }

    pub(super) fn verbs(&self, error: &rowmill_verbs::Error) -> PortError {
        self.failed(in_full(error))
    }

    /// Finds the way to an address.
    pub(super) fn resolve(
        &self,
        to: SocketAddr,
        connection: &ConnectionParameters,
    ) -> Result<Resolved, PortError> {
        let parameters = Parameters {
            ack_timeout: connection.ack_timeout,
            traffic_class: connection.traffic_class,
            ..Parameters::default()
        };
        let left = self.deadline.saturating_duration_since(Instant::now());
        let mut resolving = Resolving::start(self.channel, None, to, left, &parameters)
            .map_err(|e| self.verbs(&e))?;
        loop {
            let event = self.event(|event| event.id == resolving.token())?;
            match resolving.advance(&event).map_err(|e| self.verbs(&e))? {
                Resolution::Waiting(further) => resolving = further,
                Resolution::Ready(resolved) => return Ok(resolved),
            }
        }
    }

    /// Waits for the peer's answer.
    pub(super) fn answer(&self, connecting: &Connecting) -> Result<CmEvent, Failure> {
        let event = self.event(|event| event.id == connecting.token())?;
        match (&event.kind, event.status) {
            (CmEventKind::Rejected, STALE) => Err(Failure::Stale),
            (CmEventKind::Rejected, PROGRAM) => {
                let refusal = parse_refusal(event.private_data.as_slice());
                Err(Failure::Final(match refusal {
                    Some((status, detail)) => PortError::Refused {
                        refusal: Refusal::whole(status),
                        detail,
                    },
                    None => self.failed("refused without a word"),
                }))
            }
            (CmEventKind::Rejected, NOBODY_LISTENS) => {
                let refused = io::ErrorKind::ConnectionRefused.into();
                Err(Failure::Final(self.unreachable(refused)))
            }
            _ => Ok(event),
        }
    }

    /// The next event of the one that is waited for. Those of others are not of interest: what they end is noticed
    /// when it is used.
    fn event(&self, wanted: impl Fn(&CmEvent) -> bool) -> Result<CmEvent, PortError> {
        let mut patience = self.patience();
        loop {
            match self.channel.take_event() {
                Ok(Some(event)) if wanted(&event) => return Ok(event),
                Ok(Some(_)) => continue,
                Ok(None) => (),
                Err(error) => return Err(self.verbs(&error)),
            }
            let sleep = patience.next_sleep().map_err(|error| match error {
                PortError::NoAnswer { .. } => self.unreachable(io::ErrorKind::TimedOut.into()),
                other => other,
            })?;
            WakeFds::of([(self.channel.as_fd(), PollFlags::IN)])
                .poll(Some(sleep))
                .map_err(|e| self.unreachable(e.into()))?;
        }
    }
}
